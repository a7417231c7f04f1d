"""Sum-path decoding, exact and certified: the most probable label sequences, with a proof.

Max-path decoding finds the best *alignment*; the most probable label sequence may be another one,
whose probability is spread over many alignments. With a finite context the posterior mass of all
sequences that begin with a prefix is computable (`prefixes`), and so is a bound on the best single
one of them. Best-first search over prefixes is then exact: it may stop when the n-th best complete
sequence found is at least as probable as the bound of every open prefix.

The search begins along the max-path sequence, so its answer is never less probable than that, even
where the budget runs out.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from midge.alignments import FrameDependent, LabelDependent
from midge.decoding.completions import WideLattice, completions, wide_lattice
from midge.decoding.prefixes import Array, PrefixArcs, StateArcs, log_sum
from midge.lattices import RecognitionLattice
from midge.lattices.batches import checked_batch


@dataclass(frozen=True)
class LabelSequence:
    """A label sequence with its exact posterior probability."""

    labels: tuple[int, ...]
    """Labels in 1..vocab_size."""
    log_probability: float
    """log P(labels | frames), summed over all alignments."""


@dataclass(frozen=True)
class SumPath:
    """The most probable label sequences of one utterance, and what is known of all others."""

    sequences: tuple[LabelSequence, ...]
    """The most probable first; fewer than asked for if there are no more, none without a path."""
    is_proved: bool
    """Whether these are for certain the most probable ones, as many as were asked for.

    Two that are closer than `rounding` may stand in either order."""
    num_proved: int
    """How many of them, from the first, are certain: no sequence outside the list beats them."""
    log_open_bound: float
    """No sequence that the search has not seen has a larger log probability than this."""
    log_unexplored: float
    """Log posterior mass of all sequences that the search has not seen."""
    log_z: float
    """log Z, the log-sum over all paths; 0 but for rounding with local normalization."""
    rounding: float
    """How far rounding may have moved a logarithm here, at the worst; the proof allows for it."""
    num_expansions: int
    """Number of prefixes whose continuations were computed."""
    seconds: float
    """Time it took, backward weights included."""
    has_one_path_each: bool = False
    """Whether every label sequence of the lattice has one path at most, as on a label-dependent
    lattice or without blank: then the best path is the answer, and no search was needed."""

    @property
    def labels(self) -> list[int]:
        """The labels of the most probable sequence; empty without a path."""
        return list(self.sequences[0].labels) if self.sequences else []

    @property
    def log_probability(self) -> float:
        """The log posterior probability of the most probable sequence; -inf without a path."""
        return self.sequences[0].log_probability if self.sequences else -np.inf


def sum_path(
    lattice: RecognitionLattice,
    frames: Tensor,
    num_frames: Tensor,
    *,
    num_best: int = 1,
    max_expansions: int | None = 1000,
    max_seconds: float | None = None,
) -> Any:
    """The most probable label sequences, each summed over all its alignments.

    Weights, sums and the search are float64 on the CPU, whatever the lattice is in. Memory is two
    numbers per frame and state, and the arcs of the states that the search visits.

    Where each label sequence has one path, as on a label-dependent lattice or without blank, none
    of this is needed: the best path is the answer. The bound is then exact, and following that
    path is the whole search; the result says so (`SumPath.has_one_path_each`).

    Args:
        lattice: a lattice with finitely many states.
        frames: [*batch, max_num_frames, input_size].
        num_frames: [*batch] integers.
        num_best: how many sequences to find, at least 1.
        max_expansions: how many prefixes of an utterance to expand, at least 1; None is no limit.
            The max-path sequence is always followed to its end.
        max_seconds: for how long to search an utterance; None is no limit.

    Returns:
        A `SumPath` for frames without batch dims, else a list of them, nested like the batch.

    Raises:
        ValueError: for a lattice with unbounded history or labels per frame, and for arguments
            that do not fit.

    Example:
        >>> import midge
        >>> context = midge.FullNGram(vocab_size=1, context_size=0)
        >>> lattice = midge.RecognitionLattice(
        ...     context, midge.FrameDependent(), midge.TableWeights(context)
        ... )
        >>> frames = torch.tensor([[0.5, 0.0], [0.5, 0.0]])  # blank is the better arc twice
        >>> lattice.shortest_path(frames, torch.tensor(2)).labels()
        []
        >>> found = sum_path(lattice, frames, torch.tensor(2))
        >>> found.labels, round(float(np.exp(found.log_probability)), 2), found.is_proved
        ([1], 0.47, True)
    """
    budget = _Budget(num_best, max_expansions, max_seconds)
    wide = wide_lattice(lattice)
    is_single = has_one_path_each(lattice)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        batch = checked_batch(frames, num_frames, None, None, lattice.context.vocab_size)
        paths = lattice.shortest_path(frames, num_frames)
        best_labels = _flattened(paths.labels(), num_dims=len(batch.shape))
        found = [
            _Search(wide, utterance[: int(count)], is_single, budget).run(labels)
            for utterance, count, labels in zip(
                batch.frames, batch.num_frames, best_labels, strict=True
            )
        ]
    for number, result in enumerate(found):
        if not result.log_z < np.inf:
            raise ValueError(
                "arc weights should be finite or -inf, got NaN or +inf in utterance "
                f"{number}; look for it in frames and in the lattice's parameters"
            )
    return _nested(iter(found), batch.shape)


def has_one_path_each(lattice: RecognitionLattice) -> bool:
    """Whether every label sequence has at most one path, so that max-path and sum-path are one."""
    alignment = lattice.alignment
    if isinstance(alignment, LabelDependent):
        return True
    is_frame_by_frame = isinstance(alignment, FrameDependent) and not alignment.allow_blank
    return is_frame_by_frame and not lattice.deduplicate


@dataclass(frozen=True)
class _Budget:
    """How much to search for, and how long."""

    num_best: int
    max_expansions: int | None
    max_seconds: float | None

    def __post_init__(self) -> None:
        if self.num_best < 1:
            raise ValueError(f"num_best should be at least 1, got {self.num_best}")
        if self.max_expansions is not None and self.max_expansions < 1:
            raise ValueError(
                f"max_expansions should be at least 1 or None, got {self.max_expansions}"
            )
        if self.max_seconds is not None and not self.max_seconds >= 0:
            raise ValueError(f"max_seconds should be at least 0 or None, got {self.max_seconds}")


@dataclass(frozen=True)
class _Prefix:
    """A label prefix, as a link to the one before it."""

    parent: _Prefix | None
    label: int

    def labels(self) -> tuple[int, ...]:
        backward: list[int] = []
        at = self
        while at.parent is not None:
            backward.append(at.label)
            at = at.parent
        return tuple(backward[::-1])


class _Expanded:
    """A prefix with the continuations that are still open.

    Its forward weights serve to compute those of a continuation that is taken; they go when the
    last one is. The arcs of its state are not kept here but looked up, for they are large.
    """

    def __init__(self, prefix: _Prefix, state: int, arcs: StateArcs, forward: Array) -> None:
        self.prefix = prefix
        self._state = state
        self._forward = forward
        self.complete = arcs.complete(forward)
        """The log posterior probability of the prefix as a whole sequence."""
        self.masses = arcs.masses(forward)
        """[V] log posterior mass of each open continuation; -inf for those taken."""
        # A bound computed above its mass is rounding.
        self._bounds = np.minimum(arcs.bounds(forward), self.masses)

    @property
    def bound(self) -> float:
        """The largest bound of an open continuation."""
        return float(self._bounds.max())

    @property
    def best_label(self) -> int:
        """The continuation of that bound."""
        return 1 + int(self._bounds.argmax())

    def take(self, label: int, all_arcs: PrefixArcs) -> _Expanded:
        """Takes one continuation out, expanded."""
        self.masses[label - 1] = self._bounds[label - 1] = -np.inf
        own = all_arcs[self._state]
        state = int(own.destination[label - 1])
        arcs = all_arcs[state]
        forward = arcs.enter(own.entry(self._forward, label))
        return _Expanded(_Prefix(self.prefix, label), state, arcs, forward)


class _Search:
    """Best-first search over the prefixes of one utterance.

    Args:
        lattice: the lattice.
        frames: [num_frames, input_size].
        is_single: whether a label sequence has one path only.
        budget: when to stop.
    """

    def __init__(
        self, lattice: WideLattice, frames: Tensor, is_single: bool, budget: _Budget
    ) -> None:
        self._started = time.monotonic()
        self._budget = budget
        scorer = lattice.scorer(frames)
        after = completions(lattice, scorer, len(frames))
        self._arcs = PrefixArcs(lattice, scorer, after)
        self._log_z = after.log_z
        self._num_arcs = max(1, len(frames) * (1 + after.after_label.shape[1]))
        self._per_arc = lattice.vocab_size + 64 * (1.0 + after.largest_weight)
        self._is_single = is_single
        self._num_expansions = 0
        self._ticket = itertools.count()
        self._open: list[tuple[float, int, _Expanded]] = []
        self._found: list[tuple[float, int, _Prefix]] = []

    def run(self, first: Sequence[int]) -> SumPath:
        """Follows one sequence to its end, then searches until proof or the end of the budget."""
        if np.isfinite(self._log_z):
            self._follow(first)
            while self._open and not self._is_proved() and self._may_go_on():
                _, _, node = heapq.heappop(self._open)
                taken = node.take(node.best_label, self._arcs)
                self._push(node)
                self._visit(taken)
                self._push(taken)
        return self._result()

    def _follow(self, labels: Sequence[int]) -> None:
        """Expands every prefix of a sequence."""
        start = self._arcs[self._arcs.start]
        node = _Expanded(_Prefix(None, 0), self._arcs.start, start, start.begin())
        self._visit(node)
        for label in labels:
            taken = node.take(label, self._arcs)
            self._push(node)
            self._visit(taken)
            node = taken
        self._push(node)

    def _visit(self, node: _Expanded) -> None:
        """Counts an expansion, and keeps the prefix itself if it is among the best so far."""
        self._num_expansions += 1
        if node.complete == -np.inf:
            return
        entry = (node.complete, -next(self._ticket), node.prefix)
        if len(self._found) < self._budget.num_best:
            heapq.heappush(self._found, entry)
        else:
            heapq.heappushpop(self._found, entry)

    def _push(self, node: _Expanded) -> None:
        """Puts a prefix on the heap if it has open continuations."""
        if node.bound > -np.inf:
            heapq.heappush(self._open, (-node.bound, next(self._ticket), node))

    @property
    def _open_bound(self) -> float:
        return -self._open[0][0] if self._open else -np.inf

    def _is_proved(self) -> bool:
        if len(self._found) < self._budget.num_best:
            return False
        return self._found[0][0] >= self._least()

    def _least(self) -> float:
        """The log probability from which on a sequence found is proved."""
        if not self._open:
            return -np.inf
        # Where a sequence is a path, the bound is the best path's weight, equal up to rounding to
        # what is found by following it: asking for more would never end on ties.
        return self._open_bound + (-self._rounding if self._is_single else self._rounding)

    @property
    def _rounding(self) -> float:
        """How far rounding moves a logarithm of this search at most.

        A mass is a sum of products along paths. All terms are positive, so nothing cancels, and
        relative errors add up along a path of at most (k + 1) T arcs. One arc brings a sum over the
        arcs that leave a state, at most V roundings; about ten additions of arc and backward
        weights, whose largest magnitude is M; and about four additions of logarithms as large as
        that of the probabilities compared. Each rounds by half a unit in the last place. 64 M
        instead of 10 M leaves room for the weights themselves: they are computed for all states at
        once, and again for each state visited, and may differ in the last bits of a sum over
        hundreds of hidden units.
        """
        depth = -self._found[0][0] if self._found else 0.0
        per_arc = self._per_arc + 4.0 * max(depth, 0.0)
        return float(np.finfo(np.float64).eps * self._num_arcs * per_arc)

    def _may_go_on(self) -> bool:
        limit, seconds = self._budget.max_expansions, self._budget.max_seconds
        if limit is not None and self._num_expansions >= limit:
            return False
        return seconds is None or time.monotonic() - self._started < seconds

    def _result(self) -> SumPath:
        found = sorted(self._found, key=lambda entry: (-entry[0], -entry[1]))
        sequences = tuple(LabelSequence(prefix.labels(), value) for value, _, prefix in found)
        least = self._least()
        unexplored = np.array([log_sum(node.masses, axis=0) for _, _, node in self._open])
        return SumPath(
            sequences=sequences,
            is_proved=not self._open or self._is_proved(),
            num_proved=sum(each.log_probability >= least for each in sequences),
            log_open_bound=self._open_bound,
            log_unexplored=float(log_sum(unexplored, axis=0)),
            log_z=self._log_z,
            rounding=self._rounding,
            num_expansions=self._num_expansions,
            seconds=time.monotonic() - self._started,
            has_one_path_each=self._is_single,
        )


def _flattened(labels: Any, num_dims: int) -> list[list[int]]:
    """Label sequences nested like a batch, as one list of them."""
    if num_dims == 0:
        return [labels]
    return [sequence for part in labels for sequence in _flattened(part, num_dims - 1)]


def _nested(results: Iterator[SumPath], shape: tuple[int, ...]) -> Any:
    """The results nested like the batch."""
    if not shape:
        return next(results)
    return [_nested(results, shape[1:]) for _ in range(shape[0])]
