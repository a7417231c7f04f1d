"""What the benchmark shows: tables in markdown, plots and a file of results."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import midge
from midge.bench import scaling
from midge.bench.contest import Measurement, Result, ratio
from midge.bench.losses import Case, LossCost
from midge.bench.scaling import Series
from midge.drawing.canvas import require_matplotlib, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0b6e99", "#d98c21", "#8a8a8a", "#6d4c9f", "#5b8c3a")
_PANELS = {
    "train_s": "training, seconds",
    "decode_s": "decoding, seconds",
    "train_peak_mb": "training, peak MB",
    "decode_peak_mb": "decoding, peak MB",
}


def machine() -> str:
    """The machine in words: cores and the widest instruction set that matters here."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        flags = ""
    sets = {"avx512f": "AVX-512", "avx2": "AVX2"}
    widest = next((name for flag, name in sets.items() if f" {flag}" in flags), "no AVX2 known")
    return f"{cores} cores, {widest}"


def sizes(results: Sequence[Result]) -> str:
    """The shape of results in words, where they have one shape."""
    shape = results[0].shape
    return (
        f"batch {shape.batch}, {shape.frames} frames, {shape.labels} labels, alphabet "
        f"{shape.vocab}; encoder {shape.encoder}, hidden {shape.hidden}, embedding "
        f"{shape.embedding}, RNN {shape.rnn}"
    )


def table(results: Sequence[Result]) -> str:
    """Markdown: a line for each row; beside a peer's number, how many times ours it is."""
    peers = _peers(results)
    heading = ["context", "alignment", "weights", "normalization"]
    heading += ["train s", "decode s", "train MB", "decode MB"]
    for peer in peers:
        columns = ("train s", "decode s", "train MB", "decode MB", "compile s", "loss off by")
        heading += [f"{peer}: {column}" for column in columns]
    lines = [heading, ["---"] * len(heading)]
    for result in results:
        row, ours = result.row, result.ours
        cells = [f"{row.context}-gram", row.alignment, row.weights, row.normalization]
        cells += [_seconds(ours.train_s), _seconds(ours.decode_s)]
        cells += [_megabytes(ours.train_peak_mb), _megabytes(ours.decode_peak_mb)]
        for peer in peers:
            cells += _peer_cells(result, peer)
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _peers(results: Sequence[Result]) -> list[str]:
    """All peers, in order of appearance."""
    return list(dict.fromkeys(name for result in results for name in result.peers))


