/** What has been said since the page was cleared, over any number of recordings. */

export class Transcript {
  constructor() {
    this.clear();
  }

  /** Forgets everything. */
  clear() {
    /** Segments that are over: {key, start, end, words, alternatives, isFinal}. One that the server
     * had no time to confirm is not final. */
    this.segments = [];
    /** Words of the segment that is being heard. */
    this.open = { committed: [], tentative: [] };
    /** Names of the recordings. */
    this.sources = [];
    /** Length of the recordings that are over, and of the one that is being heard. */
    this._past = 0;
    this._present = 0;
  }

  /** Length of all recordings. */
  get seconds() {
    return this._past + this._present;
  }

  get isEmpty() {
    return this.segments.length === 0 && this._openWords().length === 0;
  }

  /** All words, the open segment's too. */
  get words() {
    return [...this.segments.flatMap((segment) => segment.words), ...this._openWords()];
  }

  /** All words as text. */
  get text() {
    return textOf(this.words);
  }

  /** A recording begins; its times count from here. */
  begin(source) {
    this.sources.push(source);
  }

  /** The recording has become longer. */
  lengthen(seconds) {
    this._present = seconds;
  }

  /** The open segment, as it seems so far. Times count from the beginning of the recording. */
  setOpen({ committed, tentative }) {
    this.open = { committed: this._later(committed), tentative: this._later(tentative) };
  }

  /** The open segment is over; one without words leaves nothing. */
  close({ key, start, end, words, alternatives }) {
    this.open = { committed: [], tentative: [] };
    this._add({
      key,
      start: start + this._past,
      end: end + this._past,
      words: this._later(words),
      alternatives,
      isFinal: true,
    });
  }

  /** Other readings of a segment that is over, which take longer than its words. */
  setAlternatives(key, alternatives) {
    const segment = this.segments.findLast((each) => each.key === key);
    if (segment !== undefined) segment.alternatives = alternatives;
  }

  /** Words of the open segment that end before a time of the recording will not be heard again. */
  keepBefore(seconds) {
    const end = seconds + this._past;
    const words = this._openWords();
    this._interrupt(words.filter((word) => word.end <= end));
    const isLater = (word) => word.end > end;
    this.open = {
      committed: this.open.committed.filter(isLater),
      tentative: this.open.tentative.filter(isLater),
    };
  }

  /** A recording ends. Words that the server had no time to confirm stay. */
  end() {
    this._interrupt(this._openWords());
    this.open = { committed: [], tentative: [] };
    this._past = this.seconds;
    this._present = 0;
  }

  _interrupt(words) {
    if (words.length === 0) return;
    const [start, end] = [words[0].start, words.at(-1).end];
    this._add({ start, end, words, alternatives: [], isFinal: false });
  }

  _add(segment) {
    if (segment.words.length > 0) this.segments.push(segment);
  }

  _openWords() {
    return [...this.open.committed, ...this.open.tentative];
  }

  _later(words) {
    return words.map((word) => ({
      ...word,
      start: word.start + this._past,
      end: word.end + this._past,
    }));
  }
}

/** Words as text. */
export function textOf(words) {
  return words.map((word) => word.text).join(" ");
}
