"""ARPA files and phrases against their plain definitions; fusion inside the lattice."""

from __future__ import annotations

import gzip
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import midge
from cases import Case, random_frames
from midge.decoding.beam import BeamConfig, beam_search
from midge.decoding.biasing import PhraseBias, phrase_bias
from midge.decoding.exact import sum_path
from midge.decoding.fusion import Fusion, fused_lattice
from midge.decoding.language_models import NgramModel, label_words, read_arpa
from midge.tokens import TokensConfig, build_tokens
from oracles import log_sum

LABELS = {"A": 1, "B": 2}
ARPA = """\
made by hand

\\data\\
ngram 1=5
ngram 2=5
ngram 3=2

\\1-grams:
-99 <s> -0.3
-0.7 </s>
-0.5 A -0.2
-0.6 B -0.4
-1.5 <unk>

\\2-grams:
-0.2 <s> A -0.1
-0.3 A B -0.25
-0.9 B </s>
-0.4 B B
-0.8 A A

\\3-grams:
-0.15 <s> A B
-0.35 A B </s>

\\end\\
"""


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "model.arpa"
    path.write_text(ARPA)
    return path


def grams_of(text):
    """Every n-gram of a file: log10 probability and back-off, by words."""
    found = {}
    order = 0
    for line in text.splitlines():
        if line.endswith("-grams:"):
            order = int(line[1])
        elif order and line and not line.startswith("\\"):
            fields = line.split()
            back_off = float(fields[order + 1]) if len(fields) > order + 1 else 0.0
            found[tuple(fields[1 : order + 1])] = (float(fields[0]), back_off)
    return found


def plain_log10(grams, history, word):
    """Katz's recursion, as it is written."""
    if (*history, word) in grams:
        return grams[(*history, word)][0]
    return grams.get(tuple(history), (0.0, 0.0))[1] + plain_log10(grams, history[1:], word)


def plain_score(grams, words, order):
    total = 0.0
    history = ["<s>"]
    for word in [*words, "</s>"]:
        total += plain_log10(grams, history[-(order - 1) :] if order > 1 else [], word)
        history.append(word)
    return total * math.log(10.0)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_scores_are_those_of_the_definition(arpa, is_compressed, tmp_path):
    if is_compressed:
        arpa = tmp_path / "model.arpa.gz"
        arpa.write_bytes(gzip.compress(ARPA.encode()))
    model = read_arpa(arpa, LABELS)
    assert (model.order, model.vocab_size, model.num_ignored) == (3, 2, 1)
    grams = grams_of(ARPA)
    for size in range(5):
        for words in itertools.product("AB", repeat=size):
            found = model.score([LABELS[word] for word in words])
            assert found == pytest.approx(plain_score(grams, words, 3), abs=1e-12)
    states = {model.start}
    for _ in range(4):
        states |= {int(after) for state in states for after in model.arcs(state)[1]}
    assert all(len(model.history(state)) < model.order for state in states)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3))
def test_random_models(seed, order, vocab_size):
    generator = torch.Generator().manual_seed(seed)

    def number():
        return -2 * float(torch.rand((), generator=generator))

    single = [-1, 0, *range(1, vocab_size + 1)]
    entries = {(y,): (number(), number() if order > 1 else 0.0) for y in single}
    for size in range(2, order + 1):
        for history in [gram for gram in list(entries) if len(gram) == size - 1 and gram[-1] >= 0]:
            for label in [-1, *range(1, vocab_size + 1)]:
                if float(torch.rand((), generator=generator)) < 0.5:
                    back_off = number() if size < order and number() < -1 else 0.0
                    entries[(*history, label)] = (number(), back_off)
    model = NgramModel(entries, vocab_size)
    for labels in itertools.product(range(1, vocab_size + 1), repeat=4):
        total, history = 0.0, [0]
        for label in [*labels, -1]:
            total += plain_log10(entries, history[-(order - 1) :] if order > 1 else [], label)
            history.append(label)
        assert model.score(labels) == pytest.approx(total, abs=1e-9)


def test_words_that_are_no_labels_and_labels_that_are_no_words(arpa):
    model = read_arpa(arpa, {"A": 1, "C": 2})
    assert model.num_ignored == 7
    assert model.arcs(model.start)[0][1] == pytest.approx((-0.3 - 1.5) * math.log(10))
    with pytest.raises(ValueError, match="2 of 2 labels are no words"):
        read_arpa(arpa, {"C": 1, "D": 2})


