"""The benchmark command, at tiny shapes; no time is asserted."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from midge.bench import accuracy, contest, losses, peak, report, rows, scaling, stopwatch, worker
from midge.bench.contest import Contestant, Measurement, Result
from midge.bench.rows import Row, Shape
from midge.cli import main
from tolerances import SINGLE

TINY = Shape(batch=2, frames=6, labels=2, vocab=3, encoder=4, hidden=5, embedding=3, rnn=4)
SIZES = [
    text for name, size in dataclasses.asdict(TINY).items() for text in (f"--{name}", str(size))
]
ROW = Row(2, "frame", "shared-rnn", "global")
ONE = ["--context", "2", "--alignment", "frame", "--weights", "shared-rnn"]
DOCUMENT = Path(__file__).parent.parent / "benchmarks" / "peers" / "document.py"


def measured(factor: float = 1.0, **changes: object) -> Measurement:
    values = {"train_s": 0.5, "decode_s": 0.1, "train_peak_mb": 20.0, "decode_peak_mb": 5.0}
    scaled = {name: factor * value for name, value in values.items()}
    return Measurement(**{**scaled, "loss": 7.0, "path_weight": -1.0, "engine": "test"} | changes)


def result(row: Row = ROW, shape: Shape = TINY, factor: float = 1.0) -> Result:
    peers = {"LAST": measured(8 * factor, compile_s=3.0)}
    if row.weights != "unshared":
        peers["LAST tuned"] = measured(4 * factor, compile_s=3.0)
    return Result(row, shape, measured(factor), peers)


@pytest.fixture
def without_measuring(monkeypatch):
    """Every measurement succeeds at once; gives the commands."""
    commands = []

    def run_json(command):
        commands.append(command)
        cost = {"seconds": 1.0 + len(commands), "peak_mb": 10.0 - len(commands), "repetitions": 1}
        return {**cost, "loss": 7.0, "path_weight": -1.0, "engine": "test"}

    for module in (contest, losses, peak):
        monkeypatch.setattr(module, "run_json", run_json)
    monkeypatch.setattr(accuracy, "SHAPE", TINY)
    return commands


def test_there_are_36_rows():
    assert len(set(rows.rows())) == 36
    assert {row.normalization for row in rows.rows()} == {"hat", "global"}


@pytest.mark.parametrize("row", rows.rows(), ids=lambda row: row.name)
def test_every_row_can_be_computed(row):
    problem = rows.problem_of(rows.draw(row, TINY))
    losses_found = problem.train()
    assert losses_found.shape == (2,) and bool(losses_found.isfinite().all())
    assert problem.frames.grad is not None
    without = [n for n, p in problem.lattice.named_parameters() if p.grad is None]
    # After the start symbol alone an LSTM has not used its recurrent weights.
    is_start_alone = row.weights == "shared-rnn" and row.context == 0
    assert without == (["weights.rnn.weight_hh_l0"] if is_start_alone else [])
    assert bool(problem.decode().isfinite().all())


def test_the_same_seed_gives_the_same_numbers(tmp_path):
    path = tmp_path / "inputs.npz"
    rows.save(path, ROW, TINY, seed=3)
    drawn = rows.draw(ROW, TINY, seed=3)
    with np.load(path) as saved:
        assert set(saved) == set(drawn)
        assert all(np.array_equal(saved[name], drawn[name]) for name in saved)
    assert not np.array_equal(rows.draw(ROW, TINY, seed=4)["frames"], drawn["frames"])
    problem = rows.load(path)
    assert problem.row == ROW and problem.shape == TINY
    assert torch.equal(problem.train(), rows.problem_of(drawn).train())


def test_labels_are_in_the_alphabet():
    labels = rows.draw(ROW, dataclasses.replace(TINY, batch=50))["labels"]
    assert labels.min() == 1 and labels.max() == TINY.vocab


def test_the_first_step_gives_the_peak_and_is_not_timed(monkeypatch):
    times = iter([9.0, 2.0, 1.5])
    monkeypatch.setattr(stopwatch, "_seconds", lambda step: step() or next(times))
    kept = []
    cost = stopwatch.measure(lambda: kept.append(bytearray(b"1" * 2**24)) if not kept else None)
    assert cost.seconds == 1.5
    assert cost.repetitions == 2  # a third would go beyond the budget of 4 s
    if sys.platform == "linux":
        assert 15 < cost.peak_mb < 40


def test_a_long_first_step_is_the_measurement(monkeypatch):
    times = iter([stopwatch.LONG_SECONDS])
    monkeypatch.setattr(stopwatch, "_seconds", lambda step: next(times))
    assert stopwatch.measure(lambda: None)[::2] == (stopwatch.LONG_SECONDS, 1)


def test_one_row_prints_one_json_object(capsys):
    assert main(["bench", *ONE, "--normalization", "global", *SIZES, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"train_s", "decode_s", "train_peak_mb", "decode_peak_mb", "loss"} <= set(found)
    assert all(found[name] == size for name, size in dataclasses.asdict(TINY).items())
    assert all(found[name] == value for name, value in dataclasses.asdict(ROW).items())
    assert found["engine"] == worker.engine_name()
    expected = rows.problem_of(rows.draw(ROW, TINY)).train().mean().item()
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["local", "hat"])
def test_local_means_hat(name, without_measuring, capsys):
    assert main(["bench", *ONE, "--normalization", name, *SIZES, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["normalization"] == "hat"


def test_without_a_choice_all_rows_are_measured(without_measuring, tmp_path, capsys):
    assert main(["bench", *SIZES, "--output", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 2 + 36 and all(line.startswith("| ") for line in lines)
    assert "measuring: 72/72 measurements" in captured.err
    names = ["bench.png", "bench.svg", "results.json", "table.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    saved = json.loads((tmp_path / "results.json").read_text())
    assert len(saved["rows"]) == 36
    assert lines[-1] in (tmp_path / "table.md").read_text()


def test_the_paper_shape_can_be_changed_in_part(without_measuring, capsys):
    arguments = ["bench", *ONE, "--normalization", "global", "--paper", "--encoder", "2"]
    assert main([*arguments, "--batch", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[name] for name in ("batch", "frames", "labels")] == [1, 1024, 256]


def test_contestants_take_turns(without_measuring):
    peer = Contestant("peer", ("peer",), ("--fast",))
    stranger = Contestant("stranger", ("stranger",), knows=lambda row: False)
    found = contest.measure_row(ROW, TINY, [peer, stranger], rounds=2)
    order = [(command[0] == "peer", "train" in command) for command in without_measuring]
    turn = [(False, True), (True, True), (False, False), (True, False)]
    assert order == turn * 2
    assert without_measuring[1][-1] == "--fast"
    assert contest.num_measurements([ROW], [peer, stranger], rounds=2) == 8
    assert found.ours.train_s == 2.0 and found.ours.train_peak_mb == 9.0
    assert list(found.peers) == ["peer"] and found.peers["peer"].train_s == 3.0


def test_a_peer_with_another_loss_is_refused(without_measuring, monkeypatch):
    run = contest.run_json

    def other(command):
        return run(command) | ({"loss": 7.1} if command[0] == "peer" else {})

    monkeypatch.setattr(contest, "run_json", other)
    with pytest.raises(RuntimeError, match=r"the loss of peer is 7\.1, ours is 7\.0"):
        contest.measure_row(ROW, TINY, [Contestant("peer", ("peer",))])


def test_what_a_failed_measurement_said_is_told():
    with pytest.raises(RuntimeError, match="failed with 3: the reason"):
        contest.run_json(
            [sys.executable, "-c", "import sys; print('the reason', file=sys.stderr); sys.exit(3)"]
        )


def test_results_survive_json():
    found = result()
    assert Result.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_table_shows_how_many_times_ours_a_peer_takes():
    other = Row(2, "frame", "unshared", "hat")
    heading, _, first, second = report.table([result(), result(other)]).splitlines()
    assert heading.count("|") == first.count("|") == second.count("|")
    assert "4 (8.0 x)" in first and "2 (4.0 x)" in first
    assert "(4.0 x)" not in second  # the tuned one does not know the row


def test_plots_are_written(tmp_path):
    written = report.save_results([result(), result(Row(0, "frame", "unshared", "hat"))], tmp_path)
    written += report.save_scaling(some_series(), tmp_path)
    assert len(written) == 8 and all(path.stat().st_size > 0 for path in written)


def test_unknown_memory_is_drawn_and_told(tmp_path):
    unknown = dataclasses.replace(result(), ours=measured(train_peak_mb=None))
    report.save_results([unknown], tmp_path)
    assert "| ? |" in report.table([unknown])


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_slope_of_a_power_law(power):
    sizes = [1, 3, 10, 50]
    assert scaling.slope(sizes, [7 * size**power for size in sizes]) == pytest.approx(power)


def test_slope_without_a_line():
    assert math.isnan(scaling.slope([1, 2], [0.0, 1.0]))
    assert math.isnan(scaling.slope([2, 2], [1.0, 1.0]))


def some_series() -> list[scaling.Series]:
    return [
        scaling.Series(
            variable,
            tuple(size for size, _, _ in points),
            tuple(result(row, shape, factor=float(size)) for size, row, shape in points),
        )
        for variable, points in scaling.plan(ROW, TINY).items()
    ]


def test_scaling_varies_one_size_at_a_time():
    points = scaling.plan(ROW, TINY)
    assert tuple(points) == scaling.VARIABLES
    assert [size for size, _, _ in points["context states"]] == [1, 4, 13]
    assert [size for size, _, _ in points["frames"]] == [6, 12, 24, 48]
    table = scaling.table(some_series())
    assert table.count("| 1.00 |") == 8


def test_scaling_is_a_command(without_measuring, tmp_path, capsys):
    assert main(["bench", "--scaling", *SIZES, "--output", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["scaling"]
    assert [each["variable"] for each in found] == list(scaling.VARIABLES)
    # The shape itself, as a point of every line, is measured once.
    assert len(without_measuring) == scaling.num_measurements(ROW, TINY) == 2 * 11
    assert (tmp_path / "scaling.svg").exists()


def test_shares_of_the_peak(tmp_path):
    path = tmp_path / "inputs.npz"
    rows.save(path, peak.ROW, TINY)
    found = peak.Peak(TINY, **peak.measure_here(path))
    assert 0 < found.forward_gflops < found.sgemm_gflops
    assert found.train_share == found.train_gflops / found.sgemm_gflops
    assert "GFLOP/s" in str(found)
    assert json.dumps(found.to_json())


def test_ctc_equals_that_of_torch():
    case = losses.Case(loss="ctc", batch=2, frames=8, labels=3, vocab=4)
    ours, theirs = (losses.measure_here(case, name) for name in losses.contestants(case))
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def test_rnnt_of_given_predictor_outputs():
    case = losses.Case(loss="rnnt", batch=2, frames=4, labels=3, vocab=4, hidden=5)
    inputs = losses._inputs(case)
    scores = inputs.lattice.weights.logits(inputs.frames).log_softmax(-1)
    expected = torch.stack([plain_rnnt(*pair) for pair in zip(scores, inputs.labels, strict=True)])
    found = losses._step(inputs, "midge")
    torch.testing.assert_close(found, expected.detach(), **SINGLE)
    assert inputs.frames.grad is not None and inputs.lattice.weights.outputs.grad is not None


def plain_rnnt(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """RNN-T of one utterance from normalized scores [T, U + 1, 1 + V], cell by cell."""
    num_frames, num_positions, _ = scores.shape
    into = {(0, 0): scores.new_zeros(())}
    for t in range(num_frames):
        for u in range(num_positions):
            before = [into[t, u]] if (t, u) in into else []
            if t > 0:
                before.append(into[t - 1, u] + scores[t - 1, u, 0])
            if u > 0:
                before.append(into[t, u - 1] + scores[t, u - 1, labels[u - 1]])
            into[t, u] = torch.logsumexp(torch.stack(before), 0)
    return -(into[num_frames - 1, num_positions - 1] + scores[-1, -1, 0])


@pytest.mark.parametrize("flag, names", [("--ctc", ["midge", "torch"]), ("--rnnt", ["midge"])])
def test_losses_are_a_command(flag, names, without_measuring, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["bench", flag, "--rounds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    found = [line.split(" | ")[1] for line in lines]
    assert found == names * (2 if flag == "--ctc" else 1)
    assert len(without_measuring) == 2 * len(found)


def test_accuracy_is_a_command(capsys):
    assert main(["bench", "--accuracy", *SIZES, "--json"]) == 0
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert len(errors) == accuracy.num_cases()
    assert {"frames"} < set(errors[-1]["gradient_errors"])
    for error in errors:
        assert 0 < error["loss"] and 0 <= error["loss_error"] < 1e-3
        assert 0 < max(error["gradient_errors"].values()) < 1e-4
    assert main(["bench", "--accuracy", *SIZES]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(errors)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--context", "3"], "invalid choice"),
        (["--frames", "0"], "frames should be at least 1, got 0"),
        (["--frames", "4", "--labels", "5"], "labels should be at most frames (4)"),
        (["--rounds", "0"], "--rounds should be at least 1"),
        (["--seed", "-1"], "--seed should be at least 0"),
        (["--peers", "nowhere/python"], "make .venv-last"),
        (["--peak", "--scaling"], "not allowed with"),
        (["--accuracy", "--paper"], "--paper does not go with --accuracy"),
        (["--accuracy", "--rounds", "2"], "--rounds does not go with --accuracy"),
        (["--peak", "--context", "1"], "--context does not go with --peak"),
        (["--context", "0", "--peak"], "--context does not go with --peak"),
        (["--ctc", "--output", "somewhere"], "--output does not go with --ctc"),
        (["--ctc", "--frames", "10", "--labels", "6"], "at most half of frames"),
        (["--save-inputs", "inputs.npz"], "one row, got 36"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(
    arguments, message, without_measuring, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err
    assert captured.out == "" and without_measuring == [] and list(tmp_path.iterdir()) == []


def test_inputs_of_a_row_can_be_saved(tmp_path, without_measuring):
    path = tmp_path / "inputs.npz"
    arguments = [*ONE, "--normalization", "global", *SIZES, "--save-inputs", str(path)]
    assert main(["bench", *arguments]) == 0
    assert rows.load(path).row == ROW and without_measuring == []


def test_every_example_of_the_help_is_understood(without_measuring, tmp_path, monkeypatch, capsys):
    main(["bench", "--help"])
    lines = capsys.readouterr().out.splitlines()
    examples = [line.split()[1:] for line in lines if line.startswith("  midge ")]
    assert len(examples) == 8
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rows, "REDUCED", TINY)
    monkeypatch.setattr(peak, "measure_peak", lambda shape, seed: "peak")
    peers = [Contestant("LAST", ("last",))]
    monkeypatch.setattr(contest, "last_contestants", lambda python: peers)
    assert [main(example) for example in examples] == [0] * 8


def test_the_page_is_written_from_results(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("document", DOCUMENT)
    document = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "document", document)
    spec.loader.exec_module(document)
    kept = {
        "machines": {part: f"2 cores, {part}" for part in document.PARTS},
        "reduced": [result(row).to_json() for row in rows.rows()],
        "paper": [result(row).to_json() for row in document.chosen_rows("paper", False)],
        "peak": peak.Peak(TINY, 100.0, 80.0, 70.0, "test", 2).to_json(),
        "accuracy": [dataclasses.asdict(accuracy.Error("table", 7.0, 1e-5, {"frames": 1e-6}))],
        "losses": [
            {
                "case": dataclasses.asdict(losses.CTC[0]),
                "costs": [dataclasses.asdict(losses.LossCost("midge", 1.0, 2.0, 3.0, "test"))],
            }
        ],
        "scaling": [
            {**each.to_json(), "results": [found.to_json() for found in each.results]}
            for each in some_series()
        ],
    }
    (tmp_path / "results.json").write_text(json.dumps(kept))
    files = ["--results", str(tmp_path / "results.json"), "--page", str(tmp_path / "page.md")]
    monkeypatch.setattr(sys, "argv", ["document.py", "--write", *files])
    document.main()
    page = (tmp_path / "page.md").read_text()
    assert "80%" in page
    assert all(f"Measured on 2 cores, {part}." in page for part in document.PARTS)
    # Eight times as fast is enough for a 2-gram, not for a 1-gram.
    assert "| 2-gram, frame, shared-rnn, global | 8.0 x (wanted 7.5) |" in page
    assert "| 1-gram, frame, shared-rnn, global | 8.0 x (wanted 45) **missed** |" in page
    assert page.count("sgemm reaches 100 GFLOP/s here, and our joint 80.") == 1
    assert len(document.chosen_rows("paper", False)) == 12
