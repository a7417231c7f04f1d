"""The named models, and their globally normalized counterparts."""

from __future__ import annotations

import pytest
import torch

import midge

SMALL = {"hidden_size": 8, "embedding_size": 4, "rnn_size": 4}
COUNTERPARTS = {
    "ce": {},
    "ctc": {},
    "las": {"context_size": 1},
    "rnn-t": {"context_size": 1, "max_labels_per_frame": 1},
    "hat": {"context_size": 2, "max_labels_per_frame": 2},
    "gnat": {},
}


def probabilities_sum_to_one(lattice: midge.RecognitionLattice) -> None:
    """Over all sequences of up to three labels out of two, in two frames."""
    frames = torch.randn(2, 5, dtype=torch.float64)
    sequences = [[]]
    for _ in range(4):
        sequences += [[*s, y] for s in sequences if len(s) == len(sequences[-1]) for y in (1, 2)]
    total = 0.0
    for labels in sequences:
        string = torch.tensor(labels, dtype=torch.int64)
        loss = lattice(frames, torch.tensor(2), string, torch.tensor(len(labels)))
        total += float((-loss).exp().detach())
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", list(midge.NAMED_MODELS))
def test_named_models_are_built_and_trained(name):
    torch.manual_seed(0)
    lattice = midge.named_model(name).build(3, 5, **SMALL)
    frames = torch.randn(2, 4, 5, requires_grad=True)
    count = torch.tensor([4, 4])
    loss = lattice(frames, count, torch.tensor([[1, 2, 3, 1]] * 2), count)
    assert loss.isfinite().all() and (loss > 0).all()
    loss.sum().backward()
    assert frames.grad.any() and all(p.grad is not None for p in lattice.parameters())


@pytest.mark.parametrize("name", list(midge.NAMED_MODELS))
def test_global_counterparts(name):
    torch.manual_seed(0)
    parts = midge.named_model(name, normalization="global", **COUNTERPARTS[name])
    lattice = parts.build(2, 5, **SMALL).double()
    probabilities_sum_to_one(lattice)
    assert lattice.shortest_path(torch.randn(2, 5).double(), torch.tensor(2)).weight.isfinite()


@pytest.mark.parametrize("name", ["ce", "ctc", "las", "gnat"])
def test_probabilities_of_named_models(name):
    torch.manual_seed(0)
    probabilities_sum_to_one(midge.named_model(name).build(2, 5, **SMALL).double())


def test_wrong_names_list_the_right_ones():
    with pytest.raises(ValueError, match="'rnn-t'"):
        midge.named_model("rnnt")
    with pytest.raises(ValueError, match=r"\['wights'\].*'weights'"):
        midge.named_model("ctc", wights="attention")
    with pytest.raises(ValueError, match="context_size"):
        midge.named_model("rnn-t", weights="unshared").build(2, 5)
    with pytest.raises(ValueError, match="FullHistory"):
        midge.named_model("rnn-t", normalization="global").build(2, 5)