def test_labels_of_graphemes_are_characters():
    tokens = build_tokens(TokensConfig(), [("u", "a b")])
    assert label_words(tokens) == {"<space>": 1, "A": 2, "B": 3}


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("ngram 2=5", "ngram 2=6", "should hold 6 2-grams, got 5"),
        ("\\end\\", "", "should begin by"),
        ("\\data\\", "data", "should begin by"),
        ("-0.3 A B", "x A B", "line 17 should begin and end by a number"),
        ("-0.3 A B", "nan A B", "line 17 should hold finite numbers"),
        ("-0.4 B B", "-0.4 B", "line 19 should hold a 2-gram"),
        ("-0.15 <s> A B", "-0.15 <s> A B -0.1", "should hold a 3-gram"),
        ("ngram 3=2", "ngram 3=two", "line 6 should hold a whole number"),
    ],
)
def test_a_broken_file_is_named_with_its_line(old, new, message, tmp_path):
    path = tmp_path / "broken.arpa"
    path.write_text(ARPA.replace(old, new, 1))
    with pytest.raises(ValueError, match="broken.arpa") as caught:
        read_arpa(path, LABELS)
    assert message in str(caught.value)


def test_files_that_are_not_there_or_no_text(tmp_path):
    with pytest.raises(OSError, match="nowhere.arpa"):
        read_arpa(tmp_path / "nowhere.arpa", LABELS)
    (tmp_path / "noise.arpa").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="UTF-8"):
        read_arpa(tmp_path / "noise.arpa", LABELS)
    with pytest.raises(ValueError, match="2 has none"):
        NgramModel({(1,): (0.0, 0.0)}, 2)


FUSIBLE = [
    Case("2-gram", "frame"),
    Case("2-gram", "frame", "softmax"),
    Case("2-gram", "frame", "hat"),
    Case("2-gram", "frame-no-blank", "softmax"),
    Case("2-gram", "label-frame:2"),
    Case("2-gram", "label-frame:1", "softmax"),
    Case("2-gram", "label-frame:2", "hat"),
    Case("2-gram", "label:all"),
    Case("2-gram", "frame", deduplicate=True),
    Case("2-gram", "frame", "softmax", deduplicate=True),
    Case("2-gram", "frame-no-blank", "softmax", deduplicate=True),
    Case("2-gram", "label-frame:2", deduplicate=True),
    Case("2-gram", "label-frame:2", "hat", deduplicate=True),
]


@pytest.mark.parametrize("case", FUSIBLE, ids=str)
def test_a_lattice_with_a_model_inside_is_the_product(case, arpa):
    """Every exact method of it is of P(y | x) P_LM(y)^weight e^(bonus |y|), normalized."""
    model = read_arpa(arpa, LABELS)
    frames = random_frames(case, seed=3)
    oracle = case.enumeration(frames, len(frames))
    lattice = fused_lattice(case.lattice(), model, weight=0.7, label_bonus=0.2)
    scores = {
        y: oracle.log_z(y)
        + 0.7 * plain_score(grams_of(ARPA), ["?AB"[x] for x in y], 3)
        + 0.2 * len(y)
        for y in oracle.spelled()
    }
    total = log_sum(list(scores.values()))
    found = sum_path(
        lattice, frames, torch.tensor(len(frames)), num_best=10**6, max_expansions=None
    )
    assert {each.labels for each in found.sequences} == scores.keys()
    for each in found.sequences:
        assert each.log_probability == pytest.approx(scores[each.labels] - total, abs=1e-9)
    loss = lattice(
        frames,
        torch.tensor(len(frames)),
        torch.tensor(found.labels, dtype=torch.int64),
        torch.tensor(len(found.labels)),
    )
    assert -float(loss) == pytest.approx(found.log_probability, abs=1e-9)
    beam = beam_search(
        case.lattice(),
        frames,
        config=BeamConfig(beam_size=10**6),
        fusion=Fusion(((0.7, model),), label_bonus=0.2),
    )
    best = max(scores.values())
    assert scores[beam.sequences[0].labels] == pytest.approx(best, abs=1e-9)


