"""Label prefixes with forward weights: what a beam search holds.

Shapes: P prefixes, V vocab_size. Weights are float64 logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from midge.contexts import FiniteContext
from midge.decoding.fusion import Array, States
from midge.decoding.histories import Rows
from midge.lattices import RecognitionLattice
from midge.weights.normalization import arc_weights


class Prefix:
    """A label prefix, as a link to the one before it.

    It knows those one label longer only as long as a search holds them, or one that begins so:
    what is dropped is freed.
    """

    __slots__ = ("__weakref__", "added", "children", "fused", "label", "parent", "states")

    def __init__(self, parent: Prefix | None, label: int, states: States, fused: float) -> None:
        self.parent = parent
        self.label = label
        self.states = states
        """Of the fusion."""
        self.fused = fused
        """What the fusion has added so far."""
        self.added: Array | None = None
        """[V] what it adds for each next label, once it was asked."""
        self.children: WeakValueDictionary[int, Prefix] = WeakValueDictionary()

    def labels(self) -> tuple[int, ...]:
        """All of them."""
        backward: list[int] = []
        at: Prefix = self
        while at.parent is not None:
            backward.append(at.label)
            at = at.parent
        return tuple(backward[::-1])


@dataclass(frozen=True)
class Beam:
    """Prefixes with their forward weights at one place of L_T."""

    prefixes: list[Prefix]
    """P different ones."""
    rows: Rows
    """Their histories."""
    waiting: Array
    """[P] after a blank, or wherever it does not matter what was read last."""
    read: Array
    """[P] with deduplication: in a run of the last label."""

    def picked(self, places: Sequence[int]) -> Beam:
        """Some of them."""
        index = torch.tensor(places, dtype=torch.int64, device=self.rows[0].device)
        return Beam(
            [self.prefixes[place] for place in places],
            tuple(x[index] for x in self.rows),
            self.waiting[places],
            self.read[places],
        )

    def totals(self) -> Array:
        """[P] over both."""
        return np.logaddexp(self.waiting, self.read)


@dataclass(frozen=True)
class LeavingArcs:
    """What leaves each prefix at one step: axis 1 is waiting, and in a run of the last label."""

    blank: Array
    """[P, 2]"""
    closing: Array
    """[P, 2] blank after as many labels of a frame as the lattice allows."""
    hold: Array
    """[P] a repeat of the last label."""
    new: Array
    """[P, 2, V]"""

    def moved(self, beam: Beam) -> Array:
        """[P, V] the weights of prefixes one label longer."""
        moved: Array = np.logaddexp(
            beam.waiting[:, None] + self.new[:, 0], beam.read[:, None] + self.new[:, 1]
        )
        return moved


def leaving_arcs(lattice: RecognitionLattice, beam: Beam, scores: Tensor) -> LeavingArcs | None:
    """The arcs that leave prefixes, from raw scores [P, 1 + V]; None if one is NaN or +inf."""
    context = lattice.context
    mask = context.arc_mask if isinstance(context, FiniteContext) else None
    last = torch.tensor([prefix.label for prefix in beam.prefixes], device=scores.device)
    arcs = arc_weights(
        scores[None, None],
        lattice.normalization,
        has_blank=lattice.alignment.has_blank,
        arc_mask=None if mask is None else mask.to(scores.device)[beam.rows[0]],
        entered_label=last[:, None] if lattice.deduplicate else None,
    ).map(lambda x: x[0, 0].double().cpu())
    added = context.label_weights if isinstance(context, FiniteContext) else None
    labels = arcs.lexical if added is None else arcs.lexical + added[beam.rows[0].cpu()].double()
    blank, new = arcs.blank, labels[:, None]
    if bool(blank.isnan().any() | new.isnan().any() | (new == torch.inf).any()):
        return None
    hold = torch.full((len(beam.prefixes),), -torch.inf, dtype=torch.float64)
    if arcs.repeat is not None:
        hold = arcs.repeat[:, 0]
    if arcs.label_scale is not None:
        hold = hold + arcs.label_scale[:, 1]
        new = new + arcs.label_scale[..., None]
    else:
        blank = blank[:, None].expand(-1, 2)
        new = new.expand(-1, 2, -1)
    new = new.clone()
    if lattice.deduplicate:
        column = (last.cpu() - 1).clamp(min=0)[:, None]
        new[:, 1].scatter_(1, column, -torch.inf)  # the last label again is no new one
    closing = blank if lattice.normalization == "global" else torch.zeros_like(blank)
    return LeavingArcs(blank.numpy(), closing.numpy(), hold.numpy(), new.numpy())


def merge_children(beam: Beam, new: Array, into: Array) -> None:
    """Moves the weight of a longer prefix [P, V] that is in the beam itself to its place [P]."""
    place_of = {id(prefix): place for place, prefix in enumerate(beam.prefixes)}
    for place, prefix in enumerate(beam.prefixes):
        parent = place_of.get(id(prefix.parent))
        if parent is not None:
            into[place] = np.logaddexp(into[place], new[parent, prefix.label - 1])
            new[parent, prefix.label - 1] = -np.inf


def merged(beams: Sequence[Beam]) -> Beam:
    """Beams of prefixes that wait, as one; the weights of equal prefixes add up."""
    if len(beams) == 1:
        return beams[0]
    waiting = np.concatenate([beam.waiting for beam in beams])
    first: dict[int, int] = {}
    prefixes = [prefix for beam in beams for prefix in beam.prefixes]
    for place, prefix in enumerate(prefixes):
        known = first.setdefault(id(prefix), place)
        if known != place:
            waiting[known] = np.logaddexp(waiting[known], waiting[place])
    rows = tuple(torch.cat(parts) for parts in zip(*(beam.rows for beam in beams), strict=True))
    everything = Beam(prefixes, rows, waiting, np.full_like(waiting, -np.inf))
    return everything.picked(list(first.values()))


def joined(first: Beam, second: Beam) -> Beam:
    """Beams of different prefixes, one after the other."""
    return Beam(
        [*first.prefixes, *second.prefixes],
        tuple(torch.cat(pair) for pair in zip(first.rows, second.rows, strict=True)),
        np.concatenate([first.waiting, second.waiting]),
        np.concatenate([first.read, second.read]),
    )


def fused_scores(beam: Beam) -> Array:
    """[P] what the fusion has added."""
    return np.array([prefix.fused for prefix in beam.prefixes])
