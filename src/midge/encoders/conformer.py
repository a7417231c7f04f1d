"""The Conformer of Gulati et al. 2020, as the GNAT paper changes it for streaming.

Without convolutional subsampling: the front end stacks frames within the left context, and one
linear layer takes them in. The streaming and the full-context form have the same parameters and
differ in the right context alone: attention is causal or sees all, the kernel of the convolution is
shifted to the left or centred. In between, a look-ahead shifts the kernels of the first layers back
to the centre, as far as it reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from midge.encoders.attention import AttentionMemory, SelfAttention
from midge.encoders.base import Encoder, State
from midge.encoders.convolution import Convolution
from midge.encoders.dropout import Dropout
from midge.encoders.linear import Linear
from midge.encoders.positions import Positions, RelativePositions, RotaryPositions

_FIRST_SHARE = 0.2
"""Of the size of its output with Glorot's weights that a module starts with."""


@dataclass(frozen=True, kw_only=True)
class ConformerConfig:
    """Settings of a Conformer encoder; the defaults are the GNAT paper's, streaming.

    Example:
        >>> config = ConformerConfig(num_layers=2, size=16, num_heads=2, kernel_size=5)
        >>> encoder = config.build(input_size=240)
        >>> encoder(torch.zeros(1, 7, 240), torch.tensor([7])).shape
        torch.Size([1, 7, 16])
    """

    kind: Literal["conformer"] = "conformer"
    """Chooses this encoder in a recipe."""
    num_layers: int = 12
    """Number of Conformer layers."""
    size: int = 512
    """Size of a frame between the layers."""
    num_heads: int = 8
    """Attention heads; size / num_heads should be an even number."""
    kernel_size: int = 32
    """Frames under the kernel of the convolution."""
    feed_forward_factor: int = 4
    """Size of a feed-forward module's hidden layer, in units of `size`."""
    dropout: float = 0.1
    """Share of values that are dropped after each module, in training."""
    is_streaming: bool = True
    """Whether a frame depends on the past alone (and `look_ahead`), or on the whole utterance."""
    left_context: int | None = None
    """How many frames before itself a frame attends to; all if not given. A limit makes the cost
    of a frame in a stream constant; the past reaches further, by this much in each layer."""
    look_ahead: int = 0
    """How many frames after its own an output frame depends on, in the streaming form."""
    positions: Literal["rotary", "relative"] = "rotary"
    """How attention knows the time between frames; "relative" is Gulati et al.'s, and slower."""
    projection_size: int | None = None
    """Size of a linear layer after the last; none if not given. The paper's is 640."""

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in ("num_layers", "size", "num_heads", "kernel_size", "feed_forward_factor"):
            _require_at_least(1, name, getattr(self, name))
        if self.size % (2 * self.num_heads):
            raise ValueError(
                f"size should be a multiple of 2 * num_heads = {2 * self.num_heads}, "
                f"got {self.size}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout should be in [0, 1), got {self.dropout}")
        if self.positions not in ("rotary", "relative"):
            raise ValueError(f'positions should be "rotary" or "relative", got {self.positions!r}')
        if self.left_context is not None:
            _require_at_least(1, "left_context", self.left_context)
        if self.projection_size is not None:
            _require_at_least(1, "projection_size", self.projection_size)
        _require_at_least(0, "look_ahead", self.look_ahead)
        self._check_look_ahead()

    @property
    def output_size(self) -> int:
        """Size of an output frame."""
        return self.projection_size or self.size

    @property
    def is_parameter_matched(self) -> bool:
        """Whether the streaming and the full-context form have the same parameters: they do."""
        return True

    def build(self, input_size: int) -> Conformer:
        """Draws the parameters of an encoder of frames of this size."""
        return Conformer(self, input_size)

    def right_contexts(self) -> list[int]:
        """How many frames after its own the convolution of each layer sees.

        Example:
            >>> ConformerConfig(num_layers=3, kernel_size=5, look_ahead=3).right_contexts()
            [2, 1, 0]
        """
        centred = (self.kernel_size - 1) // 2
        if not self.is_streaming:
            return [centred] * self.num_layers
        layers = range(self.num_layers)
        return [min(centred, max(0, self.look_ahead - centred * layer)) for layer in layers]

    def _check_look_ahead(self) -> None:
        if not self.is_streaming and self.look_ahead:
            raise ValueError(
                f"look_ahead should be 0 if is_streaming is false, got {self.look_ahead}: "
                "the whole utterance is seen"
            )
        largest = self.num_layers * ((self.kernel_size - 1) // 2)
        if self.look_ahead > largest:
            raise ValueError(
                f"look_ahead should be at most num_layers * ((kernel_size - 1) // 2) = {largest}, "
                f"the reach of centred kernels, got {self.look_ahead}"
            )


def _require_at_least(smallest: int, name: str, value: int) -> None:
    if value < smallest:
        raise ValueError(f"{name} should be at least {smallest}, got {value}")


class LayerState(NamedTuple):
    """What one layer remembers of streams."""

    memory: AttentionMemory
    """Keys and values."""
    gated: Tensor
    """[batch, kernel_size - 1, size], the convolution's past input."""
    waiting: Tensor
    """[batch, right_context, size], frames whose right context is not yet heard."""


class ConformerState(NamedTuple):
    """What a Conformer remembers of streams."""

    num_heard: Tensor
    """[batch] int64, the number of frames so far."""
    layers: tuple[LayerState, ...]
    """One for each layer."""


class FeedForward(nn.Module):
    """LayerNorm, linear, swish, dropout, linear.

    Args:
        size: size of a frame.
        hidden_size: size of the hidden layer.
        dropout: share of hidden values that are dropped.
    """

    def __init__(self, size: int, hidden_size: int, dropout: float) -> None:
        """Draws the parameters."""
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.expand = Linear(size, hidden_size)
        self.dropout = Dropout(dropout)
        self.contract = Linear(hidden_size, size)

    def forward(self, frames: Tensor) -> Tensor:
        """From [*batch, size] to the same shape."""
        hidden = self.dropout(nn.functional.silu(self.expand(self.norm(frames))))
        contracted: Tensor = self.contract(hidden)
        return contracted


class ConformerLayer(nn.Module):
    """Half a feed-forward step, attention, convolution, half a feed-forward step, LayerNorm.

    Args:
        config: settings of the encoder.
        right_context: how many frames after its own the convolution sees.
    """

    def __init__(self, config: ConformerConfig, right_context: int) -> None:
        """Draws the parameters."""
        super().__init__()
        size, hidden_size = config.size, config.size * config.feed_forward_factor
        self.right_context = right_context
        self.first = FeedForward(size, hidden_size, config.dropout)
        self.attention = SelfAttention(
            size,
            config.num_heads,
            _positions(config),
            left_context=config.left_context,
            is_causal=config.is_streaming,
        )
        self.convolution = Convolution(size, config.kernel_size, right_context)
        self.second = FeedForward(size, hidden_size, config.dropout)
        self.norm = nn.LayerNorm(size)
        self.dropout = Dropout(config.dropout)

    def start_small(self) -> None:
        """Lets what each module adds begin as a small part of what it adds to.

        On AN4 the loss per label of a model of 8 x 144 was then 1.26 at steps 300 to 500 of its
        training, and 1.46 otherwise (mean of five steps, one run each).
        """
        with torch.no_grad():
            for module in (self.first, self.second, self.convolution):
                module.contract.weight *= _FIRST_SHARE
            self.attention.output.weight *= _FIRST_SHARE

    def forward(self, frames: Tensor, is_padding: Tensor) -> Tensor:
        """Over whole utterances: [batch, max_num_frames, size] -> the same shape."""
        frames = frames + 0.5 * self.dropout(self.first(frames))
        frames = frames + self.dropout(self.attention(frames, is_padding))
        frames = frames + self.dropout(self.convolution(frames, is_padding))
        return self._last(frames)

    def start(self, frames: Tensor) -> LayerState:
        """The state of streams that have heard nothing, like frames [batch, any, size]."""
        batch_size, _, size = frames.shape
        return LayerState(
            self.attention.start(frames),
            frames.new_zeros(batch_size, self.convolution.kernel_size - 1, size),
            frames.new_zeros(batch_size, self.right_context, size),
        )

    def step(
        self, frames: Tensor, state: LayerState, num_heard: Tensor, num_late: int, is_last: bool
    ) -> tuple[Tensor, LayerState]:
        """Over the next frames of streams.

        Args:
            frames: [batch, n, size]
            state: of as many streams.
            num_heard: [batch] integers, how many frames came before.
            num_late: how many frames the streams still have to hear before the first comes out.
            is_last: whether nothing follows; the waiting frames then come out too.

        Returns:
            [batch, m, size], and the new state.
        """
        num_new, memory = frames.shape[1], state.memory
        if not num_new and not (is_last and self.right_context):
            return frames, state
        if num_new:
            frames = frames + 0.5 * self.dropout(self.first(frames))
            attended, memory = self.attention.step(frames, memory, num_heard)
            frames = frames + self.dropout(attended)
        convolved, gated = self.convolution.step(frames, state.gated, is_last)
        frames = torch.cat((state.waiting, frames), 1)
        num_out = convolved.shape[1]
        waiting = frames[:, frames.shape[1] - self.right_context :]
        # What comes out before the first frame is an artefact of the empty state.
        frames = (frames[:, :num_out] + self.dropout(convolved))[:, num_late:]
        return self._last(frames), LayerState(memory, gated, waiting)

    def _last(self, frames: Tensor) -> Tensor:
        normalized: Tensor = self.norm(frames + 0.5 * self.dropout(self.second(frames)))
        return normalized


@final
class Conformer(Encoder):
    """A Conformer encoder, streaming or not.

    Args:
        config: its settings.
        input_size: size of an input frame.
    """

    def __init__(self, config: ConformerConfig, input_size: int) -> None:
        """Draws the parameters."""
        super().__init__(
            input_size,
            config.output_size,
            is_streaming=config.is_streaming,
            look_ahead=config.look_ahead,
        )
        self.config = config
        self.input = Linear(input_size, config.size)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(ConformerLayer(config, x) for x in config.right_contexts())
        self.output = (
            nn.Identity()
            if config.projection_size is None
            else Linear(config.size, config.projection_size)
        )
        self.apply(_initialize)
        for layer in self._layers():
            layer.start_small()

    def _encode(self, frames: Tensor, is_padding: Tensor) -> Tensor:
        frames = self.dropout(self.input(frames))
        for layer in self.layers:
            frames = layer(frames, is_padding)
        encoded: Tensor = self.output(frames)
        return encoded

    def _start(self, batch_size: int) -> State:
        frames = self._new_zeros(batch_size, 0, self.config.size)
        num_heard = torch.zeros(batch_size, dtype=torch.int64, device=frames.device)
        return ConformerState(num_heard, tuple(layer.start(frames) for layer in self._layers()))

    def _step(self, frames: Tensor, state: State) -> tuple[Tensor, State]:
        return self._advance(frames, cast(ConformerState, state), is_last=False)

    def _finish(self, state: State) -> Tensor:
        known = cast(ConformerState, state)
        nothing = self._new_zeros(len(known.num_heard), 0, self.input_size)
        return self._advance(nothing, known, is_last=True)[0]

    def _advance(
        self, frames: Tensor, state: ConformerState, is_last: bool
    ) -> tuple[Tensor, ConformerState]:
        num_heard, fewest = state.num_heard, self._fewest_heard(state.num_heard)
        num_new = frames.shape[1]
        frames = self.dropout(self.input(frames))
        layers = []
        for layer, layer_state in zip(self._layers(), state.layers, strict=True):
            num_late = max(0, layer.right_context - fewest)
            frames, layer_state = layer.step(frames, layer_state, num_heard, num_late, is_last)
            layers.append(layer_state)
            # The next layer hears this one's output, which is that much behind.
            num_heard = (num_heard - layer.right_context).clamp(min=0)
            fewest = max(0, fewest - layer.right_context)
        return self.output(frames), ConformerState(state.num_heard + num_new, tuple(layers))

    def _fewest_heard(self, num_heard: Tensor) -> int:
        """The least number of frames heard, which decides how many come out; 0 if it does not."""
        if not self.look_ahead or not num_heard.numel():
            return 0
        fewest, most = (int(x) for x in num_heard.clamp(max=self.look_ahead).aminmax())
        if fewest != most:
            raise ValueError(
                f"streams that are stepped together should all have heard look_ahead = "
                f"{self.look_ahead} frames, or equally many, got {fewest} and {most}: "
                "step a new stream alone first"
            )
        return fewest

    def _layers(self) -> list[ConformerLayer]:
        return cast(list[ConformerLayer], list(self.layers))


def _positions(config: ConformerConfig) -> Positions:
    head_size = config.size // config.num_heads
    if config.positions == "rotary":
        return RotaryPositions(head_size)
    return RelativePositions(config.num_heads, head_size)


def _initialize(module: nn.Module) -> None:
    """Glorot's uniform weights, no bias."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
