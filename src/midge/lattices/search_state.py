"""What a search remembers of its streams, and what it reports of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from midge.alignments import NO_SYMBOL
from midge.contexts import BLANK

FIRST_CAPACITY = 32
"""Frames of back-pointers that a new state has room for; doubled when they do not suffice."""


@dataclass(frozen=True)
class Hypothesis:
    """The best path of one stream, as far as it has been heard."""

    labels: tuple[int, ...]
    """The lexical labels: without blanks and, with deduplication, without repeats."""
    frames: tuple[int, ...]
    """The frame that emits each label; with deduplication the first of its run."""
    num_committed: int
    """How many labels, from the first on, can never change."""
    num_frames: int
    """Number of frames heard."""
    num_cuts: int
    """How often a tail longer than `max_tail` was committed before its rivals had died."""
    weight: float
    """Log weight of the path; -inf if no path is left, and then only committed labels are here."""


@dataclass
class Spelling:
    """The labels that a stream's path spells, frame after frame."""

    labels: list[int] = field(default_factory=list)
    """The labels, as in `Hypothesis`."""
    frames: list[int] = field(default_factory=list)
    """The frame of each."""
    last_symbol: int = BLANK
    """The last symbol of the path, which with deduplication may be repeated."""

    def extend(self, first: int, width: int, symbols: Sequence[int], deduplicate: bool) -> None:
        """Adds what frames emit.

        Args:
            first: number of the first of them.
            width: how many symbols each has.
            symbols: in the order of the path, blanks included; `NO_SYMBOL` fills up.
            deduplicate: whether repeats do not count.
        """
        labels, frames, last = self.labels, self.frames, self.last_symbol
        for place, symbol in enumerate(symbols):
            if symbol == NO_SYMBOL:
                continue
            if symbol != BLANK and not (deduplicate and symbol == last):
                labels.append(symbol)
                frames.append(first + place // width)
            last = symbol
        self.last_symbol = last

    def copy(self) -> Spelling:
        """An independent copy."""
        return Spelling(self.labels.copy(), self.frames.copy(), self.last_symbol)


@dataclass
class SearchState:
    """All that a search knows of some streams; row b of each field is stream b.

    `BestPathSearch.step` changes it in place. Streams may be joined to be stepped together, and
    split again.
    """

    alpha: Tensor
    """[B, *state_shape] weight of the best way to each state, less `offset`; -inf if dropped."""
    offset: Tensor
    """[B] float64: the sum of what was taken off to keep the best state at 0."""
    num_frames: Tensor
    """[B] int64 number of frames heard."""
    num_settled: Tensor
    """[B] int64 number of frames whose symbols are committed."""
    num_cuts: Tensor
    """[B] int64 as in `Hypothesis`."""
    pointers: list[Tensor]
    """B times [capacity, num_levels, F] back-pointers of the frames that are not settled, first one
    first; what lies behind them means nothing. A stream's stay where they are when it is joined
    with others. They are followed one by one, so they are on the CPU."""
    committed: list[Spelling]
    """B spellings of what is settled."""

    @property
    def tail(self) -> Tensor:
        """[B] number of frames that are not settled."""
        return self.num_frames - self.num_settled

    def reserve(self, row: int, capacity: int) -> None:
        """Makes room for the pointers of so many frames; twice the old room at least."""
        old = self.pointers[row]
        if capacity > len(old):
            new = old.new_zeros(max(capacity, 2 * len(old)), *old.shape[1:])
            new[: len(old)] = old
            self.pointers[row] = new

    def forget(self, row: int, count: int, tail: int) -> None:
        """Drops the first pointers of a stream whose tail is so long; gives room back."""
        old = self.pointers[row]
        capacity = max(FIRST_CAPACITY, tail - count)
        new = old if 2 * capacity >= len(old) else old.new_zeros(capacity, *old.shape[1:])
        new[: tail - count] = old[count:tail].clone()
        self.pointers[row] = new

    @classmethod
    def join(cls, states: Sequence[SearchState]) -> SearchState:
        """One state with the streams of several, in order; the given ones are used up.

        Args:
            states: at least one, all of the same search.

        Raises:
            ValueError: if there is none.
        """
        if not states:
            raise ValueError("states should hold at least one state, got none")
        return cls(
            alpha=torch.cat([state.alpha for state in states]),
            offset=torch.cat([state.offset for state in states]),
            num_frames=torch.cat([state.num_frames for state in states]),
            num_settled=torch.cat([state.num_settled for state in states]),
            num_cuts=torch.cat([state.num_cuts for state in states]),
            pointers=[each for state in states for each in state.pointers],
            committed=[each for state in states for each in state.committed],
        )

    def split(self, sizes: Sequence[int] | None = None) -> list[SearchState]:
        """The streams in several states, the opposite of `join`; this one is used up.

        Args:
            sizes: number of streams of each; by default 1.

        Raises:
            ValueError: if the sizes do not sum to the number of streams.
        """
        sizes = [1] * len(self.committed) if sizes is None else sizes
        if sum(sizes) != len(self.committed) or min(sizes, default=0) < 0:
            raise ValueError(
                f"sizes should be numbers of streams that sum to {len(self.committed)}, "
                f"got {list(sizes)}"
            )
        each = list(sizes)
        rows = [slice(end - size, end) for end, size in zip(accumulate(each), each, strict=True)]
        return [
            SearchState(alpha, offset, heard, settled, cuts, self.pointers[at], self.committed[at])
            for at, alpha, offset, heard, settled, cuts in zip(
                rows,
                self.alpha.split(each),
                self.offset.split(each),
                self.num_frames.split(each),
                self.num_settled.split(each),
                self.num_cuts.split(each),
                strict=True,
            )
        ]
