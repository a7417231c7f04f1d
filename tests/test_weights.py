"""Weight functions against their formulas, state by state."""

from __future__ import annotations

import pytest
import torch

import midge
from tolerances import EXACT

CONTEXTS = [
    midge.FullNGram(3, 0),
    midge.FullNGram(3, 2),
    midge.clustered_context([0, 0, 1], 2),
    midge.variable_length_context([[1, 2, 3, 1, 2]], 3, 3),
    midge.NextStateTable(torch.tensor([[1, 2], [3, 3], [0, 3], [-1, 3]])),
]


def marginal_free_scores(weights: midge.WeightFn, frames: torch.Tensor) -> torch.Tensor:
    """[T, Q, 1 + V] raw scores, read back from the scorer."""
    scorer = weights.scorer(frames[None], torch.tensor([len(frames)]), None)
    steps = range(len(frames))
    return scorer.score(scorer.step, scorer.batch, scorer.state, scorer.shared, steps)[0]


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_shared_rnn_reads_the_labels_of_each_state(context):
    """E_q is the LSTM's output after the start symbol and the labels of q."""
    torch.manual_seed(0)
    weights = midge.SharedRNNWeights(context, 4, 6, 5, 7).double()
    frames = torch.randn(3, 4, dtype=torch.float64)
    found = marginal_free_scores(weights, frames)
    joint = weights.joint
    for state in range(context.num_states):
        read = torch.tensor([0, *context.state_labels(state)])
        output, _ = weights.rnn(weights.embedding(read)[None])
        hidden = torch.tanh(
            frames @ joint.frame_projection.weight.T
            + joint.context_projection.weight @ output[0, -1]
            + joint.hidden_bias
        )
        expected = hidden @ joint.output.weight.T + joint.output.bias
        torch.testing.assert_close(found[:, state], expected, **EXACT)


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda c: midge.SharedRNNWeights(c, 4, 6, 5, 7),
        lambda c: midge.SharedEmbeddingWeights(c, 4, 6, 5),
        lambda c: midge.UnsharedWeights(c, 4),
        lambda c: midge.AttentionWeights(c, 4, 6, 5, 7),
    ],
    ids=["rnn", "embedding", "unshared", "attention"],
)
def test_scores_of_some_states_are_those_of_all(context, make):
    """For a subset of states, and for one set of states per utterance."""
    torch.manual_seed(0)
    weights = make(context).double()
    frames, count = torch.randn(2, 3, 4, dtype=torch.float64), torch.tensor([3, 2])
    whole = weights.scorer(frames, count, None)
    steps = range(1, 3)

    def scores(scorer, state):
        step = tuple(x[:, 1:3] for x in scorer.step)
        return scorer.score(step, scorer.batch, state, scorer.shared, steps)

    everything = scores(whole, whole.state)
    assert everything.shape == (2, 2, context.num_states, 1 + context.vocab_size)
    some = torch.arange(0, context.num_states, 2)
    part = weights.scorer(frames, count, some)
    torch.testing.assert_close(scores(part, part.state), everything[:, :, some], **EXACT)
    rows = torch.tensor([[0], [context.num_states - 1]])
    each = scores(whole, tuple(x[rows] for x in whole.state))
    torch.testing.assert_close(each[0], everything[0, :, rows[0]], **EXACT)
    torch.testing.assert_close(each[1], everything[1, :, rows[1]], **EXACT)


def test_embedding_and_unshared_formulas():
    torch.manual_seed(0)
    context = midge.FullNGram(2, 1)
    frames = torch.randn(3, 4)
    weights = midge.SharedEmbeddingWeights(context, 4, 6, 5)
    joint = weights.joint
    hidden = torch.tanh(
        joint.frame_projection(frames)[:, None]
        + joint.context_projection(weights.embedding.weight)
        + joint.hidden_bias
    )
    torch.testing.assert_close(marginal_free_scores(weights, frames), joint.output(hidden))
    unshared = midge.UnsharedWeights(context, 4)
    expected = torch.einsum("td,qyd->tqy", frames, unshared.weight) + unshared.bias
    torch.testing.assert_close(marginal_free_scores(unshared, frames), expected)


def test_joint_parameters_are_those_of_the_design():
    """W tanh(P_x frame + P_c E_q + c) + b: two products without bias, c, W and b."""
    weights = midge.SharedRNNWeights(midge.FullNGram(3, 1), 4, 6, 5, 7)
    shapes = {name: tuple(p.shape) for name, p in weights.joint.named_parameters()}
    assert shapes == {
        "frame_projection.weight": (6, 4),
        "context_projection.weight": (6, 7),
        "hidden_bias": (6,),
        "output.weight": (4, 6),
        "output.bias": (4,),
    }


def test_attention_looks_at_all_frames_and_at_no_padding():
    torch.manual_seed(0)
    context = midge.FullNGram(2, 1)
    weights = midge.AttentionWeights(context, 4, 6, 5, 7)
    lattice = midge.RecognitionLattice(context, midge.LabelDependent(3), weights, "softmax")
    frames, labels, one = torch.randn(5, 4), torch.tensor([1, 2]), torch.tensor(2)
    loss = lattice(frames, torch.tensor(4), labels, one)
    for frame in range(5):
        changed = frames.clone()
        changed[frame] += 1.0
        same = torch.equal(lattice(changed, torch.tensor(4), labels, one), loss)
        assert same == (frame == 4)
    assert lattice(frames, torch.tensor(0), labels, one).isfinite()


def test_attention_knows_the_label_position():
    """With a 0-gram context nothing else distinguishes the first label from the second."""
    torch.manual_seed(0)
    weights = midge.AttentionWeights(midge.FullNGram(2, 0), 4, 6, 5, 7)
    scorer = weights.scorer(torch.randn(1, 5, 4), torch.tensor([5]), None)
    scores = scorer.score((), scorer.batch, scorer.state, scorer.shared, range(3))
    assert not torch.allclose(scores[0, 0], scores[0, 1])


def test_the_rnn_runs_once_per_parent_and_label():
    """Not once per frame, and its products not once per state."""
    weights = midge.SharedRNNWeights(midge.FullNGram(4, 2), 3, 6, 5, 7)
    rows = []

    def counted(x, weight):
        if weight.shape[0] == 4 * 7:
            rows.append(len(x))
        return torch.nn.functional.linear(x, weight)

    weights.scorer(torch.randn(2, 9, 3), torch.tensor([9, 9]), None, counted)
    assert rows == [1 + 4, 1, 4]  # the labels, then the parents of each level


def test_weights_can_be_made_without_memory():
    """On the meta device, as large models are laid out."""
    with torch.device("meta"):
        weights = midge.SharedRNNWeights(midge.FullNGram(4, 2), 3, 6, 5, 7)
    assert weights.rnn.weight_hh_l0.is_meta
