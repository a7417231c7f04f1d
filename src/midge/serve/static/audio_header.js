/** What an audio file says of itself: its sample rate, and the bits of a sample.
 *
 * A browser resamples what it decodes to a rate that is chosen beforehand. Decoded at the rate of
 * the file, it gives the samples of the file, and the server hears what `midge transcribe` reads.
 */

/** What an AudioContext can be asked for, in every browser. */
const LOWEST = 8000;
const HIGHEST = 96000;

/**
 * @param {ArrayBuffer} file the first few kilobytes are enough, unless tags come before the sound.
 * @returns {{sampleRate: number, bits: number | null} | null} hertz, and bits if samples are whole
 *   numbers; null if the format is not known here, or its rate out of range.
 */
export function headerOf(file) {
  const view = new DataView(file);
  for (const find of [ofWave, ofFlac, ofOgg, ofMpeg]) {
    const [sampleRate, bits = null] = find(view) ?? [];
    if (!sampleRate) continue;
    return sampleRate >= LOWEST && sampleRate <= HIGHEST ? { sampleRate, bits } : null;
  }
  return null;
}

const WAVE_PCM = 1;

/** RIFF: chunks of a name, a length and their bytes (padded to an even number). */
function ofWave(view) {
  if (!hasText(view, 0, "RIFF") || !hasText(view, 8, "WAVE")) return null;
  let place = 12;
  while (place + 24 <= view.byteLength) {
    if (hasText(view, place, "fmt ")) {
      const isWhole = view.getUint16(place + 8, true) === WAVE_PCM;
      return [view.getUint32(place + 12, true), isWhole ? view.getUint16(place + 22, true) : null];
    }
    const size = view.getUint32(place + 4, true);
    place += 8 + size + (size % 2);
  }
  return null;
}

/** STREAMINFO comes first: at byte 10 of it 20 bits of rate, 3 of channels, 5 of bits - 1. */
function ofFlac(view) {
  if (!hasText(view, 0, "fLaC") || view.byteLength < 22) return null;
  const packed = view.getUint32(18);
  return [packed >>> 12, 1 + ((packed >>> 4) & 31)];
}

/** Vorbis tells its rate; Opus is always decoded at 48 kHz. */
function ofOgg(view) {
  if (!hasText(view, 0, "OggS") || view.byteLength < 28) return null;
  const packet = 27 + view.getUint8(26);
  if (hasText(view, packet, "OpusHead")) return [48000];
  if (!hasText(view, packet + 1, "vorbis") || packet + 16 > view.byteLength) return null;
  return [view.getUint32(packet + 12, true)];
}

const MPEG_RATES = [44100, 48000, 32000];
/** By the two bits of the version: 2.5, reserved, 2, 1. */
const MPEG_DIVISORS = [4, null, 2, 1];

/** The header of the first MP3 frame, behind any ID3 tag. */
function ofMpeg(view) {
  const place = hasText(view, 0, "ID3") && view.byteLength >= 10 ? 10 + tagSize(view) : 0;
  if (place + 4 > view.byteLength) return null;
  const header = view.getUint32(place);
  const isFrame = header >>> 21 === 0x7ff && ((header >>> 17) & 3) === 1;
  const divisor = MPEG_DIVISORS[(header >>> 19) & 3];
  const rate = MPEG_RATES[(header >>> 10) & 3];
  return isFrame && divisor && rate ? [rate / divisor] : null;
}

/** Four bytes of seven bits. */
function tagSize(view) {
  return [6, 7, 8, 9].reduce((size, place) => size * 128 + (view.getUint8(place) & 127), 0);
}

function hasText(view, place, text) {
  if (place + text.length > view.byteLength) return false;
  return [...text].every((letter, index) => view.getUint8(place + index) === letter.charCodeAt(0));
}
