"""A, the whole recognition lattice, as a recursion over the states of a finite context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from midge.alignments import AlignmentLattice, LabelFrameDependent
from midge.contexts import FiniteContext
from midge.contexts.deduplication import (
    DeduplicatedSpace,
    GroupedPairs,
    UniquePairs,
    entering_labels,
)
from midge.contexts.spaces import Arcs, LabelSpace, PlainSpace, point
from midge.lattices.pieces import PIECE_ELEMENTS, ArcSource
from midge.lattices.recursion import Recursion
from midge.weights.base import Scorer
from midge.weights.normalization import Normalization, arc_weights


@dataclass(frozen=True)
class WholeLattice:
    """What is the same for every input: topology and normalization."""

    context: FiniteContext
    """The context dependency."""
    alignment: AlignmentLattice
    """The alignment lattice; a finite number of labels per frame."""
    normalization: Normalization
    """How scores become weights."""
    deduplicate: bool
    """Whether the CTC transducer stands between."""

    @cached_property
    def entered_label(self) -> Tensor | None:
        """[S, E] the labels that enter each state, with deduplication."""
        return entering_labels(self.context)[0] if self.deduplicate else None

    @cached_property
    def space(self) -> LabelSpace:
        """The states that forward weights run over."""
        context = self.context
        next_state = context.next_state_table()
        arc_label = torch.arange(1, context.vocab_size + 1).expand_as(next_state)
        start = point(context.num_states, context.start)
        final = context.final_weights
        final = torch.zeros(context.num_states) if final is None else final
        if not self.deduplicate:
            return PlainSpace(context, next_state, arc_label, start, final)
        entered_label, entered_slot = entering_labels(context)
        pairs = (
            UniquePairs(context, next_state)
            if entered_label.shape[-1] == 1
            else GroupedPairs(next_state, entered_slot)
        )
        return DeduplicatedSpace(pairs, arc_label, entered_label, start, final)

    def recursion(self, scorer: Scorer, num_frames: Tensor) -> Recursion:
        """The lattice of a batch.

        Args:
            scorer: the scores of all context states.
            num_frames: [B].
        """
        num_steps = self.alignment.num_steps(num_frames)
        longest = int(num_steps.max()) if len(num_steps) else 0
        device = num_frames.device
        mask = self.context.arc_mask
        source = scored_source(
            scorer,
            longest,
            self.context.num_states * len(num_steps),
            lambda scores: self.finished(
                arc_weights(
                    scores,
                    self.normalization,
                    has_blank=self.alignment.has_blank,
                    arc_mask=None if mask is None else mask.to(device),
                    entered_label=(
                        None if self.entered_label is None else self.entered_label.to(device)
                    ),
                )
            ),
        )
        return Recursion(self.alignment, self.space, source, num_steps)

    def finished(self, arcs: Arcs, states: slice = slice(None)) -> Arcs:
        """Normalized arcs [B, n, S, ...] with what the context's own arcs weigh, and closing blank.

        Args:
            arcs: of some states.
            states: which.
        """
        added = self.context.label_weights
        if added is not None:
            arcs = replace(arcs, lexical=arcs.lexical + added[states].to(arcs.lexical))
        return with_closing(arcs, self.alignment, self.normalization)


def scored_source(
    scorer: Scorer, num_steps: int, num_rows: int, finish: Callable[[Tensor], Arcs]
) -> ArcSource:
    """A source whose arcs are `finish` of the scores of each piece.

    Args:
        scorer: the scores.
        num_steps: number of steps.
        num_rows: number of states of all utterances together, for the size of a piece.
        finish: scores [B, n, S, 1 + V] -> arcs.
    """
    ends = [0]
    for group in (scorer.step, scorer.batch, scorer.state, scorer.shared):
        ends.append(ends[-1] + len(group))

    def function(inputs: tuple[Tensor, ...], steps: range) -> Arcs:
        step, batch, state, shared = (
            inputs[first:last] for first, last in zip(ends, ends[1:], strict=False)
        )
        return finish(scorer.score(step, batch, state, shared, steps))

    return ArcSource(
        inputs=(*scorer.step, *scorer.batch, *scorer.state, *scorer.shared),
        num_step_inputs=len(scorer.step),
        function=function,
        num_steps=num_steps,
        piece_size=max(1, PIECE_ELEMENTS // max(1, num_rows * scorer.num_elements)),
        dtype=scorer.dtype,
    )


def with_closing(arcs: Arcs, alignment: AlignmentLattice, normalization: Normalization) -> Arcs:
    """Adds the blank that is certain: of a locally normalized lattice after k labels in a frame."""
    if normalization == "global" or not isinstance(alignment, LabelFrameDependent):
        return arcs
    blank = arcs.blank if arcs.label_scale is None else arcs.blank[..., 0]
    return Arcs(**arcs.tensors(), closing=torch.zeros_like(blank))
