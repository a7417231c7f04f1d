/** The sound of the last seconds, scrolling, with the words below at their times. */

import { Spectrum } from "./fourier.js";

const COLUMN_SECONDS = 0.01;
const NUM_COLUMNS = 1200;
const NUM_ROWS = 72;
/** Decibels below full scale that are drawn darkest and brightest. */
const FLOOR = -85;
const CEILING = -15;
/** Room for the words, in CSS pixels. */
const LANE = 30;
const PIXELS_PER_SECOND = 105;
/** The picture runs this far behind the sound, so that it scrolls evenly between two pieces. */
const LAG_SECONDS = 0.12;

export class Spectrogram {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this._canvas = canvas;
    this._ring = document.createElement("canvas");
    this._ring.width = NUM_COLUMNS;
    this._ring.height = NUM_ROWS;
    this._brush = this._ring.getContext("2d");
    this._words = { firm: [], tentative: [] };
    this.clear();
    new ResizeObserver(() => this._resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._repaint());
  }

  /** Forgets the sound. */
  clear() {
    this._columns = new Uint8Array(NUM_COLUMNS * NUM_ROWS);
    this._numColumns = 0;
    this._shown = 0;
    this._pending = new Float32Array(0);
    this._repaint();
  }

  /** A recording begins: of this sample rate, at this time of the transcript. */
  begin(sampleRate, seconds) {
    this._spectrum = new Spectrum(sampleRate, NUM_ROWS);
    this._rate = sampleRate;
    this._numTaken = 0;
    this._pending = new Float32Array(0);
    this._first = Math.round(seconds / COLUMN_SECONDS);
    this._numColumns = Math.max(this._numColumns, this._first);
    this._wake();
  }

  /** More sound. */
  push(samples) {
    const pending = new Float32Array(this._pending.length + samples.length);
    pending.set(this._pending);
    pending.set(samples, this._pending.length);
    let place = 0;
    for (;;) {
      // Columns are counted, not added up: their places at 44.1 kHz would drift.
      const next = Math.round((this._numTaken + 1) * COLUMN_SECONDS * this._rate);
      const size = next - Math.round(this._numTaken * COLUMN_SECONDS * this._rate);
      if (place + this._spectrum.windowSize > pending.length) break;
      this._add(this._spectrum.decibels(pending.subarray(place)));
      this._numTaken += 1;
      place += size;
    }
    this._pending = pending.slice(place);
    this._wake();
  }

  /** The words to write below. */
  setWords(firm, tentative) {
    this._words = { firm, tentative };
    this._wake();
  }

  /** Marks a time, or none. */
  highlight(span) {
    this._span = span;
    this._wake();
  }

  _add(decibels) {
    const column = (this._first + this._numTaken) % NUM_COLUMNS;
    for (let row = 0; row < NUM_ROWS; row += 1) {
      const share = (decibels[row] - FLOOR) / (CEILING - FLOOR);
      this._columns[column * NUM_ROWS + row] = 255 * Math.min(1, Math.max(0, share));
    }
    this._numColumns = this._first + this._numTaken + 1;
    this._paint(column);
  }

  _paint(column) {
    const image = this._brush.createImageData(1, NUM_ROWS);
    for (let row = 0; row < NUM_ROWS; row += 1) {
      const value = this._columns[column * NUM_ROWS + NUM_ROWS - 1 - row];
      image.data.set(this._palette.subarray(4 * value, 4 * value + 4), 4 * row);
    }
    this._brush.putImageData(image, column, 0);
  }

  /** Everything again, in the colours of the page. */
  _repaint() {
    this._style = getComputedStyle(this._canvas);
    this._palette = palette(
      [0, 1, 2, 3, 4].map((number) => this._style.getPropertyValue(`--spectrum-${number}`)),
    );
    for (let column = 0; column < NUM_COLUMNS; column += 1) this._paint(column);
    this._wake();
  }

  _resize() {
    const scale = window.devicePixelRatio || 1;
    this._canvas.width = Math.round(this._canvas.clientWidth * scale);
    this._canvas.height = Math.round(this._canvas.clientHeight * scale);
    this._draw();
  }

  /** Draws until the picture has caught up with the sound. */
  _wake() {
    if (this._isAwake) return;
    this._isAwake = true;
    const frame = () => {
      const target = this._numColumns * COLUMN_SECONDS - LAG_SECONDS;
      const gap = target - this._shown;
      this._shown = Math.abs(gap) < COLUMN_SECONDS ? target : this._shown + 0.12 * gap;
      this._draw();
      this._isAwake = this._shown !== target;
      if (this._isAwake) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  _draw() {
    const scale = window.devicePixelRatio || 1;
    const pen = this._canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const [width, height] = [this._canvas.width / scale, this._canvas.height / scale];
    pen.fillStyle = this._style.getPropertyValue("--spectrum-0");
    pen.fillRect(0, 0, width, height);
    this._drawSound(pen, width, height - LANE);
    const place = (seconds) => width - (this._shown - seconds) * PIXELS_PER_SECOND;
    this._drawSeconds(pen, place, width, height - LANE);
    this._drawSpan(pen, place, height);
    this._drawWords(pen, place, width, height);
  }

  /** The ring is copied in two parts: up to its seam, and from it on. */
  _drawSound(pen, width, height) {
    const end = Math.min(this._shown / COLUMN_SECONDS, this._numColumns);
    const columnWidth = PIXELS_PER_SECOND * COLUMN_SECONDS;
    const oldest = Math.max(0, this._numColumns - NUM_COLUMNS, end - width / columnWidth - 1);
    for (let column = Math.floor(oldest); column < end; ) {
      const count = Math.min(NUM_COLUMNS - (column % NUM_COLUMNS), Math.ceil(end) - column);
      const left = width - (end - column) * columnWidth;
      const from = column % NUM_COLUMNS;
      pen.drawImage(this._ring, from, 0, count, NUM_ROWS, left, 0, count * columnWidth, height);
      column += count;
    }
  }

  /** A line between sound and words, with a mark for each second. */
  _drawSeconds(pen, place, width, height) {
    pen.fillStyle = this._style.getPropertyValue("--edge");
    pen.fillRect(0, height, width, 1);
    const first = Math.ceil(this._shown - width / PIXELS_PER_SECOND);
    for (let second = first; second <= this._shown; second += 1) {
      pen.fillRect(place(second), height, 1, 5);
    }
  }

  _drawSpan(pen, place, height) {
    if (!this._span) return;
    const [left, right] = [place(this._span.start), place(this._span.end)];
    pen.globalAlpha = 0.22;
    pen.fillStyle = this._style.getPropertyValue("--accent");
    pen.fillRect(left - 2, 0, right - left + 4, height);
    pen.globalAlpha = 1;
  }

  _drawWords(pen, place, width, height) {
    pen.font = `500 13px ${this._style.fontFamily}`;
    pen.textBaseline = "middle";
    let end = -Infinity;
    const write = (words, colour) => {
      pen.fillStyle = this._style.getPropertyValue(colour);
      for (const word of words) {
        // A word that its neighbour leaves no room for moves on.
        const left = Math.max(place(word.start), end);
        if (place(word.end) < -300) continue;
        end = left + pen.measureText(word.text).width + 7;
        if (end > 0 && left < width) pen.fillText(word.text, left, height - LANE / 2);
      }
    };
    write(this._words.firm, "--ink");
    write(this._words.tentative, "--ink-soft");
  }
}

/** 256 colours [r, g, b, a] between the given ones. */
function palette(colours) {
  const stops = colours.map((colour) => {
    const number = Number.parseInt(colour.trim().slice(1), 16);
    return [number >> 16, (number >> 8) & 255, number & 255];
  });
  const table = new Uint8ClampedArray(4 * 256);
  for (let value = 0; value < 256; value += 1) {
    const place = (value / 255) * (stops.length - 1);
    const lower = Math.min(Math.floor(place), stops.length - 2);
    const mixed = stops[lower].map((c, i) => c + (place - lower) * (stops[lower + 1][i] - c));
    table.set([...mixed, 255], 4 * value);
  }
  return table;
}
