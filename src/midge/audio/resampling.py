"""Resampling: the same samples whether a signal comes whole or in pieces."""

from __future__ import annotations

import numpy as np
import soxr  # type: ignore[import-untyped]


def as_samples(samples: np.ndarray) -> np.ndarray:
    """Checks samples and makes them float32.

    Args:
        samples: [num_samples] one channel of floating-point numbers, full scale [-1, 1].

    Raises:
        ValueError: if they are integers, of several channels, or not finite.
    """
    array = np.asarray(samples)
    if array.ndim != 1:
        raise ValueError(f"samples should be one channel [num_samples], got shape {array.shape}")
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(
            f"samples should be floating-point numbers in [-1, 1], got {array.dtype}; "
            "divide 16-bit samples by 32768"
        )
    array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise ValueError("samples should be finite, got NaN or an infinity")
    return array


def num_resampled(num_samples: int, from_rate: int, to_rate: int) -> int:
    """How many samples `resample` gives: num_samples * to_rate / from_rate, halves rounded up.

    Example:
        >>> num_resampled(11025, 11025, 16000), num_resampled(3, 32000, 16000)
        (16000, 2)
    """
    return (2 * num_samples * to_rate + from_rate) // (2 * from_rate)


def resample(samples: np.ndarray, from_rate: int, to_rate: int) -> np.ndarray:
    """Resamples a whole signal.

    Args:
        samples: [num_samples] at `from_rate`.
        from_rate: samples per second.
        to_rate: samples per second wanted.

    Returns:
        [num_resampled(num_samples, from_rate, to_rate)] float32; frequencies that the lower of
        the two rates cannot hold are gone.
    """
    resampler = Resampler(from_rate, to_rate)
    head = resampler.accept(samples)
    return np.concatenate((head, resampler.finish()))


class Resampler:
    """Resamples a signal that comes in pieces.

    What `accept` and `finish` return, joined, is what `resample` gives for the pieces joined, to
    the bit. Samples come out a few milliseconds of signal after they went in.

    Args:
        from_rate: samples per second of what comes.
        to_rate: samples per second wanted.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        check_rate("from_rate", from_rate)
        check_rate("to_rate", to_rate)
        self._stream = (
            None
            if from_rate == to_rate
            else soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality="HQ")
        )
        self._is_finished = False

    def accept(self, samples: np.ndarray) -> np.ndarray:
        """Takes a piece [num_samples] of any size and returns what is ready."""
        return self._resampled(as_samples(samples), is_last=False)

    def finish(self) -> np.ndarray:
        """Returns the rest; nothing can be accepted afterwards."""
        rest = self._resampled(np.zeros(0, np.float32), is_last=True)
        self._is_finished = True
        return rest

    def _resampled(self, samples: np.ndarray, is_last: bool) -> np.ndarray:
        if self._is_finished:
            raise ValueError("this resampler has finished; make a new one for a new signal")
        if self._stream is None:
            return samples
        return self._stream.resample_chunk(samples, last=is_last)


def check_rate(name: str, rate: int) -> None:
    """Refuses what is no sample rate.

    Raises:
        ValueError: names the argument.
    """
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or rate < 1:
        raise ValueError(f"{name} should be a positive whole number of hertz, got {rate!r}")
