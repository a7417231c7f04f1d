"""One frame of a best-path search, by PyTorch or by the native engine.

Both do the same: score the arcs of the states that are alive, take the best into each state,
recentre, drop states beyond the margin, and write the back-pointers that
`AlignmentLattice.trace` reads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from midge.alignments import AlignmentLattice
from midge.contexts.spaces import Arcs, LabelSpace
from midge.kernels import native, operators
from midge.lattices.batches import Batch
from midge.lattices.fast import FastLattice
from midge.lattices.recursion import at_step
from midge.lattices.search_state import SearchState
from midge.lattices.whole import WholeLattice
from midge.semirings import MaxTropical
from midge.weights import Scorer, WeightFn


class SearchEngine(ABC):
    """Takes streams through frames."""

    @abstractmethod
    def inputs(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, ...]:
        """What the scores need of frames [B, n, input_size]: tensors [B, n, ...].

        The bits of a frame do not depend on the other frames.
        """

    @abstractmethod
    def hear(
        self,
        inputs: tuple[Tensor, ...],
        rows: Tensor,
        first: Tensor,
        count: Tensor,
        state: SearchState,
    ) -> None:
        """Takes some streams through some frames; `state` has room for their pointers.

        Args:
            inputs: of all B streams.
            rows: [R] which streams.
            first: [R] their first frame.
            count: [R] how many frames of each, at least 1.
            state: of all B streams, changed in place.
        """


class ReadableEngine(SearchEngine):
    """The search in PyTorch, for every type, device and weight function.

    Args:
        whole: topology and normalization.
        weights: the weight function.
        margin: how far below the best, in nats, a state may fall.
    """

    def __init__(self, whole: WholeLattice, weights: WeightFn, margin: float) -> None:
        """Embeds the context states."""
        self._weights = weights
        self._margin = margin
        self._alignment: AlignmentLattice = whole.alignment
        self._space: LabelSpace = whole.space
        self._num_states = whole.context.num_states
        nothing = _nothing(weights)
        self._scorer = weights.scorer(nothing.frames, nothing.num_frames, None)
        self._start = torch.tensor([whole.context.start], device=nothing.frames.device)
        # A lattice whose only input is its scores: how they become arcs is all we want of it.
        scores = Scorer(lambda step, *_: step[0], 1, step=(nothing.frames,))
        self._arcs_of_scores = whole.recursion(scores, nothing.num_frames).source.function

    def inputs(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, ...]:
        return self._weights.scorer(frames, num_frames, self._start, _linear_by_frame).step

    def hear(
        self,
        inputs: tuple[Tensor, ...],
        rows: Tensor,
        first: Tensor,
        count: Tensor,
        state: SearchState,
    ) -> None:
        for at in range(int(count.max())):
            going = count > at
            here = tuple(x[rows[going], first[going] + at].unsqueeze(1) for x in inputs)
            self._hear_one(here, rows[going], state)

    def _hear_one(self, inputs: tuple[Tensor, ...], rows: Tensor, state: SearchState) -> None:
        """One frame of some streams, from inputs [R, 1, ...]."""
        alpha = state.alpha[rows]
        after, pointer = self._alignment.best(self._space, alpha, self._arcs(inputs, alpha))
        after, shift = MaxTropical.recentre(after, len(self._space.state_shape))
        state.alpha[rows] = after.masked_fill(after < -self._margin, -torch.inf)
        state.offset[rows] += shift
        places = zip(rows.tolist(), state.tail[rows].tolist(), strict=True)
        for (row, place), each in zip(places, pointer.cpu().unbind(1), strict=True):
            state.pointers[row][place] = each
        state.num_frames[rows] += 1

    def _arcs(self, inputs: tuple[Tensor, ...], alpha: Tensor) -> Arcs:
        """The arcs of one frame."""
        alive = (alpha > -torch.inf).view(len(alpha), self._num_states, -1).any(-1)
        scores = self._scores(inputs, alive)
        return at_step(self._arcs_of_scores((scores,), range(1)), 0)

    def _scores(self, inputs: tuple[Tensor, ...], alive: Tensor) -> Tensor:
        """[R, 1, S, 1 + V] scores; of the states that are alive alone, where that is cheaper."""
        scorer = self._scorer
        num_alive = int(alive.sum(-1).max())
        # Inside a frame of the k-constrained lattice any state may be reached.
        if self._alignment.num_levels > 1 or 4 * num_alive > self._num_states or self._is_heavy:
            return scorer.score(inputs, (), scorer.state, scorer.shared, range(1))
        places = listed(alive)
        chosen = tuple(x[places] for x in scorer.state)
        scores = scorer.score(inputs, (), chosen, scorer.shared, range(1))
        everywhere = scores.new_zeros(len(alive), 1, self._num_states, scores.shape[-1])
        return everywhere.scatter_(2, places[:, None, :, None].expand(scores.shape), scores)

    @property
    def _is_heavy(self) -> bool:
        """Whether to copy a state's tensors would cost more than to score it."""
        return sum(x[:1].numel() for x in self._scorer.state) > self._scorer.num_elements