def test_a_network_with_a_model_inside(arpa):
    torch.manual_seed(0)
    context = midge.FullNGram(2, 2)
    weights = midge.SharedRNNWeights(context, 6, 16, 5, 8)
    plain = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
    model = read_arpa(arpa, LABELS)
    lattice = fused_lattice(plain, model, weight=0.5)
    frames, count = 3 * torch.randn(9, 6), torch.tensor(9)
    found = sum_path(lattice, frames, count, num_best=2, max_expansions=None)
    with torch.no_grad():
        first, second = (
            -float(plain(frames, count, torch.tensor(each.labels), torch.tensor(len(each.labels))))
            + 0.5 * model.score(each.labels)
            for each in found.sequences
        )
    ratio = found.sequences[0].log_probability - found.sequences[1].log_probability
    assert ratio == pytest.approx(first - second, abs=1e-4)
    path = lattice.shortest_path(frames, count)
    assert math.isfinite(float(path.weight))


@pytest.mark.parametrize(
    "case, message",
    [
        (Case("1-gram", "frame"), "up to context size"),
        (Case("0-gram-3", "frame"), "3 labels"),
    ],
    ids=str,
)
def test_what_does_not_fit_on_arcs_is_refused(case, message, arpa):
    with pytest.raises(ValueError, match=message):
        fused_lattice(case.lattice(), read_arpa(arpa, LABELS))


@pytest.mark.parametrize(
    "context, message",
    [
        (midge.FullNGram(2, 2), "unbounded labels per frame; use a beam"),
        (midge.FullHistory(2), "unbounded history; use a beam"),
    ],
    ids=str,
)
def test_what_has_no_end_is_refused(context, message, arpa):
    weights = midge.SharedRNNWeights(context, 6, 16, 5, 8)
    lattice = midge.RecognitionLattice(
        context, midge.LabelFrameDependent(None), weights, normalization="hat"
    )
    with pytest.raises(ValueError, match=message):
        fused_lattice(lattice, read_arpa(arpa, LABELS))


def plain_phrases(phrases, labels, bonus, separator):
    """Every occurrence of every phrase, by looking everywhere."""
    ends = () if separator is None else (separator,)
    text = (*ends, *labels, *ends)
    total = 0
    for phrase in {tuple(phrase) for phrase in phrases}:
        wanted = (*ends, *phrase, *ends)
        for at in range(len(text) - len(wanted) + 1):
            total += len(phrase) * (text[at : at + len(wanted)] == wanted)
    return bonus * total


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), max_size=5),
    st.lists(st.integers(1, 3), max_size=12),
    st.sampled_from([None, 3]),
)
def test_phrases_earn_for_every_occurrence_and_nothing_else(phrases, labels, separator):
    bias = PhraseBias(phrases, vocab_size=3, bonus=0.5, separator=separator)
    expected = plain_phrases(phrases, labels, 0.5, separator)
    assert bias.score(labels) == pytest.approx(expected, abs=1e-12)


def test_a_phrase_is_helped_before_it_is_whole():
    bias = PhraseBias([[1, 2, 3, 1]], vocab_size=3, bonus=2.0)
    growing = [bias.score([1, 2, 3, 1][:size], is_ended=False) for size in range(5)]
    assert growing[:4] == [0.0, 2.0, 4.0, 6.0]
    assert growing[4] == 8.0 + 2.0  # the last label begins it again
    assert bias.score([1, 2, 2], is_ended=False) == 0.0


def test_phrases_of_text_are_whole_words():
    tokens = build_tokens(TokensConfig(), [("u", "one tone ones")])
    bias = phrase_bias(tokens, ["one"], bonus=1.0)
    for text, count in {"ONE": 1, "TONE ONES": 0, "ONES ONE ONE": 2, "O": 0}.items():
        assert bias.score(tokens.encode(text)) == pytest.approx(3.0 * count)
    with pytest.raises(ValueError, match="'X'"):
        phrase_bias(tokens, ["xy"])
    with pytest.raises(ValueError, match="phrases should hold at least one label"):
        phrase_bias(tokens, ["one", " "])
    with pytest.raises(ValueError, match="bonus should be"):
        phrase_bias(tokens, ["one"], bonus=math.inf)


def test_phrases_change_the_answer_of_a_beam():
    context = midge.FullNGram(3, 1)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), normalization="softmax"
    )
    frames = torch.zeros(4, 4, 4)
    frames[0, :, 1], frames[2, :, 2], frames[2, :, 3] = 5.0, 5.0, 4.5
    frames[1, :, 0], frames[3, :, 0] = 5.0, 5.0
    assert beam_search(lattice, frames.flatten(1)).labels == [1, 2]
    fusion = Fusion(((1.0, PhraseBias([[1, 3]], 3, bonus=0.5)),))
    assert beam_search(lattice, frames.flatten(1), fusion=fusion).labels == [1, 3]
