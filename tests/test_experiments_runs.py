"""Experiments are run by the commands of everyday use: skipped, resumed, and failed row by row."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from midge.cli import main
from midge.configuration import to_toml
from midge.decoding import reports
from midge.experiments import RowFolder, open_rows, read_grid, read_records, run_rows
from midge.experiments.grid import EvaluationPlan
from midge.experiments.machines import commit, hardware
from midge.experiments.pages import made_table
from midge.experiments.records import evaluation_record, thinned, write_json
from midge.experiments.row_runs import _locked
from midge.experiments.tables import experiment_text, percent, results_json
from midge.models import TimedWord
from test_experiments_tallies import evaluation_of
from training_cases import tiny_table, write_corpus

TINY = {
    "recipe": "tiny.toml",
    "description": "Tones.",
    "settings": ["training.num_steps=4", "training.checkpoint_every=2", "training.log_every=1"],
    "pooled": "seed",
    "axes": {
        "normalization": {
            "local": ["lattice.normalization=softmax"],
            "global": ["lattice.normalization=global"],
        },
        "seed": {"seed-1": ["training.seed=1"], "seed-2": ["training.seed=2"]},
    },
    "contrast": {"inner": "normalization"},
    "evaluations": {"test": {"manifest": "dev/manifest.jsonl"}},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a corpus of tones, its recipe and the grid tiny_grid.toml."""
    monkeypatch.chdir(tmp_path)
    train, dev = write_corpus(tmp_path / "train"), write_corpus(tmp_path / "dev", 4, seed=1)
    table = tiny_table(train.relative_to(tmp_path), dev.relative_to(tmp_path))
    (tmp_path / "tiny.toml").write_text(to_toml(table))
    write_grid()
    return tmp_path


def write_grid(**changes):
    Path("tiny_grid.toml").write_text(to_toml({**TINY, **changes}))


def run(*arguments):
    return main(["experiment", "tiny_grid.toml", "--output", "out", *arguments])


def attempts(row):
    return [each["name"] for each in RowFolder(Path("out") / row).known_attempts()]


@pytest.mark.slow
def test_rows_are_run_once_and_a_failing_one_does_not_stop_the_others(folder, capsys):
    broken = {**TINY["axes"]["normalization"], "broken": ["data.train=missing.jsonl"]}
    table = {key: value for key, value in TINY.items() if key not in ("contrast", "pooled")}
    Path("tiny_grid.toml").write_text(to_toml({**table, "axes": {"normalization": broken}}))
    assert run("--jobs", "2") == 1
    told = capsys.readouterr()
    assert "broken: train ended with exit code 2" in told.err
    assert "missing.jsonl" in told.err
    assert "local: test" in told.err
    assert "Missing: broken." in told.out
    assert attempts("local") == attempts("global") == ["train", "evaluate test"]

    assert run("--only", "*l") == 0  # all done: nothing is run again
    assert attempts("local") == ["train", "evaluate test"]
    capsys.readouterr()
    assert run("--list") == 0
    listed = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert listed == [["local", "done"], ["global", "done"], ["broken", "4 steps left"]]


@pytest.mark.slow
def test_a_record_holds_what_pages_need_and_another_evaluation_no_training(folder):
    assert run("--only", "global-seed-1") == 0
    results = json.loads(Path("out/results.json").read_text())
    (record,) = results["rows"]
    assert results["missing"] == ["local-seed-1", "local-seed-2", "global-seed-2"]
    assert record["values"] == {"normalization": "global", "seed": "seed-1"}
    assert record["seed"] == 1
    assert record["commit"] == commit()
    assert record["hardware"] == {**hardware(), "num_threads": 1}
    training = record["training"]
    assert training["command"].startswith("midge train tiny.toml --output out/global-seed-1/run")
    assert training["num_steps"] == 4
    assert [step for step, _ in training["losses"]] == [1, 2, 3, 4]
    assert 0 < training["step_seconds"] < training["seconds"]
    scored = record["evaluations"]["test"]
    saved = reports.load(Path("out/global-seed-1/evaluations/test"))
    assert scored["groups"]["all"]["words"]["estimate"] == saved.rates[0].words.estimate
    assert len(scored["wrong"]) == saved.rates[0].errors.sentences.num_errors
    assert record == RowFolder(Path("out/global-seed-1")).record()

    plan = {"manifest": "train/manifest.jsonl", "words": ["AB", "BC"]}
    write_grid(evaluations={**TINY["evaluations"], "again": plan})
    assert run("--only", "global-seed-1") == 0
    assert attempts("global-seed-1") == ["train", "evaluate test", "evaluate again"]
    again = RowFolder(Path("out/global-seed-1")).record()["evaluations"]["again"]
    assert again["groups"]["nearest word"]["num_utterances"] == 12


