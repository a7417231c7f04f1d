"""Automata written out, and OpenFst's view of them."""

from __future__ import annotations

import math
from collections import defaultdict

import kaldifst
import pytest
import torch

import midge
from cases import ALIGNMENTS, CASES, CONTEXTS, Case, parameters
from exports import Export, exports, history_exports
from midge.automata import Arc, Automaton, fst_symbols, to_fst
from tolerances import EXACT, SINGLE

GLOBAL_CASES = [case for case in CASES if case.normalization == "global"]


def count_paths(automaton: Automaton) -> int:
    """The number of paths from the start to an end."""
    count = dict.fromkeys(range(automaton.num_states), 0) | {automaton.start: 1}
    for state in automaton._topological_order():
        for arc in automaton.arcs:
            if arc.source == state:
                count[arc.destination] += count[state]
    return sum(count[state] for state in automaton.final_weights)


def path_weight(automaton: Automaton, path: tuple[int, ...]) -> float:
    end = automaton.arcs[path[-1]].destination if path else automaton.start
    end_weight = automaton.final_weights.get(end, -math.inf)
    return sum(automaton.arcs[number].weight for number in path) + end_weight


def names_of(automaton: Automaton, arc: Arc) -> tuple[str, str, str]:
    names = automaton.state_names
    return names[arc.source], automaton.symbols[arc.input_label], names[arc.destination]


def openfst_arcs(fst) -> dict[int, list[tuple[int, int, int]]]:
    """The arcs (input label, output label, destination) of each state, sorted."""
    return {
        state: sorted((a.ilabel, a.olabel, a.nextstate) for a in kaldifst.ArcIterator(fst, state))
        for state in kaldifst.StateIterator(fst)
    }


def shape_of(fst) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Arcs and ends with the states numbered breadth first by their labels.

    Two automata in which no two arcs of a state read and write the same, and every state can be
    reached, have the same shape if and only if they are the same but for the order of states.
    """
    arcs = openfst_arcs(fst)
    number = {fst.start: 0}
    queue = [fst.start]
    found = []
    for state in queue:
        for read, written, destination in arcs[state]:
            if destination not in number:
                number[destination] = len(number)
                queue.append(destination)
            found.append((number[state], read, written, number[destination]))
    ends = sorted(number[state] for state in arcs if fst.final(state).value < math.inf)
    return found, ends


def compose(left, right):
    kaldifst.arcsort(left, sort_type="olabel")
    kaldifst.arcsort(right, sort_type="ilabel")
    return kaldifst.compose(left, right)


def flat_lattice(case: Case) -> tuple[midge.RecognitionLattice, torch.Tensor]:
    """A lattice in which every arc weighs 0, so that all are there."""
    lattice = case.lattice()
    return lattice, torch.zeros(case.max_num_frames, lattice.weights.input_size)


class TestAppendixA:
    """The paper's worked example: a 2-gram context for {a, b} and four frames."""

    context = midge.FullNGram(vocab_size=2, context_size=2)

    def recognition(self, labels=None) -> Automaton:
        weights = midge.TableWeights(self.context)
        lattice = midge.RecognitionLattice(self.context, midge.FrameDependent(), weights)
        return Automaton.of_lattice(lattice, torch.zeros(4, 21), labels=labels)

    def test_context(self):
        automaton = Automaton.of_context(self.context)
        assert automaton.state_names == ("ε", "a", "b", "aa", "ab", "ba", "bb")
        assert automaton.start == 0
        assert automaton.final_weights == dict.fromkeys(range(7), 0.0)
        # The table of the appendix, with its (ba, b, bb) put right.
        table = """ε a a, ε b b, a a aa, a b ab, b a ba, b b bb, aa a aa, aa b ab,
                   ab a ba, ab b bb, ba a aa, ba b ab, bb a ba, bb b bb"""
        expected = [tuple(row.split()) for row in table.split(",")]
        assert [names_of(automaton, arc) for arc in automaton.arcs] == expected
        assert len(expected) == 14

    def test_alignments(self):
        chain = Automaton.of_alignment(midge.FrameDependent(), num_frames=4, vocab_size=2)
        assert chain.state_names == ("0", "1", "2", "3", "4")
        assert chain.final_weights == {4: 0.0}
        assert count_paths(chain) == 81
        assert count_paths(self.recognition()) == 81
        assert count_paths(self.recognition(labels=[1, 2])) == 6
        found = [names_of(chain, arc) for arc in chain.arcs]
        for arc in [("0", "ε", "1"), ("1", "a", "2"), ("2", "ε", "3"), ("3", "b", "4")]:
            assert arc in found

    def test_states(self):
        """Of the 5 x 7 states, those that can be reached: 1 + 3 + 7 + 7 + 7."""
        automaton = self.recognition()
        histories = Automaton.of_context(self.context).state_names
        possible = {f"({t}, {q})" for t in range(5) for q in histories}
        assert set(automaton.state_names) < possible
        assert automaton.num_states == 25

    def test_path(self):
        """ε a ε b: its transitions, and their weights by the unshared projection."""
        torch.manual_seed(0)
        weights = midge.UnsharedWeights(self.context, input_size=5).double()
        lattice = midge.RecognitionLattice(self.context, midge.FrameDependent(), weights)
        hidden = torch.randn(4, 5, dtype=torch.float64)
        automaton = Automaton.of_lattice(lattice, hidden)
        arcs = {names_of(automaton, arc): arc.weight for arc in automaton.arcs}
        table = [
            ("(0, ε)", "ε", "(1, ε)", 0, 0),
            ("(1, ε)", "a", "(2, a)", 0, 1),
            ("(2, a)", "ε", "(3, a)", 1, 0),
            ("(3, a)", "b", "(4, ab)", 1, 2),
        ]
        for t, (source, label, destination, q, y) in enumerate(table):
            weight = weights.weight[q, y] @ hidden[t] + weights.bias[q, y]
            torch.testing.assert_close(arcs[source, label, destination], weight.item(), **EXACT)

    def test_matrices(self):
        """The non-zero entries of Omega_Sigma and of Omega_epsilon."""
        automaton = self.recognition()
        names = ("ε", "a", "b", "aa", "ab", "ba", "bb")
        lexical = [["."] * 7 for _ in names]
        blank = [["."] * 7 for _ in names]
        for arc in automaton.arcs:
            source, label, destination = names_of(automaton, arc)
            if source.startswith("(3, "):
                row, column = names.index(source[4:-1]), names.index(destination[4:-1])
                (blank if label == "ε" else lexical)[row][column] = label
        assert ["".join(row) for row in lexical] == [
            ".ab....",
            "...ab..",
            ".....ab",
            "...ab..",
            ".....ab",
            "...ab..",
            ".....ab",
        ]
        assert blank == [["ε" if row == q else "." for q in range(7)] for row in range(7)]


