"""The rows of the paper's benchmark table, the shapes it is measured at, and the inputs.

Inputs and parameters come from a seed by numpy and are handed over in an .npz file, so that a peer
without PyTorch measures the same numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from midge import (
    FrameDependent,
    FullNGram,
    LabelFrameDependent,
    RecognitionLattice,
    SharedEmbeddingWeights,
    SharedRNNWeights,
    UnsharedWeights,
    WeightFn,
)
from midge.weights import Normalization

CONTEXTS = (0, 1, 2)
"""Labels that a context state remembers."""
ALIGNMENTS = ("frame", "label-frame")
"""The frame-dependent lattice, and the label-frame-dependent one with one label per frame."""
WEIGHTS = ("unshared", "shared-emb", "shared-rnn")
"""The paper's weight functions."""
NORMALIZATIONS = ("hat", "global")
"""Those of the table: local is HAT's normalization, as in LAST."""


@dataclass(frozen=True)
class Row:
    """A configuration: one line of the table."""

    context: int
    alignment: Literal["frame", "label-frame"]
    weights: Literal["unshared", "shared-emb", "shared-rnn"]
    normalization: Normalization

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.context}-gram, {self.alignment}, {self.weights}, {self.normalization}"


def rows(
    contexts: Sequence[int] = CONTEXTS,
    alignments: Sequence[Any] = ALIGNMENTS,
    weights: Sequence[Any] = WEIGHTS,
    normalizations: Sequence[Any] = NORMALIZATIONS,
) -> list[Row]:
    """The rows with these properties, in the paper's order; by default all 36.

    Example:
        >>> len(rows()), rows(contexts=[2])[0].name
        (36, '2-gram, frame, unshared, hat')
    """
    return [Row(*row) for row in itertools.product(contexts, alignments, weights, normalizations)]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the inputs and of the model."""

    batch: int
    """Utterances."""
    frames: int
    """Frames of each."""
    labels: int
    """Labels of each."""
    vocab: int = 32
    """Size of the alphabet, without blank."""
    encoder: int = 512
    """Size of a frame."""
    hidden: int = 640
    """Size of the joint's hidden layer."""
    embedding: int = 128
    """Size of an embedding."""
    rnn: int = 640
    """Number of LSTM cells."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(
                    f"{field.name} should be at least 1, got {getattr(self, field.name)}"
                )
        if self.labels > self.frames:
            raise ValueError(
                f"labels should be at most frames ({self.frames}), as a frame has room for one, "
                f"got {self.labels}"
            )


PAPER = Shape(batch=32, frames=1024, labels=256)
"""The paper's shape."""
REDUCED = Shape(batch=4, frames=256, labels=64)
"""A shape that finishes in minutes."""
_WARM_UP = Shape(batch=1, frames=2, labels=1, vocab=2, encoder=2, hidden=2, embedding=2, rnn=2)


def make_weights(row: Row, shape: Shape) -> WeightFn:
    """The weight function, with parameters drawn by PyTorch."""
    context = FullNGram(shape.vocab, row.context)
    if row.weights == "unshared":
        return UnsharedWeights(context, shape.encoder)
    if row.weights == "shared-emb":
        return SharedEmbeddingWeights(context, shape.encoder, shape.hidden, shape.embedding)
    return SharedRNNWeights(context, shape.encoder, shape.hidden, shape.embedding, shape.rnn)


@dataclass(frozen=True)
class Problem:
    """A model with its inputs, ready to be measured."""

    row: Row
    shape: Shape
    lattice: RecognitionLattice
    frames: Tensor
    """[batch, frames, encoder], with a gradient."""
    num_frames: Tensor
    """[batch]."""
    labels: Tensor
    """[batch, labels]."""
    num_labels: Tensor
    """[batch]."""

    def train(self) -> Tensor:
        """The losses [batch], and the gradients of frames and parameters in their `grad`."""
        self.frames.grad = None
        self.lattice.zero_grad(set_to_none=True)
        losses: Tensor = self.lattice(self.frames, self.num_frames, self.labels, self.num_labels)
        losses.sum().backward()
        return losses.detach()

    @torch.no_grad()
    def decode(self) -> Tensor:
        """The weights of the best paths [batch], found with their labels."""
        return self.lattice.shortest_path(self.frames, self.num_frames).weight

    @torch.no_grad()
    def log_z(self) -> Tensor:
        """Log Z [batch] alone."""
        return self.lattice.shortest_distance(self.frames, self.num_frames)


def draw(row: Row, shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs and parameters as arrays.

    Frames are normal; labels, and parameters by their fan-in, uniform.

    Args:
        row: the configuration.
        shape: the sizes.
        seed: the same seed gives the same numbers.

    Returns:
        "frames", "num_frames", "labels", "num_labels", "parameters/<name>" for each parameter of
        the weight function, and "row", which is JSON.
    """
    generator = np.random.default_rng(seed)
    size = (shape.batch, shape.frames, shape.encoder)
    arrays = {
        "row": np.array(json.dumps(dataclasses.asdict(row) | {"shape": dataclasses.asdict(shape)})),
        "frames": generator.standard_normal(size, dtype=np.float32),
        "num_frames": np.full(shape.batch, shape.frames),
        "labels": generator.integers(1, shape.vocab + 1, (shape.batch, shape.labels)),
        "num_labels": np.full(shape.batch, shape.labels),
    }
    for name, parameter in make_weights(row, shape).named_parameters():
        uniform = generator.random(tuple(parameter.shape), dtype=np.float32) * 2 - 1
        arrays[f"parameters/{name}"] = uniform * parameter.shape[-1] ** -0.5
    return arrays


def problem_of(arrays: dict[str, np.ndarray]) -> Problem:
    """The problem that arrays as those of `draw` describe."""
    described = json.loads(str(arrays["row"]))
    shape = Shape(**described.pop("shape"))
    row = Row(**described)
    weights = make_weights(row, shape)
    for name, parameter in weights.named_parameters():
        parameter.data.copy_(torch.from_numpy(arrays[f"parameters/{name}"]))
    alignment = FrameDependent() if row.alignment == "frame" else LabelFrameDependent(1)
    context = FullNGram(shape.vocab, row.context)
    return Problem(
        row,
        shape,
        RecognitionLattice(context, alignment, weights, normalization=row.normalization),
        torch.from_numpy(arrays["frames"]).requires_grad_(),
        torch.from_numpy(arrays["num_frames"]),
        torch.from_numpy(arrays["labels"]),
        torch.from_numpy(arrays["num_labels"]),
    )


def save(path: Path, row: Row, shape: Shape, seed: int = 0) -> None:
    """Writes what `draw` gives to an .npz file."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **draw(row, shape, seed))


def load(path: Path) -> Problem:
    """Reads what `save` wrote."""
    with np.load(path) as arrays:
        return problem_of(dict(arrays))


def warm_up(row: Row) -> None:
    """Runs a tiny problem of the same kind, which loads what is loaded once."""
    tiny = problem_of(draw(row, _WARM_UP))
    tiny.train()
    tiny.decode()
