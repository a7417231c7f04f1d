import json
import shutil

import pytest

from commands import help_examples
from midge.cli import main
from recognizers import tiny_recognizer


def saved(folder, recognizer, **training):
    recognizer.training_summary.update(training)
    recognizer.save(folder)
    return str(folder)


def told(capsys, *arguments):
    assert main(["info", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_a_model_is(tmp_path, capsys):
    recognizer = tiny_recognizer()
    found = told(capsys, saved(tmp_path / "model", recognizer, num_steps=7, dev={"wer": 0.5}))
    total = sum(parameter.numel() for parameter in recognizer.parameters())
    assert found["model"]["parameters"] == total
    assert found["model"]["encoder_parameters"] + found["model"]["lattice_parameters"] == total
    assert found["model"]["streaming"] and found["model"]["look_ahead_seconds"] == 0.0
    assert found["front end"]["feature_size"] == 16 and found["front end"]["frame_seconds"] == 0.02
    assert found["tokens"]["symbols"] == [" ", "E", "N", "O", "T", "W"]
    assert found["lattice"]["context_states"] == 7
    assert found["training"] == {"num_steps": 7, "dev": {"wer": 0.5}}


def test_what_is_unbounded_is_called_so(tmp_path, capsys):
    recognizer = tiny_recognizer(is_streaming=False, model="rnn-t", context_size="full")
    found = told(capsys, saved(tmp_path, recognizer))
    assert found["model"]["best_path"] == "greedy" and not found["model"]["streaming"]
    assert found["lattice"]["context_size"] == "full"
    assert found["lattice"]["context_states"] == found["lattice"]["max_labels_per_frame"]
    assert found["lattice"]["context_states"] == "unbounded"
    assert found["model"]["look_ahead_seconds"] is None


def test_people_read_it_too(tmp_path, capsys):
    model = saved(tmp_path, tiny_recognizer(), num_steps=12345, dev={"wer": 0.5})
    assert main(["info", model]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in ("streaming yes", "num steps 12 345", "wer 0.5", "symbols (space) E N O T W"):
        assert line in lines


def test_the_example_of_the_help_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "demo" / "speech" / "global", tiny_recognizer())
    for arguments in help_examples("info", capsys):
        assert main(arguments) == 0
    assert "nothing is known" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["nothing", "model.json", "model.safetensors", "version"])
def test_what_is_no_model_is_told_without_a_traceback(tmp_path, damage, capsys):
    folder = tmp_path / "model"
    saved(folder, tiny_recognizer())
    if damage == "nothing":
        shutil.rmtree(folder)
    elif damage == "version":
        text = (folder / "model.json").read_text()
        (folder / "model.json").write_text(
            text.replace('"format_version": 1', '"format_version": 9')
        )
    else:
        (folder / damage).write_bytes(b"damaged")
    assert main(["info", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and str(folder) in captured.err
    assert "Traceback" not in captured.err