class TestAlignments:
    @pytest.mark.parametrize(
        "alignment, arcs",
        [
            (midge.FrameDependent(), "0ε1 0a1 0b1 1ε2 1a2 1b2"),
            (midge.FrameDependent(allow_blank=False), "0a1 0b1 1a2 1b2"),
            (midge.LabelDependent(2), "0ε2 0a1 0b1 1ε2 1a2 1b2"),
            (midge.LabelFrameDependent(None), "0ε1 0a0 0b0 1ε2 1a1 1b1"),
        ],
    )
    def test_topology(self, alignment, arcs):
        automaton = Automaton.of_alignment(alignment, num_frames=2, vocab_size=2)
        assert automaton.state_names == ("0", "1", "2")
        assert ["".join(names_of(automaton, arc)) for arc in automaton.arcs] == arcs.split()
        assert automaton.final_weights == {2: 0.0}

    def test_k_constrained(self):
        """Blank leaves every state, as in the paper's figure, and not only n = k."""
        alignment = midge.LabelFrameDependent(2)
        automaton = Automaton.of_alignment(alignment, num_frames=3, vocab_size=1)
        assert automaton.num_states == 10
        blanks = {names_of(automaton, arc)[::2] for arc in automaton.arcs if not arc.input_label}
        assert blanks == {(f"({t}, {n})", f"({t + 1}, 0)") for t in range(3) for n in range(3)}
        labels = {names_of(automaton, arc)[::2] for arc in automaton.arcs if arc.input_label}
        assert labels == {(f"({t}, {n})", f"({t}, {n + 1})") for t in range(3) for n in range(2)}

    @pytest.mark.parametrize("alignment", [*ALIGNMENTS.values(), midge.LabelFrameDependent(None)])
    def test_no_frames(self, alignment):
        automaton = Automaton.of_alignment(alignment, num_frames=0, vocab_size=2)
        assert (automaton.num_states, automaton.arcs) == (1, ())
        assert automaton.final_weights == {0: 0.0}


