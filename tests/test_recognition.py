"""RecognitionLattice: shapes, padding, types, ties, samples, refusals."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

import midge
from cases import CASES, Case, random_frames
from tolerances import EXACT, SINGLE, SINGLE_GRADIENT

SOME = [case for case in CASES if case.context_name in ("1-gram", "random-1")]


@pytest.mark.parametrize("case", SOME[::2], ids=str)
def test_any_number_of_batch_dims(case: Case):
    """0, 1 and 2 batch dims give the same numbers, for every method."""
    lattice = case.lattice()
    frames = random_frames(case, 2, 3, seed=21).nan_to_num(neginf=-1.0)
    num_frames = torch.tensor([[frames.shape[2], 1, 2], [0, 2, 1]])
    labels = torch.tensor([[[1, 2], [1, 9], [2, 2]], [[9, 9], [1, 9], [2, 9]]])
    num_labels = torch.tensor([[2, 1, 2], [0, 1, 1]])
    everything = {
        "loss": lattice(frames, num_frames, labels, num_labels),
        "distance": lattice.shortest_distance(frames, num_frames),
        "entropy": lattice.entropy(frames, num_frames),
        "blank": lattice.arc_marginals(frames, num_frames).blank,
        "lexical": lattice.arc_marginals(frames, num_frames).lexical,
        "along": lattice.arc_marginals(frames, num_frames, labels, num_labels).lexical,
        "weight": lattice.shortest_path(frames, num_frames).weight,
        "pushed": lattice.push(frames, num_frames).blank,
    }
    nested = lattice.shortest_path(frames, num_frames).labels()
    for i in range(2):
        for j in range(3):
            x, n, y, u = frames[i, j], num_frames[i, j], labels[i, j], num_labels[i, j]
            single = {
                "loss": lattice(x, n, y, u),
                "distance": lattice.shortest_distance(x, n),
                "entropy": lattice.entropy(x, n),
                "blank": lattice.arc_marginals(x, n).blank,
                "lexical": lattice.arc_marginals(x, n).lexical,
                "along": lattice.arc_marginals(x, n, y, u).lexical,
                "weight": lattice.shortest_path(x, n).weight,
                "pushed": lattice.push(x, n).blank,
            }
            assert lattice.shortest_path(x, n).labels() == nested[i][j]
            for name, value in single.items():
                whole = everything[name][i, j]
                if name in ("blank", "lexical", "along", "pushed"):
                    whole = whole[: len(value)]
                torch.testing.assert_close(value, whole, **EXACT)


@pytest.mark.parametrize("case", SOME[::2], ids=str)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_padding_never_matters(case: Case, junk: float):
    lattice = case.lattice()
    clean = random_frames(case, 2, seed=22).nan_to_num(neginf=-1.0)
    num_frames = torch.tensor([clean.shape[1] - 1, 1])
    padding = torch.arange(clean.shape[1]) >= num_frames[:, None]
    labels, num_labels = torch.tensor([[1, 2, 0], [1, 0, 0]]), torch.tensor([1, 1])
    results = []
    for fill, label in ((0.0, 0), (junk, -(10**9))):
        frames = clean.masked_fill(padding[..., None], fill).requires_grad_()
        string = labels.masked_fill(torch.arange(3) >= num_labels[:, None], label)
        loss = lattice(frames, num_frames, string, num_labels)
        loss.sum().backward()
        path = lattice.shortest_path(frames, num_frames)
        results.append((loss, frames.grad, path.alignment_labels, path.weight))
    for clean_one, junk_one in zip(*results, strict=True):
        assert torch.equal(clean_one, junk_one)
    assert not results[0][1][padding].any()


def test_empty_batch():
    lattice = Case("1-gram", "frame").lattice()
    frames = torch.zeros(0, 3, 9)
    none = torch.zeros(0, dtype=torch.int64)
    assert lattice(frames, none, torch.zeros(0, 2, dtype=torch.int64), none).shape == (0,)
    assert lattice.shortest_path(frames, none).labels() == []
    assert lattice.arc_marginals(frames, none).lexical.shape == (0, 3, 3, 2)


@pytest.mark.parametrize(
    "case", [Case("1-gram", "frame"), Case("1-gram", "label-frame:1")], ids=str
)
def test_no_frames_at_all(case):
    """The empty string, with certainty."""
    lattice = case.lattice()
    frames = torch.zeros(1, 0, 9)
    none, one = torch.tensor([0]), torch.tensor([1])
    assert lattice(frames, none, torch.zeros(1, 0, dtype=torch.int64), none).tolist() == [0.0]
    assert lattice(frames, none, torch.tensor([[1]]), one).tolist() == [math.inf]
    path = lattice.shortest_path(frames, none)
    assert path.labels() == [[]] and path.weight.tolist() == [0.0]


@pytest.mark.parametrize("case", SOME[::3], ids=str)
def test_float32_follows_float64(case: Case):
    lattice = case.lattice()
    double = random_frames(case, 2, seed=23).nan_to_num(neginf=-1.0)
    num_frames = torch.tensor([double.shape[1], 1])
    labels, num_labels = torch.tensor([[1, 2], [1, 1]]), torch.tensor([1, 1])
    results = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        frames = double.bfloat16().to(dtype).detach().requires_grad_()
        loss = lattice(frames, num_frames, labels, num_labels)
        loss[loss < torch.inf].sum().backward()
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert frames.grad.dtype == dtype
        results.append((loss.double(), frames.grad.double()))
    for loss, gradient in results[1:2]:
        torch.testing.assert_close(loss, results[0][0], **SINGLE)
        torch.testing.assert_close(gradient, results[0][1], **SINGLE_GRADIENT)
    torch.testing.assert_close(results[2][0], results[0][0], **SINGLE)


def test_autocast_does_not_reach_the_lattice():
    torch.manual_seed(0)
    context = midge.FullNGram(3, 1)
    weights = midge.SharedRNNWeights(context, 4, 8, 4, 4)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
    frames = torch.randn(2, 6, 4)
    arguments = (torch.tensor([6, 5]), torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]))
    expected = lattice(frames, *arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = lattice(frames, *arguments)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_long_utterances_keep_their_gradient_in_float32(scale):
    """1024 frames: loss within 1e-3 nats, gradient within 1e-4 in L2 (plain float32: 6e-4)."""
    torch.manual_seed(0)
    context = midge.FullNGram(4, 1)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), midge.TableWeights(context))
    single = (scale * torch.randn(1, 1024, 25)).requires_grad_()
    double = single.detach().double().requires_grad_()
    labels = torch.randint(1, 5, (1, 200))
    arguments = (torch.tensor([1024]), labels, torch.tensor([200]))
    loss, exact = lattice(single, *arguments), lattice(double, *arguments)
    assert abs(float(loss.detach()) - float(exact.detach())) < 1e-3
    loss.backward()
    exact.backward()
    error = (single.grad.double() - double.grad).norm() / double.grad.norm()
    assert float(error) < 1e-4


def viterbi(case: Case, frames, num_frames: int) -> list[int]:
    """A frame-dependent lattice's best path with the rule for ties, state by state."""
    context = case.context()
    table = frames.reshape(-1, context.num_states, 1 + context.vocab_size).tolist()
    next_state = context.next_state_table().tolist()
    best = {context.start: (0.0, [])}
    for row in table[:num_frames]:
        after: dict[int, tuple[float, list[int]]] = {}
        ways = []
        for state, (weight, symbols) in best.items():
            ways.append((state, 0, state, weight + row[state][0], symbols))
            for label, destination in enumerate(next_state[state], start=1):
                if destination >= 0:
                    arc = weight + row[state][label]
                    ways.append((destination, label, state, arc, symbols))
        for destination, label, _, weight, symbols in sorted(ways, key=lambda way: way[:3]):
            if destination not in after or weight > after[destination][0]:
                after[destination] = (weight, [*symbols, label])
        best = after
    return max(sorted(best.items()), key=lambda item: item[1][0])[1][1]


