"""Draws the figures of the README and of the documentation.

    python docs/figures/make.py

The four of the paper's figure 1 come first. The files are kept in the repository; drawing them
again changes nothing unless the code did.
"""

from __future__ import annotations

from pathlib import Path

import torch

import midge
from midge.automata import Automaton
from midge.drawing import draw

FOLDER = Path(__file__).parent


def recognition_lattice() -> Automaton:
    """A of three frames that say "a", nothing, "b", under a 1-gram context."""
    context = midge.FullNGram(vocab_size=2, context_size=1)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), normalization="softmax"
    )
    heard = torch.tensor([[0.0, 2.0, 0.5], [1.0, 0.2, 0.4], [0.3, 0.0, 1.6]])
    return Automaton.of_lattice(lattice, heard.repeat(1, context.num_states))


def main() -> None:
    """Writes every figure."""
    chain, ladder = midge.FrameDependent(), midge.LabelFrameDependent(max_labels_per_frame=2)
    by_label = midge.LabelDependent(max_num_labels=3)
    figures = {
        "context": midge.FullNGram(vocab_size=2, context_size=1),
        "frame_dependent": Automaton.of_alignment(chain, num_frames=3, vocab_size=2),
        "label_frame_dependent": Automaton.of_alignment(ladder, num_frames=3, vocab_size=2),
        "label_dependent": Automaton.of_alignment(by_label, num_frames=3, vocab_size=2),
        "context_2gram": midge.FullNGram(vocab_size=2, context_size=2),
        "deduplication": Automaton.of_deduplication(vocab_size=2),
    }
    for name, automaton in figures.items():
        draw(automaton, FOLDER / f"{name}.svg")
    lattice = recognition_lattice()
    draw(lattice, FOLDER / "recognition_lattice.svg", highlight="best path")
    draw(lattice, FOLDER / "recognition_posteriors.svg", highlight="posteriors")


if __name__ == "__main__":
    main()
