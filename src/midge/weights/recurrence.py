"""An LSTM over the states of a context: a tree of label histories instead of a batch of strings."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from midge.contexts import FiniteContext


@final
class StateTree:
    """The shortest path to every state, as a tree to run an RNN along.

    The state of an LSTM after the labels of q follows from its state after the labels of q's
    parent and from q's last label, so neither is computed twice: W_hh h once per parent, W_ih x
    once per label, and per state only the cell's elementwise part.

    Args:
        context: the context dependency.
    """

    def __init__(self, context: FiniteContext) -> None:
        """Keeps the context."""
        self._context = context

    def run(self, embedding: Tensor, rnn: nn.LSTM, states: Tensor | None) -> Tensor:
        """The LSTM's output after the labels of each state.

        Args:
            embedding: [1 + vocab_size, embedding_size]; row 0 is the start symbol.
            rnn: a single-layer LSTM.
            states: [S] ascending; None is all.

        Returns:
            [S, rnn_size].
        """
        wanted = states
        if wanted is None:
            wanted = torch.arange(self._context.num_states, device=embedding.device)
        input_weight, hidden_weight, input_bias, hidden_bias = rnn.all_weights[0]
        by_label = nn.functional.linear(embedding, input_weight, input_bias + hidden_bias)
        levels = self._levels(wanted)
        hidden = embedding.new_zeros(1, rnn.hidden_size)
        cell = torch.zeros_like(hidden)
        outputs = []
        for depth, level in enumerate(levels):
            gates = by_label[self._context.last_label(level)]
            if depth > 0:
                parents, which = self._context.parent(level).unique(return_inverse=True)
                rows = torch.searchsorted(levels[depth - 1], parents)
                by_parent = nn.functional.linear(hidden[rows], hidden_weight)
                gates = gates + by_parent[which]
                cell = cell[rows][which]
            hidden, cell = _lstm_cell(gates, cell)
            outputs.append(hidden)
        order = torch.cat(levels).argsort()
        return torch.cat(outputs)[order][torch.searchsorted(torch.cat(levels)[order], wanted)]

    def _levels(self, states: Tensor) -> list[Tensor]:
        """The states and all before them on their paths, by distance from the start, ascending."""
        # Walk up from all states at once; a state's depth is the number of its ancestors.
        paths = [states]
        while bool((paths[-1] >= 0).any()):
            alive = paths[-1] >= 0
            paths.append(torch.where(alive, self._context.parent(paths[-1].clamp(min=0)), -1))
        path = torch.stack(paths)  # [steps up, S]
        up = torch.arange(len(paths), device=path.device)[:, None]
        depth = (path >= 0).sum(0) - 1 - up
        return [path[(path >= 0) & (depth == at)].unique() for at in range(len(paths) - 1)]


def _lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """The elementwise part of an LSTM, gates in PyTorch's order: hidden and cell."""
    into, forget, candidate, out = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + into.sigmoid() * candidate.tanh()
    return out.sigmoid() * cell.tanh(), cell
