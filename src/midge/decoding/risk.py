"""Minimum Bayes risk: the answer with the fewest errors to be expected.

The most probable sequence is most often right as a whole. Errors are counted by word, though, and a
sequence that is nearly right in many likely cases may cost fewer of them:

    choice = argmin over candidates y of  sum over y' of P(y' | x) distance(y', y)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from midge.decoding.confidence import Labels, Posterior, Spell, label_by_label
from midge.decoding.errors import count_errors


@dataclass(frozen=True)
class LeastRisk:
    """The sequence of least risk among those known and sampled."""

    labels: Labels
    """The most probable sequence that spells the choice."""
    num_errors: float
    """Errors to be expected of it, if the truth is one of the sequences known or sampled."""
    num_errors_of_first: float
    """The same of the most probable sequence."""


def expected_errors(
    candidate: Sequence[Hashable],
    spellings: Sequence[tuple[tuple[Hashable, ...], float]],
) -> float:
    """The expected edit distance of a candidate from the truth.

    Args:
        candidate: units, such as words.
        spellings: what may be true, with its probability; they need not sum to 1.

    Example:
        >>> expected_errors("ab", [(("a", "b"), 0.5), (("b",), 0.3), (("a", "c"), 0.2)])
        0.5
    """
    total = sum(share for _, share in spellings)
    if not total > 0.0:
        raise ValueError("spellings should have a probability above 0, got none")
    weighed = sum(share * count_errors(units, candidate).num_errors for units, share in spellings)
    return weighed / total


def least_risk(posterior: Posterior, spell: Spell = label_by_label) -> LeastRisk:
    """Chooses among the sequences of a posterior the one with the fewest errors to be expected.

    Takes one edit distance for each pair of different spellings. Among equals the first one listed
    wins, and the most probable are listed first.

    Args:
        posterior: sequences with probabilities, and perhaps samples.
        spell: from labels to the units in which errors are counted: words, or labels.

    Raises:
        ValueError: if there is no sequence at all.

    Example:
        >>> found = Posterior({(1, 1, 1): 0.4, (1, 2, 2): 0.3, (1, 2, 3): 0.3})
        >>> least_risk(found).labels
        (1, 2, 2)
    """
    spellings = posterior.spellings(spell)
    if not spellings:
        raise ValueError("posterior should have at least one sequence, got none")
    risks = [expected_errors(units, spellings) for units, _ in spellings]
    best = min(range(len(risks)), key=lambda place: risks[place])
    chosen = spellings[best][0]
    labels = next(labels for labels, _ in posterior.shares() if tuple(spell(labels)) == chosen)
    return LeastRisk(labels, risks[best], risks[0])
