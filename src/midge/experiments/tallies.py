"""Tallies: errors of an evaluation, counted for each speaker and group, small enough to be kept.

A tally is all that a bootstrap over speakers needs. Those of several rows add up, as of folds, and
those of two systems on the same utterances can be compared speaker by speaker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from midge.decoding.bootstrap import Floats, Interval, confidence_interval, error_rate
from midge.decoding.errors import align, count_errors
from midge.decoding.evaluation import ALL, Evaluation, UtteranceResult
from midge.experiments.grid import EvaluationPlan

Tally = dict[str, list[int]]
"""By speaker: word errors, words, utterances with an error, utterances."""
LETTERS, OTHER_WORDS, NEAREST = "letters", "other words", "nearest word"
"""Groups that are found in the texts."""
WORDS, SENTENCES = slice(0, 2), slice(2, 4)
"""Which numbers of a tally are of words, and which of utterances."""


def tallies(evaluation: Evaluation, plan: EvaluationPlan) -> dict[str, Tally]:
    """Errors by group and speaker.

    Args:
        evaluation: of utterances.
        plan: which groups are wanted, besides those that the evaluation has.

    Returns:
        By group, that of all utterances first. An utterance whose speaker is not known counts for
        itself, and so does each if there is one speaker alone.
    """
    found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for result, unit in zip(evaluation.results, _units(evaluation), strict=True):
        words = result.errors.words
        counts = [words.num_errors, words.num_reference, int(words.num_errors > 0), 1]
        counted = [(group, counts) for group in (ALL, *result.groups)]
        if plan.has_letters_apart:
            counted += _by_kind(result)
        if plan.words:
            counted.append((NEAREST, _nearest_counts(result, plan.words)))
        for group, each in counted:
            found[group][unit] = found[group].get(unit, 0) + np.array(each)
    return {
        group: {unit: counts.tolist() for unit, counts in units.items()}
        for group, units in found.items()
    }


def nearest_word(text: str, words: Sequence[str]) -> str:
    """The word with the fewest letters to change; the first of those that are equally near.

    Example:
        >>> nearest_word("SEVE", ["SIX", "SEVEN", "FIVE"])
        'SEVEN'
    """
    return min(words, key=lambda word: count_errors(word, text).num_errors)


def added(several: Iterable[Tally]) -> Tally:
    """The sum of tallies, as of the folds of a cross-validation.

    Example:
        >>> added([{"ann": [1, 5, 1, 2]}, {"ann": [0, 5, 0, 2], "ben": [2, 4, 1, 1]}])
        {'ann': [1, 10, 1, 4], 'ben': [2, 4, 1, 1]}
    """
    total: Tally = {}
    for tally in several:
        for unit, counts in tally.items():
            before = total.get(unit, [0, 0, 0, 0])
            total[unit] = [a + b for a, b in zip(before, counts, strict=True)]
    return total


def paired(systems: Sequence[Tally], part: slice = WORDS) -> Floats:
    """Tallies of several systems, speaker by speaker.

    Args:
        systems: of the same utterances.
        part: `WORDS` or `SENTENCES`.

    Returns:
        [num_units, num_systems, 2] errors and how much there is.

    Raises:
        ValueError: if they are not of the same speakers, or not of as many words.
    """
    units = sorted(systems[0])
    for other in systems[1:]:
        same = [other.get(unit, [])[part][1:] for unit in units]
        if sorted(other) != units or same != [systems[0][unit][part][1:] for unit in units]:
            raise ValueError("systems should be scored on the same utterances; they are not")
    counts = [[system[unit][part] for system in systems] for unit in units]
    return np.array(counts, dtype=np.float64).reshape(len(units), len(systems), 2)


def rate(tally: Tally, part: slice = WORDS, seed: int = 0) -> Interval:
    """An error rate with its interval, by the bootstrap over speakers.

    Args:
        tally: of one system.
        part: `WORDS` or `SENTENCES`.
        seed: of the bootstrap.
    """
    return confidence_interval(paired([tally], part)[:, 0], error_rate, seed=seed)


def rates_json(found: Mapping[str, Tally]) -> dict[str, Any]:
    """Error rates of all groups as JSON can hold them."""
    return {
        group: {
            "num_utterances": sum(counts[3] for counts in tally.values()),
            "num_words": sum(counts[1] for counts in tally.values()),
            "num_units": len(tally),
            "words": interval_json(rate(tally)),
            "sentences": interval_json(rate(tally, SENTENCES)),
        }
        for group, tally in found.items()
    }


def interval_json(interval: Interval) -> dict[str, float | None]:
    """Estimate and ends; what is not a finite number is null."""
    return {
        name: float(value) if np.isfinite(value) else None
        for name, value in (
            ("estimate", interval.estimate),
            ("low", interval.low),
            ("high", interval.high),
        )
    }


def _units(evaluation: Evaluation) -> list[str]:
    """What each utterance is drawn with, as in `Units.of_speakers`."""
    speakers = {result.speaker for result in evaluation.results if result.speaker}
    if len(speakers) < 2:
        return [result.id for result in evaluation.results]
    return [result.speaker or result.id for result in evaluation.results]


def _by_kind(result: UtteranceResult) -> Iterator[tuple[str, list[int]]]:
    """Letters and other words apart; an inserted word counts for its own kind."""
    counts = {LETTERS: [0, 0], OTHER_WORDS: [0, 0]}
    for pair in align(result.reference.split(), result.hypothesis.split()):
        said = pair.reference if pair.reference is not None else pair.hypothesis
        kind = LETTERS if len(said or "") == 1 else OTHER_WORDS
        counts[kind][0] += pair.operation != "="
        counts[kind][1] += pair.reference is not None
    for kind, (num_errors, num_words) in counts.items():
        if num_errors or num_words:
            yield kind, [num_errors, num_words, int(num_errors > 0), 1]


def _nearest_counts(result: UtteranceResult, words: Sequence[str]) -> list[int]:
    is_wrong = int(nearest_word(result.hypothesis, words) != result.reference)
    return [is_wrong, 1, is_wrong, 1]
