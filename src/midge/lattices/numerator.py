"""A ∩ y, the alignments of one label string, as a recursion over label positions.

Only three arcs of a position can lie on a path: blank, the next label and, with deduplication, a
repeat of the last one. Their weights [B, N, U + 1] are kept; the rows of all labels from which a
local normalization makes them, [B, N, U + 1, 1 + V], exist only piece by piece. Rows are computed
once per distinct context state of an utterance, of which there are often far fewer than positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from midge.alignments import (
    AlignmentLattice,
    FrameDependent,
    LabelDependent,
    LabelFrameDependent,
)
from midge.contexts import ContextDependency, FiniteContext
from midge.contexts.deduplication import DeduplicatedSpace, UniquePairs
from midge.contexts.spaces import Arcs, LabelSpace, PlainSpace, point
from midge.contexts.strings import LabelString
from midge.lattices.pieces import ArcSource, GradientSums
from midge.lattices.recursion import Recursion, refuse_second_derivative
from midge.lattices.whole import scored_source, with_closing
from midge.weights.base import Scorer
from midge.weights.normalization import Normalization, arc_weights


@dataclass(frozen=True)
class StringBatch:
    """Label strings with their walk through the context."""

    labels: Tensor
    """[B, U] labels, 0 on padding."""
    num_labels: Tensor
    """[B]."""
    states: Tensor
    """[B, U + 1] context state at each position, -1 where there is no arc; any if unbounded."""
    rows: Tensor
    """[B, R] which entry of the scorer's states each of an utterance's distinct states is."""
    row_of_position: Tensor
    """[B, U + 1] which of its utterance's rows a position uses."""
    label_bonus: Tensor | None = None
    """[B, T] further weight of a new label at each frame."""

    @property
    def next_label(self) -> Tensor:
        """[B, U + 1] the label after each position, 0 after the last."""
        return torch.nn.functional.pad(self.labels, (0, 1))

    @property
    def last_label(self) -> Tensor:
        """[B, U + 1] the label before each position, 0 before the first."""
        return torch.nn.functional.pad(self.labels, (1, 0))

    def part(self, first: int, last: int) -> StringBatch:
        """Some of the utterances, without padding that only others need."""
        num_labels = self.num_labels[first:last]
        longest = int(num_labels.max()) if len(num_labels) else 0
        row_of_position = self.row_of_position[first:last, : longest + 1]
        num_rows = 1 + int(row_of_position.max()) if len(num_labels) else 1
        return StringBatch(
            labels=self.labels[first:last, :longest],
            num_labels=num_labels,
            states=self.states[first:last, : longest + 1],
            rows=self.rows[first:last, :num_rows],
            row_of_position=row_of_position,
            label_bonus=None if self.label_bonus is None else self.label_bonus[first:last],
        )