@pytest.mark.parametrize("name", ["0-gram-3", "1-gram", "2-gram", "random-0", "random-1"])
def test_ties(name):
    """Blank first, then the smallest label, then the smallest source state."""
    case = Case(name, "frame")
    lattice = case.lattice()
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        frames = torch.randint(0, 2, random_frames(case, 1).shape, generator=generator).double()
        path = lattice.shortest_path(frames, torch.tensor([4]))
        assert path.alignment_labels[0].tolist() == viterbi(case, frames[0], 4)
    if name.endswith("gram"):
        zeros = torch.zeros_like(frames)
        assert lattice.shortest_path(zeros, torch.tensor([4])).labels() == [[]]


def test_ties_with_several_labels_per_frame():
    """All paths weigh the same: no label; then all but the blank-only ones do: the earliest."""
    lattice = Case("1-gram", "label-frame:2").lattice()
    frames = torch.zeros(1, 2, 9)
    path = lattice.shortest_path(frames, torch.tensor([2]))
    assert path.alignment_labels.tolist() == [[0, 0]]
    aligned = lattice.shortest_path(
        frames, torch.tensor([2]), torch.tensor([[2, 1]]), torch.tensor([2])
    )
    assert aligned.alignment_labels.tolist() == [[2, 1, 0, 0]]
    assert aligned.alignment_frames.tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize("case", SOME[1::4], ids=str)
