"""Confidences, times and minimum risk against the list of all paths."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import midge
from cases import CASES, Case, random_frames
from midge.decoding.confidence import (
    Confidence,
    Posterior,
    confidences,
    emission_frames,
    emission_posteriors,
    with_confidence,
)
from midge.decoding.errors import count_errors
from midge.decoding.exact import sum_path
from midge.decoding.risk import expected_errors, least_risk
from midge.models import TimedWord

KINDS = [
    case
    for case in CASES
    if case.context_name == "1-gram" and not case.alignment_name.startswith("label:")
]


def everything(case: Case, seed: int):
    """Frames, and the probability of every label sequence."""
    frames = random_frames(case, seed=seed)
    oracle = case.enumeration(frames, len(frames))
    log_z = oracle.log_z()
    truth = {
        labels: math.exp(oracle.log_z(labels) - log_z)
        for labels in oracle.spelled()
        if oracle.log_z(labels) > -math.inf
    }
    return frames, truth


def plain_matches(answer, other):
    """Which places of the answer some best alignment pairs with an equal, by trying all subsets.

    Only where all best alignments agree; None where they differ.
    """
    best = None
    found = set()
    for size in range(min(len(answer), len(other)), -1, -1):
        for places in itertools.combinations(range(len(answer)), size):
            for targets in itertools.combinations(range(len(other)), size):
                cost = _cost(answer, other, places, targets)
                equal = tuple(
                    p for p, t in zip(places, targets, strict=True) if answer[p] == other[t]
                )
                key = (cost, -len(equal))
                if best is None or key < best:
                    best, found = key, {equal}
                elif key == best:
                    found.add(equal)
    return found.pop() if len(found) == 1 else None


def _cost(answer, other, places, targets):
    wrong = sum(answer[p] != other[t] for p, t in zip(places, targets, strict=True))
    return wrong + len(answer) + len(other) - 2 * len(places)


@pytest.mark.parametrize("case", KINDS[::4], ids=str)
def test_confidence_is_the_sum_over_matching_sequences(case):
    frames, truth = everything(case, seed=1)
    found = sum_path(
        case.lattice(), frames, torch.tensor(len(frames)), num_best=10**6, max_expansions=None
    )
    posterior = Posterior.of_logs((each.labels, each.log_probability) for each in found.sequences)
    assert posterior.unexplored == pytest.approx(0.0, abs=1e-9)
    answer = max(truth, key=truth.get)
    least, most = [0.0] * len(answer), [0.0] * len(answer)
    for labels, share in truth.items():
        matches = plain_matches(answer, labels)
        for place in range(len(answer)):
            least[place] += share * (matches is not None and place in matches)
            most[place] += share * (matches is None or place in matches)
    for each, low, high in zip(confidences(answer, posterior), least, most, strict=True):
        assert low - 1e-9 <= each.value <= high + 1e-9
        assert each.low == pytest.approx(each.value) and each.high == pytest.approx(each.value)


def test_the_interval_holds_the_truth_whatever_is_unexplored():
    case = Case("1-gram", "frame", "softmax")
    frames, truth = everything(case, seed=3)
    order = sorted(truth, key=truth.get, reverse=True)
    whole = confidences(order[0], Posterior({y: truth[y] for y in order}))
    generator = torch.Generator().manual_seed(0)
    drawn = case.lattice().sample(frames, torch.tensor(len(frames)), 2000, generator).labels()
    samples = [tuple(labels) for labels in drawn]
    for count in (0, 1, 3, 10):
        known = {y: truth[y] for y in order[:count]}
        for given_samples, error in ((samples, 0.04), ((), 1.0)):
            partial = confidences(order[0], Posterior(known, given_samples))
            for mine, true in zip(partial, whole, strict=True):
                assert mine.low - 1e-9 <= true.value <= mine.high + 1e-9
                assert mine.low <= mine.value <= mine.high + 1e-12
                assert (
                    mine.high - mine.low == pytest.approx(Posterior(known).unexplored, abs=1e-9)
                    or mine.high == 1.0
                )
                assert abs(mine.value - true.value) < error


def test_words_of_several_spellings_are_one():
    """Two label sequences that spell the same words are no rivals."""
    words = {(1, 2): ["AB"], (3,): ["AB"], (1, 4): ["A", "D"]}
    posterior = Posterior({(1, 2): 0.4, (3,): 0.35, (1, 4): 0.25})
    (found,) = confidences((1, 2), posterior, words.__getitem__)
    assert found == Confidence(0.75, 0.75, 0.75)
    (word,) = with_confidence([TimedWord("AB", 0.0, 1.0)], [found])
    assert word == TimedWord("AB", 0.0, 1.0, 0.75)


@pytest.mark.parametrize("known", [{(1,): 1.2}, {(1,): -0.1}, {(1,): 0.7, (2,): 0.7}], ids=str)
def test_what_is_no_distribution_is_refused(known):
    with pytest.raises(ValueError, match="known should"):
        Posterior(known)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_emission_posteriors_are_shares_of_paths(case):
    frames, truth = everything(case, seed=5)
    lattice = case.lattice()
    oracle = case.enumeration(frames, len(frames))
    for answer in sorted(truth, key=truth.get, reverse=True)[:3]:
        expected = torch.zeros(len(answer), len(frames), dtype=torch.float64)
        for path in oracle.spelling(answer):
            share = math.exp(path.weight - oracle.log_z(answer))
            for place, frame in enumerate(_emitting_frames(path, case.deduplicate)):
                expected[place, frame] += share
        found = emission_posteriors(lattice, frames, answer)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        medians = emission_frames(lattice, frames, answer)
        assert medians == sorted(medians)
        for place, median in enumerate(medians):
            assert float(expected[place, : median + 1].sum()) >= 0.5 - 1e-6
            assert float(expected[place, :median].sum()) <= 0.5 + 1e-6


def _emitting_frames(path, deduplicate):
    before = [0, *path.symbols]
    return [
        step
        for (step, _, symbol), last in zip(path.arcs, before, strict=False)
        if symbol != 0 and not (deduplicate and symbol == last)
    ]


def test_times_with_unbounded_history_and_labels_per_frame():
    torch.manual_seed(0)
    lattice = midge.named_model("hat").build(
        vocab_size=3, input_size=4, hidden_size=5, embedding_size=3, rnn_size=6
    )
    frames = 2 * torch.randn(5, 4)
    labels = torch.tensor([1, 3])
    found = emission_posteriors(lattice, frames, labels.tolist())
    marginals = lattice.arc_marginals(frames, torch.tensor(5), labels, torch.tensor(2))
    # With full history the states of the marginals are the label positions.
    expected = torch.stack([marginals.lexical[:, u, y - 1] for u, y in enumerate(labels)])
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=1e-6)
    assert emission_frames(lattice, frames, []) == []


def test_times_that_are_not_there_are_refused():
    context = midge.FullNGram(2, 1)
    weights = midge.TableWeights(context)
    frames = torch.zeros(3, weights.input_size)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
    with pytest.raises(ValueError, match="no path over 3 frames spells the 4 labels"):
        emission_frames(lattice, frames, [1, 2, 1, 2])
    lattice = midge.RecognitionLattice(context, midge.LabelDependent(3), weights)
    with pytest.raises(ValueError, match="no times"):
        emission_frames(lattice, frames, [1])


@st.composite
def posteriors(draw):
    sequences = draw(
        st.lists(
            st.lists(st.integers(1, 3), max_size=4).map(tuple), min_size=1, max_size=6, unique=True
        )
    )
    weights = [draw(st.floats(0.01, 1.0)) for _ in sequences]
    share = draw(st.floats(0.3, 1.0))
    known = {y: share * w / sum(weights) for y, w in zip(sequences, weights, strict=True)}
    return Posterior(known, draw(st.lists(st.sampled_from([(1,), (2, 2), (3, 1, 3)]), max_size=3)))


@settings(deadline=None, max_examples=60)
@given(posteriors())
def test_no_candidate_has_less_risk(posterior):
    found = least_risk(posterior)
    shares = posterior.shares()
    total = sum(share for _, share in shares)

    def risk(candidate):
        return sum(p * count_errors(y, candidate).num_errors for y, p in shares) / total

    risks = {labels: risk(labels) for labels, _ in shares}
    assert found.num_errors == pytest.approx(min(risks.values()))
    assert risks[found.labels] == pytest.approx(found.num_errors)
    assert found.num_errors_of_first == pytest.approx(risks[shares[0][0]])


@pytest.mark.parametrize("case", [Case("1-gram", "frame"), Case("2-gram", "frame", "softmax")])
def test_least_risk_over_the_whole_lattice(case):
    frames, truth = everything(case, seed=7)
    found = sum_path(
        case.lattice(), frames, torch.tensor(len(frames)), num_best=10**6, max_expansions=None
    )
    posterior = Posterior.of_logs((each.labels, each.log_probability) for each in found.sequences)
    chosen = least_risk(posterior)
    risks = {
        y: sum(p * count_errors(other, y).num_errors for other, p in truth.items()) for y in truth
    }
    assert risks[chosen.labels] == pytest.approx(min(risks.values()), abs=1e-9)


def test_risk_by_words_and_by_labels_may_differ():
    words = {(1, 1): "AA", (1, 2): "AB", (2, 2): "BB", (3,): "C D"}
    posterior = Posterior({(1, 1): 0.34, (2, 2): 0.33, (1, 2): 0.33})
    assert least_risk(posterior).labels == (1, 2)
    by_words = least_risk(posterior, lambda labels: words[labels].split())
    assert by_words.labels == (1, 1) and by_words.num_errors == pytest.approx(0.66)


def test_no_sequence_has_no_risk():
    with pytest.raises(ValueError, match="at least one sequence"):
        least_risk(Posterior({}))
    with pytest.raises(ValueError, match="above 0"):
        expected_errors("a", [(("a",), 0.0)])
