"""Named models against outside references: torch's CTC and cross entropy, and plain RNN-T, LAS."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import midge
from oracles import all_label_sequences
from tolerances import EXACT


def ctc_lattice(vocab_size: int) -> midge.RecognitionLattice:
    """CTC with table weights: a frame is the 1 + V scores."""
    context = midge.FullNGram(vocab_size, 0)
    return midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), "softmax", deduplicate=True
    )


@pytest.mark.parametrize("seed", range(6))
def test_ctc_equals_torch(seed):
    """Values and gradients, with repeats, empty targets and targets that do not fit."""
    torch.manual_seed(seed)
    vocab_size, batch_size, longest = 5, 6, 12
    frames = torch.randn(batch_size, longest, 1 + vocab_size, dtype=torch.float64)
    frames = (2 * frames).requires_grad_()
    num_frames = torch.tensor([12, 12, 9, 7, 3, 1])
    labels = torch.randint(1, 1 + vocab_size, (batch_size, 6))
    labels[0] = torch.tensor([2, 2, 2, 3, 3, 1])
    num_labels = torch.tensor([6, 0, 4, 3, 3, 3])
    ours = ctc_lattice(vocab_size)(frames, num_frames, labels, num_labels)
    theirs = functional.ctc_loss(
        frames.log_softmax(-1).transpose(0, 1), labels, num_frames, num_labels, reduction="none"
    )
    torch.testing.assert_close(ours, theirs, **EXACT)
    possible = theirs.isfinite()
    weight = torch.rand(batch_size, dtype=torch.float64)
    # torch's gradient is NaN at an impossible target unless it is told to zero it.
    zeroed = functional.ctc_loss(
        frames.log_softmax(-1).transpose(0, 1),
        labels,
        num_frames,
        num_labels,
        reduction="none",
        zero_infinity=True,
    )
    (expected,) = torch.autograd.grad((weight * zeroed).sum(), frames)
    (found,) = torch.autograd.grad((weight * ours).sum(), frames)
    torch.testing.assert_close(found, expected, **EXACT)
    assert (ours[~possible] == torch.inf).all()


@pytest.mark.parametrize("vocab_size", [3, 90])
def test_long_ctc_in_single_precision_equals_torch_in_double(vocab_size):
    """More labels than letters, and more letters than labels; some labels without blank between."""
    torch.manual_seed(vocab_size)
    frames = torch.randn(3, 250, 1 + vocab_size, requires_grad=True)
    num_frames, num_labels = torch.tensor([250, 249, 120]), torch.tensor([60, 0, 59])
    labels = torch.randint(1, 1 + vocab_size, (3, 60))
    labels[0, 10:20] = 2
    exact = frames.detach().double().requires_grad_()
    ours = ctc_lattice(vocab_size)(frames, num_frames, labels, num_labels)
    theirs = functional.ctc_loss(
        exact.log_softmax(-1).transpose(0, 1), labels, num_frames, num_labels, reduction="none"
    )
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-4)
    weight = torch.tensor([1.0, 0.5, 2.0])
    (found,) = torch.autograd.grad((weight * ours).sum(), frames)
    (expected,) = torch.autograd.grad((weight * theirs).sum(), exact)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_cross_entropy_equals_torch():
    context = midge.FullNGram(4, 0)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(allow_blank=False), midge.TableWeights(context), "softmax"
    )
    frames = torch.randn(3, 7, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(1, 5, (3, 7))
    count = torch.tensor([7, 7, 7])
    ours = lattice(frames, count, labels, count)
    logits = frames[..., 1:].transpose(1, 2)
    theirs = functional.cross_entropy(logits, labels - 1, reduction="none").sum(-1)
    torch.testing.assert_close(ours, theirs, **EXACT)
    found = torch.autograd.grad(ours.sum(), frames)[0]
    torch.testing.assert_close(found, torch.autograd.grad(theirs.sum(), frames)[0], **EXACT)
    fewer = lattice(frames, count, labels, count - 1)
    assert (fewer == torch.inf).all()


def plain_rnnt(log_probs: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """RNN-T's own recursion over the grid (t, u), cell by cell: log_probs [T, U + 1, 1 + V]."""
    num_frames, num_positions, _ = log_probs.shape
    alpha: dict[tuple[int, int], torch.Tensor] = {(0, 0): log_probs.new_zeros(())}
    for t in range(num_frames):
        for u in range(num_positions):
            ways = []
            if t > 0:
                ways.append(alpha[t - 1, u] + log_probs[t - 1, u, 0])
            if u > 0:
                ways.append(alpha[t, u - 1] + log_probs[t, u - 1, labels[u - 1]])
            if ways:
                alpha[t, u] = torch.stack(ways).logsumexp(0)
    return -(alpha[num_frames - 1, num_positions - 1] + log_probs[-1, -1, 0])


