"""The greedy path: a path of the lattice, and the best one where no choice depends on another."""

import pytest
import torch

import midge
from midge.lattices import greedy_path

VOCAB_SIZE = 3


def lattice_of(alignment, normalization="softmax", context=None):
    context = context or midge.FullHistory(VOCAB_SIZE)
    torch.manual_seed(0)
    kind = (
        midge.AttentionWeights
        if isinstance(alignment, midge.LabelDependent)
        else midge.SharedRNNWeights
    )
    weights = kind(context, 5, 8, 4, 6).double()
    for parameter in weights.parameters():
        parameter.data.normal_()
    return midge.RecognitionLattice(context, alignment, weights, normalization)


ALIGNMENTS = [
    midge.FrameDependent(),
    midge.FrameDependent(allow_blank=False),
    midge.LabelFrameDependent(2),
    midge.LabelFrameDependent(None),
    midge.LabelDependent(4),
]


@pytest.mark.parametrize("alignment", ALIGNMENTS, ids=str)
@pytest.mark.parametrize("normalization", ["softmax", "hat"])
def test_its_weight_is_that_of_the_alignment_of_its_labels(alignment, normalization):
    """A forced alignment of the same labels is at least as good, and no label sum is smaller."""
    if normalization == "hat" and not alignment.has_blank:
        return
    lattice = lattice_of(alignment, normalization)
    frames, num_frames = torch.randn(6, 7, 5, dtype=torch.float64), torch.tensor([7, 3, 0, 1, 5, 7])
    path = greedy_path(lattice, frames, num_frames)
    strings = [torch.tensor(labels).long() for labels in path.labels()]
    labels = torch.nn.utils.rnn.pad_sequence(strings, batch_first=True)
    num_labels = torch.tensor([len(string) for string in strings])
    given = (frames, num_frames, labels, num_labels)
    aligned = lattice.shortest_path(*given)
    summed = -lattice(*given)
    assert (path.weight <= aligned.weight + 1e-9).all()
    assert (aligned.weight <= summed + 1e-9).all()
    assert (path.weight > -torch.inf).all()


def test_one_choice_is_the_best():
    """A single frame of a single label position: greedy is exact."""
    lattice = lattice_of(midge.FrameDependent())
    finite = lattice_of(midge.FrameDependent(), context=midge.FullNGram(VOCAB_SIZE, 1))
    finite.load_state_dict(lattice.state_dict())
    frames = torch.randn(20, 1, 5, dtype=torch.float64)
    num_frames = torch.ones(20, dtype=torch.int64)
    found = greedy_path(lattice, frames, num_frames)
    best = finite.shortest_path(frames, num_frames)
    assert found.labels() == best.labels()
    torch.testing.assert_close(found.weight, best.weight)


def test_the_labels_of_a_frame_are_limited():
    lattice = lattice_of(midge.LabelFrameDependent(None))
    lattice.weights.joint.output.bias.data[0] = -100.0  # never blank
    path = greedy_path(lattice, torch.randn(1, 3, 5).double(), torch.tensor([3]), 2)
    (labels,) = path.labels()
    assert len(labels) == 6
    assert path.num_alignment_labels.tolist() == [9]
    assert path.alignment_frames.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 2]]


def test_padding_and_other_utterances_do_not_matter():
    lattice = lattice_of(midge.LabelFrameDependent(None), "hat")
    frames = torch.randn(2, 6, 5).double()
    together = greedy_path(lattice, frames, torch.tensor([6, 4]))
    frames[1, 4:] = torch.nan
    alone = greedy_path(lattice, frames[1:], torch.tensor([4]))
    assert together.labels()[1] == alone.labels()[0]
    assert together.weight[1] == alone.weight[0]


def test_deduplication_is_refused():
    context = midge.FullNGram(VOCAB_SIZE, 1)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), deduplicate=True
    )
    with pytest.raises(ValueError, match="shortest_path"):
        greedy_path(lattice, torch.zeros(1, 2, 16), torch.tensor([2]))
