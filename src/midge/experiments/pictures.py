"""Pictures of experiments: learning curves, cells of a square, delays, and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from midge.decoding.evaluation import ALL
from midge.drawing.canvas import require_matplotlib
from midge.experiments.contrasts import ContrastResult
from midge.experiments.grid import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]
COLOURS = ("#b3541e", "#0b6e99", "#5b8c3a", "#7a4f9a", "#8a8a8a", "#c2185b", "#00796b", "#6d4c41")
"""Of curves, in the order of their names."""
STYLES = ("solid", "dashed", "dotted")
"""Of those that share a colour, as there are more curves than colours."""
DELAY = "last_changed"
"""The delay that is drawn: from a word's true end to its last change on the screen."""


def has_delays(records: Records) -> bool:
    """Whether any row was scored as a stream, on words whose true times are known."""
    return bool(list(_delays(records)))


def has_calibration(records: Records) -> bool:
    """Whether any row was scored with confidences."""
    return any("calibration" in each for record in records for each in _scored(record))


def learning_curves(grid: Grid, records: Records) -> Figure:
    """The loss in training against steps: each row thin, the mean of its repetitions thick.

    Args:
        grid: the experiment; rows that differ in its pooled axis alone have one colour.
        records: its rows that are done.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    figure, axes = _figure()
    for number, (name, members) in enumerate(_repetitions(grid, records).items()):
        look = _look(number)
        curves = [np.array(record["training"]["losses"]) for record in members]
        for curve in curves:
            axes.plot(curve[:, 0], curve[:, 1], **look, linewidth=0.6, alpha=0.5)
        if all(np.array_equal(curve[:, 0], curves[0][:, 0]) for curve in curves):
            mean = np.mean([curve[:, 1] for curve in curves], axis=0)
            axes.plot(curves[0][:, 0], mean, **look, linewidth=1.8, label=name)
        else:  # runs of other lengths have no mean at a step
            axes.plot([], [], **look, linewidth=1.8, label=name)
    axes.set(xlabel="step", ylabel="loss per label (nats)", yscale="log")
    axes.legend(frameon=False, fontsize=8)
    return figure


def four_cells(rows: Sequence[ContrastResult]) -> Figure:
    """Word error rates of the cells of a square, over all utterances, with their intervals.

    A panel for each way of scoring, a line for each value of the inner axis: lines that are not
    parallel are an interaction.

    Args:
        rows: with an outer axis.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    shown = [row for row in rows if row.group == ALL]
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(shown) + 1.0, 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for panel, row in zip(panels, shown, strict=True):
        outer = list(row.rates)
        for number, inner in enumerate(row.rates[outer[0]]):
            cells = [row.rates[o][inner] for o in outer]
            rates = 100 * np.array([cell.estimate for cell in cells])
            ends = 100 * np.array([[cell.low, cell.high] for cell in cells])
            panel.errorbar(
                np.arange(len(outer)) + 0.05 * number,  # side by side, so that both can be seen
                rates,
                np.abs(ends.T - rates),
                **_look(number),
                marker="o",
                capsize=3,
                label=inner,
            )
        panel.set(title=" ".join([row.evaluation, *row.values.values()]), xlim=(-0.4, 1.45))
        panel.set_xticks(range(len(outer)), outer)
    panels[0].set_ylabel("word error rate (%)")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def error_against_delay(grid: Grid, records: Records) -> Figure:
    """Word error rate of streams against the median delay, a line for each normalization.

    Args:
        grid: the experiment; its contrast's inner axis gives the lines.
        records: rows with delays.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    figure, axes = _figure()
    inner = grid.contrast.inner if grid.contrast else next(iter(grid.axes))
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for record, seconds, rate in _delays(records):
        fixed = [v for a, v in record["values"].items() if a not in (inner, "penalty")]
        name = " ".join([*fixed, record["values"][inner]])
        lines.setdefault(name, []).append((seconds, rate, record["values"].get("penalty", "")))
    for number, (name, points) in enumerate(lines.items()):
        delays, rates, penalties = zip(*points, strict=True)
        axes.plot(delays, 100 * np.array(rates), **_look(number), marker="o", label=name)
        for x, y, penalty in zip(delays, rates, penalties, strict=True):
            axes.annotate(penalty, (x, 100 * y), (4, 4), textcoords="offset points", fontsize=7)
    axes.set(
        xlabel="median seconds from a word's end to its last change", ylabel="word error rate (%)"
    )
    axes.legend(frameon=False, fontsize=8)
    return figure


def calibration_picture(records: Records) -> Figure:
    """Share of right words against confidence, a line for each row with confidences.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    figure, axes = _figure()
    axes.plot([0, 1], [0, 1], color="#8a8a8a", linewidth=1, linestyle="--", label="perfect")
    found = [
        (f"{record['row']}, {name}", each["calibration"]["bins"])
        for record in records
        for name, each in record["evaluations"].items()
        if "calibration" in each
    ]
    for number, (name, bins) in enumerate(found):
        points = [[each["confidence"], each["share_right"]] for each in bins]
        x, y = np.array(points).T
        axes.plot(x, y, **_look(number), marker="o", label=name)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share of right words")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _look(number: int) -> dict[str, Any]:
    """Colour and style of a curve."""
    style = STYLES[number // len(COLOURS) % len(STYLES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": style}


def _figure() -> tuple[Figure, Axes]:
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    return figure, figure.subplots()


def _repetitions(grid: Grid, records: Records) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by the values of all axes but the pooled one."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        name = " ".join(v for axis, v in record["values"].items() if axis != grid.pooled)
        found.setdefault(name, []).append(record)
    return found


def _scored(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(record["evaluations"].values())


def _delays(records: Records) -> list[tuple[Mapping[str, Any], float, float]]:
    """Rows with their median delay in seconds, and the word error rate of streams."""
    found = []
    for record in records:
        for each in _scored(record):
            live = each.get("streaming")
            seconds = None if live is None else live["percentiles"][DELAY]["p50"]
            if live is not None and seconds is not None:
                rate = live["word_error_rates"]["streaming"]["estimate"]
                found.append((record, seconds, rate))
    return found
