"""Explicit automata: the parts of a model, and small recognition lattices, state by state.

Nothing here is needed to train or to decode. It is for looking (`drawing`), for OpenFst and its
tools, and for tests: an independent account of what the vectorized code means.
"""

from midge.automata.automaton import Arc, Automaton
from midge.automata.openfst import fst_symbols, to_fst

__all__ = ["Arc", "Automaton", "fst_symbols", "to_fst"]
