"""How sure each word is, and when it was said, from the posterior over label sequences.

The confidence of a word is the posterior probability that it is right: the sum of P(y | x) over the
sequences y in which it is a match, in the alignment of least edit distance of y with the answer. It
is no product of softmax peaks, and knows of every other way to say the rest of the utterance.

The sequences are the n best with their exact probabilities, samples, or both. What the n best leave
open is an interval: none of the other sequences may have the word, or all of them. Samples alone
give an interval that holds with 95 % probability. Scores that are no probabilities give none.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from midge.alignments import LabelDependent
from midge.decoding.errors import align
from midge.lattices import RecognitionLattice
from midge.lattices.marginals import posteriors
from midge.models import TimedWord

Labels = tuple[int, ...]
Spell = Callable[[Labels], Sequence[Hashable]]
"""From labels to the units that are counted, such as words."""


def label_by_label(labels: Labels) -> Labels:
    """The labels themselves as units."""
    return labels


@dataclass(frozen=True)
class Posterior:
    """What is known of the distribution over the label sequences of one utterance.

    Args:
        known: sequences with their probabilities, each at most once.
        samples: sequences drawn from the whole distribution; those that are known count no more.
        is_relative: whether the probabilities are shares of what is known, of whose rest nothing
            is known.

    Example:
        >>> found = Posterior({(1, 2): 0.7, (1,): 0.2}, samples=[(1, 2), (3,), (1, 3)])
        >>> round(found.unexplored, 9)
        0.1
        >>> [(labels, round(share, 3)) for labels, share in found.shares()]
        [((1, 2), 0.7), ((1,), 0.2), ((3,), 0.05), ((1, 3), 0.05)]
    """

    known: dict[Labels, float]
    """Probability of each sequence, the most probable first."""
    samples: Sequence[Labels] = ()
    """Sequences drawn from the distribution."""
    is_relative: bool = False
    """Whether the probabilities are of the known sequences among themselves alone."""

    def __post_init__(self) -> None:
        if wrong := [p for p in self.known.values() if not 0.0 <= p <= 1.0 + 1e-6]:
            raise ValueError(f"known should hold probabilities, got {wrong[0]}")
        if (total := math.fsum(self.known.values())) > 1.0 + 1e-6:
            raise ValueError(f"known should sum to at most 1, got {total}")
        unknown = tuple(tuple(each) for each in self.samples if tuple(each) not in self.known)
        object.__setattr__(self, "samples", unknown)

    @classmethod
    def of_logs(
        cls, found: Iterable[tuple[Labels, float]], samples: Sequence[Labels] = ()
    ) -> Posterior:
        """From sequences with their log probabilities, as the decoders give them."""
        known = {labels: math.exp(value) for labels, value in found}
        total = max(1.0, math.fsum(known.values()))  # more than 1 is rounding
        return cls({labels: share / total for labels, share in known.items()}, samples)

    @property
    def unexplored(self) -> float:
        """Probability of all sequences that are not known."""
        return max(0.0, 1.0 - math.fsum(self.known.values()))

    def shares(self) -> list[tuple[Labels, float]]:
        """Sequences with their estimated probabilities.

        The known ones have their own. What is unexplored is shared by the samples that are not
        known, by how often each came; without samples it is left out.
        """
        drawn = Counter(self.samples)
        each = self.unexplored / len(self.samples) if self.samples else 0.0
        return [*self.known.items(), *((labels, each * count) for labels, count in drawn.items())]

    def spellings(self, spell: Spell = label_by_label) -> list[tuple[tuple[Hashable, ...], float]]:
        """The same by what the sequences spell: several may spell the same words."""
        found: dict[tuple[Hashable, ...], float] = {}
        for labels, share in self.shares():
            units = tuple(spell(labels))
            found[units] = found.get(units, 0.0) + share
        return list(found.items())


@dataclass(frozen=True)
class Confidence:
    """The probability that a unit of an answer is right."""

    value: float
    """The estimate: of what is known, and of samples where there are any."""
    low: float | None = None
    """The least that it can be: none of the unexplored sequences agrees. None if unknown."""
    high: float | None = None
    """The most: all of them agree."""
    level: float = 1.0
    """How probable it is that low and high hold: 1 is for certain, less is by samples."""


SAMPLED_LEVEL = 0.95
"""Of the interval of a confidence that was sampled."""
_NORMAL_QUANTILE = 1.959964  # 97.5 %


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Where a share may lie that was found in independent cases, at 95 % (Wilson, 1927).

    Args:
        share: that was found; it is inside.
        count: of how many cases, at least 1.

    Example:
        >>> low, high = share_interval(1.0, 10)
        >>> round(low, 2), high
        (0.72, 1.0)
    """
    spread = _NORMAL_QUANTILE**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def sampled_confidence(share: float, num_samples: int) -> Confidence:
    """A confidence by how many of some independent samples agree.

    The value counts half a sample more for each side: so few cannot tell what is rarer.

    Args:
        share: of the samples that agree.
        num_samples: how many there are, at least 1.

    Example:
        >>> found = sampled_confidence(0.9, 100)
        >>> round(found.low, 3), round(found.value, 3), round(found.high, 3), found.level
        (0.826, 0.896, 0.945, 0.95)
    """
    value = (share * num_samples + 0.5) / (num_samples + 1)
    return Confidence(value, *share_interval(share, num_samples), level=SAMPLED_LEVEL)


