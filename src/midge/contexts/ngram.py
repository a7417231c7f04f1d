"""The n-gram context of the paper's experiments, by arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from midge.contexts.base import BLANK, FiniteContext
from midge.semirings import Semiring


@final
@dataclass(frozen=True)
class FullNGram(FiniteContext):
    """State = the last `context_size` labels: the paper's C_n with n = context_size + 1.

    Q is all label strings of length up to context_size in lexicographic order (empty 0, then a, b,
    ..., aa, ab, ...), and next(q, y) is the longest suffix of qy in Q. The V arcs that leave a
    state lead to consecutive states, so sums over arcs are reshapes and sums of slices: no scatter.

    Args:
        vocab_size: number of lexical labels, at least 1.
        context_size: length of the history, at least 0.

    Example:
        >>> context = FullNGram(vocab_size=2, context_size=2)
        >>> context.num_states
        7
        >>> context.walk_states(torch.tensor([1, 0, 2, 2])).tolist()
        [0, 1, 1, 4, 6]
    """

    vocab_size: int
    context_size: int
    start = 0

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size should be at least 1, got {self.vocab_size}")
        if self.context_size < 0:
            raise ValueError(f"context_size should be at least 0, got {self.context_size}")

    @property
    def num_states(self) -> int:
        """1 + V + ... + V^context_size."""
        return self._num_shorter + self._num_full

    @property
    def _num_shorter(self) -> int:
        """Number of states whose history is shorter than context_size."""
        return sum(self.vocab_size**size for size in range(self.context_size))

    @property
    def _num_full(self) -> int:
        """Number of states whose history has context_size labels."""
        return int(self.vocab_size**self.context_size)

    def next_state(self, state: Tensor, label: Tensor) -> Tensor:
        """The longest kept suffix of the history and the label; blank and -1 stay."""
        # A shorter history q grows to q V + y; a full one drops its oldest label, which is the
        # leading digit of its number among the full ones.
        grown = state * self.vocab_size + label
        oldest_dropped = self._num_shorter + (grown - self.num_states) % self._num_full
        moved = torch.where(grown < self.num_states, grown, oldest_dropped)
        return torch.where((label == BLANK) | (state < 0), state, moved)

    def forward_reduce(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """O(Q V) reads in order, no index."""
        if self.context_size == 0:
            return semiring.sum(weights, dim=-1)
        shorter, full = self._split_sources(weights)
        nothing = semiring.zeros(self._batch(weights, semiring) + (1,), like=weights)
        into_full = semiring.plus(
            shorter[..., self._num_shorter - 1 :], semiring.sum(full, dim=-3).flatten(-2)
        )
        return torch.cat([nothing, shorter[..., : self._num_shorter - 1], into_full], dim=-1)

    def backward_broadcast(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """An expanded view of the weights, then one copy."""
        vocab_size = self.vocab_size
        if self.context_size == 0:
            return weights[..., None].expand(*weights.shape, vocab_size)
        from_shorter = weights[..., 1:].unflatten(-1, (self._num_shorter, vocab_size))
        into_full = weights[..., self._num_shorter :].unflatten(-1, (-1, vocab_size))
        repeats = [1] * (into_full.dim() - 2) + [vocab_size, 1]
        return torch.cat([from_shorter, into_full.repeat(repeats)], dim=-2)

    def forward_best(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        vocab_size = self.vocab_size
        if self.context_size == 0:
            best, arc = weights.max(dim=-1)
            return best, arc
        shorter, full = self._split_sources(weights)
        best, oldest = full.max(dim=-3)
        best, oldest = best.flatten(-2), oldest.flatten(-2)
        # A full history's arcs are numbered oldest label first, after those of the shorter ones.
        arcs = (torch.arange(self.num_states, device=weights.device) - 1).clamp(min=0)
        position = torch.arange(self._num_full, device=weights.device)
        full_arc = self._num_shorter * vocab_size + oldest * self._num_full + position
        from_shorter = shorter[..., self._num_shorter - 1 :]
        wins = from_shorter >= best
        best = torch.where(wins, from_shorter, best)
        arc = torch.where(wins, arcs[self._num_shorter :], full_arc)
        lower = arcs[: self._num_shorter].expand(*arc.shape[:-1], -1)
        nothing = torch.full_like(best[..., :1], -torch.inf)
        best = torch.cat([nothing, shorter[..., : self._num_shorter - 1], best], dim=-1)
        return best, torch.cat([lower, arc], dim=-1)

    def parent(self, state: Tensor) -> Tensor:
        """The history without its last label; -1 for the empty one."""
        return torch.div(state - 1, self.vocab_size, rounding_mode="floor")

    def last_label(self, state: Tensor) -> Tensor:
        """The last label of the history; 0 for the empty one."""
        return torch.where(state == 0, 0, (state - 1) % self.vocab_size + 1)

    def _split_sources(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Arcs [*batch, Q, V] as [*batch, Q - 1] of shorter, [*batch, V, V^(n-1), V] of full ones.

        The arcs of shorter histories, in order, enter states 1, 2, ..., Q - 1, one each. Those of
        full histories enter full ones, whatever the oldest label was.
        """
        shorter = weights[..., : self._num_shorter, :].flatten(-2)
        full = weights[..., self._num_shorter :, :].unflatten(-2, (self.vocab_size, -1))
        return shorter, full

    @staticmethod
    def _batch(weights: Tensor, semiring: Semiring) -> tuple[int, ...]:
        """The batch dims of arc values, without the semiring's component dim."""
        return tuple(weights.shape[1 if semiring.num_components else 0 : -2])
