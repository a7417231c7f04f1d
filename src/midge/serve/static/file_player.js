/** An audio file as a source of sound: at the speed of speech, or as fast as the server follows. */

import { headerOf } from "./audio_header.js";

/** For formats whose own rate is not known. */
const FALLBACK_RATE = 16000;
const PIECE_SECONDS = 0.1;
/** How often it looks at the clock. */
const TICK_MILLISECONDS = 50;

export class FilePlayer {
  /**
   * @param {File} file any format that the browser decodes.
   * @param {object} options
   * @param {boolean} options.isFast send without waiting for the clock.
   * @param {boolean} options.isAudible also play it.
   * @param {object} handlers `samples(Float32Array)`, `ended()`, and `canTake()`, which tells
   *   whether a fast file may go on.
   */
  constructor(file, { isFast, isAudible }, handlers) {
    this.name = file.name;
    this.isFast = isFast;
    // The samples of a file of 24 bits, or of MP3, are no 16-bit numbers.
    this.encoding = "float32";
    this._file = file;
    this._isAudible = isAudible && !isFast;
    this._handlers = handlers;
    this._place = 0;
  }

  /**
   * Decodes the file; `sampleRate` and `seconds` are then known.
   * @throws {Error} if the browser cannot.
   */
  async open() {
    const bytes = await this._file.arrayBuffer();
    const { sampleRate, bits } = headerOf(bytes) ?? { sampleRate: FALLBACK_RATE, bits: null };
    this.sampleRate = sampleRate;
    const decoder = new OfflineAudioContext(1, 1, sampleRate);
    this._buffer = await decoder.decodeAudioData(bytes);
    if (bits === 16) restore(this._buffer);
    this._samples = mono(this._buffer);
    this.seconds = this._samples.length / this.sampleRate;
  }

  /** Begins to hand out samples. */
  async start() {
    if (this._isAudible) this._play();
    this._started = performance.now();
    this._timer = setInterval(() => this._tick(), TICK_MILLISECONDS);
  }

  /** Stops; what has been handed out stays so. */
  async stop() {
    clearInterval(this._timer);
    this._context?.close();
    this._context = null;
  }

  _tick() {
    const heard = ((performance.now() - this._started) / 1000) * this.sampleRate;
    const size = Math.round(PIECE_SECONDS * this.sampleRate);
    while (this._place < this._samples.length) {
      const end = Math.min(this._place + size, this._samples.length);
      if (this.isFast ? !this._handlers.canTake() : end > heard) return;
      this._handlers.samples(this._samples.slice(this._place, end));
      this._place = end;
    }
    this.stop();
    this._handlers.ended();
  }

  _play() {
    this._context = new AudioContext();
    const speaker = this._context.createBufferSource();
    speaker.buffer = this._buffer;
    speaker.connect(this._context.destination);
    speaker.start();
  }
}

/** Makes samples n / 32768 again. Some browsers divide positive ones by 32767; a factor between
 * both finds n for either.
 */
function restore(buffer) {
  for (let channel = 0; channel < buffer.numberOfChannels; channel += 1) {
    const samples = buffer.getChannelData(channel);
    samples.forEach((value, place) => {
      samples[place] = Math.round(value * (value > 0 ? 32767.5 : 32768)) / 32768;
    });
  }
}

/** The mean of the channels. */
function mono(buffer) {
  const sum = buffer.getChannelData(0).slice();
  for (let channel = 1; channel < buffer.numberOfChannels; channel += 1) {
    buffer.getChannelData(channel).forEach((value, place) => (sum[place] += value));
  }
  return buffer.numberOfChannels > 1 ? sum.map((value) => value / buffer.numberOfChannels) : sum;
}
