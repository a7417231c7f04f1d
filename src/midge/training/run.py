"""The parts of a run: where it is, what it has reached, and how both are saved and found again."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from midge.configuration import from_table, to_table, to_toml
from midge.models.recognizer import Recognizer
from midge.tokens import Tokens
from midge.training.averaging import Averaging
from midge.training.checkpoints import Checkpoint, CheckpointFolder, write_folder
from midge.training.config import RESUMABLE, Recipe, differences
from midge.training.distributed import ProcessGroup
from midge.training.evaluation import Evaluation
from midge.training.updates import Updates


@dataclass(frozen=True)
class RunState:
    """How far a run is."""

    step: int = 0
    """Steps made."""
    epoch: int = 0
    """Epoch of the next batch."""
    batch: int = 0
    """Index of the next batch in that epoch."""
    best: Evaluation | None = None
    """The best evaluation."""
    best_step: int | None = None
    """After which step that was."""
    num_worse: int = 0
    """Evaluations since."""
    num_skipped: int = 0
    """Utterances that were skipped, each time counted."""
    num_failed: int = 0
    """Steps in a row whose gradient was not finite."""
    num_averaged: int = 0
    """Steps in the averaged parameters."""


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path
    """The folder."""

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        """The log, in JSON lines."""
        return self.path / "log.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's events."""
        return self.path / "tensorboard"

    @property
    def recipe(self) -> Path:
        """The recipe, overrides included."""
        return self.path / "recipe.toml"

    @property
    def model(self) -> Path:
        """The finished recognizer."""
        return self.path / "model"

    def check(self) -> None:
        """Makes the folder, and makes sure that files can be written to it.

        Raises:
            OSError: if not.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.path):
            pass

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes the recipe, overrides included."""
        self.path.mkdir(parents=True, exist_ok=True)
        unfinished = self.recipe.with_name(self.recipe.name + ".unfinished")
        unfinished.write_text(to_toml(to_table(recipe)), "utf-8")
        unfinished.replace(self.recipe)


class Keeper:
    """Saves a run and brings it back.

    Args:
        folder: the files of the run.
        recipe: its recipe.
        recognizer: the model.
        updates: the optimizer.
        averaging: the averaged parameters.
        group: this process among all; only the first writes.
    """

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        recognizer: Recognizer,
        updates: Updates,
        averaging: Averaging,
        group: ProcessGroup,
    ) -> None:
        self._folder = folder
        self._recipe = recipe
        self._recognizer = recognizer
        self._updates = updates
        self._averaging = averaging
        self._group = group
        self._checkpoints = CheckpointFolder(folder.checkpoints, recipe.training.keep_checkpoints)

    def save(self, state: RunState) -> None:
        """Writes a checkpoint.

        Raises:
            CheckpointError: if it cannot be written.
        """
        if not self._group.is_first:
            return
        tensors: dict[str, Mapping[str, Tensor]] = {
            "model": self._recognizer.state_dict(),
            "optimizer": self._updates.moments(),
        }
        if self._averaging.tensors:
            tensors["average"] = self._averaging.tensors
        described = {
            "run": dataclasses.asdict(state),
            "recipe": to_table(self._recipe),
            "tokens": self._recognizer.tokens.to_json(),
        }
        self._checkpoints.save(Checkpoint(state.step, tensors, described), state.best_step)

    def restore(self, checkpoint: Checkpoint) -> RunState:
        """Brings model, optimizer and averages back to a checkpoint."""
        state = run_state(checkpoint)
        self._recognizer.load_state_dict(dict(checkpoint.tensors["model"]))
        self._updates.load_moments(checkpoint.tensors["optimizer"])
        self._averaging.load(checkpoint.tensors.get("average", {}), state.num_averaged)
        return state

    def write_model(self, state: RunState) -> None:
        """Writes the finished model: the best evaluated one, averaged if it was; else the last.

        Raises:
            OSError: if it cannot be written.
        """
        if not self._group.is_first:
            return
        checkpoint = self._checkpoints.load(state.best_step or state.step)
        recognizer = Recognizer(
            self._recognizer.config, self._recognizer.tokens, self._summary(state, checkpoint.step)
        )
        average = checkpoint.tensors.get("average", {})
        recognizer.load_state_dict({**checkpoint.tensors["model"], **average})
        write_folder(self._folder.model, recognizer.save)

    def _summary(self, state: RunState, step: int) -> dict[str, Any]:
        best = {} if state.best is None else dataclasses.asdict(state.best)
        return {
            "step": step,
            "num_steps": state.step,
            "dev": best,
            "recipe": to_table(self._recipe),
        }


def run_state(checkpoint: Checkpoint) -> RunState:
    """How far the run of a checkpoint was."""
    return from_table(RunState, {k: x for k, x in checkpoint.state["run"].items() if x is not None})


def find_checkpoint(
    folder: RunFolder, recipe: Recipe, tell: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint from which a run goes on.

    Args:
        folder: the files of the run.
        recipe: what is asked for now.
        tell: is told of damaged checkpoints, and of what is different now.

    Returns:
        None for a new run.

    Raises:
        ValueError: if the run in that folder has another recipe, or no checkpoint is whole.
    """
    found = CheckpointFolder(folder.checkpoints, recipe.training.keep_checkpoints).load_last(tell)
    if found is None:
        return None
    changed = differences(found.state["recipe"], recipe)
    told = "; ".join(f"{name} was {old}, is {new}" for name, (old, new) in changed.items())
    if changed.keys() - RESUMABLE:
        raise ValueError(
            f"{folder.path} holds a run with another recipe ({told}); give another --output, or "
            "the same recipe to go on"
        )
    if changed:
        tell(f"goes on with a changed recipe: {told}")
    return found


def tokens_of(checkpoint: Checkpoint) -> Tokens:
    """The tokens of a checkpoint's model."""
    return Tokens.from_json(checkpoint.state["tokens"])
