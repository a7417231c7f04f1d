"""One row of an experiment: its training and evaluations, each a `midge` command in a process.

A process of its own keeps a crash, or memory that runs out, from ending the whole experiment. All
that is known of a row is in its folder, so that it can be continued at any time:

    run/                  what `midge train` writes
    evaluations/<name>/   what `midge evaluate` writes
    output.txt            what the commands said
    attempts.jsonl        each command, as it begins and as it has ended: when, how long and how
    row.json              the record, as far as there is one
"""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from midge.configuration import to_table
from midge.experiments.grid import EvaluationPlan, Row
from midge.experiments.machines import commit, hardware
from midge.experiments.records import (
    FORMAT_VERSION,
    evaluation_record,
    is_training_of,
    recipe_hash,
    training_record,
    write_json,
)
from midge.training import Recipe, RunFolder
from midge.training.logs import read_log

_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 120.0
"""How long a command that was asked to stop may take to save."""
TRAINING = "train"
"""Name of the first command of a row; the others are "evaluate" and the evaluation's name."""

Status = Literal["done", "failed", "interrupted", "busy"]


@dataclasses.dataclass(frozen=True)
class RowOutcome:
    """How a row ended."""

    name: str
    """Of the row."""
    status: Status
    """Busy is a row that another process is at work on."""
    reason: str = ""
    """Why it failed."""


@dataclasses.dataclass(frozen=True)
class RowFolder:
    """The files of a row."""

    path: Path
    """The folder."""

    @property
    def run(self) -> Path:
        """The training."""
        return self.path / "run"

    @property
    def output(self) -> Path:
        """What the commands said."""
        return self.path / "output.txt"

    @property
    def attempts(self) -> Path:
        """The commands that were run."""
        return self.path / "attempts.jsonl"

    def evaluation(self, name: str) -> Path:
        """An evaluation."""
        return self.path / "evaluations" / name

    def record(self) -> dict[str, Any]:
        """The record, as far as there is one; empty for a row that was not begun.

        Raises:
            ValueError: if it is not what this version writes.
        """
        path = self.path / "row.json"
        if not path.exists():
            return {}
        try:
            record: dict[str, Any] = json.loads(path.read_text("utf-8"))
            version = record["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not the record of a row: {error!r}") from error
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{path} has format version {version}; this midge reads {FORMAT_VERSION}"
            )
        return record

    def known_attempts(self) -> list[dict[str, Any]]:
        """The commands that were run, in order; one that was not seen to end has no "seconds"."""
        if not self.attempts.exists():
            return []
        # A command is told when it begins, and again when it has ended.
        return list({(x["name"], x["started"]): x for x in read_log(self.attempts)}.values())

    def write_record(self, record: dict[str, Any]) -> None:
        """Replaces the record."""
        write_json(self.path / "row.json", record)

    def newest_step(self) -> int:
        """The last step that the training's log tells of; 0 if it tells of none."""
        log = RunFolder(self.run).log
        if not log.exists():
            return 0
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))  # a log is long, and this is asked often
            lines = file.read().split(b"\n")[1:-1] or [b"{}"]
        return max((json.loads(line).get("step", 0) for line in lines), default=0)


