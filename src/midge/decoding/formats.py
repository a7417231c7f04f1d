"""Transcripts as files: plain text, JSON, CTM, SRT, WebVTT, TextGrid and sclite's trn.

All formats with times are written in whole milliseconds. Words never overlap or go back, each
lasts at least one millisecond (captions and intervals without length are refused by their readers),
and none reaches beyond the recording.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midge.decoding.decoded import DecodedSegment, DecodedTranscript
from midge.models import TimedWord, Transcript

MAX_LINE_SIZE = 42
"""Characters of a caption line; subtitles are usually set so."""
MAX_CAPTION_SECONDS = 7.0
MAX_PAUSE_SECONDS = 1.0
"""A longer pause begins a new caption."""
_NUM_LINES = 2


@dataclass(frozen=True)
class Format:
    """A way to write a transcript."""

    suffix: str
    """Of its files, with the dot."""
    write: Callable[[Transcript, str], str]
    """From the transcript and the name of the recording to text that ends in a new line."""
    can_be_joined: bool
    """Whether the texts of several recordings, one after the other, are again such a file."""


@dataclass(frozen=True)
class Span:
    """A word, or a caption, in whole milliseconds."""

    text: str
    start: int
    end: int
    confidence: float | None = None


def to_text(transcript: Transcript, recording: str = "") -> str:
    """The words on one line; the name of the recording is not told."""
    return transcript.text + "\n"


def to_json(transcript: Transcript, recording: str) -> str:
    """One JSON object on one line: recording, text, words with times in seconds, score, seconds.

    A confidence that is not known, and a score that is not finite, is null. What was decoded with
    more than the best path also has its segments: each with its alternatives, whether they are
    proved to be the best, and the confidence intervals of its words (null where none is known) with
    how probable it is that they hold: 1 is for certain, 0.95 is by samples.
    """
    return json.dumps(json_object(transcript, recording), ensure_ascii=False) + "\n"


def json_object(transcript: Transcript, recording: str) -> dict[str, Any]:
    """What `to_json` writes, as JSON can hold it."""
    words = [
        {
            "word": span.text,
            "start": span.start / 1000,
            "end": span.end / 1000,
            "confidence": span.confidence,
        }
        for span in spans(transcript, recording)
    ]
    found = {
        "recording": recording,
        "text": transcript.text,
        "words": words,
        "score": _finite(transcript.score),
        "seconds": transcript.seconds,
    }
    if isinstance(transcript, DecodedTranscript):
        found["segments"] = list(map(_segment_json, transcript.segments))
    return found


def _segment_json(segment: DecodedSegment) -> dict[str, Any]:
    return {
        "start": segment.start,
        "end": segment.end,
        "is_proved": segment.is_proved,
        "alternatives": [
            {
                "text": each.text,
                "log_probability": _finite(each.log_probability),
                "score": _finite(each.score),
            }
            for each in segment.alternatives
        ],
        "confidence_intervals": [
            None if each.low is None else [each.low, each.high] for each in segment.confidences
        ],
        "confidence_level": min(
            (each.level for each in segment.confidences if each.low is not None), default=None
        ),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def to_ctm(transcript: Transcript, recording: str, channel: str = "1") -> str:
    """NIST's CTM: recording, channel, start, duration (in seconds), word and any confidence.

    White space in a name is written as %20 and the like, since it ends a field.
    """
    lines = []
    for span in spans(transcript, recording):
        times = f"{span.start / 1000:.3f} {(span.end - span.start) / 1000:.3f}"
        known = "" if span.confidence is None else f" {span.confidence:.4f}"
        lines.append(f"{escaped_name(recording)} {channel} {times} {span.text}{known}\n")
    return "".join(lines)


def to_srt(transcript: Transcript, recording: str = "") -> str:
    """SubRip captions.

    The format has no way to write the arrow --> as text: it becomes ->.
    """
    entries = [
        f"{number}\n{_clock(span.start, ',')} --> {_clock(span.end, ',')}\n"
        f"{_without_arrows(span.text)}\n"
        for number, span in enumerate(captions(spans(transcript, recording)), start=1)
    ]
    return "\n".join(entries)


def to_webvtt(transcript: Transcript, recording: str = "") -> str:
    """WebVTT captions; the characters &, < and > are escaped."""
    entries = [
        f"{_clock(span.start, '.')} --> {_clock(span.end, '.')}\n"
        f"{html.escape(span.text, quote=False)}\n"
        for span in captions(spans(transcript, recording))
    ]
    return "\n".join(["WEBVTT\n", *entries])


def to_textgrid(transcript: Transcript, recording: str = "") -> str:
    """Praat's TextGrid, long form: one tier of words, with empty intervals between them."""
    end = _whole_milliseconds(transcript)
    intervals = _without_gaps(spans(transcript, recording), end)
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        *_bounds(0, end, 0),
        "tiers? <exists>",
        "size = 1",
        "item []:",
        "    item [1]:",
        '        class = "IntervalTier"',
        '        name = "words"',
        *_bounds(0, end, 8),
        f"        intervals: size = {len(intervals)}",
    ]
    for number, span in enumerate(intervals, start=1):
        quoted = span.text.replace('"', '""')
        lines += [f"        intervals [{number}]:", *_bounds(span.start, span.end, 12)]
        lines += [f'            text = "{quoted}"']
    return "\n".join(lines) + "\n"