def _peer_cells(result: Result, peer: str) -> list[str]:
    if peer not in result.peers:
        return [""] * 6
    theirs, ours = result.peers[peer], result.ours
    return [
        _seconds(theirs.train_s) + _times(theirs.train_s, ours.train_s),
        _seconds(theirs.decode_s) + _times(theirs.decode_s, ours.decode_s),
        _megabytes(theirs.train_peak_mb) + _times(theirs.train_peak_mb, ours.train_peak_mb),
        _megabytes(theirs.decode_peak_mb) + _times(theirs.decode_peak_mb, ours.decode_peak_mb),
        "" if theirs.compile_s is None else f"{theirs.compile_s:.1f}",
        f"{result.loss_difference(peer):.0e}",
    ]


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _megabytes(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _times(theirs: float | None, ours: float | None) -> str:
    found = ratio(theirs, ours)
    return "" if math.isnan(found) else f" ({found:.1f} x)" if found < 100 else f" ({found:.0f} x)"


def losses_table(cases: Sequence[tuple[Case, Sequence[LossCost]]]) -> str:
    """Markdown: a line for each contestant of each case."""
    lines = ["| loss | contestant | train s | train MB | loss, nats |", "|---|---|---|---|---|"]
    for case, (ours, *others) in cases:
        for cost in (ours, *others):
            is_ours = cost is ours
            times = "" if is_ours else _times(cost.seconds, ours.seconds)
            peak_times = "" if is_ours else _times(cost.peak_mb, ours.peak_mb)
            cells = [case.name, cost.contestant, _seconds(cost.seconds) + times]
            cells += [_megabytes(cost.peak_mb) + peak_times, f"{cost.loss:.3f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def to_json(results: Sequence[Result]) -> dict[str, Any]:
    """All results with the machine and the version of midge."""
    return {
        "version": midge.__version__,
        "machine": machine(),
        "rows": [result.to_json() for result in results],
    }


def check_output(folder: Path) -> None:
    """Makes sure, before anything is measured, that the results can be saved.

    Raises:
        OSError: if the folder can neither be found nor made, or not be written to.
        ImportError: if matplotlib is missing; says how to install it.
    """
    require_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def save_results(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes table.md, results.json, bench.svg and bench.png.

    Returns:
        The files written.
    """
    text = f"{sizes(results)}; {machine()}.\n\n{table(results)}\n"
    return _save(folder, text, to_json(results), draw(results), ("table", "results", "bench"))


def save_scaling(series: Sequence[Series], folder: Path) -> list[Path]:
    """Writes scaling.md, scaling.json, scaling.svg and scaling.png.

    Returns:
        The files written.
    """
    found = {
        "version": midge.__version__,
        "machine": machine(),
        "scaling": [each.to_json() for each in series],
    }
    text = scaling.table(series) + "\n"
    return _save(folder, text, found, draw_scaling(series), ("scaling",) * 3)


def _save(
    folder: Path, text: str, found: dict[str, Any], figure: Figure, names: tuple[str, str, str]
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{names[0]}.md", folder / f"{names[1]}.json"]
    written[0].write_text(text, encoding="utf-8")
    written[1].write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for suffix in ("svg", "png"):
        written.append(folder / f"{names[2]}.{suffix}")
        save(figure, written[-1])
    return written


def draw(results: Sequence[Result]) -> Figure:
    """Bars on a logarithmic axis: ours, and the peers' beside them.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    names = ["midge", *_peers(results)]
    height = 1.6 + 0.08 * len(results) * (1 + len(names))
    figure = Figure(figsize=(15, height), facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(_PANELS), sharey=True)
    thickness = 0.8 / len(names)
    for axes, (field, title) in zip(panels, _PANELS.items(), strict=True):
        for number, name in enumerate(names):
            values = [_value(result, name, field) for result in results]
            places = [at + (number - (len(names) - 1) / 2) * thickness for at in range(len(values))]
            axes.barh(places, values, thickness, color=_COLOURS[number % 5], label=name)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low / 2, high)  # a bar has no length where the axis begins
        axes.set_title(title, fontsize=11)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    labels = [result.row.name for result in results]
    panels[0].set_yticks(range(len(labels)), labels, fontsize=8)
    panels[0].set_ylim(len(labels) - 0.4, -0.6)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=5)
    figure.suptitle(sizes(results), fontsize=11, x=0.01, ha="left")
    return figure


def _value(result: Result, name: str, field: str) -> float:
    """A number to draw; NaN draws nothing."""
    measured: Measurement | None = result.ours if name == "midge" else result.peers.get(name)
    value = None if measured is None else getattr(measured, field)
    return math.nan if value is None or value <= 0 else float(value)


def draw_scaling(series: Sequence[Series]) -> Figure:
    """Time and memory against each variable on log-log axes, with fitted lines.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 7), facecolor="white", layout="constrained")
    panels = figure.subplots(2, len(series), squeeze=False)
    for column, each in enumerate(series):
        lines = ((each.seconds, each.time_slope), (each.peaks, each.memory_slope))
        for axes, (values, power) in zip(panels[:, column], lines, strict=True):
            _draw_line(axes, each.sizes, values, power)
        panels[0, column].set_title(each.variable, fontsize=11)
    panels[0, 0].set_ylabel("training, seconds")
    panels[1, 0].set_ylabel("training, peak MB")
    if series:
        first = series[0].results[0]
        figure.suptitle(f"{first.row.name}; {sizes([first])}, unless varied", fontsize=11)
    return figure


def _draw_line(axes: Any, at: Sequence[int], values: Sequence[float], power: float) -> None:
    points = [(x, y) for x, y in zip(at, values, strict=True) if y > 0]
    axes.set(xscale="log", yscale="log")
    if not points:
        return
    axes.set_xticks([x for x, _ in points], [str(x) for x, _ in points])
    axes.set_yticks([y for _, y in points], [f"{y:.3g}" for _, y in points])
    axes.minorticks_off()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.plot(*zip(*points, strict=True), "o", color=_COLOURS[0])
    if not math.isnan(power):
        centre_x, centre_y = (
            math.exp(sum(map(math.log, column)) / len(points))
            for column in zip(*points, strict=True)
        )
        fitted = [centre_y * (x / centre_x) ** power for x, _ in points]
        label = f"slope {power:.2f}"
        axes.plot([x for x, _ in points], fitted, color=_COLOURS[1], label=label)
        axes.legend(frameon=False)
