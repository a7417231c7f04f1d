"""A linear layer that trains on the widest registers of the processor.

torch multiplies float32 matrices by MKL, which serves processors of other makers than its own with
half of AVX-512. There oneDNN, which torch brings too, is about twice as fast.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@final
class Linear(nn.Linear):
    """`nn.Linear`, by oneDNN where that is faster; rounding apart, the same.

    Only in training and in float32 on a CPU: the few frames of a stream gain nothing.
    """

    def forward(self, frames: Tensor) -> Tensor:
        """From [*batch, in_features] to [*batch, out_features]."""
        if torch.is_grad_enabled() and frames.numel() and _is_served(frames, self.weight):
            product: Tensor = _Product.apply(frames, self.weight, self.bias)
            return product
        return super().forward(frames)


def _is_served(*operands: Tensor) -> bool:
    is_plain = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in operands)
    return is_plain and not torch.is_autocast_enabled("cpu") and prefers_onednn()


@functools.cache
def prefers_onednn() -> bool:
    """Whether this processor has AVX-512 that MKL does not use, and torch the product we need."""
    if (
        torch.backends.cpu.get_cpu_capability() != "AVX512"
        or not torch.backends.mkldnn.is_available()
    ):
        return False
    try:
        vendor = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        _times_transposed(torch.ones(2, 2), torch.ones(2, 2), None)
    except (OSError, AttributeError, RuntimeError):  # another system, or another torch
        return False
    return "GenuineIntel" not in vendor


def _times_transposed(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """[n, k] times the transpose of [m, k], plus [m], by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


class _Product(torch.autograd.Function):
    """frames W^T + bias."""

    @staticmethod
    def forward(ctx: Any, frames: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        flat = frames.reshape(-1, frames.shape[-1])
        ctx.save_for_backward(flat, weight)
        return _times_transposed(flat, weight, bias).view(*frames.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        frames, weight = ctx.saved_tensors
        needs_frames, needs_weight, needs_bias = ctx.needs_input_grad
        flat = gradient.reshape(-1, gradient.shape[-1])
        by_frames = by_weight = by_bias = None
        if needs_frames:
            by_frames = _times_transposed(flat, weight.t(), None)
            by_frames = by_frames.view(*gradient.shape[:-1], weight.shape[1])
        if needs_weight:
            by_weight = _times_transposed(flat.t(), frames.t(), None)
        if needs_bias:
            by_bias = flat.sum(0)
        return by_frames, by_weight, by_bias
