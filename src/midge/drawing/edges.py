"""What is written: arcs that run together as one edge, and names as the mathematics writes them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from midge.automata import Arc, Automaton
from midge.contexts import BLANK


@dataclass(frozen=True)
class Edge:
    """Arcs from one state to another that are drawn as one arrow."""

    source: int
    destination: int
    arcs: tuple[int, ...]
    """Which arcs of the automaton."""
    is_blank: bool
    """Whether they read blank."""
    text: str
    """Its label."""


def edges_of(automaton: Automaton, apart: Collection[int], show_weights: bool) -> list[Edge]:
    """The arcs of an automaton by source, destination, and whether they read blank.

    Args:
        automaton: the automaton.
        apart: arcs that are not drawn as one with others: those of the best path.
        show_weights: whether labels tell the weights.
    """
    groups: dict[tuple[int, int, bool, bool], list[int]] = {}
    for number, arc in enumerate(automaton.arcs):
        key = (arc.source, arc.destination, arc.input_label == BLANK, number in apart)
        groups.setdefault(key, []).append(number)
    return [
        Edge(
            source,
            destination,
            tuple(numbers),
            is_blank,
            _label([automaton.arcs[number] for number in numbers], automaton, show_weights),
        )
        for (source, destination, is_blank, _), numbers in groups.items()
    ]


def _label(arcs: list[Arc], automaton: Automaton, show_weights: bool) -> str:
    """The label of arcs that are drawn as one."""
    symbols = automaton.symbols
    if show_weights:
        parts = [f"{_arc_label(arc, automaton)}/{arc.weight:.2f}" for arc in arcs]
        return ", ".join(parts)
    read = {arc.input_label for arc in arcs}
    missing = [symbols[label] for label in range(1, len(symbols)) if label not in read]
    if automaton.is_transducer or BLANK in read or automaton.vocab_size == 1:
        return ", ".join(_arc_label(arc, automaton) for arc in arcs)
    if not missing:
        return "Σ"
    if len(missing) < len(read) and len(read) > 3:
        return f"Σ∖{{{','.join(missing)}}}"
    return ", ".join(_arc_label(arc, automaton) for arc in arcs)


def _arc_label(arc: Arc, automaton: Automaton) -> str:
    read, written = automaton.symbols[arc.input_label], automaton.symbols[arc.output_label]
    return f"{read}:{written}" if automaton.is_transducer else read


_MATHEMATICS = {
    "ε": r"\epsilon ",
    "Σ": r"\Sigma ",
    "∖": r"\setminus ",
    "{": r"\{",
    "}": r"\}",
    ":": "{:}",
    "-": "{-}",
}


def typeset(text: str) -> str:
    """A name or label for matplotlib: mathematics where that is simple, else plain text."""
    if re.fullmatch(r"[A-Za-z0-9(),./ εΣ∖{}:-]*", text):
        return "$" + "".join(_MATHEMATICS.get(character, character) for character in text) + "$"
    return text.replace("$", r"\$")
