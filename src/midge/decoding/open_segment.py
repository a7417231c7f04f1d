"""The segment of a stream that is being heard: all that is remembered of it."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from midge.decoding.confidence import Confidence, with_confidence
from midge.decoding.decoded import DecodedSegment, by_text, with_segments
from midge.decoding.errors import align
from midge.decoding.late_decoding import LateDecoding
from midge.decoding.live_alternatives import AlternativesSearch, LiveAlternatives
from midge.decoding.live_posteriors import LiveConfidence
from midge.encoders.base import State
from midge.lattices import BestPathSearch, Hypothesis, SearchState
from midge.models import Recognizer, TimedWord, Transcript
from midge.models.transcripts import transcript_of


class OpenSegment:
    """States of encoder and search, and the words that can no longer change.

    Committed words are taken out of the search, so that what it does at each step does not grow
    with the length of the segment. Nothing else grows either, but for the encoder's memory if its
    left context is unlimited, and for its frames if another search decodes them at the end.

    Args:
        recognizer: the model.
        search: over its lattice.
        number: its place in the stream.
        first: its first frame, counted from the beginning of the stream.
        confidence: what says how sure words are, where it is asked for.
        alternatives: what lists alternatives, where they are asked for.
        late: what decodes it once more at its end, if anything does. Until then no word counts as
            committed.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        search: BestPathSearch,
        number: int,
        first: int,
        confidence: LiveConfidence | None = None,
        alternatives: LiveAlternatives | None = None,
        late: LateDecoding | None = None,
    ) -> None:
        self.number = number
        self.first = first
        self.num_inputs = 0
        """How many frames the encoder has heard."""
        self.encoder_state: State = recognizer.encoder.start(1)
        self._search_state: SearchState = search.start(1)
        self._found = Hypothesis((), (), 0, 0, 0, 0.0)
        self._recognizer = recognizer
        self._search = search
        self._words: list[TimedWord] = []
        self._sure: list[Confidence] = []
        self._labels: list[int] = []
        self._frames: list[int] = []
        self._confidence = confidence
        self._alternatives = alternatives
        self._late = late
        self._looked = _Look((), (), -1, [])

    @property
    def search_state(self) -> SearchState:
        """Of the search."""
        return self._search_state

    def step(self, state: SearchState, found: Hypothesis, frames: Tensor) -> None:
        """Takes what a step of the search gave.

        Args:
            state: where the search is now.
            found: the best path now, from that state.
            frames: [n, output_size] encoder frames that were heard.
        """
        self._search_state = state
        self._found = found
        self._hear(frames)

    @property
    def num_frames(self) -> int:
        """How many frames the search has heard."""
        return self._found.num_frames

    @property
    def num_cuts(self) -> int:
        """How often a long tail was committed before its rivals had died."""
        return self._found.num_cuts

    def _hear(self, frames: Tensor) -> None:
        """Keeps encoder frames [n, output_size] that the search has heard, where they are needed.

        What is too old is forgotten: there the best path stands.
        """
        for kept in (self._confidence, self._alternatives):
            if kept is not None:
                kept.window.hear(frames)
        if self._late is not None:
            self._late.hear(frames)
        if self._alternatives is not None and (begin := self._alternatives.overflow) is not None:
            self._alternatives.window.begin_at(begin)
        if self._confidence is not None and (begin := self._confidence.overflow) is not None:
            found = self._found
            values = self._values(found, is_for_good=True)
            texts = self._texts(found.labels)
            num_older = max(0, len(texts) - len(self._texts(self._since(begin, found))))
            older = zip(texts[:num_older], values[:num_older], strict=True)
            self._confidence.shorten(begin, older)

    def take_committed(self) -> None:
        """Takes the words that are complete and committed out of the search."""
        spelling = self.search_state.committed[0]
        words = self._recognizer.tokens.words(spelling.labels)
        # What comes after the last label of a word is committed too: the word cannot grow.
        complete = [word for word in words if word.last + 1 < len(spelling.labels)]
        if not complete:
            return
        values = self._values(self._found, is_for_good=True)
        count = complete[-1].last + 1
        labels, frames = spelling.labels[:count], spelling.frames[:count]
        taken = self._transcript(labels, frames, 0.0, math.inf).words
        self._words += _with_values(taken, values[: len(taken)])
        self._sure += values[: len(taken)]
        self._labels += labels
        self._frames += frames
        del spelling.labels[:count], spelling.frames[:count]
        self._found = _without_first(self._found, count)
        if self._confidence is not None:
            window, left = self._confidence.window, self._found
            window.begin_at(max(window.first, frames[-1]))
            self._confidence.forget(len(taken))
            self._looked = _Look(left.labels, left.frames, left.num_frames, values[len(taken) :])

    def words(
        self, limit: float = math.inf, *, is_sure: bool = True
    ) -> tuple[tuple[TimedWord, ...], int]:
        """All words as they seem now, and how many of them, from the first, are committed.

        Args:
            limit: length of the stream, if it is known.
            is_sure: whether confidences are those of now, which costs a look, or those of the last
                look, which words that are new since then have none of.
        """
        found = self._found
        tail = self._transcript(found.labels, found.frames, found.weight, limit).words
        values = self._values(found) if is_sure else self._last_values(found)
        words = (*self._words, *_with_values(tail, values))
        return words, len(self._words) if self._late is None else 0

    def last_label_frame(self) -> int | None:
        """The frame of the segment at which the best path emits its last label, if it has any."""
        found = self._found
        frames = found.frames or self._frames[-1:]
        return frames[-1] if frames else None

    def close(self, start: float, end: float, limit: float, num_best: int | None = 0) -> Transcript:
        """What was said if the segment ends here.

        Args:
            start: when it starts, in seconds.
            end: when it ends.
            limit: no word ends later.
            num_best: how many texts to list as alternatives where another search decodes it; None
                is what that search lists. Segments without have an `alternatives_search`.
        """
        if self._late is not None:
            return self._decoded(self._late, start, end, limit, num_best)
        found = self._search.finish(self.search_state)[0]
        labels = (*self._labels, *found.labels)
        frames = (*self._frames, *found.frames)
        transcript = self._transcript(labels, frames, found.weight, limit)
        transcript = dataclasses.replace(transcript, seconds=end - start)
        if self._confidence is None:
            return transcript
        sure = (*self._sure, *self._values(found, is_for_good=True))
        words = with_confidence(transcript.words, sure)
        segment = DecodedSegment(start, end, confidences=sure)
        return with_segments(dataclasses.replace(transcript, words=words), segment)

    def _decoded(
        self, late: LateDecoding, start: float, end: float, limit: float, num_best: int | None
    ) -> Transcript:
        """The same by another search, over all frames."""
        decoded = late.decoded(math.inf)
        (segment,) = decoded.segments
        transcript = self._transcript(decoded.labels, decoded.frames, decoded.score, limit)
        words = _with_values(transcript.words, segment.confidences)
        transcript = dataclasses.replace(transcript, words=words, seconds=end - start)
        alternatives = segment.alternatives
        if num_best is not None:
            alternatives = by_text(alternatives, num_best)
        segment = dataclasses.replace(segment, start=start, end=end, alternatives=alternatives)
        return with_segments(transcript, segment)

    def alternatives_search(self) -> AlternativesSearch | None:
        """What finds the most probable texts if the segment ends here, where they are asked for."""
        if self._alternatives is None:
            return None
        found = self._search.finish(self.search_state)[0]
        window = self._alternatives.window
        settled, tentative = self._before(window.first, found)
        state = window.state(settled, tentative)
        return AlternativesSearch(self.number, self._alternatives, (*settled, *tentative), state)

    def _values(self, found: Hypothesis, *, is_for_good: bool = False) -> list[Confidence]:
        """Confidences of the words of a path that are not committed; none if not asked for.

        A look costs more than a step of the search, so there is one for each different path.

        Args:
            found: the path.
            is_for_good: whether they have to be of the present frame, whoever looked before.
        """
        if self._confidence is None:
            return []
        if not self._looked.is_of(found, is_for_good):
            window = self._confidence.window
            state = window.state(*self._before(window.first, found))
            inside = self._since(window.first, found)
            values = self._confidence.values(inside, state, self._texts(found.labels))
            self._looked = _Look(found.labels, found.frames, found.num_frames, values)
        return self._looked.values

    def _last_values(self, found: Hypothesis) -> list[Confidence | None]:
        """What the last look said of the words of a path; None of those that it did not see."""
        if self._confidence is None:
            return []
        values: list[Confidence | None] = []
        known = iter(self._looked.values)
        for pair in align(self._texts(self._looked.labels), self._texts(found.labels)):
            before = None if pair.reference is None else next(known)
            if pair.hypothesis is not None:
                values.append(before if pair.operation == "=" else None)
        return values

    def _before(self, frame: int, found: Hypothesis) -> tuple[Sequence[int], Sequence[int]]:
        """The labels of a path before a frame: those that were taken out, and the others."""
        settled = self._labels[: bisect_left(self._frames, frame)]
        return settled, found.labels[: bisect_left(found.frames, frame)]

    def _since(self, frame: int, found: Hypothesis) -> list[int]:
        """The labels of a path from a frame on."""
        settled = self._labels[bisect_left(self._frames, frame) :]
        return [*settled, *found.labels[bisect_left(found.frames, frame) :]]

    def _texts(self, labels: Sequence[int]) -> list[str]:
        return [word.text for word in self._recognizer.tokens.words(labels)]

    def _transcript(
        self, labels: Sequence[int], frames: Sequence[int], score: float, limit: float
    ) -> Transcript:
        """With times and frames from the beginning of the stream."""
        tokens, front_end = self._recognizer.tokens, self._recognizer.front_end
        absolute = [self.first + frame for frame in frames]
        return transcript_of(labels, absolute, score, limit, tokens, front_end)


