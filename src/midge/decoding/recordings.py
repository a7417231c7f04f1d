"""Recordings of any length to transcripts: long ones are cut at quiet places, many go in batches.

At no time is more held than one batch of pieces, so a recording of hours takes no more memory than
one of minutes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from midge.audio import Audio, audio_blocks
from midge.models import Recognizer, TimedWord, Transcript

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
    _check_max_seconds(max_seconds)
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


def _check_max_seconds(max_seconds: float) -> None:
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


def transcribe_files(
    recognizer: Recognizer,
    paths: Sequence[Path],
    *,
    max_seconds: float = MAX_SECONDS,
    batch_seconds: float = BATCH_SECONDS,
    progress: Callable[[float], object] | None = None,
) -> Iterator[tuple[Path, Transcript | Exception]]:
    """Transcribes audio files; one that cannot be read does not stop the others.

    Args:
        recognizer: the model.
        paths: the files.
        max_seconds: longer recordings are cut, see `cut_at_pauses`.
        batch_seconds: how much audio goes together.
        progress: called with the seconds of audio that were done, again and again.

    Yields:
        Each path in order with its transcript, or with the error (ValueError, OSError) of a file
        that cannot be read; as soon as it is known.
    """
    _check_max_seconds(max_seconds)  # here it is no fault of a file
    open_files: dict[int, list[Transcript]] = {}
    failed: dict[int, Exception] = {}
    told = 0
    for batch in _batches(paths, max_seconds, batch_seconds, failed):
        decoded = _transcribe_pieces(recognizer, [piece for _, piece in batch])
        for (number, _), transcript in zip(batch, decoded, strict=True):
            open_files.setdefault(number, []).append(transcript)
        if progress is not None:
            progress(sum(piece.audio.duration for _, piece in batch))
        # The last file of a batch may go on in the next.
        while told < batch[-1][0]:
            yield paths[told], failed.get(told) or joined(open_files[told])
            open_files.pop(told, None)
            told += 1
    for number in range(told, len(paths)):
        yield paths[number], failed.get(number) or joined(open_files[number])


def _batches(
    paths: Sequence[Path],
    max_seconds: float,
    batch_seconds: float,
    failed: dict[int, Exception],
) -> Iterator[list[tuple[int, Piece]]]:
    """Pieces with the number of their file, as many as a batch holds; errors go to `failed`."""
    batch: list[tuple[int, Piece]] = []
    longest = 0.0
    for number, path in enumerate(paths):
        try:
            for piece in cut_at_pauses(audio_blocks(path), max_seconds):
                longest = max(longest, piece.audio.duration)
                if batch and longest * (len(batch) + 1) > batch_seconds:
                    yield batch
                    batch, longest = [], piece.audio.duration
                batch.append((number, piece))
        except (ValueError, OSError) as error:
            failed[number] = error
    if batch:
        yield batch


def _transcribe_pieces(recognizer: Recognizer, pieces: Sequence[Piece]) -> list[Transcript]:
    transcripts = transcribe_batch(recognizer, [piece.audio for piece in pieces])
    frame_seconds = recognizer.front_end.frame_seconds
    return [
        _shifted(transcript, piece.start, round(piece.start / frame_seconds))
        for transcript, piece in zip(transcripts, pieces, strict=True)
    ]


def _shifted(transcript: Transcript, seconds: float, num_frames: int) -> Transcript:
    return dataclasses.replace(
        transcript,
        words=tuple(_later(word, seconds) for word in transcript.words),
        frames=tuple(frame + num_frames for frame in transcript.frames),
    )


def _later(word: TimedWord, seconds: float) -> TimedWord:
    return dataclasses.replace(word, start=word.start + seconds, end=word.end + seconds)


def joined(transcripts: Sequence[Transcript]) -> Transcript:
    """One transcript of pieces that follow each other; a cut is a space between words.

    The frames of a piece's last labels, in the silence that the front end adds to it, may reach
    into the next piece; the times of words do not.

    Args:
        transcripts: of the pieces, with times from the beginning of the recording.
    """
    return Transcript(
        text=" ".join(each.text for each in transcripts if each.text),
        words=tuple(word for each in transcripts for word in each.words),
        labels=tuple(label for each in transcripts for label in each.labels),
        frames=tuple(frame for each in transcripts for frame in each.frames),
        score=sum(each.score for each in transcripts),
        seconds=math.fsum(each.seconds for each in transcripts),
    )
