"""The exact sum-path search, and its certificate, against the list of all paths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import midge
from cases import CASES, Case, random_automaton, random_frames
from midge.decoding import prefixes
from midge.decoding.completions import completions, wide_lattice
from midge.decoding.exact import SumPath, has_one_path_each, sum_path
from midge.decoding.prefixes import PrefixArcs, linear_scan, log_sum
from oracles import Enumeration
from oracles import log_sum as log_sum_of
from tolerances import EXACT

ALL = {"num_best": 10**6, "max_expansions": None}
KINDS = sorted({(c.alignment_name, c.normalization, c.deduplicate) for c in CASES})
QUICK = {
    (*kind, ("1-gram", "random-0", "final-weights")[number % 3])
    for number, kind in enumerate(KINDS)
}
"""Every kind of lattice once; the same over other contexts is slow."""


def _is_quick(case: Case) -> bool:
    kind = (case.alignment_name, case.normalization, case.deduplicate)
    return (*kind, case.context_name) in QUICK


EVERY_KIND = [
    pytest.param(case, id=str(case), marks=[] if _is_quick(case) else [pytest.mark.slow])
    for case in CASES
]


def posterior(oracle: Enumeration) -> dict[tuple[int, ...], float]:
    """The log posterior probability of every label sequence."""
    weights: dict[tuple[int, ...], list[float]] = {}
    for path in oracle.paths:
        weights.setdefault(path.labels, []).append(path.weight)
    log_z = oracle.log_z()
    return {labels: log_sum_of(each) - log_z for labels, each in weights.items()}


def listed(found: SumPath) -> dict[tuple[int, ...], float]:
    return {each.labels: each.log_probability for each in found.sequences}


def some_utterance(case: Case, seed: int, scale: float = 1.5):
    """Frames, their number and all their paths."""
    frames = random_frames(case, seed=seed, scale=scale)
    num_frames = (len(frames), len(frames) - 1)[seed % 2]
    return frames, torch.tensor(num_frames), case.enumeration(frames, num_frames)


def assert_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for labels, value in expected.items():
        assert found[labels] == pytest.approx(value, rel=1e-9, abs=1e-9), labels


@pytest.mark.parametrize("case", EVERY_KIND)
def test_exhaustive_search_lists_every_sequence(case: Case):
    frames, num_frames, oracle = some_utterance(case, seed=2)
    found = sum_path(case.lattice(), frames, num_frames, **ALL)
    assert_same(listed(found), posterior(oracle))
    assert found.log_z == pytest.approx(oracle.log_z(), rel=1e-9, abs=1e-9)
    values = [each.log_probability for each in found.sequences]
    assert values == sorted(values, reverse=True)
    assert sum(map(math.exp, values)) == pytest.approx(1.0, abs=1e-12) or not oracle.paths
    assert found.is_proved and found.num_proved == len(found.sequences)
    assert found.log_open_bound == found.log_unexplored == -math.inf


@pytest.mark.parametrize("case", EVERY_KIND)
@pytest.mark.parametrize("seed", [0, 1])
def test_best_sequences_and_their_proof(case: Case, seed: int):
    frames, num_frames, oracle = some_utterance(case, seed, scale=(0.7, 3.0)[seed])
    truth = posterior(oracle)
    order = sorted(truth.values(), reverse=True)
    for num_best in (1, 3):
        found = sum_path(case.lattice(), frames, num_frames, num_best=num_best, max_expansions=None)
        assert found.is_proved and found.num_proved == len(found.sequences)
        values = [each.log_probability for each in found.sequences]
        np.testing.assert_allclose(values, order[:num_best], **EXACT)
        assert_same(listed(found), {each.labels: truth[each.labels] for each in found.sequences})


@pytest.mark.parametrize("case", EVERY_KIND)
def test_out_of_budget_nothing_wrong_is_said(case: Case):
    frames, num_frames, oracle = some_utterance(case, seed=4)
    truth = posterior(oracle)
    lattice = case.lattice()
    best_path = tuple(lattice.shortest_path(frames, num_frames).labels())
    for max_expansions in (1, 4, 9):
        seen = sum_path(lattice, frames, num_frames, num_best=10**6, max_expansions=max_expansions)
        assert seen.num_expansions <= max(max_expansions, 1 + len(best_path))
        unseen = [value for labels, value in truth.items() if labels not in listed(seen)]
        assert max(unseen, default=-math.inf) <= seen.log_open_bound + seen.rounding
        assert seen.log_unexplored == pytest.approx(log_sum_of(unseen), rel=1e-9, abs=1e-9)
        assert seen.is_proved == (not unseen)
        for proved, worse in zip(seen.sequences[: seen.num_proved], truth, strict=False):
            assert proved.log_probability >= max(unseen, default=-math.inf), worse
        if truth:
            assert seen.log_probability >= truth[best_path] - 1e-12


@pytest.mark.parametrize("case", EVERY_KIND)
def test_masses_and_bounds_of_all_prefixes(case: Case):
    frames, num_frames, oracle = some_utterance(case, seed=6)
    truth = posterior(oracle)
    lattice = wide_lattice(case.lattice())
    scorer = lattice.scorer(frames[: int(num_frames)])
    after = completions(lattice, scorer, int(num_frames))
    assert after.log_z == pytest.approx(oracle.log_z(), rel=1e-9, abs=1e-9)
    if not truth:
        return
    states = PrefixArcs(lattice, scorer, after)
    beginnings = {labels[:size] for labels in truth for size in range(len(labels) + 1)}

    def check(prefix, mass, arcs, forward):
        masses, bounds = arcs.masses(forward), arcs.bounds(forward)
        complete = arcs.complete(forward)
        assert complete == pytest.approx(truth.get(prefix, -math.inf), rel=1e-9, abs=1e-9)
        everything = log_sum(np.append(masses, complete), axis=0)
        assert everything == pytest.approx(mass, rel=1e-9, abs=1e-9)
        for label in range(1, 1 + len(masses)):
            longer = (*prefix, label)
            begun = [w for labels, w in truth.items() if labels[: len(longer)] == longer]
            assert masses[label - 1] == pytest.approx(log_sum_of(begun), rel=1e-9, abs=1e-9)
            assert bounds[label - 1] <= masses[label - 1] + 1e-12
            assert bounds[label - 1] >= max(begun, default=-math.inf) - 1e-12
            if begun:
                assert longer in beginnings
                reached = states[int(arcs.destination[label - 1])]
                check(
                    longer,
                    masses[label - 1],
                    reached,
                    reached.enter(arcs.entry(forward, label)),
                )

    start = states[states.start]
    check((), 0.0, start, start.begin())


@st.composite
def random_lattices(draw):
    """A lattice of any kind with table weights, and frames for it."""
    context = draw(
        st.one_of(
            st.builds(midge.FullNGram, st.integers(1, 4), st.integers(0, 2)),
            st.builds(random_automaton, st.integers(0, 50), st.integers(2, 5), st.integers(1, 3)),
        )
    )
    alignment = draw(
        st.sampled_from(
            [
                midge.FrameDependent(),
                midge.FrameDependent(allow_blank=False),
                midge.LabelFrameDependent(1),
                midge.LabelFrameDependent(2),
            ]
        )
    )
    norms = ("global", "softmax", "hat") if alignment.has_blank else ("global", "softmax")
    lattice = midge.RecognitionLattice(
        context,
        alignment,
        midge.TableWeights(context),
        normalization=draw(st.sampled_from(norms)),
        deduplicate=draw(st.booleans()),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    num_frames = draw(st.integers(5, 10))
    scale = draw(st.sampled_from([0.0, 0.3, 2.0, 8.0]))
    size = (num_frames, lattice.weights.input_size)
    return lattice, scale * torch.randn(size, generator=generator, dtype=torch.float64)


@settings(deadline=None, max_examples=12)
@given(random_lattices(), st.integers(1, 4))
def test_larger_lattices_agree_with_the_loss_and_with_samples(drawn, num_best):
    lattice, frames = drawn
    num_frames = torch.tensor(len(frames))
    found = sum_path(lattice, frames, num_frames, num_best=num_best, max_expansions=60)
    if not found.sequences:
        assert lattice.shortest_distance(frames, num_frames) == -math.inf
        return
    log_z = float(lattice.shortest_distance(frames, num_frames))
    assert found.log_z == pytest.approx(log_z, rel=1e-9, abs=1e-9)
    for each in found.sequences:
        expected = _log_probability(lattice, frames, each.labels, log_z)
        assert each.log_probability == pytest.approx(expected, rel=1e-9, abs=1e-9)
    best_path = lattice.shortest_path(frames, num_frames).labels()
    assert found.log_probability >= _log_probability(lattice, frames, best_path, log_z) - 1e-9
    seen = {each.labels for each in found.sequences}
    generator = torch.Generator().manual_seed(0)
    samples = lattice.sample(frames, num_frames, 20, generator=generator).labels()
    for labels in {tuple(labels) for labels in samples} - seen:
        value = _log_probability(lattice, frames, labels, log_z)
        if found.is_proved:
            assert value <= found.sequences[-1].log_probability + 1e-9
        assert value <= max(found.log_open_bound, found.sequences[-1].log_probability) + 1e-9


def _log_probability(lattice, frames, labels, log_z) -> float:
    """The log posterior probability by the lattice's own sum along the labels."""
    numerator = lattice.shortest_distance(
        frames,
        torch.tensor(len(frames)),
        labels=torch.tensor(labels, dtype=torch.int64),
        num_labels=torch.tensor(len(labels)),
    )
    return float(numerator) - log_z


