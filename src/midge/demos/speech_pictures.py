"""The pictures of the demonstration on speech, by matplotlib, which is imported when needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from midge.audio import FrontEnd
from midge.data import Utterance, WordTime
from midge.decoding import Evaluation
from midge.demos.speech_posteriors import Decision, LabelPosteriors
from midge.drawing.canvas import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PALE, GRID, PAPER = "#222222", "#8a8a8a", "#dddddd", "#ffffff"
COLOURS = {"local": "#c2571a", "global": "#0b6e99"}
"""One colour for each model, in all pictures."""
HEADINGS = {
    "local": "Local (HAT)",
    "global": "Global (GNAT)",
}
"""What the models are called in pictures."""

_STYLE = {
    "font.size": 10.0,
    "text.color": INK,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "figure.facecolor": PAPER,
    "svg.hashsalt": "midge",
}
_WIDTH = 9.0
_TIME = "seconds of synthetic speech heard"
_LEAST_SHOWN = 0.1  # a label less probable than this everywhere has no curve
_LEAST_NAMED = 0.2


@dataclass(frozen=True)
class Sound:
    """A recording as the front end hears it, with the true time of its words."""

    mels: np.ndarray
    """[num_mel_frames, num_mels] log energies."""
    seconds: float
    """Their length, silence at the end included."""
    recorded: float
    """Length of the recording itself."""
    words: tuple[WordTime, ...]
    """The true words."""

    @classmethod
    def of(cls, utterance: Utterance, front_end: FrontEnd) -> Sound:
        """Of an utterance."""
        audio = utterance.load()
        mels = front_end.mels(audio.samples, audio.sample_rate).numpy()
        seconds = len(mels) * front_end.config.shift
        return cls(mels, seconds, utterance.duration, utterance.words)


@contextmanager
def _styled() -> Iterator[None]:
    with require_matplotlib().rc_context(_STYLE):
        yield


def learning_curves(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Loss and word error rate against the step.

    Args:
        logs: by the model's name, the lines of its log.
    """
    with _styled():
        figure = _figure(3.4)
        losses, rates = figure.subplots(1, 2)
        for name, log in logs.items():
            steps = [line for line in log if line["kind"] == "step" and line["loss"] is not None]
            found = [line for line in log if line["kind"] == "evaluation"]
            at = [line["step"] for line in found]
            style = {"color": COLOURS[name], "marker": "o", "markersize": 4}
            losses.plot(
                [line["step"] for line in steps],
                [line["loss"] for line in steps],
                color=COLOURS[name],
                linewidth=0.8,
                alpha=0.45,
            )
            losses.plot(at, [line["loss"] for line in found], label=HEADINGS[name], **style)
            shown = [100 * line["word_error_rate"] for line in found]
            rates.plot(at, shown, label=HEADINGS[name], **style)
        losses.set_ylabel("-log P per label, nats")
        rates.set_ylabel("word error rate, %")
        rates.set_title("Development set, synthetic", **_title())
        losses.set_title("Development set, synthetic; thin: training", **_title())
        for axes in (losses, rates):
            axes.set_xlabel("training step")
            axes.set_ylim(bottom=0.0)
            axes.set_xlim(left=0.0)
            axes.grid(axis="y", linewidth=0.8)
        rates.set_ylim(top=max(rates.get_ylim()[1], 1.0))  # also if there are no errors
        rates.legend(frameon=False, labelcolor=INK)
    return figure


def error_rates(evaluations: Mapping[str, Evaluation], kinds: Sequence[str]) -> Figure:
    """Word error rates of each kind of utterance, with intervals.

    Args:
        evaluations: by the model's name.
        kinds: the groups to show, from the top down.
    """
    with _styled():
        figure = _figure(0.9 + 0.55 * len(kinds))
        axes = figure.subplots()
        for offset, (name, evaluation) in zip((-0.14, 0.14), evaluations.items(), strict=True):
            rates = {rate.name: rate.words for rate in evaluation.rates}
            shown = [rates[kind] for kind in kinds]
            places = np.arange(len(kinds)) + offset
            axes.errorbar(
                [100 * rate.estimate for rate in shown],
                places,
                xerr=np.array(
                    [
                        [100 * (rate.estimate - rate.low) for rate in shown],
                        [100 * (rate.high - rate.estimate) for rate in shown],
                    ]
                ),
                fmt="o",
                color=COLOURS[name],
                capsize=3,
                label=HEADINGS[name],
            )
        axes.set_yticks(range(len(kinds)), [kind_name(kind) for kind in kinds])
        axes.invert_yaxis()
        axes.set_xlim(left=0.0)
        axes.set_xlabel("word error rate on synthetic speech, %, with 95 % intervals over voices")
        axes.grid(axis="x", linewidth=0.8)
        axes.legend(frameon=False, labelcolor=INK, loc="best")
    return figure


def kind_name(group: str) -> str:
    """A group of an evaluation in words.

    Example:
        >>> kind_name("kind=digits")
        'digits'
    """
    return group.removeprefix("kind=")


