"""Pictures: there, complete, the same every time. How they look is for the eye."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import midge
from cases import ALIGNMENTS, CONTEXTS, Case, random_frames
from midge.automata import Automaton
from midge.drawing import _picture, draw
from midge.drawing.edges import edges_of, typeset

FIGURES = Path(__file__).parent.parent / "docs" / "figures"


def lattice(case: Case, labels=None) -> Automaton:
    return Automaton.of_lattice(case.lattice(), random_frames(case), labels=labels)


def of_alignment(alignment: midge.AlignmentLattice, num_frames: int = 3) -> Automaton:
    return Automaton.of_alignment(alignment, num_frames, vocab_size=2)


PAPER = {
    "context": Automaton.of_context(midge.FullNGram(2, 1)),
    "frame": of_alignment(midge.FrameDependent()),
    "label and frame": of_alignment(midge.LabelFrameDependent(2)),
    "label": of_alignment(midge.LabelDependent(3)),
    "context, 2-gram": Automaton.of_context(midge.FullNGram(2, 2)),
    "deduplication": Automaton.of_deduplication(2),
    "recognition": lattice(Case("1-gram", "frame", "softmax")),
}
OTHERS = {
    **{f"context {name}": Automaton.of_context(make()) for name, make in CONTEXTS.items()},
    **{f"alignment {name}": of_alignment(each, 2) for name, each in ALIGNMENTS.items()},
    "unbounded": of_alignment(midge.LabelFrameDependent(None)),
    "no frames": of_alignment(midge.FrameDependent(), num_frames=0),
    "deduplication of 3": Automaton.of_deduplication(3),
    "k-constrained": lattice(Case("1-gram", "label-frame:2")),
    "deduplicated": lattice(Case("1-gram", "frame", deduplicate=True)),
    "string": lattice(Case("1-gram", "frame"), labels=[1, 2]),
    "odd symbols": Automaton.of_deduplication(3, symbols=["$x_1$", "▁the", "\\"]),
    "own": Automaton(("one", "two"), 0, {1: 0.0}, (), ("ε", "a")),
}


def texts(svg: str) -> set[str]:
    """What matplotlib notes beside the outlines of each text."""
    return set(re.findall(r"<!-- (.*?) -->", svg))


@pytest.mark.parametrize("name", [*PAPER, *OTHERS])
def test_svg_is_complete(tmp_path, name):
    automaton = {**PAPER, **OTHERS}[name]
    draw(automaton, tmp_path / "picture.svg")
    svg = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    edges = edges_of(automaton, apart=(), show_weights=False)
    expected = {*automaton.state_names, *(edge.text for edge in edges)}
    # matplotlib notes a plain text without its escapes.
    assert {typeset(text).replace(r"\$", "$") for text in expected} <= texts(svg)


@pytest.mark.parametrize("highlight", [None, "best path", "posteriors"])
def test_png(tmp_path, highlight):
    path = tmp_path / "picture.PNG"
    draw(PAPER["recognition"], path, weights=True, highlight=highlight)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_same_every_time(tmp_path, suffix):
    for name in ("first", "second"):
        draw(PAPER["recognition"], tmp_path / f"{name}.{suffix}", highlight="best path")
    first, second = (tmp_path / f"{name}.{suffix}" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert b"Date" not in first.read_bytes() and b"atplotlib v" not in first.read_bytes()


@pytest.mark.parametrize("name", PAPER)
def test_nothing_is_covered(name):
    """No label lies on a state or on another label, no state on another, no arrow in a state."""
    picture = _picture(PAPER[name], weights=False, highlight=None)
    centres = np.array(picture.centres)
    for number, box in enumerate(picture.boxes):
        assert not any(box.is_near(other) for other in picture.boxes[:number])
        assert box.distances(centres).min() > picture.radius
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=-1)
    assert (apart + np.eye(len(centres)) * 1e9).min() > 2 * picture.radius + 10
    for curve in picture.curves:
        gaps = np.linalg.norm(curve.samples[:, None] - centres[None], axis=-1)
        assert gaps.min() > picture.radius - 0.5


@pytest.mark.parametrize("name", [each for each in PAPER if each != "recognition"])
def test_labels_lie_on_no_arrow(name):
    """But in a recognition lattice, where arrows cross too often."""
    picture = _picture(PAPER[name], weights=False, highlight=None)
    for box in picture.boxes:
        assert all(box.distances(curve.samples).min() > 1.0 for curve in picture.curves)


class TestLabels:
    def edge_texts(self, automaton: Automaton, **options) -> list[str]:
        chosen = {"apart": (), "show_weights": False} | options
        return [edge.text for edge in edges_of(automaton, **chosen)]

    def test_all_labels_are_sigma(self):
        assert self.edge_texts(of_alignment(midge.FrameDependent(), 1)) == ["ε", "Σ"]
        assert self.edge_texts(Automaton.of_context(midge.FullNGram(4, 0))) == ["Σ"]

    def test_some_labels(self):
        few = midge.clustered_context([0, 0, 1, 1, 1, 1], context_size=1)
        assert self.edge_texts(Automaton.of_context(few))[:2] == ["a, b", "Σ∖{a,b}"]

    def test_transducers_show_both_sides(self):
        texts = self.edge_texts(Automaton.of_deduplication(1))
        assert texts == ["ε:ε", "a:a", "ε:ε", "a:ε"]

    def test_the_best_path_is_apart(self):
        automaton = lattice(Case("0-gram", "frame", "softmax"))
        best = [number for number in automaton.best_path() if automaton.arcs[number].input_label]
        assert best
        texts = self.edge_texts(automaton, apart=best)
        assert len(texts) == len(self.edge_texts(automaton)) + len(best)

    def test_weights(self):
        automaton = lattice(Case("1-gram", "frame"))
        arc = automaton.arcs[0]
        symbol = automaton.symbols[arc.input_label]
        assert self.edge_texts(automaton, show_weights=True)[0] == f"{symbol}/{arc.weight:.2f}"


def test_a_figure_without_a_file():
    figure = draw(midge.FullNGram(2, 1))
    width, height = figure.get_size_inches()
    assert 1 < width < 4 and 0.5 < height < 4


class TestRefusals:
    def test_arguments(self, tmp_path):
        context = midge.FullNGram(2, 1)
        with pytest.raises(ValueError, match=r"\.svg or \.png"):
            draw(context, tmp_path / "picture.pdf")
        with pytest.raises(ValueError, match="highlight should be one of"):
            draw(context, highlight="best")
        with pytest.raises(ValueError, match="cycle"):
            draw(context, highlight="best path")
        with pytest.raises(ValueError, match="could not be read"):
            draw(midge.FullNGram(7, 3))

    def test_without_matplotlib(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ImportError, match=r"pip install midge\[pictures\]"):
            draw(midge.FullNGram(2, 1))


def test_figures_of_the_documentation_are_up_to_date(tmp_path, monkeypatch):
    """docs/figures/make.py draws what is kept there, but for the last digits."""
    spec = importlib.util.spec_from_file_location("make_figures", FIGURES / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    module.main()
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert drawn == sorted(path.name for path in FIGURES.glob("*.svg"))
    for name in drawn:
        kept, new = ((folder / name).read_text("utf-8") for folder in (FIGURES, tmp_path))
        assert texts(kept) == texts(new)
        assert len(ElementTree.fromstring(kept).findall(".//*")) == len(
            ElementTree.fromstring(new).findall(".//*")
        )