def distinct_states(states: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct context states of each utterance.

    Args:
        states: [B, U + 1] states, each at least 0.

    Returns:
        [B, R] the states, padded by 0, and [B, U + 1] which of them each position is at.
    """
    ordered, place = states.sort(dim=-1)
    is_new = ordered != torch.roll(ordered, 1, dims=-1)
    is_new[:, 0] = False
    row = is_new.long().cumsum(-1)  # [B, U + 1] by rank
    size = 1 + int(row.max()) if row.numel() else 1
    distinct = states.new_zeros(len(states), size).scatter(1, row, ordered)
    return distinct, torch.zeros_like(states).scatter(1, place, row)


@dataclass(frozen=True)
class StringLattice:
    """What is the same for every input: topology and normalization."""

    context: ContextDependency
    """The context dependency."""
    alignment: AlignmentLattice
    """The alignment lattice."""
    normalization: Normalization
    """How scores become weights."""
    deduplicate: bool
    """Whether the CTC transducer stands between."""

    def recursion(self, scorer: Scorer, num_frames: Tensor, strings: StringBatch) -> Recursion:
        """The lattice of a batch and its label strings.

        Args:
            scorer: the scores of the states that `strings.rows` refers to.
            num_frames: [B].
            strings: the label strings.
        """
        space = self._space(strings)
        if isinstance(self.alignment, LabelDependent):
            num_steps = torch.minimum(self.alignment.num_steps(num_frames), strings.num_labels + 1)
            return Recursion(
                self.alignment, space, self._diagonal_source(scorer, strings, num_steps), num_steps
            )
        arcs = self._collected(scorer, num_frames, strings)
        if self.is_skewed(strings):
            arcs, num_steps = _skewed(arcs, num_frames, strings)
            return Recursion(FrameDependent(), space, _kept_source(arcs), num_steps)
        arcs = with_closing(arcs, self.alignment, self.normalization)
        return Recursion(self.alignment, space, _kept_source(arcs), num_frames)

    def is_skewed(self, strings: StringBatch) -> bool:
        """Whether the recursion's steps are diagonals t + u instead of frames.

        So it is where the bound on the labels of a frame cannot be felt.
        """
        if not isinstance(self.alignment, LabelFrameDependent) or self.deduplicate:
            return False
        limit = self.alignment.max_labels_per_frame
        return limit is None or limit > strings.labels.shape[1]

    def _space(self, strings: StringBatch) -> LabelSpace:
        """The label positions; one may end at the last label alone."""
        batch_size, num_positions = strings.states.shape
        device = strings.states.device
        position = torch.arange(num_positions, device=device)
        final = torch.where(position == strings.num_labels[:, None], 0.0, -torch.inf)
        if isinstance(self.context, FiniteContext) and self.context.final_weights is not None:
            weights = self.context.final_weights.to(device)
            final = final + weights[strings.states.clamp(min=0)]
        start = point(num_positions, 0).to(device)
        next_position = torch.where(position + 1 < num_positions, position + 1, -1)[:, None]
        next_position = next_position.expand(batch_size, -1, -1)
        arc_label = strings.next_label[..., None]
        if not self.deduplicate:
            return PlainSpace(LabelString(), next_position, arc_label, start, final)
        pairs = UniquePairs(LabelString(), next_position)
        return DeduplicatedSpace(
            pairs, arc_label, strings.last_label[..., None], start.expand_as(final), final
        )

    def _collected(self, scorer: Scorer, num_frames: Tensor, strings: StringBatch) -> Arcs:
        """The arcs of all positions and frames: [B, T, U + 1] each."""
        gathered = replace(scorer, state=tuple(x[strings.rows] for x in scorer.state))
        longest = int(num_frames.max()) if len(num_frames) else 0
        source = scored_source(
            gathered, longest, strings.rows.numel(), lambda scores: self._select(scores, strings)
        )
        names: list[str] = []
        values = CollectedArcs.apply(source, names, *source.inputs)
        arcs = Arcs(**dict(zip(names, values, strict=True)))
        arcs = replace(arcs, lexical=self._weighted(arcs.lexical, strings))
        if strings.label_bonus is None:
            return arcs
        bonus = strings.label_bonus[:, :longest, None, None]
        return replace(arcs, lexical=arcs.lexical + bonus)

    def _weighted(self, lexical: Tensor, strings: StringBatch) -> Tensor:
        """Next labels [B, n, U + 1, 1] with what the context's own arcs weigh."""
        added = self.context.label_weights if isinstance(self.context, FiniteContext) else None
        if added is None:
            return lexical
        at_position = added.to(lexical)[strings.states.clamp(min=0)]
        column = (strings.next_label - 1).clamp(min=0)[..., None]
        return lexical + at_position.gather(-1, column)[:, None]

    def _select(self, scores: Tensor, strings: StringBatch) -> Arcs:
        """Scores [B, n, R, 1 + V] of distinct states -> arcs [B, n, U + 1] of positions."""
        mask = self.context.arc_mask if isinstance(self.context, FiniteContext) else None
        device = scores.device
        if mask is not None and self.deduplicate:
            return self._select_by_position(scores, strings, mask.to(device))
        if mask is not None:
            mask = mask.to(device)[self._row_states(strings)][:, None]
        arcs = arc_weights(
            scores,
            self.normalization,
            has_blank=self.alignment.has_blank,
            arc_mask=mask,
            entered_label=None,
        )
        rows = strings.row_of_position
        blank = arcs.blank.gather(-1, _beside_steps(rows, arcs.blank))
        repeat = None
        if self.deduplicate:
            repeat = _pick_labels(arcs.lexical, rows, strings.last_label)[..., None]
        lexical = _pick_labels(arcs.lexical, rows, strings.next_label)[..., None]
        return Arcs(blank=blank, lexical=lexical, repeat=repeat)

    def _select_by_position(self, scores: Tensor, strings: StringBatch, mask: Tensor) -> Arcs:
        """As `_select`, where the arcs that leave a state depend on the label that entered it."""
        rows = _beside_steps(strings.row_of_position, scores[..., 0])
        index = rows[..., None].expand(*rows.shape, scores.shape[-1])
        arcs = arc_weights(
            scores.gather(-2, index),
            self.normalization,
            has_blank=self.alignment.has_blank,
            arc_mask=mask[strings.states.clamp(min=0)][:, None],
            entered_label=strings.last_label[:, None, :, None],
        )
        position = torch.arange(rows.shape[-1], device=rows.device).expand_as(strings.states)
        lexical = _pick_labels(arcs.lexical, position, strings.next_label)[..., None]
        return Arcs(**{**arcs.tensors(), "lexical": lexical})

    def _row_states(self, strings: StringBatch) -> Tensor:
        """[B, R] the context state of each row; any for a row that no position uses."""
        states = torch.zeros_like(strings.rows)
        return states.scatter(1, strings.row_of_position, strings.states.clamp(min=0))

    def _diagonal_source(
        self, scorer: Scorer, strings: StringBatch, num_steps: Tensor
    ) -> ArcSource:
        """On a label-dependent lattice step u is at position u: one state per step."""
        longest = int(num_steps.max()) if len(num_steps) else 0
        scores = []
        position_rows = strings.rows.gather(1, strings.row_of_position)
        for step in range(longest):
            one = tuple(x[position_rows[:, step : step + 1]] for x in scorer.state)
            inputs = tuple(x[:, step : step + 1] for x in scorer.step)
            scores.append(
                scorer.score(inputs, scorer.batch, one, scorer.shared, range(step, step + 1))
            )
        if not scores:
            return _kept_source(_no_arcs(strings, scorer))
        row = torch.cat(scores, dim=1)[:, :, 0]  # [B, n, 1 + V]
        mask = self.context.arc_mask if isinstance(self.context, FiniteContext) else None
        states = strings.states[:, :longest].clamp(min=0)
        arcs = arc_weights(
            row[:, None],
            self.normalization,
            has_blank=self.alignment.has_blank,
            arc_mask=None if mask is None else mask.to(row.device)[states][:, None],
            entered_label=None,
        )
        steps = torch.arange(longest, device=row.device).expand(len(row), -1)
        lexical = _pick_labels(arcs.lexical, steps, strings.next_label[:, :longest])
        # Step u has arcs at position u alone.
        num_positions = strings.states.shape[1]
        here = torch.eye(longest, num_positions, dtype=torch.bool, device=row.device)
        blank = torch.where(here, arcs.blank[:, 0, :, None], -torch.inf)
        lexical = torch.where(here, lexical[:, 0, :, None], -torch.inf)[..., None]
        return _kept_source(Arcs(blank=blank, lexical=self._weighted(lexical, strings)))


class CollectedArcs(torch.autograd.Function):
    """The arcs of all steps of a source, whose making is run again for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, source: ArcSource, names: list[str], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Computes piece after piece; `names` is filled with the fields' names."""
        # The arcs of no step at all tell the names and shapes.
        made = source.arcs(inputs, range(0)).tensors()
        names.extend(made)
        whole = [x.new_empty(len(x), source.num_steps, *x.shape[2:]) for x in made.values()]
        for steps in source.pieces():
            piece = source.arcs(inputs, steps).tensors()
            for name, total in zip(names, whole, strict=True):
                total[:, steps.start : steps.stop] = piece[name]
        ctx.source = source
        ctx.save_for_backward(*inputs)
        return tuple(whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Runs the pieces again."""
        source: ArcSource = ctx.source
        inputs = ctx.saved_tensors
        sums = GradientSums(source, inputs, ctx.needs_input_grad[2:])
        for steps in source.pieces():
            with torch.enable_grad():
                leaves = source.leaves(inputs, steps)
                made = list(source.function(leaves, steps).tensors().values())
            cotangents = [grad[:, steps.start : steps.stop] for grad in grads]
            sums.add(made, cotangents, leaves, steps)
        return (None, None, *refuse_second_derivative(sums.result(), *grads, *inputs))


def _kept_source(arcs: Arcs) -> ArcSource:
    """A source of arcs that are there already."""
    tensors = arcs.tensors()

    def function(inputs: tuple[Tensor, ...], steps: range) -> Arcs:
        # The positions that carry the posterior may lie a thousand nats below the best prefix,
        # where float32 is coarse; these sums are cheap, so they are float64.
        return Arcs(**dict(zip(tensors, inputs, strict=True))).map(Tensor.double)

    return ArcSource(
        inputs=tuple(tensors.values()),
        num_step_inputs=len(tensors),
        function=function,
        num_steps=arcs.blank.shape[1],
        piece_size=64,
        dtype=torch.float64,
    )


def _no_arcs(strings: StringBatch, scorer: Scorer) -> Arcs:
    """Arcs of no step at all."""
    shape = (len(strings.states), 0, strings.states.shape[1])
    blank = torch.zeros(shape, dtype=scorer.dtype, device=strings.states.device)
    return Arcs(blank=blank, lexical=blank[..., None])


def _skewed(arcs: Arcs, num_frames: Tensor, strings: StringBatch) -> tuple[Arcs, Tensor]:
    """Unbounded k as a frame-dependent lattice of diagonals d = t + u.

    Both a blank, (t, u) -> (t + 1, u), and a label, (t, u) -> (t, u + 1), lead from diagonal d to
    d + 1, so the arcs of position u at step d are those of frame d - u. A path has T + U steps.
    """
    num_steps = num_frames + strings.num_labels
    longest = int(num_steps.max()) if len(num_steps) else 0
    frame, is_real = diagonal_frames(longest, strings.states.shape[1], num_frames)

    def skew(x: Tensor) -> Tensor:
        if x.shape[1] == 0:
            return x.new_full((len(x), longest, *x.shape[2:]), -torch.inf)
        index = frame.clamp(0, x.shape[1] - 1).view(1, longest, -1, *[1] * (x.dim() - 3))
        moved = x.gather(1, index.expand(len(x), -1, -1, *x.shape[3:]))
        real = is_real.view(*is_real.shape, *[1] * (x.dim() - 3))
        return torch.where(real, moved, -torch.inf)

    return arcs.map(skew), num_steps


def diagonal_frames(
    num_diagonals: int, num_positions: int, num_frames: Tensor
) -> tuple[Tensor, Tensor]:
    """[d, u] the frame d - u of a position on a diagonal, and [B, d, u] whether it is real."""
    diagonal = torch.arange(num_diagonals, device=num_frames.device)[:, None]
    frame = diagonal - torch.arange(num_positions, device=num_frames.device)
    return frame, (frame >= 0) & (frame < num_frames[:, None, None])


def _beside_steps(rows: Tensor, like: Tensor) -> Tensor:
    """[B, U + 1] -> [B, n, U + 1] for the n steps of `like` [B, n, R]."""
    return rows[:, None].expand(-1, like.shape[1], -1)


def _pick_labels(lexical: Tensor, rows: Tensor, label: Tensor) -> Tensor:
    """The weight [B, n, U + 1] of one label [B, U + 1] at rows [B, U + 1] of [B, n, R, V].

    -inf for label 0, which is none.
    """
    index = rows * lexical.shape[-1] + (label - 1).clamp(min=0)
    flat = lexical.flatten(-2)
    return flat.gather(-1, _beside_steps(index, flat)).masked_fill(
        (label == 0)[:, None], -torch.inf
    )
