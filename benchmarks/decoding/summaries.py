"""Rows of many utterances summed up: the figures that tables show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from margins import MARGINS, MarginRow
from posteriors import LIST_SIZES, PosteriorRow
from searches import BEAM_SIZES, MAX_PATH, SUM_PATH, WINDOWED, SearchRow, beam_name

from midge.decoding import Interval, Units, confidence_interval, difference, error_rate


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolated; NaN without values."""
    return float(np.percentile(values, percent)) if len(values) else math.nan


def share(flags: Sequence[bool]) -> float:
    """Of those that are true; NaN without any."""
    return sum(flags) / len(flags) if flags else math.nan


@dataclass(frozen=True)
class Compared:
    """Word error rates of two answers to the same utterances."""

    first: Interval
    second: Interval
    difference: Interval
    """Second less first."""
    units: str
    """What the intervals are drawn over."""


def compared(
    speakers: Sequence[str | None],
    num_words: Sequence[int],
    first: Sequence[int],
    second: Sequence[int],
) -> Compared:
    """Rates with intervals over speakers, from the errors of each utterance."""
    units = Units.of_speakers(speakers)
    both = np.array([[first, num_words], [second, num_words]], dtype=np.float64)
    counts = units.sums(both.transpose(2, 0, 1))  # [num_units, 2 answers, 2]
    return Compared(
        confidence_interval(counts[:, 0], error_rate),
        confidence_interval(counts[:, 1], error_rate),
        confidence_interval(counts, difference),
        units.description,
    )


def word_error_rate(num_errors: Sequence[int], num_words: Sequence[int]) -> float:
    return sum(num_errors) / sum(num_words) if sum(num_words) else math.nan


@dataclass(frozen=True)
class ExactFigures:
    """How the exact search did on a test set."""

    share_proved: float
    expansions: tuple[float, float, float]
    """Median, 90th percentile, and the most."""
    seconds: tuple[float, float]
    """Of the search: median and 90th percentile."""
    real_time_factor: tuple[float, float]
    """Of the search: median and 90th percentile."""
    whole_factor: tuple[float, float]
    """The same with front end and encoder."""
    num_different: int
    """Utterances whose best path spells something else."""
    gain: tuple[float, float]
    """How much more probable the answer is than the best path's: mean over all, and the most."""
    rates: Compared
    """Of best path and exact search."""


def exact_figures(rows: Sequence[SearchRow]) -> ExactFigures:
    """From the rows of one model, at least one."""
    times = [row.figure("seconds", SUM_PATH) for row in rows]
    factors = [row.figure("seconds", SUM_PATH) / row.audio_seconds for row in rows]
    whole = [
        (row.encode_seconds + row.figure("seconds", SUM_PATH)) / row.audio_seconds for row in rows
    ]
    expansions = [row.num_expansions for row in rows]
    gains = [row.missed(MAX_PATH) for row in rows]
    return ExactFigures(
        share_proved=share([row.is_proved for row in rows]),
        expansions=(median(expansions), percentile(expansions, 90), max(expansions)),
        seconds=(median(times), percentile(times, 90)),
        real_time_factor=(median(factors), percentile(factors, 90)),
        whole_factor=(median(whole), percentile(whole, 90)),
        num_different=sum(not row.figure("is_same", MAX_PATH) for row in rows),
        gain=(sum(gains) / len(gains), max(gains)),
        rates=compared(
            [row.speaker for row in rows],
            [row.num_words for row in rows],
            [row.figure("num_errors", MAX_PATH) for row in rows],
            [row.figure("num_errors", SUM_PATH) for row in rows],
        ),
    )


@dataclass(frozen=True)
class SearchFigures:
    """How one search did beside the exact one."""

    name: str
    share_same: float
    """Of the utterances, with the answer of the exact search."""
    missed: tuple[float, float]
    """Probability of the exact answer less that of its own: mean and largest."""
    seconds: float
    """Median."""
    real_time_factor: float
    """Median."""
    rate: float
    """Word error rate."""


def search_figures(rows: Sequence[SearchRow]) -> list[SearchFigures]:
    """Best path, beams from the smallest on, windowed ones, and the exact search."""
    names = (MAX_PATH, *map(beam_name, BEAM_SIZES), *WINDOWED, SUM_PATH)
    return [_search_figures(name, rows) for name in names]


def _search_figures(name: str, rows: Sequence[SearchRow]) -> SearchFigures:
    missed = [row.missed(name) for row in rows]
    times = [row.figure("seconds", name) for row in rows]
    return SearchFigures(
        name=name,
        share_same=share([row.figure("is_same", name) for row in rows]),
        missed=(sum(missed) / len(missed), max(missed)),
        seconds=median(times),
        real_time_factor=median(
            [time / row.audio_seconds for time, row in zip(times, rows, strict=True)]
        ),
        rate=word_error_rate(
            [row.figure("num_errors", name) for row in rows], [row.num_words for row in rows]
        ),
    )


@dataclass(frozen=True)
class MarginFigures:
    """How the best path did with one margin."""

    margin: float
    num_changed: int
    """Utterances with other labels than the exact best path."""
    rate: float
    """Word error rate."""
    share_kept: float
    """Of all states, mean over frames."""
    time_ratio: float
    """Time of the search per that without margin, over all utterances."""
    tail_seconds: float
    """What is not committed, mean over frames."""


def margin_figures(rows: Sequence[MarginRow]) -> list[MarginFigures]:
    """For each margin."""
    num_frames = sum(row.num_frames for row in rows)

    def over_frames(name: str, place: int) -> float:
        total = sum(row.num_frames * getattr(row, name)[place] for row in rows)
        return float(total / num_frames)

    exact = sum(row.seconds[MARGINS.index(math.inf)] for row in rows)
    return [
        MarginFigures(
            margin=margin,
            num_changed=sum(not row.is_same[place] for row in rows),
            rate=word_error_rate(
                [row.num_errors[place] for row in rows], [row.num_words for row in rows]
            ),
            share_kept=over_frames("share_kept", place),
            time_ratio=sum(row.seconds[place] for row in rows) / exact,
            tail_seconds=over_frames("tail_seconds", place),
        )
        for place, margin in enumerate(MARGINS)
    ]


@dataclass(frozen=True)
class ListFigures:
    """What lists of the most probable sequences hold."""

    share_proved: float
    unlisted: float
    """Probability of all sequences that are not listed, median."""
    rates: Compared
    """Of the most probable sequence and the one of least risk."""
    least_rates: tuple[float, ...]
    """Word error rate of the best of the first so many, for `LIST_SIZES`."""
    seconds: float
    """From samples to words with confidences, median."""
    real_time_factor: float
    """The same per second of audio."""


def list_figures(rows: Sequence[PosteriorRow]) -> ListFigures:
    """From the rows of one model, at least one."""
    num_words = [row.num_words for row in rows]
    return ListFigures(
        share_proved=share([row.is_proved for row in rows]),
        unlisted=median([row.unlisted for row in rows]),
        rates=compared(
            [row.speaker for row in rows],
            num_words,
            [row.num_errors for row in rows],
            [row.num_errors_of_least_risk for row in rows],
        ),
        least_rates=tuple(
            word_error_rate([row.least_errors[place] for row in rows], num_words)
            for place in range(len(LIST_SIZES))
        ),
        seconds=median([row.seconds for row in rows]),
        real_time_factor=median([row.seconds / row.audio_seconds for row in rows]),
    )