def to_trn(transcript: Transcript, recording: str) -> str:
    """Sclite's transcript: the words, then the name in parentheses."""
    return trn_line(transcript.text, recording)


def trn_line(text: str, name: str) -> str:
    r"""A line of a trn file; white space and parentheses in the name are written as %20, %28.

    Example:
        >>> trn_line("ONE TWO", "ann-1")
        'ONE TWO (ann-1)\n'
    """
    return " ".join([*text.split(), f"({escaped_name(name)})"]) + "\n"


def read_trn(text: str) -> dict[str, str]:
    """Reads a trn file: the text of each utterance.

    Raises:
        ValueError: for a line without a name, or a name that comes twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith(";;"):
            continue
        match = re.fullmatch(r"(.*)\(([^()\s]+)\)\s*", line)
        if match is None:
            raise ValueError(f"line {number} should end in (name), got {line!r}")
        name = unescaped_name(match[2])
        if name in found:
            raise ValueError(f"line {number}: {name} comes twice")
        found[name] = match[1].strip()
    return found


FORMATS: Mapping[str, Format] = {
    "text": Format(".txt", to_text, True),
    "json": Format(".json", to_json, True),
    "ctm": Format(".ctm", to_ctm, True),
    "srt": Format(".srt", to_srt, False),
    "vtt": Format(".vtt", to_webvtt, False),
    "textgrid": Format(".TextGrid", to_textgrid, False),
    "trn": Format(".trn", to_trn, True),
}
"""The formats by name."""


def escaped_name(name: str) -> str:
    """A name without white space and parentheses, from which `unescaped_name` makes it again."""
    return re.sub(r"[\s()%]", lambda found: "".join(f"%{x:02X}" for x in found[0].encode()), name)


def unescaped_name(name: str) -> str:
    """The name that `escaped_name` wrote."""
    return re.sub(
        r"(?:%[0-9A-F]{2})+", lambda found: bytes.fromhex(found[0].replace("%", "")).decode(), name
    )


def spans(transcript: Transcript, recording: str = "") -> list[Span]:
    """The words in whole milliseconds, in order, apart and within the recording.

    Raises:
        ValueError: if there are more words than milliseconds, or a time is no number.
    """
    end = _whole_milliseconds(transcript)
    if len(transcript.words) > end:
        raise ValueError(f"{recording}: {len(transcript.words)} words in {end} ms leave no time")
    starts, ends = [], []
    last = 0
    for word in transcript.words:
        starts.append(max(_milliseconds(word, word.start, recording), last))
        ends.append(max(_milliseconds(word, word.end, recording), starts[-1] + 1))
        last = ends[-1]
    # What was pushed beyond the end goes back, and pushes the words before it.
    for place in reversed(range(len(ends))):
        ends[place] = min(ends[place], end)
        starts[place] = min(starts[place], ends[place] - 1)
        end = starts[place]
    timed = zip(transcript.words, starts, ends, strict=True)
    return [Span(word.text, start, stop, word.confidence) for word, start, stop in timed]


def captions(words: Sequence[Span]) -> list[Span]:
    """Joins words into captions of at most two lines, which a longer pause or time cuts."""
    groups: list[list[Span]] = []
    for word in words:
        if groups and _fits(groups[-1], word):
            groups[-1].append(word)
        else:
            groups.append([word])
    return [
        Span("\n".join(_lines([word.text for word in group])), group[0].start, group[-1].end)
        for group in groups
    ]


def _fits(group: Sequence[Span], word: Span) -> bool:
    pause, length = word.start - group[-1].end, word.end - group[0].start
    return (
        pause <= 1000 * MAX_PAUSE_SECONDS
        and length <= 1000 * MAX_CAPTION_SECONDS
        and len(_lines([*(each.text for each in group), word.text])) <= _NUM_LINES
    )


def _lines(words: Sequence[str]) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= MAX_LINE_SIZE:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _without_arrows(text: str) -> str:
    return re.sub("-+->", "->", text)


def _without_gaps(words: Sequence[Span], end: int) -> list[Span]:
    """The words with empty spans between, so that all together cover 0..end."""

    def covering() -> Iterator[Span]:
        last = 0
        for word in words:
            if word.start > last:
                yield Span("", last, word.start)
            yield word
            last = word.end
        if end > last:
            yield Span("", last, end)

    return list(covering())


def _bounds(start: int, end: int, indent: int) -> list[str]:
    return [f"{'':{indent}}xmin = {start / 1000:.3f}", f"{'':{indent}}xmax = {end / 1000:.3f}"]


def _clock(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{rest:03}"


def _whole_milliseconds(transcript: Transcript) -> int:
    """Length of the recording; a TextGrid needs some."""
    return max(1, round(1000 * transcript.seconds))


def _milliseconds(word: TimedWord, seconds: float, recording: str) -> int:
    if not math.isfinite(seconds):
        raise ValueError(f"{recording}: the time of {word.text!r} should be finite, got {seconds}")
    return max(0, round(1000 * seconds))
