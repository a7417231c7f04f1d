"""Recordings cut into pieces at quiet places, and batches of them transcribed by the best path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from midge.audio import Audio
from midge.models import Recognizer, Transcript

MAX_SECONDS = 30.0
"""A longer recording is cut. A full-context encoder takes time and memory by the square of it."""
BATCH_SECONDS = 120.0
"""Audio of a batch, padding included."""
_WINDOW_SECONDS = 0.1


@dataclass(frozen=True)
class Piece:
    """A stretch of a recording."""

    start: float
    """Seconds from the beginning of the recording."""
    audio: Audio


def cut_at_pauses(blocks: Iterable[Audio], max_seconds: float = MAX_SECONDS) -> Iterator[Piece]:
    """Cuts a recording into pieces that a batch can hold.

    A piece ends in the middle of the quietest 0.1 s of the second half of what it may hold. What
    fits is left whole.

    Args:
        blocks: the recording, of one sample rate.
        max_seconds: length of the longest piece; at least 1.

    Yields:
        At least one piece; joined they are the recording.
    """
    check_max_seconds(max_seconds)
    held: list[np.ndarray] = []
    num_before = num_held = rate = 0
    for block in blocks:
        rate = block.sample_rate
        limit = int(max_seconds * rate)
        held.append(block.samples)
        num_held += len(block.samples)
        while num_held > limit:
            samples = np.concatenate(held)
            cut = _quietest(samples[:limit], rate)
            yield Piece(num_before / rate, Audio(samples[:cut], rate))
            held = [samples[cut:]]
            num_before, num_held = num_before + cut, num_held - cut
    if num_held or not num_before:
        samples = np.concatenate(held) if held else np.zeros(0, np.float32)
        yield Piece(num_before / max(rate, 1), Audio(samples, rate))


def check_max_seconds(max_seconds: float) -> None:
    """Refuses a length that no piece can have.

    Raises:
        ValueError: if it is below 1 second.
    """
    if not max_seconds >= 1:
        raise ValueError(f"max_seconds should be at least 1, got {max_seconds}")


def _quietest(samples: np.ndarray, rate: int) -> int:
    """The middle of the window of least energy in the second half."""
    size = max(1, int(_WINDOW_SECONDS * rate))
    first = len(samples) // 2
    energy = np.cumsum(np.square(samples[first:], dtype=np.float64))
    sums = energy[size:] - energy[:-size]
    return first + int(np.argmin(sums)) + size // 2


def transcribe_batch(recognizer: Recognizer, audio: Sequence[Audio]) -> list[Transcript]:
    """Transcribes recordings in one batch.

    Args:
        recognizer: the model.
        audio: the recordings, as they are; none is fine.
    """
    if not audio:
        return []
    features = [recognizer.front_end.features(each.samples, each.sample_rate) for each in audio]
    return recognizer.transcribe_features(features, [each.duration for each in audio])
