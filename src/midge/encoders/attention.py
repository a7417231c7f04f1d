"""Multi-head self-attention over whole utterances, or over a stream with a memory.

Queries run in blocks, each over the keys that its frames may see: memory is O(block * keys), and
with a limited left context the cost per frame is constant.
Shapes: B batch, H num_heads, E head_size, N num_queries, M num_keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from midge.encoders.linear import Linear
from midge.encoders.positions import Positions

_BLOCK_SIZE = 128  # queries; larger blocks score more keys in vain, smaller ones call more often


class AttentionMemory(NamedTuple):
    """Keys and values of the past frames of streams; the newest are last."""

    keys: Tensor
    """[batch, num_past, num_heads, head_size]"""
    values: Tensor
    """[batch, num_past, num_heads, head_size]"""


class SelfAttention(nn.Module):
    """LayerNorm and multi-head self-attention.

    Frame t sees the frames from t - left_context on; if causal up to t, else up to the end.

    Args:
        size: size of a frame.
        num_heads: number of heads; divides `size`.
        positions: how times enter the scores.
        left_context: how many frames before itself a frame sees; None for all.
        is_causal: whether a frame sees none after itself.
    """

    def __init__(
        self,
        size: int,
        num_heads: int,
        positions: Positions,
        *,
        left_context: int | None,
        is_causal: bool,
    ) -> None:
        """Draws the parameters."""
        super().__init__()
        self.num_heads = num_heads
        self.left_context = left_context
        self.is_causal = is_causal
        self.norm = nn.LayerNorm(size)
        self.projection = Linear(size, 3 * size)
        """Queries, keys and values, in this order."""
        self.positions = positions
        self.output = Linear(size, size)

    def forward(self, frames: Tensor, is_padding: Tensor) -> Tensor:
        """Over whole utterances: [batch, max_num_frames, size] -> the same shape."""
        times = torch.arange(frames.shape[1], device=frames.device)
        queries, keys, values = self._projected(frames, times)
        # Padding is at the end: who sees no later frame never sees it.
        is_hidden = None if self.is_causal else is_padding
        return self._attended(queries, keys, values, is_hidden)

    def start(self, frames: Tensor) -> AttentionMemory:
        """The memory of streams that have heard nothing, like frames [batch, any, size]."""
        num_past = self.left_context or 0
        heads = (self.num_heads, frames.shape[-1] // self.num_heads)
        empty = frames.new_zeros(frames.shape[0], num_past, *heads)
        return AttentionMemory(empty, empty)

    def step(
        self, frames: Tensor, memory: AttentionMemory, num_heard: Tensor
    ) -> tuple[Tensor, AttentionMemory]:
        """Over the next frames of streams.

        Args:
            frames: [batch, n, size], n >= 1.
            memory: the past frames; those that a stream has not heard are first and are not seen.
            num_heard: [batch] integers, how many frames came before.

        Returns:
            [batch, n, size], and the new memory.
        """
        if self.left_context is None:
            memory = _trimmed(memory, num_heard)
        num_past = memory.keys.shape[1]
        times = num_heard[:, None] + torch.arange(frames.shape[1], device=frames.device)
        queries, keys, values = self._projected(frames, times)
        keys = torch.cat((memory.keys, keys.to(memory.keys.dtype)), 1)
        values = torch.cat((memory.values, values.to(memory.values.dtype)), 1)
        num_missing = num_past - num_heard[:, None]
        is_missing = torch.arange(keys.shape[1], device=frames.device) < num_missing
        first = 0 if self.left_context is None else keys.shape[1] - self.left_context
        kept = AttentionMemory(keys[:, first:], values[:, first:])
        return self._attended(queries, keys, values, is_missing), kept

    def _projected(self, frames: Tensor, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [B, N, H, E]."""
        projected = self.projection(self.norm(frames)).unflatten(-1, (3, self.num_heads, -1))
        queries, keys, values = projected.unbind(2)
        return self.positions.place(queries, times), self.positions.place(keys, times), values

    def _attended(
        self, queries: Tensor, keys: Tensor, values: Tensor, is_hidden: Tensor | None
    ) -> Tensor:
        """Over queries [B, N, H, E] at the times of the last N keys [B, M, H, E].

        `is_hidden` [B, M] are keys that no other frame sees.
        """
        queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))
        num_past = keys.shape[2] - queries.shape[2]
        is_plain = self.positions.is_plain and is_hidden is None and not num_past
        if is_plain and (self.left_context is None or self.left_context >= keys.shape[2] - 1):
            # Every earlier frame is seen: no mask in memory, and half the work.
            attended = nn.functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=True
            )
        else:
            starts = range(num_past, keys.shape[2], _BLOCK_SIZE)
            blocks = zip(queries.split(_BLOCK_SIZE, 2), starts, strict=True)
            attended = torch.cat(
                [self._block(*block, keys, values, is_hidden) for block in blocks], 2
            )
        hidden: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return hidden

    def _block(
        self, queries: Tensor, start: int, keys: Tensor, values: Tensor, is_hidden: Tensor | None
    ) -> Tensor:
        """Some consecutive queries, the first at the time of key `start`, over what they see."""
        end = start + queries.shape[2]
        first = 0 if self.left_context is None else max(0, start - self.left_context)
        last = end if self.is_causal else keys.shape[2]
        device = queries.device
        offsets = torch.arange(start, end, device=device)[:, None]
        offsets = offsets - torch.arange(first, last, device=device)
        is_seen = offsets >= 0 if self.is_causal else torch.ones_like(offsets, dtype=torch.bool)
        if self.left_context is not None:
            is_seen = is_seen & (offsets <= self.left_context)
        if is_hidden is not None:
            # A frame always sees itself: a row without a key would be NaN.
            is_seen = is_seen & ~is_hidden[:, None, None, first:last] | (offsets == 0)
        bias = self.positions.bias(queries, end - 1 - first, last - first)
        return nn.functional.scaled_dot_product_attention(
            queries,
            keys[:, :, first:last].to(queries.dtype),
            values[:, :, first:last].to(queries.dtype),
            attn_mask=is_seen if bias is None else bias.masked_fill(~is_seen, -torch.inf),
        )


def _trimmed(memory: AttentionMemory, num_heard: Tensor) -> AttentionMemory:
    """Without the places before the start of every stream, left from an older one joined once."""
    num_past = memory.keys.shape[1]
    num_unused = num_past - min(num_past, int(num_heard.max())) if len(num_heard) else 0
    return AttentionMemory(*(x[:, num_unused:] for x in memory))
