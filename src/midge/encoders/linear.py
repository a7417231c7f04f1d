"""A linear layer that trains on the widest registers of the processor, in bfloat16 if wanted.

torch multiplies float32 matrices by MKL, which serves processors of other makers than its own with
half of AVX-512. There oneDNN, which torch brings too, is about twice as fast. Processors that
multiply bfloat16 are twice as fast again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_HAS_BFLOAT16_PRODUCTS: ContextVar[bool] = ContextVar("has_bfloat16_products", default=False)


@contextmanager
def bfloat16_products(device_type: str) -> Iterator[None]:
    """Has encoders multiply in bfloat16 inside; parameters stay what they are.

    On a CPU only the products of float32 linear layers are: what lies between them gains nothing
    there by fewer bits, and under autocast a Conformer's step takes as long as in float32. On other
    devices this is autocast.

    Args:
        device_type: where the encoder is, such as "cpu".
    """
    if device_type != "cpu":
        with torch.autocast(device_type, torch.bfloat16):
            yield
        return
    token = _HAS_BFLOAT16_PRODUCTS.set(True)
    try:
        yield
    finally:
        _HAS_BFLOAT16_PRODUCTS.reset(token)


@final
class Linear(nn.Linear):
    """`nn.Linear`, by oneDNN where that is faster; rounding apart, the same.

    Only in training and in float32 on a CPU: the few frames of a stream gain nothing. Inside
    `bfloat16_products` the operands are rounded to bfloat16.
    """

    def forward(self, frames: Tensor) -> Tensor:
        """From [*batch, in_features] to [*batch, out_features]."""
        if frames.numel() and _is_plain(frames, self.weight):
            dtype = torch.bfloat16 if _HAS_BFLOAT16_PRODUCTS.get() else torch.float32
            if dtype == torch.bfloat16 or (torch.is_grad_enabled() and prefers_onednn()):
                product: Tensor = _Product.apply(frames, self.weight, self.bias, dtype)
                return product
        return super().forward(frames)


def _is_plain(*operands: Tensor) -> bool:
    is_single = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in operands)
    return is_single and not torch.is_autocast_enabled("cpu")


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


@functools.cache
def _has_onednn_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 here; torch does it anywhere, if slowly."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # another torch
        return False


def _times_transposed(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """[n, k] times the transpose of [m, k], plus [m], by oneDNN; bfloat16 also without it."""
    if left.dtype == torch.bfloat16 and not _has_onednn_bfloat16():
        return nn.functional.linear(left, right, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


class _Product(torch.autograd.Function):
    """frames W^T + bias, of operands rounded to a dtype; float32 in and out."""

    @staticmethod
    def forward(
        ctx: Any, frames: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        flat, weight = frames.reshape(-1, frames.shape[-1]).to(dtype), weight.to(dtype)
        ctx.save_for_backward(flat, weight)
        bias = None if bias is None else bias.to(dtype)
        product = _times_transposed(flat, weight, bias).to(frames.dtype)
        return product.view(*frames.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        frames, weight = ctx.saved_tensors
        needs_frames, needs_weight, needs_bias, _ = ctx.needs_input_grad
        flat = gradient.reshape(-1, gradient.shape[-1])
        rounded = flat.to(weight.dtype)
        by_frames = by_weight = by_bias = None
        if needs_frames:
            by_frames = _times_transposed(rounded, weight.t(), None).to(gradient.dtype)
            by_frames = by_frames.view(*gradient.shape[:-1], weight.shape[1])
        if needs_weight:
            by_weight = _times_transposed(rounded.t(), frames.t(), None).to(gradient.dtype)
        if needs_bias:
            by_bias = flat.sum(0)
        return by_frames, by_weight, by_bias, None
