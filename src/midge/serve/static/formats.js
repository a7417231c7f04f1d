/** The transcript as files: text, SubRip captions, JSON; as `midge transcribe` writes them.
 *
 * Times are whole milliseconds. Words never overlap, and each lasts at least one millisecond.
 */

import { textOf } from "./transcript.js";

const MAX_LINE_SIZE = 42;
const NUM_LINES = 2;
const MAX_CAPTION_MILLISECONDS = 7000;
/** A longer pause begins a new caption. */
const MAX_PAUSE_MILLISECONDS = 1000;

/** One line for each segment. */
export function toText(transcript) {
  return segmentsOf(transcript)
    .map((segment) => `${textOf(segment.words)}\n`)
    .join("");
}

/** SubRip captions of at most two lines. It cannot write the arrow as text: it becomes ->. */
export function toSrt(transcript) {
  return captions(spans(transcript))
    .map(({ lines, start, end }, index) => {
      const text = lines.join("\n").replace(/-+->/g, "->");
      return `${index + 1}\n${clock(start)} --> ${clock(end)}\n${text}\n`;
    })
    .join("\n");
}

/** One object: recording, text, words with times and confidences, seconds, segments. */
export function toJson(transcript) {
  const words = spans(transcript).map(({ text, start, end, confidence }) => ({
    word: text,
    start: start / 1000,
    end: end / 1000,
    confidence,
  }));
  const segments = segmentsOf(transcript).map((segment) => ({
    start: segment.start,
    end: segment.end,
    text: textOf(segment.words),
    is_final: segment.isFinal,
    alternatives: segment.alternatives,
  }));
  const { text, seconds } = transcript;
  const recording = transcript.sources.join(", ");
  return `${JSON.stringify({ recording, text, words, seconds, segments }, null, 1)}\n`;
}

/** The segments that are over, then what is being heard. */
function segmentsOf({ segments, open }) {
  const words = [...open.committed, ...open.tentative];
  if (words.length === 0) return segments;
  const [start, end] = [words[0].start, words.at(-1).end];
  return [...segments, { start, end, words, alternatives: [], isFinal: false }];
}

/** The words in whole milliseconds, in order, apart and within the recording. */
function spans({ words, seconds }) {
  let last = 0;
  const found = words.map((word) => {
    const start = Math.max(milliseconds(word.start), last);
    last = Math.max(milliseconds(word.end), start + 1);
    return { text: word.text, start, end: last, confidence: word.confidence ?? null };
  });
  // What was pushed beyond the end goes back, and pushes the words before it.
  let end = milliseconds(seconds);
  for (const span of found.reverse()) {
    span.end = Math.min(span.end, end);
    span.start = Math.min(span.start, span.end - 1);
    end = span.start;
  }
  return found.reverse();
}

/** Half a millisecond goes to the even neighbour, as in Python. */
function milliseconds(seconds) {
  const time = Math.max(0, 1000 * seconds);
  const whole = Math.floor(time);
  return time - whole === 0.5 ? whole + (whole % 2) : Math.round(time);
}

function captions(words) {
  const groups = [];
  for (const word of words) {
    if (groups.length > 0 && fits(groups.at(-1), word)) groups.at(-1).push(word);
    else groups.push([word]);
  }
  return groups.map((group) => ({
    lines: linesOf(group),
    start: group[0].start,
    end: group.at(-1).end,
  }));
}

function fits(group, word) {
  return (
    word.start - group.at(-1).end <= MAX_PAUSE_MILLISECONDS &&
    word.end - group[0].start <= MAX_CAPTION_MILLISECONDS &&
    linesOf([...group, word]).length <= NUM_LINES
  );
}

function linesOf(words) {
  const lines = [words[0].text];
  for (const { text } of words.slice(1)) {
    const line = `${lines.at(-1)} ${text}`;
    // Characters as Python counts them, not UTF-16 units.
    if ([...line].length <= MAX_LINE_SIZE) lines[lines.length - 1] = line;
    else lines.push(text);
  }
  return lines;
}

function clock(time) {
  const [whole, rest] = [Math.floor(time / 1000), time % 1000];
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const padded = parts.map((part) => String(part).padStart(2, "0"));
  return `${padded.join(":")},${String(rest).padStart(3, "0")}`;
}
