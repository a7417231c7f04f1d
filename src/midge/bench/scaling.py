"""How time and memory grow with frames, batch, vocabulary and context: slopes of log-log lines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from midge.bench.contest import Result, measure_row
from midge.bench.rows import Row, Shape

VARIABLES = ("frames", "batch", "vocabulary", "context states")
"""What is varied, one at a time."""
ROW = Row(2, "frame", "shared-rnn", "global")
"""The row that is varied by default."""


@dataclass(frozen=True)
class Series:
    """Measurements along one variable."""

    variable: str
    sizes: tuple[int, ...]
    results: tuple[Result, ...]

    @property
    def seconds(self) -> list[float]:
        """Of training."""
        return [result.ours.train_s for result in self.results]

    @property
    def peaks(self) -> list[float]:
        """MB of training; NaN where not known."""
        found = (result.ours.train_peak_mb for result in self.results)
        return [math.nan if peak is None else peak for peak in found]

    @property
    def time_slope(self) -> float:
        """The power of the size that time grows with."""
        return slope(self.sizes, self.seconds)

    @property
    def memory_slope(self) -> float:
        """The power of the size that memory grows with."""
        return slope(self.sizes, self.peaks)

    def to_json(self) -> dict[str, Any]:
        """Sizes, measurements and slopes."""
        return {
            "variable": self.variable,
            "sizes": list(self.sizes),
            "train_s": self.seconds,
            "train_peak_mb": [None if math.isnan(peak) else peak for peak in self.peaks],
            "time_slope": self.time_slope,
            "memory_slope": None if math.isnan(self.memory_slope) else self.memory_slope,
        }


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the least-squares line through points on log-log axes.

    Points without a value above 0 are left out; with less than two points it is NaN.

    Example:
        >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
        2.0
    """
    points = [
        (math.log(size), math.log(value))
        for size, value in zip(sizes, values, strict=True)
        if value > 0
    ]
    if len({x for x, _ in points}) < 2:
        return math.nan
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return covariance / sum((x - mean_x) ** 2 for x, _ in points)


def plan(row: Row, shape: Shape) -> dict[str, list[tuple[int, Row, Shape]]]:
    """The size, row and shape of every measurement, by variable.

    Frames and batch grow from those of the shape to eight times as many; the vocabulary from a
    quarter of it to twice as many labels; the context from none to the row's own.
    """
    grown = [1, 2, 4, 8]
    labels = [max(int(shape.vocab * factor), 1) for factor in (0.25, 0.5, 1, 2)]
    varied = {
        "frames": [dataclasses.replace(shape, frames=shape.frames * by) for by in grown],
        "batch": [dataclasses.replace(shape, batch=shape.batch * by) for by in grown],
        "vocabulary": [dataclasses.replace(shape, vocab=size) for size in sorted(set(labels))],
    }
    fields = {"frames": "frames", "batch": "batch", "vocabulary": "vocab"}
    found = {
        variable: [(getattr(each, fields[variable]), row, each) for each in shapes]
        for variable, shapes in varied.items()
    }
    found["context states"] = [
        (
            sum(shape.vocab**length for length in range(size + 1)),
            dataclasses.replace(row, context=size),
            shape,
        )
        for size in range(max(row.context, 1) + 1)
    ]
    return found


def measure_scaling(
    row: Row, shape: Shape, seed: int = 0, progress: Callable[[str], object] | None = None
) -> list[Series]:
    """Measures every point of `plan`; one that belongs to several lines is measured once.

    Args:
        row: the configuration.
        shape: where frames and batch begin.
        seed: of inputs and parameters.
        progress: called after each measurement with a short note; see `num_measurements`.
    """
    measured: dict[tuple[Row, Shape], Result] = {}
    found = []
    for variable, points in plan(row, shape).items():
        for _, at_row, at_shape in points:
            if (at_row, at_shape) not in measured:
                result = measure_row(at_row, at_shape, seed=seed, progress=progress)
                measured[at_row, at_shape] = result
        results = tuple(measured[at_row, at_shape] for _, at_row, at_shape in points)
        found.append(Series(variable, tuple(size for size, _, _ in points), results))
    return found


def num_measurements(row: Row, shape: Shape) -> int:
    """How often `measure_scaling` reports progress."""
    return 2 * len({point[1:] for points in plan(row, shape).values() for point in points})


def table(series: Sequence[Series]) -> str:
    """Markdown: one line for each variable."""
    lines = [
        "| variable | sizes | train s | slope | train MB | slope |",
        "|---|---|---|---|---|---|",
    ]
    for each in series:
        columns = [
            each.variable,
            ", ".join(map(str, each.sizes)),
            ", ".join(f"{value:.3g}" for value in each.seconds),
            f"{each.time_slope:.2f}",
            ", ".join(f"{value:.3g}" for value in each.peaks),
            f"{each.memory_slope:.2f}",
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)