class TestDeduplication:
    def test_transducer(self):
        """The paper's figure."""
        automaton = Automaton.of_deduplication(vocab_size=2)
        symbols = automaton.symbols
        found = {
            (
                symbols[a.source],
                symbols[a.input_label],
                symbols[a.output_label],
                symbols[a.destination],
            )
            for a in automaton.arcs
        }
        text = "εεεε εaaa εbbb aεεε aaεa abbb bεεε baaa bbεb"
        assert found == {tuple(arc) for arc in text.split()}
        assert set(automaton.final_weights) == {0, 1, 2}

    @pytest.mark.parametrize("vocab_size, context_size", [(1, 1), (2, 1), (3, 1), (2, 2), (2, 3)])
    def test_number_of_states_for_ngrams(self, vocab_size, context_size):
        context = midge.FullNGram(vocab_size, context_size)
        assert self.num_composed_states(context) == 2 * context.num_states - 1
        assert self.num_lattice_states(context) == 2 * context.num_states - 1

    @pytest.mark.parametrize("vocab_size", [1, 2, 5])
    def test_number_of_states_for_the_0gram(self, vocab_size):
        context = midge.FullNGram(vocab_size, 0)
        assert self.num_composed_states(context) == 1 + vocab_size
        assert self.num_lattice_states(context) == 1 + vocab_size

    @pytest.mark.parametrize("name", CONTEXTS)
    def test_number_of_states_in_general(self, name):
        """(q, blank) for every q, and (q, y) for every distinct label y that enters q."""
        context = CONTEXTS[name]()
        entering = {
            (q, y) for row in context.next_state_table().tolist() for y, q in enumerate(row)
        }
        expected = context.num_states + len({pair for pair in entering if pair[0] >= 0})
        assert self.num_lattice_states(context) == expected

    @staticmethod
    def num_composed_states(context) -> int:
        transducer = Automaton.of_deduplication(context.vocab_size)
        return compose(
            kaldifst.compile(to_fst(transducer, blank="input")), kaldifst.compile(to_fst(context))
        ).num_states

    @staticmethod
    def num_lattice_states(context) -> int:
        """States of the last frame of a lattice that is long enough to reach them all."""
        weights = midge.TableWeights(context)
        lattice = midge.RecognitionLattice(
            context, midge.FrameDependent(), weights, deduplicate=True
        )
        num_frames = 2 * context.num_states if context.num_states < 6 else 7
        # Unlike an end, a start never fails: all that is reached is there, final or not.
        frames = torch.zeros(num_frames, weights.input_size)
        names = Automaton.of_lattice(lattice, frames).state_names
        by_time = defaultdict(set)
        for name in names:
            by_time[int(name[1:].split(",")[0])].add(name)
        return max(map(len, by_time.values()))


@pytest.mark.parametrize("case", parameters(CASES))
def test_shortest_path_of_openfst(case: Case):
    """Weight and labels of the best path, of A and of A ∩ y."""
    for export in exports(case):
        check_shortest_path(export)


def test_shortest_path_of_openfst_for_unbounded_models():
    for export in history_exports():
        check_shortest_path(export)


def check_shortest_path(export: Export):
    expected = export.lattice.shortest_path(**export.arguments)
    automaton = export.automaton
    path = automaton.best_path()
    torch.testing.assert_close(path_weight(automaton, path), float(expected.weight), **EXACT)
    alignment = expected.alignment_labels.tolist()[: int(expected.num_alignment_labels)]
    assert [automaton.arcs[number].input_label for number in path] == alignment
    best = kaldifst.shortest_path(kaldifst.compile(to_fst(automaton, blank="input")))
    if expected.weight == -torch.inf:
        assert best.num_states == 0
        return
    is_linear, read, written, cost = kaldifst.get_linear_symbol_sequence(best)
    assert is_linear
    blank = automaton.vocab_size + 1
    assert [0 if label == blank else label for label in read] == alignment
    assert written == expected.labels()
    torch.testing.assert_close(-cost.value, float(expected.weight), **SINGLE)


@pytest.mark.parametrize("case", parameters(CASES[::3]))
def test_posteriors(case: Case):
    """Of all arcs that read one label, against the marginals of the lattice."""
    for export in exports(case):
        automaton = export.automaton
        found = torch.zeros(1 + automaton.vocab_size, dtype=torch.float64)
        for arc, posterior in zip(automaton.arcs, automaton.posteriors(), strict=True):
            found[arc.input_label] += posterior
        marginals = export.lattice.arc_marginals(**export.arguments)
        expected = [marginals.blank.sum(), *marginals.lexical.sum((0, 1))]
        torch.testing.assert_close(found, torch.stack(expected), **EXACT)