def test_samples_follow_the_posterior(case: Case):
    lattice = case.lattice()
    frames = random_frames(case, 2, seed=24, scale=0.7).nan_to_num(neginf=-1.0)
    num_frames = torch.tensor([2, 1])
    num_samples = 4000
    paths = lattice.sample(frames, num_frames, num_samples, torch.Generator().manual_seed(0))
    assert paths.weight.shape == (num_samples, 2)
    for row in range(2):
        oracle = case.enumeration(frames[row], int(num_frames[row]))
        log_z = oracle.log_z()
        if log_z == -math.inf:
            assert not paths.num_alignment_labels[:, row].any()
            continue
        weight = {path.symbols: path.weight for path in oracle.paths}
        labels = paths.alignment_labels[:, row].tolist()
        length = paths.num_alignment_labels[:, row].tolist()
        drawn = [tuple(x[:n]) for x, n in zip(labels, length, strict=True)]
        for symbols, found in zip(drawn[:50], paths.weight[:50, row].tolist(), strict=True):
            assert math.isclose(found, weight[symbols], rel_tol=1e-9, abs_tol=1e-9)
        for symbols, count in Counter(drawn).items():
            share = math.exp(weight[symbols] - log_z)
            deviation = math.sqrt(num_samples * share * (1 - share))
            assert abs(count - num_samples * share) < 6 * deviation + 3
        assert sum(math.exp(weight[s] - log_z) for s in set(drawn)) > 0.9


def test_samples_repeat_with_their_generator():
    case = Case("2-gram", "frame")
    frames, count = random_frames(case, 1, seed=1), torch.tensor([4])
    draw = [
        case.lattice().sample(frames, count, 5, torch.Generator().manual_seed(3)).alignment_labels
        for _ in range(2)
    ]
    assert torch.equal(*draw)


def test_the_loss_uses_every_argument():
    """A changed argument changes the loss: nothing is ignored by accident."""
    torch.manual_seed(0)
    context = midge.FullNGram(3, 1)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.SharedRNNWeights(context, 4, 8, 4, 4)
    )
    base = {
        "frames": torch.randn(1, 6, 4),
        "num_frames": torch.tensor([6]),
        "labels": torch.tensor([[1, 2]]),
        "num_labels": torch.tensor([2]),
    }
    loss = lattice(**base)
    changed = {
        "frames": base["frames"] + 1,
        "num_frames": torch.tensor([5]),
        "labels": torch.tensor([[1, 3]]),
        "num_labels": torch.tensor([1]),
    }
    for name, value in changed.items():
        assert not torch.equal(lattice(**{**base, name: value}), loss), name
    for name, parameter in lattice.named_parameters():
        with torch.no_grad():
            kept = parameter.clone()
            parameter.add_(torch.randn_like(parameter))
            assert not torch.equal(lattice(**base), loss), name
            parameter.copy_(kept)


def test_pieces_do_not_change_the_result(monkeypatch):
    """One frame of one utterance at a time, or all at once."""
    torch.manual_seed(0)
    for context, normalization in (
        (midge.FullNGram(3, 1), "global"),
        (midge.FullNGram(3, 2), "softmax"),
        (midge.FullHistory(3), "hat"),
    ):
        weights = midge.SharedRNNWeights(context, 4, 8, 4, 4)
        lattice = midge.RecognitionLattice(
            context, midge.FrameDependent(), weights, normalization
        ).double()
        frames = torch.randn(3, 7, 4, dtype=torch.float64)
        arguments = (
            torch.tensor([7, 5, 6]),
            torch.tensor([[1, 2, 2], [3, 0, 0], [3, 1, 0]]),
            torch.tensor([3, 1, 2]),
        )
        results = []
        for elements in (2**21, 100, 1):
            monkeypatch.setattr("midge.lattices.pieces.PIECE_ELEMENTS", elements)
            monkeypatch.setattr("midge.lattices.whole.PIECE_ELEMENTS", elements)
            lattice.zero_grad()
            loss = lattice(frames, *arguments)
            loss.sum().backward()
            results.append([loss, *[parameter.grad for parameter in lattice.parameters()]])
        for other in results[1:]:
            for one, two in zip(results[0], other, strict=True):
                torch.testing.assert_close(one, two, **EXACT)