@pytest.mark.parametrize("normalization", ["softmax", "hat"])
def test_rnnt_and_hat_equal_their_definition(normalization):
    """With the joint network written out, and its gradients down to the parameters."""
    torch.manual_seed(1)
    context = midge.FullHistory(4)
    weights = midge.SharedRNNWeights(context, 3, hidden_size=6, embedding_size=2, rnn_size=5)
    lattice = midge.RecognitionLattice(
        context, midge.LabelFrameDependent(None), weights, normalization
    ).double()
    frames = torch.randn(2, 5, 3, dtype=torch.float64)
    num_frames, labels, num_labels = [5, 4], [[2, 2, 4], [1, 3, 0]], [3, 2]
    ours = lattice(frames, torch.tensor(num_frames), torch.tensor(labels), torch.tensor(num_labels))
    losses = []
    for each, length, string, size in zip(frames, num_frames, labels, num_labels, strict=True):
        read = torch.tensor([0, *string[:size]])
        output, _ = weights.rnn(weights.embedding(read)[None])
        joint = weights.joint
        hidden = torch.tanh(
            joint.frame_projection(each[:length])[:, None]
            + joint.context_projection(output[0])[None]
            + joint.hidden_bias
        )
        logits = joint.output(hidden)
        if normalization == "softmax":
            log_probs = logits.log_softmax(-1)
        else:
            labels_part = functional.logsigmoid(-logits[..., :1]) + logits[..., 1:].log_softmax(-1)
            log_probs = torch.cat([functional.logsigmoid(logits[..., :1]), labels_part], dim=-1)
        losses.append(plain_rnnt(log_probs, string[:size]))
    theirs = torch.stack(losses)
    torch.testing.assert_close(ours, theirs, **EXACT)
    parameters = list(lattice.parameters())
    expected = torch.autograd.grad(theirs.sum(), parameters)
    found = torch.autograd.grad(ours.sum(), parameters)
    for ours_one, theirs_one in zip(found, expected, strict=True):
        torch.testing.assert_close(ours_one, theirs_one, **EXACT)


def test_las_is_the_chain_rule():
    """P(y | x) = product of P(y_u | x, y_<u), ending by blank; all sequences sum to 1."""
    torch.manual_seed(2)
    context = midge.FullHistory(2)
    weights = midge.AttentionWeights(context, 3, hidden_size=4, embedding_size=2, rnn_size=5)
    lattice = midge.RecognitionLattice(context, midge.LabelDependent(3), weights, "softmax")
    lattice = lattice.double()
    frames = torch.randn(4, 3, dtype=torch.float64)
    total = 0.0
    sequences = [(), *[(a,) for a in (1, 2)], *[(a, b) for a in (1, 2) for b in (1, 2)]]
    sequences += [(a, b, c) for a in (1, 2) for b in (1, 2) for c in (1, 2)]
    for labels in sequences:
        string = torch.tensor(labels, dtype=torch.int64)
        loss = lattice(frames, torch.tensor(4), string, torch.tensor(len(labels)))
        total += float((-loss).exp().detach())
    assert total == pytest.approx(1.0, abs=1e-12)
    four = lattice(frames, torch.tensor(4), torch.tensor([1, 1, 1, 1]), torch.tensor(4))
    assert four == torch.inf


