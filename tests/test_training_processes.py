"""Runs in processes of their own: killed at random, and several that train together."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from midge.configuration import to_table, to_toml
from midge.models import load
from midge.training import CheckpointFolder, train
from training_cases import tiny_recipe, write_corpus

TESTS = Path(__file__).parent


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("seed, num_workers", [(1, 0), (2, 1)])
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(tmp_path, seed, num_workers):
    told = run(TESTS / "kill_training.py", tmp_path, 8, seed, num_workers).stdout
    assert int(re.search(r"equal after (\d+) kills", told)[1]) > 0, told
    found = re.search(r"(\d+) of them after a checkpoint; it went on after step (\d+)", told)
    assert int(found[1]) > 0 and int(found[2]) > 0, told


def train_together(recipe, output, num_processes):
    """`midge train` in some processes, as torchrun starts them."""
    path = output.with_suffix(".toml")
    path.write_text(to_toml(to_table(recipe)))
    script = output.with_suffix(".py")
    script.write_text(
        "import sys\nfrom midge.training import read_recipe, train\nfrom pathlib import Path\n"
        "train(read_recipe(Path(sys.argv[1]), sys.argv[3:]), sys.argv[2])\n"
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_processes]
    return run(*launcher, script, path, output)


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    corpora = write_corpus(tmp_path / "train", 13), write_corpus(tmp_path / "dev", 3, seed=1)
    (tmp_path / "train" / "u0-03.wav").write_bytes(b"no audio")  # met by one process alone
    # Batches of three and less: one process has more than the other, which may have nothing.
    recipe = tiny_recipe(
        *corpora,
        "encoder.dropout=0.0",
        "data.max_batch_size=3",
        "data.batch_seconds=1.2",
        "training.averaging=exponential",
        "training.learning_rate=0.003",
        "training.num_steps=14",
        "training.schedule=transformer",  # its rates do not depend on the number of steps
        "training.num_warmup_steps=3",
    )
    train(recipe, tmp_path / "one")
    train_together(recipe, tmp_path / "two", 2)
    # Seven steps of two processes, and seven more of one.
    half = dataclasses.replace(recipe.training, num_steps=7)
    train_together(dataclasses.replace(recipe, training=half), tmp_path / "mixed", 2)
    train(recipe, tmp_path / "mixed")
    one, *others = (
        CheckpointFolder(tmp_path / name / "checkpoints", 1).load(14)
        for name in ("one", "two", "mixed")
    )
    assert one.state["run"]["num_skipped"] > 0
    for other in others:
        for name in ("epoch", "batch", "num_skipped"):
            assert other.state["run"][name] == one.state["run"][name]
        for kind in ("model", "average"):
            for key, tensor in one.tensors[kind].items():
                torch.testing.assert_close(
                    other.tensors[kind][key], tensor, rtol=1e-3, atol=1e-4, msg=key
                )
    found, expected = (each.state["run"]["best"]["loss"] for each in (others[0], one))
    assert found == pytest.approx(expected, rel=1e-3)
    assert "u0-03" in (tmp_path / "two" / "log.jsonl").read_text()
    assert load(tmp_path / "two").tokens.symbols == load(tmp_path / "one").tokens.symbols
