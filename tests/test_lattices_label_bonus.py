"""The bonus of labels by frame, on both engines, against the list of all paths."""

import copy
import math

import pytest
import torch

import midge
from cases import CASES, Case, parameters
from oracles import ListedPath, log_sum
from test_engines import problem
from test_lattices_enumeration import padded

ALONG_FRAMES = [case for case in CASES if not case.alignment_name.startswith("label:")]


def bonus_of(path: ListedPath, bonus: list[float], deduplicate: bool) -> float:
    """What the frames that emit a path's labels give."""
    total, last = 0.0, 0
    for step, _, symbol in path.arcs:
        if symbol != 0 and not (deduplicate and symbol == last):
            total += bonus[step]
        last = symbol
    return total


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["readable", "native"])
@pytest.mark.parametrize("case", parameters(ALONG_FRAMES))
def test_loss_against_enumeration(case: Case, dtype):
    frames, num_frames, oracles, targets = problem(case, seed=7)
    labels, num_labels = padded(targets)
    bonus = torch.randn(frames.shape[:2], generator=torch.Generator().manual_seed(1))
    junk = torch.arange(frames.shape[1]) >= num_frames[:, None]
    lattice = case.lattice().to(dtype)
    found = lattice(
        frames.to(dtype),
        num_frames,
        labels,
        num_labels,
        bonus.to(dtype).masked_fill(junk, math.nan),
    )
    for row, (oracle, target) in enumerate(zip(oracles, targets, strict=True)):
        weights = [
            path.weight + bonus_of(path, bonus[row].tolist(), case.deduplicate)
            for path in oracle.paths
            if path.labels == tuple(target)
        ]
        expected = oracle.log_z() - log_sum(weights) if weights else math.inf
        assert float(found[row]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def models():
    """Every form the fused numerator takes: whole and alone, by state and by position."""
    for normalization in ("global", "hat"):
        for alignment in (midge.FrameDependent(), midge.LabelFrameDependent(1)):
            yield midge.FullNGram(3, 2), alignment, normalization
    yield midge.FullHistory(3), midge.LabelFrameDependent(None), "softmax"


@pytest.mark.parametrize("context, alignment, normalization", list(models()), ids=str)
def test_gradients_of_both_engines(context, alignment, normalization):
    torch.manual_seed(0)
    weights = midge.SharedRNNWeights(context, 4, 8, 3, 5)
    fast = midge.RecognitionLattice(context, alignment, weights, normalization)
    exact = copy.deepcopy(fast).double()
    frames = torch.randn(2, 9, 4)
    labels, num_labels = torch.tensor([[1, 1, 3], [2, 3, 0]]), torch.tensor([3, 2])
    bonus = torch.linspace(2.0, -2.0, 9).expand(2, 9)
    gradients = []
    for lattice, dtype in ((fast, torch.float32), (exact, torch.float64)):
        given = frames.to(dtype).requires_grad_()
        loss = lattice(given, torch.tensor([9, 6]), labels, num_labels, bonus.to(dtype))
        parameters = list(lattice.parameters())
        gradients.append(torch.autograd.grad(loss.sum(), [given, *parameters]))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-5)


def test_a_falling_bonus_makes_labels_early():
    """The gradient pulls labels to the front: the posterior of A ∩ y under the bonus."""
    context = midge.FullNGram(1, 0)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), "softmax"
    )
    frames = torch.zeros(5, 2, requires_grad=True)
    falling = torch.linspace(3.0, -3.0, 5)
    loss = lattice(frames, torch.tensor(5), torch.tensor([1]), torch.tensor(1), falling)
    loss.backward()
    pull = -frames.grad[:, 1]  # how much each frame is told to emit the label
    assert (pull[:-1] > pull[1:]).all()


@pytest.mark.parametrize(
    "bonus, message",
    [
        (torch.zeros(4), r"label_bonus should be floating point \[5\]"),
        (torch.zeros(5).long(), "floating"),
    ],
)
def test_a_wrong_bonus_is_refused(bonus, message):
    context = midge.FullNGram(1, 0)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), midge.TableWeights(context))
    with pytest.raises(ValueError, match=message):
        lattice(torch.zeros(5, 2), torch.tensor(5), torch.tensor([1]), torch.tensor(1), bonus)
