"""What the label-bias demonstration shows: a table, a picture and a file of results."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import midge
from midge.demos.label_bias import ModelResult, Results, Revision
from midge.drawing.canvas import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RIGHT, _WRONG, _INK, _PALE, _EDGE = "#0b6e99", "#c4c4c4", "#222222", "#8a8a8a", "#dddddd"
_FIRST_GUESS = "#fff4d6"
_HEADINGS = {
    "softmax": "Locally normalized: a first guess is final",
    "global": "Globally normalized: the next frame revises it",
}
_REASONS = {
    "softmax": (
        "{new} is heard, but the probability\n"
        "of label 1 was spent when only {old}\n"
        "was known: no later frame changes it."
    ),
    "global": (
        "{new} is heard, and every path on which\n"
        "label 1 is not {new} loses its weight:\n"
        "label 1 is revised."
    ),
}


_GROUPS = ("", "loss (nats)", "accuracy", "delay (frames)")
_COLUMNS = ("model", *("theory", "measured") * 3, "time", "agree")


def table(results: Results) -> str:
    """The table of predictions and measurements, in plain text."""
    rows = [_COLUMNS, *map(_row, results.models)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    spans = [widths[0], *(widths[at] + 2 + widths[at + 1] for at in (1, 3, 5))]
    groups = "  ".join(f"{text:^{span}}" for text, span in zip(_GROUPS, spans, strict=True))
    heading, *lines = (_line(row, widths) for row in rows)
    body = [groups.rstrip(), heading, "-" * len(heading), *lines]
    return "\n".join([_task(results), "", *body, "", _verdict(results)])


def _task(results: Results) -> str:
    config = results.config
    sizes = sorted({model.measurement.num_parameters for model in results.models})
    return (
        "The label of a frame is the symbol of the next frame; accuracy is that of the labels\n"
        "that are ambiguous when their frame is heard. "
        f"{config.vocab_size} symbols, {config.num_labels} labels, all {config.num_inputs} inputs; "
        f"{' or '.join(map(str, sizes))} parameters."
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    first, *others = (
        f"{text:<{width}}" if number == 0 else f"{text:>{width}}"
        for number, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *others])


def _row(model: ModelResult) -> tuple[str, ...]:
    want, got = model.prediction, model.measurement
    return (
        model.case.name,
        "near 0" if want.can_succeed else f">= {want.bound:.3f}",
        f"{got.loss:.3f}",
        f"{want.accuracy:.1%}",
        f"{got.accuracy:.1%}",
        f"{want.delay:.2f}",
        f"{got.delay:.2f}",
        f"{got.seconds:.1f} s",
        "yes" if model.agrees else "NO",
    )


def _verdict(results: Results) -> str:
    if results.agrees:
        return "Theory and measurement agree for every model."
    wrong = "; ".join(model.case.name for model in results.models if not model.agrees)
    return f"Theory and measurement do NOT agree for: {wrong}. Train longer (more steps)?"


def to_json(results: Results) -> dict[str, Any]:
    """The configuration, the results and the version of midge, as JSON can hold them."""
    return {
        "version": midge.__version__,
        "agrees": results.agrees,
        "config": dataclasses.asdict(results.config),
        "models": [
            {"name": model.case.name, **dataclasses.asdict(model), "agrees": model.agrees}
            for model in results.models
        ],
        "utterance": list(results.utterance),
        "revisions": [
            {"name": revision.case.name, **dataclasses.asdict(revision)}
            for revision in results.revisions
        ],
    }


def save(results: Results, folder: Path) -> list[Path]:
    """Writes results.json and the picture, label-bias.png and label-bias.svg.

    Args:
        results: what `run` found.
        folder: where to; made if it is not there.

    Returns:
        The files written.
    """
    figure = draw(results)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "results.json", folder / "label-bias.png", folder / "label-bias.svg"]
    written[0].write_text(json.dumps(to_json(results), indent=2) + "\n", encoding="utf-8")
    # A fixed salt and no date: the same results give the same file.
    with require_matplotlib().rc_context({"svg.hashsalt": "midge"}):
        figure.savefig(written[1], dpi=160)
        figure.savefig(written[2], metadata={"Date": None})
    return written


def check_output(folder: Path) -> None:
    """Makes sure, before anything is trained, that `save` will find what it needs.

    Args:
        folder: where to save; made if it is not there.

    Raises:
        OSError: if the folder can neither be found nor made, or not be written to.
        ImportError: if matplotlib is missing; says how to install it.
    """
    require_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def draw(results: Results) -> Figure:
    """What each streaming model holds of each label, as it hears frame after frame.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.6), facecolor="white")
    title = (
        "Label bias: each label is the next frame's symbol, which a streaming model has not heard"
    )
    figure.text(0.5, 0.955, title, **_text(15, ha="center", fontweight="bold"))
    figure.text(0.5, 0.915, _example(results), **_text(12, ha="center", fontfamily="monospace"))
    panels = figure.subplots(1, len(results.revisions), squeeze=False)[0]
    for axes, revision in zip(panels, results.revisions, strict=True):
        _draw_revision(axes, revision, results)
    figure.text(0.5, 0.025, _caption(results), **_text(11, ha="center", linespacing=1.4))
    figure.subplots_adjust(left=0.07, right=0.985, top=0.775, bottom=0.115, wspace=0.17)
    return figure


