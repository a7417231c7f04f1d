"""Runs the rows of an experiment: those that are not done, several at a time, to the end.

A row that fails is named, and the others go on. A request to stop (Ctrl-C) lets every training save
itself; the same call goes on with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TextIO

from midge.experiments.grid import Grid, Row
from midge.experiments.row_runs import RowFolder, RowOutcome, RowRun
from midge.experiments.tables import row_line, write_tables
from midge.progress import Progress
from midge.training.interruption import Interruption

_LOOK_SECONDS = 1.0
_LOG_SECONDS = 60.0


def row_folder(output: Path, row: Row) -> RowFolder:
    """Where a row of an experiment is kept."""
    return RowFolder(output / row.name)


def open_rows(
    grid: Grid,
    output: Path,
    rows: Sequence[Row],
    num_threads: int = 1,
    known: Sequence[dict[str, Any]] = (),
) -> list[RowRun]:
    """The rows that are not done, ready to be run.

    Args:
        grid: the experiment.
        output: its folder.
        rows: those to look at.
        num_threads: of each command.
        known: records of rows that were run elsewhere, also for other experiments; one of the same
            recipe is taken over, whatever its name was.

    Raises:
        ValueError: if a row's recipe is wrong, or a record cannot be read; names it.
        OSError: if a recipe cannot be read.
    """
    runs = [RowRun(row, row_folder(output, row), grid.name, num_threads) for row in rows]
    for run in runs:
        for record in known:
            run.take_over(record)
    return [run for run in runs if not run.is_done]


def run_rows(
    grid: Grid,
    output: Path,
    runs: Sequence[RowRun],
    *,
    num_jobs: int = 1,
    tell: Callable[[str], None],
    stream: TextIO | None = None,
) -> list[RowOutcome]:
    """Runs rows, and writes the tables of the experiment after each.

    Args:
        grid: the experiment.
        output: its folder.
        runs: from `open_rows`.
        num_jobs: how many at a time.
        tell: is told how each row ended.
        stream: where progress is shown; standard error by default.

    Returns:
        How each row ended. After a request to stop, rows that were not begun are not in it.
    """
    if num_jobs < 1:
        raise ValueError(f"num_jobs should be at least 1, got {num_jobs}")
    outcomes: list[RowOutcome] = []
    stop = threading.Event()
    total = sum(run.num_steps_left for run in runs)
    watch = _Watch(runs)
    with (
        Interruption() as interruption,
        Progress(total, grid.name, stream=stream, log_seconds=_LOG_SECONDS) as progress,
        ThreadPoolExecutor(num_jobs) as pool,
    ):
        waiting = {pool.submit(_run, run, stop) for run in runs}
        try:
            while waiting:
                done, waiting = wait(waiting, _LOOK_SECONDS, FIRST_COMPLETED)
                for outcome in _results(done):
                    outcomes.append(outcome)
                    write_tables(grid, output)
                    tell(_told(outcome, output))
                progress.advance(watch.note(len(outcomes)), watch.new_steps())
                if interruption.is_requested and not stop.is_set():
                    tell("stopping; the rows at work are saved first")
                    stop.set()
        finally:
            stop.set()  # also after an error of ours: nothing is left running
    return outcomes


def _run(run: RowRun, stop: threading.Event) -> RowOutcome | None:
    """The outcome of a row; None if it was not begun before the request to stop."""
    if stop.is_set():
        return None
    try:
        return run.run(stop)
    except Exception as error:  # whatever it is, a full disk say, the other rows go on
        return RowOutcome(run.folder.path.name, "failed", f"{type(error).__name__}: {error}")


def _results(done: set[Future[RowOutcome | None]]) -> list[RowOutcome]:
    return [outcome for outcome in (future.result() for future in done) if outcome is not None]


def _told(outcome: RowOutcome, output: Path) -> str:
    if outcome.status == "done":
        return row_line(RowFolder(output / outcome.name).record())
    told = {
        "failed": outcome.reason,
        "busy": "is left to the process that is at work on it",
        "interrupted": "saved; the same command goes on",
    }
    return f"{outcome.name}: {told[outcome.status]}"


class _Watch:
    """Counts the steps of all rows, by their logs."""

    def __init__(self, runs: Sequence[RowRun]) -> None:
        self._runs = runs
        self._before = self._steps()

    def new_steps(self) -> int:
        """Steps since the last call."""
        now = self._steps()
        new, self._before = now - self._before, now
        return max(new, 0)  # a training that goes on cuts its log back to its checkpoint

    def note(self, num_ended: int) -> str:
        """How many rows are over."""
        return f"{num_ended} of {len(self._runs)} rows"

    def _steps(self) -> int:
        return sum(run.folder.newest_step() for run in self._runs)
