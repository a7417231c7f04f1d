"""Automata as OpenFst text, which `fstcompile` and its bindings read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

from midge.automata.automaton import Arc, Automaton
from midge.contexts import BLANK, FiniteContext

BlankLabel = Literal["epsilon", "input", "both"]


def to_fst(automaton: Automaton | FiniteContext, *, blank: BlankLabel = "epsilon") -> str:
    r"""Writes an automaton in OpenFst's text format, as a transducer.

    An arc is a line "source, destination, input label, output label, weight", a final state a
    line "state, weight", separated by tabs; the start state comes first. OpenFst's weights are
    costs, so ours are negated; a weight of 0 is left out, as OpenFst does, and so are arcs of
    -inf. Labels are numbers; `fst_symbols` has their names. Compile with `fstcompile`: without
    options for the tropical semiring, with `--arc_type=log64` for the logarithmic one.

    OpenFst composes label 0 as the empty string, so that blank cannot be told from "nothing". For
    L_T ∘ (D ∘ C), where D reads blank as a label, write D with `blank="input"` and L_T with
    `blank="both"`. For L_T ∘ C write L_T with `blank="input"`, or as it is.

    Args:
        automaton: from `Automaton.of_context`, `of_alignment`, `of_deduplication` or
            `of_lattice`; or a finite context itself.
        blank: the label of blank. "epsilon" is 0, the empty string. "input" is vocab_size + 1 on
            the input side, where an alignment is read, and 0 on the output side, where labels are
            written. "both" is vocab_size + 1 on both sides.

    Raises:
        ValueError: for any other `blank`.

    Example:
        >>> import midge
        >>> chain = Automaton.of_alignment(midge.FrameDependent(), num_frames=1, vocab_size=1)
        >>> print(to_fst(chain).expandtabs(3), end="")
        0  1  0  0
        0  1  1  1
        1
        >>> print(to_fst(chain, blank="input").expandtabs(3), end="")
        0  1  2  0
        0  1  1  1
        1
    """
    if isinstance(automaton, FiniteContext):
        automaton = Automaton.of_context(automaton)
    if blank not in get_args(BlankLabel):
        raise ValueError(f"blank should be one of {list(get_args(BlankLabel))}, got {blank!r}")
    lines = list(_lines(automaton, blank))
    return "".join("\t".join(line) + "\n" for line in lines)


def fst_symbols(automaton: Automaton | FiniteContext) -> str:
    """The symbol table of an automaton's labels, as OpenFst text.

    0 is <eps>, the labels follow, and last comes <blank> for where blank has a label of its own.

    Args:
        automaton: as for `to_fst`.

    Raises:
        ValueError: if a symbol is empty or has white space in it, which OpenFst does not read.

    Example:
        >>> import midge
        >>> context = midge.FullNGram(vocab_size=2, context_size=0)
        >>> print(fst_symbols(context).expandtabs(3), end="")
        <eps> 0
        a  1
        b  2
        <blank>  3
    """
    if isinstance(automaton, FiniteContext):
        automaton = Automaton.of_context(automaton)
    symbols = ["<eps>", *automaton.symbols[1:], "<blank>"]
    for symbol in symbols:
        if symbol.split() != [symbol]:
            raise ValueError(f"symbols should be words without white space, got {symbol!r}")
    if len(set(symbols)) < len(symbols):
        raise ValueError("<eps> and <blank> stand for themselves and cannot be labels too")
    return "".join(f"{symbol}\t{label}\n" for label, symbol in enumerate(symbols))


def _lines(automaton: Automaton, blank: BlankLabel) -> Iterator[list[str]]:
    start = automaton.start
    leaving = [arc for arc in automaton.arcs if arc.weight > -math.inf]
    ends = {q: w for q, w in automaton.final_weights.items() if w > -math.inf}
    first = [arc for arc in leaving if arc.source == start]
    # The source of the first line is the start, whatever its number; it may have an end only, or
    # nothing at all, which is an end of infinite cost.
    if not first:
        yield [str(start), *(_cost(ends.pop(start)) if start in ends else ["Infinity"])]
    for arc in [*first, *(arc for arc in leaving if arc.source != start)]:
        labels = _labels(arc, blank, automaton.vocab_size + 1)
        yield [str(arc.source), str(arc.destination), *map(str, labels), *_cost(arc.weight)]
    for state, weight in ends.items():
        yield [str(state), *_cost(weight)]


def _labels(arc: Arc, blank: BlankLabel, blank_label: int) -> tuple[int, int]:
    """Input and output label. Only an arc that reads blank writes it: a repeat writes nothing."""
    if arc.input_label != BLANK or blank == "epsilon":
        return arc.input_label, arc.output_label
    return blank_label, blank_label if blank == "both" else arc.output_label


def _cost(weight: float) -> list[str]:
    """A cost as a column, or no column for 0."""
    return [repr(-weight)] if weight else []