@pytest.mark.parametrize("normalization", ["global", "softmax", "hat"])
@pytest.mark.parametrize("alignment", [midge.FrameDependent(), midge.LabelFrameDependent(2)])
@pytest.mark.parametrize("deduplicate", [False, True])
def test_float32_networks_give_the_probability_of_their_loss(normalization, alignment, deduplicate):
    torch.manual_seed(3)
    context = midge.FullNGram(4, 2)
    weights = midge.SharedRNNWeights(context, 6, 16, 5, 8)
    lattice = midge.RecognitionLattice(context, alignment, weights, normalization, deduplicate)
    frames = 3 * torch.randn(12, 6)
    found = sum_path(lattice, frames, torch.tensor(12), max_expansions=50)
    labels = torch.tensor(found.labels, dtype=torch.int64)
    with torch.no_grad():
        loss = lattice(frames, torch.tensor(12), labels, torch.tensor(len(labels)))
    assert -found.log_probability == pytest.approx(float(loss), abs=1e-4)
    assert next(weights.parameters()).dtype == torch.float32


def test_sum_path_differs_from_max_path_where_it_should():
    """One label at one of three frames: each alignment loses to silence, together they win."""
    context = midge.FullNGram(1, 0)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), midge.TableWeights(context))
    frames = torch.tensor([[0.4, 0.0]] * 3)
    assert lattice.shortest_path(frames, torch.tensor(3)).labels() == []
    found = sum_path(lattice, frames, torch.tensor(3), num_best=2)
    weights = {1: 3 * math.exp(0.8), 2: 3 * math.exp(0.4)}
    total = weights[1] + weights[2] + math.exp(1.2) + 1.0
    assert [each.labels for each in found.sequences] == [(1,), (1, 1)]
    for each in found.sequences:
        expected = weights[len(each.labels)] / total
        assert math.exp(each.log_probability) == pytest.approx(expected, rel=1e-6)


