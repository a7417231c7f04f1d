"""OpenFst, through pynini, on exported lattices: sums over paths, and best paths."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

import midge
from cases import CASES, Case
from exports import Export, exports, history_exports
from midge.automata import to_fst
from tolerances import EXACT, SINGLE

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def openfst():
    """Imported here: collecting the tests must not need it."""
    return importlib.import_module("pywrapfst")


def compiled(openfst, text: str, arc_type: str):
    compiler = openfst.Compiler(arc_type=arc_type)
    compiler.write(text)
    return compiler.compile()


def distance(openfst, fst) -> float:
    """The log weight of all paths, from the start; -inf without a path."""
    weights = openfst.shortestdistance(fst, reverse=True, delta=1e-12)
    if fst.start() >= len(weights):  # OpenFst stops at the last state that reaches an end
        return -torch.inf
    return -float(str(weights[fst.start()]))


def check(openfst, export: Export):
    lattice, arguments = export.lattice, export.arguments
    automaton = export.automaton
    log_z = lattice.shortest_distance(**arguments).item()
    if log_z > -torch.inf:
        # OpenFst prints nine digits of a sum; of what is left after the expected one they suffice.
        ends = {state: weight - log_z for state, weight in automaton.final_weights.items()}
        rest = compiled(openfst, to_fst(replace(automaton, final_weights=ends)), "log64")
        torch.testing.assert_close(distance(openfst, rest), 0.0, **EXACT)
    else:
        assert distance(openfst, compiled(openfst, to_fst(automaton), "log64")) == log_z
    best = lattice.shortest_path(**arguments)
    tropical = compiled(openfst, to_fst(automaton, blank="input"), "standard")
    largest = lattice.shortest_distance(**arguments, semiring=midge.MaxTropical).item()
    torch.testing.assert_close(distance(openfst, tropical), largest, **SINGLE)
    path = openfst.shortestpath(tropical)
    if best.weight == -torch.inf:
        assert path.num_states() == 0
        return
    arcs = list(walk(path))
    length = int(best.num_alignment_labels)
    blank = automaton.vocab_size + 1
    read = [0 if arc.ilabel == blank else arc.ilabel for arc in arcs]
    assert read == best.alignment_labels.tolist()[:length]
    assert [arc.olabel for arc in arcs if arc.olabel] == best.labels()


def walk(path):
    """The arcs of a linear automaton, in order."""
    state = path.start()
    while path.num_arcs(state):
        (arc,) = path.arcs(state)
        yield arc
        state = arc.nextstate


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lattices(openfst, case: Case):
    for export in exports(case):
        check(openfst, export)


def test_unbounded_models(openfst):
    for export in history_exports():
        check(openfst, export)
