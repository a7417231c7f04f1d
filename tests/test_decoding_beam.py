"""Beam search against the list of all paths, the exact search and the loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import midge
from cases import CASES, Case, random_frames
from midge.decoding.beam import BeamConfig, beam_search
from midge.decoding.exact import sum_path
from midge.decoding.followers import backward_weights
from midge.decoding.fusion import Fusion, LabelScorer
from midge.decoding.histories import histories

WIDE = BeamConfig(beam_size=10**6)
KINDS = sorted({(c.alignment_name, c.normalization, c.deduplicate) for c in CASES})
QUICK = {
    (*kind, ("1-gram", "random-0", "final-weights")[number % 3])
    for number, kind in enumerate(KINDS)
}
EVERY_KIND = [
    pytest.param(
        case,
        id=str(case),
        marks=[]
        if (case.alignment_name, case.normalization, case.deduplicate, case.context_name) in QUICK
        else [pytest.mark.slow],
    )
    for case in CASES
]


def posterior(case, frames):
    """The log probability of every label sequence."""
    oracle = case.enumeration(frames, len(frames))
    log_z = oracle.log_z()
    found = {labels: oracle.log_z(labels) - log_z for labels in oracle.spelled()}
    return {labels: value for labels, value in found.items() if value > -math.inf}


@pytest.mark.parametrize("case", EVERY_KIND)
def test_a_wide_beam_finds_every_sequence_with_its_probability(case: Case):
    frames = random_frames(case, seed=2)
    truth = posterior(case, frames)
    found = beam_search(case.lattice(), frames, num_best=10**6, config=WIDE)
    assert {each.labels for each in found.sequences} == truth.keys()
    for each in found.sequences:
        assert each.log_probability == pytest.approx(truth[each.labels], rel=1e-9, abs=1e-9)
        assert each.log_found == pytest.approx(truth[each.labels], rel=1e-9, abs=1e-9)
    values = [each.score for each in found.sequences]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("case", EVERY_KIND)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_narrow_beam_finds_something_true(case: Case, beam_size: int):
    for seed in range(4):
        frames = random_frames(case, seed=seed, scale=3.0)
        truth = posterior(case, frames)
        found = beam_search(
            case.lattice(), frames, num_best=2, config=BeamConfig(beam_size=beam_size)
        )
        assert bool(found.sequences) == bool(truth)
        for each in found.sequences:
            assert each.log_probability == pytest.approx(truth[each.labels], rel=1e-9, abs=1e-9)
            assert each.log_found <= each.log_probability + 1e-9


def shared_rnn(context, alignment, normalization, deduplicate=False, seed=0):
    torch.manual_seed(seed)
    weights = midge.SharedRNNWeights(context, 6, 16, 5, 8)
    for parameter in weights.parameters():
        torch.nn.init.normal_(parameter, std=1.2)
    return midge.RecognitionLattice(context, alignment, weights, normalization, deduplicate)


NETWORKS = [
    (midge.FrameDependent(), "global", False),
    (midge.FrameDependent(), "global", True),
    (midge.FrameDependent(), "softmax", True),
    (midge.LabelFrameDependent(2), "global", False),
    (midge.LabelFrameDependent(2), "hat", False),
]


@pytest.mark.parametrize("alignment, normalization, deduplicate", NETWORKS, ids=str)
def test_it_agrees_with_exact_search_as_the_beam_grows(alignment, normalization, deduplicate):
    context = midge.FullNGram(4, 2)
    missed = {1: 0.0, 8: 0.0, 256: 0.0}
    for seed in range(3):
        lattice = shared_rnn(context, alignment, normalization, deduplicate, seed)
        frames = torch.randn(14, 6)
        exact = sum_path(lattice, frames, torch.tensor(14), max_expansions=None)
        for size in missed:
            found = beam_search(lattice, frames, config=BeamConfig(beam_size=size))
            assert found.log_probability <= exact.log_probability + 1e-4
            missed[size] += math.exp(exact.log_probability) - math.exp(found.log_probability)
    assert missed[256] == pytest.approx(0.0, abs=1e-5)
    assert min(missed.values()) == missed[256] < max(missed.values())


@pytest.mark.parametrize(
    "case",
    [
        Case("1-gram", "frame", "softmax"),
        Case("1-gram", "frame", "softmax", deduplicate=True),
        Case("1-gram", "frame-no-blank", "softmax"),
        Case("1-gram", "label-frame:2", "softmax"),
        Case("1-gram", "label:all", "softmax"),
    ],
    ids=str,
)
def test_loss_and_searches_agree_on_dead_ends(case):
    """Where all that leaves a state is -inf, the arcs of a local model sum to less than 1."""
    frames = random_frames(case, seed=1).nan_to_num(neginf=-2.0)
    frames[1, -1 - case.context().vocab_size :] = -torch.inf  # the last state, at frame 1
    truth = posterior(case, frames)
    lattice, count = case.lattice(), torch.tensor(len(frames))
    assert case.enumeration(frames, len(frames)).log_z() < -1e-3, "nothing is lost"
    assert sum(map(math.exp, truth.values())) == pytest.approx(1.0)
    exact = sum_path(lattice, frames, count, num_best=10**6, max_expansions=None)
    wide = beam_search(lattice, frames, num_best=10**6, config=WIDE)
    for found in (exact, wide):
        assert {each.labels: each.log_probability for each in found.sequences} == pytest.approx(
            truth, rel=1e-9, abs=1e-9
        )
    for labels, value in truth.items():
        assert -_loss(lattice, frames, labels) == pytest.approx(value, rel=1e-9, abs=1e-9)
    # Padding does not matter, nor does it count as a dead end.
    padded = torch.cat((random_frames(case, seed=3).nan_to_num(neginf=-2.0), frames[1:2]))
    assert not lattice.needs_denominator_of(padded, count)
    assert lattice.needs_denominator_of(padded, count + 1)
    narrow = beam_search(lattice, frames, config=BeamConfig(beam_size=1))
    assert narrow.sequences, "the beam ran into a dead end"


def test_a_window_of_backward_weights_estimates_the_mass():
    """With one, the beam may lose; with all frames in it, it is the same as without."""
    context = midge.FullNGram(4, 2)
    lattice = shared_rnn(context, midge.FrameDependent(), "global", seed=1)
    frames = torch.randn(20, 6)
    whole = beam_search(lattice, frames, num_best=3)
    all_ahead = beam_search(lattice, frames, num_best=3, config=BeamConfig(window=20))
    assert [each.labels for each in all_ahead.sequences] == [
        each.labels for each in whole.sequences
    ]
    for each, same in zip(all_ahead.sequences, whole.sequences, strict=True):
        assert each.log_probability == pytest.approx(same.log_probability, abs=1e-4)
    best = sum_path(lattice, frames, torch.tensor(20), max_expansions=None).log_probability
    for window in (1, 7):
        found = beam_search(lattice, frames, num_best=3, config=BeamConfig(window=window))
        for each in found.sequences:
            assert -each.log_probability == pytest.approx(
                _loss(lattice, frames, each.labels), abs=1e-4
            )
        assert found.log_probability <= best + 1e-4
        wide = beam_search(lattice, frames, config=BeamConfig(beam_size=512, window=window))
        assert wide.log_probability == pytest.approx(best, abs=1e-4)
    short = BeamConfig(beam_size=10**6, window=1)
    assert _sequences(lattice, frames[:4], short) == pytest.approx(
        _sequences(lattice, frames[:4], WIDE), abs=1e-4
    )


def _sequences(lattice, frames, config):
    """Every sequence that a search finds, with its log probability."""
    found = beam_search(lattice, frames, num_best=10**6, config=config).sequences
    return {each.labels: each.log_probability for each in found}


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_the_mass_of_a_window_is_that_of_what_it_shows(window):
    """At each step: the sum over all paths to the end of the window after the step's own."""
    table = torch.tensor([[1, 2], [2, 0], [0, 1]])  # every state can be the start

    def begun_in(state):
        context = midge.NextStateTable(table, start=state)
        weights = midge.TableWeights(context)
        return midge.RecognitionLattice(context, midge.FrameDependent(), weights)

    lattice = begun_in(0)
    frames = torch.randn(7, lattice.weights.input_size, dtype=torch.float64)
    backward = backward_weights(lattice, frames, window)
    for step in range(7):
        end = min(7, (step // window + 2) * window)
        found = torch.from_numpy(backward.at(step, 0).blank)
        ahead, count = frames[step + 1 : end], torch.tensor(end - step - 1)
        expected = [begun_in(state).shortest_distance(ahead, count) for state in range(3)]
        # Relative to each other: an offset of the step cancels.
        difference = torch.stack(expected) - found
        torch.testing.assert_close(difference, difference[:1].expand(3))


def _loss(lattice, frames, labels):
    given = torch.tensor(list(labels), dtype=torch.int64)
    with torch.no_grad():
        return float(lattice(frames, torch.tensor(len(frames)), given, torch.tensor(len(given))))


UNBOUNDED = {
    name: midge.named_model(name, **changes).build(
        vocab_size=3, input_size=4, hidden_size=8, embedding_size=3, rnn_size=6
    )
    for name, changes in {
        "rnn-t": {},
        "hat": {},
        "las": {},
    }.items()
}
UNBOUNDED["rnn-t over bigrams"] = midge.named_model("rnn-t", context_size=1).build(
    vocab_size=3, input_size=4, hidden_size=8, embedding_size=3, rnn_size=6
)
UNBOUNDED["ctc with full history"] = midge.named_model(
    "ctc", context_size=None, weights="shared-rnn"
).build(vocab_size=3, input_size=4, hidden_size=8, embedding_size=3, rnn_size=6)


@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded_histories(name):
    """Every sequence's probability is that of the loss; few are missed, and none is invented."""
    lattice = UNBOUNDED[name]
    torch.manual_seed(4)
    for parameter in lattice.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    if name != "las":
        _prefer_blank(lattice)
    frames = torch.randn(4, 4)
    config = BeamConfig(beam_size=400, max_labels_per_frame=4)
    found = beam_search(lattice, frames, num_best=400, config=config)
    for each in found.sequences[:10]:
        assert -each.log_probability == pytest.approx(_loss(lattice, frames, each.labels), abs=1e-4)
        assert each.log_found == pytest.approx(each.log_probability, abs=1e-3)
    total = sum(math.exp(each.log_probability) for each in found.sequences)
    assert 0.9 < total < 1.0 + 1e-4
    narrow = beam_search(lattice, frames, config=BeamConfig(beam_size=1))
    assert -math.inf < narrow.log_probability <= found.log_probability + 1e-5


def _prefer_blank(lattice):
    with torch.no_grad():
        lattice.weights.joint.output.bias[0] = 3.0


@pytest.mark.parametrize("name", UNBOUNDED)
def test_histories_grow_as_strings_do(name):
    lattice = UNBOUNDED[name]
    frames = torch.randn(3, 4)
    labels = torch.tensor([[2, 1, 3, 3]])
    known = histories(lattice, frames)
    rows = known.start()
    for size in range(5):
        if isinstance(lattice.context, midge.FullHistory):
            scorer = lattice.weights.history_scorer(frames[None], torch.tensor([3]), labels)
            state = tuple(x[size][None, None] for x in scorer.state)
        else:
            at = lattice.context.walk_states(labels)[0, size : size + 1]
            scorer = lattice.weights.scorer(frames[None], torch.tensor([3]), at)
            state = tuple(x[None] for x in scorer.state)
        expected = scorer.score(
            tuple(x[:, 1:2] for x in scorer.step), scorer.batch, state, scorer.shared, range(1, 2)
        )
        torch.testing.assert_close(known.scores(rows, 1), expected[0, 0])
        if size < 4:
            rows = known.extend(rows, labels[0, size : size + 1])


class Favourite(LabelScorer):
    """Likes one label after itself, and an even number of labels."""

    vocab_size = 2
    start = 0

    def arcs(self, state):
        return np.array([0.3, -0.2 if state % 2 else -1.5]), np.array(
            [2 * (state < 2), 1 + 2 * (state < 2)]
        )

    def final(self, state):
        return -0.7 if state < 2 else 0.0


@pytest.mark.parametrize(
    "case",
    [
        Case("1-gram", "frame"),
        Case("1-gram", "frame", "softmax", deduplicate=True),
        Case("2-gram", "label-frame:2", "hat"),
        Case("final-weights", "frame"),
        Case("1-gram", "label:all"),
    ],
    ids=str,
)
def test_fusion_adds_the_scores_of_whole_sequences(case):
    frames = random_frames(case, seed=5)
    truth = posterior(case, frames)
    scorer = Favourite()
    fusion = Fusion(((0.8, scorer),), label_bonus=0.4)
    found = beam_search(case.lattice(), frames, num_best=10**6, config=WIDE, fusion=fusion)
    scores = {y: p + 0.8 * scorer.score(y) + 0.4 * len(y) for y, p in truth.items()}
    assert {each.labels for each in found.sequences} == scores.keys()
    for each in found.sequences:
        assert each.score == pytest.approx(scores[each.labels], rel=1e-9, abs=1e-9)
    assert found.sequences[0].score == pytest.approx(max(scores.values()), abs=1e-9)


def test_the_internal_language_model_is_subtracted():
    lattice = shared_rnn(midge.FullHistory(3), midge.LabelFrameDependent(None), "hat", seed=2)
    _prefer_blank(lattice)
    frames = torch.randn(4, 6)
    config = BeamConfig(beam_size=300, max_labels_per_frame=3)
    plain = {
        e.labels: e for e in beam_search(lattice, frames, num_best=300, config=config).sequences
    }
    found = beam_search(
        lattice, frames, num_best=300, config=config, fusion=Fusion(internal_weight=0.6)
    )
    shared = [each for each in found.sequences if each.labels in plain]
    assert len(shared) > 20
    for each in shared[:40]:
        labels = torch.tensor([each.labels], dtype=torch.int64)
        scorer = lattice.weights.history_scorer(torch.zeros(1, 1, 6), torch.tensor([1]), labels)
        raw = scorer.score(
            scorer.step, scorer.batch, tuple(x[None] for x in scorer.state), scorer.shared, range(1)
        )[0, 0, :, 1:].detach()
        internal = raw.log_softmax(-1)
        expected = -0.6 * sum(float(internal[u, y - 1]) for u, y in enumerate(each.labels))
        assert each.fusion == pytest.approx(expected, abs=1e-4)
        assert each.log_probability == pytest.approx(plain[each.labels].log_probability, abs=1e-4)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_the_same_frames_give_the_same_answer(seed, beam_size):
    lattice = shared_rnn(midge.FullNGram(3, 1), midge.LabelFrameDependent(2), "softmax", seed=seed)
    frames = torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))
    config = BeamConfig(beam_size=beam_size)
    first = beam_search(lattice, frames, num_best=3, config=config)
    again = beam_search(lattice, frames, num_best=3, config=config)
    assert first.sequences == again.sequences


