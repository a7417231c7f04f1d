"""Sum-path decoding by beam: a few label prefixes at a time, each summed over its alignments.

For what `exact` cannot do: unbounded history (RNN-T, HAT, LAS), large contexts, long recordings,
and scores from elsewhere (`fusion`). Alignments of one label prefix are one hypothesis, and their
weights are summed: with a beam so wide that nothing is dropped, the sums are exact.

After each frame the prefixes with the largest *posterior mass* stay. At one frame every path has
emitted one prefix, so the mass is forward weight times backward weight, and the masses of all
prefixes sum to 1. Locally normalized arcs have backward weights of 1: the forward weight *is* the
mass, also with unbounded history. Global normalization has a finite context, whose backward weights
are computed: over the whole utterance or, to save memory, over a window ahead, after which every
state counts the same. On a label-dependent lattice the same is done label by label.

The sums of the answers may miss alignments whose prefixes were dropped on the way; so the answers
are summed once more, over all their alignments.

Shapes: P prefixes of the beam, V vocab_size, F flat states of the label space. Weights are float64
logarithms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from midge.alignments import LabelDependent, LabelFrameDependent
from midge.contexts import FiniteContext
from midge.decoding.followers import NOTHING, After, FlatStates, backward_weights
from midge.decoding.fusion import Array, Fusion
from midge.decoding.histories import Histories, histories
from midge.decoding.hypotheses import (
    Beam,
    LeavingArcs,
    Prefix,
    fused_scores,
    joined,
    leaving_arcs,
    merge_children,
    merged,
)
from midge.lattices import RecognitionLattice
from midge.lattices.batches import checked_batch


@dataclass(frozen=True, kw_only=True)
class BeamConfig:
    """How wide to search."""

    beam_size: int = 16
    """Number of label prefixes that are kept."""
    max_labels_per_frame: int = 10
    """How many labels to follow within a frame, where the lattice sets no limit."""
    window: int | None = None
    """Number of frames ahead, at least, whose backward weights are held, and of frames for which
    they are; None is all. Only for global normalization; others need none."""

    def __post_init__(self) -> None:
        for name in ("beam_size", "max_labels_per_frame"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window should be at least 1 or None, got {self.window}")


@dataclass(frozen=True)
class FusedSequence:
    """A label sequence with its probability, and what was added to it."""

    labels: tuple[int, ...]
    """Labels in 1..vocab_size."""
    log_probability: float
    """log P(labels | frames) of the model, summed over all alignments."""
    log_found: float
    """The same over the alignments that the beam kept: never more, but for rounding."""
    fusion: float = 0.0
    """What the fusion added; 0 without."""

    @property
    def score(self) -> float:
        """By which sequences are ranked: log probability plus fusion."""
        return self.log_probability + self.fusion


@dataclass(frozen=True)
class BeamResult:
    """The best label sequences that a beam search found for one utterance."""

    sequences: tuple[FusedSequence, ...]
    """The best first; fewer than asked for if the beam held no more, none without a path."""
    seconds: float
    """Time it took."""

    @property
    def labels(self) -> list[int]:
        """The labels of the best sequence; empty without a path."""
        return list(self.sequences[0].labels) if self.sequences else []

    @property
    def log_probability(self) -> float:
        """The log posterior probability of the best sequence; -inf without a path."""
        return self.sequences[0].log_probability if self.sequences else -np.inf


def beam_search(
    lattice: RecognitionLattice,
    frames: Tensor,
    *,
    num_best: int = 1,
    config: BeamConfig | None = None,
    fusion: Fusion | None = None,
) -> BeamResult:
    """Searches for the most probable label sequences of one utterance.

    Args:
        lattice: any.
        frames: [num_frames, input_size], no padding.
        num_best: how many sequences to return at most.
        config: how wide to search.
        fusion: what to add to the scores of sequences.

    Raises:
        ValueError: for arguments that do not fit.

    Example:
        >>> import midge
        >>> context = midge.FullNGram(vocab_size=1, context_size=0)
        >>> lattice = midge.RecognitionLattice(
        ...     context, midge.FrameDependent(), midge.TableWeights(context)
        ... )
        >>> frames = torch.tensor([[0.5, 0.0], [0.5, 0.0]])  # blank is the better arc twice
        >>> found = beam_search(lattice, frames)
        >>> found.labels, round(float(np.exp(found.log_probability)), 2)
        ([1], 0.47)
    """
    started = time.monotonic()
    if num_best < 1:
        raise ValueError(f"num_best should be at least 1, got {num_best}")
    size = lattice.weights.input_size
    if frames.dim() != 2 or frames.shape[1] != size:
        raise ValueError(f"frames should be [num_frames, {size}], got {list(frames.shape)}")
    vocab_size = lattice.context.vocab_size
    batch = checked_batch(frames, torch.tensor(len(frames)), None, None, vocab_size)
    if fusion is not None:
        fusion.check(vocab_size)
    with torch.no_grad(), torch.autocast(frames.device.type, enabled=False):
        search = _Search(lattice, batch.frames[0], config or BeamConfig(), fusion or Fusion())
        ended = search.run(num_best)
        found = _summed_again(lattice, batch.frames[0], ended, search.log_z)
    return BeamResult(tuple(found[:num_best]), time.monotonic() - started)


@dataclass(frozen=True)
class _Ended:
    """A whole sequence: its weight in the lattice, and what fusion adds."""

    labels: tuple[int, ...]
    weight: float
    fusion: float


def _summed_again(
    lattice: RecognitionLattice, frames: Tensor, ended: Sequence[_Ended], log_z: float
) -> list[FusedSequence]:
    """The sequences with the sums over all their alignments, the best first."""
    if not ended:
        return []
    labels = pad_sequence([torch.tensor(each.labels, dtype=torch.int64) for each in ended], True)
    count = len(ended)
    totals = lattice.shortest_distance(
        frames.expand(count, *frames.shape),
        torch.full((count,), len(frames)),
        labels=labels,
        num_labels=torch.tensor([len(each.labels) for each in ended]),
    ).tolist()
    found = [
        FusedSequence(each.labels, total - log_z, each.weight - log_z, each.fusion)
        for each, total in zip(ended, totals, strict=True)
    ]
    return sorted(found, key=lambda each: -each.score)


class _Search:
    """Beam search over the label prefixes of one utterance."""

    def __init__(
        self, lattice: RecognitionLattice, frames: Tensor, config: BeamConfig, fusion: Fusion
    ) -> None:
        self._lattice = lattice
        self._frames = frames
        self._config = config
        self._fusion = fusion
        self._vocab_size = lattice.context.vocab_size
        self._no_bonus = np.zeros(self._vocab_size)
        self._histories: Histories = histories(lattice, frames)
        self._states = FlatStates(lattice)
        self._backward = backward_weights(lattice, frames, config.window)
        self.log_z = 0.0
        if self._backward is not None:
            whole = self._backward.log_z
            count = torch.tensor(len(frames))
            self.log_z = float(lattice.shortest_distance(frames, count)) if whole is None else whole

    def run(self, num_best: int) -> list[_Ended]:
        """The whole sequences that may be among the best.

        The beam's own sums lack the alignments that were pruned, so that they do not decide: all
        that it still holds are returned, to be summed again.
        """
        alignment = self._lattice.alignment
        if isinstance(alignment, LabelDependent):  # where a sequence has one path
            ended = self._along_labels(num_best)
        else:
            is_nested = isinstance(alignment, LabelFrameDependent)
            take = self._take_labels if is_nested else self._take_frame
            beam = self._start()
            for step in range(len(self._frames)):
                if not beam.prefixes:
                    break
                beam = take(beam, step)
            ended = self._ended(beam, beam.totals())
        return ended or self._best_path()

    def _start(self) -> Beam:
        root = Prefix(None, 0, self._fusion.start, 0.0)
        return Beam([root], self._histories.start(), np.zeros(1), np.full(1, -np.inf))

    def _take_frame(self, beam: Beam, step: int) -> Beam:
        """One frame of a lattice with at most one label for each."""
        arcs = self._arcs(beam, step)
        after = self._backward.at(step, 0) if self._backward else NOTHING
        waiting = np.logaddexp(beam.waiting + arcs.blank[:, 0], beam.read + arcs.blank[:, 1])
        return self._grown(beam, waiting, beam.read + arcs.hold, arcs.moved(beam), after)

    def _take_labels(self, beam: Beam, step: int) -> Beam:
        """One frame of a lattice with several labels for each: label by label, then its blank."""
        alignment = self._lattice.alignment
        assert isinstance(alignment, LabelFrameDependent)
        given = alignment.max_labels_per_frame
        limit = self._config.max_labels_per_frame if given is None else given
        left: list[Beam] = []
        for count in range(limit + 1):
            arcs = self._arcs(beam, step)
            blank = arcs.closing if count == given else arcs.blank
            waiting = np.logaddexp(beam.waiting + blank[:, 0], beam.read + blank[:, 1])
            left.append(Beam(beam.prefixes, beam.rows, waiting, np.full_like(waiting, -np.inf)))
            if count == limit:
                break
            after = self._backward.at(step, count).inside() if self._backward else NOTHING
            nothing = np.full_like(waiting, -np.inf)
            beam = self._grown(beam, nothing, beam.read + arcs.hold, arcs.moved(beam), after)
            if not beam.prefixes or (given is None and self._is_settled(left, beam)):
                break
        after = self._backward.at(step, 0) if self._backward else NOTHING
        return self._best(merged(left), after)

    def _is_settled(self, left: Sequence[Beam], beam: Beam) -> bool:
        """Whether no prefix inside the frame can still be among the best that have left it."""
        done = merged(left)
        scores = np.sort(done.totals() + fused_scores(done))[::-1]
        size = self._config.beam_size
        return len(scores) >= size and bool(
            (beam.totals() + fused_scores(beam)).max() < scores[size - 1]
        )

    def _along_labels(self, num_best: int) -> list[_Ended]:
        """All of a lattice that moves along labels."""
        count = torch.tensor(len(self._frames))
        limit = int(self._lattice.alignment.num_steps(count))
        beam = self._start()
        ended: list[_Ended] = []
        for step in range(limit):
            arcs = self._arcs(beam, step)
            ended += self._ended(beam, beam.waiting + arcs.blank[:, 0])
            after = self._backward.at(step, 0) if self._backward else NOTHING
            nothing = np.full_like(beam.waiting, -np.inf)
            beam = self._grown(beam, nothing, nothing.copy(), arcs.moved(beam), after)
            ended = sorted(ended, key=lambda each: -(each.weight + each.fusion))[:num_best]
            if not beam.prefixes or self._is_beaten(beam, ended, num_best):
                return ended
        return ended + self._ended(beam, beam.waiting)  # as many labels as there may be

    def _is_beaten(self, beam: Beam, ended: Sequence[_Ended], num_best: int) -> bool:
        """Whether nothing that goes on can come among the best: a probability only shrinks."""
        if self._fusion != Fusion() or self._backward is not None or len(ended) < num_best:
            return False
        return bool(beam.waiting.max() < ended[-1].weight)

    def _arcs(self, beam: Beam, step: int) -> LeavingArcs:
        arcs = leaving_arcs(self._lattice, beam, self._histories.scores(beam.rows, step))
        if arcs is None:
            raise ValueError(
                f"arc weights should be finite or -inf, got NaN or +inf at step {step}; look for "
                "it in frames and in the lattice's parameters"
            )
        return arcs

    def _grown(self, beam: Beam, waiting: Array, read: Array, new: Array, after: After) -> Beam:
        """The best of prefixes that stay, with new weights [P], and those one label longer [P, V].

        Among the latter may be one that is in the beam already: its weight is added there.
        """
        kept = Beam(beam.prefixes, beam.rows, waiting, read)
        merge_children(kept, new, into=read if self._lattice.deduplicate else waiting)
        stay = self._masses(kept, after)
        move = new + self._added(beam) + fused_scores(beam)[:, None]
        if after.label is not None:
            move = move + after.label[self._states.children(beam.rows[0])]
        scores = np.concatenate([stay, move.ravel()])
        chosen = np.argsort(-scores, kind="stable")[: self._config.beam_size]
        chosen = chosen[scores[chosen] > -np.inf]
        longer = chosen[chosen >= len(stay)] - len(stay)
        stayed = kept.picked(chosen[chosen < len(stay)].tolist())
        return joined(stayed, self._longer(beam, longer, new))

    def _longer(self, beam: Beam, chosen: Array, new: Array) -> Beam:
        """Prefixes one label longer, by flat places [N] of weights [P, V]."""
        place, column = np.divmod(chosen, self._vocab_size)
        parents = beam.picked(place.tolist())
        labels = torch.from_numpy(column + 1).to(beam.rows[0].device)
        rows = self._histories.extend(parents.rows, labels) if len(chosen) else parents.rows
        children = [
            self._child(prefix, label)
            for prefix, label in zip(parents.prefixes, (column + 1).tolist(), strict=True)
        ]
        weight, nothing = new[place, column], np.full(len(chosen), -np.inf)
        if self._lattice.deduplicate:
            return Beam(children, rows, nothing, weight)
        return Beam(children, rows, weight, nothing)

    def _child(self, prefix: Prefix, label: int) -> Prefix:
        child = prefix.children.get(label)
        if child is None:
            assert prefix.added is not None
            fused = prefix.fused + float(prefix.added[label - 1])
            child = Prefix(prefix, label, self._fusion.next(prefix.states, label), fused)
            prefix.children[label] = child
        return child

    def _added(self, beam: Beam) -> Array:
        """[P, V] what the fusion adds for the next label."""
        fresh = [place for place, each in enumerate(beam.prefixes) if each.added is None]
        for place in fresh:
            prefix = beam.prefixes[place]
            prefix.added = self._no_bonus
            if self._fusion != Fusion():
                prefix.added = self._fusion.arcs(prefix.states, self._vocab_size)
        if fresh and self._fusion.internal_weight != 0.0:
            scores = self._histories.scores_without_sound(beam.picked(fresh).rows)[:, 1:]
            expected = scores.double().log_softmax(-1).cpu().numpy()
            for place, row in zip(fresh, expected, strict=True):
                beam.prefixes[place].added -= self._fusion.internal_weight * row
        return np.stack([prefix.added for prefix in beam.prefixes if prefix.added is not None])

    def _masses(self, beam: Beam, after: After) -> Array:
        """[P] by which prefixes are compared."""
        waiting, read = beam.waiting, beam.read
        if after.blank is not None and after.label is not None:
            at = beam.rows[0].cpu().numpy()
            last = np.array([prefix.label for prefix in beam.prefixes])
            waiting = waiting + after.blank[self._states.waiting(at)]
            read = read + after.label[self._states.reading(at, last)]
        return np.logaddexp(waiting, read) + fused_scores(beam)

    def _best(self, beam: Beam, after: After) -> Beam:
        """The best of prefixes that wait after a blank."""
        scores = self._masses(beam, after)
        chosen = np.argsort(-scores, kind="stable")[: self._config.beam_size]
        return beam.picked(chosen[scores[chosen] > -np.inf].tolist())

    def _ended(self, beam: Beam, weights: Array) -> list[_Ended]:
        """What it is to end in the prefixes, with weights [P]."""
        context = self._lattice.context
        if isinstance(context, FiniteContext) and context.final_weights is not None:
            weights = weights + context.final_weights.double().numpy()[beam.rows[0].cpu().numpy()]
        return [
            _Ended(prefix.labels(), weight, prefix.fused + self._fusion.final(prefix.states))
            for prefix, weight in zip(beam.prefixes, weights.tolist(), strict=True)
            if weight > -np.inf
        ]

    def _best_path(self) -> list[_Ended]:
        """The sequence of the best path, where every prefix of the beam came to a dead end.

        That may be where ending has weights and nothing warns of it: without backward weights, or
        by scores of a fusion that rule out everything.
        """
        if isinstance(self._lattice.context, FiniteContext) and self._states.is_finite:
            path = self._lattice.shortest_path(self._frames, torch.tensor(len(self._frames)))
            if bool(path.weight > -torch.inf):
                return [_Ended(tuple(path.labels()), float(path.weight), 0.0)]
        return []
