"""LSTM encoders: unidirectional, which is streaming, and bidirectional, which is not.

The two are *not* matched in parameters: the second direction doubles them, and the size of a frame.
For a comparison of streaming with full context take the Conformer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from midge.encoders.base import Encoder, State
from midge.encoders.dropout import Dropout


@dataclass(frozen=True, kw_only=True)
class LSTMConfig:
    """Settings of an LSTM encoder.

    Example:
        >>> LSTMConfig(size=16, is_bidirectional=True).output_size
        32
    """

    kind: Literal["lstm"] = "lstm"
    """Chooses this encoder in a recipe."""
    num_layers: int = 3
    """Number of LSTM layers."""
    size: int = 320
    """Number of cells in each direction."""
    is_bidirectional: bool = False
    """Whether a second LSTM reads from the end: full context, with twice the parameters."""
    dropout: float = 0.1
    """Share of values that are dropped after each layer, in training."""

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in ("num_layers", "size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout should be in [0, 1), got {self.dropout}")

    @property
    def is_streaming(self) -> bool:
        """Whether a frame depends on the past alone."""
        return not self.is_bidirectional

    @property
    def output_size(self) -> int:
        """Size of an output frame."""
        return 2 * self.size if self.is_bidirectional else self.size

    @property
    def is_parameter_matched(self) -> bool:
        """Whether the streaming and the full-context form have the same parameters: they do not."""
        return False

    def build(self, input_size: int) -> LSTM:
        """Draws the parameters of an encoder of frames of this size."""
        return LSTM(self, input_size)


class LSTMState(NamedTuple):
    """What an LSTM remembers of streams."""

    hidden: Tensor
    """[batch, num_layers, size]"""
    cells: Tensor
    """[batch, num_layers, size]"""


@final
class LSTM(Encoder):
    """A stack of LSTM layers, in one direction or two; autocast leaves them as they are.

    Args:
        config: its settings.
        input_size: size of an input frame.
    """

    def __init__(self, config: LSTMConfig, input_size: int) -> None:
        """Draws the parameters."""
        super().__init__(input_size, config.output_size, is_streaming=config.is_streaming)
        self.config = config
        self.layers = nn.LSTM(
            input_size,
            config.size,
            config.num_layers,
            batch_first=True,
            # torch drops between layers, and warns if there is nothing between.
            dropout=config.dropout if config.num_layers > 1 else 0.0,
            bidirectional=config.is_bidirectional,
        )
        self.dropout = Dropout(config.dropout)
        for name, parameter in self.layers.named_parameters():
            _initialize(name, parameter)

    def _encode(self, frames: Tensor, is_padding: Tensor) -> Tensor:
        if not self.config.is_bidirectional:
            return self.dropout(self._run(frames, None)[0])
        # The second direction starts at the last real frame; packing wants at least one.
        num_frames = (~is_padding).sum(-1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(
            frames, num_frames, batch_first=True, enforce_sorted=False
        )
        encoded, _ = nn.utils.rnn.pad_packed_sequence(
            self._run(packed, None)[0], batch_first=True, total_length=frames.shape[1]
        )
        return self.dropout(encoded)

    def _start(self, batch_size: int) -> State:
        zeros = self._new_zeros(batch_size, self.config.num_layers, self.config.size)
        return LSTMState(zeros, zeros)

    def _step(self, frames: Tensor, state: State) -> tuple[Tensor, State]:
        if not frames.shape[1]:
            return frames.new_zeros(frames.shape[0], 0, self.output_size), state
        # torch wants the layers first.
        memory = tuple(x.transpose(0, 1).contiguous() for x in cast(LSTMState, state))
        encoded, (hidden, cells) = self._run(frames, memory)
        return self.dropout(encoded), LSTMState(hidden.transpose(0, 1), cells.transpose(0, 1))

    def _run(self, frames: Any, memory: tuple[Tensor, ...] | None) -> Any:
        # Not in bfloat16: a recurrence adds up its rounding, and few processors can.
        with torch.autocast(next(self.parameters()).device.type, enabled=False):
            return self.layers(frames, memory)

    def _finish(self, state: State) -> Tensor:
        return self._new_zeros(cast(LSTMState, state).hidden.shape[0], 0, self.output_size)


def _initialize(name: str, parameter: Tensor) -> None:
    """Glorot's weights for the input, orthogonal ones for the past, which is kept at first."""
    with torch.no_grad():
        for index, gate in enumerate(parameter.chunk(4)):  # input, forget, cell, output
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(gate)
            elif name.startswith("weight_hh"):
                nn.init.orthogonal_(gate)
            else:
                # torch has two biases, which add up.
                gate.fill_(1.0 if index == 1 and name.startswith("bias_ih") else 0.0)
