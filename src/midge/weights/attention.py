"""Attention over all frames, for the label-dependent lattice of LAS."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from midge.contexts import ContextDependency, FiniteContext
from midge.weights.base import Linear, Scorer, WeightFn, per_step
from midge.weights.recurrence import LabelLSTM, StateTree


@final
class AttentionWeights(WeightFn):
    """Scores labels from all frames: omega(u, q, y) = (W tanh(P_s s + P_a a + c) + b)[y].

    s describes the label history and a is a mean of the frames, weighted by how well P_k frame
    agrees with a query made from s. With `FullHistory` this is the recurrence of LAS with input
    feeding: s_u = LSTM(s_{u-1}, [y_u, a_{u-1}]), query P_q s_u. With a finite context, s is the
    LSTM's output after the labels of the state, without input feeding, and the query also knows
    the label position: P_q s + P_p (sines and cosines of u).

    Args:
        context: the context dependency; any.
        input_size: size of a frame.
        hidden_size: size of keys, queries and the hidden layer.
        embedding_size: size of a label's embedding.
        rnn_size: number of LSTM cells.
    """

    reads_all_frames = True

    def __init__(
        self,
        context: ContextDependency,
        input_size: int,
        hidden_size: int,
        embedding_size: int,
        rnn_size: int,
    ) -> None:
        """Draws the parameters."""
        super().__init__()
        self.context = context
        self.input_size = input_size
        self._tree = StateTree(context) if isinstance(context, FiniteContext) else None
        fed_size = 0 if self._tree else input_size
        self.embedding = nn.Embedding(1 + context.vocab_size, embedding_size)
        self.rnn = LabelLSTM(embedding_size + fed_size, rnn_size)
        self.query = nn.Linear(rnn_size, hidden_size, bias=False)
        self.key = nn.Linear(input_size, hidden_size, bias=False)
        if self._tree:
            self.position = nn.Linear(hidden_size, hidden_size, bias=False)
        self.attended = nn.Linear(input_size, hidden_size, bias=False)
        self.history = nn.Linear(rnn_size, hidden_size)
        self.output = nn.Linear(hidden_size, 1 + context.vocab_size)

    def scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        states: Tensor | None,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        self._check_frames(frames)
        assert self._tree is not None
        embedded = self._tree.run(self.embedding.weight, self.rnn, states, linear)
        return Scorer(
            self._score,
            max(frames.shape[1], self.output.in_features, self.input_size),
            batch=(*self._keys_and_mask(frames, num_frames), self.attended(frames)),
            state=(self.query(embedded), self.history(embedded)),
            shared=(self.position.weight, self.output.weight, self.output.bias),
        )

    def history_scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        """The recurrence is run here, label after label."""
        self._check_frames(frames)
        keys, mask = self._keys_and_mask(frames, num_frames)
        attended = frames.new_zeros(frames.shape[0], self.input_size)
        state = None
        rows = []
        for label in nn.functional.pad(labels, (1, 0)).unbind(1):
            fed = torch.cat([self.embedding(label), attended], dim=-1)
            output, state = self.rnn(fed[:, None], state)
            shares = _shares(self.query(output), keys, mask)
            attended = (shares @ frames).squeeze(1)
            hidden = torch.tanh(self.history(output.squeeze(1)) + self.attended(attended))
            rows.append(self.output(hidden))
        table = torch.stack(rows, dim=1).flatten(0, 1)
        return Scorer(_score_rows, table.shape[-1], state=(table,))

    def _keys_and_mask(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, hidden_size] keys, and [B, T] bool, True for real frames."""
        mask = torch.arange(frames.shape[1], device=frames.device) < num_frames[:, None]
        return self.key(frames), mask

    def _score(
        self,
        step: tuple[Tensor, ...],
        batch: tuple[Tensor, ...],
        state: tuple[Tensor, ...],
        shared: tuple[Tensor, ...],
        steps: range,
    ) -> Tensor:
        """Position u of utterance b at state q: [B, n, S, 1 + V]."""
        keys, mask, values = batch
        query, history = (per_step(each) for each in state)
        position_weight, weight, bias = shared
        places = _sinusoids(steps, position_weight.shape[1], like=query)
        query = query + nn.functional.linear(places, position_weight)[:, None]  # [B|1, n, S, H]
        query = query.expand(keys.shape[0], *query.shape[-3:])
        shares = _shares(query.flatten(1, 2), keys, mask).unflatten(1, query.shape[1:3])
        attended = torch.einsum("bnst,bth->bnsh", shares, values)
        return nn.functional.linear(torch.tanh(history + attended), weight, bias)


def _score_rows(
    step: tuple[Tensor, ...],
    batch: tuple[Tensor, ...],
    state: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    steps: range,
) -> Tensor:
    """Scores that are there already: [B, S, 1 + V] of label positions, whatever the step."""
    return state[0][:, None].expand(-1, len(steps), -1, -1)


def _shares(query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """[B, N, H] queries and [B, T, H] keys -> [B, N, T] weights of the frames, summing to 1.

    Without a single real frame all are 0.
    """
    agreement = query @ keys.transpose(1, 2) * keys.shape[-1] ** -0.5
    nothing = ~mask.any(-1)[:, None, None]
    agreement = agreement.masked_fill(~mask[:, None] & ~nothing, -torch.inf)
    return agreement.softmax(-1).masked_fill(nothing, 0.0)


def _sinusoids(steps: range, size: int, like: Tensor) -> Tensor:
    """[len(steps), size] sines and cosines of label positions."""
    position = torch.arange(steps.start, steps.stop, device=like.device, dtype=like.dtype)[:, None]
    rate = torch.arange((size + 1) // 2, device=like.device, dtype=like.dtype)
    angle = position * 10000.0 ** (-2 * rate / size)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :size]
