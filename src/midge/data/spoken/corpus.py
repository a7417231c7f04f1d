"""The embedded corpus: minutes of synthetic speech in seconds, with the true time of every word.

An utterance is a pure function of (seed, split, kind, number): its words, who speaks it, how fast
and how high, the silence around it, its level and its noise. The speakers of train, dev and test
are disjoint. A pair of homophones is spoken twice alike, once for each word: by the same voice,
with the same silence, level and noise, so that until the next word starts the two recordings are
the same samples, and the first word alone tells nothing.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from midge.audio.resampling import resample
from midge.data.manifests import write_manifest
from midge.data.spoken.recordings import Part, write_flac
from midge.data.spoken.texts import HOMOPHONES, SINGLE_TEXTS, homophones
from midge.data.spoken.voice import ACCENTS, Speech, Voice, speak, variants
from midge.data.utterances import Recording, Utterance, WordTime
from midge.progress import Progress

SAMPLE_RATE = 16000
"""That of the recordings, in hertz."""
SHARES = {"digits": 0.45, "homophones": 0.45, "commands": 0.05, "spelled": 0.05}
"""How much of each kind there is: of the minutes of train, of the utterances of dev and test."""

# Chosen so that none has a near twin in another split. The distance between two variants is that
# of their log-mel spectra over the ten digits: each of these is at least 1 away from every variant
# of another split (two variants at random are 4.4 apart), while twins such as steph2 and
# steph3, at 0.03, all stay in train.
DEV_VARIANTS = (
    "Andy RicishayMax antonio belinda david f3 grandma m8 marcelo norbert pablo paul"
).split()
"""The variants that speak the development set."""
TEST_VARIANTS = "Annie Jacky Storm Tweaky boris ed f1 m2 m4 sandro travis".split()
"""The variants that speak the test set; all that are in neither speak the training set."""

FORESEEING = frozenset("Reed adam benjamin david edward2 klatt6 mike2 robosoft2".split())
"""Variants that say no homophones: already in the first word their sound depends on the next. All
but the last have the one synthesizer that glides from phoneme to phoneme."""

_SPLITS = ("train", "dev", "test")
_KINDS = ("homophones", *SINGLE_TEXTS)
_PLAIN_RATES = (130, 210)
_HASTY_RATES = (280, 360)
"""Homophones are spoken fast: a model that waits for the next word has little time left to write
both."""
_PITCHES = (30, 70)
_LEAD_SECONDS = (0.05, 0.2)
_TRAIL_SECONDS = (0.05, 0.3)
_SHORT_TRAIL_SECONDS = 0.03
_PEAK_DECIBELS = (-20.0, -3.0)
_NOISE_DECIBELS = (-75.0, -60.0)
"""Of full scale; it is never heard, but silence is not digital zero."""


@dataclass(frozen=True, kw_only=True)
class _Take:
    """How one recording, or both of a pair, is made."""

    name: str
    voice: Voice
    lead: float
    trail: float
    peak: float
    noise: float
    noise_seed: tuple[int, ...]


def speak_corpus(
    out_dir: str | Path,
    *,
    seed: int = 0,
    minutes: float = 15.0,
    num_dev: int = 120,
    num_test: int = 240,
    shares: Mapping[str, float] = SHARES,
    is_quiet: bool = False,
) -> tuple[Part, ...]:
    """Speaks a synthetic corpus: digits, homophones, commands and spelled words.

    It writes FLAC files (16 kHz, mono) under `out_dir/audio`, and the manifests `train.jsonl.gz`,
    `dev.jsonl.gz` and `test.jsonl.gz`, with the time of every word and phoneme. The manifest field
    `kind` tells the kinds apart, `pair` the pairs of homophones, and `synthetic` says who spoke.
    The same arguments give the same samples.

    Args:
        out_dir: a folder; what it has of these names is replaced.
        seed: of everything that is drawn.
        minutes: least length of the training speech.
        num_dev: number of utterances of the development set.
        num_test: number of utterances of the test set.
        shares: how much of each kind; what is not named is not spoken.
        is_quiet: whether to show no progress.

    Returns:
        How much of each kind every split has.

    Raises:
        ValueError: for a wrong argument, or if espeak-ng is missing.
        OSError: if a file cannot be written.
    """
    _check(seed, minutes, num_dev, num_test, shares)
    folder = Path(out_dir).absolute()
    parts: list[Part] = []
    for split, size in zip(_SPLITS, (60 * minutes, num_dev, num_test), strict=True):
        unit = "seconds of speech" if split == "train" else "utterances"
        stream = io.StringIO() if is_quiet else None
        spoken: list[Utterance] = []
        with Progress(round(size), f"speaking {split}", unit=unit, stream=stream) as progress:
            for kind, utterances in _speak_split(folder, seed, split, size, shares, progress):
                seconds = sum(utterance.duration for utterance in utterances)
                parts.append(Part(split, kind, len(utterances), seconds))
                spoken += utterances
        write_manifest(folder / f"{split}.jsonl.gz", spoken)
    return tuple(parts)


def _speak_split(
    folder: Path,
    seed: int,
    split: str,
    size: float,
    shares: Mapping[str, float],
    progress: Progress,
) -> Iterator[tuple[str, list[Utterance]]]:
    """Speaks one kind after the other; the last makes up for what those before it have more."""
    done = 0.0
    kinds = [kind for kind in _KINDS if shares.get(kind)]
    for index, kind in enumerate(kinds):
        rest = sum(shares[each] for each in kinds[index:])
        wanted = (size - done) * shares[kind] / rest
        enough = done + (wanted if split == "train" else round(wanted))
        utterances: list[Utterance] = []
        for number in itertools.count():
            if done >= enough:
                break
            made = _record(folder / "audio" / split, kind, (seed, _SPLITS.index(split), number))
            utterances += made
            before = round(done)
            done += sum(x.duration for x in made) if split == "train" else len(made)
            progress.advance(kind, round(done) - before)
        yield kind, utterances


def _record(folder: Path, kind: str, key: tuple[int, int, int]) -> list[Utterance]:
    """Speaks an utterance, or both of a pair, and writes the audio."""
    seed, split, number = key
    entropy = (seed, split, _KINDS.index(kind), number)
    generator = np.random.default_rng(entropy)
    group = {"kind": kind, "synthetic": "espeak-ng"}
    if kind == "homophones":
        pair = HOMOPHONES[number % len(HOMOPHONES)]
        texts: Sequence[list[str]] = homophones(pair, generator)
        group["pair"] = "/".join(member.word for member in pair)
    else:
        texts = (SINGLE_TEXTS[kind](generator),)
    # Corpora of two seeds can be trained on together: no id stands in both.
    name = f"{_SPLITS[split]}-{kind}-{number:05}" + (f"-seed-{seed}" if seed else "")
    take = _take(name, kind, _SPLITS[split], entropy, generator)
    speeches = [speak(words, take.voice) for words in texts]
    if len(speeches) > 1:
        _check_alike(speeches, take.voice)
    gain = take.peak / max(float(abs(speech.samples).max()) for speech in speeches)
    return [_write(folder, take, speech, gain, group, len(speeches) > 1) for speech in speeches]


def _take(
    name: str, kind: str, split: str, entropy: tuple[int, ...], generator: np.random.Generator
) -> _Take:
    is_hasty = kind == "homophones"
    rates = _HASTY_RATES if is_hasty else _PLAIN_RATES
    speakers = [name for name in variants_of(split) if not (is_hasty and name in FORESEEING)]
    voice = Voice(
        accent=str(generator.choice(ACCENTS)),
        variant=str(generator.choice(speakers)),
        rate=int(generator.integers(*rates, endpoint=True)),
        pitch=int(generator.integers(*_PITCHES, endpoint=True)),
        pitch_range=int(generator.integers(*_PITCHES, endpoint=True)),
    )
    return _Take(
        name=name,
        voice=voice,
        lead=generator.uniform(*_LEAD_SECONDS),
        trail=_SHORT_TRAIL_SECONDS if is_hasty else generator.uniform(*_TRAIL_SECONDS),
        peak=_amplitude(generator.uniform(*_PEAK_DECIBELS)),
        noise=_amplitude(generator.uniform(*_NOISE_DECIBELS)),
        noise_seed=(*entropy, 1),
    )


def _write(
    folder: Path, take: _Take, speech: Speech, gain: float, group: Mapping[str, str], is_pair: bool
) -> Utterance:
    samples = _recorded(take, speech, gain)
    name = f"{take.name}-{speech.words[0].word.lower()}" if is_pair else take.name
    path = folder / f"{name}.flac"
    write_flac(path, samples, SAMPLE_RATE)
    return Utterance(
        id=name,
        audio=str(path),
        duration=len(samples) / SAMPLE_RATE,
        text=" ".join(word.word for word in speech.words),
        speaker=take.voice.name,
        group=group,
        words=_moved(speech.words, take.lead),
        phones=_moved(speech.phones, take.lead),
        recording=Recording(SAMPLE_RATE, len(samples)),
    )


def _recorded(take: _Take, speech: Speech, gain: float) -> np.ndarray:
    """[num_samples] float32: silence, speech, silence, and noise over all of it."""
    rate = speech.sample_rate
    start = round(take.lead * rate)
    length = round((take.lead + speech.words[-1].end + take.trail) * rate)
    signal = np.zeros(length, np.float32)
    spoken = speech.samples[: length - start]
    signal[start : start + len(spoken)] = gain * spoken
    samples = resample(signal, rate, SAMPLE_RATE)
    noise = np.random.default_rng(take.noise_seed).standard_normal(len(samples), np.float32)
    return np.clip(samples + np.float32(take.noise) * noise, -1.0, 1.0)


def _moved(times: Sequence[WordTime], seconds: float) -> tuple[WordTime, ...]:
    # Microseconds, as manifests keep them.
    return tuple(
        WordTime(name, round(start + seconds, 6), round(end + seconds, 6))
        for name, start, end in times
    )


def variants_of(split: str) -> list[str]:
    """The variants that speak a split; no two splits share one."""
    held_out = {"dev": DEV_VARIANTS, "test": TEST_VARIANTS}
    if split in held_out:
        return held_out[split]
    return [name for name in variants() if name not in {*DEV_VARIANTS, *TEST_VARIANTS}]


def _amplitude(decibels: float) -> float:
    return float(10 ** (decibels / 20))


def _check_alike(speeches: Sequence[Speech], voice: Voice) -> None:
    """Makes sure that nothing tells two homophones apart before the next word starts."""
    rate = speeches[0].sample_rate
    length = round(min(speech.words[1].start for speech in speeches) * rate)
    one, other = (speech.samples[:length] for speech in speeches)
    if not np.array_equal(one, other):
        names = " and ".join(speech.words[0].word for speech in speeches)
        raise ValueError(f"this espeak-ng speaks {names} differently as {voice}")


def _check(
    seed: int, minutes: float, num_dev: int, num_test: int, shares: Mapping[str, float]
) -> None:
    if seed < 0:
        raise ValueError(f"seed should be at least 0, got {seed}")
    if not 0 <= minutes < math.inf:
        raise ValueError(f"minutes should be at least 0, got {minutes}")
    for name, number in (("num_dev", num_dev), ("num_test", num_test)):
        if number < 0:
            raise ValueError(f"{name} should be at least 0, got {number}")
    for kind, share in shares.items():
        if kind not in _KINDS:
            raise ValueError(f"shares should be of {', '.join(_KINDS)}, got {kind!r}")
        if not 0 <= share < math.inf:
            raise ValueError(f"the share of {kind} should be at least 0, got {share}")
    if not sum(shares.values()) > 0:
        raise ValueError(f"shares should name at least one kind, got {dict(shares)}")
