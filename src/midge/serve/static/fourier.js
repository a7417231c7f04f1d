/** Power spectra on a mel scale, for the picture alone: the recognizer has its own front end. */

const WINDOW_SECONDS = 0.025;
const HIGHEST_HERTZ = 8000;

export class Spectrum {
  /**
   * @param {number} sampleRate in hertz.
   * @param {number} numRows bands from 0 to 8 kHz, or to half the rate.
   */
  constructor(sampleRate, numRows) {
    this.windowSize = Math.round(WINDOW_SECONDS * sampleRate);
    this._size = 2 ** Math.ceil(Math.log2(this.windowSize));
    this._window = Float32Array.from(
      { length: this.windowSize },
      (_, place) => 0.5 - 0.5 * Math.cos((2 * Math.PI * place) / this.windowSize),
    );
    this._real = new Float32Array(this._size);
    this._imaginary = new Float32Array(this._size);
    this._edges = bandEdges(sampleRate, this._size, numRows);
    // A full-scale sine has this power in its band: 0 dB.
    this._full = (this.windowSize / 4) ** 2;
  }

  /**
   * @param {Float32Array} samples [windowSize]
   * @returns {Float32Array} [numRows] decibels below full scale, lowest band first.
   */
  decibels(samples) {
    this._real.fill(0);
    this._imaginary.fill(0);
    for (let place = 0; place < this.windowSize; place += 1) {
      this._real[place] = samples[place] * this._window[place];
    }
    transform(this._real, this._imaginary);
    return this._edges.map(([first, last]) => {
      let power = 0;
      for (let bin = first; bin <= last; bin += 1) {
        power = Math.max(power, this._real[bin] ** 2 + this._imaginary[bin] ** 2);
      }
      return 10 * Math.log10(power / this._full + 1e-12);
    });
  }
}

/** First and last bin of each band; a narrow band shares its bin with its neighbour. */
function bandEdges(sampleRate, size, numRows) {
  const highest = mel(Math.min(HIGHEST_HERTZ, sampleRate / 2));
  const bin = (row) => (hertz((row / numRows) * highest) / sampleRate) * size;
  return Array.from({ length: numRows }, (_, row) => {
    const first = Math.round(bin(row));
    return [first, Math.min(size / 2, Math.max(first, Math.round(bin(row + 1)) - 1))];
  });
}

function mel(frequency) {
  return 2595 * Math.log10(1 + frequency / 700);
}

function hertz(value) {
  return 700 * (10 ** (value / 2595) - 1);
}

/** The discrete Fourier transform in place, by halves (Cooley and Tukey); the size a power of 2. */
function transform(real, imaginary) {
  const size = real.length;
  reorder(real, imaginary);
  for (let half = 1; half < size; half *= 2) {
    for (let offset = 0; offset < half; offset += 1) {
      const angle = (-Math.PI * offset) / half;
      const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
      for (let upper = offset; upper < size; upper += 2 * half) {
        const lower = upper + half;
        const a = real[lower] * cosine - imaginary[lower] * sine;
        const b = real[lower] * sine + imaginary[lower] * cosine;
        real[lower] = real[upper] - a;
        imaginary[lower] = imaginary[upper] - b;
        real[upper] += a;
        imaginary[upper] += b;
      }
    }
  }
}

/** Puts each value where the reversed bits of its place say. */
function reorder(real, imaginary) {
  const size = real.length;
  for (let place = 1, other = 0; place < size; place += 1) {
    let bit = size >> 1;
    for (; other & bit; bit >>= 1) other ^= bit;
    other ^= bit;
    if (place < other) {
      [real[place], real[other]] = [real[other], real[place]];
      [imaginary[place], imaginary[other]] = [imaginary[other], imaginary[place]];
    }
  }
}
