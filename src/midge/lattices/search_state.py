"""What a search remembers of its streams, and what it reports of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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

    def append(self, frame: int, symbols: Iterable[int], deduplicate: bool) -> None:
        """Adds what one frame emits, blanks included."""
        for symbol in symbols:
            if symbol == NO_SYMBOL:
                continue
            if symbol != BLANK and not (deduplicate and symbol == self.last_symbol):
                self.labels.append(symbol)
                self.frames.append(frame)
            self.last_symbol = symbol

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
    pointers: Tensor
    """[B, capacity, num_pointers, F] back-pointers of the frames that are not settled, first one
    first; what lies behind them means nothing."""
    committed: list[Spelling]
    """B spellings of what is settled."""

    @property
    def tail(self) -> Tensor:
        """[B] number of frames that are not settled."""
        return self.num_frames - self.num_settled

    def reserve(self, capacity: int) -> None:
        """Makes room for the pointers of so many frames; twice the old room at least."""
        size = self.pointers.shape[1]
        if capacity > size:
            self.pointers = _resized(self.pointers, max(capacity, 2 * size))

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
        tails = torch.cat([state.tail for state in states])
        longest = int(tails.max()) if len(tails) else 0
        capacity = max(FIRST_CAPACITY, longest)
        return cls(
            alpha=torch.cat([state.alpha for state in states]),
            offset=torch.cat([state.offset for state in states]),
            num_frames=torch.cat([state.num_frames for state in states]),
            num_settled=torch.cat([state.num_settled for state in states]),
            num_cuts=torch.cat([state.num_cuts for state in states]),
            pointers=torch.cat([_resized(state.pointers, capacity) for state in states]),
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
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        return [self._part(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]

    def _part(self, rows: slice) -> SearchState:
        """Some of the streams."""
        tail = self.tail[rows]
        capacity = max(FIRST_CAPACITY, int(tail.max()) if len(tail) else 0)
        return SearchState(
            alpha=self.alpha[rows].clone(),
            offset=self.offset[rows].clone(),
            num_frames=self.num_frames[rows].clone(),
            num_settled=self.num_settled[rows].clone(),
            num_cuts=self.num_cuts[rows].clone(),
            pointers=_resized(self.pointers[rows], capacity).clone(),
            committed=self.committed[rows],
        )


def _resized(pointers: Tensor, capacity: int) -> Tensor:
    """Pointers [B, any, ...] with room for so many frames; of what they hold, what fits."""
    missing = capacity - pointers.shape[1]
    if missing <= 0:
        return pointers[:, :capacity]
    room = pointers.new_zeros(len(pointers), missing, *pointers.shape[2:])
    return torch.cat([pointers, room], dim=1)
