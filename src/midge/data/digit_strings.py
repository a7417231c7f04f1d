"""Digit strings: recordings of single digits, joined to strings with known word times.

A string holds digits of one speaker and one split, so that no recording of the test set is ever
heard in training. The time of a word is where its recording has energy. Between the words there is
noise with the level and the spectrum of the quietest moments of that speaker's recordings; each
recording is faded in and out of it, so that nothing clicks. The sample rate is kept.
"""

from __future__ import annotations

import io
import logging
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from midge.data.manifests import read_manifest, write_manifest
from midge.data.spoken.recordings import Part, write_flac
from midge.data.spoken.texts import DIGITS
from midge.data.utterances import Recording, Utterance, WordTime
from midge.progress import Progress

KIND = "digit-strings"
"""The manifest field `kind` of these utterances."""
SPLITS = ("train", "dev", "test")
"""The splits that a recording may belong to."""
LEAST_GAP = 0.03
"""Seconds; two recordings need that much to be faded out and in."""

_logger = logging.getLogger(__name__)

_FADE = LEAST_GAP / 2
_HOP = 0.005
_RISE_DECIBELS = np.array((12.0, 6.0))
"""Speech is so much louder than the background, which varies more in low frequencies ..."""
_BELOW_PEAK_DECIBELS = (15.0, 35.0)
"""... if that is so many decibels below the loudest moment of a recording."""
_EMPHASIS = 0.97
_QUIET_SHARE = 0.03
_SPECTRUM_SIZE = 128
_LEAST_AMPLITUDE = 1e-5  # a third of a 16-bit step


@dataclass(frozen=True, eq=False)
class _Digit:
    """A recording of a digit, and where its speech is."""

    word: str
    samples: np.ndarray  # [num_samples]
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class _Speaker:
    """What one speaker has recorded for one split."""

    split: str
    name: str
    sample_rate: int
    digits: Mapping[str, Sequence[_Digit]]
    background: np.ndarray  # [filter_size] what makes white noise sound like the recordings


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """How the strings look."""

    lengths: tuple[int, int]
    gaps: tuple[float, float]


def join_digits(
    out_dir: str | Path,
    sources: Sequence[str | Path],
    *,
    seed: int = 0,
    num_strings: int = 40,
    num_held_out_strings: int = 20,
    min_length: int = 1,
    max_length: int = 7,
    min_gap: float = 0.05,
    max_gap: float = 0.4,
    dev_speakers: Collection[str] = (),
    test_speakers: Collection[str] = (),
    is_quiet: bool = False,
) -> tuple[Part, ...]:
    """Joins recordings of single digits to strings of digits.

    It writes FLAC files under `out_dir/audio`, and a manifest `train.jsonl.gz`, `dev.jsonl.gz` or
    `test.jsonl.gz` for each split that has a recording, with the time of every word. The same
    arguments give the same samples.

    Args:
        out_dir: a folder; what it has of these names is replaced.
        sources: manifests of recordings of one digit each (a word, or a numeral), or folders that
            hold a `manifest.jsonl`, as those of FSDD and AudioMNIST. The split of a recording is
            its manifest field `split`, else the name of the manifest, else train.
        seed: of everything that is drawn.
        num_strings: strings of each speaker of train.
        num_held_out_strings: strings of each speaker of dev, and of each of test.
        min_length: digits of the shortest strings.
        max_length: digits of the longest strings.
        min_gap: least silence between two digits, and around the string, in seconds.
        max_gap: most silence there, in seconds.
        dev_speakers: speakers whose recordings are all for dev, whatever their split.
        test_speakers: speakers whose recordings are all for test.
        is_quiet: whether to show no progress.

    Returns:
        How many strings every split has, and how long they are together.

    Raises:
        ValueError: for a wrong argument, a recording that is not of one digit or has no speaker,
            or an unreadable one; it names it.
        OSError: if a file cannot be read or written.

    Example:
        join_digits("strings", ["fsdd", "audiomnist"], dev_speakers=["theo"])
    """
    shape = _Shape(lengths=(min_length, max_length), gaps=(min_gap, max_gap))
    _check(seed, num_strings, num_held_out_strings, shape)
    groups = _by_speaker(sources, dev_speakers, test_speakers)
    folder = Path(out_dir).absolute()
    counts = {"train": num_strings, "dev": num_held_out_strings, "test": num_held_out_strings}
    joined: dict[str, list[Utterance]] = {split: [] for split, _ in groups}
    total = sum(counts[split] for split, _ in groups)
    stream = io.StringIO() if is_quiet else None
    with Progress(total, "joining digits", unit="strings", stream=stream) as progress:
        for (split, name), utterances in groups.items():
            speaker = _listen(split, name, utterances)
            for number in range(counts[split]):
                joined[split].append(_join(folder, speaker, seed, number, shape))
                progress.advance(f"{split} {name}")
    for split, strings in joined.items():
        write_manifest(folder / f"{split}.jsonl.gz", strings)
    return tuple(
        Part(split, KIND, len(strings), sum(string.duration for string in strings))
        for split, strings in joined.items()
    )


