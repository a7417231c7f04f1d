"""The unbounded history of RNN-T, HAT and LAS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from midge.contexts.base import ContextDependency


@final
@dataclass(frozen=True)
class FullHistory(ContextDependency):
    """State = all labels so far: the paper's M-gram, an infinite tree.

    Along one label sequence it is a string, so losses and forced alignments work as for any other
    context. Sums over all label sequences do not exist in finite time, and are refused.

    Args:
        vocab_size: number of lexical labels, at least 1.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size should be at least 1, got {self.vocab_size}")
