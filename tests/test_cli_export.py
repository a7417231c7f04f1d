"""Models to give away: whole, or in half the size and nearly the same."""

import numpy as np
import torch

from commands import help_examples
from midge.cli import main
from midge.models import load
from recognizers import tiny_recognizer


def test_a_whole_copy(tmp_path):
    recognizer = tiny_recognizer()
    recognizer.training_summary.update(num_steps=7)
    recognizer.save(tmp_path / "run" / "model")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "given")]) == 0
    copy = load(tmp_path / "given")
    assert copy.training_summary == {"num_steps": 7}
    for name, value in recognizer.state_dict().items():
        assert torch.equal(copy.state_dict()[name], value)


def test_half_precision_is_half_the_size_and_loads_as_float32(tmp_path, capsys):
    recognizer = tiny_recognizer()
    recognizer.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "given"), "--half"]) == 0
    assert " MB" in capsys.readouterr().err
    copy = load(tmp_path / "given")
    parameters = dict(recognizer.named_parameters())
    for name, value in copy.state_dict().items():
        rounded = parameters[name].half() if name in parameters else recognizer.state_dict()[name]
        assert torch.equal(value, rounded.to(value.dtype)) and value.dtype != torch.float16
    sizes = [(tmp_path / x / "model.safetensors").stat().st_size for x in ("given", "run")]
    assert sizes[0] < 0.7 * sizes[1]
    tone = np.sin(np.arange(16000, dtype=np.float32))
    assert np.isfinite(copy.transcribe(tone, 16000).score)


def test_a_model_that_is_none(tmp_path, capsys):
    assert main(["export", str(tmp_path), str(tmp_path / "given")]) == 2
    assert "is no model of midge" in capsys.readouterr().err
    assert not (tmp_path / "given").exists()


def test_the_example_of_the_help_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_recognizer().save(tmp_path / "demo" / "speech" / "global")
    for arguments in help_examples("export", capsys):
        assert main(arguments) == 0
    copy = load(tmp_path / "models" / "demo")
    assert copy.training_summary["description"] == "spoken digits"
