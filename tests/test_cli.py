import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import midge
from midge.cli import main
from midge.demos import label_bias

ROOT = Path(__file__).parent.parent
FEW_STEPS = ("demo", "label-bias", "--steps", "1", "--output")


@pytest.fixture(scope="module")
def small():
    config = label_bias.Config(vocab_size=2, num_labels=2, hidden_size=4, num_steps=1)
    return label_bias.run(config)


@pytest.fixture
def agreeing(small, monkeypatch):
    """Results that agree with the theory, without the training."""

    def run(config, progress):
        models = [
            dataclasses.replace(
                model,
                measurement=dataclasses.replace(
                    model.measurement,
                    loss=model.prediction.bound,
                    accuracy=model.prediction.accuracy,
                    delay=model.prediction.delay,
                ),
            )
            for model in small.models
        ]
        return dataclasses.replace(small, config=config, models=tuple(models))

    monkeypatch.setattr(label_bias, "run", run)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"midge {midge.__version__}\n"


@pytest.mark.parametrize("command", [(), ("demo",), ("demo", "label-bias")])
def test_help(command, capsys):
    assert main([*command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: midge", *command]))


def test_the_example_of_the_help_works(agreeing, tmp_path, monkeypatch, capsys):
    main(["demo", "label-bias", "--help"])
    lines = capsys.readouterr().out.splitlines()
    (example,) = [line.split() for line in lines if line.startswith("  midge ")]
    monkeypatch.chdir(tmp_path)
    assert main(example[1:]) == 0
    assert (tmp_path / "demo" / "label-bias.png").exists()


def test_a_demonstration_prints_a_table_and_writes_files(agreeing, tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main([*FEW_STEPS, str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "label-bias.png",
        "label-bias.svg",
        "results.json",
    ]
    captured = capsys.readouterr()
    assert "agree for every model" in captured.out
    assert str(folder / "results.json") in captured.err


def test_arguments_reach_the_demonstration(agreeing, tmp_path, capsys):
    assert main([*FEW_STEPS, str(tmp_path), "--seed", "7", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["config"]["seed"] == 7 and printed["config"]["num_steps"] == 1
    assert printed["version"] == midge.__version__
    assert printed == json.loads((tmp_path / "results.json").read_text())


def test_too_few_steps_disagree_with_the_theory(tmp_path, capsys):
    assert main([*FEW_STEPS, str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "do NOT agree" in captured.out
    assert "training: 5/5 steps" in captured.err
    assert (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "COMMAND"),
        (["sing"], "invalid choice"),
        (["demo"], "there is no recipes/spoken/streaming.toml"),
        (["demo", "label-bias", "--steps", "many"], "invalid int value"),
        (["demo", "label-bias", "--steps", "0"], "num_steps should be at least 1, got 0"),
        (["demo", "label-bias", "--seed", "-1"], "seed should be"),
        (["demo", "label-bias", "--loud"], "unrecognized arguments"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: " in captured.err and message in captured.err
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_a_file_is_told_before_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(label_bias, "run", lambda *_: pytest.fail("trained"))
    occupied = tmp_path / "occupied"
    occupied.touch()
    assert main([*FEW_STEPS, str(occupied)]) == 2
    assert capsys.readouterr().err == f"midge: error: {occupied}: File exists\n"


def test_missing_matplotlib_is_told_before_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(label_bias, "run", lambda *_: pytest.fail("trained"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*FEW_STEPS, str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("midge: error: ") and "midge[pictures]" in error


def test_an_error_of_ours_keeps_its_traceback(tmp_path, monkeypatch):
    def run(*_):
        raise ValueError("a bug")

    monkeypatch.setattr(label_bias, "run", run)
    with pytest.raises(ValueError, match="a bug"):
        main([*FEW_STEPS, str(tmp_path)])


def test_an_interruption_is_no_success(tmp_path, monkeypatch, capsys):
    def run(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(label_bias, "run", run)
    assert main([*FEW_STEPS, str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("midge: interrupted\n")


def test_python_dash_m():
    done = subprocess.run(
        [sys.executable, "-m", "midge", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout == f"midge {midge.__version__}\n"


def test_an_interruption_while_modules_load_is_told_without_a_traceback(tmp_path):
    """A real Ctrl-C in the first second of the command that is installed."""
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["midge"]
    module, _, function = script.partition(":")
    (tmp_path / "midge").mkdir()  # one that takes its time to load
    (tmp_path / "midge" / "__init__.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    )
    code = f"from {module} import {function}; raise SystemExit({function}())"
    path = os.pathsep.join((str(tmp_path), str(ROOT / "src")))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "midge: interrupted\n")