def _example(results: Results) -> str:
    first, *others = map(_letter, results.utterance)
    return f"frames: {' '.join([first, *others])}      labels: {' '.join([*others, first])}"


def _caption(results: Results) -> str:
    letters = ", ".join(_letter(symbol) for symbol in range(1, results.config.vocab_size + 1))
    return (
        f"Each box: the probabilities of {letters} for one label, given the frames heard so far;"
        " the right one is blue. Yellow: the first guess.\n"
        "Read a row from left to right to see how the belief about one label changes. Both models"
        " have the same streaming encoder and were not trained on this input."
    )


def _text(size: float, **options: Any) -> dict[str, Any]:
    return {"fontsize": size, "color": _INK, **options}


def _draw_revision(axes: Axes, revision: Revision, results: Results) -> None:
    """One panel: a column per frame heard, a row per label."""
    symbols = results.utterance
    labels = [*symbols[1:], symbols[0]]
    count = len(symbols)
    axes.set_axis_off()
    axes.set_xlim(0, count)
    axes.set_ylim(count, 0)
    axes.text(
        *(count / 2, -0.66),
        _HEADINGS[revision.case.normalization],
        **_text(13.5, ha="center", fontweight="bold"),
    )
    axes.text(-0.12, -0.09, "frames\nheard", **_text(11, ha="right"))
    for column, heard in enumerate(revision.posteriors):
        _draw_heard(axes, column, symbols[: column + 1])
        for row, posterior in enumerate(heard):
            _draw_cell(axes, column, row, posterior, labels[row])
    for row, label in enumerate(labels):
        name = f"label {row + 1}\nis {_letter(label)}"
        axes.text(-0.12, row + 0.5, name, **_text(11, ha="right", va="center"))
    _draw_reasons(axes, revision, symbols)


def _draw_heard(axes: Axes, column: int, heard: tuple[int, ...]) -> None:
    """The symbols heard so far, the newest one in bold."""
    width = 0.14
    first = column + 0.5 - width * (len(heard) - 1) / 2
    for number, symbol in enumerate(heard, start=1):
        options = {"fontweight": "bold"} if number == len(heard) else {"color": _PALE}
        axes.text(
            first + width * (number - 1),
            -0.12,
            _letter(symbol),
            **_text(13, ha="center", **options),
        )


def _draw_cell(axes: Axes, column: int, row: int, posterior: tuple[float, ...], label: int) -> None:
    """One box: a bar for each symbol."""
    from matplotlib.patches import Rectangle

    margin, floor, height = 0.07, 0.26, 0.6
    color = _FIRST_GUESS if column == row else "white"
    corner = (column + 0.03, row + 0.03)
    axes.add_patch(Rectangle(corner, 0.94, 0.94, facecolor=color, edgecolor=_EDGE))
    width = (1 - 2 * margin) / len(posterior)
    bottom = row + 1 - floor
    for symbol, probability in enumerate(posterior, start=1):
        left = column + margin + (symbol - 1) * width
        is_right = symbol == label
        axes.add_patch(
            Rectangle(
                (left + 0.1 * width, bottom),
                0.8 * width,
                -height * probability,
                color=_RIGHT if is_right else _WRONG,
            )
        )
        style = {"color": _RIGHT, "fontweight": "bold"} if is_right else {"color": _PALE}
        axes.text(
            *(left + width / 2, bottom + 0.03),
            _letter(symbol),
            **_text(8, ha="center", va="top", **style),
        )


def _draw_reasons(axes: Axes, revision: Revision, symbols: tuple[int, ...]) -> None:
    """Why the second box looks as it does, and why the last label is no riddle."""
    count = len(symbols)
    if count < 4:
        return  # no room
    old, new = (f"\u201c{_letter(symbol)}\u201d" for symbol in symbols[:2])
    axes.annotate(
        _REASONS[revision.case.normalization].format(old=old, new=new),
        xy=(1.05, 0.94),
        xytext=(0.1, 3.45),
        arrowprops={
            "arrowstyle": "->",
            "color": _INK,
            "connectionstyle": "arc3,rad=-0.2",
            "relpos": (0.25, 1.0),
        },
        **_text(10.5, va="center", linespacing=1.4),
    )
    last = "The last label is the first symbol,\nwhich both models know by then."
    axes.text(
        count - 1.1, count - 0.5, last, **_text(10.5, ha="right", va="center", linespacing=1.4)
    )


def _letter(symbol: int) -> str:
    """a, b, c, ...; numbers where letters run out."""
    return chr(ord("a") + symbol - 1) if symbol <= 26 else str(symbol)
