"""Numbers of the log that say whether a model is well: its weights, its rate of labels.

They are read from one utterance of a batch, since the arcs of a whole batch are too many to keep.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from midge.alignments import LabelDependent, LabelFrameDependent
from midge.contexts import FiniteContext
from midge.lattices import RecognitionLattice

_MAX_NUM_ARCS = 2**25
"""Posteriors, or weights, that may be held at once: 128 MB."""
_NUM_FRAMES = 16
"""Frames whose arc weights are looked at."""


@dataclass(frozen=True)
class Diagnostics:
    """How a model does on an utterance."""

    numerator: float
    """Log weight of the alignments of its labels, per label."""
    denominator: float
    """log Z, per label; 0 for local normalization."""
    max_arc_weight: float
    """Largest magnitude of an arc weight before normalization, over some of its frames."""
    labels_per_frame: float | None
    """Expected labels per frame, under the model; None where it cannot be told."""


@torch.no_grad()
def diagnose(lattice: RecognitionLattice, frames: Tensor, labels: Tensor) -> Diagnostics:
    """Looks at an utterance.

    Args:
        lattice: the lattice.
        frames: [num_frames, input_size] its encoder frames.
        labels: [num_labels] its labels.
    """
    num_frames = torch.tensor(len(frames), device=frames.device)
    num_labels = torch.tensor(len(labels), device=frames.device)
    numerator = lattice.shortest_distance(frames, num_frames, labels=labels, num_labels=num_labels)
    denominator = 0.0
    if lattice.needs_denominator:
        denominator = float(lattice.shortest_distance(frames, num_frames))
    return Diagnostics(
        numerator=float(numerator) / max(len(labels), 1),
        denominator=denominator / max(len(labels), 1),
        max_arc_weight=max_arc_weight(lattice, frames, labels),
        labels_per_frame=labels_per_frame(lattice, frames),
    )


@torch.no_grad()
def max_arc_weight(lattice: RecognitionLattice, frames: Tensor, labels: Tensor) -> float:
    """The largest magnitude of an arc weight before normalization.

    Over frames spread evenly along an utterance, and all context states where they are few; else
    those that the labels visit.

    Args:
        lattice: the lattice.
        frames: [num_frames, input_size].
        labels: [num_labels].
    """
    context, weights = lattice.context, lattice.weights
    if not weights.reads_all_frames:
        spread = torch.linspace(0, max(len(frames) - 1, 0), _NUM_FRAMES, device=frames.device)
        frames = frames[spread.round().long().unique()]
    given = frames[None], torch.tensor([len(frames)], device=frames.device)
    if isinstance(context, FiniteContext):
        states = None
        if context.num_states * (1 + context.vocab_size) * _NUM_FRAMES > _MAX_NUM_ARCS:
            states = context.walk_states(labels).clamp(min=0).unique()
        scorer = weights.scorer(*given, states)
        state = scorer.state
    else:
        scorer = weights.history_scorer(*given, labels[None])
        state = tuple(x[None] for x in scorer.state)  # the states of the one utterance
    scores = scorer.score(scorer.step, scorer.batch, state, scorer.shared, range(len(frames)))
    return float(scores.abs().max()) if scores.numel() else 0.0


@torch.no_grad()
def labels_per_frame(lattice: RecognitionLattice, frames: Tensor) -> float | None:
    """The expected number of label arcs per frame, under the model.

    With deduplication the frames in which a label goes on count too.

    Args:
        lattice: the lattice.
        frames: [num_frames, input_size].

    Returns:
        None where there is no whole lattice, or it has too many arcs to hold.
    """
    context, alignment = lattice.context, lattice.alignment
    if isinstance(alignment, LabelDependent) or not isinstance(context, FiniteContext):
        return None
    if isinstance(alignment, LabelFrameDependent) and alignment.max_labels_per_frame is None:
        return None
    if not 0 < len(frames) * context.num_states * (1 + context.vocab_size) <= _MAX_NUM_ARCS:
        return None
    marginals = lattice.arc_marginals(frames, torch.tensor(len(frames), device=frames.device))
    return float(marginals.lexical.sum(dtype=torch.float64)) / len(frames)
