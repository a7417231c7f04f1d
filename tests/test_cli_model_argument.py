"""MODEL left out, and options between the names."""

import pytest
import soundfile

from midge.cli import main, model_argument
from midge.models import load
from recognizers import RATE, noise, tiny_recognizer


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a default model, another one and two recordings."""
    monkeypatch.chdir(tmp_path)
    tiny_recognizer().save(tmp_path / "default")
    tiny_recognizer(seed=1).save(tmp_path / "other" / "model")
    monkeypatch.setattr(model_argument, "default_model_path", lambda: tmp_path / "default")
    for number in range(2):
        soundfile.write(f"u{number}.wav", noise(1.0, seed=number), RATE)
    return tmp_path


def heard(model, name):
    samples, rate = soundfile.read(name, dtype="float32")
    return load(model).transcribe(samples, rate).text


def test_without_a_model_the_default_one_hears(here, capsys):
    assert main(["transcribe", "u0.wav"]) == 0
    assert capsys.readouterr().out == heard("default", "u0.wav") + "\n"
    assert main(["stream", "u0.wav", "--fast", "--no-endpoints"]) == 0
    assert capsys.readouterr().out == heard("default", "u0.wav") + "\n"
    assert main(["transcribe", "u0.wav", "u1.wav"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{name}\t{heard('default', name)}" for name in ("u0.wav", "u1.wav")]
    assert main(["transcribe", "missing.wav", "u1.wav"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("u1.wav\t") and "missing.wav: " in captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["other", "u0.wav", "--no-endpoints"],
        ["other", "--no-endpoints", "u0.wav"],
        ["--no-endpoints", "other", "u0.wav"],
        ["other", "--blank-penalty", "0", "u0.wav", "--no-endpoints"],
    ],
    ids=" ".join,
)
def test_a_folder_is_the_model_wherever_the_options_are(here, arguments, capsys):
    expected = heard("other", "u0.wav")
    assert expected != heard("default", "u0.wav")
    assert main(["transcribe", *arguments]) == 0
    assert capsys.readouterr().out == expected + "\n"
    assert main(["stream", *arguments, "--fast"]) == 0
    assert capsys.readouterr().out == expected + "\n"


def test_without_a_default_model_one_has_to_be_named(here, capsys, monkeypatch):
    def nothing():
        raise ValueError("this installation of midge has no default model: name one")

    monkeypatch.setattr(model_argument, "default_model_path", nothing)
    assert main(["transcribe", "u0.wav"]) == 2
    assert "no default model" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["transcribe"], ["transcribe", "other"]], ids=" ".join)
def test_nothing_to_hear_is_a_mistake(here, arguments, capsys):
    assert main(arguments) == 2
    assert "name at least one AUDIO file" in capsys.readouterr().err


def test_an_unknown_option_is_refused(here, capsys):
    assert main(["transcribe", "u0.wav", "--endpoint", "1"]) == 2
    assert "unrecognized arguments: --endpoint" in capsys.readouterr().err
