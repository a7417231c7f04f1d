"""Gradients of every lattice, against finite differences and against autograd."""

from __future__ import annotations

import pytest
import torch

import midge
from cases import CASES, Case, random_frames
from tolerances import EXACT

FEW = [
    case
    for case in CASES
    if case.context_name in ("0-gram-3", "1-gram", "random-0", "final-weights")
]


def problem(case: Case, seed: int = 11):
    """Two utterances with a path each, fully finite."""
    frames = random_frames(case, 2, seed=seed).nan_to_num(neginf=-2.0)
    num_frames = torch.tensor([frames.shape[1], 2])
    lattice = case.lattice()
    paths = lattice.sample(frames, num_frames, 1, torch.Generator().manual_seed(seed))
    sequences = paths.labels()[0]
    size = 1 + max(map(len, sequences))
    labels = torch.tensor([[*each, *[99] * (size - len(each))] for each in sequences])
    num_labels = torch.tensor([len(each) for each in sequences])
    return lattice, frames.requires_grad_(), num_frames, labels, num_labels


@pytest.mark.parametrize("case", FEW, ids=str)
def test_gradcheck_of_the_loss(case: Case):
    lattice, frames, num_frames, labels, num_labels = problem(case)
    assert torch.autograd.gradcheck(
        lambda x: lattice(x, num_frames, labels, num_labels),
        frames,
        eps=1e-6,
        atol=1e-6,
        fast_mode=True,
    )


@pytest.mark.parametrize("case", FEW[::3], ids=str)
@pytest.mark.parametrize("along_labels", [False, True])
def test_gradcheck_of_the_entropy(case: Case, along_labels: bool):
    lattice, frames, num_frames, labels, num_labels = problem(case)
    arguments = (labels, num_labels) if along_labels else ()
    assert torch.autograd.gradcheck(
        lambda x: lattice.entropy(x, num_frames, *arguments),
        frames,
        eps=1e-6,
        atol=1e-5,
        fast_mode=True,
    )


@pytest.mark.parametrize("case", FEW[::3], ids=str)
@pytest.mark.parametrize("name", ["Real", "MaxTropical", "LogExpectation"])
def test_gradcheck_of_other_semirings(case: Case, name: str):
    lattice, frames, num_frames, _, _ = problem(case)
    semiring = getattr(midge, name)
    assert torch.autograd.gradcheck(
        lambda x: lattice.shortest_distance(x, num_frames, semiring),
        frames,
        eps=1e-6,
        atol=1e-5,
        fast_mode=True,
    )


@pytest.mark.parametrize("case", [case for case in FEW if case.normalization == "global"], ids=str)
def test_marginals_are_the_gradient_of_log_z(case: Case):
    """With table weights and global normalization the frames are the arc weights."""
    lattice, frames, num_frames, _, _ = problem(case)
    lattice.shortest_distance(frames, num_frames).sum().backward()
    marginals = lattice.arc_marginals(frames, num_frames)
    found = torch.cat([marginals.blank[..., None], marginals.lexical], dim=-1).flatten(-2)
    steps = found.shape[1]
    torch.testing.assert_close(found, frames.grad[:, :steps], **EXACT)


@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_impossible_labels(case: Case):
    """+inf loss and exactly no gradient, also beside a possible utterance; never NaN."""
    lattice = case.lattice()
    frames = random_frames(case, 2, seed=7).nan_to_num(neginf=-2.0).requires_grad_()
    num_frames = torch.tensor([frames.shape[1], 0])
    long = 20  # more labels than any lattice here has room for
    labels = torch.ones(2, long, dtype=torch.int64)
    num_labels = torch.tensor([long, 0])
    loss = lattice(frames, num_frames, labels, num_labels)
    assert loss[0] == torch.inf
    loss.sum().backward()
    assert not frames.grad.any() and not frames.grad.isnan().any()


