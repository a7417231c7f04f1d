"""Per-state linear projection: every context state has parameters of its own."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from midge.contexts import FiniteContext
from midge.weights.base import Linear, Scorer, WeightFn, linear_over_states, require_finite


@final
class UnsharedWeights(WeightFn):
    """The paper's *unshared* weight function: omega(t, q, y) = (W_q frame_t + b_q)[y].

    Args:
        context: the context dependency; must be finite.
        input_size: size of a frame.
    """

    kind = "unshared"

    def __init__(self, context: FiniteContext, input_size: int) -> None:
        """Draws the parameters."""
        super().__init__()
        require_finite(context, UnsharedWeights)
        self.context = context
        self.input_size = input_size
        shape = (context.num_states, 1 + context.vocab_size)
        bound = input_size**-0.5
        self.weight = nn.Parameter(torch.empty(*shape, input_size).uniform_(-bound, bound))
        """[num_states, 1 + vocab_size, input_size]"""
        self.bias = nn.Parameter(torch.zeros(shape))
        """[num_states, 1 + vocab_size]"""

    def scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        states: Tensor | None,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        self._check_frames(frames)
        chosen: tuple[Tensor, Tensor] = (self.weight, self.bias)
        if states is not None:
            chosen = (self.weight[states], self.bias[states])
        return Scorer(_score, 1 + self.context.vocab_size, step=(frames,), state=chosen)


def _score(
    step: tuple[Tensor, ...],
    batch: tuple[Tensor, ...],
    state: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    steps: range,
) -> Tensor:
    return linear_over_states(step[0], *state)
