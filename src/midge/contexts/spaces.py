"""State spaces: what one blank and one label do to a vector of weights over states.

An alignment lattice says *when* a blank or a label may come; a label space says what it does to
the context. `alignments` composes the two. `PlainSpace` is a context, or a context intersected
with a label string; `deduplication` has the product with the CTC transducer.

Shapes: *batch any leading dims, S context states (or label positions), A arc slots, F states of
the space flattened. Semiring values may carry a leading component dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import final

import torch
from torch import Tensor

from midge.contexts.base import Transitions
from midge.semirings import Log, Semiring


@dataclass(frozen=True)
class Arcs:
    """The weights of the arcs that leave every state, or their marginals.

    A field may have a time dim after its batch dims.
    """

    blank: Tensor
    """[*batch, S]; with `label_scale`, [*batch, S, 1 + E]: one weight per deduplicating state."""
    lexical: Tensor
    """[*batch, S, A] new labels."""
    repeat: Tensor | None = None
    """[*batch, S, E] repeats of the label that entered, with deduplication."""
    label_scale: Tensor | None = None
    """[*batch, S, 1 + E] further weight of the new and repeat arcs of a deduplicating state.

    Only where states of one context state differ in the arcs that leave them, and so in their
    local normalization: a repeat of a label for which the context itself has no arc.
    """

    closing: Tensor | None = None
    """[*batch, S] blank where nothing but blank may leave (n = k); None if it weighs the same."""

    def at_limit(self) -> Arcs:
        """The arcs where nothing but blank may leave."""
        if self.closing is None:
            return self
        return Arcs(blank=self.closing, lexical=self.lexical)

    def map(self, function: Callable[[Tensor], Tensor]) -> Arcs:
        """The function applied to every field that is there."""
        return Arcs(**{name: function(value) for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are there."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class LabelSpace(ABC):
    """A state space with the action of blank and label arcs, and its transpose.

    `alpha` and `beta` are [*batch, *state_shape] semiring values: the weight of all ways from the
    start to a state, and from a state to the end.
    """

    state_shape: tuple[int, ...]
    """The trailing dims of forward and backward weights."""
    is_state: Tensor | None = None
    """[..., *state_shape] bool, False for a place that no state fills; None if all are filled."""

    @abstractmethod
    def start(self, like: Tensor) -> Tensor:
        """[*batch, *state_shape] log weights of beginning: 0 at the start state, -inf elsewhere."""

    @abstractmethod
    def final(self, like: Tensor) -> Tensor:
        """[*batch, *state_shape] log weights of ending in each state."""

    @abstractmethod
    def blank(self, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """Forward weights after a blank."""

    @abstractmethod
    def labels(self, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """Forward weights after one label, whichever."""

    @abstractmethod
    def blank_backward(self, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """Backward weights before a blank."""

    @abstractmethod
    def labels_backward(self, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """Backward weights before one label, whichever."""

    @abstractmethod
    def blank_marginal(self, alpha: Tensor, arcs: Arcs, beta: Tensor) -> Tensor:
        """Log weight of all paths through each blank arc, shaped as `arcs.blank`."""

    @abstractmethod
    def label_marginals(self, alpha: Tensor, arcs: Arcs, beta: Tensor) -> dict[str, Tensor]:
        """Log weight of all paths through each label arc, by the field's name in `Arcs`."""

    @abstractmethod
    def best_blank(self, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        """`blank` under MaxTropical, and [*batch, F] the winning source, the smallest of equals."""

    @abstractmethod
    def best_labels(self, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor, Tensor]:
        """`labels` under MaxTropical, and [*batch, F] the winning label and source.

        Among equals the smallest label wins, then the smallest source.
        """

    @abstractmethod
    def label_choices(self, state: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor, Tensor]:
        """The label arcs that leave one state per row.

        Args:
            state: [*batch] flat states.
            arcs: fields broadcastable to [*batch, ...].

        Returns:
            [*batch, C] their log weights, labels, and destinations as flat states (any where the
            weight is -inf).
        """

    @abstractmethod
    def blank_choice(self, state: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        """The blank arc that leaves one state per row: [*batch] log weight and destination."""


@final
class PlainSpace(LabelSpace):
    """The states of a context (or of C intersected with a string), as they are.

    Args:
        transitions: the arcs.
        next_state: [..., S, A] destination of each arc, -1 where there is none.
        arc_label: [..., S, A] label of each arc.
        start: [..., S] log weights of beginning.
        final: [..., S] log weights of ending.
    """

    def __init__(
        self,
        transitions: Transitions,
        next_state: Tensor,
        arc_label: Tensor,
        start: Tensor,
        final: Tensor,
    ) -> None:
        """Keeps the parts."""
        self.state_shape = (int(start.shape[-1]),)
        self._transitions = transitions
        self._next_state = next_state
        self._arc_label = arc_label
        self._start = start
        self._final = final

    def start(self, like: Tensor) -> Tensor:
        return self._start.to(like)

    def final(self, like: Tensor) -> Tensor:
        return self._final.to(like)

    def blank(self, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        return semiring.times(alpha, arcs.blank)

    def labels(self, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        moved = semiring.times(alpha[..., None], arcs.lexical)
        return self._transitions.forward_reduce(moved, semiring)

    def blank_backward(self, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        return semiring.times(arcs.blank, beta)

    def labels_backward(self, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        reached = self._transitions.backward_broadcast(beta, semiring)
        return semiring.sum(semiring.times(arcs.lexical, reached), dim=-1)

    def blank_marginal(self, alpha: Tensor, arcs: Arcs, beta: Tensor) -> Tensor:
        return alpha + arcs.blank + beta

    def label_marginals(self, alpha: Tensor, arcs: Arcs, beta: Tensor) -> dict[str, Tensor]:
        reached = self._transitions.backward_broadcast(beta, Log)
        return {"lexical": alpha[..., None] + arcs.lexical + reached}

    def best_blank(self, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        source = torch.arange(alpha.shape[-1], device=alpha.device)
        return alpha + arcs.blank, source.expand(alpha.shape)

    def best_labels(self, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor, Tensor]:
        best, arc = self._transitions.forward_best(alpha[..., None] + arcs.lexical)
        source = torch.div(arc, arcs.lexical.shape[-1], rounding_mode="floor")
        return best, pick_flat(self._arc_label, arc), source

    def label_choices(self, state: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor, Tensor]:
        return (
            pick(arcs.lexical, state),
            pick(self._arc_label, state),
            pick(self._next_state, state),
        )

    def blank_choice(self, state: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        return arcs.blank.gather(-1, state[..., None]).squeeze(-1), state


def pick(rows: Tensor, state: Tensor) -> Tensor:
    """Row `state` of rows: [*batch or nothing, S, A] and [*batch] -> [*batch, A]."""
    rows = rows.to(state.device).expand(*state.shape, *rows.shape[-2:])
    index = state[..., None, None].expand(*state.shape, 1, rows.shape[-1])
    return rows.gather(-2, index).squeeze(-2)


def pick_flat(rows: Tensor, index: Tensor) -> Tensor:
    """Entries of rows [..., S, A] by flat index [*batch, N] into S A -> [*batch, N]."""
    flat = rows.to(index.device).flatten(-2)
    return flat.expand(*index.shape[:-1], flat.shape[-1]).gather(-1, index)


def point(size: int, at: int) -> Tensor:
    """[size] log weights: 0 at one place, -inf elsewhere."""
    return torch.where(torch.arange(size) == at, 0.0, -torch.inf)
