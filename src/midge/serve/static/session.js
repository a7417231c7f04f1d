/** One recording on its way through the server, whatever the connection does.
 *
 * Sound is kept until a final segment covers it. When the connection breaks, a new one begins where
 * the last final segment left off, so that words of an unfinished segment are heard again and none
 * is lost. Times of the events count from the beginning of the session, over all connections.
 */

import { Connection } from "./connection.js";
import { KeptAudio } from "./kept_audio.js";

/** More than any segment with endpointing, and less than a phone's memory. */
const MAX_KEPT_SECONDS = 120;
const FIRST_WAIT_SECONDS = 0.5;
const LONGEST_WAIT_SECONDS = 8;
/** Limits of what a fast file may have under way. */
const MAX_BYTES_WAITING = 1 << 20;
const MAX_SECONDS_AHEAD = 10;
/** Refusals that pass: a later attempt may be let in. */
const PASSING = new Set(["full", "client_full", "shutdown"]);
/** So many errors without a final segment between them, and a further attempt would only repeat. */
const MAX_ERRORS = 3;

/** Connections of the page so far: their segments are all numbered from 0. */
let numConnections = 0;

export class Session {
  /**
   * @param {string} address of the server's streams.
   * @param {object} start what the server is told: sample_rate, encoding, endpointing, ...
   * @param {object} handlers
   *   `state(name, details)`: connecting, live, waiting {seconds, attempt}, finishing, ended, or
   *   failed {code, message};
   *   `partial({committed, tentative})` and `final({key, start, end, words, alternatives})`;
   *   `alternatives(key, alternatives)`: of a segment that was final before;
   *   `heard()` after every event; `warning({code, message})`;
   *   `broken(seconds)`: what lies before cannot be sent again;
   *   `lost(seconds)`: sound that was never sent.
   */
  constructor(address, start, handlers) {
    this._address = address;
    this._start = start;
    this._handlers = handlers;
    this._rate = start.sample_rate;
    this._kept = new KeptAudio(MAX_KEPT_SECONDS * this._rate);
    this._numSent = 0;
    this._numLost = 0;
    this._base = 0;
    this._decoded = 0;
    this._committed = [];
    this._attempt = 0;
    this._isReady = false;
    this._wasReady = false;
    this._isFinishing = false;
    this._isOver = false;
    this._error = null;
    this._numErrors = 0;
    this._retry = () => this._connect();
    window.addEventListener("online", this._retry);
    this._connect();
  }

  /** Length of the sound so far. */
  get seconds() {
    return this._kept.end / this._rate;
  }

  /** How far the server has decoded. */
  get decodedSeconds() {
    return this._decoded;
  }

  /** Whether a source that need not wait may go on: little is under way. */
  get canTake() {
    return (
      this._isReady &&
      this._connection.numWaiting < MAX_BYTES_WAITING &&
      this.seconds - this._decoded < MAX_SECONDS_AHEAD
    );
  }

  /** More sound: floats in [-1, 1]. */
  push(samples) {
    this._kept.push(samples);
    const numUnsent = Math.max(0, this._kept.start - this._numSent);
    this._numLost += numUnsent;
    this._numSent += numUnsent;
    this._flush();
  }

  /** The sound is over; the rest of the words will come. */
  finish() {
    if (this._isOver || this._isFinishing) return;
    this._isFinishing = true;
    if (this._isReady) {
      this._tell("finishing");
      this._connection.end();
    }
  }

  /** Ends at once, with the words that are there. */
  abandon() {
    if (!this._isOver) this._end("ended");
  }

  _connect() {
    if (this._isOver || this._connection) return;
    clearTimeout(this._timer);
    this._error = null;
    if (this._attempt === 0) this._tell("connecting");
    numConnections += 1;
    this._number = numConnections;
    this._connection = new Connection(this._address, this._start, {
      event: (event) => this._take(event),
      closed: () => this._closed(),
    });
  }