def test_zero_gram_global_equals_local():
    """On the frame-dependent lattice with a 0-gram context (paper, section 6)."""
    context = midge.FullNGram(3, 0)
    frames = torch.randn(2, 6, 4, dtype=torch.float64)
    arguments = (torch.tensor([6, 4]), torch.tensor([[1, 3, 2], [2, 2, 0]]), torch.tensor([3, 2]))
    for deduplicate in (False, True):
        losses = [
            midge.RecognitionLattice(
                context, midge.FrameDependent(), midge.TableWeights(context), name, deduplicate
            )(frames, *arguments)
            for name in ("global", "softmax")
        ]
        torch.testing.assert_close(*losses, **EXACT)


def test_normalized_weights_under_global_normalization_are_the_local_model():
    context = midge.FullNGram(2, 1)
    frames = torch.randn(2, 5, 9, dtype=torch.float64)
    arguments = (torch.tensor([5, 3]), torch.tensor([[1, 2], [2, 0]]), torch.tensor([2, 1]))
    local = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), "softmax"
    )
    anyway = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), "global"
    )
    normalized = frames.unflatten(-1, (3, 3)).log_softmax(-1).flatten(-2)
    torch.testing.assert_close(anyway(normalized, *arguments), local(frames, *arguments), **EXACT)


def test_pushed_frames_make_a_local_model_of_the_same_distribution():
    """Weight pushing turns a global lattice into a locally normalized one."""
    context = midge.FullNGram(2, 2)
    weights = midge.TableWeights(context)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
    frames = torch.randn(2, 5, 21, dtype=torch.float64)
    num_frames = torch.tensor([5, 3])
    pushed = lattice.push(frames, num_frames).as_frames()
    local = midge.RecognitionLattice(context, midge.FrameDependent(), weights, "softmax")
    labels, num_labels = torch.tensor([[1, 2, 1], [2, 0, 0]]), torch.tensor([3, 1])
    torch.testing.assert_close(
        local(pushed, num_frames, labels, num_labels),
        lattice(frames, num_frames, labels, num_labels),
        **EXACT,
    )
    two = midge.RecognitionLattice(context, midge.LabelFrameDependent(1), weights)
    with pytest.raises(ValueError, match="frame-dependent"):
        two.push(frames, num_frames).as_frames()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalization", ["softmax", "hat"])
@pytest.mark.parametrize(
    "alignment, most, deduplicate",
    [
        (midge.FrameDependent(), 2, False),
        (midge.FrameDependent(), 2, True),
        (midge.LabelFrameDependent(1), 2, False),
        (midge.LabelFrameDependent(2), 4, False),
    ],
)
def test_full_history_sums_to_one(alignment, most, deduplicate, normalization, dtype):
    """All label sequences that fit into two frames, by both engines."""
    torch.manual_seed(0)
    context = midge.FullHistory(2)
    weights = midge.SharedRNNWeights(context, 3, hidden_size=4, embedding_size=4, rnn_size=4)
    lattice = midge.RecognitionLattice(context, alignment, weights, normalization, deduplicate)
    sequences = list(all_label_sequences(2, most))
    labels = torch.tensor([[*each, *[0] * (most - len(each))] for each in sequences])
    num_labels = torch.tensor([len(each) for each in sequences])
    frames = torch.randn(1, 2, 3, dtype=dtype).expand(len(sequences), -1, -1)
    loss = lattice.to(dtype)(frames, torch.full_like(num_labels, 2), labels, num_labels)
    assert float((-loss).exp().sum().detach()) == pytest.approx(1.0, abs=1e-5)