@dataclass(frozen=True)
class _Look:
    """Confidences of a path, and when they were computed."""

    labels: tuple[int, ...]
    frames: tuple[int, ...]
    num_frames: int
    values: list[Confidence]

    def is_of(self, found: Hypothesis, is_for_good: bool) -> bool:
        """Whether it still holds."""
        is_same = (self.labels, self.frames) == (found.labels, found.frames)
        return is_same and (not is_for_good or self.num_frames == found.num_frames)


def _without_first(found: Hypothesis, count: int) -> Hypothesis:
    """A path without its first labels, which are committed."""
    return dataclasses.replace(
        found,
        labels=found.labels[count:],
        frames=found.frames[count:],
        num_committed=found.num_committed - count,
    )


def _with_values(
    words: Sequence[TimedWord], values: Sequence[Confidence | None]
) -> tuple[TimedWord, ...]:
    """Words with their confidences, where there are any."""
    if not values:
        return tuple(words)
    pairs = zip(words, values, strict=True)
    return tuple(word if x is None else with_confidence((word,), (x,))[0] for word, x in pairs)


class Inputs:
    """Encoder frames of a stream that wait for a block, and the last ones that were taken.

    Args:
        num_kept: how many of the last taken frames can be heard again.
    """

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept
        self._waiting: list[Tensor] = []
        self._taken: deque[Tensor] = deque(maxlen=num_kept)

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, frames: Tensor) -> None:
        """Adds frames [n, feature_size]."""
        self._waiting += frames.unbind()

    def take(self, count: int) -> list[Tensor]:
        """The next frames, [feature_size] each; `count` or less."""
        frames, self._waiting = self._waiting[:count], self._waiting[count:]
        self._taken += frames
        return frames

    def rewind(self, count: int) -> None:
        """Puts the last frames that were taken back; at most `num_kept`."""
        assert count <= len(self._taken)
        self._waiting[:0] = [self._taken.pop() for _ in range(count)][::-1]
