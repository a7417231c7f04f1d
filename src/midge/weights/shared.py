"""Shared linear projection: one joint network for all context states.

The joint is W tanh(P_x frame + P_c E_q + c) + b; row 0 of W is blank. What differs is E_q: a row of
an embedding table, or the output of an RNN after the labels of q.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from midge.contexts import ContextDependency, FiniteContext
from midge.weights.base import Linear, Scorer, WeightFn, per_step, require_finite
from midge.weights.recurrence import LabelLSTM, StateTree


class Joint(nn.Module):
    """W tanh(P_x frame + P_c E_q + c) + b.

    Args:
        input_size: size of a frame.
        context_size: size of E_q.
        hidden_size: size of the hidden layer.
        num_columns: 1 + vocab_size.
    """

    def __init__(
        self, input_size: int, context_size: int, hidden_size: int, num_columns: int
    ) -> None:
        """Draws the parameters."""
        super().__init__()
        self.frame_projection = nn.Linear(input_size, hidden_size, bias=False)
        """P_x, [hidden_size, input_size]"""
        self.context_projection = nn.Linear(context_size, hidden_size, bias=False)
        """P_c, [hidden_size, context_size]"""
        self.hidden_bias = nn.Parameter(torch.zeros(hidden_size))
        """c, [hidden_size]"""
        self.output = nn.Linear(hidden_size, num_columns)
        """W, [num_columns, hidden_size], and b, [num_columns]"""

    def scorer(self, frames: Tensor, embedded: Tensor, linear: Linear) -> Scorer:
        """A scorer of frames [B, N, D] and embedded states [S, context_size]."""
        embedded = linear(embedded, self.context_projection.weight)
        return Scorer(
            _score_joint,
            max(self.output.out_features, self.output.in_features),
            step=(linear(frames, self.frame_projection.weight),),
            state=(embedded + self.hidden_bias,),
            shared=(self.output.weight, self.output.bias),
        )


def _score_joint(
    step: tuple[Tensor, ...],
    batch: tuple[Tensor, ...],
    state: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    steps: range,
) -> Tensor:
    hidden = torch.tanh(step[0][:, :, None] + per_step(state[0]))
    return nn.functional.linear(hidden, *shared)


@final
class SharedEmbeddingWeights(WeightFn):
    """The paper's *shared-emb* weight function: E_q is a row of an embedding table.

    Args:
        context: the context dependency; must be finite.
        input_size: size of a frame.
        hidden_size: size of the joint's hidden layer.
        embedding_size: size of E_q.
    """

    kind = "joint"

    def __init__(
        self, context: FiniteContext, input_size: int, hidden_size: int, embedding_size: int
    ) -> None:
        """Draws the parameters."""
        super().__init__()
        require_finite(context, SharedEmbeddingWeights)
        self.context = context
        self.input_size = input_size
        self.embedding = nn.Embedding(context.num_states, embedding_size)
        self.joint = Joint(input_size, embedding_size, hidden_size, 1 + context.vocab_size)

    def scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        states: Tensor | None,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        self._check_frames(frames)
        table = self.embedding.weight
        embedded = table if states is None else self.embedding(states)
        return self.joint.scorer(frames, embedded, linear)


@final
class SharedRNNWeights(WeightFn):
    """The paper's *shared-rnn* weight function: E_q is an LSTM's output after the labels of q.

    The LSTM reads the start symbol (embedding row 0) from the zero state, then the labels. It runs
    once per training step, over the context states and not over frames; its matrix products once
    per parent state and once per label. A loss that needs no denominator runs it over the states
    that the labels visit alone, and with `FullHistory` over the label strings.

    Args:
        context: the context dependency; any.
        input_size: size of a frame.
        hidden_size: size of the joint's hidden layer.
        embedding_size: size of a label's embedding.
        rnn_size: number of LSTM cells, the size of E_q.
    """

    kind = "joint"

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
        self.embedding = nn.Embedding(1 + context.vocab_size, embedding_size)
        self.rnn = LabelLSTM(embedding_size, rnn_size)
        self.joint = Joint(input_size, rnn_size, hidden_size, 1 + context.vocab_size)
        self._tree = StateTree(context) if isinstance(context, FiniteContext) else None

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
        return self.joint.scorer(frames, embedded, linear)

    def history_scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        self._check_frames(frames)
        started = nn.functional.pad(labels, (1, 0))
        output, _ = self.rnn(self.embedding(started))
        return self.joint.scorer(frames, output.flatten(0, 1), linear)
