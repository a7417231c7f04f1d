"""The states of alignment lattices, one by one (paper, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from midge.alignments import (
    AlignmentLattice,
    FrameDependent,
    LabelDependent,
    LabelFrameDependent,
)

Key = tuple[int, ...]
"""A state of L_T in the paper's numbering: (t,), (t, n) or (u,)."""


@dataclass(frozen=True)
class Place:
    """A state of L_T. All labels lead from it to one state, and so does blank."""

    key: Key
    """Its name."""
    step: int = 0
    """The step whose arcs leave it: a frame, or a label position."""
    after_label: Key | None = None
    """Where a label leads; None if none leaves."""
    after_blank: Key | None = None
    """Where blank leads; None if none leaves."""
    is_limit: bool = False
    """Whether only blank leaves because the frame has had its labels (n = k)."""


def alignment_places(alignment: AlignmentLattice, num_frames: int) -> list[Place]:
    """The states of L_T in topological order: the start first, the one final state last.

    With unbounded labels per frame a label leads from t back to t: the only cycles there are.
    """
    if num_frames < 0:
        raise ValueError(f"num_frames should be at least 0, got {num_frames}")
    if isinstance(alignment, FrameDependent):
        return _frame_places(num_frames, alignment.allow_blank)
    if isinstance(alignment, LabelFrameDependent):
        limit = alignment.max_labels_per_frame
        if limit is None:
            return _looping_places(num_frames)
        return _frame_and_label_places(num_frames, limit)
    if isinstance(alignment, LabelDependent):
        return _label_places(int(alignment.num_steps(torch.tensor(num_frames))))
    raise ValueError(f"alignment should be one of midge's three, got {type(alignment).__name__}")


def _frame_places(num_frames: int, allow_blank: bool) -> list[Place]:
    places = [
        Place((t,), t, after_label=(t + 1,), after_blank=(t + 1,) if allow_blank else None)
        for t in range(num_frames)
    ]
    return [*places, Place((num_frames,))]


def _frame_and_label_places(num_frames: int, limit: int) -> list[Place]:
    places = [
        Place(
            (t, n),
            t,
            after_label=(t, n + 1) if n < limit else None,
            after_blank=(t + 1, 0),
            is_limit=n == limit,
        )
        for t in range(num_frames)
        for n in range(limit + 1)
    ]
    return [*places, Place((num_frames, 0))]


def _looping_places(num_frames: int) -> list[Place]:
    places = [Place((t,), t, after_label=(t,), after_blank=(t + 1,)) for t in range(num_frames)]
    return [*places, Place((num_frames,))]


def _label_places(max_num_labels: int) -> list[Place]:
    places = [
        Place((u,), u, after_label=(u + 1,), after_blank=(max_num_labels,))
        for u in range(max_num_labels)
    ]
    return [*places, Place((max_num_labels,))]
