"""Tallies, pools and contrasts: what the bootstrap is drawn from is what was counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.decoding.bootstrap import confidence_interval, error_rate, interaction
from midge.decoding.evaluation import Evaluation, UtteranceResult
from midge.experiments.contrasts import contrasts, pools, share_closed
from midge.experiments.grid import Contrast, EvaluationPlan, Grid
from midge.experiments.tallies import (
    SENTENCES,
    added,
    interval_json,
    nearest_word,
    paired,
    rate,
    rates_json,
    tallies,
)

WORDS = ("A", "B", "ONE", "TWO")
PLAN = EvaluationPlan(manifest="m")
texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)


def evaluation_of(*utterances):
    """From (reference, hypothesis, speaker, *groups)."""
    results = tuple(
        UtteranceResult(
            id=f"u{number}",
            reference=reference,
            hypothesis=hypothesis,
            seconds=1.0,
            speaker=speaker,
            groups=groups,
        )
        for number, (reference, hypothesis, speaker, *groups) in enumerate(utterances)
        for groups in [tuple(groups)]
    )
    return Evaluation(results=results, decode_seconds=1.0)


def test_errors_are_counted_by_group_and_speaker():
    found = tallies(
        evaluation_of(
            ("ONE TWO", "ONE", "ann", "clean"),
            ("TWO", "TWO", "ben", "clean"),
            ("A B", "A B ONE", "ann"),
        ),
        PLAN,
    )
    assert found == {
        "all": {"ann": [2, 4, 2, 2], "ben": [0, 1, 0, 1]},
        "clean": {"ann": [1, 2, 1, 1], "ben": [0, 1, 0, 1]},
    }


@pytest.mark.parametrize("speakers", [("ann", "ann"), (None, None), ("ann", None)])
def test_utterances_without_other_speakers_count_for_themselves(speakers):
    found = tallies(evaluation_of(*(("ONE", "TWO", who) for who in speakers)), PLAN)
    assert sorted(found["all"]) == ["u0", "u1"]


def test_letters_and_other_words_are_counted_apart():
    plan = EvaluationPlan(manifest="m", has_letters_apart=True)
    found = tallies(evaluation_of(("A ONE B", "B ONE B TWO", "ann"), ("TWO", "", "ben")), plan)
    assert found["letters"] == {"ann": [1, 2, 1, 1]}
    assert found["other words"] == {"ann": [1, 1, 1, 1], "ben": [1, 1, 1, 1]}


@given(st.lists(st.tuples(texts, texts, st.sampled_from(["ann", "ben"])), min_size=1, max_size=6))
@settings(deadline=None)
def test_letters_and_other_words_are_all_words(utterances):
    plan = EvaluationPlan(manifest="m", has_letters_apart=True)
    found = tallies(evaluation_of(*utterances), plan)
    parts = added(found.get(kind, {}) for kind in ("letters", "other words"))
    everything = np.array(list(found["all"].values())).sum(0)
    assert np.array([*parts.values(), [0] * 4]).sum(0)[:2].tolist() == everything[:2].tolist()


@given(st.lists(st.tuples(texts, texts, st.sampled_from(["ann", "ben"])), min_size=2, max_size=6))
@settings(deadline=None, max_examples=25)
def test_rates_are_those_of_the_evaluation(utterances):
    evaluation = evaluation_of(*utterances)
    tally = tallies(evaluation, PLAN)["all"]
    for part, expected in ((slice(0, 2), "words"), (SENTENCES, "sentences")):
        mine, theirs = rate(tally, part), getattr(evaluation.rates[0], expected)
        np.testing.assert_equal(
            (mine.estimate, mine.low, mine.high), (theirs.estimate, theirs.low, theirs.high)
        )


def test_the_nearest_word_is_chosen_and_counted():
    digits = ("ONE", "TWO", "SEVEN")
    assert nearest_word("SEVE", digits) == "SEVEN"
    assert nearest_word("", digits) == "ONE"  # three letters each: the first
    plan = EvaluationPlan(manifest="m", words=digits)
    found = tallies(evaluation_of(("SEVEN", "SEVE", "ann"), ("TWO", "ONO", "ben")), plan)
    assert found["all"] == {"ann": [1, 1, 1, 1], "ben": [1, 1, 1, 1]}
    assert found["nearest word"] == {"ann": [0, 1, 0, 1], "ben": [1, 1, 1, 1]}


def test_systems_on_other_utterances_are_not_compared():
    ours = {"ann": [1, 4, 1, 1], "ben": [0, 2, 0, 1]}
    assert paired([ours, ours]).shape == (2, 2, 2)
    for other in ({"ann": [1, 4, 1, 1]}, {**ours, "ben": [0, 3, 0, 1]}, {**ours, "eve": [0] * 4}):
        with pytest.raises(ValueError, match="the same utterances"):
            paired([ours, other])


def test_a_rate_that_is_not_finite_is_null():
    found = rates_json({"all": {"ann": [1, 0, 1, 1], "ben": [1, 0, 1, 1]}})["all"]
    assert found["words"] == {"estimate": None, "low": None, "high": None}
    assert found["sentences"]["estimate"] == 1.0
    assert interval_json(rate({"ann": [1, 4, 0, 1]}))["estimate"] == 0.25


def test_the_papers_share_of_the_gap():
    # 2-gram, test-clean: streaming 4.9 locally and 3.8 globally, full context 2.8.
    sums = np.array([[[28, 1000], [28, 1000]], [[49, 1000], [38, 1000]]], dtype=np.float64)
    assert round(float(share_closed(sums)), 2) == 0.52
    assert np.isnan(share_closed(np.ones((2, 2, 2))))


AXES = {
    "encoder": ("full", "streaming"),
    "normalization": ("local", "global"),
    "fold": ("fold-1", "fold-2"),
}


def square(errors, folds=("fold-1", "fold-2")):
    """A grid, and records with these errors of each cell in 100 words of each speaker."""
    grid = Grid(
        name="square",
        description="",
        axes=AXES,
        rows=(),
        pooled="fold",
        contrast=Contrast(inner="normalization", outer="encoder"),
    )
    records = [
        {
            "values": {"encoder": encoder, "normalization": normalization, "fold": fold},
            "evaluations": {"test": {"tallies": {"all": tally}}},
        }
        for encoder in AXES["encoder"]
        for normalization in AXES["normalization"]
        for fold in folds
        for tally in [
            {f"{fold}-{who}": [errors[encoder, normalization] + who, 100, 1, 1] for who in range(5)}
        ]
    ]
    return grid, records


ERRORS = {
    ("full", "local"): 10,
    ("full", "global"): 10,
    ("streaming", "local"): 30,
    ("streaming", "global"): 20,
}


def test_the_square_is_what_the_bootstrap_says_of_all_folds_together():
    grid, records = square(ERRORS)
    (found,) = contrasts(grid, records)
    assert found.repeats == ("fold-1", "fold-2")
    assert found.rates["streaming"]["local"].estimate == pytest.approx(0.32)
    assert found.differences["full"].estimate == 0.0
    assert found.differences["streaming"].estimate == pytest.approx(-0.1)
    assert found.interaction.estimate == pytest.approx(-0.1)
    assert found.interaction.excludes_zero
    assert found.share_closed.estimate == pytest.approx(0.5)
    systems = [
        added(
            record["evaluations"]["test"]["tallies"]["all"]
            for record in records
            if (record["values"]["encoder"], record["values"]["normalization"]) == cell
        )
        for cell in ERRORS
    ]
    counts = paired(systems).reshape(10, 2, 2, 2)
    assert found.interaction == confidence_interval(counts, interaction)


def test_only_folds_that_have_all_cells_count():
    grid, records = square(ERRORS)
    (found,) = contrasts(grid, records[:-1])
    assert found.repeats == ("fold-1",)
    assert contrasts(grid, records[:4]) == []
    assert contrasts(grid, []) == []


def test_the_rows_of_a_pool_are_repetitions():
    grid, records = square(ERRORS)
    found = pools(grid, records)
    assert [pool.values for pool in found] == [
        {"encoder": encoder, "normalization": normalization} for encoder, normalization in ERRORS
    ]
    assert found[2].single_rates() == [pytest.approx(0.32)] * 2
    assert found[2].rate().estimate == pytest.approx(0.32)
    assert found[2].tally(["fold-1"]).keys() == {f"fold-1-{who}" for who in range(5)}


def test_without_an_outer_axis_there_is_no_interaction():
    grid, records = square(ERRORS)
    simple = Grid(
        name="pairs",
        description="",
        axes=AXES,
        rows=(),
        pooled="fold",
        contrast=Contrast(inner="normalization"),
    )
    found = contrasts(simple, records, "sentences")
    assert [each.values for each in found] == [{"encoder": "full"}, {"encoder": "streaming"}]
    assert found[0].interaction is None
    assert found[0].rates[""]["local"].estimate == 1.0
    assert found[0].measure == "sentences"


def test_pooled_sums_are_the_error_rate_of_all_words():
    grid, records = square(ERRORS)
    pool = pools(grid, records)[0]
    sums = np.array(list(pool.tally().values()), dtype=np.float64)[:, :2].sum(0)
    assert pool.rate().estimate == float(error_rate(sums))
