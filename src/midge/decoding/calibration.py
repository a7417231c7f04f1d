"""Whether confidences can be believed: of the words said to be right at 80 %, are 80 % right?

A report is made from pairs of a confidence and whether the word was right, as an evaluation has
them. Three figures tell different things. The expected calibration error (ECE) is how far
confidence and truth are apart, bin by bin. The normalized cross entropy (NCE, NIST) is how much the
confidences tell beyond the overall share of right words: 1 is everything, 0 is nothing, below 0 is
worse than nothing. The reliability table shows where they go wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from midge.decoding.confidence import share_interval
from midge.decoding.errors import align, count_errors
from midge.decoding.evaluation import Evaluation, UtteranceResult
from midge.drawing.canvas import require_matplotlib
from midge.models import TimedWord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_BINS = 10
COLOUR = "#0b6e99"
"""Of pictures, unless another is asked for."""
LEAST_DOUBT = 1e-6
"""A confidence is taken as no surer than this in the cross entropy, where 0 and 1 weigh infinitely.

A single wrong word with confidence 1 would otherwise be the whole figure."""


@dataclass(frozen=True)
class Judged:
    """A recognized word with its confidence, and whether it was right."""

    confidence: float
    """The probability that it is right, as it was said."""
    is_right: bool
    """Whether it was."""


@dataclass(frozen=True)
class Bin:
    """The words whose confidences lie between two bounds."""

    low: float
    """The least confidence."""
    high: float
    """The confidence of the next bin; in the last bin it belongs to it."""
    num_words: int
    """How many there are."""
    mean_confidence: float
    """NaN without words."""
    share_right: float
    """NaN without words."""

    def interval(self) -> tuple[float, float]:
        """Where the share of right words may lie, at 95 % (Wilson); all of 0..1 without words.

        Example:
            >>> low, high = Bin(0.8, 0.9, 10, 0.85, 1.0).interval()
            >>> round(low, 2), round(high, 2)
            (0.72, 1.0)
        """
        if not self.num_words:
            return 0.0, 1.0
        return share_interval(self.share_right, self.num_words)


@dataclass(frozen=True)
class Calibration:
    """How far the confidences of a set of words can be believed."""

    num_words: int
    """How many there are."""
    share_right: float
    """Of all words; NaN without any."""
    mean_confidence: float
    """Of all words; NaN without any."""
    ece: float
    """Expected calibration error: mean distance of confidence and truth over bins; 0 is best."""
    nce: float
    """Normalized cross entropy: 1 is best; NaN if all words are right, or all wrong."""
    bins: tuple[Bin, ...]
    """The reliability table, from 0 to 1."""

    def table(self) -> str:
        """The figures and the reliability table as plain text."""
        lines = [
            f"{self.num_words} words, {_percent(self.share_right)} right, mean confidence "
            f"{_percent(self.mean_confidence)}; ECE {_percent(self.ece)}, NCE {self.nce:.3f}",
            "",
            "confidence       words   mean  right",
        ]
        for each in self.bins:
            mean, right = _percent(each.mean_confidence), _percent(each.share_right)
            between = f"{each.low:.2f} to {each.high:.2f}"
            lines.append(f"{between}  {each.num_words:>7} {mean:>6} {right:>6}")
        return "\n".join(lines)


def judged_words(evaluation: Evaluation) -> list[Judged]:
    """Every recognized word of an evaluation, with its confidence and whether it was right.

    A word is right if the alignment of least edit distance pairs it with an equal one. Words that
    were missed have no confidence, and are not here.

    Raises:
        ValueError: for a word without confidence; names the utterance.
    """
    return [word for result in evaluation.results for word in _judged(result)]


def _judged(result: UtteranceResult) -> list[Judged]:
    try:
        return judged_answer(result.reference.split(), result.words)
    except ValueError as error:
        raise ValueError(f"utterance {result.id}: {error}") from None


def judged_answer(
    reference: Sequence[str], words: Sequence[TimedWord], *, is_partial: bool = False
) -> list[Judged]:
    """The words of one answer with their confidences, and whether they are right.

    Args:
        reference: the true words.
        words: the answer.
        is_partial: whether more was to come. The answer is then compared with so many words of the
            reference, from the first on, as fit it best: what was not yet said is not missed.

    Raises:
        ValueError: for a word without confidence.

    Example:
        >>> shown = [TimedWord("SIX", 0.1, 0.4, 0.9)]
        >>> judged_answer(["SIX", "SIX", "TWO"], shown, is_partial=True)
        [Judged(confidence=0.9, is_right=True)]
    """
    heard = [word.text for word in words]
    if is_partial:
        sizes = range(len(reference) + 1)
        errors = [count_errors(reference[:size], heard).num_errors for size in sizes]
        reference = reference[: errors.index(min(errors))]
    pairs = (pair for pair in align(reference, heard) if pair.hypothesis is not None)
    judged = []
    for word, pair in zip(words, pairs, strict=True):
        if word.confidence is None:
            raise ValueError(f"the word {word.text!r} has no confidence; decode with them")
        judged.append(Judged(word.confidence, pair.operation == "="))
    return judged


def calibration(words: Sequence[Judged], num_bins: int = NUM_BINS) -> Calibration:
    """Compares confidences with what was right.

    Args:
        words: at least none; those of all utterances together.
        num_bins: number of bins of equal width between 0 and 1.

    Raises:
        ValueError: for a confidence outside of 0..1, or no bin.

    Example:
        >>> words = [Judged(0.9, True)] * 8 + [Judged(0.9, False)] * 2
        >>> found = calibration(words)
        >>> round(found.ece, 3), round(found.share_right, 3)
        (0.1, 0.8)
    """
    if num_bins < 1:
        raise ValueError(f"num_bins should be at least 1, got {num_bins}")
    said = np.array([word.confidence for word in words], dtype=np.float64)
    right = np.array([word.is_right for word in words], dtype=np.float64)
    if not bool(((said >= 0.0) & (said <= 1.0)).all()):
        wrong = said[~((said >= 0.0) & (said <= 1.0))][0]
        raise ValueError(f"confidences should be between 0 and 1, got {wrong}")
    bins = _bins(said, right, num_bins)
    gaps = [b.num_words * abs(b.mean_confidence - b.share_right) for b in bins if b.num_words]
    return Calibration(
        num_words=len(words),
        share_right=_mean(right),
        mean_confidence=_mean(said),
        ece=math.fsum(gaps) / len(words) if words else math.nan,
        nce=_normalized_cross_entropy(said, right),
        bins=bins,
    )


_Floats = npt.NDArray[np.float64]


def _bins(said: _Floats, right: _Floats, num_bins: int) -> tuple[Bin, ...]:
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    place = np.clip(np.searchsorted(edges, said, side="right") - 1, 0, num_bins - 1)
    return tuple(
        Bin(
            low=float(edges[number]),
            high=float(edges[number + 1]),
            num_words=int((place == number).sum()),
            mean_confidence=_mean(said[place == number]),
            share_right=_mean(right[place == number]),
        )
        for number in range(num_bins)
    )


def _normalized_cross_entropy(said: _Floats, right: _Floats) -> float:
    """(H(base) - H(confidences)) / H(base), where base says the overall share for every word."""
    share = _mean(right)
    if not 0.0 < share < 1.0:
        return math.nan
    base = -(share * math.log(share) + (1.0 - share) * math.log(1.0 - share))
    sure = np.clip(said, LEAST_DOUBT, 1.0 - LEAST_DOUBT)
    entropy = -float(np.mean(np.where(right > 0.0, np.log(sure), np.log1p(-sure))))
    return (base - entropy) / base


def _mean(x: _Floats) -> float:
    return float(x.mean()) if len(x) else math.nan


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if math.isfinite(share) else "-"


def reliability_picture(found: Calibration, title: str = "") -> Figure:
    """Share of right words against confidence, bin by bin, with how many words there are.

    Args:
        found: the calibration.
        title: written above.

    Returns:
        A figure; `savefig` writes it.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 5.5), layout="constrained")
    shares, counts = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    draw_reliability(shares, counts, found)
    shares.set(ylabel="share of right words", title=title)
    shares.legend(loc="upper left", frameon=False)
    counts.set(xlabel="confidence", ylabel="words")
    return figure


