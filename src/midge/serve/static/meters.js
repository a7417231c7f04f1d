/** Figures of a running recording: level, length, and how far words are behind the sound. */

import { clock } from "./transcript_view.js";

const QUIETEST = -60;
/** Decibels that the level falls in a second: fast enough to follow, slow enough to see. */
const FALL = 40;
/** A delay of this many seconds fills the bar. */
const LONGEST = 2;

export class LevelMeter {
  /** @param {Document} document */
  constructor(document) {
    this._bar = document.getElementById("level");
    this._button = document.getElementById("main");
    this.clear();
  }

  /** Back to silence. */
  clear() {
    this._show(QUIETEST);
  }

  /** More sound. */
  push(samples, sampleRate) {
    if (samples.length === 0) return;
    const power = samples.reduce((sum, value) => sum + value * value, 0) / samples.length;
    const level = 10 * Math.log10(power + 1e-12);
    this._show(Math.max(QUIETEST, level, this._level - (FALL * samples.length) / sampleRate));
  }

  _show(level) {
    this._level = Math.min(0, level);
    const share = 1 - this._level / QUIETEST;
    this._bar.style.setProperty("--level", share.toFixed(3));
    this._button.style.setProperty("--level", share.toFixed(3));
    this._bar.setAttribute("aria-valuenow", Math.round(this._level));
  }
}

export class LatencyMeter {
  /** @param {Document} document */
  constructor(document) {
    this._position = document.getElementById("position");
    this._latency = document.getElementById("latency");
    this._bar = document.getElementById("latency-bar");
    this._behind = document.getElementById("behind");
    this.begin();
  }

  /** A recording begins. */
  begin() {
    this._lastEnd = 0;
    this._latency.textContent = this._behind.textContent = "–";
    this._bar.style.setProperty("--share", 0);
  }

  /** Shows the length of the sound so far, with that of earlier recordings. */
  showPosition(seconds) {
    const text = clock(seconds);
    if (this._position.textContent !== text) this._position.textContent = text;
  }

  /**
   * Compares the sound with what has come back. Times count from the beginning of the recording.
   * @param {number} position how far the speech is by now.
   * @param {number} underWay sound that the server has not decoded yet.
   * @param {object[]} words the newest ones.
   */
  compare(position, underWay, words) {
    this._behind.textContent = `${Math.max(0, underWay).toFixed(2)} s`;
    const end = words.at(-1)?.end ?? 0;
    // A word that is heard again after a break is no new one.
    if (end <= this._lastEnd) return;
    this._lastEnd = end;
    const latency = Math.max(0, position - end);
    this._latency.textContent = `${latency.toFixed(2)} s`;
    this._bar.style.setProperty("--share", Math.min(1, latency / LONGEST).toFixed(3));
  }
}
