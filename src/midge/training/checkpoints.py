"""Checkpoints: everything that a run is, written so that no moment to be killed is a bad one.

A checkpoint is a folder `step-000123`. It is written under a hidden name, synced to the disk, and
then renamed, which happens as a whole or not at all. Its tensors are safetensors files and the rest
is JSON, so that nothing is executed by loading.

    model.safetensors       parameters and buffers
    optimizer.safetensors   Adam's moments
    average.safetensors     averaged parameters, where there are any
    state.json              format version, progress, recipe, tokens
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

FORMAT_VERSION = 1
"""Of a checkpoint; a reader refuses one that it does not know."""

_HIDDEN = ".unfinished-"
_TENSORS = ".safetensors"
_STATE = "state.json"


class CheckpointError(OSError):
    """A checkpoint could not be written; those before it are as they were."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

    step: int
    """Number of steps that were made."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """By file name without ending, the tensors by name."""
    state: Mapping[str, Any]
    """All else; only what JSON can say."""


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        folder: where they are; made when the first is written.
        num_kept: how many of the last ones stay.
    """

    def __init__(self, folder: Path, num_kept: int) -> None:
        self.folder = folder
        self._num_kept = num_kept

    def steps(self) -> list[int]:
        """The steps with a finished checkpoint, in ascending order."""
        if not self.folder.is_dir():
            return []
        names = (path.name for path in self.folder.iterdir())
        found = (name.removeprefix("step-") for name in names if name.startswith("step-"))
        return sorted(int(digits) for digits in found if digits.isdecimal())

    def save(self, checkpoint: Checkpoint, best_step: int | None = None) -> None:
        """Writes a checkpoint, and removes those that are no longer wanted.

        Args:
            checkpoint: what to write.
            best_step: a step whose checkpoint stays, however old it is.

        Raises:
            CheckpointError: if it cannot be written. Nothing is removed then.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
            write_folder(self._path(checkpoint.step), lambda path: _write(path, checkpoint))
        except OSError as error:
            raise CheckpointError(
                error.errno,
                f"the checkpoint of step {checkpoint.step} could not be written "
                f"({error.strerror or error}); {self._last_good()}",
                str(self.folder),
            ) from error
        kept = {*self.steps()[-self._num_kept :], best_step}
        for step in self.steps():
            if step not in kept:
                remove_folder(self._path(step))

    def load(self, step: int) -> Checkpoint:
        """Reads the checkpoint of a step.

        Raises:
            ValueError: if it is damaged, or of another format.
            OSError: if it cannot be read.
        """
        path = self._path(step)
        try:
            state = json.loads((path / _STATE).read_text("utf-8"))
            if state["format_version"] != FORMAT_VERSION:
                raise ValueError(
                    f"format version {state['format_version']}, this midge reads {FORMAT_VERSION}"
                )
            tensors = {
                name: safetensors.torch.load((path / (name + _TENSORS)).read_bytes())
                for name in state["tensors"]
            }
        except (ValueError, KeyError, safetensors.SafetensorError) as error:
            raise ValueError(f"{path} is not a whole checkpoint: {error}") from error
        return Checkpoint(step=int(state["step"]), tensors=tensors, state=state)

    def load_last(self, tell: Callable[[str], None]) -> Checkpoint | None:
        """Reads the last checkpoint that is whole.

        Args:
            tell: is told of those that are not, and why.

        Returns:
            None if there is no checkpoint at all.

        Raises:
            ValueError: if there are some, and all are damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.load(step)
            except (ValueError, OSError) as error:
                tell(f"passed over a damaged checkpoint: {error}")
        if steps:
            raise ValueError(
                f"all checkpoints of {self.folder} are damaged; train into another folder, "
                "or remove this one to start again"
            )
        return None

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06}"

    def _remove_unfinished(self) -> None:
        for path in self.folder.glob(f"{_HIDDEN}*"):
            shutil.rmtree(path)

    def _last_good(self) -> str:
        steps = self.steps()
        return f"the last good one is that of step {steps[-1]}" if steps else "there is none before"


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a folder that appears whole or not at all; an old one of that name is replaced.

    Args:
        path: the folder.
        write: fills the folder that it is given.

    Raises:
        OSError: if something cannot be written; `path` is then as it was.
    """
    hidden = path.with_name(f"{_HIDDEN}{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        hidden.mkdir(parents=True)
        write(hidden)
        for file in hidden.iterdir():
            _sync(file)
        _sync(hidden)
        if path.exists():
            remove_folder(path)
        hidden.rename(path)
        _sync(path.parent)
    except OSError:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def remove_folder(path: Path) -> None:
    """Removes a folder; to be killed meanwhile leaves no half of it under its name."""
    hidden = path.with_name(f"{_HIDDEN}old-{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden)


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    for name, tensors in checkpoint.tensors.items():
        # Written by Python: an error is then an OSError. Clones, since safetensors refuses tensors
        # that share memory.
        plain = {key: x.detach().cpu().contiguous().clone() for key, x in tensors.items()}
        (folder / (name + _TENSORS)).write_bytes(safetensors.torch.save(plain))
    state = {
        "format_version": FORMAT_VERSION,
        "step": checkpoint.step,
        "tensors": list(checkpoint.tensors),
        **checkpoint.state,
    }
    (folder / _STATE).write_text(json.dumps(state, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _sync(path: Path) -> None:
    """Asks the system to have a file, or a folder's list of names, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