def energies(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """How loud a recording is, moment by moment: without rumble, and high frequencies emphasized.

    The second finds consonants such as those of SIX, the first the ends of vowels in hiss.

    Args:
        samples: [num_samples] any number of them.
        sample_rate: samples per second.

    Returns:
        [2, num_moments] mean squares over 10 ms, every 5 ms; at least one moment.
    """
    if not len(samples):
        return np.zeros((2, 1))
    hop = _hop(sample_rate)
    wide = samples.astype(np.float64)
    emphasized = np.append(wide[:1], wide[1:] - _EMPHASIS * wide[:-1])
    # Less its mean over 10 ms, a signal has little left below a voice's 80 Hz.
    padded = np.pad(wide, (hop, hop - 1), mode="edge")
    means = np.convolve(padded, np.full(2 * hop, 0.5 / hop), mode="valid")
    squares = np.square(np.stack((wide - means, emphasized)))
    sums = np.cumsum(np.pad(squares, ((0, 0), (1, 0))), axis=1)
    starts = np.arange(0, max(len(wide) - hop, 1), hop)
    ends = np.minimum(starts + 2 * hop, len(wide))
    return np.maximum(sums[:, ends] - sums[:, starts], 0.0) / np.maximum(ends - starts, 1)


def speech_span(
    samples: np.ndarray, sample_rate: int, background: Sequence[float] = (0.0, 0.0)
) -> tuple[int, int]:
    """Where a recording of one word has speech, by its energy.

    Speech is from the first to the last moment that is 12 dB above the background without rumble,
    or 6 dB emphasized; both thresholds are kept between 15 and 35 dB below the loudest moment.

    Args:
        samples: [num_samples] the recording.
        sample_rate: samples per second.
        background: [2] energies of moments without speech, as `energies` measures them.

    Returns:
        The first sample, and the one after the last; (0, 0) if all samples are 0.

    Example:
        >>> silence, tone = np.zeros(1600), np.sin(np.arange(3200) / 5)
        >>> speech_span(np.concatenate((silence, tone, silence)), 16000)
        (1520, 4880)
    """
    found = energies(samples, sample_rate)
    peaks = found.max(1)
    if not peaks.any():
        return 0, 0
    most, least = (peaks * 10 ** (-decibels / 10) for decibels in _BELOW_PEAK_DECIBELS)
    thresholds = np.clip(np.multiply(background, 10 ** (_RISE_DECIBELS / 10)), least, most)
    (loud,) = np.nonzero((found >= thresholds[:, None]).any(0))
    first, last = int(loud[0]), int(loud[-1])
    hop = _hop(sample_rate)
    # A moment is loud as soon as it touches speech: the first with its second half alone, the last
    # with its first half.
    is_inside = 0 < first < last, first < last < found.shape[1] - 1
    start = first * hop + (hop if is_inside[0] else 0)
    end = last * hop + (hop if is_inside[1] else 2 * hop)
    return start, min(end, len(samples))


def _by_speaker(
    sources: Sequence[str | Path], dev_speakers: Collection[str], test_speakers: Collection[str]
) -> dict[tuple[str, str], list[Utterance]]:
    """The recordings of each split and speaker, in the order of splits and names."""
    moved = {name: "dev" for name in dev_speakers} | {name: "test" for name in test_speakers}
    groups: defaultdict[tuple[str, str], list[Utterance]] = defaultdict(list)
    for source in sources:
        path = Path(source)
        manifest = path / "manifest.jsonl" if (path / "manifest.jsonl").is_file() else path
        named = manifest.name.split(".")[0]
        for utterance in read_manifest(manifest):
            if not utterance.speaker:
                raise ValueError(f"{manifest}: {utterance.id} has no speaker")
            split = utterance.group.get("split", named if named in SPLITS else "train")
            split = moved.get(utterance.speaker, split)
            if split not in SPLITS:
                raise ValueError(
                    f"{manifest}: the split of {utterance.id} should be one of "
                    f"{', '.join(SPLITS)}, got {split!r}"
                )
            groups[split, utterance.speaker].append(utterance)
    if not groups:
        raise ValueError(f"sources should hold recordings of digits, got {list(map(str, sources))}")
    if unknown := sorted(set(moved) - {name for _, name in groups}):
        raise ValueError(f"no source has a speaker {', '.join(unknown)}")
    ordered = sorted(groups, key=lambda key: (SPLITS.index(key[0]), key[1]))
    return {key: groups[key] for key in ordered}


def _listen(split: str, name: str, utterances: Sequence[Utterance]) -> _Speaker:
    """Reads all recordings of a speaker; a small set, as it is single words."""
    words = [_word(utterance) for utterance in utterances]
    audios = [utterance.load() for utterance in utterances]
    rates = {audio.sample_rate for audio in audios}
    if len(rates) > 1:
        raise ValueError(f"the recordings of {name} should have one sample rate, got {rates}")
    rate = rates.pop()
    moments = np.concatenate([energies(audio.samples, rate) for audio in audios], axis=1)
    background = np.quantile(moments, _QUIET_SHARE, axis=1).tolist()
    digits: defaultdict[str, list[_Digit]] = defaultdict(list)
    for utterance, word, audio in zip(utterances, words, audios, strict=True):
        start, end = speech_span(audio.samples, rate, background)
        if start == end:
            _logger.warning("%s is left out: it is silent", utterance.id)
            continue
        digits[word].append(_Digit(word, audio.samples, start, end))
    if not digits:
        raise ValueError(f"all recordings of {name} in {split} are silent")
    noise = _background(np.concatenate([audio.samples for audio in audios]))
    return _Speaker(split, name, rate, dict(sorted(digits.items())), noise)


def _join(folder: Path, speaker: _Speaker, seed: int, number: int, shape: _Shape) -> Utterance:
    """Makes and writes one string."""
    name = f"{speaker.name}-{speaker.split}-{number:04}"
    generator = np.random.default_rng((seed, zlib.crc32(name.encode())))
    length = generator.integers(*shape.lengths, endpoint=True)
    known = list(speaker.digits)
    words = [known[index] for index in generator.integers(len(known), size=length)]
    takes = [speaker.digits[word] for word in words]
    chosen = [each[int(generator.integers(len(each)))] for each in takes]
    rate = speaker.sample_rate
    gaps = np.round(generator.uniform(*shape.gaps, size=length + 1) * rate).astype(int)
    samples, starts = _mixed(speaker, chosen, gaps, generator)
    path = folder / "audio" / speaker.split / f"{name}.flac"
    write_flac(path, samples, rate)
    return Utterance(
        id=name,
        audio=str(path),
        duration=len(samples) / rate,
        text=" ".join(words),
        speaker=speaker.name,
        group={"kind": KIND},
        words=tuple(
            WordTime(x.word, round(at / rate, 6), round((at + x.end - x.start) / rate, 6))
            for x, at in zip(chosen, starts, strict=True)
        ),
        recording=Recording(rate, len(samples)),
    )


def _mixed(
    speaker: _Speaker, chosen: Sequence[_Digit], gaps: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, list[int]]:
    """The samples of a string, and where the speech of each digit starts in it."""
    size = int(gaps.sum()) + sum(digit.end - digit.start for digit in chosen)
    samples = _noise(speaker.background, size, generator)
    fade_size = round(_FADE * speaker.sample_rate)
    starts = []
    position = 0
    for digit, before, after in zip(chosen, gaps, gaps[1:], strict=False):
        position += int(before)
        starts.append(position)
        # What was recorded around a word goes with it, up to the middle of the gap: a consonant
        # may be too weak to be told from noise.
        lead = min(digit.start, int(before) // 2)
        heard = digit.samples[digit.start - lead : digit.end + int(after) // 2]
        here = slice(position - lead, position - lead + len(heard))
        fade = _faded(len(heard), fade_size)
        # The two are independent, so their energies add: the level of the noise stays the same.
        samples[here] = np.sqrt(1 - fade**2) * samples[here] + fade * heard
        position += digit.end - digit.start
    return np.clip(samples, -1.0, 1.0), starts


def _faded(size: int, fade_size: int) -> np.ndarray:
    """[size] gains that rise from 0 to 1 at the start, and fall at the end."""
    ramp = np.sin(np.linspace(0, np.pi / 2, min(fade_size, size // 2) + 2)[1:-1])
    gains = np.ones(size)
    gains[: len(ramp)] = ramp
    gains[size - len(ramp) :] = ramp[::-1]
    return gains


def _background(samples: np.ndarray) -> np.ndarray:
    """[_SPECTRUM_SIZE] a filter that gives white noise the spectrum of the quietest frames."""
    num_frames = -(-len(samples) // _SPECTRUM_SIZE)
    frames = np.resize(samples, (num_frames, _SPECTRUM_SIZE)).astype(np.float64)
    powers = (frames**2).mean(1)
    quietest = frames[powers <= np.quantile(powers, _QUIET_SHARE)]
    window = np.hanning(_SPECTRUM_SIZE)
    spectrum = (np.abs(np.fft.rfft(quietest * window)) ** 2).mean(0) / (window**2).sum()
    response = np.fft.irfft(np.sqrt(np.maximum(spectrum, _LEAST_AMPLITUDE**2)))
    return np.roll(response, _SPECTRUM_SIZE // 2)


def _noise(background: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    white = generator.standard_normal(size + len(background) - 1)
    return np.convolve(white, background, mode="valid")


def _hop(sample_rate: int) -> int:
    return max(1, round(_HOP * sample_rate))


def _word(utterance: Utterance) -> str:
    text = utterance.text.strip().upper()
    word = DIGITS[int(text)] if len(text) == 1 and text in "0123456789" else text
    if word not in DIGITS:
        raise ValueError(f"{utterance.id} should be a recording of one digit, got {text!r}")
    return word


def _check(seed: int, num_strings: int, num_held_out_strings: int, shape: _Shape) -> None:
    if seed < 0:
        raise ValueError(f"seed should be at least 0, got {seed}")
    counts = {"num_strings": num_strings, "num_held_out_strings": num_held_out_strings}
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} should be at least 0, got {count}")
    least, most = shape.lengths
    if not 1 <= least <= most:
        raise ValueError(f"min_length should be from 1 to max_length, got {least} and {most}")
    if not LEAST_GAP <= shape.gaps[0] <= shape.gaps[1]:
        raise ValueError(
            f"min_gap should be from {LEAST_GAP} seconds to max_gap, "
            f"got {shape.gaps[0]} and {shape.gaps[1]}"
        )
