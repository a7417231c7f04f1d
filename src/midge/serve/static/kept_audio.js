/** The sound that may have to be sent again: what no final segment covers yet. */

export class KeptAudio {
  /** @param {number} maxSize samples; older ones are dropped. */
  constructor(maxSize) {
    this._maxSize = maxSize;
    this._pieces = [];
    /** Place of the first sample kept, from the beginning of the session. */
    this.start = 0;
    /** Place behind the last. */
    this.end = 0;
  }

  /** Adds samples; beyond the largest size whole pieces are dropped from the front. */
  push(samples) {
    this._pieces.push(samples);
    this.end += samples.length;
    while (this.end - this.start > this._maxSize) this.start += this._pieces.shift().length;
  }

  /** Forgets what lies before a place. */
  dropBefore(place) {
    while (this._pieces.length > 0 && this.start + this._pieces[0].length <= place) {
      this.start += this._pieces.shift().length;
    }
    if (this._pieces.length > 0 && place > this.start) {
      this._pieces[0] = this._pieces[0].subarray(place - this.start);
      this.start = place;
    }
  }

  /** The samples from a place on, in pieces. */
  *since(place) {
    let start = this.start;
    for (const piece of this._pieces) {
      if (start + piece.length > place) yield piece.subarray(Math.max(0, place - start));
      start += piece.length;
    }
  }
}
