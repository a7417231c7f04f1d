"""The pictures of the page, by matplotlib, which is imported when needed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from results import Store
from searches import BEAM_SIZES, MAX_EXPANSIONS, SUM_PATH, beam_name
from summaries import search_figures
from tables import calibrations, search_rows

from midge.decoding.calibration import draw_reliability
from midge.demos.speech_pictures import COLOURS, GRID, INK, PALE
from midge.drawing.canvas import require_matplotlib, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "grid.color": GRID,
    "svg.hashsalt": "midge",
}
_WIDTH = 9.0


def draw_all(store: Store, folder: Path) -> list[Path]:
    """Draws what there are results for.

    Returns:
        The files.
    """
    drawings = {
        "decoding_expansions.svg": ("searches", expansions),
        "decoding_beams.svg": ("searches", beams),
        "decoding_reliability.svg": ("posteriors", reliability),
    }
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for file, (part, draw) in drawings.items():
        if names := [name for name in store.names() if store.has(name, part)]:
            with _styled():
                save(draw(store, names), folder / file)
            written.append(folder / file)
    return written


@contextmanager
def _styled() -> Iterator[None]:
    with require_matplotlib().rc_context(_STYLE):
        yield


def _figure(height: float, width: float = _WIDTH) -> Figure:
    from matplotlib.figure import Figure

    # The constrained layout differs in the last bits from time to time, and so would the files.
    return Figure(figsize=(width, height), layout="tight")


def _colour(store: Store, name: str) -> str:
    return COLOURS["global" if store.about(name).is_global else "local"]


def _columns(count: int) -> tuple[int, int]:
    """Rows and columns of panels, at most two in a row."""
    return math.ceil(count / 2), min(count, 2)


def expansions(store: Store, names: Sequence[str]) -> Figure:
    """Expansions of the exact search against the probability of its answer."""
    num_rows, num_columns = _columns(len(names))
    figure = _figure(3.3 * num_rows)
    panels = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels.flat, names, strict=False):
        rows = search_rows(store, name)
        for is_proved, marker, what in ((True, "o", "proved"), (False, "x", "not proved")):
            shown = [row for row in rows if row.is_proved == is_proved]
            axes.plot(
                [math.exp(row.figure("log_probabilities", SUM_PATH)) for row in shown],
                [row.num_expansions for row in shown],
                marker,
                color=_colour(store, name),
                alpha=0.6,
                markersize=4,
                markeredgewidth=0 if is_proved else 1.2,
                label=f"{what}: {len(shown)}",
            )
        lengths = [1 + row.num_labels for row in rows]
        for length in (min(lengths), max(lengths)):
            axes.axhline(length, color=PALE, linewidth=0.8, linestyle=(0, (3, 2)))
        axes.axhline(MAX_EXPANSIONS, color=INK, linewidth=0.8)
        axes.set(xscale="log", yscale="log", title=name)
        axes.set_ylim(1, 2 * MAX_EXPANSIONS)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.75), handletextpad=0.2)
    for axes in panels[:, 0]:
        axes.set_ylabel("expansions")
    for axes in panels[-1]:
        axes.set_xlabel("probability of the answer")
    return figure


def beams(store: Store, names: Sequence[str]) -> Figure:
    """Share of equal answers, probability missed and time against the size of the beam."""
    figure = _figure(3.4)
    shares, missed, times = panels = figure.subplots(1, 3, sharex=True)
    for number, name in enumerate(names):
        figures = {each.name: each for each in search_figures(search_rows(store, name))}
        found, exact = [figures[beam_name(size)] for size in BEAM_SIZES], figures[SUM_PATH]
        style = {"color": _colour(store, name), "linestyle": "-" if number < 2 else "--"}
        curves = {
            shares: [100 * each.share_same for each in found],
            missed: [each.missed[0] for each in found],
            times: [each.real_time_factor for each in found],
        }
        for axes, values in curves.items():
            axes.plot(BEAM_SIZES, values, marker="o", markersize=4, label=name, **style)
        times.axhline(exact.real_time_factor, linewidth=1, color=style["color"], alpha=0.6)
    shares.set_title("Answer as exact, %")
    missed.set_title("Probability missed, mean")
    missed.set_yscale("symlog", linthresh=1e-4)
    missed.set_ylim(bottom=0.0)
    times.set_title("Real-time factor (line: exact)")
    times.set_ylim(bottom=0.0)
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.set_xticks(BEAM_SIZES, [str(size) for size in BEAM_SIZES])
        axes.set_xlabel("beam size")
    missed.legend(frameon=False)
    return figure


def reliability(store: Store, names: Sequence[str]) -> Figure:
    """A column for each kind of words, a row of panels for each model."""
    found = {name: calibrations(store, name) for name in names}
    kinds = list(dict.fromkeys(kind for each in found.values() for kind in each))
    figure = _figure(3.8 * len(names), max(_WIDTH, 2.6 * len(kinds)))
    panels = figure.subplots(
        2 * len(names),
        len(kinds),
        squeeze=False,
        sharex=True,
        height_ratios=[3, 1] * len(names),
    )
    for number, name in enumerate(names):
        upper, lower = panels[2 * number], panels[2 * number + 1]
        for shares, counts, kind in zip(upper, lower, kinds, strict=True):
            if kind in found[name]:
                draw_reliability(shares, counts, found[name][kind], _colour(store, name))
                ece = f"ECE {100 * found[name][kind].ece:.1f} %"
                shares.set_title(f"{kind}\n{ece}")
            else:
                shares.set_visible(False)
                counts.set_visible(False)
        upper[0].set_ylabel(f"{name}\nshare of right words")
        lower[0].set_ylabel("words")
    for axes in panels[-1]:
        axes.set_xlabel("confidence")
    return figure
