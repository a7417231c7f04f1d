"""The layer that makes arc weights: which parameters it has, and where its blank bias starts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from midge.alignments import AlignmentLattice, FrameDependent, LabelFrameDependent
from midge.lattices import RecognitionLattice
from midge.weights import (
    AttentionWeights,
    SharedEmbeddingWeights,
    SharedRNNWeights,
    UnsharedWeights,
    WeightFn,
)


def output_parameters(weights: WeightFn) -> dict[str, nn.Parameter]:
    """The matrix and bias of the layer that makes arc weights, by their names in the module.

    Of shared weights this is W and b of the joint; unshared weights have nothing else.
    """
    names = {name for name, _ in weights.named_parameters()}
    ours = {name for name in names if name.split(".")[-2:-1] == ["output"]} or names
    return {name: x for name, x in weights.named_parameters() if name in ours}


def label_rows(weights: WeightFn) -> set[str]:
    """Names of the parameters whose row y belongs to label y, and row 0 to blank or the start."""
    if isinstance(weights, SharedRNNWeights | AttentionWeights):
        return {"embedding.weight", *output_parameters(weights)}
    if isinstance(weights, SharedEmbeddingWeights):
        return set(output_parameters(weights))
    return set()


def state_rows(weights: WeightFn) -> set[str]:
    """Names of the parameters whose row q belongs to context state q."""
    if isinstance(weights, SharedEmbeddingWeights):
        return {"embedding.weight"}
    return set(output_parameters(weights)) if isinstance(weights, UnsharedWeights) else set()


@torch.no_grad()
def initialize_blank(lattice: RecognitionLattice, labels_per_frame: float) -> None:
    """Starts the output bias where the model emits as many labels per frame as the corpus has.

    With all scores 0 a model of 28 labels would emit one in 28 of 29 frames, and spend its first
    thousand steps unlearning that. All labels get one bias and blank another, so that with
    otherwise zero scores the expected number of labels per frame is the given one. A lattice along
    labels, or without blank, has no such rate: its bias is left as it is.

    Args:
        lattice: whose weights are changed.
        labels_per_frame: labels of the training data, over its encoder frames.

    Raises:
        ValueError: if the rate is not above 0.
    """
    if not labels_per_frame > 0:
        raise ValueError(f"labels_per_frame should be more than 0, got {labels_per_frame}")
    bias = next(
        (x for n, x in output_parameters(lattice.weights).items() if n.endswith("bias")), None
    )
    alignment = lattice.alignment
    if bias is None or not isinstance(alignment, FrameDependent | LabelFrameDependent):
        return
    if not alignment.has_blank:
        return
    log_odds = _log_odds(alignment, lattice.normalization == "global", labels_per_frame)
    # HAT's blank is a probability of its own; otherwise it stands against all labels together.
    rivals = 0.0 if lattice.normalization == "hat" else math.log(lattice.context.vocab_size)
    bias.zero_()
    if lattice.normalization == "global" and isinstance(alignment, LabelFrameDependent):
        # Every path has one blank per frame: only what labels weigh makes a difference.
        bias[..., 1:] = log_odds - rivals
    else:
        bias[..., 0] = rivals - log_odds


def _log_odds(alignment: AlignmentLattice, is_global: bool, rate: float) -> float:
    """The log odds of a label, any of them, against blank at which the mean per frame is a rate."""
    if isinstance(alignment, FrameDependent):
        rate = min(rate, 0.99)  # a frame has at most one label; those that have more are left out
        return math.log(rate / (1 - rate))
    limit = alignment.max_labels_per_frame if isinstance(alignment, LabelFrameDependent) else None
    if limit is None:
        return math.log(rate)  # n labels then blank: geometric, with mean p / (1 - p)
    rate = min(rate, 0.99 * limit)
    count = limit

    def mean(log_odds: float) -> float:
        if not is_global:  # p + p^2 + ... + p^k: after k labels blank is certain
            share = 1 / (1 + math.exp(-log_odds))
            return sum(share**n for n in range(1, count + 1))
        # n labels in proportion to exp(n log_odds), for n up to k.
        largest = max(count * log_odds, 0.0)
        masses = [math.exp(n * log_odds - largest) for n in range(count + 1)]
        return sum(n * mass for n, mass in enumerate(masses)) / sum(masses)

    return _where(mean, rate)


def _where(function: Callable[[float], float], value: float) -> float:
    """Where an increasing function of log odds takes a value, by halving."""
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return middle
