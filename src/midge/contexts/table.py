"""Any deterministic automaton as a table of next states."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from midge.contexts.base import BLANK, FiniteContext
from midge.contexts.grouping import ArcGroups, append_zero
from midge.semirings import Semiring


@final
class NextStateTable(FiniteContext):
    """A context dependency given by its arcs.

    Args:
        next_state: [num_states, vocab_size] integers; column j is label j + 1; -1 is no arc. Every
            state must be reachable from the start.
        start: the initial state.
        final_weights: [num_states] log weight of ending in a state; -inf is not final; None is 0
            for all.
        label_weights: [num_states, vocab_size] log weight of each arc, as a language model has
            them; -inf is no path; None is 0 for all.

    Raises:
        ValueError: if the table, the start or the weights do not fit.

    Example:
        >>> parity = NextStateTable(torch.tensor([[1], [0]]))  # has the label come an odd time?
        >>> parity.walk_states(torch.tensor([1, 0, 1, 1])).tolist()
        [0, 1, 1, 0, 1]
    """

    def __init__(
        self,
        next_state: Tensor,
        start: int = 0,
        final_weights: Tensor | None = None,
        label_weights: Tensor | None = None,
    ) -> None:
        """Checks the automaton and finds the shortest path to every state."""
        table = torch.as_tensor(next_state)
        if table.dim() != 2 or 0 in table.shape or table.is_floating_point():
            raise ValueError(
                "next_state should be integers [num_states, vocab_size] with at least one state "
                f"and label, got {table.dtype} {list(table.shape)}"
            )
        table = table.detach().to(device="cpu", dtype=torch.int64).clone()
        num_states, self.vocab_size = table.shape
        if int(table.min()) < -1 or int(table.max()) >= num_states:
            raise ValueError(
                f"next_state should hold -1 (no arc) or a state 0..{num_states - 1}, "
                f"got {int(table.min())}..{int(table.max())}"
            )
        if not 0 <= start < num_states:
            raise ValueError(f"start should be a state 0..{num_states - 1}, got {start}")
        self.start = start
        self._table = table
        self._parent, self._last_label = _shortest_paths(table, start)
        self.final_weights = _checked_weights("final_weights", final_weights, (num_states,))
        self.label_weights = _checked_weights("label_weights", label_weights, tuple(table.shape))
        # Sorted by label, then source.
        order = torch.arange(table.numel()).view(self.vocab_size, num_states).T.flatten()
        self._groups = ArcGroups(table.flatten(), order, num_states)
        self._arc_mask = None if bool((table >= 0).all()) else table >= 0

    def __repr__(self) -> str:
        """The sizes."""
        return (
            f"NextStateTable(num_states={self.num_states}, vocab_size={self.vocab_size}, "
            f"start={self.start}, num_arcs={int((self._table >= 0).sum())})"
        )

    @property
    def num_states(self) -> int:
        """Number of states."""
        return int(self._table.shape[0])

    @property
    def arc_mask(self) -> Tensor | None:
        """[num_states, vocab_size] bool, False where there is no arc; None if all are there."""
        return self._arc_mask

    def next_state(self, state: Tensor, label: Tensor) -> Tensor:
        """The state after a label; blank stays; -1 where there is no arc."""
        state, label = torch.broadcast_tensors(torch.as_tensor(state), torch.as_tensor(label))
        stays = (label == BLANK) | (state < 0)
        table = self._table.to(state.device)
        moved = table[state.clamp(min=0).long(), label.clamp(min=1).long() - 1]
        return torch.where(stays, state, moved)

    def forward_reduce(self, weights: Tensor, semiring: Semiring) -> Tensor:
        return self._groups.reduce(weights.flatten(-2), semiring)

    def backward_broadcast(self, weights: Tensor, semiring: Semiring) -> Tensor:
        # -1, no arc, picks the appended zero.
        return append_zero(weights, semiring)[..., self._table.to(weights.device)]

    def forward_best(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        return self._groups.best(weights.flatten(-2))

    def parent(self, state: Tensor) -> Tensor:
        """The state before the last label of the shortest, then first, path; -1 for the start."""
        return self._parent.to(state.device)[state]

    def last_label(self, state: Tensor) -> Tensor:
        """The last label of the shortest, then first, path; 0 for the start."""
        return self._last_label.to(state.device)[state]


def _shortest_paths(table: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Parent and last label of every state, breadth first with the labels in order."""
    parent = [-1] * table.shape[0]
    last_label = [0] * table.shape[0]
    rows = table.tolist()
    seen = {start}
    queue = [start]
    for state in queue:
        for column, destination in enumerate(rows[state]):
            if destination >= 0 and destination not in seen:
                seen.add(destination)
                queue.append(destination)
                parent[destination], last_label[destination] = state, column + 1
    if missing := sorted(set(range(len(rows))) - seen):
        raise ValueError(
            f"next_state should lead from start {start} to every state; "
            f"{len(missing)} cannot be reached, the first is {missing[0]}"
        )
    return torch.tensor(parent), torch.tensor(last_label)


def _checked_weights(name: str, given: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    if given is None:
        return None
    weights = torch.as_tensor(given).detach().clone()
    if weights.shape != shape or not weights.is_floating_point():
        raise ValueError(
            f"{name} should be floating point {list(shape)}, "
            f"got {weights.dtype} {list(weights.shape)}"
        )
    if bool((weights.isnan() | (weights == torch.inf)).any()):
        raise ValueError(f"{name} should be finite or -inf, got NaN or +inf")
    return weights
