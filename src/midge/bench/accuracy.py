"""How far float32 is from float64: the loss, and every gradient, of long utterances.

Globally normalized scores of a thousand frames span hundreds of nats, where plain float32 sums
drift. The float64 reference starts from the same float32 numbers; so what is measured is arithmetic
alone.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from midge.alignments import FrameDependent
from midge.bench import rows
from midge.bench.rows import Row, Shape
from midge.contexts import FullNGram
from midge.lattices import RecognitionLattice
from midge.weights import TableWeights
from midge.weights.normalization import Normalization

SHAPE = dataclasses.replace(rows.PAPER, batch=1)
"""One utterance of the paper's length."""
NORMALIZATIONS: tuple[Normalization, ...] = ("global", "hat", "softmax")
"""Of the tables."""
TABLE_SCALES = (1.0, 10.0)
"""Standard deviations of normal arc weights."""
JOINT_ROWS = (Row(1, "frame", "shared-rnn", "global"), Row(1, "frame", "shared-rnn", "hat"))
"""The rows whose joint is measured."""


@dataclass(frozen=True)
class Error:
    """How far float32 is from float64."""

    name: str
    """What was computed."""
    loss: float
    """The loss in float64, in nats."""
    loss_error: float
    """Absolute, in nats."""
    gradient_errors: dict[str, float]
    """For each input and parameter |g32 - g64| / |g64|, in L2."""

    @property
    def worst(self) -> float:
        """The largest of the gradients' errors."""
        return max(self.gradient_errors.values())


def measure_errors(
    shape: Shape = SHAPE, seed: int = 0, progress: Callable[[], object] | None = None
) -> list[Error]:
    """Measures tables of arc weights, then joints.

    Args:
        shape: the sizes.
        seed: of all numbers.
        progress: called after each of `num_cases`.
    """
    errors = []
    for normalization in NORMALIZATIONS:
        for scale in TABLE_SCALES:
            errors.append(_table_error(shape, normalization, scale, seed))
            _call(progress)
    for row in JOINT_ROWS:
        problem = rows.problem_of(rows.draw(row, shape, seed))
        errors.append(_error(row.name, problem.lattice, problem.frames, _targets(problem)))
        _call(progress)
    return errors


def num_cases() -> int:
    """How many cases `measure_errors` has."""
    return len(NORMALIZATIONS) * len(TABLE_SCALES) + len(JOINT_ROWS)


def table(errors: Sequence[Error]) -> str:
    """Markdown: a line for each case."""
    lines = [
        "| case | loss, nats | error of the loss, nats | largest error of a gradient (L2) |",
        "|---|---|---|---|",
    ]
    for each in errors:
        lines.append(
            f"| {each.name} | {each.loss:.1f} | {each.loss_error:.1e} | {each.worst:.1e} |"
        )
    return "\n".join(lines)


def _table_error(shape: Shape, normalization: Normalization, scale: float, seed: int) -> Error:
    context = FullNGram(shape.vocab, 1)
    lattice = RecognitionLattice(
        context, FrameDependent(), TableWeights(context), normalization=normalization
    )
    generator = torch.Generator().manual_seed(seed)
    size = (shape.batch, shape.frames, context.num_states * (1 + shape.vocab))
    frames = scale * torch.randn(size, generator=generator)
    labels = torch.randint(1, shape.vocab + 1, (shape.batch, shape.labels), generator=generator)
    targets = (
        torch.full((shape.batch,), shape.frames),
        labels,
        torch.full((shape.batch,), shape.labels),
    )
    name = f"1-gram, frame, table, {normalization}, scale {scale:g}"
    return _error(name, lattice, frames, targets)


def _targets(problem: rows.Problem) -> tuple[Tensor, Tensor, Tensor]:
    return problem.num_frames, problem.labels, problem.num_labels


def _error(
    name: str,
    lattice: RecognitionLattice,
    frames: Tensor,
    targets: tuple[Tensor, Tensor, Tensor],
) -> Error:
    loss, gradients = _gradients(lattice, frames, targets)
    exact, wanted = _gradients(copy.deepcopy(lattice).double(), frames.double(), targets)
    errors = {
        key: float((gradients[key].double() - value).norm() / value.norm())
        for key, value in wanted.items()
    }
    return Error(name, exact, abs(loss - exact), errors)


def _gradients(
    lattice: RecognitionLattice, frames: Tensor, targets: tuple[Tensor, Tensor, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """The loss, and the gradients of frames and of parameters by name."""
    frames = frames.detach().clone().requires_grad_()
    lattice.zero_grad(set_to_none=True)
    loss = lattice(frames, *targets).sum()
    loss.backward()
    found = {"frames": frames, **dict(lattice.named_parameters())}
    return float(loss.detach()), {key: x.grad for key, x in found.items() if x.grad is not None}


def _call(progress: Callable[[], object] | None) -> None:
    if progress is not None:
        progress()