@pytest.mark.parametrize(
    "case", [each for each in CASES if each.normalization == "global"], ids=str
)
def test_composition_in_openfst(case: Case):
    """L_T ∘ C, or L_T ∘ (D ∘ C), composed by OpenFst, is the lattice; so is it with labels."""
    lattice, frames = flat_lattice(case)
    context, vocab_size = lattice.context, lattice.context.vocab_size
    alignment = Automaton.of_alignment(lattice.alignment, len(frames), vocab_size)
    composed = kaldifst.compile(to_fst(context))
    if case.deduplicate:
        transducer = Automaton.of_deduplication(vocab_size)
        composed = compose(kaldifst.compile(to_fst(transducer, blank="input")), composed)
    blank = "both" if case.deduplicate else "input"
    composed = compose(kaldifst.compile(to_fst(alignment, blank=blank)), composed)
    whole = Automaton.of_lattice(lattice, frames)
    assert shape_of(kaldifst.compile(to_fst(whole, blank="input"))) == shape_of(composed)
    string = kaldifst.make_linear_acceptor([1, 1])
    composed = compose(composed, string)
    if composed.num_states:
        aligned = Automaton.of_lattice(lattice, frames, labels=[1, 1])
        assert shape_of(kaldifst.compile(to_fst(aligned, blank="input"))) == shape_of(composed)


class TestOpenFst:
    @pytest.mark.parametrize(
        "automaton",
        [
            *(Automaton.of_context(make()) for make in CONTEXTS.values()),
            *(Automaton.of_alignment(each, 3, 2) for each in ALIGNMENTS.values()),
            Automaton.of_alignment(midge.LabelFrameDependent(None), 3, 2),
            Automaton.of_deduplication(3),
        ],
    )
    def test_parts_are_read(self, automaton):
        """OpenFst has the same states, arcs, ends and weights."""
        fst = kaldifst.compile(to_fst(automaton), keep_state_numbering=True)
        assert fst.start == automaton.start
        assert fst.num_states == automaton.num_states
        arcs = sorted(
            (state, arc.ilabel, arc.olabel, arc.nextstate, arc.weight.value)
            for state in kaldifst.StateIterator(fst)
            for arc in kaldifst.ArcIterator(fst, state)
        )
        expected = sorted(
            (a.source, a.input_label, a.output_label, a.destination, -a.weight)
            for a in automaton.arcs
            if a.weight > -math.inf  # no path: not written
        )
        assert [arc[:4] for arc in arcs] == [arc[:4] for arc in expected]
        assert [arc[4] for arc in arcs] == pytest.approx([arc[4] for arc in expected], rel=1e-6)
        for state in range(automaton.num_states):
            weight = automaton.final_weights.get(state, -math.inf)
            assert math.isclose(fst.final(state).value, -weight, rel_tol=1e-6)

    def test_text(self):
        automaton = Automaton(
            state_names=("x", "y", "z"),
            start=1,
            final_weights={0: -0.5, 2: -math.inf},
            arcs=(
                Arc(0, 1, 1, 0.25, 1),
                Arc(1, 0, 0, -1.5, 0),
                Arc(1, 1, 0, 0.0, 0),
                Arc(1, 1, 1, -math.inf, 2),
            ),
            symbols=("ε", "a"),
        )
        assert to_fst(automaton) == "1\t0\t0\t0\t1.5\n1\t0\t1\t0\n0\t1\t1\t1\t-0.25\n0\t0.5\n"
        assert to_fst(automaton, blank="input").startswith("1\t0\t2\t0\t1.5\n1\t0\t1\t0\n")
        assert to_fst(automaton, blank="both").startswith("1\t0\t2\t2\t1.5\n1\t0\t1\t0\n")

    def test_context_is_taken_as_it_is(self):
        context = midge.FullNGram(2, 1)
        assert to_fst(context) == to_fst(Automaton.of_context(context))

    def test_symbols(self):
        automaton = Automaton.of_deduplication(2, symbols=["yes", "no"])
        assert fst_symbols(automaton) == "<eps>\t0\nyes\t1\nno\t2\n<blank>\t3\n"
        assert fst_symbols(midge.FullNGram(1, 0)) == "<eps>\t0\na\t1\n<blank>\t2\n"

    @pytest.mark.parametrize("symbol", ["", "two words", "<eps>", "<blank>"])
    def test_symbols_that_openfst_cannot_read(self, symbol):
        with pytest.raises(ValueError, match="white space|stand for themselves"):
            fst_symbols(Automaton.of_deduplication(1, symbols=[symbol]))

    def test_no_path(self):
        """Two labels do not fit into one frame."""
        lattice, frames = flat_lattice(Case("1-gram", "frame"))
        automaton = Automaton.of_lattice(lattice, frames, 1, [1, 2])
        assert (automaton.num_states, automaton.arcs) == (1, ())
        assert automaton.best_path() == ()
        fst = kaldifst.compile(to_fst(automaton))
        assert kaldifst.shortest_path(fst).num_states == 0

    def test_only_the_empty_path(self):
        lattice, frames = flat_lattice(Case("final-weights", "frame"))
        automaton = Automaton.of_lattice(lattice, frames.double(), 0)
        assert to_fst(automaton) == "0\t-0.3\n"
        assert automaton.best_path() == ()


