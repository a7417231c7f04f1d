"""Measurements of contestants, one after the other and in turn, each in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midge.bench import rows
from midge.bench.rows import Row, Shape

LOSS_TOLERANCE = 1e-3
"""How far, relatively, a peer's loss may be from ours."""


@dataclass(frozen=True)
class Contestant:
    """Someone who can be measured on a row."""

    name: str
    """Whose numbers these are."""
    command: tuple[str, ...]
    """To which the inputs' file and the task are added."""
    options: tuple[str, ...] = ()
    """What follows them."""
    knows: Callable[[Row], bool] = lambda row: True
    """Which rows it is measured on."""

    def run(self, inputs: Path, task: str) -> dict[str, Any]:
        """Measures "train" or "decode"."""
        return run_json([*self.command, str(inputs), task, *self.options])


OURS = Contestant("midge", (sys.executable, "-m", "midge.bench.worker"))
"""This library."""


def last_contestants(python: Path) -> list[Contestant]:
    """google-research/last, as shipped and tuned.

    Args:
        python: the interpreter of an environment with last-asr and jax.

    Raises:
        ValueError: if it, or the script that runs there, is not to be found.
    """
    script = _checkout() / "benchmarks" / "peers" / "last_row.py"
    for path, what in ((python, "the peers' interpreter"), (script, "the peers' script")):
        if not path.exists():
            raise ValueError(
                f"{what} is not there: {path}; run this in a checkout of midge, after "
                "`make .venv-last`, or name an interpreter that has last-asr and jax"
            )
    command = (str(python), str(script))
    tuned = ("--variant", "tuned")
    return [
        Contestant("LAST", command),
        # Only the shared weight functions have projections to move.
        Contestant("LAST tuned", command, tuned, lambda row: row.weights != "unshared"),
    ]


def _checkout() -> Path:
    """The checkout of which this file is a part, if it is part of one."""
    return Path(__file__).parents[3]


@dataclass(frozen=True)
class Measurement:
    """What a contestant takes for a row."""

    train_s: float
    """Seconds for loss and gradients."""
    decode_s: float
    """Seconds for the best path."""
    train_peak_mb: float | None
    """Memory above inputs and parameters, in MB (2^20 bytes); None off Linux."""
    decode_peak_mb: float | None
    """The same of decoding."""
    loss: float
    """Mean over the batch, in nats."""
    path_weight: float
    """Mean weight of the best paths."""
    engine: str
    """What did it."""
    compile_s: float | None = None
    """Seconds for compiling both, not counted above; None if there is nothing to compile."""


@dataclass(frozen=True)
class Result:
    """A row of the table, measured."""

    row: Row
    shape: Shape
    ours: Measurement
    peers: dict[str, Measurement]

    def to_json(self) -> dict[str, Any]:
        """One flat object; the peers' are under their names."""
        peers = {name: dataclasses.asdict(peer) for name, peer in self.peers.items()}
        return {
            **dataclasses.asdict(self.row),
            **dataclasses.asdict(self.shape),
            **dataclasses.asdict(self.ours),
            **({"peers": peers} if peers else {}),
        }

    @staticmethod
    def from_json(given: dict[str, Any]) -> Result:
        """The inverse of `to_json`."""

        def part(kind: Any, values: dict[str, Any]) -> Any:
            names = {field.name for field in dataclasses.fields(kind)}
            return kind(**{name: value for name, value in values.items() if name in names})

        peers = {name: part(Measurement, peer) for name, peer in given.get("peers", {}).items()}
        return Result(part(Row, given), part(Shape, given), part(Measurement, given), peers)

    def loss_difference(self, peer: str) -> float:
        """How far a peer's loss is from ours, relatively."""
        return abs(self.peers[peer].loss / self.ours.loss - 1)


def measure_row(
    row: Row,
    shape: Shape,
    peers: Sequence[Contestant] = (),
    *,
    seed: int = 0,
    rounds: int = 1,
    progress: Callable[[str], object] | None = None,
) -> Result:
    """Measures us and peers on the same inputs.

    The contestants take turns: train all, decode all, and again in each further round. A time is
    the best of the rounds, a peak the largest.

    Args:
        row: the configuration.
        shape: the sizes.
        peers: who else is measured; those that do not know the row are left out.
        seed: of inputs and parameters.
        rounds: how many turns.
        progress: called after each measurement with a short note; see `num_measurements`.

    Raises:
        RuntimeError: if a measurement fails, or a peer's loss is not ours.
    """
    contestants = _known([OURS, *peers], row)
    found: dict[str, list[dict[str, Any]]] = {contestant.name: [] for contestant in contestants}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        rows.save(inputs, row, shape, seed)
        for _ in range(rounds):
            for task in ("train", "decode"):
                for contestant in contestants:
                    measured = contestant.run(inputs, task)
                    found[contestant.name].append({"task": task, **measured})
                    if progress is not None:
                        took = f"{measured['seconds']:.3g} s"
                        progress(f"{row.name}: {contestant.name} {task} {took}")
    ours, *others = (_merged(found[contestant.name]) for contestant in contestants)
    names = [contestant.name for contestant in contestants[1:]]
    result = Result(row, shape, ours, dict(zip(names, others, strict=True)))
    _check_losses(result)
    return result


def num_measurements(
    chosen: Sequence[Row], peers: Sequence[Contestant] = (), rounds: int = 1
) -> int:
    """How often `measure_row` reports progress over all these rows."""
    return sum(2 * rounds * len(_known([OURS, *peers], row)) for row in chosen)


def _known(contestants: Sequence[Contestant], row: Row) -> list[Contestant]:
    return [contestant for contestant in contestants if contestant.knows(row)]


def _merged(found: list[dict[str, Any]]) -> Measurement:
    by_task = {
        task: [each for each in found if each["task"] == task] for task in ("train", "decode")
    }
    seconds = {task: min(each["seconds"] for each in by_task[task]) for task in by_task}
    peaks = {
        task: None
        if any(each["peak_mb"] is None for each in by_task[task])
        else round(max(each["peak_mb"] for each in by_task[task]), 2)
        for task in by_task
    }
    compiling = [
        each["compile_s"] for task in by_task for each in by_task[task][:1] if "compile_s" in each
    ]
    return Measurement(
        train_s=seconds["train"],
        decode_s=seconds["decode"],
        train_peak_mb=peaks["train"],
        decode_peak_mb=peaks["decode"],
        loss=by_task["train"][0]["loss"],
        path_weight=by_task["decode"][0]["path_weight"],
        engine=by_task["train"][0]["engine"],
        compile_s=sum(compiling) if compiling else None,
    )


def _check_losses(result: Result) -> None:
    for name in result.peers:
        if not result.loss_difference(name) <= LOSS_TOLERANCE:
            theirs = result.peers[name].loss
            raise RuntimeError(
                f"{result.row.name}: the loss of {name} is {theirs}, ours is {result.ours.loss}"
            )


def run_json(command: Sequence[str]) -> dict[str, Any]:
    """Runs a program that prints one JSON object.

    Raises:
        RuntimeError: if it fails; with the end of what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip()[-2000:]
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {said}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def ratio(theirs: float | None, ours: float | None) -> float:
    """How many times as much they take; NaN where it is not known."""
    return math.nan if theirs is None or ours is None or ours <= 0 else theirs / ours
