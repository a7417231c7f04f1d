"""Pictures of automata in the manner of the paper's figures. Needs matplotlib, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal, get_args

from midge.automata import Automaton
from midge.contexts import FiniteContext
from midge.drawing.canvas import FONT_SIZE, LABEL_SIZE, Picture, Stroke, require_matplotlib, save
from midge.drawing.canvas import text_size as _text_size
from midge.drawing.curves import RADIUS, straight
from midge.drawing.edges import Edge, edges_of, typeset
from midge.drawing.layouts import positions, route
from midge.drawing.placement import place_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Highlight", "draw"]

Highlight = Literal["best path", "posteriors"]
"""What `draw` may show by colour and width."""

MAX_NUM_STATES = 300
ACCENT, FAINT, MUTED = "#0b5cad", "#a8a8a8", "#5a5a5a"


def draw(
    automaton: Automaton | FiniteContext,
    path: str | os.PathLike[str] | None = None,
    *,
    weights: bool = False,
    highlight: Highlight | None = None,
) -> Figure:
    """Draws an automaton, and writes it to a file if there is a path.

    Final states have a double circle, the start an arrow. Arcs that run together are one arrow; Σ
    stands for all labels but blank. C has its histories by length, L_T its frames from left to
    right, D is a triangle, and a recognition lattice a grid of time and context.

    Args:
        automaton: from `Automaton.of_context`, `of_alignment`, `of_deduplication` or
            `of_lattice`, or one of your own; or a finite context itself.
        path: where to write, ending in .svg or .png; the same automaton gives the same bytes.
        weights: whether to write the log weight of each arc behind its label, as a/-0.35.
        highlight: "best path" draws the path of the largest weight in colour; "posteriors" draws
            each arc as wide as it is probable. Both need an automaton without cycles.

    Returns:
        The matplotlib figure, which a notebook shows.

    Raises:
        ImportError: if matplotlib is not there.
        ValueError: if there are more than 300 states, or an argument does not fit.

    Example:
        >>> import midge
        >>> figure = draw(midge.FullNGram(vocab_size=2, context_size=1))
    """
    require_matplotlib()
    if isinstance(automaton, FiniteContext):
        automaton = Automaton.of_context(automaton)
    if automaton.num_states > MAX_NUM_STATES:
        raise ValueError(
            f"a picture of {automaton.num_states} states could not be read; draw at most "
            f"{MAX_NUM_STATES}"
        )
    if highlight is not None and highlight not in get_args(Highlight):
        raise ValueError(f"highlight should be one of {get_args(Highlight)}, got {highlight!r}")
    target = None if path is None else FilePath(path)
    if target is not None and target.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"path should end in .svg or .png, got {str(target)!r}")
    figure = _picture(automaton, weights, highlight).figure()
    if target is not None:
        save(figure, target)
    return figure


def _picture(automaton: Automaton, weights: bool, highlight: Highlight | None) -> Picture:
    best = automaton.best_path() if highlight == "best path" else ()
    edges = edges_of(automaton, apart=best, show_weights=weights)
    names = [typeset(name) for name in automaton.state_names]
    radius, name_size = _radius(names)
    labels = [typeset(edge.text) for edge in edges]
    sizes = [_text_size(label, LABEL_SIZE)[1] for label in labels]
    centres = positions(automaton, radius, max((width for width, _ in sizes), default=0.0))
    curves = route(automaton, edges, centres, radius)
    boxes = place_labels(
        curves,
        sizes,
        [edge.source == edge.destination for edge in edges],
        centres,
        radius,
        # Where many arrows cross, a label is told best near the state that its arrow leaves.
        favourite=0.31 if automaton.kind == "lattice" else 0.5,
    )
    x, y = centres[automaton.start]
    return Picture(
        automaton=automaton,
        names=names,
        name_size=name_size,
        centres=centres,
        radius=radius,
        state_colours=_state_colours(automaton, best, highlight),
        start_arrow=straight((x - radius - 20, y), (x - radius, y)),
        curves=curves,
        strokes=_strokes(automaton, edges, best, highlight),
        labels=labels,
        boxes=boxes,
    )


def _radius(names: Sequence[str]) -> tuple[float, float]:
    """One radius and one font size for all names: long ones are set smaller in larger circles."""
    widest = max((_text_size(name, FONT_SIZE)[1][0] for name in names), default=0.0)
    size = FONT_SIZE * min(1.0, max(0.68, 2 * (RADIUS - 3.5) / max(widest, 1.0)))
    return max(RADIUS, widest * size / FONT_SIZE / 2 + 3.5), size


def _strokes(
    automaton: Automaton, edges: Sequence[Edge], best: Sequence[int], highlight: Highlight | None
) -> list[Stroke]:
    if highlight == "best path":
        chosen = Stroke(ACCENT, 2.0, ACCENT, on_top=True)
        return [
            chosen if set(edge.arcs) & set(best) else Stroke(FAINT, 0.8, MUTED) for edge in edges
        ]
    if highlight == "posteriors":
        posterior = automaton.posteriors()
        return [_shaded(sum(posterior[number] for number in edge.arcs)) for edge in edges]
    return [Stroke()] * len(edges)


def _shaded(probability: float) -> Stroke:
    """From thin and grey to wide and coloured."""
    from matplotlib.colors import to_hex, to_rgb

    deep, pale = to_rgb(ACCENT), to_rgb("#cccccc")
    red, green, blue = (
        probability * d + (1 - probability) * p for d, p in zip(deep, pale, strict=True)
    )
    text = ACCENT if probability > 0.5 else MUTED
    return Stroke(to_hex((red, green, blue)), 0.5 + 3.0 * probability, text)


def _state_colours(
    automaton: Automaton, best: Sequence[int], highlight: Highlight | None
) -> list[str]:
    if highlight != "best path":
        return ["black"] * automaton.num_states
    ends = {end for number in best for end in _ends(automaton, number)} | {automaton.start}
    return [ACCENT if state in ends else MUTED for state in range(automaton.num_states)]


def _ends(automaton: Automaton, number: int) -> tuple[int, int]:
    arc = automaton.arcs[number]
    return arc.source, arc.destination
