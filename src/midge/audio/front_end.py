"""The front end: from samples to the frames an encoder hears, the same for files and streams.

Samples of any rate are resampled; each `shift` gives the log energies of `num_mels` bands over the
last `window` of sound (kaldi-native-fbank); they are normalized by statistics of the training data;
and each `stride` mel frames give one encoder frame, the last `stacking` of them side by side.

    samples -> mels [num_mel_frames, num_mels] -> frames [num_frames, num_mels * stacking]

Frame t (from 0) has heard the sound up to (t + 1) * shift * stride seconds and none after it. For
that the sound is preceded by `window - shift` of silence. It is followed by `tail_padding` of
silence, and by as much as fills the last frame, so every sample is heard and the number of frames
is known from the number of samples alone. Whole files go through the very code that streams do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import kaldi_native_fbank as knf  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import Tensor, nn

from midge.audio.resampling import Resampler, as_samples, check_rate, num_resampled

_FULL_SCALE = 32768.0  # Kaldi's energies are those of 16-bit integers
_BLOCK_SIZE = 160_000  # samples of a whole signal that are worked on at once
_SMALLEST_DEVIATION = 1.0
"""Nats. A band that hardly varies in the training data (those above 4 kHz, if all of it came by
telephone) is not blown up when it does vary later. Bands of speech deviate by 2 to 4."""


@dataclass(frozen=True, kw_only=True)
class FrontEndConfig:
    """Sizes of the front end. Times are in seconds."""

    sample_rate: int = 16000
    """Rate the sound is brought to, in hertz."""

    num_mels: int = 80
    """Number of mel bands."""

    window: float = 0.025
    """Length of sound in a mel frame."""

    shift: float = 0.010
    """Time between two mel frames."""

    stacking: int = 3
    """Mel frames side by side in an encoder frame."""

    stride: int = 3
    """Mel frames between two encoder frames."""

    tail_padding: float = 0.3
    """Silence that follows the sound, so that a streaming model can finish its last word."""

    low_frequency: float = 20.0
    """Lower edge of the lowest band, in hertz."""

    high_frequency: float | None = None
    """Upper edge of the highest band, in hertz; None is half the sample rate."""

    floor: float = 2.0
    """Lowest log energy of a band; every lower one, also that of digital silence, becomes it.

    The default is the level at which 16-bit samples end: rounding alone has a median of 2.5. In
    recordings of AN4, LibriSpeech, AudioMNIST and (below 4 kHz) FSDD at most 1.4 % of the energies
    are lower, so silence lies at the edge of what is heard and not, at log(epsilon) = -16, far out.
    """

    def __post_init__(self) -> None:
        """Checks the values."""
        check_rate("sample_rate", self.sample_rate)
        for name in ("num_mels", "stacking", "stride"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        if self.stacking < self.stride:
            raise ValueError(
                f"stacking should be at least the stride of {self.stride}, got {self.stacking}; "
                "otherwise some mel frames would never be heard"
            )
        for name in ("window", "shift"):
            size = getattr(self, name) * self.sample_rate
            if not size > 0.5 or abs(size - round(size)) > 1e-6:
                raise ValueError(
                    f"{name} should be a whole number of samples at {self.sample_rate} Hz, "
                    f"got {getattr(self, name)} s = {size:g} samples"
                )
        if self.window < self.shift:
            raise ValueError(f"window should be at least the shift, got {self.window}")
        if not 0 <= self.tail_padding < math.inf:
            raise ValueError(f"tail_padding should be at least 0, got {self.tail_padding}")
        if not math.isfinite(self.floor):
            raise ValueError(f"floor should be finite, got {self.floor}")
        if not 0 <= self.low_frequency < self.upper_edge <= self.sample_rate / 2:
            raise ValueError(
                f"high_frequency should be above low_frequency {self.low_frequency} and at most "
                f"{self.sample_rate / 2}, got {self.upper_edge}"
            )

    @property
    def upper_edge(self) -> float:
        """Upper edge of the highest band, in hertz."""
        return self.sample_rate / 2 if self.high_frequency is None else self.high_frequency

    @cached_property
    def window_size(self) -> int:
        """Samples in a mel frame."""
        return round(self.window * self.sample_rate)

    @cached_property
    def shift_size(self) -> int:
        """Samples between two mel frames."""
        return round(self.shift * self.sample_rate)

    @cached_property
    def frame_size(self) -> int:
        """Samples between two encoder frames."""
        return self.shift_size * self.stride

    @property
    def tail_size(self) -> int:
        """Samples of silence that follow the sound, before the last frame is filled up."""
        return round(self.tail_padding * self.sample_rate)


class FrontEnd(nn.Module):
    """From samples to encoder frames.

    It has no parameters; its buffers `mean` and `scale` [num_mels] come from training data (`fit`)
    and are stored with a model. Before that they are 0 and 1.

    Args:
        config: sizes.

    Example:
        >>> import numpy as np
        >>> front_end = FrontEnd(FrontEndConfig())
        >>> front_end.features(np.zeros(8000, np.float32), sample_rate=8000).shape
        torch.Size([44, 240])
        >>> front_end.frame_time(43)
        1.32
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, config: FrontEndConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean", torch.zeros(config.num_mels))
        self.register_buffer("scale", torch.ones(config.num_mels))

    @property
    def feature_size(self) -> int:
        """Size of an encoder frame."""
        return self.config.num_mels * self.config.stacking

    @property
    def frame_seconds(self) -> float:
        """Time between two encoder frames."""
        return self.config.frame_size / self.config.sample_rate

    def frame_time(self, frame: int) -> float:
        """The time, in seconds, up to which encoder frame `frame` (from 0) has heard the sound.

        It is the end of the last sample in the frame, counted from the first sample of the sound:
        (frame + 1) * shift * stride. In the tail padding it lies after the end of the recording;
        whoever shows it cuts it there.
        """
        return (frame + 1) * self.config.frame_size / self.config.sample_rate

    def num_frames(self, num_samples: int, sample_rate: int) -> int:
        """The number of encoder frames of a sound, exact, without computing them.

        Args:
            num_samples: length of the sound, without any padding.
            sample_rate: its own rate.
        """
        check_rate("sample_rate", sample_rate)
        if num_samples < 0:
            raise ValueError(f"num_samples should be at least 0, got {num_samples}")
        num_heard = num_resampled(num_samples, sample_rate, self.config.sample_rate)
        return -(-(num_heard + self.config.tail_size) // self.config.frame_size)

    def mels(self, samples: np.ndarray, sample_rate: int) -> Tensor:
        """Log energies of the mel bands of a whole sound and its tail padding, not normalized.

        Args:
            samples: [num_samples] one channel, full scale [-1, 1].
            sample_rate: its rate.

        Returns:
            [num_frames * stride, num_mels] float32 on the CPU.
        """
        stream = _MelStream(self.config, sample_rate)
        samples = as_samples(samples)
        blocks = np.split(samples, range(_BLOCK_SIZE, len(samples), _BLOCK_SIZE))
        pieces = [stream.accept(block) for block in blocks]
        return torch.from_numpy(np.concatenate((*pieces, stream.finish())))

    def normalize(self, mels: Tensor) -> Tensor:
        """Takes the training data's mean and deviation out of mels [*batch, n, num_mels]."""
        if mels.shape[-1] != self.config.num_mels:
            raise ValueError(
                f"mels should be [*batch, num_mel_frames, {self.config.num_mels}], "
                f"got shape {list(mels.shape)}"
            )
        return (mels.to(self.mean.device) - self.mean) * self.scale

    def stack(self, mels: Tensor, augment: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Normalizes mel frames and stacks them to encoder frames.

        Encoder frame t holds mel frames (t + 1) * stride - stacking ... (t + 1) * stride - 1, the
        oldest first; those before the sound are 0, the mean.

        Args:
            mels: [*batch, num_mel_frames, num_mels] as from `mels`; a multiple of the stride.
            augment: what happens to the normalized mel frames before they are stacked.

        Returns:
            [*batch, num_mel_frames / stride, feature_size].
        """
        if mels.shape[-2] % self.config.stride:
            raise ValueError(
                f"mels should hold a multiple of {self.config.stride} frames (the stride), "
                f"got {mels.shape[-2]}; `mels` fills up the last one with silence"
            )
        normalized = self.normalize(mels)
        if augment is not None:
            normalized = augment(normalized)
        return self._stacked(nn.functional.pad(normalized, (0, 0, self._num_past, 0)))

    def features(self, samples: np.ndarray, sample_rate: int) -> Tensor:
        """The encoder frames [num_frames, feature_size] of a whole sound; see `mels`."""
        return self.stack(self.mels(samples, sample_rate))

    def stream(self, sample_rate: int) -> FeatureStream:
        """Starts a sound that comes in pieces."""
        return FeatureStream(self, sample_rate)

    @torch.no_grad()
    def fit(self, mels: Iterable[Tensor]) -> None:
        """Sets mean and scale from training data.

        Args:
            mels: [num_mel_frames, num_mels] of utterances, as from `mels`.

        Raises:
            ValueError: if there are no frames.
        """
        count = 0
        total = torch.zeros(self.config.num_mels, dtype=torch.float64)
        squares = torch.zeros_like(total)
        for utterance in mels:
            wide = utterance.to(total)
            count += len(wide)
            total += wide.sum(0)
            squares += wide.square().sum(0)
        if not count:
            raise ValueError("mels should hold at least one frame to normalize by, got none")
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        self.mean.copy_(mean)
        self.scale.copy_(1 / deviation.clamp(min=_SMALLEST_DEVIATION))

    @property
    def _num_past(self) -> int:
        """Mel frames that an encoder frame holds from before the last stride."""
        return self.config.stacking - self.config.stride

    def _stacked(self, normalized: Tensor) -> Tensor:
        """Stacks mel frames, the first `_num_past` of which only serve as past."""
        if normalized.shape[-2] < self.config.stacking:
            return normalized.new_zeros(*normalized.shape[:-2], 0, self.feature_size)
        windows = normalized.unfold(-2, self.config.stacking, self.config.stride)
        return windows.transpose(-1, -2).flatten(-2)


class FeatureStream:
    """The encoder frames of a sound that comes in pieces; `FrontEnd.stream` makes it.

    What `accept` and `finish` return, joined, is what `FrontEnd.features` gives for the pieces
    joined, to the bit. It holds no more sound than one frame needs.
    """

    def __init__(self, front_end: FrontEnd, sample_rate: int) -> None:
        self._front_end = front_end
        self._mels = _MelStream(front_end.config, sample_rate)
        # By numpy: for pieces of a tenth of a second torch's operations take longer to begin.
        self._mean, self._scale = (x.cpu().numpy() for x in (front_end.mean, front_end.scale))
        self._pending = np.zeros((front_end._num_past, front_end.config.num_mels), np.float32)

    def accept(self, samples: np.ndarray) -> Tensor:
        """Takes a piece of any size.

        Args:
            samples: [num_samples] one channel, full scale [-1, 1].

        Returns:
            [num_frames, feature_size] the frames that are complete now; there may be none.
        """
        return self._frames(self._mels.accept(as_samples(samples)))

    def finish(self) -> Tensor:
        """Ends the sound with the tail padding and returns the last frames."""
        return self._frames(self._mels.finish())

    def _frames(self, mels: np.ndarray) -> Tensor:
        stacking, stride = self._front_end.config.stacking, self._front_end.config.stride
        normalized = (mels - self._mean) * self._scale
        pending = np.concatenate((self._pending, normalized))
        count = max(0, (len(pending) - stacking) // stride + 1)
        frames = np.empty((count, self._front_end.feature_size), np.float32)
        for number in range(count):
            frames[number] = pending[number * stride : number * stride + stacking].reshape(-1)
        self._pending = pending[count * stride :].copy()  # a view would keep all of it
        return torch.from_numpy(frames).to(self._front_end.mean.device)


class _MelStream:
    """Mel frames [n, num_mels] of a sound that comes in pieces, silence around it included."""

    def __init__(self, config: FrontEndConfig, sample_rate: int) -> None:
        check_rate("sample_rate", sample_rate)
        self._config = config
        self._resampler = Resampler(sample_rate, config.sample_rate)
        self._bank = knf.OnlineFbank(_bank_options(config))
        self._num_samples = 0
        self._num_mels = 0
        self._hear(np.zeros(config.window_size - config.shift_size, np.float32))

    def accept(self, samples: np.ndarray) -> np.ndarray:
        """Takes samples and returns what is ready."""
        resampled = self._resampler.accept(samples)
        self._num_samples += len(resampled)
        self._hear(resampled)
        return self._ready()

    def finish(self) -> np.ndarray:
        """Adds the silence at the end and returns the last frames."""
        rest = self._resampler.finish()
        self._num_samples += len(rest)
        num_silent = self._config.tail_size
        num_silent += -(self._num_samples + num_silent) % self._config.frame_size
        self._hear(np.concatenate((rest, np.zeros(num_silent, np.float32))))
        return self._ready()

    def _hear(self, samples: np.ndarray) -> None:
        self._bank.accept_waveform(self._config.sample_rate, samples * np.float32(_FULL_SCALE))

    def _ready(self) -> np.ndarray:
        """Frames that are complete; they are taken out of the bank, which would keep them all."""
        num_mels = self._bank.num_frames_ready
        mels = np.empty((num_mels - self._num_mels, self._config.num_mels), np.float32)
        for row, index in enumerate(range(self._num_mels, num_mels)):
            mels[row] = self._bank.get_frame(index)
        self._bank.pop(len(mels))
        self._num_mels = num_mels
        return np.maximum(mels, np.float32(self._config.floor), out=mels)


def _bank_options(config: FrontEndConfig) -> knf.FbankOptions:
    options = knf.FbankOptions()
    frames = options.frame_opts
    frames.samp_freq = config.sample_rate
    frames.dither = 0.0  # the same sound gives the same frames
    frames.snip_edges = True  # a frame is a whole window; our own silence fills the edges
    # The library truncates to whole samples; half a sample more keeps rounding out of it.
    frames.frame_length_ms = 1000 * (config.window_size + 0.5) / config.sample_rate
    frames.frame_shift_ms = 1000 * (config.shift_size + 0.5) / config.sample_rate
    options.mel_opts.num_bins = config.num_mels
    options.mel_opts.low_freq = config.low_frequency
    options.mel_opts.high_freq = config.upper_edge
    options.use_energy = False
    return options