def alignment_posteriors(sound: Sound, found: Mapping[str, LabelPosteriors]) -> Figure:
    """A spectrogram, and below it when each label comes, for each model.

    Args:
        sound: the recording.
        found: by the model's name.
    """
    with _styled():
        figure = _figure(2.2 + 1.5 * len(found))
        top, *panels = figure.subplots(
            1 + len(found), 1, sharex=True, height_ratios=[1.5, *[1.0] * len(found)]
        )
        _draw_sound(top, sound)
        for axes, (name, posteriors) in zip(panels, found.items(), strict=True):
            _draw_labels(axes, posteriors, COLOURS[name])
            _draw_word_times(axes, sound)
            axes.set_title(HEADINGS[name], **_title())
        panels[-1].set_xlabel(_TIME)
    return figure


def decisions(sounds: Sequence[Sound], found: Mapping[str, Sequence[Decision]]) -> Figure:
    """What each model holds of two words that sound alike, as it hears both recordings.

    Args:
        sounds: the two recordings, equal until the next word starts.
        found: by the model's name, the decisions on the two recordings.
    """
    with _styled():
        figure = _figure(2.2 + 1.5 * len(found))
        grid = figure.subplots(
            1 + len(found),
            len(sounds),
            sharex="col",
            sharey="row",
            squeeze=False,
            height_ratios=[1.2, *[1.0] * len(found)],
        )
        for column, sound in enumerate(sounds):
            _draw_sound(grid[0, column], sound)
            for row, (name, decided) in enumerate(found.items(), start=1):
                axes = grid[row, column]
                _draw_decision(axes, decided[column], column)
                _draw_word_times(axes, sound)
                axes.set_title(HEADINGS[name], **_title())
            grid[-1, column].set_xlabel(_TIME)
    return figure


def _draw_decision(axes: Axes, decided: Decision, right: int) -> None:
    """Two curves: the right beginning of the text in blue, the other in grey."""
    for number, (prefix, curve) in enumerate(
        zip(decided.prefixes, decided.probabilities.T, strict=True)
    ):
        is_right = number == right
        axes.plot(
            decided.times,
            curve,
            color=COLOURS["global"] if is_right else PALE,
            linewidth=2.2 if is_right else 1.4,
            label=f"{prefix}... ({'right' if is_right else 'wrong'})",
        )
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.5, 1])
    axes.set_ylabel("probability")
    axes.grid(axis="y", linewidth=0.8)
    # Above the panel: inside it a curve may be anywhere.
    axes.legend(
        frameon=False,
        labelcolor=INK,
        loc="lower right",
        bbox_to_anchor=(1.02, 0.97),
        ncols=2,
        fontsize=8.5,
        handlelength=1.2,
        columnspacing=1.0,
        borderpad=0.0,
    )


def _draw_sound(axes: Axes, sound: Sound) -> None:
    axes.imshow(
        sound.mels.T,
        origin="lower",
        aspect="auto",
        cmap="magma",
        interpolation="nearest",
        extent=(0.0, sound.seconds, 0, sound.mels.shape[1]),
    )
    _draw_word_times(axes, sound)
    for word in sound.words:
        axes.annotate(
            word.word,
            ((word.start + word.end) / 2, 1.03),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=10,
            fontweight="bold",
        )
    axes.set_xlim(0.0, sound.seconds)
    axes.set_yticks([])
    axes.set_ylabel("log-mel energy")


def _draw_word_times(axes: Axes, sound: Sound) -> None:
    """Dashed lines where the true words begin and end; what follows the recording is shaded."""
    for time in sorted({edge for word in sound.words for edge in (word.start, word.end)}):
        axes.axvline(time, color=PALE, linewidth=0.9, linestyle=(0, (3, 2)))
    axes.axvspan(sound.recorded, sound.seconds, color=PALE, alpha=0.2, linewidth=0)


def _draw_labels(axes: Axes, found: LabelPosteriors, colour: str) -> None:
    for label in np.flatnonzero(found.labels.max(0) >= _LEAST_SHOWN):
        curve = found.labels[:, label]
        axes.fill_between(found.times, curve, color=colour, alpha=0.25, linewidth=0)
        axes.plot(found.times, curve, color=colour, linewidth=1.1)
        for frame in _peaks(curve):
            axes.annotate(
                found.symbols[label].replace(" ", "\u2423"),
                (found.times[frame], curve[frame]),
                textcoords="offset points",
                xytext=(0, 1),
                ha="center",
                va="bottom",
                fontsize=9,
            )
    axes.set_ylim(0.0, 1.2)
    axes.set_yticks([0, 0.5, 1])
    axes.set_ylabel("probability")


def _peaks(curve: np.ndarray) -> list[int]:
    """Frames where a curve has a top that is worth a name."""
    around = np.concatenate(([0.0], curve, [0.0]))
    is_top = (curve >= around[:-2]) & (curve > around[2:]) & (curve >= _LEAST_NAMED)
    return np.flatnonzero(is_top).tolist()


def _title() -> dict[str, Any]:
    return {"fontsize": 10.5, "fontweight": "bold", "loc": "left"}


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    # The constrained layout differs in the last bits from time to time, and so would the files.
    return Figure(figsize=(_WIDTH, height), layout="tight")
