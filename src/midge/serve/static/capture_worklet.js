/** The audio thread's part of the microphone: mixes to mono, resamples, sends pieces of 100 ms. */

import { Resampler } from "./resampler.js";

const PIECE_SECONDS = 0.1;

class Capture extends AudioWorkletProcessor {
  constructor(options) {
    super();
    const { outputRate } = options.processorOptions;
    this._resampler = new Resampler(sampleRate, outputRate);
    this._pieceSize = Math.round(PIECE_SECONDS * outputRate);
    this._pieces = [];
    this._numSamples = 0;
    this._isOver = false;
    this.port.onmessage = () => this._finish();
  }

  /** Called by the browser for every 128 samples. */
  process(inputs) {
    const channels = inputs[0];
    if (!this._isOver && channels.length > 0) this._push(this._resampler.accept(mixed(channels)));
    return !this._isOver;
  }

  _push(samples) {
    this._pieces.push(samples);
    this._numSamples += samples.length;
    if (this._numSamples >= this._pieceSize) this._send();
  }

  _send() {
    const piece = new Float32Array(this._numSamples);
    let place = 0;
    for (const part of this._pieces) {
      piece.set(part, place);
      place += part.length;
    }
    this._pieces = [];
    this._numSamples = 0;
    this.port.postMessage({ samples: piece }, [piece.buffer]);
  }

  /** What is left goes out before the word that all is over, so that no sound is lost. */
  _finish() {
    if (this._isOver) return;
    this._push(this._resampler.finish());
    this._send();
    this._isOver = true;
    this.port.postMessage({ isOver: true });
  }
}

/** The mean of the channels. */
function mixed(channels) {
  if (channels.length === 1) return channels[0];
  const mono = new Float32Array(channels[0].length);
  for (const channel of channels) {
    for (let place = 0; place < mono.length; place += 1) mono[place] += channel[place];
  }
  return mono.map((value) => value / channels.length);
}

registerProcessor("capture", Capture);
