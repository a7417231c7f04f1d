"""A small automaton, written out: states with names, and a list of arcs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from midge.alignments import AlignmentLattice, LabelDependent
from midge.automata.names import label_symbols, spell, tuple_name
from midge.automata.places import Place, alignment_places
from midge.automata.walk import State, Walk, walk_lattice
from midge.contexts import BLANK, FiniteContext
from midge.lattices import RecognitionLattice

MAX_NUM_ARCS = 100_000
"""What is larger is not written out unless it is asked for."""

Kind = Literal["context", "chain", "staircase", "label chain", "deduplication", "lattice", "other"]


class Arc(NamedTuple):
    """An arc of an `Automaton`."""

    source: int
    """The state it leaves."""
    input_label: int
    """0 is blank."""
    output_label: int
    """0 is blank, or nothing where the input label is none."""
    weight: float
    """Log weight, larger is better."""
    destination: int
    """The state it enters."""


@dataclass(frozen=True)
class Automaton:
    """A weighted automaton or transducer, state by state.

    The builders `of_context`, `of_alignment`, `of_deduplication` and `of_lattice` write out C, L_T,
    D and A. `midge.to_fst` turns the result into OpenFst text, `midge.draw` into a picture.

    Args:
        state_names: the name of each state.
        start: the initial state.
        final_weights: log weight of ending, for each final state.
        arcs: the arcs.
        symbols: what to call the labels 0, 1, ...; 0 is blank.
        kind: what it is, which says how to draw it.
        grid: column and row of each state in a picture; None lets `draw` decide.

    Raises:
        ValueError: if a state, a label or a weight is out of range.

    Example:
        >>> import midge
        >>> chain = Automaton.of_alignment(midge.FrameDependent(), num_frames=2, vocab_size=1)
        >>> chain.state_names
        ('0', '1', '2')
        >>> [(arc.source, chain.symbols[arc.input_label], arc.destination) for arc in chain.arcs]
        [(0, 'ε', 1), (0, 'a', 1), (1, 'ε', 2), (1, 'a', 2)]
    """

    state_names: tuple[str, ...]
    start: int
    final_weights: Mapping[int, float]
    arcs: tuple[Arc, ...]
    symbols: tuple[str, ...]
    kind: Kind = "other"
    grid: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        ends = {end for arc in self.arcs for end in (arc.source, arc.destination)}
        wrong = sorted(
            ({self.start} | ends | set(self.final_weights)) - set(range(self.num_states))
        )
        if wrong:
            raise ValueError(f"states should be 0..{self.num_states - 1}, got {wrong[0]}")
        labels = {label for arc in self.arcs for label in (arc.input_label, arc.output_label)}
        if wrong := sorted(labels - set(range(len(self.symbols)))):
            raise ValueError(f"labels should be 0..{len(self.symbols) - 1}, got {wrong[0]}")
        for weight in (*(arc.weight for arc in self.arcs), *self.final_weights.values()):
            if math.isnan(weight) or weight == math.inf:
                raise ValueError(f"weights should be finite or -inf, got {weight}")
        if self.grid is not None and len(self.grid) != self.num_states:
            raise ValueError(f"grid should place {self.num_states} states, got {len(self.grid)}")

    @property
    def num_states(self) -> int:
        """Number of states."""
        return len(self.state_names)

    @property
    def vocab_size(self) -> int:
        """Number of lexical labels; blank is not counted."""
        return len(self.symbols) - 1

    @property
    def is_transducer(self) -> bool:
        """Whether some arc reads and writes different labels."""
        return any(arc.input_label != arc.output_label for arc in self.arcs)

    @classmethod
    def of_context(
        cls,
        context: FiniteContext,
        *,
        symbols: Sequence[str] | None = None,
        max_num_arcs: int = MAX_NUM_ARCS,
    ) -> Automaton:
        """The context dependency C; a state is called by the labels that lead to it.

        Args:
            context: any finite context; its states keep their numbers.
            symbols: what to call the labels 1..vocab_size; letters, or numbers if they are many.
            max_num_arcs: refuses to write out more.

        Raises:
            ValueError: if there are more arcs, or the symbols do not fit.
        """
        _check_num_arcs(context.num_states * context.vocab_size, max_num_arcs)
        names = label_symbols(symbols, context.vocab_size)
        table = context.next_state_table().tolist()
        histories = [context.state_labels(state) for state in range(context.num_states)]
        rank = _ranks(map(len, histories))
        finals = context.final_weights
        weights = [0.0] * context.num_states if finals is None else finals.tolist()
        added = context.label_weights
        arc_weights = torch.zeros(len(table), context.vocab_size) if added is None else added
        rows = zip(table, arc_weights.tolist(), strict=True)
        return cls(
            state_names=tuple(spell(history, names) for history in histories),
            start=context.start,
            final_weights={q: weight for q, weight in enumerate(weights) if weight > -math.inf},
            arcs=tuple(
                Arc(state, column + 1, column + 1, weight, destination)
                for state, row in enumerate(rows)
                for column, (destination, weight) in enumerate(zip(*row, strict=True))
                if destination >= 0
            ),
            symbols=names,
            kind="context",
            grid=tuple(zip(map(len, histories), rank, strict=True)),
        )

    @classmethod
    def of_alignment(
        cls,
        alignment: AlignmentLattice,
        num_frames: int,
        vocab_size: int,
        *,
        symbols: Sequence[str] | None = None,
        max_num_arcs: int = MAX_NUM_ARCS,
    ) -> Automaton:
        """The alignment lattice L_T, with the paper's states: t, (t, n) or u.

        With unbounded labels per frame the states are the frames, and labels loop.

        Args:
            alignment: any alignment lattice.
            num_frames: T.
            vocab_size: number of lexical labels.
            symbols: what to call them; letters, or numbers if they are many.
            max_num_arcs: refuses to write out more.

        Raises:
            ValueError: if there are more arcs, or an argument is out of range.
        """
        names = label_symbols(symbols, vocab_size)
        places = alignment_places(alignment, num_frames)
        _check_num_arcs(len(places) * (1 + vocab_size), max_num_arcs)
        number = {place.key: state for state, place in enumerate(places)}
        has_counts = len(places[0].key) == 2
        return cls(
            state_names=tuple(tuple_name(map(str, place.key)) for place in places),
            start=0,
            final_weights={len(places) - 1: 0.0},
            arcs=tuple(
                Arc(number[place.key], label, label, 0.0, number[after])
                for place in places
                for label, after in _moves(place, vocab_size)
            ),
            symbols=names,
            kind=_alignment_kind(alignment, has_counts),
            grid=tuple((place.key[0], place.key[1] if has_counts else 0) for place in places),
        )

    @classmethod
    def of_deduplication(
        cls,
        vocab_size: int,
        *,
        symbols: Sequence[str] | None = None,
        max_num_arcs: int = MAX_NUM_ARCS,
    ) -> Automaton:
        """The transducer D that merges a run of one label into a single one (paper, appendix B.4).

        Its state is the label just read. A repeat writes nothing; blank ends the run.

        Args:
            vocab_size: number of lexical labels.
            symbols: what to call them; letters, or numbers if they are many.
            max_num_arcs: refuses to write out more.

        Raises:
            ValueError: if there are more arcs, or an argument is out of range.
        """
        names = label_symbols(symbols, vocab_size)
        _check_num_arcs((1 + vocab_size) ** 2, max_num_arcs)
        states = range(1 + vocab_size)
        return cls(
            state_names=names,
            start=BLANK,
            final_weights=dict.fromkeys(states, 0.0),
            arcs=tuple(
                Arc(read, label, BLANK if label == read else label, 0.0, label)
                for read in states
                for label in states
            ),
            symbols=names,
            kind="deduplication",
            grid=tuple((min(state, 1), max(state - 1, 0)) for state in states),
        )

    @classmethod
    def of_lattice(
        cls,
        lattice: RecognitionLattice,
        frames: Tensor,
        num_frames: int | Tensor | None = None,
        labels: Sequence[int] | Tensor | None = None,
        *,
        symbols: Sequence[str] | None = None,
        max_num_arcs: int = MAX_NUM_ARCS,
    ) -> Automaton:
        """The recognition lattice A of one utterance, or A ∩ y: the alignments of some labels.

        Only states on a path from the start to an end are there, and only arcs of weight above
        -inf. A state is called (t, q), (t, n, q) or (u, q) by its parts, q by its labels; with
        deduplication the label just read follows. In A ∩ y, q is as much of y as has been spelled.
        With deduplication this is a transducer: a repeat reads its label and writes nothing.

        Args:
            lattice: the model.
            frames: [max_num_frames, input_size] of one utterance.
            num_frames: how many are real; all by default.
            labels: [num_labels] labels, for their alignments alone.
            symbols: what to call the labels 1..vocab_size; letters, or numbers if they are many.
            max_num_arcs: refuses to write out more.

        Raises:
            ValueError: if there are more arcs; for `FullHistory` or unbounded labels per frame
                without labels; or if an argument does not fit.
        """
        names = label_symbols(symbols, lattice.context.vocab_size)
        if frames.dim() != 2:
            raise ValueError(
                "frames should be those of one utterance, [max_num_frames, input_size], "
                f"got {list(frames.shape)}"
            )
        count = len(frames) if num_frames is None else int(num_frames)
        string = None if labels is None else torch.as_tensor(labels, dtype=torch.int64)
        walk = walk_lattice(lattice, frames, count, string, max_num_arcs)
        return _of_walk(walk, names).connected()

    def connected(self) -> Automaton:
        """Without the states and arcs that lie on no path from the start to an end.

        The start stays. An arc or an end of weight -inf is none.
        """
        arcs = [arc for arc in self.arcs if arc.weight > -math.inf]
        ends = {state for state, weight in self.final_weights.items() if weight > -math.inf}
        kept = _reachable({self.start}, ((arc.source, arc.destination) for arc in arcs))
        kept &= _reachable(ends, ((arc.destination, arc.source) for arc in arcs))
        kept.add(self.start)
        number = {state: new for new, state in enumerate(sorted(kept))}
        return Automaton(
            state_names=tuple(self.state_names[state] for state in number),
            start=number[self.start],
            final_weights={number[q]: self.final_weights[q] for q in sorted(ends & kept)},
            arcs=tuple(
                arc._replace(source=number[arc.source], destination=number[arc.destination])
                for arc in arcs
                if arc.source in kept and arc.destination in kept
            ),
            symbols=self.symbols,
            kind=self.kind,
            grid=None if self.grid is None else tuple(self.grid[state] for state in number),
        )

    def best_path(self) -> tuple[int, ...]:
        """The arcs of the best path, as indices into `arcs`; none if there is no path.

        Raises:
            ValueError: if there is a cycle.
        """
        best = {self.start: 0.0}
        entered_by: dict[int, int] = {}
        leaving = self._leaving()
        for state in self._topological_order():
            for number in leaving[state]:
                arc = self.arcs[number]
                weight = best.get(state, -math.inf) + arc.weight
                if weight > best.get(arc.destination, -math.inf):
                    best[arc.destination], entered_by[arc.destination] = weight, number
        ends = {state: best[state] + self._end(state) for state in best}
        at = max(ends, key=lambda state: ends[state])
        if ends[at] == -math.inf:
            return ()
        path: list[int] = []
        while at in entered_by:
            path.append(entered_by[at])
            at = self.arcs[path[-1]].source
        return tuple(reversed(path))

    def posteriors(self) -> tuple[float, ...]:
        """The probability of each arc when a path is drawn by its weight.

        Raises:
            ValueError: if there is a cycle.
        """
        order = self._topological_order()
        leaving = self._leaving()
        alpha = dict.fromkeys(range(self.num_states), -math.inf) | {self.start: 0.0}
        beta = {state: self._end(state) for state in alpha}
        for state in order:
            for arc in (self.arcs[number] for number in leaving[state]):
                alpha[arc.destination] = _log_add(alpha[arc.destination], alpha[state] + arc.weight)
        for state in reversed(order):
            for arc in (self.arcs[number] for number in leaving[state]):
                beta[state] = _log_add(beta[state], arc.weight + beta[arc.destination])
        total = beta[self.start]
        if total == -math.inf:
            return (0.0,) * len(self.arcs)
        return tuple(
            math.exp(alpha[arc.source] + arc.weight + beta[arc.destination] - total)
            for arc in self.arcs
        )

    def _end(self, state: int) -> float:
        return self.final_weights.get(state, -math.inf)

    def _leaving(self) -> dict[int, list[int]]:
        """The arcs that leave each state, as indices."""
        leaving: dict[int, list[int]] = defaultdict(list)
        for number, arc in enumerate(self.arcs):
            leaving[arc.source].append(number)
        return leaving

    def _topological_order(self) -> list[int]:
        num_entering = [0] * self.num_states
        for arc in self.arcs:
            num_entering[arc.destination] += 1
        leaving = self._leaving()
        order = [state for state in range(self.num_states) if num_entering[state] == 0]
        for state in order:
            for number in leaving[state]:
                destination = self.arcs[number].destination
                num_entering[destination] -= 1
                if num_entering[destination] == 0:
                    order.append(destination)
        if len(order) < self.num_states:
            raise ValueError("the automaton should have no cycle, but it has one")
        return order


def _of_walk(walk: Walk, symbols: tuple[str, ...]) -> Automaton:
    number = {state: index for index, state in enumerate(walk.states)}
    column = {place.key: index for index, place in enumerate(walk.places)}
    rows = {flat: row for row, flat in enumerate(sorted(walk.histories))}
    return Automaton(
        state_names=tuple(_state_name(state, walk, symbols) for state in walk.states),
        start=number[walk.start],
        final_weights={number[state]: weight for state, weight in walk.final_weights.items()},
        arcs=tuple(
            Arc(
                number[arc.source],
                arc.label,
                BLANK if arc.is_repeat else arc.label,
                arc.weight,
                number[arc.destination],
            )
            for arc in walk.arcs
        ),
        symbols=symbols,
        kind="lattice",
        grid=tuple((column[key], rows[flat]) for key, flat in walk.states),
    )


def _state_name(state: State, walk: Walk, symbols: tuple[str, ...]) -> str:
    key, flat = state
    history, read = walk.histories[flat]
    parts = [*map(str, key), spell(history, symbols)]
    return tuple_name(parts if read is None else [*parts, symbols[read]])


def _alignment_kind(alignment: AlignmentLattice, has_counts: bool) -> Kind:
    """How to draw L_T; `has_counts` says whether its states are (t, n)."""
    if isinstance(alignment, LabelDependent):
        return "label chain"
    return "staircase" if has_counts else "chain"


def _moves(place: Place, vocab_size: int) -> list[tuple[int, tuple[int, ...]]]:
    """The labels, blank first, that leave a place of L_T, and where they lead."""
    blank = [] if place.after_blank is None else [(BLANK, place.after_blank)]
    if place.after_label is None:
        return blank
    return blank + [(label, place.after_label) for label in range(1, vocab_size + 1)]


def _ranks(columns: Iterable[int]) -> list[int]:
    """The how-manieth of its column each entry is."""
    seen: dict[int, int] = defaultdict(int)
    ranks = []
    for column in columns:
        ranks.append(seen[column])
        seen[column] += 1
    return ranks


def _reachable(roots: Iterable[int], arcs: Iterable[tuple[int, int]]) -> set[int]:
    """The states that arcs lead to from the roots, roots included."""
    following = defaultdict(list)
    for source, destination in arcs:
        following[source].append(destination)
    found = set(roots)
    todo = list(found)
    while todo:
        for state in following[todo.pop()]:
            if state not in found:
                found.add(state)
                todo.append(state)
    return found


def _log_add(a: float, b: float) -> float:
    largest = max(a, b)
    if largest == -math.inf:
        return largest
    return largest + math.log1p(math.exp(min(a, b) - largest))


def _check_num_arcs(num_arcs: int, max_num_arcs: int) -> None:
    if num_arcs > max_num_arcs:
        raise ValueError(
            f"the automaton has up to {num_arcs} arcs, more than {max_num_arcs}; take a smaller "
            "one, or raise max_num_arcs"
        )
