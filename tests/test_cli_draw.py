import pytest

from commands import help_examples
from midge.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("what", ["context", "alignment", "deduplication", "lattice"])
def test_every_automaton_is_drawn(what, here, capsys):
    assert main(["draw", what, "-o", "a.svg"]) == 0
    assert capsys.readouterr().out == "Wrote a.svg\n"
    assert "<svg" in (here / "a.svg").read_text()


@pytest.mark.parametrize("kind", ["frame", "frame-without-blank", "label-frame", "label"])
def test_every_alignment_lattice_is_drawn(kind, here):
    assert main(["draw", "alignment", "--kind", kind, "--num-frames", "2", "-o", "a.png"]) == 0
    assert (here / "a.png").read_bytes().startswith(b"\x89PNG")


def test_options_change_the_picture(here):
    pictures = set()
    for options in (
        [],
        ["--seed", "1"],
        ["--labels", "1"],
        ["--normalization", "global"],
        ["--context-size", "0"],
        ["--deduplicate"],
    ):
        assert (
            main(["draw", "lattice", "--num-frames", "2", "--weights", *options, "-o", "a.svg"])
            == 0
        )
        pictures.add((here / "a.svg").read_text())
    assert len(pictures) == 6
    assert main(["draw", "lattice", "--num-frames", "2", "--weights", "-o", "a.svg"]) == 0
    assert (here / "a.svg").read_text() in pictures, "the same command writes the same bytes"


@pytest.mark.slow
def test_the_examples_of_the_help_work(here, capsys):
    for arguments in help_examples("draw", capsys):
        assert main(arguments) == 0
    assert len(list(here.glob("*.svg"))) == 5


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["draw"], "what"),
        (["draw", "tree", "-o", "a.svg"], "invalid choice"),
        (["draw", "context"], "--output"),
        (["draw", "context", "-o", "a.pdf"], "should end in .svg or .png"),
        (["draw", "context", "-o", "nowhere/a.svg"], "nowhere/a.svg"),
        (["draw", "context", "--vocab-size", "0", "-o", "a.svg"], "vocab_size should be"),
        (["draw", "context", "--seed", "1", "-o", "a.svg"], "--seed does not go with context"),
        (["draw", "deduplication", "--weights", "-o", "a.svg"], "--weights does not go"),
        (["draw", "alignment", "--max-labels", "1", "-o", "a.svg"], "--kind frame"),
        (["draw", "alignment", "--num-frames", "-1", "-o", "a.svg"], "--num-frames should be"),
        (["draw", "lattice", "--labels", "3", "-o", "a.svg"], "labels should be 1..2"),
        (["draw", "lattice", "--vocab-size", "30", "-o", "a.svg"], "draw at most 500"),
        (["draw", "context", "--context-size", "30", "-o", "a.svg"], "arcs"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, message, here, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert "Traceback" not in captured.err and list(here.iterdir()) == []
