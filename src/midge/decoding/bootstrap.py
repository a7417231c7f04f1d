"""Confidence intervals by the bootstrap: how much a figure owes to who happened to be recorded.

Errors of one speaker go together, so what is drawn again, with replacement, is speakers (units)
with all that they said. A figure is any function of sums over units: an error rate, the difference
of two systems on the same utterances, the relative difference, a difference of differences. Its
interval is from the percentiles of the figure over many draws (Bisani and Ney, 2004).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""From sums [*draws, *shape] to figures [*draws]."""

NUM_DRAWS = 5000
LEVEL = 0.95
_BLOCK_SIZE = 1 << 22  # numbers drawn at a time: 32 MB


@dataclass(frozen=True)
class Interval:
    """A figure and the interval that covers it at a confidence level."""

    estimate: float
    """The figure on all units, each once."""
    low: float
    high: float
    level: float = LEVEL

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is distinguishable from none at this level."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class Units:
    """Which utterances are drawn together."""

    index: npt.NDArray[np.int64]
    """[num_utterances] the unit of each."""
    num_units: int
    description: str
    """What the units are, in words: it belongs beside every interval."""

    @classmethod
    def of_speakers(cls, speakers: Sequence[str | None]) -> Units:
        """One unit for each speaker, and one for each utterance whose speaker is unknown.

        A single speaker says nothing of others, and leaves nothing to draw: then, too, each
        utterance is a unit.

        Args:
            speakers: of each utterance; None or "" is unknown.

        Example:
            >>> Units.of_speakers(["ann", "ben", "ann", None]).description
            '2 speakers and 1 utterance of unknown speakers'
        """
        known = sorted({speaker for speaker in speakers if speaker})
        if len(known) < 2:
            who = "of one speaker" if known and all(speakers) else "of unknown speakers"
            count = len(speakers)
            return cls(np.arange(count), count, f"{_counted(count, 'utterance')} {who}")
        numbers = {speaker: number for number, speaker in enumerate(known)}
        index = np.empty(len(speakers), dtype=np.int64)
        num_units = len(known)
        for place, speaker in enumerate(speakers):
            index[place] = numbers[speaker] if speaker else num_units
            num_units += not speaker
        description = _counted(len(known), "speaker")
        if alone := num_units - len(known):
            description += f" and {_counted(alone, 'utterance')} of unknown speakers"
        return cls(index, num_units, description)

    def sums(self, counts: npt.ArrayLike) -> Floats:
        """Adds up the counts of each unit.

        Args:
            counts: [num_utterances, *shape].

        Returns:
            [num_units, *shape].
        """
        values = np.asarray(counts, dtype=np.float64)
        if len(values) != len(self.index):
            raise ValueError(f"counts should be of {len(self.index)} utterances, got {len(values)}")
        total = np.zeros((self.num_units, *values.shape[1:]))
        np.add.at(total, self.index, values)
        return total


def confidence_interval(
    counts: npt.ArrayLike,
    statistic: Statistic,
    *,
    num_draws: int = NUM_DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """The interval of a figure over draws of units.

    Args:
        counts: [num_units, *shape] what each unit contributes; see `Units.sums`.
        statistic: the figure as a function of sums [*draws, *shape], such as `error_rate`.
        num_draws: how often the units are drawn.
        level: share of the draws that the interval holds.
        seed: the same numbers and seed give the same interval.

    Returns:
        The figure and its percentile interval. Draws in which the figure is not defined (NaN) are
        left out; without any unit, or draw, all is NaN.

    Example:
        >>> confidence_interval([[1, 10], [3, 10], [2, 10]], error_rate)
        Interval(estimate=0.2, low=0.1, high=0.3, level=0.95)
    """
    values = np.asarray(counts, dtype=np.float64)
    if not len(values):
        return Interval(np.nan, np.nan, np.nan, level)
    drawn = draws(values, statistic, num_draws=num_draws, seed=seed)
    return interval_of(float(statistic(values.sum(0))), drawn, level)


def interval_of(estimate: float, drawn: Floats, level: float = LEVEL) -> Interval:
    """The percentile interval of a figure from its draws [num_draws]; see `confidence_interval`."""
    if not 0 < level < 1:
        raise ValueError(f"level should be between 0 and 1, got {level}")
    defined = drawn[~np.isnan(drawn)]
    if not len(defined):
        return Interval(estimate, np.nan, np.nan, level)
    # A rate may be inf: take what was drawn, never a mean of two draws.
    ends = [50 * (1 - level), 50 * (1 + level)]
    low, high = np.percentile(defined, ends, method="inverted_cdf")
    return Interval(estimate, float(low), float(high), level)


def draws(
    counts: npt.ArrayLike, statistic: Statistic, *, num_draws: int = NUM_DRAWS, seed: int = 0
) -> Floats:
    """[num_draws] the figure, each time on as many units as there are, drawn with replacement.

    Args:
        counts: [num_units, *shape], of at least one unit.
        statistic: from sums [*draws, *shape] to figures; if these are several, [*draws, *figures],
            the result is [num_draws, *figures].
        num_draws: how often.
        seed: of the draws. Figures with the same units and seed are drawn alike.
    """
    if num_draws < 1:
        raise ValueError(f"num_draws should be at least 1, got {num_draws}")
    values = np.asarray(counts, dtype=np.float64)
    num_units, *shape = values.shape
    flat = values.reshape(num_units, -1)
    figures = [
        statistic((weights @ flat).reshape(-1, *shape))
        for weights in _weights(num_units, num_draws, seed)
    ]
    return np.concatenate(figures)


def error_rate(sums: Floats) -> Floats:
    """Errors per reference unit: [*draws, 2] (errors, reference) -> [*draws].

    As `ErrorCounts.rate`: 0 for nothing against nothing, inf for errors against nothing.
    """
    errors, reference = sums[..., 0], sums[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = errors / reference
    return np.where((errors == 0) & (reference == 0), 0.0, rate)


def difference(sums: Floats) -> Floats:
    """Rate of the second system minus that of the first: [*draws, 2, 2] -> [*draws].

    Below 0 the second is better.
    """
    rate = error_rate(sums)
    return rate[..., 1] - rate[..., 0]


def relative_difference(sums: Floats) -> Floats:
    """The same per rate of the first: [*draws, 2, 2] -> [*draws]; -0.1 is 10 % fewer errors."""
    rate = error_rate(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        change: Floats = rate[..., 1] / rate[..., 0] - 1
    return change


def interaction(sums: Floats) -> Floats:
    """The difference of two differences: [*draws, 2, 2, 2] -> [*draws].

    With systems [i, j] of factors i and j, what factor j changes at i = 1 minus what it changes at
    i = 0: below 0, factor j helps more at i = 1.
    """
    changes = difference(sums)
    return changes[..., 1] - changes[..., 0]


def _weights(num_units: int, num_draws: int, seed: int) -> Iterator[Floats]:
    """Blocks of [draws, num_units]: how often each unit is drawn."""
    generator = np.random.default_rng(seed)
    size = max(1, _BLOCK_SIZE // num_units)
    for start in range(0, num_draws, size):
        rows = min(size, num_draws - start)
        drawn = generator.integers(num_units, size=(rows, num_units))
        places = drawn + num_units * np.arange(rows)[:, None]
        counted = np.bincount(places.ravel(), minlength=rows * num_units)
        yield counted.reshape(rows, num_units).astype(np.float64)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