def confidences(
    answer: Labels, posterior: Posterior, spell: Spell = label_by_label
) -> list[Confidence]:
    """The confidence of each unit of an answer.

    Args:
        answer: the labels of the answer; any sequence, not only the most probable one.
        posterior: what is known of all sequences.
        spell: from labels to the units asked about, such as words.

    Returns:
        One for each unit that the answer spells. The value lies between low and high, which are
        None if the posterior is relative.

    Example:
        >>> found = Posterior({(1, 2): 0.6, (1, 3): 0.3})
        >>> [(round(x.low, 9), round(x.high, 9)) for x in confidences((1, 2), found)]
        [(0.9, 1.0), (0.6, 0.7)]
    """
    units = spell(answer)
    certain = _matching(units, posterior.known.items(), spell)
    total = _matching(units, posterior.shares(), spell)
    if posterior.is_relative:
        return [Confidence(min(1.0, value)) for value in total]
    unexplored = posterior.unexplored
    return [
        Confidence(min(1.0, value), min(1.0, low), min(1.0, low + unexplored))
        for value, low in zip(total, certain, strict=True)
    ]


def _matching(
    units: Sequence[Hashable], shares: Iterable[tuple[Labels, float]], spell: Spell
) -> list[float]:
    """The summed shares of the sequences that match each unit."""
    total = [0.0] * len(units)
    for labels, share in shares:
        pairs = (pair for pair in align(units, spell(labels)) if pair.reference is not None)
        for place, pair in enumerate(pairs):
            total[place] += share * (pair.operation == "=")
    return total


def with_confidence(
    words: Sequence[TimedWord], found: Sequence[Confidence]
) -> tuple[TimedWord, ...]:
    """Words with the values of their confidences."""
    return tuple(
        dataclasses.replace(word, confidence=each.value)
        for word, each in zip(words, found, strict=True)
    )


@torch.no_grad()
def emission_posteriors(
    lattice: RecognitionLattice, frames: Tensor, labels: Sequence[int]
) -> Tensor:
    """When each label is emitted, given that these labels are what was said.

    Args:
        lattice: a lattice that moves along frames.
        frames: [num_frames, input_size] of one utterance.
        labels: in 1..vocab_size.

    Returns:
        [num_labels, num_frames] float64 posterior probability that a frame emits the label (with
        deduplication, that it begins it); each row sums to 1.

    Raises:
        ValueError: if no path spells the labels, or the lattice knows no times.
    """
    if isinstance(lattice.alignment, LabelDependent):
        raise ValueError(
            "a label-dependent lattice aligns each label to all frames: it has no times"
        )
    count = len(frames)
    given = torch.tensor(list(labels), dtype=torch.int64)
    if not len(given):
        return torch.zeros(0, count, dtype=torch.float64)
    recursion, is_skewed = lattice.recursion_of(frames, count, given)
    num_steps = count + len(given) if is_skewed else count
    emitted = posteriors(recursion, num_steps).lexical[0, :, : len(given), 0].double().T
    if is_skewed:  # step t + u of label u is frame t
        place = torch.arange(count) + torch.arange(len(given))[:, None]
        emitted = emitted.gather(1, place)
    total = emitted.sum(1, keepdim=True)
    if not bool((total > 0.5).all()):
        raise ValueError(f"no path over {count} frames spells the {len(given)} labels")
    return emitted / total


def emission_frames(
    lattice: RecognitionLattice, frames: Tensor, labels: Sequence[int]
) -> list[int]:
    """The frame of each label: the median of its posterior, given these labels.

    The median is at the least expected distance from the true frame. It never goes back from one
    label to the next, as the most probable frames of single labels may.

    Args:
        lattice: a lattice that moves along frames.
        frames: [num_frames, input_size] of one utterance.
        labels: in 1..vocab_size.

    Raises:
        ValueError: if no path spells the labels, or the lattice knows no times.
    """
    cumulative = emission_posteriors(lattice, frames, labels).cumsum(1)
    # Half of the mass, but for the rounding of the sums.
    medians: list[int] = (cumulative < 0.5 - 1e-9).sum(1).tolist()
    return medians
