"""Arc posteriors of a batch, laid out by frame and context state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from midge.contexts import ContextDependency, FiniteContext
from midge.contexts.spaces import Arcs
from midge.lattices.numerator import StringBatch, StringLattice
from midge.lattices.recursion import Recursion, forward_trail
from midge.lattices.whole import WholeLattice


@dataclass(frozen=True)
class ArcMarginals:
    """The posterior probability of every arc."""

    blank: Tensor
    """[*batch, T, Q]."""
    lexical: Tensor
    """[*batch, T, Q, V]."""


def posteriors(recursion: Recursion, num_steps: int) -> Arcs:
    """The posterior probability of every arc of a recursion: fields [B, num_steps, ...]."""
    inputs = recursion.source.inputs
    trail = forward_trail(recursion, inputs)
    # The arcs of no step at all tell the shapes.
    found = recursion.source.arcs(inputs, range(0)).map(
        lambda x: x.new_zeros(len(x), num_steps, *x.shape[2:])
    )
    for step, arcs, beta, offset in recursion.backward(inputs):
        if step < 0:
            break
        shift = trail.shift(step, offset)
        posterior = recursion.marginals(trail.alphas[step], arcs, beta, shift, step).tensors()
        for name, total in found.tensors().items():
            if name in posterior:
                total[:, step] = posterior[name]
    return found


def _all_blanks(arcs: Arcs) -> Tensor:
    """[B, N, S] blank, with the closing ones, over all deduplicating states."""
    blank = arcs.blank if arcs.label_scale is None else arcs.blank.sum(-1)
    return blank if arcs.closing is None else blank + arcs.closing


def whole_marginals(
    recursion: Recursion, lattice: WholeLattice, num_steps: int
) -> tuple[Tensor, Tensor]:
    """[B, N, Q] blank and [B, N, Q, V] label posteriors of A."""
    arcs = posteriors(recursion, num_steps)
    lexical = arcs.lexical
    if arcs.repeat is not None and lattice.entered_label is not None:
        label = lattice.entered_label.to(lexical.device)
        index = (label - 1).clamp(min=0).expand(arcs.repeat.shape)
        lexical = lexical.scatter_add(-1, index, arcs.repeat * (label > 0))
    return _all_blanks(arcs), lexical


def string_marginals(
    recursion: Recursion,
    lattice: StringLattice,
    strings: StringBatch,
    num_frames: Tensor,
    num_steps: int,
) -> tuple[Tensor, Tensor]:
    """[B, N, Q] blank and [B, N, Q, V] label posteriors of A ∩ y."""
    skewed = lattice.is_skewed(strings)
    longest = int(recursion.num_steps.max()) if len(recursion.num_steps) else 0
    arcs = posteriors(recursion, longest if skewed else num_steps)
    if skewed:
        arcs = arcs.map(lambda x: _unskewed(x, num_steps))
    return scatter_positions(
        _all_blanks(arcs),
        arcs.lexical[..., 0],
        None if arcs.repeat is None else arcs.repeat[..., 0],
        strings.states,
        strings.labels,
        lattice.context,
    )


def scatter_positions(
    blank: Tensor,
    following: Tensor,
    repeat: Tensor | None,
    states: Tensor,
    labels: Tensor,
    context: ContextDependency,
) -> tuple[Tensor, Tensor]:
    """From posteriors at label positions to those of context states and labels.

    Args:
        blank: [B, N, U + 1] of blank.
        following: [B, N, U + 1] of the next label.
        repeat: [B, N, U + 1] of a repeat of the last label, with deduplication.
        states: [B, U + 1] context state at each position; any below 0 has no posterior.
        labels: [B, U].
        context: the context; with full history the positions are the states.

    Returns:
        [B, N, Q] and [B, N, Q, V].
    """
    states, num_states = states.clamp(min=0), states.shape[1]
    if isinstance(context, FiniteContext):
        num_states = context.num_states
    vocab_size = context.vocab_size
    flat = num_states * vocab_size
    next_column = pad((labels - 1).clamp(min=0), (0, 1))
    lexical = _scattered(following, states * vocab_size + next_column, flat)
    if repeat is not None:
        last_column = pad((labels - 1).clamp(min=0), (1, 0))
        lexical = lexical + _scattered(repeat, states * vocab_size + last_column, flat)
    return _scattered(blank, states, num_states), lexical.unflatten(-1, (num_states, vocab_size))


def _scattered(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Adds [B, N, U + 1] into [B, N, size] by index [B, U + 1]."""
    total = x.new_zeros(*x.shape[:2], size)
    return total.scatter_add(-1, index[:, None].expand(x.shape), x)


def _unskewed(x: Tensor, num_steps: int) -> Tensor:
    """[B, diagonals, U + 1, ...] -> [B, num_steps, U + 1, ...]: frame t of position u is t + u."""
    if x.shape[1] == 0:
        return x.new_zeros(len(x), num_steps, *x.shape[2:])
    step = torch.arange(num_steps, device=x.device)[:, None]
    diagonal = step + torch.arange(x.shape[2], device=x.device)
    there = (diagonal < x.shape[1]).view(1, num_steps, -1, *[1] * (x.dim() - 3))
    index = diagonal.clamp(max=x.shape[1] - 1).view(there.shape)
    moved = x.gather(1, index.expand(len(x), -1, -1, *x.shape[3:]))
    return torch.where(there, moved, 0.0)
