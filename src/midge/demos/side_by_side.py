"""Trainings in processes of their own, one thread each, and how far they all are.

Small models gain nothing by a second thread: two of them are done sooner side by side than one
after the other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from midge.progress import Progress
from midge.training import Recipe, RunFolder, TrainingError, train
from midge.training.logs import read_log

_LOOK_SECONDS = 1.0
_STOPPED = 3


def train_side_by_side(recipes: Mapping[str, Recipe], folders: Mapping[str, Path]) -> None:
    """Trains several recognizers at the same time.

    What each of them says goes to `train.txt` in its folder.

    Args:
        recipes: by name.
        folders: of the runs, by name; runs that were stopped go on.

    Raises:
        KeyboardInterrupt: if they were asked to stop; they have been saved.
        TrainingError: if one cannot go on; with what it said last.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share the threads of this process
    processes = {
        name: context.Process(target=_train, args=(recipe, folders[name]), name=name)
        for name, recipe in recipes.items()
    }
    for process in processes.values():
        process.start()
    total = sum(recipe.training.num_steps for recipe in recipes.values())
    try:
        with Progress(total, f"training {' and '.join(recipes)}") as progress:
            done = 0
            while any(process.is_alive() for process in processes.values()):
                time.sleep(_LOOK_SECONDS)
                steps = {name: newest_step(folders[name]) for name in processes}
                count = sum(step["step"] for step in steps.values())
                losses = [
                    f"{name} {step['loss']:.2f}" for name, step in steps.items() if step["step"]
                ]
                progress.advance(f"loss {', '.join(losses)}" if losses else "", count - done)
                done = count
    finally:
        for process in processes.values():
            process.join()
    for name, process in processes.items():
        if process.exitcode == _STOPPED:
            raise KeyboardInterrupt
        if process.exitcode:
            said = (folders[name] / "train.txt").read_text("utf-8").strip().splitlines()[-1:]
            raise TrainingError(f"the training of the {name} model ended: {' '.join(said)}")


def newest_step(folder: Path) -> dict[str, Any]:
    """The last step that a run's log tells of; step 0 if it tells of none."""
    steps = [line for line in read_log(RunFolder(folder).log) if line["kind"] == "step"]
    return steps[-1] if steps else {"step": 0}


def _train(recipe: Recipe, folder: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / "train.txt").open("a", encoding="utf-8", buffering=1) as file,
        contextlib.redirect_stderr(file),
        contextlib.redirect_stdout(file),
    ):
        if not train(recipe, folder).is_finished:
            raise SystemExit(_STOPPED)
