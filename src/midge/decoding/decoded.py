"""What decoders give: transcripts with alternatives and confidences, cut and joined again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from midge.decoding.confidence import Confidence
from midge.models import TimedWord, Transcript


@dataclass(frozen=True)
class Alternative:
    """What may have been said, too."""

    text: str
    """Its words."""
    log_probability: float
    """log P(labels | recording); with a language model inside the lattice, of the two together."""
    score: float
    """By which alternatives are ranked: the same but for what a fusion adds."""


@dataclass(frozen=True)
class DecodedSegment:
    """A piece of a recording that was searched on its own, and what was found."""

    start: float
    """Seconds from the beginning of the recording."""
    end: float
    """Seconds from the beginning of the recording."""
    alternatives: tuple[Alternative, ...] = ()
    """The best first; empty for max-path."""
    is_proved: bool | None = None
    """Whether nothing else is better, for certain; None where nothing could tell."""
    confidences: tuple[Confidence, ...] = ()
    """Of the segment's words, where they were asked for."""


@dataclass(frozen=True)
class DecodedTranscript(Transcript):
    """A transcript with what else the searches found."""

    segments: tuple[DecodedSegment, ...] = ()
    """In order; all words together are those of the transcript."""


def with_segments(transcript: Transcript, *segments: DecodedSegment) -> DecodedTranscript:
    """The transcript with what was found in its segments."""
    fields = {field.name: getattr(transcript, field.name) for field in _TRANSCRIPT_FIELDS}
    return DecodedTranscript(**fields, segments=segments)


_TRANSCRIPT_FIELDS = dataclasses.fields(Transcript)


def by_text(alternatives: Iterable[Alternative], num_best: int) -> tuple[Alternative, ...]:
    """Alternatives of different texts, the best first.

    Several label sequences may spell one text; their probabilities are summed.

    Args:
        alternatives: any.
        num_best: how many to list at most.
    """
    found: dict[str, Alternative] = {}
    for each in alternatives:
        other = found.get(each.text, Alternative(each.text, -math.inf, -math.inf))
        total = float(np.logaddexp(other.log_probability, each.log_probability))
        score = float(np.logaddexp(other.score, each.score))
        found[each.text] = Alternative(each.text, min(0.0, total), score)  # above 0 is rounding
    return tuple(sorted(found.values(), key=lambda each: -each.score)[:num_best])


def shifted(transcript: Transcript, seconds: float, num_frames: int) -> Transcript:
    """The transcript of a piece, with times from the beginning of its recording.

    Args:
        transcript: of the piece.
        seconds: where the piece starts.
        num_frames: the same in encoder frames.
    """
    changed = dataclasses.replace(
        transcript,
        words=tuple(_later(word, seconds) for word in transcript.words),
        frames=tuple(frame + num_frames for frame in transcript.frames),
    )
    if not isinstance(changed, DecodedTranscript):
        return changed
    segments = tuple(_later(segment, seconds) for segment in changed.segments)
    return dataclasses.replace(changed, segments=segments)


_Timed = TypeVar("_Timed", TimedWord, DecodedSegment)


def _later(timed: _Timed, seconds: float) -> _Timed:
    return dataclasses.replace(timed, start=timed.start + seconds, end=timed.end + seconds)


def joined(transcripts: Sequence[Transcript]) -> Transcript:
    """One transcript of pieces that follow each other; a cut is a space between words.

    The frames of a piece's last labels, in the silence that the front end adds to it, may reach
    into the next piece; the times of words do not.

    Args:
        transcripts: of the pieces, with times from the beginning of the recording.
    """
    fields: dict[str, Any] = {
        "text": " ".join(each.text for each in transcripts if each.text),
        "words": tuple(word for each in transcripts for word in each.words),
        "labels": tuple(label for each in transcripts for label in each.labels),
        "frames": tuple(frame for each in transcripts for frame in each.frames),
        "score": sum(each.score for each in transcripts),
        "seconds": math.fsum(each.seconds for each in transcripts),
    }
    decoded = [each for each in transcripts if isinstance(each, DecodedTranscript)]
    if not decoded:
        return Transcript(**fields)
    segments = tuple(segment for each in decoded for segment in each.segments)
    return DecodedTranscript(**fields, segments=segments)