def test_gradients_at_no_arc_are_finite():
    """-inf arc weights are legal everywhere."""
    for case in FEW:
        if case.normalization == "hat":
            continue
        lattice = case.lattice()
        frames = random_frames(case, 3, seed=8, scale=1.0)
        frames[0] = -torch.inf
        frames.requires_grad_()
        num_frames = torch.tensor([frames.shape[1], frames.shape[1], 1])
        labels, num_labels = torch.tensor([[1, 1]] * 3), torch.tensor([1, 2, 0])
        loss = lattice(frames, num_frames, labels, num_labels)
        assert not loss.isnan().any()
        loss[loss < torch.inf].sum().backward()
        assert frames.grad.isfinite().all()
        lattice.entropy(frames, num_frames).sum().backward()
        assert frames.grad.isfinite().all()


def test_second_derivative_is_refused_clearly():
    case = Case("1-gram", "frame")
    lattice, frames, num_frames, labels, num_labels = problem(case)
    loss = lattice(frames, num_frames, labels, num_labels).sum()
    (gradient,) = torch.autograd.grad(loss, frames, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.square().sum().backward()


def parametric_lattices():
    """Lattices whose weights have parameters, of every weight function."""
    ngram, table = midge.FullNGram(3, 2), midge.clustered_context([0, 0, 1], 2)
    history = midge.FullHistory(3)
    frame, two = midge.FrameDependent(), midge.LabelFrameDependent(2)
    unbounded, spell = midge.LabelFrameDependent(None), midge.LabelDependent(4)
    yield "unshared", ngram, frame, midge.UnsharedWeights(ngram, 5), "global"
    yield "unshared-local", ngram, two, midge.UnsharedWeights(ngram, 5), "softmax"
    yield "embedding", table, two, midge.SharedEmbeddingWeights(table, 5, 6, 4), "global"
    yield "embedding-local", table, frame, midge.SharedEmbeddingWeights(table, 5, 6, 4), "hat"
    yield "rnn", ngram, frame, midge.SharedRNNWeights(ngram, 5, 6, 4, 3), "global"
    yield "rnn-local", ngram, two, midge.SharedRNNWeights(ngram, 5, 6, 4, 3), "softmax"
    yield "rnn-table", table, frame, midge.SharedRNNWeights(table, 5, 6, 4, 3), "global"
    yield "rnn-t", history, unbounded, midge.SharedRNNWeights(history, 5, 6, 4, 3), "softmax"
    yield "hat", history, unbounded, midge.SharedRNNWeights(history, 5, 6, 4, 3), "hat"
    yield "rnn-t-frame", history, frame, midge.SharedRNNWeights(history, 5, 6, 4, 3), "hat"
    yield "las", history, spell, midge.AttentionWeights(history, 5, 6, 4, 3), "softmax"
    yield "las-finite", ngram, spell, midge.AttentionWeights(ngram, 5, 6, 4, 3), "softmax"
    yield "las-global", ngram, spell, midge.AttentionWeights(ngram, 5, 6, 4, 3), "global"


PARAMETRIC = list(parametric_lattices())


@pytest.mark.parametrize(
    "context, alignment, weights, normalization",
    [each[1:] for each in PARAMETRIC],
    ids=[each[0] for each in PARAMETRIC],
)
def test_gradients_reach_frames_and_parameters(context, alignment, weights, normalization):
    """Piece by piece, and state by state: every input of the weight function, by gradcheck."""
    torch.manual_seed(0)
    lattice = midge.RecognitionLattice(context, alignment, weights, normalization).double()
    frames = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    num_frames = torch.tensor([5, 3])
    labels, num_labels = torch.tensor([[1, 3, 3], [2, 9, 9]]), torch.tensor([3, 1])
    names = [name for name, _ in lattice.named_parameters()]
    values = [parameter.detach().clone().requires_grad_() for parameter in lattice.parameters()]

    def loss(x, *parameters):
        return torch.func.functional_call(
            lattice, dict(zip(names, parameters, strict=True)), (x, num_frames, labels, num_labels)
        )

    assert torch.autograd.gradcheck(loss, (frames, *values), atol=1e-6, fast_mode=True)
