"""The tables of the page, as markdown, from the file of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from live import KINDS, calibration_of
from margins import MarginRow, margin_name
from posteriors import LIST_SIZES, PosteriorRow
from results import Store
from searches import MAX_EXPANSIONS, MAX_PATH, SUM_PATH, SearchRow
from summaries import exact_figures, list_figures, margin_figures, search_figures

from midge.decoding import Interval
from midge.decoding.calibration import Calibration, calibration

NUM_EXAMPLES = 5
_DELAYS = {
    "first_shown": "word's true end to first shown",
    "last_changed": "word's true end to last changed",
    "committed": "word's true end to committed",
    "first_partial": "first word's true start to first partial",
    "final_latency": "end of the recording to final result",
}


def search_rows(store: Store, name: str) -> list[SearchRow]:
    return [SearchRow(**row) for row in store.values(name, "searches")]


def posterior_rows(store: Store, name: str) -> list[PosteriorRow]:
    return [PosteriorRow(**row) for row in store.values(name, "posteriors")]


def margin_rows(store: Store, name: str) -> list[MarginRow]:
    return [MarginRow(**row) for row in store.values(name, "margins")]


def calibrations(store: Store, name: str) -> dict[str, Calibration]:
    """By the kind of words: offline, and those of streams."""
    rows = posterior_rows(store, name)
    found = {"offline": calibration([word for row in rows for word in row.judged()])}
    if store.has(name, "live-words"):
        live = store.values(name, "live-words")
        found |= {kind: calibration_of(live[kind]) for kind in KINDS}
    return {kind: each for kind, each in found.items() if each.num_words}


def exact_table(store: Store, names: Sequence[str]) -> str:
    """The exact search beside the best path."""
    found = {name: exact_figures(search_rows(store, name)) for name in names}
    return side_by_side(
        found,
        {
            f"proved within {MAX_EXPANSIONS} expansions": lambda x: percent(x.share_proved),
            "expansions: median, p90, most": lambda x: numbers(x.expansions, 0),
            "seconds of the search: median, p90": lambda x: numbers(x.seconds),
            "real-time factor of the search: median, p90": lambda x: numbers(x.real_time_factor),
            "the same with front end and encoder": lambda x: numbers(x.whole_factor),
            "answers other than the best path's": lambda x: str(x.num_different),
            "probability gained: mean over all, most": lambda x: numbers(x.gain, 4),
            "WER of the best path": lambda x: rate(x.rates.first),
            "WER of the exact search": lambda x: rate(x.rates.second),
            "difference": lambda x: rate(x.rates.difference),
        },
    )


def examples_table(store: Store, names: Sequence[str]) -> str:
    """Where best path and exact search differ, the largest gains first; "" if they never do."""
    lines = []
    for name in names:
        different = [row for row in search_rows(store, name) if row.texts]
        different.sort(key=lambda row: -row.missed(MAX_PATH))
        for row in different[:NUM_EXAMPLES]:
            answers = [
                f"{row.texts[search]} ({math.exp(row.figure('log_probabilities', search)):.3f})"
                for search in (MAX_PATH, SUM_PATH)
            ]
            lines.append((name, row.texts["reference"], *answers))
    heading = ("model", "said", "best path (its probability)", "most probable")
    return table([heading, *lines]) if lines else ""


def beam_table(store: Store, name: str) -> str:
    """All searches of one model beside the exact one."""
    lines = [("search", "same answer", "missed: mean, most", "seconds", "real-time factor", "WER")]
    for each in search_figures(search_rows(store, name)):
        lines.append(
            (
                each.name,
                percent(each.share_same),
                numbers(each.missed, 5),
                numbers([each.seconds]),
                numbers([each.real_time_factor]),
                percent(each.rate, 2),
            )
        )
    return table(lines)


def margin_table(store: Store, name: str) -> str:
    """All margins of one model."""
    rows = margin_rows(store, name)
    lines = [("margin", "answers changed", "WER", "states kept", "time", "uncommitted")]
    for each in margin_figures(rows):
        lines.append(
            (
                margin_name(each.margin),
                f"{each.num_changed} of {len(rows)}",
                percent(each.rate, 2),
                percent(each.share_kept),
                f"{each.time_ratio:.2f} x",
                f"{each.tail_seconds:.2f} s",
            )
        )
    return table(lines)


def calibration_table(store: Store, names: Sequence[str]) -> str:
    """How far confidences can be believed, by model and kind of words."""
    heading = ("model", "words", "how many", "right", "mean confidence", "ECE", "NCE")
    lines: list[tuple[str, ...]] = [heading]
    for name in names:
        for kind, found in calibrations(store, name).items():
            shares = (found.share_right, found.mean_confidence, found.ece)
            nce = numbers([found.nce])
            lines.append((name, kind, str(found.num_words), *map(percent, shares), nce))
    return table(lines)


def list_table(store: Store, names: Sequence[str]) -> str:
    """Least risk, and the best of lists."""
    found = {name: list_figures(posterior_rows(store, name)) for name in names}
    measures: dict[str, Callable[[Any], str]] = {
        f"lists of {LIST_SIZES[-1]} proved": lambda x: percent(x.share_proved),
        "probability not listed, median": lambda x: numbers([x.unlisted]),
        "real-time factor with confidences, median": lambda x: numbers([x.real_time_factor]),
        "WER, most probable": lambda x: rate(x.rates.first),
        "WER, least risk": lambda x: rate(x.rates.second),
        "difference": lambda x: rate(x.rates.difference),
    }
    for place, size in enumerate(LIST_SIZES[1:], start=1):
        measures[f"WER, best of {size}"] = _least_rate(place)
    return side_by_side(found, measures)


def _least_rate(place: int) -> Callable[[Any], str]:
    return lambda x: percent(x.least_rates[place], 2)


def latency_table(store: Store, names: Sequence[str]) -> str:
    """Error rates and delays of streams."""
    found = {name: store.values(name, "latency") for name in names}
    pause = found[names[0]]["pause"]
    rates = {
        "offline": "WER, offline",
        "streaming": "WER, streaming",
        "tight": "WER, trailing silence removed",
        "endpointed": f"WER, cut at pauses of {pause:g} s",
    }
    measures = {what: _live_rate(key) for key, what in rates.items()}
    measures |= {what: _delays(key) for key, what in _DELAYS.items()}
    measures |= {
        "words shown and later changed": lambda x: percent(x["revision_rate"]),
        "texts other than offline": lambda x: f"{x['num_different']} of {x['num_utterances']}",
        "real-time factor with partial results": lambda x: numbers([x["real_time_factor"]]),
    }
    return side_by_side(found, measures)


def _live_rate(key: str) -> Callable[[Any], str]:
    return lambda x: rate(Interval(**x["word_error_rates"][key]))


def _delays(key: str) -> Callable[[Any], str]:
    return lambda x: numbers([x["percentiles"][key][part] for part in ("p50", "p90", "p99")], 2)


def side_by_side(found: Mapping[str, Any], measures: Mapping[str, Callable[[Any], str]]) -> str:
    """A column for each model, a line for each measure."""
    lines = [(what, *(show(each) for each in found.values())) for what, show in measures.items()]
    return table([("", *found), *lines])


def table(lines: Sequence[Sequence[str]]) -> str:
    """Markdown; the first line is the heading."""
    heading, *others = lines
    shown = [heading, ["---"] * len(heading), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)


def percent(share: float | None, digits: int = 1) -> str:
    """A share; "-" if it is not known."""
    if share is None or not math.isfinite(share):
        return "-"
    return f"{100 * share:.{digits}f} %"


def numbers(values: Sequence[float | None], digits: int = 3) -> str:
    """Several of them; "-" for what is not known."""
    return ", ".join(
        "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"
        for value in values
    )


def rate(found: Interval) -> str:
    """A rate, or a difference of rates, with its interval."""
    return f"{percent(found.estimate, 2)} [{100 * found.low:.2f}, {100 * found.high:.2f}]"