def test_improbable_answers_are_proved_too():
    """Twelve choices of 0.6 to 0.4, a silent frame after each: by mass alone thousands are open."""
    num_choices = 12
    context = midge.FullNGram(2, 0)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), normalization="softmax"
    )
    frames = torch.tensor([[0.0, 0.6, 0.4], [1.0, 0.0, 0.0]], dtype=torch.float64).log()
    found = sum_path(lattice, frames.repeat(num_choices, 1), torch.tensor(2 * num_choices))
    assert found.is_proved and found.labels == [1] * num_choices
    assert found.log_probability == pytest.approx(num_choices * math.log(0.6), abs=1e-9)
    assert found.num_expansions == 1 + num_choices


@pytest.mark.parametrize(
    "alignment", [midge.FrameDependent(allow_blank=False), midge.LabelDependent(5)]
)
@pytest.mark.parametrize("scale", [0.0, 2.0])
def test_one_path_each_needs_no_search(alignment, scale):
    context = midge.FullNGram(3, 1)
    lattice = midge.RecognitionLattice(context, alignment, midge.TableWeights(context))
    assert has_one_path_each(lattice)
    generator = torch.Generator().manual_seed(0)
    frames = scale * torch.randn(5, lattice.weights.input_size, generator=generator)
    path = lattice.shortest_path(frames, torch.tensor(5))
    found = sum_path(lattice, frames, torch.tensor(5))
    assert found.labels == path.labels() or scale == 0.0
    assert found.log_probability == pytest.approx(float(path.weight) - found.log_z, abs=1e-5)
    assert found.is_proved  # also where all sequences tie
    assert found.has_one_path_each
    assert found.num_expansions == 1 + len(path.labels())


def test_more_than_one_path_each():
    context = midge.FullNGram(3, 1)
    weights = midge.TableWeights(context)
    for alignment, deduplicate in [
        (midge.FrameDependent(), False),
        (midge.FrameDependent(allow_blank=False), True),
        (midge.LabelFrameDependent(1), False),
    ]:
        lattice = midge.RecognitionLattice(context, alignment, weights, deduplicate=deduplicate)
        assert not has_one_path_each(lattice)
        frames = torch.zeros(2, lattice.weights.input_size)
        assert not sum_path(lattice, frames, torch.tensor(2)).has_one_path_each


