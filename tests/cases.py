"""Small lattices of every kind, for tests that hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

import midge
from oracles import Enumeration


@dataclass(frozen=True)
class Case:
    """A lattice with table weights, and the recipe of its oracle."""

    context_name: str
    alignment_name: str
    normalization: str = "global"
    deduplicate: bool = False

    def __str__(self) -> str:
        suffix = "-dedup" if self.deduplicate else ""
        return f"{self.context_name}-{self.alignment_name}-{self.normalization}{suffix}"

    @property
    def max_num_frames(self) -> int:
        """As many as an enumeration can bear."""
        if self.alignment_name.startswith("label-frame"):
            return {"1": 3, "2": 2, "3": 2}[self.alignment_name[-1]]
        return 4

    def context(self) -> midge.FiniteContext:
        """The context, the same every time."""
        return CONTEXTS[self.context_name]()

    def alignment(self) -> midge.AlignmentLattice:
        """The alignment lattice."""
        return ALIGNMENTS[self.alignment_name]

    def lattice(self) -> midge.RecognitionLattice:
        """The lattice, with table weights."""
        context = self.context()
        return midge.RecognitionLattice(
            context,
            self.alignment(),
            midge.TableWeights(context),
            normalization=self.normalization,
            deduplicate=self.deduplicate,
        )

    def enumeration(self, frames: Tensor, num_frames: int) -> Enumeration:
        """All paths of one utterance."""
        context = self.context()
        table = frames.detach().double()
        table = table.reshape(-1, context.num_states, 1 + context.vocab_size)
        kind, _, limit = self.alignment_name.partition(":")
        steps = num_frames
        if kind == "label":
            steps = int(self.alignment().num_steps(torch.tensor(num_frames)))
        final, added = context.final_weights, context.label_weights
        return Enumeration(
            table=table[:steps],
            next_state=context.next_state_table().tolist(),
            kind=kind,
            limit=int(limit or 0) if kind == "label-frame" else 0,
            normalization=self.normalization,
            deduplicate=self.deduplicate,
            start=context.start,
            final_weights=None if final is None else final.tolist(),
            label_weights=None if added is None else added.tolist(),
        )

    def with_global(self) -> Case:
        """The same lattice, globally normalized."""
        return replace(self, normalization="global")


def random_automaton(seed: int, num_states: int = 4, vocab_size: int = 2) -> midge.NextStateTable:
    """A random automaton with missing arcs, several labels into a state, and a start not at 0."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        table = torch.randint(-1, num_states, (num_states, vocab_size), generator=generator)
        try:
            return midge.NextStateTable(table, start=num_states - 1)
        except ValueError:
            continue


def automaton_with_final_weights() -> midge.NextStateTable:
    """A complete automaton in which ending weighs, and one state is not final."""
    table = torch.tensor([[1, 2], [1, 0], [2, 1]])
    return midge.NextStateTable(
        table, final_weights=torch.tensor([0.3, -torch.inf, -0.7], dtype=torch.float64)
    )


def automaton_with_label_weights() -> midge.NextStateTable:
    """An automaton whose arcs weigh, one nothing at all, and lack two; so do its ends."""
    table = torch.tensor([[1, 2], [1, -1], [1, 3], [-1, 3]])
    return midge.NextStateTable(
        table,
        final_weights=torch.tensor([0.0, -0.4, 0.2, 0.1], dtype=torch.float64),
        label_weights=torch.tensor(
            [[0.5, -1.2], [-0.3, 0.0], [-torch.inf, 0.8], [0.0, -0.6]], dtype=torch.float64
        ),
    )


CONTEXTS = {
    "0-gram": lambda: midge.FullNGram(2, 0),
    "0-gram-3": lambda: midge.FullNGram(3, 0),
    "1-gram": lambda: midge.FullNGram(2, 1),
    "2-gram": lambda: midge.FullNGram(2, 2),
    "1-gram-one-label": lambda: midge.FullNGram(1, 1),
    "random-0": lambda: random_automaton(0),
    "random-1": lambda: random_automaton(1),
    "random-2": lambda: random_automaton(2, num_states=3, vocab_size=3),
    "final-weights": automaton_with_final_weights,
    "label-weights": automaton_with_label_weights,
    "clustered": lambda: midge.clustered_context([0, 1, 1], context_size=1),
    "variable": lambda: midge.variable_length_context([[1, 2, 2, 1, 2]], 2, 2, min_count=2),
}
ALIGNMENTS = {
    "frame": midge.FrameDependent(),
    "frame-no-blank": midge.FrameDependent(allow_blank=False),
    "label-frame:1": midge.LabelFrameDependent(1),
    "label-frame:2": midge.LabelFrameDependent(2),
    "label-frame:3": midge.LabelFrameDependent(3),
    "label:half": midge.LabelDependent(lambda num_frames: (num_frames + 1) // 2),
    "label:all": midge.LabelDependent(lambda num_frames: num_frames),
}


def _is_legal(case: Case) -> bool:
    if case.normalization == "hat" and case.alignment_name == "frame-no-blank":
        return False
    return not (case.deduplicate and case.alignment_name.startswith("label:"))


CASES = [
    case
    for context_name in CONTEXTS
    for alignment_name in ALIGNMENTS
    for normalization in ("global", "softmax", "hat")
    for deduplicate in (False, True)
    if _is_legal(case := Case(context_name, alignment_name, normalization, deduplicate))
]


QUICK = ("0-gram", "1-gram", "2-gram", "random-0", "final-weights", "label-weights")
"""Contexts that the fast tests take; the others are for the slow ones."""


def parameters(cases: list[Case]) -> list[ParameterSet]:
    """Cases for pytest.mark.parametrize; most contexts are slow."""
    return [
        pytest.param(
            case, id=str(case), marks=[] if case.context_name in QUICK else [pytest.mark.slow]
        )
        for case in cases
    ]


def random_frames(case: Case, *batch: int, seed: int = 0, scale: float = 1.5) -> Tensor:
    """[*batch, max_num_frames, input_size] float64 scores, some of them -inf."""
    generator = torch.Generator().manual_seed(seed)
    context = case.context()
    size = context.num_states * (1 + context.vocab_size)
    shape = (*batch, case.max_num_frames, size)
    frames = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    if case.normalization != "hat":
        gone = torch.rand(shape, generator=generator) < 0.08
        frames = frames.masked_fill(gone, -torch.inf)
    return frames