@pytest.mark.slow
def test_a_row_may_start_from_a_model_and_from_that_one_alone(folder, capsys):
    table = {key: value for key, value in TINY.items() if key not in ("contrast", "pooled")}
    grid = Path("tiny_grid.toml")
    grid.write_text(to_toml({**table, "axes": {"part": {"one": []}}}))
    assert run() == 0
    started = [*TINY["settings"], "init_from=out/one/run"]
    grid.write_text(to_toml({**table, "axes": {"part": {"two": []}}, "settings": started}))
    assert run() == 0
    row = RowFolder(Path("out/two"))
    assert row.record()["init_from"] == "out/one/run"
    assert "--init-from out/one/run" in row.record()["training"]["command"]
    assert "started from out/one/run" in row.output.read_text()
    grid.write_text(to_toml({**table, "axes": {"part": {"two": []}}}))
    assert run() == 1
    assert "was begun from out/one/run, not from fresh parameters" in capsys.readouterr().err


@pytest.mark.slow
def test_rows_that_were_run_elsewhere_are_not_run_again(folder, capsys):
    assert run("--only", "*-seed-1") == 0
    Path("out").rename("elsewhere")
    known = ("--known", "elsewhere/results.json")
    assert run(*known, "--only", "local-*") == 0
    assert attempts("local-seed-2") == ["train", "evaluate test"]
    assert not RowFolder(Path("out/local-seed-1")).attempts.exists()
    records = read_records(read_grid(Path("tiny_grid.toml")), Path("out"))
    assert [record["row"] for record in records] == ["local-seed-1", "local-seed-2"]
    # Another recipe is another row.
    write_grid(settings=[*TINY["settings"], "training.learning_rate=0.5"])
    assert run(*known, "--list") == 0
    assert "done" not in capsys.readouterr().out.split("Missing")[-1]
    # The record of a model that was not trained here is none of a row.
    Path("models.json").write_text('{"format_version": 1, "rows": [{"row": "local-seed-1"}]}')
    assert run("--known", "models.json", "--list") == 0
    Path("broken.json").write_text("[]")
    assert run("--known", "broken.json") == 2
    assert "broken.json should be the results.json" in capsys.readouterr().err


@pytest.mark.slow
def test_a_row_of_the_same_recipe_is_taken_from_another_experiment(folder):
    again = {"manifest": "train/manifest.jsonl"}
    write_grid(evaluations={**TINY["evaluations"], "again": again})
    assert run("--only", "global-seed-1") == 0
    Path("out").rename("elsewhere")
    axes = {"model": {"whole": ["lattice.normalization=global", "training.seed=1"]}}
    part = {"axes": axes, "evaluations": {"heard": again}}
    table = {key: value for key, value in TINY.items() if key not in ("contrast", "pooled")}
    Path("part.toml").write_text(to_toml({**table, **part}))
    command = ["experiment", "part.toml", "--output", "out", "--known", "elsewhere/results.json"]
    assert main(command) == 0
    row = RowFolder(Path("out/whole"))
    assert not row.attempts.exists()
    taken, record = RowFolder(Path("elsewhere/global-seed-1")).record(), row.record()
    assert (record["experiment"], record["row"]) == ("part", "whole")
    assert record["values"] == {"model": "whole"}
    assert record["taken_from"] == {"experiment": "tiny_grid", "row": "global-seed-1"}
    assert record["training"] == taken["training"]
    assert record["evaluations"] == {"heard": taken["evaluations"]["again"]}
    assert "whole (is global-seed-1 of tiny_grid)" in made_table(
        read_grid(Path("part.toml")), [record]
    )
    # What was not measured there is: for want of the model the row is trained.
    part["evaluations"]["test"] = TINY["evaluations"]["test"]
    Path("part.toml").write_text(to_toml({**table, **part}))
    assert main(command) == 0
    assert attempts("whole") == ["train", "evaluate heard", "evaluate test"]
    assert "taken_from" not in row.record()


