"""The picture itself, by matplotlib, which is imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from midge.automata import Automaton
from midge.drawing.curves import Curve, Point, arrow_head
from midge.drawing.placement import Box

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT_SIZE = 12.0
LABEL_SIZE = 11.0
STYLE = {
    "font.family": "DejaVu Serif",
    "mathtext.fontset": "cm",
    "svg.fonttype": "path",
    # Without a salt the names inside a file would differ from run to run.
    "svg.hashsalt": "midge",
}


@dataclass(frozen=True)
class Stroke:
    """How an arrow is drawn."""

    colour: str = "black"
    width: float = 0.8
    text_colour: str = "black"
    on_top: bool = False
    """Whether it covers others where they cross."""


def require_matplotlib() -> Any:
    """The module, or an error that says how to get it."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install midge[pictures]") from error
    return matplotlib


@lru_cache(maxsize=4096)
def text_size(text: str, size: float) -> tuple[Point, Point]:
    """Lower left corner, from where the text begins on its base line, and width and height."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    with require_matplotlib().rc_context(STYLE):
        if not text.strip("$ "):
            return (0.0, 0.0), (0.0, 0.0)
        box = TextPath(
            (0, 0), text, size=size, prop=FontProperties(family="DejaVu Serif")
        ).get_extents()
    return (box.x0, box.y0), (box.width, box.height)


@dataclass(frozen=True)
class Picture:
    """Everything that is drawn, in points, y upwards."""

    automaton: Automaton
    names: Sequence[str]
    name_size: float
    centres: Sequence[Point]
    radius: float
    state_colours: Sequence[str]
    start_arrow: Curve
    curves: Sequence[Curve]
    strokes: Sequence[Stroke]
    labels: Sequence[str]
    boxes: Sequence[Box]

    def figure(self) -> Figure:
        """The picture on a white page that fits it."""
        from matplotlib.figure import Figure

        low, high = self._bounds()
        with require_matplotlib().rc_context(STYLE):
            figure = Figure(figsize=tuple((high - low) / 72), facecolor="white")
            axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
            axes.set_axis_off()
            axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
            self._draw_arrow(axes, self.start_arrow, Stroke())
            for curve, stroke in zip(self.curves, self.strokes, strict=True):
                self._draw_arrow(axes, curve, stroke)
            self._draw_states(axes)
            for box, label, stroke in zip(self.boxes, self.labels, self.strokes, strict=True):
                self._clear(axes, box)
                _centred_text(axes, box.centre, label, LABEL_SIZE, stroke.text_colour)
        return figure

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        centres = np.array(self.centres)
        points = [centres - self.radius, centres + self.radius, self.start_arrow.samples]
        points += [curve.samples for curve in self.curves]
        for box in self.boxes:
            points += [np.array([box.centre]) + side * np.array(box.half) for side in (-1, 1)]
        stacked = np.concatenate(points)
        return stacked.min(axis=0) - 5.0, stacked.max(axis=0) + 5.0

    def _draw_arrow(self, axes: Any, curve: Curve, stroke: Stroke) -> None:
        from matplotlib.patches import PathPatch, Polygon
        from matplotlib.path import Path

        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        order = 2.5 if stroke.on_top else 2.0
        line = PathPatch(
            Path(list(curve.points), codes),
            fill=False,
            edgecolor=stroke.colour,
            linewidth=stroke.width,
            zorder=order,
        )
        axes.add_patch(line)
        head = Polygon(
            arrow_head(curve),
            closed=True,
            facecolor=stroke.colour,
            edgecolor=stroke.colour,
            linewidth=min(stroke.width, 1.2) / 2,
            joinstyle="miter",
            zorder=order + 0.1,
        )
        axes.add_patch(head)

    def _clear(self, axes: Any, box: Box) -> None:
        """Takes away what lies under a label that found no place of its own."""
        from matplotlib.patches import Rectangle

        if any((box.distances(curve.samples) < 1.0).any() for curve in self.curves):
            low = [centre - half - 1.0 for centre, half in zip(box.centre, box.half, strict=True)]
            size = [2 * half + 2.0 for half in box.half]
            axes.add_patch(Rectangle((low[0], low[1]), *size, facecolor="white", zorder=2.8))

    def _draw_states(self, axes: Any) -> None:
        from matplotlib.patches import Circle

        for state, (centre, colour) in enumerate(
            zip(self.centres, self.state_colours, strict=True)
        ):
            outlines = [self.radius]
            if state in self.automaton.final_weights:
                outlines.append(self.radius - 2.2)
            for radius in outlines:
                circle = Circle(
                    centre, radius, facecolor="white", edgecolor=colour, linewidth=0.8, zorder=3
                )
                axes.add_patch(circle)
            _centred_text(axes, centre, self.names[state], self.name_size, colour)


def _centred_text(axes: Any, centre: Point, text: str, size: float, colour: str) -> None:
    """Text with the middle of its ink at a point."""
    (left, bottom), (width, height) = text_size(text, size)
    axes.text(
        centre[0] - left - width / 2,
        centre[1] - bottom - height / 2,
        text,
        size=size,
        color=colour,
        ha="left",
        va="baseline",
        zorder=4,
    )


def save(figure: Figure, path: FilePath) -> None:
    """Writes SVG or PNG, the same bytes every time."""
    suffix = path.suffix.lower()
    # The date, and the version of matplotlib, would make every file differ.
    metadata: dict[str, Any] = (
        {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None}
    )
    with require_matplotlib().rc_context(STYLE):
        figure.savefig(path, dpi=200, metadata=metadata)
