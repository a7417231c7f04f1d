"""What a room and a microphone do to sound, for augmentation."""

from __future__ import annotations

import numpy as np

_OCTAVES = np.array([125.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0, 8000.0])
"""Hertz, where the response of a microphone is given; in between it is interpolated."""

NUM_OCTAVES = len(_OCTAVES)
"""How many gains make a response."""


def coloured(samples: np.ndarray, sample_rate: int, gains: np.ndarray) -> np.ndarray:
    """Sound as another microphone hears it: a smooth response over frequency, without delay.

    Args:
        samples: [num_samples] float32.
        sample_rate: its rate.
        gains: [NUM_OCTAVES] decibels at 125 Hz, 250 Hz and so on, an octave apart; below and above
            them the first and the last holds.

    Returns:
        [num_samples] float32.
    """
    if not len(samples):
        return samples
    # What the response spreads, well under a tenth of a second, must not wrap around.
    size = transform_size(len(samples) + sample_rate // 10)
    frequencies = np.fft.rfftfreq(size, 1 / sample_rate)
    octave = np.log2(np.maximum(frequencies, _OCTAVES[0]))
    response = 10 ** (np.interp(octave, np.log2(_OCTAVES), gains) / 20)
    return _filtered(samples, response, size)


def reverberated(
    samples: np.ndarray, sample_rate: int, seconds: float, ratio: float, noise: np.ndarray
) -> np.ndarray:
    """Sound in a room: itself, and echoes that die away as noise does, by 60 dB in some time.

    Args:
        samples: [num_samples] float32.
        sample_rate: its rate.
        seconds: until the echoes are 60 dB weaker.
        ratio: decibels by which the sound itself has more energy than its echoes.
        noise: [any] standard normal draws, at least seconds * sample_rate of them.

    Returns:
        [num_samples] float32; echoes after the end are cut off.
    """
    num_echoes = max(1, round(seconds * sample_rate))
    times = np.arange(1, num_echoes + 1) / num_echoes
    echoes = noise[:num_echoes] * 10 ** (-3 * times)
    echoes *= 10 ** (-ratio / 20) / max(float(np.linalg.norm(echoes)), 1e-9)
    if not len(samples):
        return samples
    size = transform_size(len(samples) + num_echoes)
    response = np.fft.rfft(np.concatenate(([1.0], echoes)), size)
    return _filtered(samples, response, size)


def _filtered(samples: np.ndarray, response: np.ndarray, size: int) -> np.ndarray:
    found = np.fft.irfft(np.fft.rfft(samples, size) * response, size)[: len(samples)]
    return found.astype(np.float32)


def transform_size(least: int) -> int:
    """The next number of samples from `least` (1 or more) on that transforms fast."""
    power = 1 << (least - 1).bit_length()
    return min(size for size in (power * 5 // 8, power * 3 // 4, power) if size >= least)
