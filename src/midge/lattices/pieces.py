"""Arcs in pieces: computed when needed, never kept, and computed again for the gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from midge.contexts.spaces import Arcs
from midge.weights.base import Scorer

PIECE_ELEMENTS = 2**21
"""Size of the largest intermediate of one piece, in numbers. A few such tensors live at once."""


@dataclass(frozen=True)
class ArcSource:
    """The arcs of every step, as a pure function of tensors."""

    inputs: tuple[Tensor, ...]
    """What the arcs are made of. Those that come first have one entry per step, [B, N, ...]."""
    num_step_inputs: int
    """How many of the inputs have one entry per step."""
    function: Callable[[tuple[Tensor, ...], range], Arcs]
    """(inputs, steps) -> arcs with fields [B, n, ...] for n steps; step inputs come sliced."""
    num_steps: int
    """N."""
    piece_size: int
    """How many steps at a time."""
    dtype: torch.dtype
    """Of the arcs."""

    @property
    def like(self) -> Tensor:
        """An empty tensor of the arcs' type, on their device."""
        return torch.empty(0, dtype=self.dtype, device=self.inputs[-1].device)

    def pieces(self) -> list[range]:
        """The ranges of steps, in order."""
        size = self.piece_size
        return [range(at, min(at + size, self.num_steps)) for at in range(0, self.num_steps, size)]

    def arcs(self, inputs: Sequence[Tensor], steps: range) -> Arcs:
        """The arcs of some steps."""
        return self.function(self._sliced(inputs, steps), steps)

    def _sliced(self, inputs: Sequence[Tensor], steps: range) -> tuple[Tensor, ...]:
        return tuple(
            x[:, steps.start : steps.stop] if number < self.num_step_inputs else x
            for number, x in enumerate(inputs)
        )

    def leaves(self, inputs: Sequence[Tensor], steps: range) -> tuple[Tensor, ...]:
        """Slices of the inputs that start a graph of their own."""
        return tuple(
            x.detach().requires_grad_(x.is_floating_point()) for x in self._sliced(inputs, steps)
        )


class GradientSums:
    """Gradients of a source's inputs, summed piece by piece.

    Args:
        source: the source.
        inputs: its inputs.
        needed: which of them want a gradient.
    """

    def __init__(self, source: ArcSource, inputs: Sequence[Tensor], needed: Sequence[bool]) -> None:
        """Starts from zero."""
        self._source = source
        self._sums = [
            torch.zeros_like(x) if wanted else None
            for x, wanted in zip(inputs, needed, strict=True)
        ]

    def add(
        self,
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        leaves: Sequence[Tensor],
        steps: range,
        others: Sequence[Tensor] = (),
    ) -> list[Tensor | None]:
        """Adds one piece's vector-Jacobian product.

        Args:
            outputs: what the piece computed from its leaves.
            cotangents: their gradients.
            leaves: the piece's inputs, from `ArcSource.leaves`.
            steps: the piece.
            others: further leaves; their gradients are returned.
        """
        pairs = [(y, g) for y, g in zip(outputs, cotangents, strict=True) if y.requires_grad]
        wanted = [number for number, total in enumerate(self._sums) if total is not None]
        if not pairs:
            return [None] * len(others)
        gradients = torch.autograd.grad(
            [y for y, _ in pairs],
            [*(leaves[number] for number in wanted), *others],
            [g for _, g in pairs],
            allow_unused=True,
        )
        for number, gradient in zip(wanted, gradients, strict=False):
            total = self._sums[number]
            if total is None or gradient is None:
                continue
            if number < self._source.num_step_inputs:
                total[:, steps.start : steps.stop] += gradient
            else:
                total += gradient
        return list(gradients[len(wanted) :])

    def result(self) -> list[Tensor | None]:
        """The gradient of every input, None where it was not wanted."""
        return self._sums


def split_scorer(scorer: Scorer, sizes: list[int]) -> list[Scorer]:
    """The scorers of parts of a batch."""
    # torch.split, because its gradient is one concatenation and not a sum of padded slices.
    step = [x.split(sizes) for x in scorer.step]
    batch = [x.split(sizes) for x in scorer.batch]
    return [
        replace(
            scorer,
            step=tuple(parts[part] for parts in step),
            batch=tuple(parts[part] for parts in batch),
        )
        for part in range(len(sizes))
    ]


def part_sizes(total: int, elements_each: int) -> list[int]:
    """Cuts a batch so that one step of a part fits into a piece; at least one utterance each."""
    size = max(1, PIECE_ELEMENTS // max(1, elements_each))
    return [min(size, total - at) for at in range(0, total, size)] or [0]