  _take(event) {
    const known = {
      ready: () => this._ready(),
      partial: () => this._partial(event),
      final: () => this._final(event),
      end_of_speech: () => this._final(event),
      alternatives: () => this._handlers.alternatives(this._key(event), event.alternatives),
      error: () => this._fault(event),
      end: () => this._isEndAwaited() && this._end("ended"),
      behind: () => this._handlers.warning({ code: "behind", seconds: event.seconds }),
    };
    // A newer server may tell more.
    known[event.event]?.();
    if (!this._isOver) this._handlers.heard();
  }

  _ready() {
    this._attempt = 0;
    this._isReady = this._wasReady = true;
    this._base = this._kept.start / this._rate;
    this._numSent = this._kept.start;
    this._committed = [];
    this._tell(this._isFinishing ? "finishing" : "live");
    if (this._numLost > 0) this._handlers.lost(this._numLost / this._rate);
    this._numLost = 0;
    this._flush();
    if (this._isFinishing) this._connection.end();
  }

  _flush() {
    if (!this._isReady) return;
    for (const piece of this._kept.since(this._numSent)) this._connection.send(piece);
    this._numSent = this._kept.end;
  }

  /** Names a segment, over all connections. */
  _key({ segment }) {
    return `${this._number}:${segment}`;
  }

  /** Words that are committed are told once. */
  _partial({ committed, tentative, decoded_seconds: seconds }) {
    this._decoded = this._base + seconds;
    for (const word of this._shifted(committed)) this._committed.push(word);
    this._handlers.partial({
      committed: this._committed,
      tentative: this._shifted(tentative),
    });
  }

  _final({ segment, start, end, reason, words, alternatives }) {
    this._decoded = Math.max(this._decoded, this._base + end);
    this._committed = [];
    if (reason === "end" && !this._isEndAwaited()) {
      // The server stops in the middle: the words stand until they have been heard again.
      this._handlers.partial({ committed: this._shifted(words), tentative: [] });
      return;
    }
    // As the server itself does, the next one would begin in the middle of the pause.
    const last = words.length > 0 ? Math.min(words.at(-1).end, end) : Math.max(start, end - 1);
    this._kept.dropBefore(Math.round((this._base + (last + end) / 2) * this._rate));
    this._numErrors = 0;
    this._handlers.final({
      key: this._key({ segment }),
      start: this._base + start,
      end: this._base + end,
      words: this._shifted(words),
      alternatives: alternatives ?? [],
    });
  }

  /** Whether an end is ours. A server that shuts down ends too, perhaps before it has heard all. */
  _isEndAwaited() {
    return this._isFinishing && this._error === null;
  }

  _shifted(words) {
    return words.map((word) => ({
      ...word,
      start: word.start + this._base,
      end: word.end + this._base,
    }));
  }

  _fault({ code, message, is_fatal: isFatal }) {
    if (isFatal) this._error = { code, message };
    else this._handlers.warning({ code, message });
  }

  _closed() {
    this._connection = null;
    const wasLive = this._isReady;
    this._isReady = false;
    if (wasLive) this._handlers.broken(this._kept.start / this._rate);
    if (this._isHopeless(wasLive)) this._end("failed", this._error);
    else this._wait(this._error?.code);
  }

  /** A stream that never began is refused at once; one that did tries to get in again. */
  _isHopeless(wasLive) {
    if (this._error === null) return false;
    if (PASSING.has(this._error.code)) return !this._wasReady;
    this._numErrors += 1;
    return !wasLive || this._numErrors >= MAX_ERRORS;
  }

  /** Waits twice as long after each attempt; a little at random, so that pages come one by one. */
  _wait(code) {
    const longest = Math.min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** this._attempt);
    const seconds = longest * (0.75 + 0.25 * Math.random());
    this._attempt += 1;
    this._tell("waiting", { seconds, attempt: this._attempt, code });
    this._timer = setTimeout(this._retry, 1000 * seconds);
  }

  _end(state, details) {
    this._isOver = true;
    this._isReady = false;
    clearTimeout(this._timer);
    window.removeEventListener("online", this._retry);
    this._connection?.close();
    this._tell(state, details);
  }

  _tell(state, details = {}) {
    this._handlers.state(state, details);
  }
}
