"""An LSTM over the states of a context: a tree of label histories instead of a batch of strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from midge.contexts import FiniteContext
from midge.weights.base import Linear


@final
class LabelLSTM(nn.Module):
    """A single-layer LSTM with the parameters of `nn.LSTM`, batch first.

    A class of its own because `torch.compile` does not look into `nn.LSTM`.

    Args:
        input_size: size of an input.
        hidden_size: number of cells.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Draws the parameters as `nn.LSTM` does."""
        super().__init__()
        self.hidden_size = hidden_size
        bound = hidden_size**-0.5

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.weight_ih_l0 = drawn(4 * hidden_size, input_size)
        self.weight_hh_l0 = drawn(4 * hidden_size, hidden_size)
        self.bias_ih_l0 = drawn(4 * hidden_size)
        self.bias_hh_l0 = drawn(4 * hidden_size)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Runs over sequences.

        Args:
            x: [B, N, input_size].
            state: two tensors [1, B, hidden_size], from an earlier call; None is zero.

        Returns:
            [B, N, hidden_size] the outputs, and the state after the last.
        """
        if state is None:
            zero = x.new_zeros(1, x.shape[0], self.hidden_size)
            state = (zero, zero)
        weights: list[Tensor] = [
            self.weight_ih_l0,
            self.weight_hh_l0,
            self.bias_ih_l0,
            self.bias_hh_l0,
        ]
        output, hidden, cell = torch.lstm(
            x, state, weights, True, 1, 0.0, self.training, False, True
        )
        return output, (hidden, cell)


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
        """Lays out the tree of all states, unless it is so large that only parts will be run."""
        self._context = context
        self._all: _Layout | None = None
        if context.num_states <= _MAX_KEPT_STATES:
            with torch.device("cpu"):  # also where parameters are made on another, or on none
                self._all = self._layout(torch.arange(context.num_states))

    def run(
        self,
        embedding: Tensor,
        rnn: LabelLSTM,
        states: Tensor | None,
        linear: Linear,
    ) -> Tensor:
        """The LSTM's output after the labels of each state.

        Args:
            embedding: [1 + vocab_size, embedding_size]; row 0 is the start symbol.
            rnn: the LSTM.
            states: [S] ascending; None is all.
            linear: what multiplies matrices.

        Returns:
            [S, rnn_size].
        """
        layout = self._all
        if states is not None or layout is None:
            wanted = torch.arange(self._context.num_states) if states is None else states
            layout = self._layout(wanted)
        by_label = linear(embedding, rnn.weight_ih_l0) + (rnn.bias_ih_l0 + rnn.bias_hh_l0)
        hidden = cell = embedding.new_zeros(1, rnn.hidden_size)
        outputs: list[Tensor] = []
        for level in layout.levels:
            gates = by_label[level.last_label.to(embedding.device)]
            if outputs:
                rows, which = (x.to(embedding.device) for x in (level.parents, level.which_parent))
                gates = gates + linear(hidden[rows], rnn.weight_hh_l0)[which]
                cell = cell[rows][which]
            hidden, cell = _lstm_cell(gates, cell)
            outputs.append(hidden)
        return torch.cat(outputs)[layout.place.to(embedding.device)]

    def _layout(self, states: Tensor) -> _Layout:
        """The states and all before them on their paths, by distance from the start."""
        # Walk up from all states at once; a state's depth is the number of its ancestors.
        paths = [states]
        while bool((paths[-1] >= 0).any()):
            alive = paths[-1] >= 0
            paths.append(torch.where(alive, self._context.parent(paths[-1].clamp(min=0)), -1))
        path = torch.stack(paths)  # [steps up, S]
        up = torch.arange(len(paths), device=path.device)[:, None]
        depth = (path >= 0).sum(0) - 1 - up
        members = [path[(path >= 0) & (depth == at)].unique() for at in range(len(paths) - 1)]
        levels = []
        for at, member in enumerate(members):
            parents, which = self._context.parent(member).unique(return_inverse=True)
            rows = torch.searchsorted(members[at - 1], parents) if at else parents
            levels.append(_Level(self._context.last_label(member), rows, which))
        ordered, order = torch.cat(members).sort()
        return _Layout(levels, order[torch.searchsorted(ordered, states)])


_MAX_KEPT_STATES = 2**18


@dataclass(frozen=True)
class _Level:
    """States at one distance from the start."""

    last_label: Tensor
    """[N] the last label of each."""
    parents: Tensor
    """[P] the distinct parents, as rows of the level before."""
    which_parent: Tensor
    """[N] which of them is each state's."""


@dataclass(frozen=True)
class _Layout:
    """What to compute, in which order, for a set of states."""

    levels: list[_Level]
    place: Tensor
    """[S] where each state stands in the levels' rows, one after the other."""


def _lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """The elementwise part of an LSTM, gates in PyTorch's order: hidden and cell."""
    into, forget, candidate, out = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + into.sigmoid() * candidate.tanh()
    return out.sigmoid() * cell.tanh(), cell
