"""Whole runs on a corpus of tones: they learn, stop, go on to the bit, and name what they skip."""

import json
import signal

import pytest
import torch

from midge.audio import FrontEnd
from midge.cli.mistakes import Mistake
from midge.configuration import to_table, to_toml
from midge.data import read_manifest
from midge.decoding.errors import ErrorCounts, count_errors
from midge.models import load
from midge.training import CheckpointFolder, TrainingError, train
from midge.training.logs import Display
from midge.training.updates import Updates
from training_cases import tiny_recipe, write_corpus

QUIET = "augmentation.num_time_masks=0"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    return write_corpus(folder / "train"), write_corpus(folder / "dev", 4, seed=1)


def lines(folder, kind):
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def last(folder):
    return CheckpointFolder(folder / "checkpoints", 1).load_last(pytest.fail)


def assert_same_checkpoints(one, other):
    assert one.step == other.step
    assert one.state["run"] == other.state["run"]
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[name].keys()
        for key, tensor in tensors.items():
            assert torch.equal(tensor, other.tensors[name][key]), f"{name}: {key}"


def stop_after(monkeypatch, step):
    """Sends a real Ctrl-C to this process after a step."""
    advance = Display.advance

    def advance_and_stop(self, now, note, *, is_logged):
        advance(self, now, note, is_logged=is_logged)
        if now == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Display, "advance", advance_and_stop)


@pytest.mark.parametrize("normalization", ["global", "hat"])
def test_a_run_learns_tones_and_writes_its_model(corpora, tmp_path, capsys, normalization):
    recipe = tiny_recipe(
        corpora[0],
        corpora[0],  # can it learn, not what it makes of new data: twelve utterances are few
        f"lattice.normalization={normalization}",
        "training.num_steps=120",
        "training.learning_rate=0.03",
        "training.log_every=10",
        "training.evaluate_every=60",
        "encoder.size=32",
        "augmentation.speeds=[1.0]",
        "augmentation.max_frequency_mask=0",
        QUIET,
    )
    outcome = train(recipe, tmp_path / "run")
    assert outcome.is_finished and outcome.state.step == 120
    steps = lines(tmp_path / "run", "step")
    assert [line["step"] for line in steps] == list(range(10, 121, 10))
    assert steps[-1]["loss"] < 0.3 * steps[0]["loss"]
    assert outcome.state.best.word_error_rate < 0.3
    for name in ("learning_rate", "gradient_norm", "frames_per_second", "max_arc_weight"):
        assert all(line[name] > 0 for line in steps)
    assert all((line["denominator"] != 0) == (normalization == "global") for line in steps)
    told = capsys.readouterr().err
    assert "million parameters" in told and "s per step" in told and "step 120/120" in told

    recognizer = load(tmp_path / "run")
    errors = ErrorCounts()
    for utterance in read_manifest(corpora[0]):
        audio = utterance.load()
        found = recognizer.transcribe(audio.samples, audio.sample_rate).text
        errors += count_errors(utterance.text.split(), found.split())
    assert errors.rate == outcome.state.best.word_error_rate
    assert recognizer.training_summary["recipe"] == to_table(recipe)
    assert not recognizer.training


@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("training.averaging=exponential", "training.accumulation=2", "data.num_workers=1"),
        ("training.averaging=last", "training.averaging_steps=8", "lattice.normalization=softmax"),
    ],
)
def test_a_stopped_run_goes_on_to_the_bit(corpora, tmp_path, monkeypatch, capsys, assignments):
    recipe = tiny_recipe(*corpora, *assignments)
    train(recipe, tmp_path / "whole")
    for step in (3, 7):
        with monkeypatch.context() as patched:
            stop_after(patched, step - 1)  # seen with the next step
            outcome = train(recipe, tmp_path / "pieces")
        assert not outcome.is_finished and outcome.state.step == step
        assert last(tmp_path / "pieces").step == step
    assert train(recipe, tmp_path / "pieces").is_finished
    assert_same_checkpoints(last(tmp_path / "whole"), last(tmp_path / "pieces"))
    assert "goes on after step 7" in capsys.readouterr().err
    whole, pieces = (lines(tmp_path / name, "step") for name in ("whole", "pieces"))
    assert [line["step"] for line in whole] == [line["step"] for line in pieces]
    for name in ("whole", "pieces"):
        files = (tmp_path / name / "model" / "model.safetensors").read_bytes()
        assert files == (tmp_path / "whole" / "model" / "model.safetensors").read_bytes()


