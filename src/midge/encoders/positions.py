"""Positions in self-attention: how the score of a query and a key depends on time.

Only the offset counts, the time of the query less that of the key, so that a stream may run for
ever. Angles are float64 until their sine is taken: in float32 they are wrong by 0.01 after an hour.
Shapes: B batch, H num_heads, E head_size, N num_queries, M num_keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn

_LONGEST_WAVE = 10000.0  # of Vaswani et al.; in frames, over 2 pi


class Positions(nn.Module, ABC):
    """How times enter the scores of self-attention."""

    is_plain: bool
    """Whether placed queries and keys are all there is: there is no bias."""

    @abstractmethod
    def place(self, projected: Tensor, times: Tensor) -> Tensor:
        """Queries or keys [B, N, H, E] with their times [B, N] or [N] put in."""

    @abstractmethod
    def bias(self, queries: Tensor, largest_offset: int, num_keys: int) -> Tensor | None:
        """What is added to the scaled scores of queries [B, H, N, E].

        Args:
            queries: [B, H, N, E], of consecutive times.
            largest_offset: the time of the last query less that of the first key.
            num_keys: of consecutive times.

        Returns:
            [B, H, N, num_keys], or None if the scores are complete.
        """


@final
class RotaryPositions(Positions):
    """Rotary positions of Su et al. 2021: queries and keys are turned by their time.

    The pair (e, e + head_size / 2) of a head turns by time * 10000^(-2 e / head_size), so that the
    product of a query and a key depends on their offset. Has no parameters, and keys in a stream's
    memory need not be turned again.

    Args:
        head_size: even size of a head.
    """

    is_plain = True

    def __init__(self, head_size: int) -> None:
        """Remembers the size."""
        super().__init__()
        self.head_size = head_size

    def place(self, projected: Tensor, times: Tensor) -> Tensor:
        angles = _angles(times, self.head_size)[..., None, :]  # [..., N, 1, E / 2]
        # bfloat16 has too few digits for a turn: it would blur the offset.
        dtype = torch.promote_types(projected.dtype, torch.float32)
        cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
        first, second = projected.chunk(2, -1)
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        return torch.cat(turned, -1).to(projected.dtype)

    def bias(self, queries: Tensor, largest_offset: int, num_keys: int) -> Tensor | None:
        return None


@final
class RelativePositions(Positions):
    """Relative positions of Dai et al. 2019 (Transformer-XL), as Gulati et al. use them.

    The score of a query at offset o gets (query + b) . W s(o) / sqrt(head_size), where s(o) are
    sines and cosines, W and b parameters. Their content bias is the query projection's own bias.

    Args:
        num_heads: number of heads.
        head_size: even size of a head.
    """

    is_plain = False

    def __init__(self, num_heads: int, head_size: int) -> None:
        """Draws the parameters."""
        super().__init__()
        self.projection = nn.Linear(num_heads * head_size, num_heads * head_size, bias=False)
        """W, for all heads."""
        self.position_bias = nn.Parameter(torch.zeros(num_heads, head_size))
        """b, [num_heads, head_size]"""

    def place(self, projected: Tensor, times: Tensor) -> Tensor:
        return projected

    def bias(self, queries: Tensor, largest_offset: int, num_keys: int) -> Tensor | None:
        num_heads, num_queries, head_size = queries.shape[1:]
        num_offsets = num_queries + num_keys  # one more than there are, for `_by_key`
        offsets = largest_offset - torch.arange(num_offsets, device=queries.device)
        angles = _angles(offsets, self.projection.in_features)
        waves = torch.cat((angles.sin(), angles.cos()), -1).to(self.projection.weight.dtype)
        embedded = self.projection(waves).view(num_offsets, num_heads, head_size)
        shifted = queries + self.position_bias[:, None].to(queries.dtype)
        scores = shifted @ embedded.permute(1, 2, 0).to(queries.dtype) * head_size**-0.5
        return _by_key(scores, num_keys)


def _angles(times: Tensor, size: int) -> Tensor:
    """[..., size / 2] float64: the angle of each wave at some times [...]."""
    exponents = torch.arange(0, size, 2, dtype=torch.float64, device=times.device) / size
    return times[..., None] * _LONGEST_WAVE**-exponents


def _by_key(scores: Tensor, num_keys: int) -> Tensor:
    """From [B, H, N, N + num_keys] by offset, largest first, to [B, H, N, num_keys] by key.

    Row i of the result is row i of the scores from column N - 1 - i on. Read without a row's last
    element, the flat scores are shifted by one more in each row: no indices, and no copy.
    """
    *batch, num_queries, num_offsets = scores.shape
    flat = scores.flatten(-2)[..., num_queries - 1 :][..., : num_queries * (num_offsets - 1)]
    return flat.view(*batch, num_queries, num_offsets - 1)[..., :num_keys]
