"""RNN-T against warprnnt_numba, values and gradients."""

from __future__ import annotations

import pytest
import torch

import midge

pytestmark = pytest.mark.peers


class GivenScores(midge.WeightFn):
    """Scores of a full history given as they are: a frame is [max_num_labels + 1, 1 + V]."""

    def __init__(self, context: midge.FullHistory, num_positions: int) -> None:
        super().__init__()
        self.context = context
        self._num_columns = 1 + context.vocab_size
        self.input_size = num_positions * self._num_columns

    def scorer(self, frames, num_frames, states, linear=None):
        raise NotImplementedError

    def history_scorer(self, frames, num_frames, labels, linear=None):
        from midge.weights import Scorer

        positions = torch.arange(labels.shape[1] + 1).repeat(len(labels))
        return Scorer(self._score, self._num_columns, step=(frames,), state=(positions,))

    def _score(self, step, batch, state, shared, steps):
        table = step[0].unflatten(-1, (-1, self._num_columns))
        index = state[0][:, None, :, None]
        return table.gather(-2, index.expand(*table.shape[:2], -1, self._num_columns))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.filterwarnings("ignore")  # numba's own
def test_rnnt_equals_warprnnt_numba(seed):
    from warprnnt_numba import RNNTLossNumba

    torch.manual_seed(seed)
    batch_size, longest, most, vocab_size = 4, 9, 5, 6
    scores = torch.randn(batch_size, longest, most + 1, 1 + vocab_size, requires_grad=True)
    num_frames = torch.tensor([longest, 7, 4, 2])
    num_labels = torch.tensor([most, 3, 5, 0])
    labels = torch.randint(1, 1 + vocab_size, (batch_size, most))
    context = midge.FullHistory(vocab_size)
    lattice = midge.RecognitionLattice(
        context, midge.LabelFrameDependent(None), GivenScores(context, most + 1), "softmax"
    )
    ours = lattice(scores.flatten(-2), num_frames, labels, num_labels)
    theirs = RNNTLossNumba(blank=0, reduction="none")(
        scores, labels.int(), num_frames.int(), num_labels.int()
    )
    torch.testing.assert_close(ours, theirs.view_as(ours), rtol=1e-5, atol=1e-4)
    (found,) = torch.autograd.grad(ours.sum(), scores)
    (expected,) = torch.autograd.grad(theirs.sum(), scores)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