def draw_reliability(shares: Axes, counts: Axes, found: Calibration, colour: str = COLOUR) -> None:
    """Draws the share of right words against confidence, and below how many words there are.

    Args:
        shares: the upper axes.
        counts: the lower axes.
        found: the calibration.
        colour: of the curve and the bars.
    """
    filled = [each for each in found.bins if each.num_words]
    shares.plot([0, 1], [0, 1], color="#8a8a8a", linewidth=1, linestyle="--", label="perfect")
    ends = np.array([each.interval() for each in filled]).reshape(-1, 2)
    right = np.array([each.share_right for each in filled])
    nce = f"{found.nce:.2f}" if math.isfinite(found.nce) else "-"
    shares.errorbar(
        [each.mean_confidence for each in filled],
        right,
        yerr=np.stack([right - ends[:, 0], ends[:, 1] - right]),
        color=colour,
        marker="o",
        elinewidth=1,
        clip_on=False,
        label=f"ECE {_percent(found.ece)}, NCE {nce}",
    )
    shares.set(xlim=(0, 1), ylim=(0, 1))
    counts.bar(
        [each.low for each in found.bins],
        [each.num_words for each in found.bins],
        width=[each.high - each.low for each in found.bins],
        align="edge",
        color=colour,
        edgecolor="white",
    )
