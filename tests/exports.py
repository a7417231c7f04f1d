"""Exported lattices of every kind, for comparison with OpenFst."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import midge
from cases import Case, random_frames
from midge.automata import Automaton


@dataclass(frozen=True)
class Export:
    """A lattice of one utterance, A or A ∩ y, with its automaton."""

    lattice: midge.RecognitionLattice
    frames: Tensor
    num_frames: int
    labels: list[int] | None

    @property
    def automaton(self) -> Automaton:
        return Automaton.of_lattice(self.lattice, self.frames, self.num_frames, self.labels)

    @property
    def arguments(self) -> dict[str, Tensor]:
        """For the methods of the lattice."""
        arguments = {"frames": self.frames, "num_frames": torch.tensor(self.num_frames)}
        if self.labels is not None:
            string = torch.tensor(self.labels, dtype=torch.int64)
            arguments |= {"labels": string, "num_labels": torch.tensor(len(string))}
        return arguments


def exports(case: Case) -> Iterator[Export]:
    """A of a full and of a padded utterance, and A ∩ y of labels that a random path spells."""
    lattice = case.lattice()
    whole = Export(lattice, random_frames(case, seed=3), case.max_num_frames, None)
    yield whole
    padded = random_frames(case, seed=4)
    padded[1:] = torch.nan
    yield Export(lattice, padded, 1, None)
    generator = torch.Generator().manual_seed(5)
    sample = lattice.sample(**whole.arguments, num_samples=1, generator=generator)
    yield Export(lattice, whole.frames, whole.num_frames, sample.labels()[0])


def history_exports() -> Iterator[Export]:
    """A ∩ y where A itself has no end: unbounded histories, unbounded labels per frame."""
    torch.manual_seed(6)
    context = midge.FullHistory(vocab_size=3)
    rnn = midge.SharedRNNWeights(context, 4, 5, 3, 6).double()
    attention = midge.AttentionWeights(context, 4, 5, 3, 6).double()
    bigram = midge.FullNGram(vocab_size=3, context_size=1)
    table = midge.TableWeights(bigram)
    parts = [
        (context, midge.LabelFrameDependent(None), rnn),
        (context, midge.LabelFrameDependent(2), rnn),
        (context, midge.LabelFrameDependent(9), rnn),
        (context, midge.FrameDependent(), rnn),
        (context, midge.LabelDependent(4), attention),
        (bigram, midge.LabelFrameDependent(None), table),
    ]
    for normalization in ("softmax", "hat"):
        for each in parts:
            lattice = midge.RecognitionLattice(*each, normalization=normalization)
            frames = torch.randn(5, lattice.weights.input_size, dtype=torch.float64)
            for labels in ([], [2], [1, 3, 3]):
                yield Export(lattice, frames, 4, labels)
