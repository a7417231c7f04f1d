"""The greedy path: the best arc at each state, for lattices whose best path cannot be searched.

With unbounded history, or unbounded labels per frame, a lattice has no finite set of states to
search. The greedy path follows one history only. It is a path, not the best one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from midge.alignments import FrameDependent, LabelDependent, LabelFrameDependent
from midge.contexts import BLANK, FiniteContext
from midge.lattices.batches import checked_batch
from midge.lattices.paths import Path
from midge.weights import Scorer
from midge.weights.normalization import arc_weights

if TYPE_CHECKING:
    from midge.lattices.recognition import RecognitionLattice


@torch.no_grad()
def greedy_path(
    lattice: RecognitionLattice,
    frames: Tensor,
    num_frames: Tensor,
    max_labels_per_frame: int = 8,
) -> Path:
    """Follows the best arc from state to state.

    Ties are won by blank, then by the smallest label. Each emitted label runs the weight
    function's recurrence over the history anew, O(U^2) cells for U labels.

    Args:
        lattice: without deduplication.
        frames: [batch, max_num_frames, input_size].
        num_frames: [batch] integers.
        max_labels_per_frame: where the lattice sets no such limit.

    Raises:
        ValueError: for a lattice with deduplication.
    """
    if lattice.deduplicate:
        raise ValueError("a greedy path has no deduplication; use shortest_path, which is exact")
    batch = checked_batch(frames, num_frames, None, None, lattice.context.vocab_size)
    with torch.autocast(batch.frames.device.type, enabled=False):
        walks = [
            _Walk(lattice, batch.frames[row : row + 1, :count], max_labels_per_frame)
            for row, count in enumerate(batch.num_frames.tolist())
        ]
        found = [list(walk.symbols()) for walk in walks]
    labels = pad_sequence([torch.tensor([y for y, _ in path]).long() for path in found], True)
    times = pad_sequence([torch.tensor([t for _, t in path]).long() for path in found], True)
    weight = torch.tensor([walk.weight for walk in walks], dtype=batch.frames.dtype)
    length = torch.tensor([len(path) for path in found])
    return Path(
        batch.unflatten(labels),
        batch.unflatten(times),
        batch.unflatten(length),
        batch.unflatten(weight),
    )


class _Walk:
    """One utterance's way through the lattice."""

    def __init__(self, lattice: RecognitionLattice, frames: Tensor, limit: int) -> None:
        self.lattice = lattice
        self.frames = frames
        self.num_frames = torch.tensor([frames.shape[1]])
        given = None
        if isinstance(lattice.alignment, LabelFrameDependent):
            given = lattice.alignment.max_labels_per_frame
        self.has_limit = given is not None
        self.limit = limit if given is None else given
        self.labels: list[int] = []
        self.weight = 0.0
        self.scorer = self._scorer()

    def symbols(self) -> Iterator[tuple[int, int]]:
        """(label, frame) one after the other, as a `Path` has them."""
        if isinstance(self.lattice.alignment, LabelDependent):
            yield from self._along_labels()
            return
        for frame in range(int(self.num_frames)):
            for count in range(self.limit + 1):
                label = self._take(frame, is_closed=count == self.limit)
                yield label, frame
                if label == BLANK or isinstance(self.lattice.alignment, FrameDependent):
                    break

    def _along_labels(self) -> Iterator[tuple[int, int]]:
        limit = int(self.lattice.alignment.num_steps(self.num_frames))
        for position in range(limit):
            label = self._take(position)
            yield label, position
            if label == BLANK:
                return

    def _take(self, step: int, is_closed: bool = False) -> int:
        """Takes the best arc at a step; only blank where the frame has all its labels."""
        scorer = self.scorer
        first = step if scorer.step else 0
        scores = scorer.score(
            tuple(x[:, first : first + 1] for x in scorer.step),
            scorer.batch,
            tuple(x[None, -1:] for x in scorer.state),  # [B, S, ...]
            scorer.shared,
            range(step, step + 1),
        )
        arcs = arc_weights(
            scores,
            self.lattice.normalization,
            has_blank=self.lattice.alignment.has_blank,
            arc_mask=None,
            entered_label=None,
        )
        weights = torch.cat([arcs.blank[..., None], arcs.lexical], dim=-1).flatten()
        label = BLANK if is_closed else int(weights.argmax())
        # A limit of the lattice makes blank certain there; our own limit does not.
        is_certain = is_closed and self.has_limit and self.lattice.normalization != "global"
        self.weight += 0.0 if is_certain else float(weights[label])
        if label != BLANK:
            self.labels.append(label)
            self.scorer = self._scorer()
        return label

    def _scorer(self) -> Scorer:
        """Scores whose last state is the history so far."""
        weights, context = self.lattice.weights, self.lattice.context
        labels = torch.tensor([self.labels], dtype=torch.int64)
        if isinstance(context, FiniteContext):
            state = context.walk_states(labels)[0, -1:]
            return weights.scorer(self.frames, self.num_frames, state)
        return weights.history_scorer(self.frames, self.num_frames, labels)