def test_a_finished_run_is_left_as_it_is_and_may_be_longer(corpora, tmp_path, capsys):
    recipe = tiny_recipe(*corpora, "training.num_steps=4")
    train(recipe, tmp_path / "run")
    before = last(tmp_path / "run")
    assert train(recipe, tmp_path / "run").is_finished
    assert_same_checkpoints(before, last(tmp_path / "run"))
    longer = tiny_recipe(*corpora, "training.num_steps=6", "data.num_workers=1")
    assert train(longer, tmp_path / "run").state.step == 6
    assert "training.num_steps was 4, is 6" in capsys.readouterr().err


def test_another_recipe_in_the_same_folder_is_refused(corpora, tmp_path):
    train(tiny_recipe(*corpora, "training.num_steps=2"), tmp_path / "run")
    with pytest.raises(ValueError, match="training.seed was 0, is 1.*another --output"):
        train(tiny_recipe(*corpora, "training.seed=1"), tmp_path / "run")


def test_an_unreadable_utterance_is_named_and_the_run_goes_on(tmp_path, capsys):
    manifest = write_corpus(tmp_path / "train")
    (tmp_path / "train" / "u0-03.wav").write_bytes(b"no audio")
    dev = write_corpus(tmp_path / "dev", 3, seed=1)
    (tmp_path / "dev" / "u1-01.wav").unlink()
    outcome = train(tiny_recipe(manifest, dev, "training.num_steps=8"), tmp_path / "run")
    assert outcome.is_finished and outcome.state.num_skipped > 0
    skipped = [each for line in lines(tmp_path / "run", "skipped") for each in line["utterances"]]
    assert {each["id"] for each in skipped} == {"u0-03"}
    assert not any(line["is_whole_step"] for line in lines(tmp_path / "run", "skipped"))
    assert outcome.state.best.num_unread == 1 and outcome.state.best.num_utterances == 2
    told = capsys.readouterr().err
    assert "skipped u0-03: " in told and "1 could not be read" in told


def test_memory_and_time_are_told_before_the_first_step(corpora, tmp_path, capsys, monkeypatch):
    recipe = tiny_recipe(*corpora, "training.num_steps=3", "training.log_every=1")
    train(recipe, tmp_path / "run")
    told = capsys.readouterr().err.splitlines()
    wanted = ("million parameters", "s per step, by a trial of one batch: 3 steps", "step 1/3")
    places = [[n for n, line in enumerate(told) if part in line] for part in wanted]
    (memory,), (seconds,), (step,) = places
    assert memory < seconds < step
    monkeypatch.setattr(Updates, "try_batch", lambda *_: 7200.0)  # and it does nothing
    train(recipe, tmp_path / "untried")
    assert "s per step, by a trial" in capsys.readouterr().err
    assert_same_checkpoints(last(tmp_path / "run"), last(tmp_path / "untried"))
    train(recipe, tmp_path / "run")  # has nothing left to do
    assert "s per step" not in capsys.readouterr().err


def test_characters_that_no_token_spells_are_named_once(corpora, tmp_path, capsys):
    dev = write_corpus(tmp_path / "dev", 3, seed=1)
    entries = [json.loads(line) for line in dev.read_text().splitlines()]
    entries[1]["text"] += " \u00e9"
    dev.write_text("\n".join(map(json.dumps, entries)))
    recipe = tiny_recipe(corpora[0], dev, "training.num_steps=2", "training.evaluate_every=1")
    outcome = train(recipe, tmp_path / "run")
    told = [line for line in capsys.readouterr().err.splitlines() if "no token spells" in line]
    (line,) = told
    assert "1 utterances of development data" in line and "u1-01 ('\u00c9')" in line
    assert outcome.state.best.num_utterances == 3 and outcome.state.best.num_impossible == 1
    longer = tiny_recipe(corpora[0], dev, "training.num_steps=3", "training.evaluate_every=1")
    train(longer, tmp_path / "run")
    (logged,) = lines(tmp_path / "run", "uncovered")
    assert logged["utterances"] == [{"id": "u1-01", "characters": "\u00c9"}]


