"""A walk through one utterance's recognition lattice, from the start to all that can be reached.

The states and arcs come out one by one, with the weights that `lattices` computes for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from midge.automata.places import Key, Place, alignment_places
from midge.contexts import BLANK, FiniteContext
from midge.contexts.deduplication import entering_labels
from midge.contexts.spaces import Arcs
from midge.lattices import RecognitionLattice
from midge.lattices.recursion import Recursion, at_step

State = tuple[Key, int]
"""A state of A: that of L_T, and the flat number of the label space's state."""


@dataclass(frozen=True)
class WalkedArc:
    """An arc of A."""

    source: State
    label: int
    is_repeat: bool
    weight: float
    destination: State


@dataclass
class Walk:
    """What can be reached in A, or in A ∩ y."""

    places: list[Place]
    """The states of L_T."""
    start: State
    """The initial state."""
    histories: dict[int, tuple[list[int], int | None]]
    """Of each label space state: its labels, and with deduplication the label just read or 0."""
    final_weights: dict[State, float] = field(default_factory=dict)
    """Log weights of ending."""
    states: list[State] = field(default_factory=list)
    """By place, then by number."""
    arcs: list[WalkedArc] = field(default_factory=list)
    """By source, then blank first, then by label."""


def walk_lattice(
    lattice: RecognitionLattice,
    frames: Tensor,
    num_frames: int,
    labels: Tensor | None,
    max_num_arcs: int,
) -> Walk:
    """Walks through A, or through A ∩ y if there are labels.

    Args:
        lattice: the model.
        frames: [max_num_frames, input_size].
        num_frames: how many are real.
        labels: [num_labels], or None.
        max_num_arcs: stops with a ValueError beyond.
    """
    places = alignment_places(lattice.alignment, num_frames)
    with torch.no_grad():
        recursion, is_skewed = lattice.recursion_of(frames, num_frames, labels)
        walk = _Walker(recursion, places, is_skewed, max_num_arcs).run()
    reached = {state for _, state in walk.states}
    walk.histories.update(_histories(lattice, labels, reached))
    return walk


class _Walker:
    """Expands the states of one place of L_T after the other.

    Args:
        recursion: the lattice of one utterance.
        places: the states of L_T.
        is_skewed: whether the recursion's steps are diagonals, frame + label position.
        max_num_arcs: how many arcs at most.
    """

    def __init__(
        self,
        recursion: Recursion,
        places: list[Place],
        is_skewed: bool,
        max_num_arcs: int,
    ) -> None:
        like = recursion.source.like
        self._recursion = recursion
        self._space = recursion.space
        self._is_skewed = is_skewed
        self._max_num_arcs = max_num_arcs
        self._final = self._space.final(like).flatten().tolist()
        start = int(self._space.start(like).flatten().argmax())
        self._walk = Walk(places, (places[0].key, start), histories={})
        self._reached: dict[Key, set[int]] = {place.key: set() for place in places}
        self._reached[places[0].key].add(start)
        self._arcs_of_step: dict[int, Arcs] = {}

    def run(self) -> Walk:
        """All that can be reached."""
        walk = self._walk
        for place in walk.places:
            done: set[int] = set()
            # Labels that lead back to their own place (unbounded k) need more rounds than one.
            while todo := sorted(self._reached[place.key] - done):
                self._expand(place, todo)
                done.update(todo)
                self._check_size()
            walk.states += [(place.key, flat) for flat in sorted(done)]
        end = walk.places[-1].key
        for flat in sorted(self._reached[end]):
            if (weight := self._final[flat]) > -math.inf:
                walk.final_weights[end, flat] = weight
        return walk

    def _check_size(self) -> None:
        if len(self._walk.arcs) > self._max_num_arcs:
            raise ValueError(
                f"the lattice has more than {self._max_num_arcs} arcs; take fewer frames, a "
                "smaller context or a smaller vocabulary, or raise max_num_arcs"
            )

    def _expand(self, place: Place, states: list[int]) -> None:
        """Adds the arcs that leave states of one place."""
        if place.after_label is None and place.after_blank is None:
            return

        def step_of(flat: int) -> int:
            return place.step + flat if self._is_skewed else place.step

        for step, group in groupby(states, key=step_of):
            sources = list(group)
            arcs = self._arcs_at(step)
            arcs = arcs.at_limit() if place.is_limit else arcs
            state = torch.tensor(sources, device=arcs.blank.device)
            found = [*self._blanks(place, state, arcs), *self._labels(place, state, arcs)]
            found.sort(key=lambda arc: (arc.source, arc.label))
            self._walk.arcs += found
            for arc in found:
                self._reached[arc.destination[0]].add(arc.destination[1])

    def _arcs_at(self, step: int) -> Arcs:
        """Fields [S, ...] of the arcs of one step."""
        if step not in self._arcs_of_step:
            source = self._recursion.source
            arcs = at_step(source.arcs(source.inputs, range(step, step + 1)), 0)
            self._arcs_of_step[step] = arcs.map(lambda x: x[0])
        return self._arcs_of_step[step]

    def _blanks(self, place: Place, state: Tensor, arcs: Arcs) -> Iterable[WalkedArc]:
        if place.after_blank is None:
            return
        weights, destinations = self._space.blank_choice(state, _for_each(state, arcs))
        rows = zip(state.tolist(), weights.tolist(), destinations.tolist(), strict=True)
        for source, weight, destination in rows:
            if weight > -math.inf:
                after = (place.after_blank, destination)
                yield WalkedArc((place.key, source), BLANK, False, weight, after)

    def _labels(self, place: Place, state: Tensor, arcs: Arcs) -> Iterable[WalkedArc]:
        if place.after_label is None:
            return
        weights, labels, destinations = self._space.label_choices(state, _for_each(state, arcs))
        is_there = (weights > -torch.inf) & (labels > 0) & (destinations >= 0)
        sources = state[:, None].expand_as(labels)
        columns = (x[is_there].tolist() for x in (sources, labels, weights, destinations))
        deduplicates = len(self._space.state_shape) == 2
        for source, label, weight, destination in zip(*columns, strict=True):
            yield WalkedArc(
                source=(place.key, source),
                label=label,
                # A new label never leads from (q, y) to (q, y): from there y is a repeat.
                is_repeat=deduplicates and source == destination,
                weight=weight,
                destination=(place.after_label, destination),
            )


def _for_each(state: Tensor, arcs: Arcs) -> Arcs:
    """Fields [S, ...] -> [num_states, S, ...], without a copy."""
    return arcs.map(lambda x: x.expand(len(state), *x.shape))


def _histories(
    lattice: RecognitionLattice, labels: Tensor | None, states: set[int]
) -> dict[int, tuple[list[int], int | None]]:
    """What stands behind the flat states of the label space: labels, and the one just read."""
    if labels is not None:
        string = [int(label) for label in labels]
        if not lattice.deduplicate:
            return {state: (string[:state], None) for state in states}
        return {
            state: (string[: state // 2], string[state // 2 - 1] if state % 2 else BLANK)
            for state in states
        }
    context = lattice.context
    assert isinstance(context, FiniteContext)
    if not lattice.deduplicate:
        return {state: (context.state_labels(state), None) for state in states}
    entered, _ = entering_labels(context)
    num_slots = 1 + entered.shape[-1]
    read = torch.nn.functional.pad(entered, (1, 0)).tolist()
    return {
        state: (
            context.state_labels(state // num_slots),
            read[state // num_slots][state % num_slots],
        )
        for state in states
    }
