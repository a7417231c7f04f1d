"""Context dependencies: automata over output labels that remember the recent past.

Used by `lattices` to index weights; knows nothing of time or audio (see `alignments`).
"""

from midge.contexts.base import BLANK, ContextDependency, FiniteContext
from midge.contexts.builders import clustered_context, variable_length_context
from midge.contexts.history import FullHistory
from midge.contexts.ngram import FullNGram
from midge.contexts.table import NextStateTable

__all__ = [
    "BLANK",
    "ContextDependency",
    "FiniteContext",
    "FullHistory",
    "FullNGram",
    "NextStateTable",
    "clustered_context",
    "variable_length_context",
]
