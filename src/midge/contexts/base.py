"""What a context dependency offers to the layers above.

Shapes: *batch any leading dims; Q num_states; V vocab_size. Label 0 is blank, label y sits at
column y - 1. Semiring values may carry a leading component dim, so dims are counted from the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from midge.semirings import Semiring

BLANK = 0
"""The label of blank, the paper's epsilon; lexical labels are 1..vocab_size."""


class Transitions(ABC):
    """The arcs of a deterministic automaton, summed into and spread from their destinations.

    Each state has the same number of arc slots, numbered from 0 (a slot may be empty). For a
    context these are its labels, slot y - 1; for C intersected with one label string there is one
    slot, the next label.
    """

    @abstractmethod
    def forward_reduce(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """Sums arcs into their destinations: result[q] = plus-sum over p-a->q of weights[p, a].

        The paper's next_C (appendix D) once the forward weights are multiplied in.

        Args:
            weights: [*batch, num_states, num_slots] semiring values; empty slots are ignored.
            semiring: the semiring of the values.

        Returns:
            [*batch, num_states].
        """

    @abstractmethod
    def backward_broadcast(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """Spreads destinations over arcs: result[p, a] = weights[next(p, a)], zero if no arc.

        Args:
            weights: [*batch, num_states] semiring values.
            semiring: the semiring of the values.

        Returns:
            [*batch, num_states, num_slots].
        """

    @abstractmethod
    def forward_best(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """`forward_reduce` under MaxTropical, with the winners.

        Args:
            weights: [*batch, num_states, num_slots] log weights.

        Returns:
            [*batch, num_states] the largest weight into each state, and [*batch, num_states] int64
            the winning arc as p * num_slots + a: among equals the smallest slot, then the smallest
            source p; where nothing enters, the weight is -inf and the arc means nothing.
        """


class ContextDependency(ABC):
    """The automaton C over labels whose state is the label history (paper, section 4.1).

    Deterministic and free of epsilon; all states are final. Either a `FiniteContext` or the
    `FullHistory`.
    """

    vocab_size: int
    """Number of lexical labels; blank is not counted."""


class FiniteContext(ContextDependency, Transitions):
    """A context dependency with finitely many states, so that whole lattices can be summed.

    States are 0..num_states-1. For an arc p -y-> q write q = next(p, y); there is at most one.
    """

    start: int
    """The initial state: the empty history."""
    final_weights: Tensor | None = None
    """[num_states] log weight of ending in a state; None is 0 for all."""
    label_weights: Tensor | None = None
    """[num_states, vocab_size] log weight of each arc of C itself, such as a language model's; None
    is 0 for all. It is added to what a lattice gives a new label, after any local normalization."""

    @property
    @abstractmethod
    def num_states(self) -> int:
        """Number of states."""

    @abstractmethod
    def next_state(self, state: Tensor, label: Tensor) -> Tensor:
        """The state after a label; blank stays; -1 where there is no arc.

        Args:
            state: [*batch] integers in 0..num_states-1; -1 stays -1.
            label: [*batch] integers in 0..vocab_size.

        Returns:
            [*batch] int64.
        """

    def walk_states(self, labels: Tensor) -> Tensor:
        """The states visited from the start, before and after each label.

        Args:
            labels: [*batch, num_labels] integers in 0..vocab_size.

        Returns:
            [*batch, num_labels + 1] int64; -1 from where there is no arc.
        """
        state = torch.full(labels.shape[:-1], self.start, dtype=torch.int64, device=labels.device)
        states = [state]
        for label in labels.unbind(-1):
            state = self.next_state(state, label)
            states.append(state)
        return torch.stack(states, dim=-1)

    @property
    def arc_mask(self) -> Tensor | None:
        """[num_states, vocab_size] bool, False where there is no arc; None if all are there."""
        return None

    @abstractmethod
    def parent(self, state: Tensor) -> Tensor:
        """The state before the last label of the shortest, then first, path to a state.

        Args:
            state: [*batch] integers in 0..num_states-1.

        Returns:
            [*batch] int64; -1 for the start.
        """

    @abstractmethod
    def last_label(self, state: Tensor) -> Tensor:
        """The last label of the shortest, then first, path to a state; 0 for the start.

        Args:
            state: [*batch] integers in 0..num_states-1.

        Returns:
            [*batch] int64 in 0..vocab_size.
        """

    def state_labels(self, state: int) -> list[int]:
        """The labels of the shortest, then first, path from the start to a state."""
        labels: list[int] = []
        at = torch.tensor(state)
        while int(at) != self.start:
            labels.append(int(self.last_label(at)))
            at = self.parent(at)
        return labels[::-1]

    def is_same_automaton(self, other: ContextDependency) -> bool:
        """Whether the states and arcs are the same, whatever they weigh."""
        return self is other or (
            isinstance(other, FiniteContext)
            and (self.start, self.num_states) == (other.start, other.num_states)
            and torch.equal(self.next_state_table(), other.next_state_table())
        )

    def next_state_table(self) -> Tensor:
        """[num_states, vocab_size] int64 of next states, -1 where there is no arc."""
        states = torch.arange(self.num_states)[:, None]
        return self.next_state(states, 1 + torch.arange(self.vocab_size)[None, :])