class NativeEngine(SearchEngine):
    """The search in C++, for what `FastLattice` serves; a stream's bits do not depend on others.

    Args:
        fast: the lattice as the native engine sees it.
        whole: its topology.
        margin: how far below the best, in nats, a state may fall.
    """

    def __init__(self, fast: FastLattice, whole: WholeLattice, margin: float) -> None:
        """Embeds the context states and hands them to the engine."""
        self._weights = fast.weights
        self._start = torch.tensor([whole.context.start])
        places = math.prod(whole.space.state_shape[1:])
        problem = fast.problem(_nothing(fast.weights), native.LOG_Z)
        self._search = native.Search(problem, places, margin)

    def inputs(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, ...]:
        step = self._weights.scorer(frames, num_frames, self._start, operators.linear).step
        return tuple(x.contiguous() for x in step)

    def hear(
        self,
        inputs: tuple[Tensor, ...],
        rows: Tensor,
        first: Tensor,
        count: Tensor,
        state: SearchState,
    ) -> None:
        everywhere = torch.zeros_like(state.num_frames)
        self._search.run(
            inputs[0],
            everywhere.index_put((rows,), first),
            counts := everywhere.index_put((rows,), count),
            state.alpha,
            state.offset,
            state.pointers,
            state.tail.tolist(),
        )
        state.num_frames += counts


def serves_natively(fast: FastLattice, whole: WholeLattice) -> bool:
    """Whether the native engine can search a lattice in float32 on the CPU, and should."""
    parameter = next(fast.weights.parameters(), torch.empty(0))
    return (
        parameter.dtype == torch.float32
        and pointer_type(whole) != torch.int64
        and fast.serves(_nothing(fast.weights), native.LOG_Z)
    )


def _nothing(weights: WeightFn) -> Batch:
    """One utterance without frames, of the weights' type and on their device."""
    parameter = next(weights.parameters(), torch.empty(0))
    no_frames = torch.zeros(1, dtype=torch.int64, device=parameter.device)
    return Batch((1,), parameter.new_zeros(1, 0, weights.input_size), no_frames)


def _linear_by_frame(x: Tensor, weight: Tensor) -> Tensor:
    """`linear`, frame by frame: the bits of torch's product depend on the number of its rows."""
    if x.dim() < 3 or x.shape[1] == 0:
        return nn.functional.linear(x, weight)
    return torch.stack([nn.functional.linear(frame, weight) for frame in x.unbind(1)], dim=1)


def listed(mask: Tensor) -> Tensor:
    """[R, N] bool -> [R, A] the places that are True, ascending, padded with the first of them."""
    size = max(1, int(mask.sum(-1).max()))
    row, place = mask.nonzero(as_tuple=True)
    rank = mask.cumsum(-1)[row, place] - 1
    places = mask.to(torch.uint8).argmax(-1, keepdim=True).repeat(1, size)
    places[row, rank] = place
    return places


def pointer_type(whole: WholeLattice) -> torch.dtype:
    """The smallest integers that hold label * F + source, and level * F + source."""
    num_states = math.prod(whole.space.state_shape)
    largest = num_states * (1 + max(whole.context.vocab_size, whole.alignment.num_levels))
    for dtype in (torch.int16, torch.int32):
        if largest <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64
