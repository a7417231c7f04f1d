"""What an encoder is: from the frames of the front end to the frames of the lattice, one for one.

An encoder runs over whole utterances (`forward`) or, if it is streaming, over pieces of a stream
(`start`, `step`, `finish`). The module holds parameters alone; all that a stream remembers is in
its state, a tuple of tensors with the streams along dim 0 (see `midge.encoders.streams`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = tuple[Any, ...]
"""What streams remember: a tuple, possibly nested, of tensors with the streams along dim 0."""


class Encoder(nn.Module, ABC):
    """From frames x_1..x_T to as many frames h_1..h_T.

    A streaming encoder's h_t depends on x_1..x_{t + look_ahead} alone; a full-context one's on all.

    Args:
        input_size: size of an input frame.
        output_size: size of an output frame.
        is_streaming: whether it can `step`.
        look_ahead: how many frames after its own a frame depends on, if streaming.
    """

    def __init__(
        self, input_size: int, output_size: int, *, is_streaming: bool, look_ahead: int = 0
    ) -> None:
        """Remembers the sizes."""
        super().__init__()
        if input_size < 1:
            raise ValueError(f"input_size should be at least 1, got {input_size}")
        self.input_size = input_size
        self.output_size = output_size
        self.is_streaming = is_streaming
        self.look_ahead = look_ahead

    def forward(self, frames: Tensor, num_frames: Tensor) -> Tensor:
        """Encodes whole utterances.

        Args:
            frames: [*batch, max_num_frames, input_size]; padding may hold anything, also NaN.
            num_frames: [*batch] integers, how many frames of each are real.

        Returns:
            [*batch, max_num_frames, output_size] of the dtype of `frames`; padding is 0.

        Raises:
            ValueError: if a shape or a count is wrong.
        """
        self._check_frames(frames)
        if num_frames.shape != frames.shape[:-2]:
            raise ValueError(
                f"num_frames should be {list(frames.shape[:-2])} as frames are "
                f"{list(frames.shape)}, got {list(num_frames.shape)}"
            )
        max_num_frames = frames.shape[-2]
        if ((num_frames < 0) | (num_frames > max_num_frames)).any():
            raise ValueError(f"num_frames should be in 0..{max_num_frames}, got {num_frames}")
        if frames.shape[:-1].numel() == 0:
            return frames.new_zeros(*frames.shape[:-1], self.output_size)
        is_padding = torch.arange(max_num_frames, device=frames.device) >= num_frames[..., None]
        # Zeroed first: what is masked later is multiplied by 0, and 0 times NaN is NaN.
        frames = frames.masked_fill(is_padding[..., None], 0.0)
        flat = frames.reshape(-1, max_num_frames, self.input_size)
        flat = self._encode(flat, is_padding.reshape(-1, max_num_frames))
        encoded = flat.view(*frames.shape[:-1], self.output_size).to(frames.dtype)
        return encoded.masked_fill(is_padding[..., None], 0.0)

    def start(self, batch_size: int = 1) -> State:
        """The state of streams that have heard nothing.

        Raises:
            ValueError: if the encoder is not streaming.
        """
        self._require_streaming()
        return self._start(batch_size)

    def step(self, frames: Tensor, state: State) -> tuple[Tensor, State]:
        """Encodes the next frames of some streams.

        In pieces of any sizes a stream gives what `forward` gives at once, up to rounding. With a
        look-ahead of n the first n frames of a stream give nothing: the output is that much late.

        Args:
            frames: [batch, n, input_size], of streams that all have n frames more.
            state: of as many streams; it is not changed.

        Returns:
            [batch, m, output_size], the frames that became known (m = n but for the first
            `look_ahead` frames of a stream), and the new state.

        Raises:
            ValueError: if the encoder is not streaming; if a shape is wrong; if some streams have
                not yet heard their first `look_ahead` frames and are not equally old (step those
                alone first, then join them to others).
        """
        self._require_streaming()
        self._check_frames(frames)
        if frames.dim() != 3:
            raise ValueError(f"frames should be [batch, n, input_size], got {list(frames.shape)}")
        encoded, state = self._step(frames, state)
        return encoded.to(frames.dtype), state

    def finish(self, state: State) -> Tensor:
        """The frames that waited for frames after them, at the end of streams.

        Returns:
            [batch, m, output_size] of the parameters' dtype; m is `look_ahead`, or the length of a
            shorter stream.
        """
        self._require_streaming()
        return self._finish(state).to(next(self.parameters()).dtype)

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.parameters())

    @abstractmethod
    def _encode(self, frames: Tensor, is_padding: Tensor) -> Tensor:
        """Encodes [batch, max_num_frames, input_size] with zeros at padding; any values there."""

    @abstractmethod
    def _start(self, batch_size: int) -> State:
        """As `start`, of a streaming encoder."""

    @abstractmethod
    def _step(self, frames: Tensor, state: State) -> tuple[Tensor, State]:
        """As `step`, of a streaming encoder and frames of the right shape."""

    @abstractmethod
    def _finish(self, state: State) -> Tensor:
        """As `finish`, of a streaming encoder."""

    def _new_zeros(self, *shape: int) -> Tensor:
        """Zeros on the device and of the dtype of the parameters."""
        return next(self.parameters()).new_zeros(shape)

    def _check_frames(self, frames: Tensor) -> None:
        if frames.dim() < 2 or frames.shape[-1] != self.input_size:
            raise ValueError(
                f"frames should be [*batch, num_frames, {self.input_size}], "
                f"got {list(frames.shape)}"
            )

    def _require_streaming(self) -> None:
        if not self.is_streaming:
            raise ValueError(
                "a full-context encoder cannot run in a stream: call it on whole utterances, "
                "or train a streaming one"
            )