def test_batches_and_padding():
    case = Case("1-gram", "frame")
    lattice = case.lattice()
    frames = random_frames(case, 2, 2)
    num_frames = torch.tensor([[4, 2], [0, 3]])
    padding = torch.arange(4) >= num_frames[..., None]
    found = sum_path(lattice, frames.masked_fill(padding[..., None], torch.nan), num_frames)
    for row in range(2):
        for column in range(2):
            count = num_frames[row, column]
            one = sum_path(lattice, frames[row, column, :count], count)
            assert found[row][column].sequences == one.sequences
    assert sum_path(lattice, frames[:0], num_frames[:0]) == []


def test_no_path_at_all():
    context = midge.FullNGram(2, 1)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), midge.TableWeights(context))
    frames = torch.full((3, lattice.weights.input_size), -torch.inf)
    found = sum_path(lattice, frames, torch.tensor(3))
    assert (found.sequences, found.labels, found.is_proved) == ((), [], True)
    assert found.log_probability == found.log_z == -math.inf


def test_a_budget_of_time_is_kept_and_the_best_path_still_followed():
    context = midge.FullNGram(3, 1)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), midge.TableWeights(context))
    frames = torch.zeros(40, lattice.weights.input_size)
    frames[:, 1] = 0.1  # label 1 at first
    found = sum_path(lattice, frames, torch.tensor(40), max_seconds=0.0)
    assert found.num_expansions == 1 + len(lattice.shortest_path(frames, torch.tensor(40)).labels())
    assert not found.is_proved and found.num_proved == 0
    assert found.log_open_bound > found.log_probability


def test_states_computed_again_give_the_same(monkeypatch):
    case = Case("2-gram", "label-frame:2", deduplicate=True)
    frames, num_frames, _ = some_utterance(case, seed=0)
    found = sum_path(case.lattice(), frames, num_frames, **ALL)
    monkeypatch.setattr(prefixes, "CACHE_BYTES", 0)
    again = sum_path(case.lattice(), frames, num_frames, **ALL)
    assert found.sequences == again.sequences


def test_long_utterances_do_not_underflow():
    """The smallest positive float64 is e^-745."""
    context = midge.FullNGram(9, 0)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), normalization="softmax"
    )
    generator = torch.Generator().manual_seed(1)
    frames = 0.1 * torch.randn(600, lattice.weights.input_size, generator=generator)
    num_frames = torch.tensor(600)
    found = sum_path(lattice, frames, num_frames, max_expansions=1)
    labels = torch.tensor(found.labels)
    with torch.no_grad():
        loss = lattice(frames.double(), num_frames, labels, torch.tensor(len(labels)))
    assert float(loss) > 800
    assert -found.log_probability == pytest.approx(float(loss), abs=1e-8)
    assert found.rounding < 1e-8


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_wrong_weights_are_refused(wrong):
    case = Case("1-gram", "frame")
    frames = random_frames(case, 2)
    frames[1, 2, 0] = wrong
    with pytest.raises(ValueError, match="utterance 1"):
        sum_path(case.lattice(), frames, torch.tensor([4, 4]))


@pytest.mark.parametrize(
    "lattice",
    [
        midge.named_model("rnn-t").build(vocab_size=3, input_size=4, hidden_size=5, rnn_size=6),
        midge.named_model("las").build(vocab_size=3, input_size=4, hidden_size=5, rnn_size=6),
        midge.named_model("rnn-t", context_size=1).build(
            vocab_size=3, input_size=4, hidden_size=5, rnn_size=6
        ),
    ],
    ids=["full history", "attention", "unbounded labels per frame"],
)
def test_what_has_no_end_is_refused(lattice):
    with pytest.raises(ValueError, match="beam"):
        sum_path(lattice, torch.zeros(3, 4), torch.tensor(3))


@pytest.mark.parametrize(
    "wrong", [{"num_best": 0}, {"max_expansions": 0}, {"max_seconds": -1.0}], ids=str
)
def test_wrong_budgets_are_refused(wrong):
    (name,) = wrong
    case = Case("1-gram", "frame")
    with pytest.raises(ValueError, match=f"{name} should be"):
        sum_path(case.lattice(), random_frames(case), torch.tensor(1), **wrong)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(*[st.floats(-50, 0) | st.just(-math.inf)] * 2), min_size=0, max_size=20),
    st.floats(-50, 0) | st.just(-math.inf),
)
def test_linear_scan_is_the_recurrence(steps, first):
    stay = np.array([step[0] for step in steps])
    entry = np.array([step[1] for step in steps])
    expected = [first]
    for factor, term in steps:
        expected.append(log_sum_of([expected[-1] + factor, term]))
    np.testing.assert_allclose(linear_scan(stay, entry, first), expected, **EXACT)
