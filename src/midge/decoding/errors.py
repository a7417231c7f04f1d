"""Errors of a hypothesis against a reference: alignment by edit distance, counts and rates.

An alignment pairs the units (words, characters) of two sequences in order. It has the fewest
errors, and among those the most pairs of equal units. What is still open is decided so: equal units
at the two ends are pairs; then, from the front, a pair goes before a deletion before an insertion.
The counts do not depend on that last choice.

NIST's sclite weighs a substitution 4 and the others 3, and so prefers equal units too. Where that
would cost an error more than is needed, the two differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

_Unit = TypeVar("_Unit", bound=Hashable)
_Integers = npt.NDArray[np.int64]

Operation = Literal["=", "S", "D", "I"]
"""Correct, substituted, deleted, inserted."""

MAX_NUM_CELLS = 1 << 24
"""Cost tables above this many cells (128 MB) are never held whole; the task is cut in two."""


@dataclass(frozen=True)
class ErrorCounts:
    """How many units are right and wrong; counts of several utterances add up.

    Example:
        >>> count_errors("a quick fox".split(), "the quick brown fox".split())
        ErrorCounts(num_correct=2, num_substitutions=1, num_deletions=0, num_insertions=1)
    """

    num_correct: int = 0
    """Units of the reference that are in the hypothesis."""
    num_substitutions: int = 0
    """Units of the reference with another one in their place."""
    num_deletions: int = 0
    """Units of the reference with nothing in their place."""
    num_insertions: int = 0
    """Units of the hypothesis that stand for nothing."""

    @property
    def num_reference(self) -> int:
        """Length of the reference."""
        return self.num_correct + self.num_substitutions + self.num_deletions

    @property
    def num_errors(self) -> int:
        """Substitutions, deletions and insertions."""
        return self.num_substitutions + self.num_deletions + self.num_insertions

    @property
    def rate(self) -> float:
        """Errors per unit of the reference; 0 for nothing against nothing, else inf without any."""
        if self.num_reference:
            return self.num_errors / self.num_reference
        return float("inf") if self.num_errors else 0.0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            self.num_correct + other.num_correct,
            self.num_substitutions + other.num_substitutions,
            self.num_deletions + other.num_deletions,
            self.num_insertions + other.num_insertions,
        )


@dataclass(frozen=True)
class TextErrors:
    """Errors by word, by character and by sentence; those of several utterances add up."""

    words: ErrorCounts = ErrorCounts()
    """Words are what white space separates."""
    characters: ErrorCounts = ErrorCounts()
    """The space between two words is a character; other white space is not counted."""
    sentences: ErrorCounts = ErrorCounts()
    """A sentence with any wrong word is one substitution."""

    def __add__(self, other: TextErrors) -> TextErrors:
        return TextErrors(
            self.words + other.words,
            self.characters + other.characters,
            self.sentences + other.sentences,
        )


@dataclass(frozen=True)
class Pair(Generic[_Unit]):
    """One place of an alignment."""

    reference: _Unit | None
    """None for an insertion."""
    hypothesis: _Unit | None
    """None for a deletion."""

    @property
    def operation(self) -> Operation:
        """What happened to the unit."""
        if self.reference is None:
            return "I"
        if self.hypothesis is None:
            return "D"
        return "=" if self.reference == self.hypothesis else "S"


def text_errors(reference: str, hypothesis: str) -> TextErrors:
    """Compares two texts, as they are written: case and punctuation count.

    Example:
        >>> errors = text_errors("ONE TWO", "ONE TOO")
        >>> errors.words.rate, errors.characters.num_errors, errors.sentences.rate
        (0.5, 1, 1.0)
    """
    spoken, heard = reference.split(), hypothesis.split()
    is_right = spoken == heard
    return TextErrors(
        words=count_errors(spoken, heard),
        characters=count_errors(" ".join(spoken), " ".join(heard)),
        sentences=ErrorCounts(num_correct=int(is_right), num_substitutions=int(not is_right)),
    )


def count_errors(reference: Sequence[_Unit], hypothesis: Sequence[_Unit]) -> ErrorCounts:
    """Counts what `align` would show, without the alignment.

    Args:
        reference: what was said.
        hypothesis: what was recognized.
    """
    first, last = _common_ends(reference, hypothesis)
    spoken, heard = _numbered(
        reference[first : len(reference) - last], hypothesis[first : len(hypothesis) - last]
    )
    penalty = _penalty(spoken, heard)
    num_errors, num_substitutions = divmod(int(_last_row(spoken, heard, penalty)[-1]), penalty)
    # Errors E = S + D + I, and the lengths of the two differ by D - I.
    surplus = len(spoken) - len(heard)
    num_deletions = (num_errors - num_substitutions + surplus) // 2
    return ErrorCounts(
        num_correct=len(reference) - num_substitutions - num_deletions,
        num_substitutions=num_substitutions,
        num_deletions=num_deletions,
        num_insertions=num_deletions - surplus,
    )


def align(reference: Sequence[_Unit], hypothesis: Sequence[_Unit]) -> list[Pair[_Unit]]:
    """Pairs the units of two sequences with the fewest errors.

    Takes O(R H) time for lengths R and H without their common ends, and at most O(MAX_NUM_CELLS)
    memory.

    Args:
        reference: what was said.
        hypothesis: what was recognized.

    Returns:
        Every unit of both, in order.

    Example:
        >>> "".join(pair.operation for pair in align("a b c".split(), "b c d".split()))
        'D==I'
    """
    first, last = _common_ends(reference, hypothesis)
    spoken, heard = _numbered(
        reference[first : len(reference) - last], hypothesis[first : len(hypothesis) - last]
    )
    middle = _steps(spoken, heard, _penalty(spoken, heard))
    pairs: list[Pair[_Unit]] = []
    row = column = 0
    for down, right in [(1, 1)] * first + middle + [(1, 1)] * last:
        pairs.append(Pair(reference[row] if down else None, hypothesis[column] if right else None))
        row, column = row + down, column + right
    return pairs


def _common_ends(reference: Sequence[_Unit], hypothesis: Sequence[_Unit]) -> tuple[int, int]:
    """How many units are the same at the front, and behind those at the end.

    Some best alignment pairs them all, and in most hypotheses they are nearly everything.
    """
    shorter = min(len(reference), len(hypothesis))
    first = 0
    while first < shorter and reference[first] == hypothesis[first]:
        first += 1
    last = 0
    while last < shorter - first and reference[-1 - last] == hypothesis[-1 - last]:
        last += 1
    return first, last


def _numbered(
    reference: Sequence[_Unit], hypothesis: Sequence[_Unit]
) -> tuple[_Integers, _Integers]:
    """The same sequences as numbers, equal where the units are."""
    numbers: dict[_Unit, int] = {}
    spoken, heard = (
        np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.int64)
        for units in (reference, hypothesis)
    )
    return spoken, heard


def _penalty(spoken: _Integers, heard: _Integers) -> int:
    """What an error costs; a substitution costs 1 more, and all of them together less than this."""
    return 1 + min(len(spoken), len(heard))


def _rows(spoken: _Integers, heard: _Integers, penalty: int) -> Iterator[_Integers]:
    """The costs of the best alignments of all pairs of prefixes, row by row.

    A row [H + 1] is without what it costs to insert its whole prefix of the hypothesis. Then an
    insertion is free, and a row is the running minimum of the ways in from above: a deletion, or a
    pair, which is the insertion saved and, if the units differ, a substitution.
    """
    row = np.zeros(len(heard) + 1, dtype=np.int64)
    yield row
    pairs: dict[int, _Integers] = {}
    for unit in spoken.tolist():
        if unit not in pairs:
            pairs[unit] = np.where(heard == unit, -penalty, 1)
        above = row + penalty
        np.minimum(above[1:], row[:-1] + pairs[unit], out=above[1:])
        row = np.minimum.accumulate(above)
        yield row


def _last_row(spoken: _Integers, heard: _Integers, penalty: int) -> _Integers:
    """[H + 1] the cost of all of the reference against each prefix of the hypothesis."""
    (row,) = deque(_rows(spoken, heard, penalty), maxlen=1)
    return row + penalty * np.arange(len(heard) + 1)


def _steps(spoken: _Integers, heard: _Integers, penalty: int) -> list[tuple[int, int]]:
    """The best way through the table: (1, 1) for a pair, (1, 0) a deletion, (0, 1) an insertion."""
    if len(spoken) > 1 and (len(spoken) + 1) * (len(heard) + 1) > MAX_NUM_CELLS:
        return _steps_in_halves(spoken, heard, penalty)
    # Costs of all pairs of suffixes, so that the walk decides from the front.
    insertions = penalty * np.arange(len(heard) + 1)
    backward = _rows(spoken[::-1], heard[::-1], penalty)
    rows = [(row + insertions)[::-1] for row in backward][::-1]
    steps: list[tuple[int, int]] = []
    row = column = 0
    while row < len(spoken) or column < len(heard):
        here = rows[row][column]
        if row < len(spoken) and column < len(heard):
            cost = (penalty + 1) * int(spoken[row] != heard[column])
            if here == cost + rows[row + 1][column + 1]:
                step = (1, 1)
            else:
                step = (1, 0) if here == penalty + rows[row + 1][column] else (0, 1)
        else:
            step = (1, 0) if row < len(spoken) else (0, 1)
        steps.append(step)
        row, column = row + step[0], column + step[1]
    return steps


def _steps_in_halves(spoken: _Integers, heard: _Integers, penalty: int) -> list[tuple[int, int]]:
    """The same in O(R + H) memory and twice the time: the best way crosses the middle row once."""
    middle = len(spoken) // 2
    before = _last_row(spoken[:middle], heard, penalty)
    after = _last_row(spoken[middle:][::-1], heard[::-1], penalty)[::-1]
    cut = int(np.argmin(before + after))
    return [
        *_steps(spoken[:middle], heard[:cut], penalty),
        *_steps(spoken[middle:], heard[cut:], penalty),
    ]
