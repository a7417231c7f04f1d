"""Pairs of homophones in a test set, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midge.data import Utterance
from midge.decoding import UtteranceResult


@dataclass(frozen=True)
class Pair:
    """Two recordings that are the same until the second word."""

    words: tuple[str, str]
    """The homophones."""
    utterances: tuple[Utterance, Utterance]
    """One recording of each."""


@dataclass(frozen=True)
class FirstWords:
    """What a model made of the first words of the homophone pairs."""

    num_right: int
    """As spoken."""
    num_swapped: int
    """The other word of the pair."""
    num_other: int
    """Neither."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.num_right + self.num_swapped + self.num_other


def pairs_of(test: Sequence[Utterance]) -> list[Pair]:
    """The pairs of homophones of a test set, in its order."""
    found = []
    for one, other in zip(test, test[1:], strict=False):
        names = one.group.get("pair", "").split("/")
        if len(names) == 2 and [one.text.split()[0], other.text.split()[0]] == names:
            found.append(Pair((names[0], names[1]), (one, other)))
    return found


def first_words(results: Sequence[UtteranceResult], pairs: Sequence[Pair]) -> FirstWords:
    """How often the first word of a homophone pair is right, its twin, or neither."""
    first = {result.id: (result.hypothesis.split() or [""])[0] for result in results}
    counts = [0, 0, 0]
    for pair in pairs:
        for word, twin, utterance in zip(
            pair.words, pair.words[::-1], pair.utterances, strict=True
        ):
            found = first[utterance.id]
            counts[0 if found == word else 1 if found == twin else 2] += 1
    return FirstWords(*counts)
