"""Augmentation: training data made more various, as a pure function of seed, epoch and utterance.

Every draw comes from a generator seeded by a hash of (seed, epoch, utterance id). So an utterance
sounds the same in whichever process, worker or order it is prepared, and a resumed training run
hears what the uninterrupted one would have heard.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from midge.audio.channels import NUM_OCTAVES, coloured, reverberated, transform_size
from midge.audio.files import audio_info, read_audio
from midge.audio.resampling import as_samples, check_rate, resample

_AUDIO_SUFFIXES = frozenset((".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav"))
_SPEECH_LEVEL = -40.0
"""Decibels relative to the loudest stretch of an utterance. The background of AN4 and LibriSpeech
lies at -46 to -48 (medians). A higher level would cut more, and into weak last consonants too."""

_NARROW_RATE = 8000
"""Hertz, of telephones."""

_LEVEL_SECONDS = 0.01
"""Length of a stretch."""


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig:
    """What is done to training data. The defaults for masks are those of the Conformer paper."""

    num_frequency_masks: int = 2
    """SpecAugment: masks over bands; 0 turns them off."""

    max_frequency_mask: int = 27
    """Most bands in a frequency mask."""

    num_time_masks: int = 10
    """SpecAugment: masks over time; 0 turns them off."""

    max_time_mask: float = 0.05
    """Longest time mask, as a share of the utterance."""

    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    """Factors of speed, tempo and pitch together, drawn alike; (1.0,) turns them off."""

    silence_cut_probability: float = 0.5
    """How often a random share of the silence after the last word is cut off; 0 turns it off."""

    lead_cut_probability: float = 0.0
    """How often a random share of the silence before the first word is cut off; 0 turns it off.
    Recordings that were cut out of longer ones begin at once."""

    silence_margin: float = 0.05
    """Seconds around speech that are never cut."""

    max_added_silence: float = 0.0
    """Most seconds of background put before, and after, an utterance, each drawn alike; 0 turns it
    off. A model that is to hear a microphone should know pauses."""

    added_silence_probability: float = 1.0
    """How often it is put there."""

    narrow_band_probability: float = 0.0
    """How often sound is taken to 8 kHz and back, as by a telephone; 0 turns it off."""

    reverberation_probability: float = 0.0
    """How often the echoes of a room are added; 0 turns it off."""

    reverberation_seconds: tuple[float, ...] = (0.1, 0.5)
    """Least and greatest time in which echoes become 60 dB weaker."""

    reverberation_ratio: tuple[float, ...] = (0.0, 15.0)
    """Least and greatest ratio of the speech's energy to its echoes', in decibels."""

    equalizer: float = 0.0
    """Most decibels by which each octave is raised or lowered, drawn alike, as other microphones
    would; 0 turns it off."""

    volume: tuple[float, ...] = (0.0, 0.0)
    """Least and greatest gain in decibels; (0, 0) turns it off."""

    level: tuple[float, ...] = ()
    """Least and greatest level, in decibels of full scale, that the loudest twentieth of an
    utterance is brought to before the gain; () turns it off. Corpora differ in level by more than
    a gain makes up for, and a model must not tell digits by it."""

    noise_probability: float = 0.0
    """How often noise is added; 0 turns it off."""

    noise: str = "pink"
    """A folder of audio files, or "white" or "pink" for noise that is made here."""

    noise_ratio: tuple[float, ...] = (5.0, 20.0)
    """Least and greatest ratio of the speech's power to the noise's, in decibels."""

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in ("num_frequency_masks", "max_frequency_mask", "num_time_masks"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} should be at least 0, got {getattr(self, name)}")
        for name in (
            "max_time_mask",
            "silence_cut_probability",
            "lead_cut_probability",
            "added_silence_probability",
            "narrow_band_probability",
            "reverberation_probability",
            "noise_probability",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} should be in 0..1, got {getattr(self, name)}")
        if not self.speeds or not all(0.1 <= speed <= 10 for speed in self.speeds):
            raise ValueError(f"speeds should be factors in 0.1..10, got {list(self.speeds)}")
        for name in ("silence_margin", "max_added_silence", "equalizer"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} should be at least 0, got {getattr(self, name)}")
        _check_limits("volume", self.volume)
        _check_limits("noise_ratio", self.noise_ratio)
        _check_limits("reverberation_ratio", self.reverberation_ratio)
        _check_limits("reverberation_seconds", self.reverberation_seconds)
        if self.reverberation_seconds[0] <= 0:
            raise ValueError(
                f"reverberation_seconds should be above 0, got {list(self.reverberation_seconds)}"
            )
        if self.level:
            _check_limits("level", self.level)

    @property
    def fastest_speed(self) -> float:
        """The greatest factor by which an utterance may be shortened, the silence cut aside."""
        return max(self.speeds)


def _check_limits(name: str, limits: tuple[float, ...]) -> None:
    if len(limits) != 2 or not limits[0] <= limits[1]:
        raise ValueError(f"{name} should be [least, greatest], got {list(limits)}")


class Augmentation:
    """Makes training data more various.

    Args:
        config: what is done.
        seed: another seed gives other draws.

    Raises:
        ValueError: if the folder of noise holds no audio files.

    Example:
        >>> augmentation = Augmentation(AugmentationConfig(speeds=(2.0,)), seed=1)
        >>> tone = np.sin(np.arange(16000, dtype=np.float32))
        >>> len(augmentation.waveform(tone, 16000, epoch=0, utterance_id="a"))
        8000
    """

    def __init__(self, config: AugmentationConfig, seed: int) -> None:
        self.config = config
        self._seed = seed
        self._noise_files: tuple[Path, ...] = ()
        if config.noise_probability and config.noise not in ("white", "pink"):
            self._noise_files = _audio_files(Path(config.noise))

    @property
    def fastest_speed(self) -> float:
        """See `AugmentationConfig.fastest_speed`."""
        return self.config.fastest_speed

    def waveform(
        self, samples: np.ndarray, sample_rate: int, *, epoch: int, utterance_id: str
    ) -> np.ndarray:
        """Changes speed, silence, room, noise, microphone, bandwidth and volume, in this order.

        Args:
            samples: [num_samples] one channel, full scale [-1, 1].
            sample_rate: its rate.
            epoch: which pass over the data.
            utterance_id: whose samples they are.

        Returns:
            [another num_samples] float32 at the same rate; it may exceed full scale, it is not
            clipped.
        """
        check_rate("sample_rate", sample_rate)
        generator = self._generator("waveform", epoch, utterance_id)
        # As many draws whatever is on, so that one change never alters the draws of another.
        speed_draw, cut_draw, share, noise_draw, volume_draw = generator.random(5)
        speed = self.config.speeds[int(speed_draw * len(self.config.speeds))]
        changed = resample(samples, round(sample_rate * speed), sample_rate)
        if cut_draw < self.config.silence_cut_probability:
            changed = self._without_silence(changed, sample_rate, share)
        lead_draw, lead_share = self._generator("lead", epoch, utterance_id).random(2)
        if lead_draw < self.config.lead_cut_probability:
            # Backwards in time the beginning is an end.
            changed = self._without_silence(changed[::-1], sample_rate, lead_share)[::-1]
        silence = self._generator("silence", epoch, utterance_id)
        if self.config.max_added_silence and (
            self._generator("added", epoch, utterance_id).random()
            < self.config.added_silence_probability
        ):
            changed = self._with_silence(changed, sample_rate, silence)
        room = self._generator("room", epoch, utterance_id)
        if room.random() < self.config.reverberation_probability:
            changed = self._in_a_room(changed, sample_rate, room)
        if noise_draw < self.config.noise_probability:
            changed = self._with_noise(changed, sample_rate, generator)
        if self.config.equalizer:
            drawn = self._generator("microphone", epoch, utterance_id).uniform(-1, 1, NUM_OCTAVES)
            changed = coloured(changed, sample_rate, self.config.equalizer * drawn)
        band_draw = self._generator("band", epoch, utterance_id).random()
        if band_draw < self.config.narrow_band_probability and sample_rate > _NARROW_RATE:
            narrow = resample(changed, sample_rate, _NARROW_RATE)
            changed = np.resize(resample(narrow, _NARROW_RATE, sample_rate), len(changed))
        gain = _between(self.config.volume, volume_draw)
        if self.config.level:
            share = self._generator("level", epoch, utterance_id).random()
            gain += _between(self.config.level, share) - _level(changed, sample_rate)
        return np.ascontiguousarray(changed) * np.float32(10 ** (gain / 20))

    def mels(self, mels: Tensor, *, epoch: int, utterance_id: str) -> Tensor:
        """Masks bands and stretches of time (SpecAugment).

        Each frequency mask covers uniformly 0..max_frequency_mask bands, each time mask uniformly
        0..floor(max_time_mask * num_mel_frames) frames, at a uniform place.

        Args:
            mels: [num_mel_frames, num_mels] *normalized*, so that the mean is 0; not changed.
            epoch: which pass over the data.
            utterance_id: whose frames they are.

        Returns:
            [num_mel_frames, num_mels] with 0 where masked.
        """
        generator = self._generator("mels", epoch, utterance_id)
        num_mel_frames, num_mels = mels.shape
        masked = mels.clone()
        widest = min(self.config.max_frequency_mask, num_mels)
        for _ in range(self.config.num_frequency_masks):
            first, last = _drawn_range(generator, widest, num_mels)
            masked[:, first:last] = 0
        longest = int(self.config.max_time_mask * num_mel_frames)
        for _ in range(self.config.num_time_masks):
            first, last = _drawn_range(generator, longest, num_mel_frames)
            masked[first:last] = 0
        return masked

    def _generator(self, purpose: str, epoch: int, utterance_id: str) -> np.random.Generator:
        # Python's own hash differs from process to process.
        key = "\0".join((purpose, str(self._seed), str(epoch), utterance_id))
        digest = hashlib.sha256(key.encode("utf-8")).digest()
        return np.random.default_rng(int.from_bytes(digest[:16], "little"))

    def _without_silence(self, samples: np.ndarray, sample_rate: int, share: float) -> np.ndarray:
        kept = end_of_speech(samples, sample_rate) + round(self.config.silence_margin * sample_rate)
        num_silent = max(len(samples) - kept, 0)
        return samples[: len(samples) - round(share * num_silent)]

    def _with_silence(
        self, samples: np.ndarray, sample_rate: int, generator: np.random.Generator
    ) -> np.ndarray:
        longest = self.config.max_added_silence * sample_rate
        before, after = (round(share * longest) for share in generator.random(2))
        noise = _made_noise("pink", before + after, generator)
        if noise_power := _power(noise):
            noise *= np.float32(np.sqrt(_background_power(samples, sample_rate) / noise_power))
        return np.concatenate((noise[:before], samples, noise[before:]))

    def _in_a_room(
        self, samples: np.ndarray, sample_rate: int, generator: np.random.Generator
    ) -> np.ndarray:
        seconds = _between(self.config.reverberation_seconds, generator.random())
        ratio = _between(self.config.reverberation_ratio, generator.random())
        noise = generator.standard_normal(max(1, round(seconds * sample_rate)))
        return reverberated(samples, sample_rate, seconds, ratio, noise)

    def _with_noise(
        self, samples: np.ndarray, sample_rate: int, generator: np.random.Generator
    ) -> np.ndarray:
        ratio = _between(self.config.noise_ratio, generator.random())
        if self._noise_files:
            path = self._noise_files[generator.integers(len(self._noise_files))]
            noise = _noise_from(path, len(samples), sample_rate, generator.random())
        else:
            noise = _made_noise(self.config.noise, len(samples), generator)
        power, noise_power = _power(samples), _power(noise)
        if not power or not noise_power:
            return samples  # no ratio can be had with silence
        gain = np.sqrt(power / noise_power / 10 ** (ratio / 10))
        return samples + noise * np.float32(gain)


def end_of_speech(samples: np.ndarray, sample_rate: int) -> int:
    """The number of samples up to the end of the last sound that counts as speech.

    A stretch of 10 ms counts if its power is at most 40 dB below that of the loudest. In a noisy
    recording all of it counts, and nothing is taken for silence.

    Args:
        samples: [num_samples] one channel.
        sample_rate: its rate.

    Returns:
        0 for digital silence.
    """
    powers, size = _powers(samples, sample_rate)
    if not powers.any():
        return 0
    loud = np.flatnonzero(powers >= powers.max() * 10 ** (_SPEECH_LEVEL / 10))
    return min(len(samples), (int(loud[-1]) + 1) * size)


def _powers(samples: np.ndarray, sample_rate: int) -> tuple[np.ndarray, int]:
    """The power of each stretch of 10 ms, and the number of samples in one."""
    size = max(1, round(_LEVEL_SECONDS * sample_rate))
    padded = np.pad(as_samples(samples), (0, -len(samples) % size))
    return np.square(padded.reshape(-1, size), dtype=np.float64).mean(1), size


def _background_power(samples: np.ndarray, sample_rate: int) -> float:
    """The power of the quietest tenth of a recording."""
    powers, _ = _powers(samples, sample_rate)
    return float(np.quantile(powers, 0.1)) if len(powers) else 0.0


def _level(samples: np.ndarray, sample_rate: int) -> float:
    """Decibels of full scale of the loudest twentieth of a recording; 0 for digital silence."""
    powers, _ = _powers(samples, sample_rate)
    loud = float(np.quantile(powers, 0.95)) if len(powers) else 0.0
    return 10 * math.log10(loud) if loud else 0.0


def _drawn_range(generator: np.random.Generator, longest: int, total: int) -> tuple[int, int]:
    """A range of uniform length 0..longest at a uniform place in 0..total."""
    length = int(generator.integers(longest + 1))
    first = int(generator.integers(total - length + 1))
    return first, first + length


def _between(limits: tuple[float, ...], share: float) -> float:
    return limits[0] + share * (limits[1] - limits[0])


def _power(samples: np.ndarray) -> float:
    return float(np.square(samples, dtype=np.float64).mean()) if len(samples) else 0.0


def _made_noise(color: str, num_samples: int, generator: np.random.Generator) -> np.ndarray:
    """White noise; or pink, whose power falls with frequency, as that of most rooms does."""
    if color == "white" or not num_samples:
        return generator.standard_normal(num_samples, dtype=np.float32)
    size = transform_size(num_samples)
    spectrum = np.fft.rfft(generator.standard_normal(size, dtype=np.float32))
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    return np.fft.irfft(spectrum, size)[:num_samples].astype(np.float32)


def _noise_from(path: Path, num_samples: int, sample_rate: int, place: float) -> np.ndarray:
    """Noise from a file, from a place in 0..1 of it on; a short file is repeated."""
    length = audio_info(path).duration
    wanted = num_samples / sample_rate
    # One channel of noise is as good as the mean of all, and is read without a notice.
    if length > wanted:
        noise = read_audio(path, start=place * (length - wanted), duration=wanted, channel=0)
        samples = noise.samples
    else:
        noise = read_audio(path, channel=0)
        samples = np.roll(noise.samples, -int(place * len(noise.samples)))
    resampled = resample(samples, noise.sample_rate, sample_rate)
    return np.resize(resampled, num_samples)  # nothing to repeat gives zeros


@functools.lru_cache(maxsize=8)
def _audio_files(folder: Path) -> tuple[Path, ...]:
    """The audio files of a folder and its subfolders, in order of their names."""
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _AUDIO_SUFFIXES)
    if not found:
        raise ValueError(
            f'noise should be "white", "pink" or a folder of audio files, got {folder}, '
            "which holds none"
        )
    return tuple(found)
