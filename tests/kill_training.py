"""Trains while being killed at random moments, and once without; says whether the ends are equal.

    python kill_training.py FOLDER NUM_KILLS SEED

Each attempt is a forked process, so that it starts in no time. Moments are drawn over more than
half the time of a whole run: they fall into steps, evaluations and writes of checkpoints alike.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from midge.training import CheckpointFolder, train
from training_cases import tiny_recipe, write_corpus


def in_a_child(function, kill_after: float | None = None) -> int:
    """The exit code of a forked process, killed after some seconds."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            print(f"failed: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # a child that has ended waits for us: its id is its own
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, num_kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    recipe = tiny_recipe(
        write_corpus(folder / "train"),
        write_corpus(folder / "dev", 4, seed=1),
        "training.num_steps=24",
        "training.checkpoint_every=2",
        "training.averaging=exponential",
        "encoder.dropout=0.3",
    )
    started = time.monotonic()
    assert in_a_child(lambda: train(recipe, folder / "whole")) == 0
    seconds = time.monotonic() - started
    num_killed = 0
    while num_killed < num_kills:
        code = in_a_child(lambda: train(recipe, folder / "killed"), 0.6 * seconds * draw.random())
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        num_killed += 1
        left = sorted(path.name for path in (folder / "killed").rglob(".unfinished*"))
        print(f"killed, steps {CheckpointFolder(folder / 'killed/checkpoints', 1).steps()} {left}")
    assert in_a_child(lambda: train(recipe, folder / "killed")) == 0
    compare(folder)
    print(f"equal after {num_killed} kills")


def compare(folder: Path) -> None:
    whole, killed = (
        CheckpointFolder(folder / name / "checkpoints", 1).load(24) for name in ("whole", "killed")
    )
    assert whole.state["run"] == killed.state["run"], (whole.state["run"], killed.state["run"])
    for name, tensors in whole.tensors.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, killed.tensors[name][key]), (name, key)
    one, other = (
        (folder / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed")
    )
    assert one == other


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
