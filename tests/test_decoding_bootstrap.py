import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.decoding import (
    Interval,
    Units,
    bootstrap,
    confidence_interval,
    difference,
    error_rate,
    interaction,
    relative_difference,
)


def all_draws(counts, statistic):
    """The figure of every possible draw: all are equally probable."""
    units = range(len(counts))
    return np.sort(
        [
            statistic(counts[list(draw)].sum(0))
            for draw in itertools.product(units, repeat=len(units))
        ]
    )


def test_the_interval_is_that_of_all_possible_draws():
    counts = np.array([[1, 10], [4, 12], [0, 8], [6, 9], [2, 11]], dtype=float)
    every = all_draws(counts, error_rate)  # 5^5
    found = confidence_interval(counts, error_rate, num_draws=20_000)
    assert found.estimate == 13 / 50
    assert every[int(0.02 * len(every))] <= found.low <= every[int(0.03 * len(every))]
    assert every[int(0.97 * len(every))] <= found.high <= every[int(0.98 * len(every))]
    drawn = bootstrap.draws(counts, error_rate, num_draws=20_000)
    assert np.isin(drawn.round(12), every.round(12)).all()
    assert drawn.mean() == pytest.approx(every.mean(), abs=0.003)


def test_an_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(1)
    covered = 0
    for trial in range(300):
        counts = np.stack([generator.binomial(20, 0.2, size=60), np.full(60, 20)], axis=1)
        found = confidence_interval(counts, error_rate, num_draws=400, level=0.9, seed=trial)
        covered += found.low <= 0.2 <= found.high
    assert 0.84 <= covered / 300 <= 0.96


def test_speakers_vary_more_than_their_utterances():
    """Errors that go by speaker: drawing utterances would claim too much."""
    speakers = [name for name in "abcdef" for _ in range(20)]
    counts = np.array([[5 if name < "d" else 0, 10] for name in speakers])
    by_speaker = Units.of_speakers(speakers)
    by_utterance = Units.of_speakers([None] * len(speakers))
    wide = confidence_interval(by_speaker.sums(counts), error_rate)
    narrow = confidence_interval(by_utterance.sums(counts), error_rate)
    assert wide.estimate == narrow.estimate == 0.25
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_units_say_what_they_are():
    for speakers, number, words in [
        (["a", "b", "a"], 2, "2 speakers"),
        (["a", None, "b", ""], 4, "2 speakers and 2 utterances of unknown speakers"),
        ([None, None], 2, "2 utterances of unknown speakers"),
        (["a", "a", "a"], 3, "3 utterances of one speaker"),
        (["a", None], 2, "2 utterances of unknown speakers"),
        ([], 0, "0 utterances of unknown speakers"),
    ]:
        units = Units.of_speakers(speakers)
        assert (units.num_units, units.description) == (number, words)


def test_units_add_up_what_belongs_together():
    units = Units.of_speakers(["b", None, "a", "b"])
    assert units.sums([[1, 2], [3, 4], [5, 6], [7, 8]]).tolist() == [[5, 6], [8, 10], [3, 4]]
    with pytest.raises(ValueError, match="counts should be of 4 utterances, got 1"):
        units.sums([[1, 2]])


COUNTS = st.lists(st.tuples(*[st.integers(0, 5)] * 4, st.integers(1, 9)), min_size=1, max_size=12)


@given(COUNTS)
@settings(deadline=None, max_examples=40)
def test_a_pair_of_equal_systems_does_not_differ(rows):
    counts = np.array([[[row[0], row[4]], [row[0], row[4]]] for row in rows])
    assert confidence_interval(counts, difference, num_draws=50) == Interval(0.0, 0.0, 0.0)


@given(COUNTS)
@settings(deadline=None, max_examples=40)
def test_exchange_turns_a_difference(rows):
    counts = np.array([[[row[0], row[4]], [row[1], row[4]]] for row in rows], dtype=float)
    there = bootstrap.draws(counts, difference, num_draws=50)
    back = bootstrap.draws(counts[:, ::-1], difference, num_draws=50)
    assert (there == -back).all()


@given(COUNTS)
@settings(deadline=None, max_examples=40)
def test_an_interaction_is_a_difference_of_differences(rows):
    counts = np.array(
        [
            [[[row[0], row[4]], [row[1], row[4]]], [[row[2], row[4]], [row[3], row[4]]]]
            for row in rows
        ],
        dtype=float,
    )
    drawn = bootstrap.draws(counts, interaction, num_draws=50, seed=3)
    at_0 = bootstrap.draws(counts[:, 0], difference, num_draws=50, seed=3)
    at_1 = bootstrap.draws(counts[:, 1], difference, num_draws=50, seed=3)
    assert drawn == pytest.approx(at_1 - at_0)


def test_a_relative_difference_is_per_rate_of_the_first():
    assert relative_difference(np.array([[20.0, 100], [15.0, 100]])) == pytest.approx(-0.25)
    found = confidence_interval(np.array([[[2, 10], [1, 10]]] * 3), relative_difference)
    assert found == Interval(-0.5, -0.5, -0.5)
    assert found.excludes_zero
    assert not Interval(-0.1, -0.2, 0.0).excludes_zero


def test_draws_that_are_paired_are_narrower():
    generator = np.random.default_rng(0)
    hard = generator.integers(0, 10, size=30)
    counts = np.stack(
        [np.stack([hard, 20 + 0 * hard], 1), np.stack([hard + 1, 20 + 0 * hard], 1)], 1
    )
    found = confidence_interval(counts, difference)
    alone = confidence_interval(counts[:, 0], error_rate)
    assert found.low == pytest.approx(0.05) and found.high == pytest.approx(0.05)
    assert alone.high - alone.low > 0.05


def test_a_seed_fixes_the_interval_and_another_one_does_not():
    counts = np.random.default_rng(2).integers(0, 9, size=(40, 2)) + [0, 10]
    once, again, other = (confidence_interval(counts, error_rate, seed=s) for s in (5, 5, 6))
    assert once == again != other


def test_many_units_are_drawn_in_blocks(monkeypatch):
    counts = np.random.default_rng(2).integers(0, 9, size=(50, 2)) + [0, 10]
    monkeypatch.setattr(bootstrap, "_BLOCK_SIZE", 170)
    drawn = bootstrap.draws(counts, error_rate, num_draws=100)
    assert drawn.shape == (100,) and len(set(drawn.tolist())) > 50


def test_nothing_gives_no_interval_and_no_warning():
    found = confidence_interval(np.zeros((0, 2)), error_rate)
    assert math.isnan(found.estimate) and math.isnan(found.low)
    assert confidence_interval([[0, 0]], error_rate) == Interval(0.0, 0.0, 0.0)
    assert confidence_interval([[1, 0]], error_rate) == Interval(math.inf, math.inf, math.inf)
    undefined = confidence_interval([[[0, 5], [0, 5]]], relative_difference)
    assert math.isnan(undefined.estimate) and math.isnan(undefined.high)


@pytest.mark.parametrize("options", [{"num_draws": 0}, {"level": 0.0}, {"level": 95}])
def test_options_out_of_range_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} should be"):
        confidence_interval([[1, 2]], error_rate, **options)
