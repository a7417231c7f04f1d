import shutil

import pytest
import soundfile

from commands import help_examples
from midge.cli import main
from midge.models import load
from recognizers import RATE, TEXTS, noise, tiny_recognizer, write_nan, write_recordings


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model, recordings u1.wav to u4.wav, and their manifest."""
    monkeypatch.chdir(tmp_path)
    tiny_recognizer().save(tmp_path / "model")
    write_recordings(tmp_path)
    return tmp_path


def rows(text):
    return [line.split() for line in text.splitlines()]


def test_the_words_of_a_text_have_the_times_of_the_best_path(here, capsys):
    assert main(["align", "model", "u3.wav", "one one two"]) == 0
    found = rows(capsys.readouterr().out)
    assert [row[4] for row in found] == ["ONE", "ONE", "TWO"]
    samples, rate = soundfile.read("u3.wav", dtype="float32")
    expected = load("model").align(samples, rate, "ONE ONE TWO")
    assert [float(row[2]) for row in found] == pytest.approx(
        [word.start for word in expected.words], abs=0.001
    )
    assert {row[0] for row in found} == {"u3"}


def test_a_manifest_is_aligned_into_one_ctm(here, capsys):
    assert main(["align", "model", "--manifest", "manifest.jsonl"]) == 0
    found = rows(capsys.readouterr().out)
    for name, text in TEXTS.items():
        assert [row[4] for row in found if row[0] == name] == text.split()


def test_a_manifest_is_aligned_into_files(here, capsys):
    options = ["--format", "textgrid", "--output", "out"]
    assert main(["align", "model", "--manifest", "manifest.jsonl", *options]) == 0
    assert sorted(path.stem for path in (here / "out").glob("*.TextGrid")) == sorted(TEXTS)
    assert "aligning: 4/4 utterances" in capsys.readouterr().err


def test_what_cannot_be_aligned_is_named_and_the_others_go_on(here, capsys):
    text = (here / "manifest.jsonl").read_text()
    impossible = " ".join(["one"] * 100)  # more labels than frames
    lines = text.replace('"two"', f'"{impossible}"').replace("one one two", "x").splitlines()
    (here / "manifest.jsonl").write_text("\n".join(lines))
    (here / "u4.wav").unlink()
    assert main(["align", "model", "--manifest", "manifest.jsonl"]) == 1
    captured = capsys.readouterr()
    assert {row[0] for row in rows(captured.out)} == {"u1"}
    for name, reason in [("u2", "no path"), ("u3", "'X'"), ("u4", "u4.wav")]:
        assert any(f"midge: {name}: " in x and reason in x for x in captured.err.splitlines())


def test_the_examples_of_the_help_work(here, capsys):
    shutil.copytree("model", "demo/speech/global/model")
    (here / "data").mkdir()
    for path in here.glob("u?.wav"):
        shutil.copy(path, "data")
    shutil.copy("manifest.jsonl", "data/test.jsonl.gz")
    soundfile.write("speech.flac", noise(3.0, seed=2), RATE)
    (here / "speech.txt").write_text("two one\n")
    first, *others = help_examples("align", capsys)
    # The tiny model's letters are those of ONE and TWO.
    assert main([*first[:-1], first[-1].replace("THREE", "TWO")]) == 0
    for arguments in others:
        assert main(arguments) == 0
    assert len(list((here / "aligned").iterdir())) == 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["align", "model"], "give AUDIO and TEXT, or --manifest"),
        (["align", "model", "u1.wav"], "give AUDIO and TEXT"),
        (["align", "model", "nowhere.wav", "ONE"], "nowhere.wav"),
        (["align", "model", "nan.wav", "ONE"], "nan.wav has samples that are not finite"),
        (["align", "nowhere", "u1.wav", "ONE"], "nowhere"),
        (["align", "model", "u1.wav", "THREE"], "'H'"),
        (["align", "model", "u1.wav", "ONE " * 99], "no path"),
        (["align", "model", "u1.wav", "ONE", "--manifest", "manifest.jsonl"], "do not go with"),
        (["align", "model", "--manifest", "nowhere.jsonl"], "nowhere.jsonl"),
        (["align", "model", "--manifest", "manifest.jsonl", "--format", "srt"], "give --output"),
        (["align", "model", "u1.wav", "ONE", "--format", "text"], "invalid choice"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, message, here, capsys):
    write_nan(here / "nan.wav")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert "error: " in captured.err and "Traceback" not in captured.err


def test_a_manifest_of_which_nothing_can_be_aligned_is_a_mistake(here, capsys):
    for path in here.glob("*.wav"):
        path.unlink()
    assert main(["align", "model", "--manifest", "manifest.jsonl"]) == 2
    assert "no utterance could be aligned" in capsys.readouterr().err
