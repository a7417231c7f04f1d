"""Scores of label sequences from elsewhere, added to those of a model: shallow fusion.

    score(y) = log P(y | x) + weight * log P_LM(y) - weight' * log P_internal(y) + bonus * |y| + ...

Everything here depends on the labels alone and not on their alignment, so it is added once for each
label sequence, to a sum over all its alignments.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from midge.alignments import LabelFrameDependent
from midge.contexts import FiniteContext, NextStateTable
from midge.lattices import RecognitionLattice

Array = np.ndarray


class LabelScorer(ABC):
    """A deterministic automaton over labels whose arcs, and ends, have log scores."""

    vocab_size: int
    """Number of labels."""
    start: int
    """The state before any label."""

    @abstractmethod
    def arcs(self, state: int) -> tuple[Array, Array]:
        """[vocab_size] score of each label after a state, label 1 first, and the state after it."""

    @abstractmethod
    def final(self, state: int) -> float:
        """The score of ending in a state."""

    def score(self, labels: Sequence[int], is_ended: bool = True) -> float:
        """The score of a label sequence.

        Args:
            labels: in 1..vocab_size.
            is_ended: whether the end counts, too.
        """
        state, total = self.start, 0.0
        for label in labels:
            scores, states = self.arcs(state)
            total += float(scores[label - 1])
            state = int(states[label - 1])
        return total + self.final(state) if is_ended else total


States = tuple[int, ...]
"""One state for each scorer."""


@dataclass(frozen=True)
class Fusion:
    """What to add to the score of a label sequence.

    Args:
        scorers: automata with their weights.
        label_bonus: for each label; a language model makes long sequences improbable.
        internal_weight: how much to subtract of the model's own expectation of the next label, its
            scores where the frame is zero, normalized over labels (HAT's internal language model).

    Raises:
        ValueError: for a number that is not finite, or a scorer of another vocabulary.
    """

    scorers: tuple[tuple[float, LabelScorer], ...] = ()
    label_bonus: float = 0.0
    internal_weight: float = 0.0

    def __post_init__(self) -> None:
        weights = {"label_bonus": self.label_bonus, "internal_weight": self.internal_weight}
        weights |= {f"weight of scorer {n}": w for n, (w, _) in enumerate(self.scorers)}
        for name, value in weights.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} should be a finite number, got {value}")

    def check(self, vocab_size: int) -> None:
        """Makes sure that all scorers are of a vocabulary.

        Raises:
            ValueError: if one is not.
        """
        for _, scorer in self.scorers:
            if scorer.vocab_size != vocab_size:
                raise ValueError(
                    f"scorers should have the model's {vocab_size} labels, got {scorer.vocab_size}"
                )

    @property
    def start(self) -> States:
        """The states before any label."""
        return tuple(scorer.start for _, scorer in self.scorers)

    def arcs(self, states: States, vocab_size: int) -> Array:
        """[vocab_size] what each label adds, but for the internal language model."""
        total = np.full(vocab_size, self.label_bonus)
        for (weight, scorer), state in zip(self.scorers, states, strict=True):
            total += weight * scorer.arcs(state)[0]
        return total

    def next(self, states: States, label: int) -> States:
        """The states after a label."""
        return tuple(
            int(scorer.arcs(state)[1][label - 1])
            for (_, scorer), state in zip(self.scorers, states, strict=True)
        )

    def final(self, states: States) -> float:
        """What the end adds."""
        return sum(
            weight * scorer.final(state)
            for (weight, scorer), state in zip(self.scorers, states, strict=True)
        )


def fused_lattice(
    lattice: RecognitionLattice, scorer: LabelScorer, weight: float = 1.0, label_bonus: float = 0.0
) -> RecognitionLattice:
    """The lattice with a scorer's weights on its arcs and ends, for every exact method of it.

    It is possible where the state of the scorer follows from the state of the context, as for an
    n-gram model of an order up to context size + 1. The scorer then weighs the arcs and the ends of
    the context itself: new labels, once each, however they are aligned or repeated. Frames keep the
    model's normalization; the posterior is proportional to P(y | x) exp(weight score(y) + bonus
    |y|), over all sequences.

    Args:
        lattice: with a finite context, and finitely many labels per frame.
        scorer: such as an n-gram model.
        weight: of the scorer.
        label_bonus: added for each label.

    Raises:
        ValueError: if the weights do not fit on the lattice's arcs; use beam search then.
    """
    context = lattice.context
    _check_fusible(lattice, scorer)
    assert isinstance(context, FiniteContext)
    states = _scorer_states(context, scorer)
    added = torch.from_numpy(
        np.stack([label_bonus + weight * scorer.arcs(state)[0] for state in states])
    )
    final = torch.tensor([weight * scorer.final(state) for state in states], dtype=torch.float64)
    if context.final_weights is not None:
        final = final + context.final_weights
    if context.label_weights is not None:
        added = added + context.label_weights
    weighted = NextStateTable(context.next_state_table(), context.start, final, added)
    return RecognitionLattice(
        weighted, lattice.alignment, lattice.weights, lattice.normalization, lattice.deduplicate
    )


def _check_fusible(lattice: RecognitionLattice, scorer: LabelScorer) -> None:
    """Refuses what has no place on the arcs of a context."""
    alignment = lattice.alignment
    reasons = {
        "an unbounded history": not isinstance(lattice.context, FiniteContext),
        "unbounded labels per frame": (
            isinstance(alignment, LabelFrameDependent) and alignment.max_labels_per_frame is None
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"cannot add a language model to a lattice with {reason}; use a beam")
    if scorer.vocab_size != lattice.context.vocab_size:
        raise ValueError(
            f"scorer should have the model's {lattice.context.vocab_size} labels, "
            f"got {scorer.vocab_size}"
        )


def _scorer_states(context: FiniteContext, scorer: LabelScorer) -> list[int]:
    """The scorer's state at each state of the context."""
    table = context.next_state_table().tolist()
    found = {context.start: scorer.start}
    queue = [context.start]
    for state in queue:
        reached = scorer.arcs(found[state])[1]
        for column, after in enumerate(table[state]):
            if after < 0:
                continue
            if found.setdefault(after, int(reached[column])) != int(reached[column]):
                raise ValueError(
                    "scorer should remember no more than the context does (an n-gram model of an "
                    f"order up to context size + 1), but the history {context.state_labels(after)} "
                    "leads it to several states; use a beam"
                )
            if len(found) > len(queue):
                queue.append(after)
    return [found[state] for state in range(context.num_states)]
