/** Resampling of sound that comes in pieces, by a windowed sinc.
 *
 * Browsers differ in whether an AudioContext of another rate may be fed by a microphone, so the
 * worklet resamples itself. Pieces of any sizes give the same samples as the whole at once.
 */

/** Zero crossings of the sinc on each side. More is sharper and slower. */
const NUM_CROSSINGS = 16;
/** Below the Nyquist frequency, to leave room for the filter to fall. */
const CUTOFF = 0.94;
/** Phases of the filter; a position between two of them takes the nearer, an error below -60 dB. */
const NUM_PHASES = 512;

export class Resampler {
  /**
   * @param {number} inputRate in hertz.
   * @param {number} outputRate in hertz.
   */
  constructor(inputRate, outputRate) {
    if (!(inputRate > 0 && outputRate > 0)) {
      throw new RangeError(`rates should be more than 0, got ${inputRate} and ${outputRate}`);
    }
    this.isCopy = inputRate === outputRate;
    this._step = inputRate / outputRate;
    const share = CUTOFF * Math.min(1, outputRate / inputRate);
    this._reach = Math.ceil(NUM_CROSSINGS / share);
    this._filters = this.isCopy ? [] : filters(share, this._reach);
    // Silence before the first sample, so that the first output has its left neighbours.
    this._pending = new Float32Array(this._reach);
    this._numOutput = 0;
    this._numDropped = -this._reach;
  }

  /**
   * Takes more sound.
   * @param {Float32Array} samples any number.
   * @returns {Float32Array} what can be computed so far.
   */
  accept(samples) {
    if (this.isCopy) return samples.slice();
    this._pending = joined(this._pending, samples);
    const output = [];
    for (;;) {
      const position = this._numOutput * this._step;
      const first = Math.floor(position) - this._reach + 1 - this._numDropped;
      if (first + 2 * this._reach > this._pending.length) break;
      output.push(this._at(position - Math.floor(position), first));
      this._numOutput += 1;
    }
    this._forget();
    return Float32Array.from(output);
  }

  /** The rest, as if silence followed. */
  finish() {
    return this.accept(new Float32Array(this.isCopy ? 0 : this._reach));
  }

  _at(fraction, first) {
    const filter = this._filters[Math.round(fraction * NUM_PHASES)];
    let sum = 0;
    for (let tap = 0; tap < filter.length; tap += 1) {
      sum += filter[tap] * this._pending[first + tap];
    }
    return sum;
  }

  _forget() {
    const next = Math.floor(this._numOutput * this._step) - this._reach + 1 - this._numDropped;
    const numOver = Math.min(Math.max(0, next), this._pending.length);
    this._pending = this._pending.slice(numOver);
    this._numDropped += numOver;
  }
}

/** One filter of 2 * reach taps for each phase, 0 and 1 included. */
function filters(share, reach) {
  return Array.from({ length: NUM_PHASES + 1 }, (_, phase) => {
    const taps = new Float32Array(2 * reach);
    let sum = 0;
    for (let tap = 0; tap < taps.length; tap += 1) {
      const distance = tap - reach + 1 - phase / NUM_PHASES;
      taps[tap] = sinc(share * distance) * window(distance / reach);
      sum += taps[tap];
    }
    // Each phase passes a constant unchanged: no ripple at the rate of the phases.
    return taps.map((value) => value / sum);
  });
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

/** Blackman's window over -1..1. */
function window(x) {
  if (Math.abs(x) >= 1) return 0;
  return 0.42 + 0.5 * Math.cos(Math.PI * x) + 0.08 * Math.cos(2 * Math.PI * x);
}

function joined(first, second) {
  const both = new Float32Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}