class TestNames:
    def test_of_states(self):
        lattice, frames = flat_lattice(Case("1-gram", "label-frame:2"))
        names = Automaton.of_lattice(lattice, frames).state_names
        assert names[:4] == ("(0, 0, ε)", "(0, 1, a)", "(0, 1, b)", "(0, 2, a)")
        lattice, frames = flat_lattice(Case("1-gram", "frame", deduplicate=True))
        names = Automaton.of_lattice(lattice, frames, labels=[2]).state_names
        assert names[:4] == ("(0, ε, ε)", "(1, ε, ε)", "(1, b, b)", "(2, ε, ε)")
        assert len(set(names)) == len(names)

    def test_of_labels(self):
        context = midge.FullNGram(2, 2)
        words = Automaton.of_context(context, symbols=["yes", "no"])
        assert words.state_names[:4] == ("ε", "yes", "no", "yes.yes")
        many = Automaton.of_context(midge.FullNGram(30, 1))
        assert many.symbols[:2] == ("ε", "1")

    @pytest.mark.parametrize("symbols", [["a"], ["a", "a"], ["a", "ε"]])
    def test_that_do_not_fit(self, symbols):
        with pytest.raises(ValueError, match="symbols should be 2 different"):
            Automaton.of_deduplication(2, symbols=symbols)


class TestRefusals:
    def test_too_large(self):
        with pytest.raises(ValueError, match="max_num_arcs"):
            Automaton.of_context(midge.FullNGram(50, 2))
        with pytest.raises(ValueError, match="max_num_arcs"):
            Automaton.of_alignment(midge.FrameDependent(), 1000, 1000)
        with pytest.raises(ValueError, match="max_num_arcs"):
            Automaton.of_deduplication(1000)
        lattice, frames = flat_lattice(Case("2-gram", "frame"))
        size = len(Automaton.of_lattice(lattice, frames).arcs)
        Automaton.of_lattice(lattice, frames, max_num_arcs=size)
        with pytest.raises(ValueError, match="max_num_arcs"):
            Automaton.of_lattice(lattice, frames, max_num_arcs=size - 1)

    def test_without_end(self):
        for export in history_exports():
            if isinstance(export.lattice.context, midge.FullHistory):
                with pytest.raises(ValueError, match="infinitely many states"):
                    Automaton.of_lattice(export.lattice, export.frames)
            else:
                with pytest.raises(ValueError, match="infinitely many paths"):
                    Automaton.of_lattice(export.lattice, export.frames)

    def test_a_batch(self):
        lattice, frames = flat_lattice(Case("1-gram", "frame"))
        with pytest.raises(ValueError, match="one utterance"):
            Automaton.of_lattice(lattice, frames[None])

    def test_arguments(self):
        with pytest.raises(ValueError, match="blank should be one of"):
            to_fst(midge.FullNGram(1, 0), blank="label")
        with pytest.raises(ValueError, match="num_frames should be at least 0"):
            Automaton.of_alignment(midge.FrameDependent(), -1, 2)
        with pytest.raises(ValueError, match="vocab_size should be at least 1"):
            Automaton.of_deduplication(0)

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"start": 2}, "states should be"),
            ({"final_weights": {2: 0.0}}, "states should be"),
            ({"arcs": (Arc(0, 1, 1, 0.0, 2),)}, "states should be"),
            ({"arcs": (Arc(0, 2, 1, 0.0, 1),)}, "labels should be"),
            ({"arcs": (Arc(0, 1, 1, math.nan, 1),)}, "weights should be"),
            ({"final_weights": {0: math.inf}}, "weights should be"),
            ({"grid": ((0, 0),)}, "grid should place 2 states"),
        ],
    )
    def test_automata_that_are_none(self, change, message):
        right = {"state_names": ("x", "y"), "start": 0, "final_weights": {1: 0.0}, "arcs": ()}
        with pytest.raises(ValueError, match=message):
            Automaton(**{**right, "symbols": ("ε", "a"), **change})

    def test_cycles(self):
        automaton = Automaton.of_context(midge.FullNGram(1, 1))
        for method in (automaton.best_path, automaton.posteriors):
            with pytest.raises(ValueError, match="cycle"):
                method()
