"""The convolution module of a Conformer layer, with a kernel that may reach into the future."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from midge.encoders.linear import Linear


class Convolution(nn.Module):
    """Pointwise, gated linear unit, depthwise over time, LayerNorm, swish, pointwise.

    The depthwise part is y_t = sum over i in 0..kernel_size-1 of w_i * u_{t + right_context - i'}
    with i' = kernel_size - 1 - i: the same kernel at any place. `right_context` 0 is causal,
    (kernel_size - 1) // 2 is centred. Before the start and after the end u is 0.

    LayerNorm stands where Gulati et al. have BatchNorm, whose statistics run over frames to come,
    over padding and over the other utterances of a batch.

    Args:
        size: number of channels.
        kernel_size: frames under the kernel.
        right_context: how many of them are after the frame itself.
    """

    def __init__(self, size: int, kernel_size: int, right_context: int) -> None:
        """Draws the parameters."""
        super().__init__()
        self.kernel_size = kernel_size
        self.right_context = right_context
        self.norm = nn.LayerNorm(size)
        self.expand = Linear(size, 2 * size)
        self.depthwise = nn.Conv1d(size, size, kernel_size, groups=size)
        self.depthwise_norm = nn.LayerNorm(size)
        self.contract = Linear(size, size)

    def forward(self, frames: Tensor, is_padding: Tensor) -> Tensor:
        """Over whole utterances: [batch, max_num_frames, size] -> the same shape."""
        gated = self._gated(frames)
        if self.right_context:  # a causal kernel never reaches the padding
            gated = gated.masked_fill(is_padding[..., None], 0.0)
        left_context = self.kernel_size - 1 - self.right_context
        return self._convolved(nn.functional.pad(gated, (0, 0, left_context, self.right_context)))

    def step(self, frames: Tensor, past: Tensor, is_last: bool) -> tuple[Tensor, Tensor]:
        """Over the next frames of streams, `right_context` frames late.

        Args:
            frames: [batch, n, size]
            past: [batch, kernel_size - 1, size], the last gated frames; zeros at the start.
            is_last: whether nothing follows; the late frames then come out too.

        Returns:
            [batch, n, size], or n + right_context of them if `is_last`; and the new past.
        """
        gated = torch.cat((past, self._gated(frames).to(past.dtype)), 1)
        if is_last:
            gated = nn.functional.pad(gated, (0, 0, 0, self.right_context))
        return self._convolved(gated), gated[:, gated.shape[1] - self.kernel_size + 1 :]

    def _gated(self, frames: Tensor) -> Tensor:
        return nn.functional.glu(self.expand(self.norm(frames)))

    def _convolved(self, gated: Tensor) -> Tensor:
        """From [batch, n + kernel_size - 1, size] to [batch, n, size]."""
        # In two dimensions, of which one is 1: torch then leaves the channels last in memory, where
        # they are, and is three times faster on a CPU.
        channels = gated.transpose(1, 2).unsqueeze(2)
        kernel, bias = self.depthwise.weight.unsqueeze(2), self.depthwise.bias
        convolved = nn.functional.conv2d(channels, kernel, bias, groups=len(kernel))
        convolved = convolved.squeeze(2).transpose(1, 2)
        hidden: Tensor = self.contract(nn.functional.silu(self.depthwise_norm(convolved)))
        return hidden