@pytest.mark.slow
def test_a_training_that_outlives_its_experiment_is_known(folder):
    """What the log has when the experiment is killed, and the training lives on to its end."""
    assert run("--only", "local-seed-1") == 0
    row = RowFolder(Path("out/local-seed-1"))
    (training, *_), steps = row.known_attempts(), row.record()["training"]["step_seconds"]
    begun = {key: x for key, x in training.items() if key not in ("seconds", "exit_code")}
    row.attempts.write_text(json.dumps(begun | {"commit": "then"}) + "\n")
    (row.path / "row.json").unlink()
    assert run("--only", "local-seed-1") == 0
    record = row.record()
    assert record["commit"].startswith("then")
    assert record["training"]["num_attempts"] == 2
    assert record["training"]["started"] == training["started"]
    assert record["training"]["seconds"] >= steps


@pytest.mark.slow
def test_a_stopped_experiment_goes_on_where_it_was(folder):
    write_grid(settings=["training.num_steps=2000", "training.log_every=1"])
    command = [sys.executable, "-m", "midge", "experiment", "tiny_grid.toml", "--output", "out"]
    process = subprocess.Popen([*command, "--only", "local-seed-1"], stderr=subprocess.PIPE)
    row = RowFolder(Path("out/local-seed-1"))
    while row.newest_step() < 5:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    told = process.communicate()[1].decode()
    assert process.returncode == 1
    assert "local-seed-1: saved; the same command goes on" in told
    stopped = row.newest_step()
    assert 5 <= stopped < 2000
    assert "Stopped after step" in row.output.read_text()

    write_grid(settings=[f"training.num_steps={stopped + 2}", "training.log_every=1"])
    assert run("--only", "local-seed-1") == 0
    assert f"goes on after step {stopped}" in row.output.read_text()
    assert row.record()["training"]["num_attempts"] == 2
    assert [step for step, _ in row.record()["training"]["losses"]][-1] == stopped + 2


def test_a_row_at_work_elsewhere_is_left_alone(folder):
    grid = read_grid(Path("tiny_grid.toml"))
    (busy,) = open_rows(grid, Path("out"), grid.matching("local-seed-1"))
    Path("out/local-seed-1").mkdir(parents=True)
    told = []
    with _locked(Path("out/local-seed-1/lock")) as lock:
        assert lock is not None
        outcomes = run_rows(grid, Path("out"), [busy], tell=told.append)
    assert [outcome.status for outcome in outcomes] == ["busy"]
    assert told == ["local-seed-1: is left to the process that is at work on it"]
    assert not RowFolder(Path("out/local-seed-1")).attempts.exists()


def test_a_row_that_cannot_be_written_fails_and_is_told(folder):
    grid = read_grid(Path("tiny_grid.toml"))
    rows = open_rows(grid, Path("out"), grid.matching("local-seed-*"))
    Path("out").mkdir()
    for run_of in rows:
        run_of.folder.path.write_text("a file in the place of a folder")
    told = []
    outcomes = run_rows(grid, Path("elsewhere"), rows, tell=told.append, num_jobs=2)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed"]
    assert all("FileExistsError" in line for line in told)


def test_nothing_is_begun_after_a_request_to_stop(folder):
    grid = read_grid(Path("tiny_grid.toml"))
    (row,) = open_rows(grid, Path("out"), grid.matching("local-seed-1"))
    stop = threading.Event()
    stop.set()
    assert row.run(stop).status == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "the pattern should fit a row of tiny_grid, got 'nothing'"),
        (["--jobs", "0"], "--jobs should be at least 1, got 0"),
        (["--threads", "0"], "--threads should be at least 1, got 0"),
        (["--rows", "-1"], "--rows should be at least 0, got -1"),
    ],
)
def test_mistakes_of_the_command_are_told(folder, capsys, arguments, message):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_no_rows_write_the_table_alone(folder, capsys):
    assert run("--rows", "0") == 0
    assert "Missing: local-seed-1, local-seed-2" in capsys.readouterr().out
    assert json.loads(Path("out/results.json").read_text())["rows"] == []


