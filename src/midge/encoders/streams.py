"""Streams: states of several put together and taken apart, and one cut into equal blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from midge.encoders.base import Encoder, State


def join_states(states: Sequence[State]) -> State:
    """The states of several groups of streams as one, to step them together.

    Streams of different ages may be joined. The memory of an unlimited left context, the only
    part that grows, is padded in front to that of the oldest. A stream's output among others is
    that of the stream alone up to rounding: matrix products of other sizes differ in the last bit.

    Args:
        states: of one encoder, at least one.

    Raises:
        ValueError: if there is none.
    """
    if not states:
        raise ValueError("states should hold at least one state, got none")
    return cast(State, _joined(states))


def split_state(state: State, sizes: Sequence[int] | None = None) -> list[State]:
    """Takes joined states apart.

    Args:
        state: of some streams.
        sizes: how many streams each part has; one by default.

    Raises:
        ValueError: if the sizes do not add up to the number of streams.
    """
    num_streams = _first_tensor(state).shape[0]
    sizes = [1] * num_streams if sizes is None else list(sizes)
    if sum(sizes) != num_streams or any(size < 0 for size in sizes):
        raise ValueError(f"sizes should add up to {num_streams} streams, got {sizes}")
    return _parts(state, sizes)


class EncoderStream:
    """One stream, encoded in blocks of a fixed size however its frames arrive.

    Matrix products of other sizes round differently in the last bit. In equal blocks a stream
    gives the same bits whether its frames come one by one or all at once. Memory is constant if the
    encoder's left context is limited: this is also the way to encode a recording of hours.

    Args:
        encoder: a streaming encoder, in evaluation mode.
        block_size: frames that are encoded together; a live stream waits until it has so many.

    Example:
        >>> from midge.encoders import LSTMConfig
        >>> stream = EncoderStream(LSTMConfig(num_layers=1, size=8).build(4), block_size=2)
        >>> [len(stream.accept(torch.zeros(n, 4))) for n in (1, 4, 2)], len(stream.finish())
        ([0, 4, 2], 1)
    """

    def __init__(self, encoder: Encoder, block_size: int = 8) -> None:
        """Starts a stream."""
        if block_size < 1:
            raise ValueError(f"block_size should be at least 1, got {block_size}")
        self._encoder = encoder
        self._block_size = block_size
        self._state: State | None = encoder.start(1)
        self._rest: Tensor | None = None

    @torch.no_grad()
    def accept(self, frames: Tensor) -> Tensor:
        """Hears frames [n, input_size]; returns those that became known, [m, output_size].

        Raises:
            ValueError: if the shape is wrong or the stream is finished.
        """
        self._check(frames)
        if self._rest is not None:
            frames = torch.cat((self._rest, frames))
        num_whole = len(frames) // self._block_size * self._block_size
        self._rest = frames[num_whole:].clone()  # a view would keep the whole piece in memory
        return self._encoded(frames[:num_whole])

    @torch.no_grad()
    def finish(self) -> Tensor:
        """Ends the stream; returns the last frames, [m, output_size].

        Raises:
            ValueError: if the stream is finished already.
        """
        self._check(None)
        rest = [] if self._rest is None else [self._step(self._rest)]
        waiting = self._encoder.finish(cast(State, self._state))[0]
        self._state = None
        return torch.cat((*rest, waiting))

    def _encoded(self, frames: Tensor) -> Tensor:
        """Encodes whole blocks."""
        blocks = [self._step(block) for block in frames.split(self._block_size) if len(block)]
        return torch.cat(blocks) if blocks else frames.new_zeros(0, self._encoder.output_size)

    def _step(self, frames: Tensor) -> Tensor:
        encoded, self._state = self._encoder.step(frames[None], cast(State, self._state))
        return encoded[0]

    def _check(self, frames: Tensor | None) -> None:
        if self._state is None:
            raise ValueError("the stream is finished: start a new one")
        input_size = self._encoder.input_size
        if frames is not None and (frames.dim() != 2 or frames.shape[1] != input_size):
            raise ValueError(f"frames should be [n, {input_size}], got {list(frames.shape)}")


def _joined(parts: Sequence[Tensor] | Sequence[State]) -> Tensor | State:
    first = parts[0]
    if isinstance(first, Tensor):
        return _concatenated(cast(Sequence[Tensor], parts))
    return _like(first, [_joined(inner) for inner in zip(*parts, strict=True)])


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    pasts = [part.shape[1] for part in parts]
    if min(pasts) == max(pasts):
        return torch.cat(list(parts))
    nothing = (0, 0) * (parts[0].dim() - 2)
    missing = [max(pasts) - past for past in pasts]
    return torch.cat(
        [
            nn.functional.pad(part, (*nothing, count, 0))
            for part, count in zip(parts, missing, strict=True)
        ]
    )


def _parts(state: State, sizes: list[int]) -> list[State]:
    # Copies: views would keep the memory of all the streams alive.
    columns = [
        [part.clone() for part in inner.split(sizes)]
        if isinstance(inner, Tensor)
        else _parts(inner, sizes)
        for inner in state
    ]
    return [_like(state, parts) for parts in zip(*columns, strict=True)]


def _like(state: State, parts: Sequence[Tensor | State]) -> State:
    """A tuple of the same type, named or not."""
    make = getattr(type(state), "_make", type(state))
    return cast(State, make(parts))


def _first_tensor(state: State) -> Tensor:
    first = state[0]
    return first if isinstance(first, Tensor) else _first_tensor(first)
