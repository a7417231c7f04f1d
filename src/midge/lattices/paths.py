"""Paths through a lattice: what the best one, or a random one, emits and when."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from midge.alignments import (
    NO_SYMBOL,
    AlignmentLattice,
    LabelFrameDependent,
)
from midge.contexts.base import BLANK
from midge.contexts.spaces import Arcs
from midge.lattices.recursion import Recursion, at_step, best_pointers


@dataclass(frozen=True)
class Path:
    """One path per utterance.

    Where there is no path, the weight is -inf and the length 0.
    """

    alignment_labels: Tensor
    """[*batch, max_num_alignment_labels] int64 labels along the path, 0 for blank and on padding.

    T entries on a frame-dependent lattice; T + U on a label and frame dependent one, where every
    frame ends in 0; U, then 0 unless U = l(T), on a label-dependent one."""
    alignment_frames: Tensor
    """[*batch, max_num_alignment_labels] int64 the frame that emits each; 0 on padding. On a
    label-dependent lattice, where a label belongs to all frames, its position."""
    num_alignment_labels: Tensor
    """[*batch] int64 length of the path."""
    weight: Tensor
    """[*batch] log weight of the path, by the normalized arc weights."""
    deduplicate: bool = False
    """Whether runs of one label are one label."""

    def labels(self) -> Any:
        """The lexical labels: without blanks and, with deduplication, without repeats.

        Returns:
            Lists of integers, nested like the batch; without batch dims a plain list.
        """
        return self._nested(self.alignment_labels.tolist(), self.num_alignment_labels.tolist())

    def _nested(self, labels: Any, length: Any) -> Any:
        if isinstance(length, list):
            return [self._nested(*each) for each in zip(labels, length, strict=True)]
        path = labels[:length]
        last = [BLANK, *path]
        repeats = [
            self.deduplicate and now == before for now, before in zip(path, last, strict=False)
        ]
        return [
            label
            for label, repeat in zip(path, repeats, strict=True)
            if label != BLANK and not repeat
        ]


def path_of_symbols(
    symbols: list[Tensor], weight: Tensor, alignment: AlignmentLattice, deduplicate: bool
) -> Path:
    """A path from what each step emitted.

    Args:
        symbols: per step, [*batch, any number] labels with NO_SYMBOL for nothing.
        weight: [*batch] log weight.
        alignment: the alignment lattice, which says what frames are.
        deduplicate: whether runs of one label are one label.
    """
    if not symbols:
        symbols = [torch.zeros(*weight.shape, 0, dtype=torch.int64, device=weight.device)]
    emitted = torch.cat(symbols, dim=-1)
    is_there = (emitted != NO_SYMBOL) & (weight[..., None] > -torch.inf)
    # Compact: what is there first, in order.
    order = torch.sort(~is_there, dim=-1, stable=True).indices
    length = is_there.sum(-1)
    size = int(length.max()) if length.numel() else 0
    labels = torch.where(is_there, emitted, BLANK).gather(-1, order)[..., :size]
    place = torch.arange(size, device=labels.device).expand(labels.shape)
    real = place < length[..., None]
    if isinstance(alignment, LabelFrameDependent):
        ended = ((labels == BLANK) & real).long()
        frames = ended.cumsum(-1) - ended
    else:
        frames = place
    return Path(labels, torch.where(real, frames, 0), length, weight, deduplicate)


def merge_paths(
    parts: list[Path], unflatten: Callable[[Tensor, int], Tensor], dim: int = 0
) -> Path:
    """Joins the paths of parts of a batch along dim, and puts the batch dims in its place."""
    size = max(part.alignment_labels.shape[-1] for part in parts)

    def joined(name: str) -> Tensor:
        fields = [getattr(part, name) for part in parts]
        if fields[0].dim() > dim + 1:
            fields = [pad(x, (0, size - x.shape[-1])) for x in fields]
        return unflatten(torch.cat(fields, dim=dim), dim)

    return Path(
        alignment_labels=joined("alignment_labels"),
        alignment_frames=joined("alignment_frames"),
        num_alignment_labels=joined("num_alignment_labels"),
        weight=joined("weight"),
        deduplicate=parts[0].deduplicate,
    )


def best_path(recursion: Recursion, max_label: int) -> tuple[list[Tensor], Tensor]:
    """The best path's symbols per step, and [B] its weight in float64."""
    with torch.no_grad():
        weight, state, pointers = best_pointers(recursion, max_label)
        symbols: list[Tensor] = []
        for step in reversed(range(len(pointers))):
            emitted, before = recursion.alignment.trace(pointers[step].long(), state)
            live = step < recursion.num_steps
            symbols.append(torch.where(live[:, None], emitted, NO_SYMBOL))
            state = torch.where(live, before, state)
    return symbols[::-1], weight


