"""What an axis of an experiment changes, on the same utterances, with confidence intervals.

Rows that differ in the pooled axis alone (folds, seeds) are repetitions: their errors are added up.
Of two values of the inner axis the second is compared with the first; if there is an outer axis,
the change is also compared between its two values. That *interaction* tells label bias from mere
ease of optimization: the latter would show at both values alike.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from midge.decoding.bootstrap import (
    Floats,
    Interval,
    confidence_interval,
    difference,
    error_rate,
    interaction,
)
from midge.decoding.evaluation import ALL
from midge.experiments.grid import Contrast, Grid
from midge.experiments.tallies import SENTENCES, WORDS, Tally, added, paired, rate

Records = Sequence[Mapping[str, Any]]
"""Rows that are done."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Rows that differ in the pooled axis alone, scored in one way on one group of utterances."""

    values: Mapping[str, str]
    """Of the other axes."""
    evaluation: str
    """By which they are scored."""
    group: str
    """Of which utterances."""
    members: Mapping[str, Tally]
    """By the value of the pooled axis; "" if there is none."""

    def rate(self, part: slice = WORDS, over: Iterable[str] | None = None) -> Interval:
        """The error rate over all of them together.

        Args:
            part: `WORDS` or `SENTENCES`.
            over: which of them; all if not given.
        """
        return rate(self.tally(over), part)

    def tally(self, over: Iterable[str] | None = None) -> Tally:
        """Errors of all of them together, or of some."""
        return added(self.members[value] for value in (self.members if over is None else over))

    def single_rates(self, part: slice = WORDS) -> list[float]:
        """The error rate of each."""
        sums = [np.array(list(tally.values()))[:, part].sum(0) for tally in self.members.values()]
        return [float(error_rate(each.astype(np.float64))) for each in sums]


@dataclass(frozen=True, kw_only=True)
class ContrastResult:
    """What the inner axis changes, with the values of all other axes fixed."""

    values: Mapping[str, str]
    """Of the axes that are neither inner, outer nor pooled."""
    evaluation: str
    """By which rows are scored."""
    group: str
    """Of which utterances."""
    measure: str
    """Of what the rates are: "words" or "sentences"."""
    repeats: tuple[str, ...]
    """Values of the pooled axis for which there are all rows; only these count."""
    rates: Mapping[str, Mapping[str, Interval]]
    """Error rates by outer and inner value."""
    differences: Mapping[str, Interval]
    """By outer value: second minus first inner value; below 0 the second is better."""
    interaction: Interval | None = None
    """Difference at the second outer value minus that at the first."""
    share_closed: Interval | None = None
    """Of the gap between the outer values at the first inner value, what the second one closes."""


def pools(grid: Grid, records: Records) -> list[Pool]:
    """All pools of an experiment, in the order of its rows, evaluations and groups."""
    kept = [axis for axis in grid.axes if axis != grid.pooled]
    found: dict[tuple[Any, ...], dict[str, Tally]] = {}
    for record in records:
        values = tuple(record["values"][axis] for axis in kept)
        repeat = record["values"].get(grid.pooled, "")
        for evaluation, scored in record["evaluations"].items():
            for group, tally in (scored["tallies"] | _speakers_apart(grid, scored)).items():
                found.setdefault((values, evaluation, group), {})[repeat] = tally
    return [
        Pool(
            values=dict(zip(kept, values, strict=True)),
            evaluation=evaluation,
            group=group,
            members=members,
        )
        for (values, evaluation, group), members in found.items()
    ]


