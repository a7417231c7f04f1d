"""A penalty on blank: the same model, less inclined to wait."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from midge.alignments import LabelFrameDependent
from midge.lattices import RecognitionLattice
from midge.weights import (
    AttentionWeights,
    SharedEmbeddingWeights,
    SharedRNNWeights,
    UnsharedWeights,
    WeightFn,
)


@torch.no_grad()
def with_blank_penalty(lattice: RecognitionLattice, penalty: float) -> RecognitionLattice:
    """A copy of a lattice in which labels weigh more against blank.

    The penalty is taken off the score of blank before normalization, so that a locally normalized
    model stays one. On a label-dependent lattice blank is the end, which then comes later. Where
    every path has one blank per frame (global normalization with several labels per frame) that
    would change nothing: there labels gain what blank would lose.

    Args:
        lattice: left as it is.
        penalty: in nats; below 0 it favours blank.

    Raises:
        ValueError: if the penalty is not finite, or the lattice has no blank or no bias for it.

    Example:
        >>> import midge
        >>> context = midge.FullNGram(vocab_size=2, context_size=0)
        >>> weights = midge.UnsharedWeights(context, input_size=4)
        >>> lattice = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
        >>> with_blank_penalty(lattice, 2.0).weights.bias.tolist()
        [[-2.0, 0.0, 0.0]]
    """
    if not math.isfinite(penalty):
        raise ValueError(f"blank_penalty should be a finite number of nats, got {penalty}")
    if not lattice.alignment.has_blank:
        raise ValueError(f"blank_penalty should be 0 for a lattice without blank, got {penalty}")
    changed = copy.deepcopy(lattice)
    bias = _output_bias(changed.weights)
    if isinstance(lattice.alignment, LabelFrameDependent) and lattice.normalization == "global":
        bias[..., 1:] += penalty
    else:
        bias[..., 0] -= penalty
    return changed


def _output_bias(weights: WeightFn) -> Tensor:
    """[..., 1 + V] what is added to the scores."""
    if isinstance(weights, SharedEmbeddingWeights | SharedRNNWeights):
        return weights.joint.output.bias
    if isinstance(weights, AttentionWeights):
        return weights.output.bias
    if isinstance(weights, UnsharedWeights):
        return weights.bias
    raise ValueError(f"blank_penalty should be 0 for {type(weights).__name__}, which has no bias")