class RowRun:
    """Runs what is still to be done of a row.

    Args:
        row: the row.
        folder: its files.
        experiment: name of the experiment, for the record.
        num_threads: of each command.
    """

    def __init__(self, row: Row, folder: RowFolder, experiment: str, num_threads: int = 1) -> None:
        self._row = row
        self.folder = folder
        """Its files."""
        self._experiment, self._num_threads = experiment, num_threads
        self.recipe: Recipe = row.recipe()
        """The recipe, overrides included."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do: the record is whole, wherever the model is now."""
        record = self.folder.record()
        return self._is_recorded(record) and not list(self._open_evaluations(record))

    def take_over(self, record: dict[str, Any]) -> None:
        """Keeps a record from elsewhere, if there is none here and it is of the same training.

        It may be that of another experiment's row: then it gets this one's name, and only the
        evaluations that are asked for here.
        """
        if self.folder.record() or not self._is_recorded(record):
            return
        if (record["experiment"], record["row"]) != (self._experiment, self._row.name):
            asked = {_key(plan.as_json()): name for name, plan in self._row.evaluations.items()}
            scored = record["evaluations"].values()
            record = record | {
                "experiment": self._experiment,
                "row": self._row.name,
                "values": dict(self._row.values),
                "taken_from": {name: record[name] for name in ("experiment", "row")},
                "evaluations": {
                    asked[_key(each["plan"])]: each
                    for each in scored
                    if _key(each["plan"]) in asked
                },
            }
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.folder.write_record(record)

    @property
    def num_steps_left(self) -> int:
        """Training steps still to be made."""
        if self.is_done or self._is_trained(self.folder.record()):
            return 0
        return max(0, self.recipe.training.num_steps - self.folder.newest_step())

    def run(self, stop: threading.Event) -> RowOutcome:
        """Trains and evaluates.

        Args:
            stop: when it is set, the present command is asked to save and end.
        """
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder.path / "lock") as lock:
            if lock is None:
                return RowOutcome(self._row.name, "busy")
            record = self.folder.record()
            if not self._is_trained(record):
                if problem := self._other_beginning():
                    return RowOutcome(self._row.name, "failed", problem)
                if code := self._command(TRAINING, self._train_arguments(), lock, stop):
                    return self._ended(code, TRAINING, stop)
                record = self._new_record()
                self.folder.write_record(record)
            for name, plan in list(self._open_evaluations(record)):
                arguments, command = self._evaluate_arguments(name, plan), f"evaluate {name}"
                if code := self._command(command, arguments, lock, stop):
                    return self._ended(code, command, stop)
                record["evaluations"][name] = {
                    "plan": plan.as_json(),
                    "command": _shown(arguments),
                    "seconds": self._seconds(command),
                    **evaluation_record(self.folder.evaluation(name), plan),
                }
                self.folder.write_record(record)
        return RowOutcome(self._row.name, "done")

    def _other_beginning(self) -> str:
        """What is wrong if the training was begun from another model; "" if nothing is."""
        if not self.folder.attempts.exists():
            return ""
        begun = {each.get("init_from", "") for each in self.folder.known_attempts()}
        if begun <= {self._row.init_from}:
            return ""
        names = [name or "fresh parameters" for name in (*begun, self._row.init_from)]
        return f"{self.folder.run} was begun from {names[0]}, not from {names[-1]}; remove it first"

    def _is_trained(self, record: dict[str, Any]) -> bool:
        has_model = (RunFolder(self.folder.run).model / "model.json").exists()
        return has_model and self._is_recorded(record)

    def _is_recorded(self, record: dict[str, Any]) -> bool:
        return bool(record) and is_training_of(record, self._row)

    def _open_evaluations(self, record: dict[str, Any]) -> Iterator[tuple[str, EvaluationPlan]]:
        done = record.get("evaluations", {})
        for name, plan in self._row.evaluations.items():
            if done.get(name, {}).get("plan") != plan.as_json():
                yield name, plan

    def _train_arguments(self) -> list[str]:
        settings = [word for each in self._row.overrides for word in ("--set", each)]
        if self._row.init_from:
            settings += ["--init-from", self._row.init_from]
        return ["train", self._row.recipe_path, "--output", str(self.folder.run), *settings]

    def _evaluate_arguments(self, name: str, plan: EvaluationPlan) -> list[str]:
        output = str(self.folder.evaluation(name))
        return ["evaluate", str(self.folder.run), plan.manifest, "--output", output, *plan.options]

    def _command(
        self, name: str, arguments: Sequence[str], lock: int, stop: threading.Event
    ) -> int:
        """Runs `midge` with these arguments and notes how it went.

        Returns:
            The exit code.
        """
        attempt: dict[str, Any] = {
            "name": name,
            "command": _shown(arguments),
            "init_from": self._row.init_from,
            "commit": commit(),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        }
        started = time.monotonic()
        # Told before it begins, too: if this process is killed, the command lives on.
        self._note_attempt(attempt)
        with open(self.folder.output, "ab") as output:
            output.write(f"$ {_shown(arguments)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "midge", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": str(self._num_threads)},
                # Ctrl-C in a terminal goes to a whole session; the one who stops it is `_wait`.
                start_new_session=True,
                # The row stays locked while the command lives, also if this process is killed.
                pass_fds=(lock,),
            )
            code = _wait(process, stop)
        self._note_attempt(attempt | {"seconds": time.monotonic() - started, "exit_code": code})
        return code

    def _note_attempt(self, attempt: dict[str, Any]) -> None:
        with open(self.folder.attempts, "a", encoding="utf-8") as file:
            file.write(json.dumps(attempt) + "\n")

    def _ended(self, code: int, name: str, stop: threading.Event) -> RowOutcome:
        """What an exit code that is not 0 means."""
        if stop.is_set():
            return RowOutcome(self._row.name, "interrupted")
        text = self.folder.output.read_text("utf-8", errors="replace").strip()
        said = text.splitlines()[-1]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return RowOutcome(
            self._row.name, "failed", f"{name} ended with {how}: {said} ({self.folder.output})"
        )

    def _new_record(self) -> dict[str, Any]:
        recipe = self.recipe
        trainings = [each for each in self.folder.known_attempts() if each["name"] == TRAINING]
        trained = training_record(self.folder.run)
        return {
            "format_version": FORMAT_VERSION,
            "experiment": self._experiment,
            "row": self._row.name,
            "values": dict(self._row.values),
            "recipe": self._row.recipe_path,
            "overrides": list(self._row.overrides),
            "init_from": self._row.init_from,
            "recipe_hash": recipe_hash(recipe),
            "resolved_recipe": to_table(recipe),
            "seed": recipe.training.seed,
            "commit": ", ".join(dict.fromkeys(each["commit"] for each in trainings)),
            "hardware": {**hardware(), "num_threads": self._num_threads},
            "training": {
                "command": _shown(self._train_arguments()),
                "started": trainings[0]["started"],
                # How long an attempt took that outlived this process is not known; its steps are.
                "seconds": max(self._seconds(TRAINING), trained["step_seconds"]),
                "num_attempts": len(trainings),
                **trained,
            },
            "evaluations": {},
        }

    def _seconds(self, name: str) -> float:
        """Time that a command took, over all its attempts."""
        attempts = self.folder.known_attempts()
        return sum(each.get("seconds", 0.0) for each in attempts if each["name"] == name)


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Holds a file for this process and those it starts; None if others hold it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _wait(process: subprocess.Popen[bytes], stop: threading.Event) -> int:
    """The exit code. After a request to stop the process may save; then it is killed."""
    while not stop.is_set():
        try:
            return process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.terminate()
    try:
        return process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _shown(arguments: Sequence[str]) -> str:
    return shlex.join(["midge", *arguments])


def _key(plan: dict[str, Any]) -> str:
    return json.dumps(plan, sort_keys=True)
