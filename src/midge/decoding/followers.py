"""What may follow the label prefixes of a beam: backward weights, and where prefixes find theirs.

Shapes: P prefixes, V vocab_size, F flat states of the label space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from midge.alignments import LabelDependent, LabelFrameDependent
from midge.contexts import FiniteContext
from midge.contexts.deduplication import entering_labels
from midge.decoding.completions import Completions, WideLattice, completions, wide_lattice
from midge.decoding.fusion import Array
from midge.lattices import RecognitionLattice


@dataclass(frozen=True)
class After:
    """Backward weights after the arcs of one place of L_T, for flat states; None is 0 for all."""

    blank: Array | None
    """[F]"""
    label: Array | None
    """[F]"""

    def inside(self) -> After:
        """Inside a frame, where all that grows has come by a label."""
        return After(self.label, self.label)


NOTHING = After(None, None)


class FlatStates:
    """Where prefixes stand among the states that backward weights are of."""

    def __init__(self, lattice: RecognitionLattice) -> None:
        alignment, context = lattice.alignment, lattice.context
        limit = alignment.max_labels_per_frame if isinstance(alignment, LabelFrameDependent) else 1
        self.is_finite = isinstance(context, FiniteContext) and limit is not None
        self._num_copies = 1
        self._slot: Array | None = None
        if not isinstance(context, FiniteContext):
            return
        self._next = context.next_state_table().numpy()
        if lattice.deduplicate:
            entered, slot = entering_labels(context)
            self._num_copies, self._slot = 1 + entered.shape[1], slot.numpy()

    def waiting(self, states: Array) -> Array:
        """Flat states after a blank."""
        flat: Array = states * self._num_copies
        return flat

    def reading(self, states: Array, label: Array) -> Array:
        """Flat states in a run of a label."""
        if self._slot is None:
            return states
        flat: Array = states * self._num_copies + self._slot[states, np.maximum(label, 1) - 1]
        return flat

    def children(self, states: Tensor) -> Array:
        """[P, V] flat states after each label; any where there is no arc."""
        after = np.maximum(self._next[states.cpu().numpy()], 0)
        columns = np.broadcast_to(np.arange(1, after.shape[1] + 1), after.shape)
        return self.reading(after, columns)


class Backward:
    """Backward weights, of the whole utterance or of a window of it."""

    def __init__(self, lattice: RecognitionLattice, frames: Tensor, window: int | None) -> None:
        self._lattice: WideLattice = wide_lattice(lattice)
        self._frames = frames
        self._window = window
        self._block = -1
        self._kept: Completions | None = None

    @property
    def log_z(self) -> float | None:
        """The sum over all paths; None if a window does not show it."""
        return None if self._window is not None else self._of_block(0).log_z

    def at(self, step: int, level: int) -> After:
        """What follows the arcs of a step; a label that leaves level n of a frame."""
        block, place = (0, step) if self._window is None else divmod(step, self._window)
        kept = self._of_block(block)
        return After(kept.after_blank[place].numpy(), kept.after_label[place, level].numpy())

    def _of_block(self, block: int) -> Completions:
        """Of as many frames as a window has, seen from the end of the window after it."""
        if self._kept is None or block != self._block:
            ahead = self._frames
            if self._window is not None:
                first = block * self._window
                ahead = ahead[first : first + 2 * self._window]
            self._kept = completions(self._lattice, self._lattice.scorer(ahead), len(ahead))
            self._block = block
        return self._kept


def backward_weights(
    lattice: RecognitionLattice, frames: Tensor, window: int | None
) -> Backward | None:
    """Backward weights where they are not 1 for every state, as in a locally normalized lattice."""
    alignment, context = lattice.alignment, lattice.context
    count = torch.tensor(len(frames), device=frames.device)
    if not lattice.needs_denominator_of(frames, count) or not FlatStates(lattice).is_finite:
        return None
    assert isinstance(context, FiniteContext)
    if window is None or isinstance(alignment, LabelDependent):
        return Backward(lattice, frames, None)
    if context.final_weights is not None:
        raise ValueError("window should be None where ending in a state has a weight")
    return Backward(lattice, frames, window)