def sample_paths(
    recursion: Recursion,
    num_samples: int,
    generator: torch.Generator | None,
    start: int | None = None,
    known: Arcs | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Random paths, each with its posterior probability.

    Backward weights run once over the steps; then all samples walk forward together.

    Args:
        recursion: the lattice.
        num_samples: how many per utterance.
        generator: a source of random numbers.
        start: flat state to begin at, for what may follow a known history; None is the start.
        known: the arcs [B, N, ...] of all N steps, where they are at hand.

    Returns:
        Per step the symbols [num_samples, B, any], and [num_samples, B] float64 weights.
    """
    inputs = recursion.source.inputs
    pieces = recursion.source.pieces()

    def arcs_of(steps: range) -> Arcs:
        if known is not None:
            return known.map(lambda x: x[:, steps.start : steps.stop])
        return recursion.source.arcs(inputs, steps)

    if len(pieces) == 1:  # they fit into memory, so that both passes can have the same
        arcs_of = functools.cache(arcs_of)
    with torch.no_grad():
        betas = [beta for _, _, beta, _ in recursion.backward(inputs, arcs_of)][::-1]
        walk = _Walk(recursion, betas[0], num_samples, generator, start)
        for steps in pieces:
            arcs = arcs_of(steps)
            for step in steps:
                walk.take(step, at_step(arcs, step - steps.start), betas[step + 1])
        return walk.symbols, walk.finish(betas[0])


class _Walk:
    """Samples on their way through the steps."""

    def __init__(
        self,
        recursion: Recursion,
        beta: Tensor,
        num_samples: int,
        generator: torch.Generator | None,
        start: int | None,
    ) -> None:
        self._recursion = recursion
        self._num_samples = num_samples
        self._generator = generator
        self.symbols: list[Tensor] = []
        state = recursion.start(beta).flatten(1).argmax(-1)
        if start is not None:
            state = torch.full_like(state, start)
        self._state = state.expand(num_samples, -1)
        possible = beta.flatten(1).gather(1, state[:, None])[:, 0] > -torch.inf
        weight = torch.where(possible, 0.0, -torch.inf).double()
        self._weight = weight.expand(num_samples, -1)

    def take(self, step: int, arcs: Arcs, beta: Tensor) -> None:
        """One step of all samples, with the backward weights after it."""
        recursion = self._recursion
        emitted, state, weight = recursion.alignment.sample(
            recursion.space,
            self._state,
            arcs.map(lambda x: x.expand(self._num_samples, *x.shape)),
            beta.expand(self._num_samples, *beta.shape),
            self._draw,
        )
        live = step < recursion.num_steps
        self.symbols.append(torch.where(live[:, None], emitted, NO_SYMBOL))
        self._state = torch.where(live, state, self._state)
        self._weight = self._weight + torch.where(live, weight, 0.0)

    def finish(self, like: Tensor) -> Tensor:
        """[num_samples, B] float64 weights, ends included."""
        final = self._recursion.final(like).flatten(1)
        return self._weight + final.expand(self._num_samples, *final.shape).gather(
            -1, self._state[..., None]
        ).squeeze(-1)

    def _draw(self, weights: Tensor) -> Tensor:
        """An index per row by its log weight: the largest after adding Gumbel noise."""
        noise = torch.empty_like(weights).exponential_(generator=self._generator)
        return (weights - noise.log()).argmax(-1)
