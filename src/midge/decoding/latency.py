"""Latency, measured: when each word of a simulated stream was shown, and when it last changed.

Time is that of the sound: a word that appears when a chunk has been heard appears at the chunk's
end, as on a machine that takes no time. What a machine does take is measured apart (real-time
factor, final latency). The frame that an alignment gives to a word says nothing here: a model that
revises is late although its alignment is not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from midge.audio import Audio
from midge.data import WordTime
from midge.decoding.errors import align
from midge.decoding.streams import Stream, StreamingDecoder
from midge.models import Transcript

CHUNK_SECONDS = 0.1
"""How much sound a simulated stream hears at a time."""


@dataclass(frozen=True)
class Shown:
    """What a viewer of a stream sees from some time on."""

    seconds: float
    """Since when, in seconds of sound."""
    words: tuple[str, ...]
    """All words, those of earlier segments included."""
    num_committed: int
    """How many of them can never change."""


@dataclass(frozen=True)
class SimulatedStream:
    """A recording that was heard chunk by chunk."""

    shown: tuple[Shown, ...]
    """Every change of what is seen; the last is the final result."""
    transcript: Transcript
    """The final result."""
    final_latency: float
    """Measured: seconds from the end of the sound to the final result, if chunks come in real time
    and wait until those before them are done."""
    real_time_factor: float
    """Measured: seconds of decoding, partial results included, per second of sound; NaN without
    any."""


@dataclass(frozen=True)
class WordDelay:
    """How late a word was that is right in the final result, in seconds after its true end.

    A word that was guessed before it ended has a delay below 0.
    """

    word: str
    """The word."""
    first_shown: float
    """To when it was first shown."""
    last_changed: float
    """To when it was shown for good."""
    committed: float
    """To when it was sure never to change."""


@dataclass(frozen=True)
class Percentiles:
    """Of some measured values; NaN if there are none."""

    p50: float
    """The median."""
    p90: float
    """Nine in ten are at most this."""
    p99: float
    """99 in 100 are at most this."""
    count: int
    """How many values."""

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles:
        """Percentiles of values, interpolated.

        Example:
            >>> Percentiles.of([1.0, 2.0, 3.0]).p50
            2.0
        """
        found = list(values)
        if not found:
            return cls(math.nan, math.nan, math.nan, 0)
        p50, p90, p99 = np.percentile(found, [50, 90, 99]).tolist()
        return cls(p50, p90, p99, len(found))


def simulate(
    decoder: StreamingDecoder,
    audio: Audio,
    *,
    chunk_seconds: float = CHUNK_SECONDS,
    blank_penalty: float = 0.0,
) -> SimulatedStream:
    """Hears a recording chunk by chunk, without endpoints, and looks at the result after each.

    Args:
        decoder: what decodes it.
        audio: the recording.
        chunk_seconds: length of a chunk.
        blank_penalty: of the stream.

    Raises:
        ValueError: if the chunk has no sample.
    """
    size = round(chunk_seconds * audio.sample_rate)
    if size < 1:
        raise ValueError(f"chunk_seconds should be at least one sample, got {chunk_seconds}")
    stream = decoder.stream(audio.sample_rate, blank_penalty=blank_penalty)
    shown = [Shown(0.0, (), 0)]
    done = busy = 0.0
    for first in range(0, len(audio.samples), size):
        started = time.perf_counter()
        stream.accept(audio.samples[first : first + size])
        now = _look(stream)
        taken = time.perf_counter() - started
        done, busy = max(done, stream.seconds) + taken, busy + taken
        if (now.words, now.num_committed) != (shown[-1].words, shown[-1].num_committed):
            shown.append(now)
    started = time.perf_counter()
    transcript = stream.finish()
    taken = time.perf_counter() - started
    done, busy = max(done, stream.seconds) + taken, busy + taken
    factor = busy / stream.seconds if stream.seconds else math.nan
    return SimulatedStream((*shown, _look(stream)), transcript, done - stream.seconds, factor)


def _look(stream: Stream) -> Shown:
    partial = stream.result()
    words = tuple(word.text for word in partial.words)
    return Shown(stream.seconds, words, partial.num_committed)


def word_delays(reference: Sequence[WordTime], shown: Sequence[Shown]) -> list[WordDelay]:
    """The delays of the words that are right in the final result.

    Each look is aligned with the final result by edit distance. A word of the final result is shown
    in a look that has it in its place.

    Args:
        reference: the true words, normalized as the shown ones are, with their times.
        shown: every change of what is seen, at least the final result.

    Example:
        >>> shown = [Shown(0.5, ("TO",), 0), Shown(0.8, ("TWO",), 0), Shown(1.2, ("TWO", "A"), 1)]
        >>> delay, = word_delays([WordTime("TWO", 0.1, 0.4)], shown)
        >>> round(delay.last_changed, 3), round(delay.committed, 3)
        (0.4, 0.8)
    """
    final = shown[-1].words
    first: dict[int, float] = {}
    since: dict[int, float] = {}
    committed: dict[int, float] = {}
    for look in shown:
        places = dict(_equal_places(final, look.words))
        since = {place: since.get(place, look.seconds) for place in places}
        for place, at in places.items():
            first.setdefault(place, look.seconds)
            if at < look.num_committed:
                committed.setdefault(place, look.seconds)
    found = []
    for number, place in _equal_places([word.word for word in reference], final):
        times = (first[place], since[place], committed.get(place, shown[-1].seconds))
        end = reference[number].end
        found.append(WordDelay(final[place], *(seconds - end for seconds in times)))
    return found


def revisions(shown: Sequence[Shown]) -> tuple[int, int]:
    """How many words were shown, and how many of them were later changed or taken back.

    The last word may grow without being changed: it is still being spelled.

    Example:
        >>> looks = [("O",), ("ON",), ("ONE", "T"), ("ONE", "FOUR")]
        >>> revisions([Shown(0.1 * n, words, 0) for n, words in enumerate(looks)])
        (3, 1)
    """
    num_shown = num_changed = 0
    before: tuple[str, ...] = ()
    for look in shown:
        num_kept = sum(1 for _ in _equal_places(before, look.words, may_grow=True))
        num_shown += len(look.words) - num_kept
        num_changed += len(before) - num_kept
        before = look.words
    return num_shown, num_changed


def _equal_places(
    first: Sequence[str], second: Sequence[str], *, may_grow: bool = False
) -> Iterator[tuple[int, int]]:
    """Places of equal words in an alignment; the last of the first may have grown in the second."""
    row = column = 0
    for pair in align(first, second):
        has_grown = (
            may_grow
            and pair.operation == "S"
            and row == len(first) - 1
            and (pair.hypothesis or "").startswith(pair.reference or "")
        )
        if pair.operation == "=" or has_grown:
            yield row, column
        row += pair.reference is not None
        column += pair.hypothesis is not None
