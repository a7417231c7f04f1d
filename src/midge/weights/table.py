"""The table: frames that are arc weights already."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from midge.contexts import FiniteContext
from midge.weights.base import Linear, Scorer, WeightFn, require_finite


@final
class TableWeights(WeightFn):
    """A frame *is* its arc weights; there are no parameters.

    A frame of size num_states * (1 + vocab_size), reshaped to [num_states, 1 + vocab_size], holds
    the weight of each arc, column 0 blank. For tests, for weights computed elsewhere, and for
    lattices of one's own.

    Args:
        context: the context dependency; must be finite.
    """

    kind = "table"

    def __init__(self, context: FiniteContext) -> None:
        """Sets the sizes."""
        super().__init__()
        require_finite(context, TableWeights)
        self.context = context
        self._num_columns = 1 + context.vocab_size
        self.input_size = context.num_states * self._num_columns

    def scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        states: Tensor | None,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        self._check_frames(frames)
        if states is None:
            states = torch.arange(self.input_size // self._num_columns, device=frames.device)
        return Scorer(self._score, self._num_columns, step=(frames,), state=(states,))

    def _score(
        self,
        step: tuple[Tensor, ...],
        batch: tuple[Tensor, ...],
        state: tuple[Tensor, ...],
        shared: tuple[Tensor, ...],
        steps: range,
    ) -> Tensor:
        (rows,) = state
        weights = step[0].unflatten(-1, (-1, self._num_columns))
        if rows.dim() == 1:
            return weights if len(rows) == weights.shape[-2] else weights[..., rows, :]
        index = rows[:, None, :, None].expand(-1, weights.shape[1], -1, self._num_columns)
        return weights.gather(-2, index)
