"""Trains while being killed at random moments, and once without; says whether the ends are equal.

    python kill_training.py FOLDER NUM_KILLS SEED NUM_WORKERS

Each attempt is a forked process, so that it starts in no time. The first is killed early, the
second as soon as there is a checkpoint. Later moments are drawn over more than half the time of a
whole run: they fall into steps, evaluations and writes of checkpoints alike.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from midge.training import CheckpointFolder, train
from midge.training.logs import read_log
from training_cases import tiny_recipe, write_corpus


def in_a_child(function, wait: Callable[[], object] | None = None) -> int:
    """The exit code of a forked process, killed when a wait is over."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            print(f"failed: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    if wait is not None:
        wait()
        os.kill(child, signal.SIGKILL)  # a child that has ended waits for us: its id is its own
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits for something, but not for ever."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.001)


def main(folder: Path, num_kills: int, seed: int, num_workers: int) -> None:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    recipe = tiny_recipe(
        write_corpus(folder / "train"),
        write_corpus(folder / "dev", 4, seed=1),
        "training.num_steps=24",
        "training.checkpoint_every=2",
        "training.averaging=exponential",
        "encoder.dropout=0.3",
        f"data.num_workers={num_workers}",
    )
    started = time.monotonic()
    assert in_a_child(lambda: train(recipe, folder / "whole")) == 0
    seconds = time.monotonic() - started
    checkpoints = CheckpointFolder(folder / "killed" / "checkpoints", 1)
    waits = [
        lambda: time.sleep(0.1 * seconds * draw.random()),
        lambda: until(checkpoints.steps),
        *[lambda: time.sleep(0.6 * seconds * draw.random())] * (num_kills - 2),
    ]
    num_killed = num_after_checkpoint = 0
    for wait in waits:
        code = in_a_child(lambda: train(recipe, folder / "killed"), wait)
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        num_killed += 1
        num_after_checkpoint += bool(checkpoints.steps())
        left = sorted(path.name for path in (folder / "killed").rglob(".unfinished*"))
        print(f"killed, steps {checkpoints.steps()} {left}")
    before = checkpoints.steps()[-1]
    assert in_a_child(lambda: train(recipe, folder / "killed")) == 0
    compare(folder)
    *_, last = (line for line in read_log(folder / "killed/log.jsonl") if line["kind"] == "start")
    assert last["step"] == before, (last["step"], before)
    print(f"equal after {num_killed} kills")
    print(f"{num_after_checkpoint} of them after a checkpoint; it went on after step {before}")


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
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