def test_an_output_that_cannot_be_written_is_told_at_once(corpora, tmp_path, monkeypatch):
    (tmp_path / "run").write_text("a file")
    monkeypatch.setattr(FrontEnd, "fit", lambda *_: pytest.fail("the data was read"))
    with pytest.raises(FileExistsError, match="run"):
        train(tiny_recipe(*corpora), tmp_path / "run")


@pytest.mark.parametrize("part", ["train", "dev"])
def test_an_empty_manifest_is_refused_by_name(corpora, tmp_path, part):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.jsonl should hold utterances"):
        train(tiny_recipe(*corpora, f"data.{part}={empty}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_gives_up_and_says_so(corpora, tmp_path):
    recipe = tiny_recipe(
        *corpora,
        "training.learning_rate=1e30",
        "training.num_steps=60",
        "training.evaluate_every=100",
    )
    with pytest.raises(TrainingError, match="20 steps in a row.*learning_rate"):
        train(recipe, tmp_path / "run")
    assert all(line["utterances"] for line in lines(tmp_path / "run", "skipped"))


def test_training_stops_early_without_progress(corpora, tmp_path):
    recipe = tiny_recipe(
        *corpora, "training.learning_rate=1e-30", "training.patience=2", "training.num_steps=100"
    )
    outcome = train(recipe, tmp_path / "run")
    assert outcome.is_finished
    assert outcome.state.step == 12 and outcome.state.best_step == 4
    assert last(tmp_path / "run").step == 12
    assert load(tmp_path / "run").training_summary["step"] == 4


def test_a_run_without_development_data_keeps_its_last_model(corpora, tmp_path):
    recipe = tiny_recipe(corpora[0], None, "training.num_steps=3", "training.precision=bfloat16")
    outcome = train(recipe, tmp_path / "run")
    assert outcome.state.best is None
    saved = last(tmp_path / "run").tensors["model"]
    for name, tensor in load(tmp_path / "run").state_dict().items():
        assert torch.equal(tensor, saved[name])


def test_a_run_may_start_from_another_model(corpora, tmp_path, capsys):
    train(tiny_recipe(*corpora, "training.num_steps=4"), tmp_path / "first")
    recipe = tiny_recipe(*corpora, "training.num_steps=1", "training.learning_rate=1e-30")
    train(recipe, tmp_path / "second", init_from=tmp_path / "first")
    assert "which gave 100.0% of the numbers" in capsys.readouterr().err
    first, second = (load(tmp_path / name).state_dict() for name in ("first", "second"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("normalization", ["global", "softmax"])
def test_options_of_the_loss_serve_both_normalizations(corpora, tmp_path, normalization):
    recipe = tiny_recipe(
        *corpora,
        f"lattice.normalization={normalization}",
        "training.num_steps=3",
        "training.entropy_weight=0.1",
        "training.delay_penalty=0.01",
        "training.num_warmup_steps=1",
    )
    assert train(recipe, tmp_path / "run").is_finished
    assert lines(tmp_path / "run", "skipped") == []


def command(arguments):
    """Runs `midge train`, as the command line does."""
    import argparse

    from midge.cli import train as subject

    parser = argparse.ArgumentParser()
    subject.add_to(parser.add_subparsers())
    parsed = parser.parse_args(["train", *map(str, arguments)])
    return parsed.run(parsed)


def test_the_command_trains_and_tells(corpora, tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(to_toml(to_table(tiny_recipe(*corpora))))
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        stop_after(patched, 1)
        assert command([recipe, "--set", "training.num_steps=3", "--tensorboard"]) == 1
    assert "The same command goes on:" in capsys.readouterr().err
    assert command([recipe, "--set", "training.num_steps=3"]) == 0
    assert f"Wrote {tmp_path.relative_to(tmp_path) / 'runs/tiny/model'}" in capsys.readouterr().err
    assert list((tmp_path / "runs" / "tiny" / "tensorboard").iterdir())


def test_the_command_tells_mistakes_in_one_line(corpora, tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(to_toml(to_table(tiny_recipe(*corpora))))
    with pytest.raises(Mistake, match="no key 'num_step'"):
        command([recipe, "--set", "training.num_step=3"])
    with pytest.raises(Mistake, match="nothing.jsonl"):
        command([recipe, "--set", f"data.train={tmp_path}/nothing.jsonl", "--output", tmp_path])
    # A folder that cannot be written, as a full disk cannot.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("a file")
    with pytest.raises(Mistake, match="checkpoint of step 4 could not be written"):
        command([recipe, "--output", tmp_path / "run"])