def contrasts(grid: Grid, records: Records, measure: str = "words") -> list[ContrastResult]:
    """The answers to the question of an experiment, as far as its rows are done.

    Args:
        grid: the experiment.
        records: its rows that are done.
        measure: "words" or "sentences".

    Returns:
        One for each evaluation, group and combination of the other axes for which all cells have a
        row. Empty if the experiment asks nothing.
    """
    if grid.contrast is None:
        return []
    asked = grid.contrast
    fixed = [a for a in grid.axes if a not in (grid.pooled, asked.inner, asked.outer)]
    found = pools(grid, records)
    keys = dict.fromkeys(
        (p.evaluation, p.group, tuple(p.values[axis] for axis in fixed)) for p in found
    )
    results = []
    for evaluation, group, values in keys:
        those = dict(zip(fixed, values, strict=True))
        chosen = [
            pool
            for pool in found
            if (pool.evaluation, pool.group) == (evaluation, group)
            and all(pool.values[axis] == value for axis, value in those.items())
        ]
        cells = _cells(grid, asked, chosen)
        repeats = _common(cells.values())
        if None not in cells.values() and repeats:
            results.append(_result(grid, asked, those, cells, repeats, evaluation, group, measure))
    return results


def share_closed(sums: Floats) -> Floats:
    """Of the gap between the rows at the first column, the share that the second column closes.

    [*draws, 2 outer, 2 inner, 2] -> [*draws]: 1 if the second system is as good as the one at the
    first outer value, 0 if it changes nothing. Not defined without a gap.
    """
    rates = error_rate(sums)
    gap = rates[..., 1, 0] - rates[..., 0, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Floats = (rates[..., 1, 0] - rates[..., 1, 1]) / gap
    return np.where(gap == 0, np.nan, share)


def _speakers_apart(grid: Grid, scored: Mapping[str, Any]) -> dict[str, Tally]:
    """Tallies of the groups of speakers that the grid tells apart."""
    everyone = scored["tallies"][ALL].items()
    apart = {
        group: {speaker: x for speaker, x in everyone if fnmatch.fnmatchcase(speaker, pattern)}
        for group, pattern in grid.speakers.items()
    }
    return {group: tally for group, tally in apart.items() if tally}


def _cells(
    grid: Grid, asked: Contrast, chosen: Sequence[Pool]
) -> dict[tuple[str, str], Pool | None]:
    """The pool of each pair of outer and inner values; None where there is none."""
    outer = grid.axes[asked.outer] if asked.outer else ("",)
    by_value = {
        (pool.values.get(asked.outer, ""), pool.values[asked.inner]): pool for pool in chosen
    }
    return {pair: by_value.get(pair) for pair in itertools.product(outer, grid.axes[asked.inner])}


def _common(cells: Iterable[Pool | None]) -> tuple[str, ...]:
    """Values of the pooled axis that all cells have, in the order of the first."""
    members = [pool.members if pool else {} for pool in cells]
    return tuple(v for v in members[0] if all(v in each for each in members))


def _result(
    grid: Grid,
    asked: Contrast,
    values: Mapping[str, str],
    cells: Mapping[tuple[str, str], Pool | None],
    repeats: tuple[str, ...],
    evaluation: str,
    group: str,
    measure: str,
) -> ContrastResult:
    part = SENTENCES if measure == "sentences" else WORDS
    inner = grid.axes[asked.inner]
    outer = tuple(dict.fromkeys(pair[0] for pair in cells))
    systems = [pool.tally(repeats) for pool in cells.values() if pool]
    counts = paired(systems, part).reshape(-1, len(outer), len(inner), 2)
    both = len(outer) == 2
    return ContrastResult(
        values=values,
        evaluation=evaluation,
        group=group,
        measure=measure,
        repeats=repeats,
        rates={o: dict(zip(inner, _rates(counts[:, i]), strict=True)) for i, o in enumerate(outer)},
        differences={o: confidence_interval(counts[:, i], difference) for i, o in enumerate(outer)},
        interaction=confidence_interval(counts, interaction) if both else None,
        share_closed=confidence_interval(counts, share_closed) if both else None,
    )


def _rates(counts: Floats) -> Iterator[Interval]:
    for system in range(counts.shape[1]):
        yield confidence_interval(counts[:, system], error_rate)
