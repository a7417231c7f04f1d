"""Recordings that midge makes itself: how they are written, and counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile  # type: ignore[import-untyped]


class Part(NamedTuple):
    """How much of a kind a split has."""

    split: str
    """Train, dev or test."""
    kind: str
    """What is said, as in the manifest field `kind`."""
    num_utterances: int
    """How many."""
    seconds: float
    """Their length together."""


def write_flac(path: Path, samples: np.ndarray, sample_rate: int) -> None:
    """Writes one channel as 16-bit FLAC, and makes the folder if need be.

    Args:
        path: the file; it is replaced.
        samples: [num_samples] in [-1, 1].
        sample_rate: samples per second.

    Raises:
        OSError: if it cannot be written.
    """
    encoded = io.BytesIO()
    soundfile.write(encoded, samples, sample_rate, subtype="PCM_16", format="FLAC")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded.getvalue())