@pytest.mark.parametrize("alignment", [midge.FrameDependent(), midge.LabelFrameDependent(1)])
def test_a_local_loss_runs_the_rnn_over_visited_states_alone(alignment):
    """A vocabulary whose 2-gram context has a million states."""
    context = midge.FullNGram(1000, 2)
    weights = midge.SharedRNNWeights(context, 4, 8, 4, 4)
    lattice = midge.RecognitionLattice(context, alignment, weights, "hat")
    loss = lattice(
        torch.randn(2, 6, 4),
        torch.tensor([6, 6]),
        torch.tensor([[7, 900], [1000, 5]]),
        torch.tensor([2, 2]),
    )
    loss.sum().backward()
    assert loss.isfinite().all() and weights.rnn.weight_hh_l0.grad.any()


def refused():
    """Parts that do not go together, and what the message names."""
    ngram, history = midge.FullNGram(2, 1), midge.FullHistory(2)
    rnn = midge.SharedRNNWeights(history, 3, 4, 4, 4)
    table = midge.TableWeights(ngram)
    frame, spell = midge.FrameDependent(), midge.LabelDependent(3)
    unbounded = midge.LabelFrameDependent(None)
    finite_rnn = midge.SharedRNNWeights(ngram, 3, 4, 4, 4)
    attention = midge.AttentionWeights(ngram, 3, 4, 4, 4)
    yield (history, frame, rnn, "global"), "FullHistory"
    yield (ngram, unbounded, finite_rnn, "global"), "max_labels_per_frame"
    yield (ngram, midge.FrameDependent(False), table, "hat"), "blank"
    yield (ngram, unbounded, finite_rnn, "softmax", True), "deduplicate"
    weighted = midge.NextStateTable(ngram.next_state_table(), label_weights=torch.zeros(3, 2))
    yield (weighted, unbounded, finite_rnn, "softmax"), "arcs or ends"
    yield (ngram, spell, table, "softmax", True), "LabelDependent"
    yield (ngram, frame, attention, "softmax"), "LabelDependent"
    yield (midge.FullNGram(2, 2), frame, table), "made for the lattice's context"
    yield (ngram, frame, table, "local"), "'softmax'"


@pytest.mark.parametrize("arguments, message", list(refused()))
def test_parts_that_do_not_go_together(arguments, message):
    with pytest.raises(ValueError, match=message):
        midge.RecognitionLattice(*arguments)


@pytest.mark.parametrize(
    "make",
    [
        midge.TableWeights,
        lambda c: midge.UnsharedWeights(c, 3),
        lambda c: midge.SharedEmbeddingWeights(c, 3, 4, 4),
    ],
)
def test_full_history_needs_weights_without_states(make):
    with pytest.raises(ValueError, match="FullHistory.*SharedRNNWeights"):
        make(midge.FullHistory(2))


def test_whole_lattice_methods_without_a_whole_lattice():
    history = midge.FullHistory(2)
    ngram = midge.FullNGram(2, 1)
    lattices = [
        midge.RecognitionLattice(
            history, midge.FrameDependent(), midge.SharedRNNWeights(history, 3, 4, 4, 4), "hat"
        ),
        midge.RecognitionLattice(
            ngram,
            midge.LabelFrameDependent(None),
            midge.SharedRNNWeights(ngram, 3, 4, 4, 4),
            "softmax",
        ),
    ]
    frames, count = torch.randn(1, 4, 3), torch.tensor([4])
    labels, num_labels = torch.tensor([[1, 2]]), torch.tensor([2])
    for lattice in lattices:
        for method in ("shortest_distance", "shortest_path", "arc_marginals", "entropy", "push"):
            with pytest.raises(ValueError, match="beam search"):
                getattr(lattice, method)(frames, count)
        with pytest.raises(ValueError, match="beam search"):
            lattice.sample(frames, count, 2)
        path = lattice.shortest_path(frames, count, labels, num_labels)
        assert path.labels() == [[1, 2]]
        marginals = lattice.arc_marginals(frames, count, labels, num_labels)
        assert marginals.lexical.sum().item() == pytest.approx(2.0, abs=1e-5)
        assert lattice.sample(frames, count, 2, None, labels, num_labels).labels() == [[[1, 2]]] * 2


