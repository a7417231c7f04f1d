"""What was said, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midge.audio import FrontEnd
from midge.tokens import Tokens


@dataclass(frozen=True)
class TimedWord:
    """A word with its place in a recording."""

    text: str
    start: float
    """Seconds from the beginning."""
    end: float
    """Seconds from the beginning."""
    confidence: float | None = None
    """Posterior probability that the word is right; None where it was not asked for."""


@dataclass(frozen=True)
class Transcript:
    """What a recognizer made of a recording."""

    text: str
    words: tuple[TimedWord, ...]
    labels: tuple[int, ...]
    """What the words are spelled by."""
    frames: tuple[int, ...]
    """The encoder frame that emitted each label."""
    score: float
    """Log weight of the path; of a locally normalized model its log probability."""
    seconds: float
    """Length of the recording."""


def transcript_of(
    labels: Sequence[int],
    frames: Sequence[int],
    score: float,
    seconds: float,
    tokens: Tokens,
    front_end: FrontEnd,
) -> Transcript:
    """Words and their times from labels and the frames that emitted them.

    A word begins with the frame of its first label and ends with that of its last. Times beyond
    the recording (a label in the silence that the front end adds) are cut to it.
    """

    def ending(index: int) -> float:
        return min(front_end.frame_time(frames[index]), seconds)

    words = []
    for word in tokens.words(labels):
        start = max(ending(word.first) - front_end.frame_seconds, 0.0)
        words.append(TimedWord(word.text, start, max(ending(word.last), start)))
    text = " ".join(word.text for word in words)
    return Transcript(text, tuple(words), tuple(labels), tuple(frames), score, seconds)
