import json

import numpy as np
import pytest

from corpora import tone, write_audio
from midge.cli import main, prepare
from midge.data import read_manifest


@pytest.fixture
def folder(tmp_path):
    """Three recordings: two good ones, one without text; of speakers nobody knows."""
    for name in ("a", "b", "c"):
        write_audio(tmp_path / "source" / f"{name}.wav", tone(0.4))
    for name in ("a", "b"):
        (tmp_path / "source" / f"{name}.txt").write_text("hello")
    return tmp_path / "source"


@pytest.fixture
def table(folder):
    path = folder / "table.csv"
    path.write_text("audio,text,speaker\na.wav,one,x\nb.wav,two,y\nc.wav,three,z\n")
    return path


def test_a_corpus_is_imported(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert (
        main(["prepare", "folder", str(folder), str(out), "--split", "test", "--workers", "1"]) == 0
    )
    captured = capsys.readouterr()
    assert "utterances 2, speakers unknown" in captured.out
    assert "1 rejected:\n  c: there is no c.txt beside it" in captured.out
    assert "checking: 2/2 recordings" in captured.err
    assert str(out / "test.jsonl.gz") in captured.err
    assert [each.id for each in read_manifest(out / "test.jsonl.gz")] == ["a", "b"]
    assert {path.name for path in out.iterdir()} == {"test.jsonl.gz", "report.txt", "report.json"}


def test_json(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["prepare", "folder", str(folder), str(out), "--json", "--workers", "0"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "report.json").read_text())
    assert printed["splits"]["train"]["num_utterances"] == 2


def test_speakers_and_folds(table, tmp_path, capsys):
    (tmp_path / "dev.txt").write_text("y\n")
    options = ["--dev-speakers", str(tmp_path / "dev.txt"), "--folds", "2", "--workers", "0"]
    assert main(["prepare", "table", str(table), str(tmp_path / "out"), *options]) == 0
    assert {path.name for path in (tmp_path / "out").glob("*.gz")} == {
        "train.jsonl.gz",
        "dev.jsonl.gz",
        *(f"fold-{i}.{part}.jsonl.gz" for i in (1, 2) for part in ("train", "dev")),
    }
    assert "fold-2.dev.jsonl.gz" in capsys.readouterr().err


def test_nothing_usable_is_a_mistake(tmp_path, capsys):
    write_audio(tmp_path / "source" / "a.wav", np.zeros(100))
    (tmp_path / "source" / "a.txt").write_text("hello")
    assert main(["prepare", "folder", str(tmp_path / "source"), str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert "a: its recording is silent" in captured.out and "Traceback" not in captured.err
    assert "silent" in (tmp_path / "out" / "report.txt").read_text()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "KIND"),
        (["sing"], "invalid choice"),
        (["kaldi", "nowhere", "out"], "wav.scp"),
        (["librispeech", "nowhere", "out"], "trans.txt"),
        (["manifest", "nowhere.jsonl", "out"], "nowhere.jsonl: No such file"),
        (["table", "nowhere.csv", "out"], "nowhere.csv: No such file"),
        (["folder", "nowhere", "out"], "nowhere: Not a directory"),
        (["folder", ".", "out", "--folds", "1"], "num_folds should be 0 or at least 2"),
        (["folder", ".", "out", "--seed", "-1"], "--seed should be at least 0"),
        (["folder", ".", "out", "--workers", "-1"], "--workers should be at least 0"),
        (["folder", ".", "out", "--dev-speakers", "no.txt"], "no.txt: No such file"),
        (["digit-strings", "nowhere.jsonl", "out"], "nowhere.jsonl"),
        (["spoken", "out", "--minutes", "-1"], "minutes should be"),
        (["spoken", "out", "--share", "digits"], "--share should be KIND=X"),
        (["spoken", "out", "--share", "songs=1"], "shares should be of"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *arguments]) == 2
    captured = capsys.readouterr()
    assert "error: " in captured.err and message in captured.err
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


KINDS = ("librispeech", "kaldi", "manifest", "table", "folder", "spoken", "digit-strings")


@pytest.mark.parametrize("kind", KINDS)
def test_help_shows_an_example(kind, capsys):
    assert main(["prepare", kind, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: midge prepare {kind}")
    (example,) = [line.split() for line in printed.splitlines() if line.startswith("  midge ")]
    assert example[:3] == ["midge", "prepare", kind]


def test_the_examples_of_the_help_are_understood(monkeypatch, capsys):
    main(["prepare", "--help"])
    lines = capsys.readouterr().out.splitlines()
    examples = [line.split()[1:] for line in lines if line.startswith("  midge ")]
    understood = []
    for name in ("_run_importer", "_run_spoken", "_run_digit_strings"):
        monkeypatch.setattr(prepare, name, lambda arguments: understood.append(arguments) or 0)
    assert [main(example) for example in examples] == [0] * 4
    assert [str(arguments.output) for arguments in understood] == [
        "data/librispeech",
        "data/an4",
        "data/spoken",
        "data/digits",
    ]


def test_the_shares_of_what_is_spoken_can_be_chosen(tmp_path, capsys):
    size = ["--minutes", "0.1", "--num-dev", "1", "--num-test", "2"]
    shares = ["--share", "digits=1", "--share", "spelled=1"]
    assert main(["prepare", "spoken", str(tmp_path), *size, *shares]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    spoken = {line.split()[1] for line in lines if line.endswith("(synthetic)")}
    assert spoken == {"digits", "spelled"}
    assert "train" in lines and "All of it is synthetic speech, by espeak-ng." in lines
    assert [line.split()[0] for line in lines if " ms " in line] == ["20", "30", "40", "60"] * 3
    report = json.loads((tmp_path / "report.json").read_text())
    sizes = {name: split["num_utterances"] for name, split in report["splits"].items()}
    assert sizes.keys() == {"dev", "test", "train"} and (sizes["dev"], sizes["test"]) == (1, 2)
    assert all(line in (tmp_path / "report.txt").read_text().splitlines() for line in lines[-5:])
    assert str(tmp_path / "report.json") in printed.err


def test_digit_strings_have_a_report_too(tmp_path, capsys):
    lines = []
    for number, word in enumerate(("ONE", "TWO")):
        write_audio(tmp_path / f"{word}.wav", tone(0.3, frequency=300 + 100 * number))
        entry = {"id": word, "audio": f"{word}.wav", "text": word, "speaker": "ann"}
        lines.append(json.dumps(entry))
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    size = ["--num-strings", "3", "--min-length", "2"]
    assert main(["prepare", "digit-strings", str(tmp_path), str(out), *size]) == 0
    printed = capsys.readouterr()
    assert "utterances 3, speakers 1" in printed.out and "frames per label" in printed.out
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        "train.jsonl.gz",
        "report.txt",
        "report.json",
    }
    (rate, *_) = json.loads((out / "report.json").read_text())["splits"]["train"]["frame_rates"]
    assert rate["milliseconds"] == 20 and rate["num_impossible"] == 0
    assert str(out / "train.jsonl.gz") in printed.err and "report.txt" in printed.err