@pytest.mark.parametrize(
    "change, message",
    [
        ({"frames": torch.zeros(2, 3, 5)}, r"\[\*batch, max_num_frames, 9\]"),
        ({"frames": torch.zeros(2, 3, 9).long()}, "frames should be floating point"),
        ({"frames": torch.zeros(9)}, "frames should be floating point"),
        ({"num_frames": torch.tensor([3, 4])}, "num_frames should be 0..3, got 4 for utterance 1"),
        ({"num_frames": torch.tensor([3])}, "num_frames should be integers"),
        ({"num_frames": torch.tensor([3.0, 1.0])}, "num_frames should be integers"),
        ({"labels": torch.tensor([[1, 2], [3, 0]])}, "labels should be 1..2.*got 3.*utterance 1"),
        ({"labels": torch.tensor([[0, 2], [1, 0]])}, "0 is blank.*position 0 of utterance 0"),
        ({"labels": torch.tensor([1, 2])}, "labels should be integers"),
        ({"num_labels": torch.tensor([3, 1])}, "num_labels should be 0..2, got 3"),
        ({"num_labels": None}, "given together"),
    ],
)
def test_bad_arguments_are_named(change, message):
    lattice = Case("1-gram", "frame").lattice()
    arguments = {
        "frames": torch.zeros(2, 3, 9),
        "num_frames": torch.tensor([3, 1]),
        "labels": torch.tensor([[1, 2], [1, 0]]),
        "num_labels": torch.tensor([2, 1]),
    }
    with pytest.raises(ValueError, match=message):
        lattice(**{**arguments, **change})


def test_labels_in_the_place_of_the_semiring():
    lattice = Case("1-gram", "frame").lattice()
    with pytest.raises(ValueError, match="give labels and num_labels by name"):
        lattice.shortest_distance(
            torch.zeros(3, 9), torch.tensor(3), torch.tensor([1]), torch.tensor(1)
        )


def test_double_frames_need_double_parameters():
    context = midge.FullNGram(2, 1)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.UnsharedWeights(context, 3)
    )
    with pytest.raises(ValueError, match=r"lattice.to\(torch.float64\)"):
        lattice.shortest_distance(torch.zeros(2, 3).double(), torch.tensor(2))


def test_label_dependent_needs_enough_frames_for_frame_weights():
    context = midge.FullNGram(2, 1)
    lattice = midge.RecognitionLattice(
        context, midge.LabelDependent(5), midge.TableWeights(context)
    )
    with pytest.raises(ValueError, match="at most num_frames"):
        lattice.shortest_distance(torch.zeros(3, 9), torch.tensor(3))


def test_labels_of_a_path_nest_like_the_batch():
    path = midge.Path(
        torch.tensor([[1, 1, 0, 1], [2, 0, 0, 0]]),
        torch.zeros(2, 4),
        torch.tensor([4, 1]),
        torch.zeros(2),
    )
    assert path.labels() == [[1, 1, 1], [2]]
    merged = midge.Path(
        path.alignment_labels, path.alignment_frames, path.num_alignment_labels, path.weight, True
    )
    assert merged.labels() == [[1, 1], [2]]


@pytest.mark.parametrize("case", SOME[::2], ids=str)
def test_every_result_has_the_type_of_the_frames(case: Case):
    """Whichever engine computed it, and however wide it summed."""
    lattice = case.lattice()
    count, labels, one = torch.tensor([2]), torch.tensor([[1]]), torch.tensor([1])
    for dtype in (torch.float32, torch.float64):
        frames = random_frames(case, 1, seed=9).nan_to_num(neginf=-1.0).to(dtype)
        for given in ((), (labels, one)):
            marginals = lattice.arc_marginals(frames, count, *given)
            assert marginals.blank.dtype == marginals.lexical.dtype == dtype
            assert lattice.shortest_path(frames, count, *given).weight.dtype == dtype
            assert lattice.entropy(frames, count, *given).dtype == dtype
        assert lattice.sample(frames, count, 2).weight.dtype == dtype
        assert lattice.push(frames, count).blank.dtype == dtype