def test_no_frames_and_no_path():
    case = Case("1-gram", "frame")
    lattice = case.lattice()
    size = lattice.weights.input_size
    empty = beam_search(lattice, torch.zeros(0, size))
    assert empty.labels == [] and empty.log_probability == pytest.approx(0.0)
    nothing = beam_search(lattice, torch.full((3, size), -torch.inf))
    assert nothing.sequences == () and nothing.log_probability == -math.inf


def test_wrong_arguments_are_refused():
    case = Case("1-gram", "frame")
    lattice, frames = case.lattice(), random_frames(case)
    with pytest.raises(ValueError, match="num_best should be"):
        beam_search(lattice, frames, num_best=0)
    with pytest.raises(ValueError, match="frames should be"):
        beam_search(lattice, frames[:, :-1])
    with pytest.raises(ValueError, match="NaN"):
        beam_search(lattice, torch.full_like(frames, torch.nan))
    for name in ("beam_size", "max_labels_per_frame", "window"):
        with pytest.raises(ValueError, match=f"{name} should be"):
            BeamConfig(**{name: 0})
    with pytest.raises(ValueError, match="label_bonus should be"):
        Fusion(label_bonus=math.nan)
    with pytest.raises(ValueError, match="2"):
        beam_search(UNBOUNDED["hat"], torch.zeros(1, 4), fusion=Fusion(((1.0, Favourite()),)))
    ending = Case("final-weights", "frame")
    with pytest.raises(ValueError, match="window should be None"):
        beam_search(ending.lattice(), random_frames(ending), config=BeamConfig(window=2))
