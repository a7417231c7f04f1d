"""Backward weights of one utterance: all that can still follow a label, and a bound on its best.

`exact` needs two numbers for every destination of a label arc. The *total* is the usual backward
weight: the log-sum over all paths from there to the end. The *peak* is at least the log weight of
the best single label sequence that can still follow, summed over its alignments. One pass over the
frames computes both, in float64 on the CPU.

Shapes: T steps (frames; label positions on a label-dependent lattice), V vocab_size, F flat states
of the label space, L the states of L_T in a step that a label may leave (1, or k).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from midge.alignments import AlignmentLattice, LabelDependent, LabelFrameDependent
from midge.contexts import FiniteContext
from midge.contexts.spaces import Arcs, LabelSpace
from midge.lattices import RecognitionLattice
from midge.lattices.recursion import Recursion, at_step
from midge.lattices.whole import WholeLattice
from midge.semirings import Log, MaxTropical, Semiring
from midge.weights import Scorer, WeightFn
from midge.weights.normalization import arc_weights


class _BestLabel(Semiring):
    """Sums over blank and repeats, the best over new labels: bounds the best label sequence.

    Let best(s) be the largest weight, summed over alignments, of one label sequence from state s
    on. A sequence either waits by a blank, or begins with some label a, so

        best(s) <= blank(s) best(after blank) + max over a of label(s, a) best(after a).

    Recursions over a label space take `sum` over the labels that leave a state, and `plus` to join
    what leaves by different kinds of arcs. No semiring, since the two differ: backward passes only.
    """

    zero = -torch.inf
    one = 0.0

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        return Log.plus(a, b)

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return MaxTropical.sum(x, dim)

    def from_log(self, w: Tensor) -> Tensor:
        return w


_BEST_LABEL = _BestLabel()


def _peak_semiring(alignment: AlignmentLattice) -> Semiring:
    """What bounds the best sequence; on a label-dependent lattice a sequence is one path."""
    return MaxTropical if isinstance(alignment, LabelDependent) else _BEST_LABEL


@dataclass(frozen=True)
class WideLattice:
    """A recognition lattice whose weights are computed in float64, on the CPU."""

    whole: WholeLattice
    """The topology and normalization."""
    weights: WeightFn
    """The weight function, in float64."""

    @property
    def space(self) -> LabelSpace:
        """The states: of the context or, with deduplication, their copies."""
        return self.whole.space

    @property
    def alignment(self) -> AlignmentLattice:
        """When labels may come."""
        return self.whole.alignment

    @property
    def vocab_size(self) -> int:
        """Number of labels."""
        return self.whole.context.vocab_size

    def scorer(self, frames: Tensor) -> Scorer:
        """The scores of all context states at all frames [T, input_size] of one utterance."""
        wide = frames.detach().to("cpu", torch.float64)[None]
        return self.weights.scorer(wide, torch.tensor([len(frames)]), None)

    def arcs_of_state(self, scorer: Scorer, state: int, num_steps: int) -> Arcs:
        """The arcs that leave one context state, at all steps: fields [T, 1, ...]."""
        scores = scorer.score(
            tuple(x[:, :num_steps] for x in scorer.step),
            scorer.batch,
            tuple(x[state : state + 1] for x in scorer.state),
            scorer.shared,
            range(num_steps),
        )
        whole = self.whole
        mask, entered_label = whole.context.arc_mask, whole.entered_label
        arcs = arc_weights(
            scores,
            whole.normalization,
            has_blank=whole.alignment.has_blank,
            arc_mask=None if mask is None else mask[state : state + 1],
            entered_label=None if entered_label is None else entered_label[state : state + 1],
        )
        return whole.finished(arcs, slice(state, state + 1)).map(lambda x: x[0])


def wide_lattice(lattice: RecognitionLattice) -> WideLattice:
    """A float64 view of a lattice.

    Raises:
        ValueError: for a lattice with infinitely many states or paths.
    """
    context, alignment = lattice.context, lattice.alignment
    limit = alignment.max_labels_per_frame if isinstance(alignment, LabelFrameDependent) else 0
    if not isinstance(context, FiniteContext) or limit is None:
        what = "labels per frame" if isinstance(context, FiniteContext) else "histories"
        raise ValueError(
            f"lattice should have finitely many states, got unbounded {what}; decode it by beam "
            "search (midge.beam_search), or build it with FullNGram and a finite "
            "max_labels_per_frame"
        )
    weights = copy.deepcopy(lattice.weights).to("cpu", torch.float64)
    whole = WholeLattice(context, alignment, lattice.normalization, lattice.deduplicate)
    return WideLattice(whole, weights)


@dataclass(frozen=True)
class Completions:
    """What can follow each arc of an utterance.

    Weights of one step are relative to an offset of that step, which cancels where the arcs that
    leave a state are normalized.
    """

    after_blank: Tensor
    """[T, F] total of what follows a blank into each state."""
    after_label: Tensor
    """[T, L, F] total of what follows a label into each state."""
    peak: Tensor
    """[T, L, F] bound on the best single label sequence that follows it."""
    log_z: float
    """The total from the start."""
    largest_weight: float
    """The largest finite magnitude of all numbers above and of the arc weights."""


def completions(lattice: WideLattice, scorer: Scorer, num_frames: int) -> Completions:
    """Runs from the last step to the first.

    Args:
        lattice: the lattice.
        scorer: its scores for one utterance.
        num_frames: the number of frames.
    """
    recursion = lattice.whole.recursion(scorer, torch.tensor([num_frames]))
    alignment, space = recursion.alignment, recursion.space
    kept = _Kept(recursion)
    total = peak = recursion.final(recursion.source.like)
    offset = 0.0
    for steps in reversed(recursion.source.pieces()):
        arcs = recursion.source.arcs(recursion.source.inputs, steps)
        kept.see(*arcs.tensors().values())
        for step in reversed(steps):
            here = at_step(arcs, step - steps.start)
            kept.keep(step, total, peak, here)
            total = alignment.backward(space, total, here, Log)
            peak = alignment.backward(space, peak, here, _peak_semiring(alignment))
            # Both by the same shift, so that they stay comparable.
            total, shift = Log.recentre(total, recursion.num_state_dims)
            peak = peak - shift.view(-1, *[1] * recursion.num_state_dims)
            offset += float(shift)
    begun = (recursion.start(total) + total).flatten()
    return kept.result(float(Log.sum(begun, dim=0)) + offset)


class _Kept:
    """The backward weights of all steps, filled from the end."""

    def __init__(self, recursion: Recursion) -> None:
        self._recursion = recursion
        alignment, space = recursion.alignment, recursion.space
        is_nested = isinstance(alignment, LabelFrameDependent)
        self._num_levels = alignment.num_levels - 1 if is_nested else 1
        self._size = space.start(recursion.source.like).numel()
        num_steps = recursion.source.num_steps
        labels = (num_steps, self._num_levels, self._size)
        self._after_label = torch.empty(labels, dtype=torch.float64)
        self._peak = torch.empty(labels, dtype=torch.float64)
        # On a frame-dependent lattice blank and labels lead to the same place: one copy serves.
        self._after_blank = self._after_label[:, 0]
        if is_nested or isinstance(alignment, LabelDependent):
            self._after_blank = torch.empty(num_steps, self._size, dtype=torch.float64)
        self._largest = 0.0

    def see(self, *tensors: Tensor) -> None:
        """Takes note of the largest finite magnitude."""
        for x in tensors:
            size = x.abs().masked_fill(~x.isfinite(), 0.0)
            self._largest = max(self._largest, float(size.max()) if size.numel() else 0.0)

    def keep(self, step: int, total: Tensor, peak: Tensor, arcs: Arcs) -> None:
        """Keeps what follows the arcs of a step, given what follows the step."""
        alignment, space = self._recursion.alignment, self._recursion.space
        if isinstance(alignment, LabelFrameDependent):
            for kept, after, semiring in (
                (self._after_label, total, Log),
                (self._peak, peak, _BEST_LABEL),
            ):
                inside = _after_labels(space, after, arcs, semiring, self._num_levels)
                for level, weights in enumerate(inside):
                    kept[step, level] = weights.flatten()
            self._after_blank[step] = total.flatten()
        elif isinstance(alignment, LabelDependent):
            active, ended = total.unbind(-2)
            self._after_label[step, 0] = active.flatten()
            self._after_blank[step] = ended.flatten()
            self._peak[step, 0] = peak[..., 0, :].flatten()
        else:
            self._after_label[step, 0] = total.flatten()
            self._peak[step, 0] = peak.flatten()
        self.see(self._after_label[step])

    def result(self, log_z: float) -> Completions:
        """All of it."""
        return Completions(self._after_blank, self._after_label, self._peak, log_z, self._largest)


def _after_labels(
    space: LabelSpace, beta: Tensor, arcs: Arcs, semiring: Semiring, num_levels: int
) -> list[Tensor]:
    """Backward weights after the first, second, ... k-th label of a frame."""
    leave = space.blank_backward(beta, arcs, semiring)
    betas = [space.blank_backward(beta, arcs.at_limit(), semiring)]
    for _ in range(num_levels - 1):
        moved = space.labels_backward(betas[-1], arcs, semiring)
        betas.append(semiring.plus(leave, moved))
    return betas[::-1]
