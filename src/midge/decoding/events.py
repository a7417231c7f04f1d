"""What a stream tells: words that may still change, and segments that are over."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from midge.decoding.decoded import Alternative
from midge.models import TimedWord, Transcript

EndReason = Literal["pause", "length", "silence", "end"]
"""Why a segment ended: a pause after speech; its length; nothing said; the end of the stream."""


@dataclass(frozen=True)
class Partial:
    """What a stream seems to say so far, in the segment that is being heard."""

    words: tuple[TimedWord, ...]
    """The words of the segment; times count from the beginning of the stream."""
    num_committed: int
    """How many words, from the first on, can never change."""
    segment: int
    """Number of the segment, from 0."""
    seconds: float
    """Length of the stream so far."""
    num_cuts: int
    """How often in the segment the best path was committed because its tail was too long."""
    decoded_seconds: float = 0.0
    """How much of the stream has been decoded; the rest waits, or is not yet a whole block."""

    @property
    def committed(self) -> tuple[TimedWord, ...]:
        """The words that can never change."""
        return self.words[: self.num_committed]

    @property
    def tentative(self) -> tuple[TimedWord, ...]:
        """The words that may still change."""
        return self.words[self.num_committed :]

    @property
    def text(self) -> str:
        """All words."""
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True)
class Segment:
    """A part of a stream that is over: its words can no longer change."""

    number: int
    """Its place in the stream, from 0."""
    start: float
    """Seconds from the beginning of the stream."""
    end: float
    """Seconds from the beginning of the stream."""
    transcript: Transcript
    """What was said; times count from the beginning of the stream. Empty if nothing was."""
    reason: EndReason
    """Why it ended."""
    alternatives: tuple[Alternative, ...] = ()
    """The most probable texts, the best first, where they were asked for."""

    @property
    def is_end_of_speech(self) -> bool:
        """Whether the speaker has stopped, and not only paused."""
        return self.reason in ("silence", "end")


def event_json(event: Partial | Segment, num_told: int = 0) -> dict[str, Any]:
    """An event as JSON can hold it.

    A partial result is "partial", with words "committed" and "tentative". A segment with words is
    "final". Nothing said for long is "end_of_speech". The end of the stream, whose last segment
    may be empty, is "final" too.

    Args:
        event: to be told.
        num_told: committed words of a partial result that are left out, from the first on.
    """
    if isinstance(event, Partial):
        return {
            "event": "partial",
            "segment": event.segment,
            "seconds": event.seconds,
            "decoded_seconds": event.decoded_seconds,
            "num_committed": event.num_committed,
            "committed": _words_json(event.words[num_told : event.num_committed]),
            "tentative": _words_json(event.tentative),
            "num_cuts": event.num_cuts,
        }
    found = event.transcript
    return {
        "event": "end_of_speech" if event.reason == "silence" else "final",
        "segment": event.number,
        "start": event.start,
        "end": event.end,
        "reason": event.reason,
        "text": found.text,
        "words": _words_json(found.words),
        "score": found.score if math.isfinite(found.score) else None,
        "alternatives": alternatives_json(event.alternatives),
    }


def alternatives_json(alternatives: Iterable[Alternative]) -> list[dict[str, Any]]:
    """Alternatives as JSON can hold them."""
    return [
        {"text": each.text, "probability": math.exp(each.log_probability)} for each in alternatives
    ]


def _words_json(words: Iterable[TimedWord]) -> list[dict[str, Any]]:
    # Not by `asdict`, which takes twenty times as long.
    return [
        {
            "text": word.text,
            "start": word.start,
            "end": word.end,
            "confidence": word.confidence,
        }
        for word in words
    ]
