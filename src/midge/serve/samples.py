"""Samples as they come over the wire."""

from __future__ import annotations

import numpy as np

from midge.serve.settings import Encoding

LOUDEST = 16.0
"""Floats beyond this are no samples in [-1, 1] that clip a little; they are integers, or noise."""


def samples_of(data: bytes | memoryview, encoding: Encoding) -> np.ndarray:
    """Floats of bytes.

    Args:
        data: whole samples of one channel, little endian.
        encoding: of a sample; 16-bit integers are divided by 32768.

    Returns:
        [num_samples] float32, full scale is [-1, 1].

    Raises:
        ValueError: for floats that are not finite, or far from [-1, 1].

    Example:
        >>> samples_of(bytes([0, 64, 0, 192]), "pcm16")
        array([ 0.5, -0.5], dtype=float32)
    """
    if encoding == "pcm16":
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
    samples = np.frombuffer(data, "<f4").astype(np.float32)
    largest = np.max(np.abs(samples), initial=0.0)
    if not largest <= LOUDEST:  # also NaN
        raise ValueError(f"float32 samples should be in [-1, 1], got {largest:g}")
    return samples
