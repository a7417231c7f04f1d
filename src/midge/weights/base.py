"""What a weight function offers to `lattices`: scores of states at steps, from explicit inputs.

The arcs of a lattice are far too many to keep, so they are computed in pieces, and again for the
gradient. A weight function therefore splits its work in two. What is done once per training step
(projecting frames, running an RNN over context states) is ordinary PyTorch code and yields a
`Scorer`: tensors, and a pure function of slices of them. What is done per frame and state is that
function.

Shapes: B utterances, N steps (frames, or label positions on a label-dependent lattice), D
input_size, S states, V vocab_size. Column 0 of a score is blank, column y label y.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from midge.contexts import ContextDependency, FiniteContext

Linear = Callable[[Tensor, Tensor], Tensor]
"""x [*batch, K] and weight [N, K] -> x times weight transposed, [*batch, N]."""


@dataclass(frozen=True)
class Scorer:
    """Raw arc weights as a pure function of tensors.

    `score(step, batch, state, shared, steps)` gives [B, n, S, 1 + V] for a range of n steps, where
    the four tuples hold the tensors below, sliced: `step` [B, n, ...], `batch` [B, ...], `state`
    [S, ...] or one set of states per utterance [B, S, ...], `shared` as they are.
    """

    score: Callable[
        [
            tuple[Tensor, ...],
            tuple[Tensor, ...],
            tuple[Tensor, ...],
            tuple[Tensor, ...],
            range,
        ],
        Tensor,
    ]
    """The function."""
    num_elements: int
    """Size of the largest intermediate per utterance, step and state: how large a piece may be."""
    step: tuple[Tensor, ...] = ()
    """[B, N, ...] tensors with one entry per step."""
    batch: tuple[Tensor, ...] = ()
    """[B, ...] tensors with one entry per utterance."""
    state: tuple[Tensor, ...] = ()
    """[S, ...] tensors with one entry per state."""
    shared: tuple[Tensor, ...] = ()
    """Parameters."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the scores."""
        tensors = (*self.step, *self.batch, *self.state, *self.shared)
        return next(x.dtype for x in tensors if x.is_floating_point())


class WeightFn(nn.Module, ABC):
    """The weight function omega: the only part of a model with parameters (paper, section 4.3).

    Gives one raw weight per arc; normalization is the lattice's.
    """

    context: ContextDependency
    """The context dependency whose states it scores."""
    input_size: int
    """Size of a frame."""
    kind: Literal["joint", "unshared", "table", "other"] = "other"
    """What its scorers compute, for engines that know some kinds and do them faster."""
    reads_all_frames: bool = False
    """Whether a score sees all frames (label-dependent lattices only) or those of its step."""

    @abstractmethod
    def scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        states: Tensor | None,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        """Prepares the scores of context states.

        Args:
            frames: [B, max_num_frames, input_size], 0 on padding.
            num_frames: [B] number of real frames.
            states: [S] distinct context states in ascending order; None is all of them.
            linear: what multiplies matrices; an engine may have its own.
        """

    def history_scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        """Prepares the scores of the full history after each label of a string.

        Args:
            frames: [B, max_num_frames, input_size], 0 on padding.
            num_frames: [B] number of real frames.
            labels: [B, max_num_labels] integers in 0..vocab_size, 0 on padding.
            linear: what multiplies matrices.

        Returns:
            A scorer whose states are the [B * (max_num_labels + 1)] label positions, utterance
            after utterance.
        """
        raise NotImplementedError(f"{type(self).__name__} has no unbounded history")

    def _check_frames(self, frames: Tensor) -> None:
        if frames.shape[-1] != self.input_size:
            raise ValueError(
                f"frames should be [*batch, max_num_frames, {self.input_size}], "
                f"got {list(frames.shape)}"
            )


def require_finite(context: ContextDependency, weights: type) -> None:
    """Refuses an unbounded history where there are parameters per state."""
    if not isinstance(context, FiniteContext):
        raise ValueError(
            f"cannot combine {type(context).__name__} with {weights.__name__}, which has something "
            "for each state; use SharedRNNWeights or AttentionWeights, or a finite context"
        )


def linear_over_states(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B, n, D] frames through one matrix per state -> [B, n, S, K].

    Args:
        x: [B, n, D].
        weight: [S, K, D], or [B, S, K, D] per utterance.
        bias: [S, K], or [B, S, K].
    """
    if weight.dim() == 3:
        flat = nn.functional.linear(x, weight.flatten(0, 1), bias.flatten())
    else:
        flat = torch.baddbmm(bias.flatten(1)[:, None], x, weight.flatten(1, 2).transpose(1, 2))
    return flat.unflatten(-1, bias.shape[-2:])


def per_step(states: Tensor) -> Tensor:
    """State tensors [S, ...] as they are, or [B, S, ...] -> [B, 1, S, ...] beside a step dim."""
    return states if states.dim() == 2 else states.unsqueeze(1)