def test_a_damaged_record_is_named(folder, capsys):
    Path("out/local-seed-1").mkdir(parents=True)
    Path("out/local-seed-1/row.json").write_text("{")
    assert run() == 2
    assert "out/local-seed-1/row.json is not the record of a row" in capsys.readouterr().err
    Path("out/local-seed-1/row.json").write_text('{"format_version": 99}')
    assert run() == 2
    assert "has format version 99" in capsys.readouterr().err


def test_confidences_and_delays_are_in_the_record(tmp_path):
    evaluation = evaluation_of(("ONE TWO", "ONE TWO", "ann"), ("TWO", "ONE", "ben"))
    words = [("ONE", 0.9), ("TWO", 0.8), ("ONE", 0.6)]
    timed = [TimedWord(text, 0.0, 0.1, confidence) for text, confidence in words]
    for result, own in zip(evaluation.results, (timed[:2], timed[2:]), strict=True):
        object.__setattr__(result, "words", tuple(own))
    reports.save(evaluation, tmp_path)
    interval = {"estimate": 0.1, "low": 0.0, "high": 0.2}
    live = {
        "percentiles": {"committed": {"p50": 0.3}},
        "revision_rate": 0.1,
        "evaluations": {"streaming": {"groups": {"all": {"words": {"rate": interval}}}}},
        "utterances": ["many"],
    }
    (tmp_path / "streaming.json").write_text(json.dumps(live))
    record = evaluation_record(tmp_path, EvaluationPlan(manifest="m"))
    assert record["calibration"]["num_words"] == 3
    assert sum(each["num_words"] for each in record["calibration"]["bins"]) == 3
    assert record["streaming"]["percentiles"] == {"committed": {"p50": 0.3}}
    assert record["streaming"]["word_error_rates"] == {"streaming": interval}
    assert "utterances" not in record["streaming"]


def test_a_curve_is_thinned_by_means():
    points = [(step, float(step)) for step in range(1, 1001)]
    curve = thinned(points, 10)
    assert curve[0] == (100, 50.5) and curve[-1] == (1000, 950.5) and len(curve) == 10
    assert thinned(points[:3], 10) == points[:3]
    assert thinned([(1, None), (2, 3.0)], 1) == [(2, 3.0)]
    assert thinned([]) == []


def test_json_is_read_as_it_was_written(tmp_path):
    value = {"a": {"b": {"c": [1, 2.5, None], "d": {}}}, "e": [], "f": [{"g": "ü"}]}
    write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == value
    assert '   "c": [1, 2.5, null]' in text.splitlines()[3]


def test_the_commit_tells_of_changes(tmp_path):
    assert commit(tmp_path) == ""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    environment = {k: x for k, x in os.environ.items() if not k.startswith("GIT_")}

    def git(*arguments):
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, env=environment)

    git("init", "-q")
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    clean = commit(tmp_path)
    assert len(clean) == 12
    (tmp_path / "a").write_text("b")
    assert commit(tmp_path) == clean + "+"


def test_tables_show_what_is_done_and_what_is_missing(folder):
    grid = read_grid(Path("tiny_grid.toml"))
    tally = {"ann": [1, 10, 1, 2], "ben": [3, 10, 2, 2]}
    interval = {"estimate": 0.2, "low": 0.1, "high": 0.3}
    records = [
        {
            "row": row.name,
            "values": dict(row.values),
            "seed": 1,
            "commit": "abc",
            "recipe_hash": "def",
            "training": {
                "dev": {},
                "num_parameters": 1_500_000,
                "num_steps": 4,
                "seconds": 61.0,
            },
            "evaluations": {
                "test": {"groups": {"all": {"words": interval}}, "tallies": {"all": tally}}
            },
        }
        for row in grid.rows[:3]
    ]
    text = experiment_text(grid, records)
    assert "| local-seed-1 | - | 20.00 [10.00, 30.00] | 1.50 M | 4 | 1:01 | 1 | abc | def |" in text
    assert "| local | test | all | 2 | 20.00 | 20.00 to 20.00 | 20.00 [10.00, 30.00] |" in text
    assert "|  | test | all | 1 | 20.00 | 20.00 | +0.00 [+0.00, +0.00] |" in text
    assert "Missing: global-seed-2." in text
    assert results_json(grid, records)["missing"] == ["global-seed-2"]
    assert read_records(grid, Path("nowhere")) == []
    assert percent(None) == percent(float("nan")) == "-"
