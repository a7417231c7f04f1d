"""The segment of a stream that is being heard: all that is remembered of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from midge.encoders.base import State
from midge.lattices import BestPathSearch, Hypothesis, SearchState
from midge.models import Recognizer, TimedWord, Transcript
from midge.models.transcripts import transcript_of


class OpenSegment:
    """States of encoder and search, and the words that can no longer change.

    Committed words are taken out of the search, so that what it does at each step does not grow
    with the length of the segment. Nothing else grows either, but for the encoder's memory if its
    left context is unlimited.

    Args:
        recognizer: the model.
        search: over its lattice.
        number: its place in the stream.
        first: its first frame, counted from the beginning of the stream.
    """

    def __init__(
        self, recognizer: Recognizer, search: BestPathSearch, number: int, first: int
    ) -> None:
        self.number = number
        self.first = first
        self.num_inputs = 0
        """How many frames the encoder has heard."""
        self.encoder_state: State = recognizer.encoder.start(1)
        self._search_state: SearchState = search.start(1)
        self._found: Hypothesis | None = None
        self._recognizer = recognizer
        self._search = search
        self._words: list[TimedWord] = []
        self._labels: list[int] = []
        self._frames: list[int] = []

    @property
    def search_state(self) -> SearchState:
        """Of the search; given back after each step."""
        return self._search_state

    @search_state.setter
    def search_state(self, state: SearchState) -> None:
        self._search_state = state
        self._found = None

    @property
    def num_frames(self) -> int:
        """How many frames the search has heard."""
        return int(self.search_state.num_frames[0])

    @property
    def num_cuts(self) -> int:
        """How often a long tail was committed before its rivals had died."""
        return int(self.search_state.num_cuts[0])

    def take_committed(self) -> None:
        """Takes the words that are complete and committed out of the search."""
        spelling = self.search_state.committed[0]
        words = self._recognizer.tokens.words(spelling.labels)
        # What comes after the last label of a word is committed too: the word cannot grow.
        complete = [word for word in words if word.last + 1 < len(spelling.labels)]
        if not complete:
            return
        count = complete[-1].last + 1
        labels, frames = spelling.labels[:count], spelling.frames[:count]
        self._words += self._transcript(labels, frames, 0.0, math.inf).words
        self._labels += labels
        self._frames += frames
        del spelling.labels[:count], spelling.frames[:count]
        self._found = None

    def words(self, limit: float = math.inf) -> tuple[tuple[TimedWord, ...], int]:
        """All words as they seem now, and how many of them, from the first, are committed.

        Args:
            limit: length of the stream, if it is known.
        """
        found = self._partial()
        tail = self._transcript(found.labels, found.frames, found.weight, limit).words
        return (*self._words, *tail), len(self._words)

    def last_label_frame(self) -> int | None:
        """The frame of the segment at which the best path emits its last label, if it has any."""
        found = self._partial()
        frames = found.frames or self._frames[-1:]
        return frames[-1] if frames else None

    def close(self, start: float, end: float, limit: float) -> Transcript:
        """What was said if the segment ends here.

        Args:
            start: when it starts, in seconds.
            end: when it ends.
            limit: no word ends later.
        """
        found = self._search.finish(self.search_state)[0]
        labels = (*self._labels, *found.labels)
        frames = (*self._frames, *found.frames)
        transcript = self._transcript(labels, frames, found.weight, limit)
        return dataclasses.replace(transcript, seconds=end - start)

    def _partial(self) -> Hypothesis:
        """The best path now. To trace it back is not free, so it is done once per step."""
        if self._found is None:
            self._found = self._search.partial(self._search_state)[0]
        return self._found

    def _transcript(
        self, labels: Sequence[int], frames: Sequence[int], score: float, limit: float
    ) -> Transcript:
        """With times and frames from the beginning of the stream."""
        tokens, front_end = self._recognizer.tokens, self._recognizer.front_end
        absolute = [self.first + frame for frame in frames]
        return transcript_of(labels, absolute, score, limit, tokens, front_end)


class Inputs:
    """Encoder frames of a stream that wait for a block, and the last ones that were taken.

    Args:
        num_kept: how many of the last taken frames can be heard again.
        nothing: [0, feature_size].
    """

    def __init__(self, num_kept: int, nothing: Tensor) -> None:
        self._num_kept = num_kept
        self._waiting = self._taken = nothing

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, frames: Tensor) -> None:
        """Adds frames [n, feature_size]."""
        if len(frames):
            self._waiting = torch.cat((self._waiting, frames))

    def take(self, count: int) -> Tensor:
        """The next frames [count or less, feature_size]."""
        # Copies: a view would keep the whole piece in memory.
        frames, self._waiting = self._waiting[:count].clone(), self._waiting[count:].clone()
        if self._num_kept:
            taken = torch.cat((self._taken, frames))
            self._taken = taken[max(0, len(taken) - self._num_kept) :]
        return frames

    def rewind(self, count: int) -> None:
        """Puts the last frames that were taken back; at most `num_kept`."""
        assert count <= len(self._taken)
        kept = len(self._taken) - count
        self._waiting = torch.cat((self._taken[kept:], self._waiting))
        self._taken = self._taken[:kept]
