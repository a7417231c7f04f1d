"""Calibration figures against their definitions."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.decoding.calibration import (
    LEAST_DOUBT,
    Bin,
    Judged,
    calibration,
    judged_answer,
    judged_words,
    reliability_picture,
)
from midge.decoding.evaluation import Evaluation, UtteranceResult
from midge.models import TimedWord

WORDS = st.lists(st.builds(Judged, st.floats(0.0, 1.0), st.booleans()), max_size=30)


@settings(deadline=None, max_examples=80)
@given(WORDS, st.integers(1, 12))
def test_figures_are_what_they_are_called(words, num_bins):
    found = calibration(words, num_bins)
    assert sum(each.num_words for each in found.bins) == found.num_words == len(words)
    if not words:
        assert math.isnan(found.ece) and math.isnan(found.nce) and math.isnan(found.share_right)
        return
    gap = 0.0
    for number, each in enumerate(found.bins):
        last = number == num_bins - 1
        members = [
            word
            for word in words
            if each.low <= word.confidence and (word.confidence < each.high or last)
        ]
        assert each.num_words == len(members)
        if members:
            gap += abs(sum(word.confidence - word.is_right for word in members))
    assert found.ece == pytest.approx(gap / len(words), abs=1e-12)
    assert 0.0 <= found.ece <= 1.0


@settings(deadline=None, max_examples=80)
@given(WORDS)
def test_cross_entropy_is_relative_to_the_share(words):
    found = calibration(words)
    num_right = sum(word.is_right for word in words)
    if num_right in (0, len(words)):
        assert math.isnan(found.nce)
        return
    share = num_right / len(words)
    base = num_right * math.log2(share) + (len(words) - num_right) * math.log2(1 - share)
    total = 0.0
    for word in words:
        sure = min(max(word.confidence, LEAST_DOUBT), 1 - LEAST_DOUBT)
        total += math.log2(sure) if word.is_right else math.log2(1 - sure)
    assert found.nce == pytest.approx((total - base) / -base, abs=1e-9)
    constant = calibration([Judged(share, word.is_right) for word in words])
    assert constant.nce == pytest.approx(0.0, abs=1e-9)
    known = calibration([Judged(float(word.is_right), word.is_right) for word in words])
    assert known.nce == pytest.approx(1.0, abs=1e-4) and known.ece == 0.0


def result(reference, *words):
    timed = tuple(TimedWord(text, 0.0, 1.0, sure) for text, sure in words)
    return UtteranceResult(
        id="u",
        reference=reference,
        hypothesis=" ".join(text for text, _ in words),
        seconds=1.0,
        words=timed,
    )


def test_words_of_an_evaluation_are_judged_by_alignment():
    results = (
        result("ONE TWO THREE", ("ONE", 0.9), ("TOO", 0.4), ("THREE", 0.8), ("THREE", 0.3)),
        result("FOUR"),
        result("", ("FIVE", 0.1)),
    )
    found = judged_words(Evaluation(results=results, decode_seconds=0.0))
    assert sum(word.is_right for word in found) == 2 and len(found) == 5
    assert found[0] == Judged(0.9, True) and found[1] == Judged(0.4, False)
    assert found[-1] == Judged(0.1, False)


def test_words_without_confidence_are_named():
    evaluation = Evaluation(results=(result("ONE", ("ONE", None)),), decode_seconds=0.0)
    with pytest.raises(ValueError, match="utterance u: the word 'ONE' has no confidence"):
        judged_words(evaluation)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_confidences_are_probabilities(wrong):
    with pytest.raises(ValueError, match="between 0 and 1"):
        calibration([Judged(wrong, True)])
    with pytest.raises(ValueError, match="num_bins should be"):
        calibration([], num_bins=0)


def test_table_and_picture(tmp_path):
    words = [Judged(0.95, True)] * 9 + [Judged(0.95, False), Judged(0.35, False), Judged(1.0, True)]
    found = calibration(words)
    lines = found.table().splitlines()
    assert lines[0].startswith("12 words, 83.3% right, mean confidence 90.4%")
    assert lines[-1].split() == ["0.90", "to", "1.00", "11", "95.5%", "90.9%"]
    assert lines[3].split() == ["0.00", "to", "0.10", "0", "-", "-"]
    reliability_picture(found, "a model").savefig(tmp_path / "reliability.png")
    assert (tmp_path / "reliability.png").stat().st_size > 1000
    reliability_picture(calibration([])).savefig(tmp_path / "empty.svg")


def test_the_interval_of_a_bin_holds_its_share_and_shrinks():
    for share in (0.0, 0.3, 1.0):
        narrow, wide = (Bin(0.2, 0.4, count, 0.3, share).interval() for count in (1000, 10))
        assert 0.0 <= wide[0] <= narrow[0] <= share <= narrow[1] <= wide[1] <= 1.0
        assert narrow[1] - narrow[0] < 0.1 * math.sqrt(10) * (wide[1] - wide[0])
    assert Bin(0.2, 0.4, 0, math.nan, math.nan).interval() == (0.0, 1.0)


def test_a_partial_answer_misses_nothing_that_was_not_yet_said():
    words = [TimedWord(text, 0.0, 1.0, 0.5) for text in ("SIX", "TOO")]
    reference = "SIX TWO SIX TOO".split()
    partial = judged_answer(reference, words, is_partial=True)
    assert [each.is_right for each in partial] == [True, False]
    # Compared with everything that was said, the second word would be the fourth.
    assert [each.is_right for each in judged_answer(reference, words)] == [True, True]


@given(st.lists(st.sampled_from("AB"), max_size=5), st.integers(0, 5))
def test_a_right_beginning_is_right(reference, size):
    words = [TimedWord(text, 0.0, 1.0, 0.5) for text in reference[:size]]
    assert all(each.is_right for each in judged_answer(reference, words, is_partial=True))
