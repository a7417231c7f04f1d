"""Phrases that are to be expected: hints for one request.

A phrase is helped label by label, before it is whole, and what it was given goes back if it breaks
off. So the hint steers a search, and in the end counts for whole phrases alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from midge.decoding.fusion import Array, LabelScorer
from midge.tokens import Tokens


@dataclass
class _Node:
    """A beginning of phrases."""

    num_labels: int
    """How many labels of a phrase it has, separators not counted."""
    children: dict[int, int] = field(default_factory=dict)
    fallback: int = 0
    """The longest other beginning that it ends in."""
    num_earned: int = 0
    """Labels of all phrases that are whole here."""
    num_lent: int = 0
    """Labels that are paid for in advance here."""


@final
class PhraseBias(LabelScorer):
    """A bonus for phrases, as an automaton (Aho and Corasick, 1975).

    The score of a whole label sequence is

        bonus * sum over phrases p of |p| * (how often p occurs in it).

    The state is the longest beginning of a phrase that the labels end in. The labels of a beginning
    are paid for as they come; the next label, or the end, takes that back, and pays for what is
    whole or begun then.

    Args:
        phrases: label sequences; one that comes twice counts once.
        vocab_size: number of labels.
        bonus: for each label of a phrase, in nats.
        separator: the label between words. A phrase then has to begin and end with words; it does
            not occur within a longer word. None lets it occur anywhere.

    Raises:
        ValueError: if a phrase is empty, or a label or the bonus is out of range.

    Example:
        >>> bias = PhraseBias([[1, 2, 3]], vocab_size=3, bonus=1.0)
        >>> [bias.score(labels) for labels in ([1, 2, 3], [1, 2], [3, 1, 2, 3], [1, 2, 1, 2, 3])]
        [3.0, 0.0, 3.0, 3.0]
        >>> bias.score([1, 2], is_ended=False)
        2.0
    """

    def __init__(
        self,
        phrases: Iterable[Sequence[int]],
        vocab_size: int,
        bonus: float = 1.0,
        separator: int | None = None,
    ) -> None:
        if not math.isfinite(bonus):
            raise ValueError(f"bonus should be a finite number, got {bonus}")
        self.vocab_size = vocab_size
        self._bonus = bonus
        self._separator = separator
        self._nodes = [_Node(0)]
        for phrase in dict.fromkeys(map(tuple, phrases)):
            self._add(phrase)
        self._link()
        self._rows: dict[int, tuple[Array, Array]] = {}
        # A phrase may begin at the beginning, as after a separator.
        self.start = 0 if separator is None else self._after(0, separator)

    def arcs(self, state: int) -> tuple[Array, Array]:
        """[vocab_size] what each label earns, and the state after it."""
        if state not in self._rows:
            after = np.array([self._after(state, y) for y in range(1, self.vocab_size + 1)])
            lent = self._nodes[state].num_lent
            gained = [
                node.num_earned + node.num_lent - lent for node in (self._nodes[at] for at in after)
            ]
            self._rows[state] = self._bonus * np.array(gained, dtype=np.float64), after
        return self._rows[state]

    def final(self, state: int) -> float:
        """Takes back what was paid in advance; the end closes a word as a separator does."""
        earned = 0
        if self._separator is not None:
            earned = self._nodes[self._after(state, self._separator)].num_earned
        return self._bonus * (earned - self._nodes[state].num_lent)

    def _add(self, phrase: tuple[int, ...]) -> None:
        if not phrase or any(not 1 <= label <= self.vocab_size for label in phrase):
            raise ValueError(
                f"phrases should hold at least one label each, in 1..{self.vocab_size}, "
                f"got {list(phrase)}"
            )
        ends = () if self._separator is None else (self._separator,)
        at = 0
        for place, label in enumerate((*ends, *phrase, *ends)):
            children = self._nodes[at].children
            if label not in children:
                children[label] = len(self._nodes)
                begun = min(place + 1 - len(ends), len(phrase))
                self._nodes.append(_Node(begun))
            at = children[label]
        self._nodes[at].num_earned += len(phrase)

    def _link(self) -> None:
        """Finds where each beginning falls back to, the shorter ones first."""
        queue = [0]
        for at in queue:
            for label, child in self._nodes[at].children.items():
                node = self._nodes[child]
                node.fallback = self._after(self._nodes[at].fallback, label) if at else 0
                other = self._nodes[node.fallback]
                node.num_earned += other.num_earned
                # Where nothing goes on, what counts is the beginning that it falls back to.
                node.num_lent = node.num_labels if node.children else other.num_lent
                queue.append(child)

    def _after(self, at: int, label: int) -> int:
        """The longest beginning that a label leads to."""
        while at and label not in self._nodes[at].children:
            at = self._nodes[at].fallback
        return self._nodes[at].children.get(label, 0)


def phrase_bias(tokens: Tokens, phrases: Iterable[str], bonus: float = 1.0) -> PhraseBias:
    """A bonus for phrases given as text.

    Where the space is a label, as with graphemes, phrases match whole words.

    Args:
        tokens: text as labels.
        phrases: one or more words each.
        bonus: for each label, in nats.

    Raises:
        ValueError: if a phrase has no label, or a character that the tokens do not cover.
    """
    separator = tokens.symbols.index(" ") + 1 if " " in tokens.symbols else None
    encoded = [tokens.encode(phrase) for phrase in phrases]
    return PhraseBias(encoded, tokens.vocab_size, bonus, separator)
