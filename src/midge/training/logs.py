"""What a run says: a log in JSON lines, TensorBoard if asked, and progress for whoever watches.

The log holds one object per line with a field `kind`: "start", "uncovered", "step", "skipped",
"evaluation", "finish". A resumed run cuts it back to its checkpoint, so that each step is there
once.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import rich.console
import rich.progress

from midge.progress import format_seconds


class RunLog:
    """The log of a run.

    Args:
        path: the file; it is appended to.
        tensorboard: folder of TensorBoard's events; None for none.

    Raises:
        ValueError: if TensorBoard is asked for and not installed.
    """

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")
        self._writer = None if tensorboard is None else _summary_writer(tensorboard)

    def write(self, kind: str, **fields: Any) -> None:
        """Writes a line; a number that is not finite is written as null."""
        line = json.dumps({"kind": kind, **_finite(fields)}, ensure_ascii=False)
        self._file.write(line + "\n")
        self._file.flush()
        if self._writer is None or "step" not in fields:
            return
        for name, value in fields.items():
            if isinstance(value, int | float) and name != "step" and math.isfinite(value):
                self._writer.add_scalar(f"{kind}/{name}", value, fields["step"])

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()


def cut_log(path: Path, step: int) -> None:
    """Takes out of a log what is of later steps, and a last line that is not whole.

    Args:
        path: the log; there may be none.
        step: the last step to keep.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # the process was killed while it wrote
        if record.get("step", 0) <= step and record.get("kind") != "finish":
            kept.append(line + "\n")
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text("".join(kept), "utf-8")
    unfinished.replace(path)


class Display:
    """Progress for whoever watches: a live line on a terminal, plain lines elsewhere.

    Args:
        total: number of steps.
        done: how many were made before.
        stream: where to write; standard error by default. None of it from a silent one.
        is_silent: whether to say nothing, as all processes but the first.
        clock: the time in seconds.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        stream: TextIO | None = None,
        is_silent: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._first = total, done
        self._clock, self._started = clock, clock()
        self._stream = sys.stderr if stream is None else stream
        self._is_silent = is_silent
        self._live: rich.progress.Progress | None = None
        if self._stream.isatty() and not is_silent:
            self._live = _live(self._stream)
            self._task = self._live.add_task("training", total=total, completed=done, note="")

    def begin(self) -> None:
        """Reckons the time left from now on."""
        self._started = self._clock()

    def tell(self, text: str) -> None:
        """Says something."""
        if self._is_silent:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

    def advance(self, step: int, note: str, *, is_logged: bool) -> None:
        """Shows how far training is.

        Args:
            step: steps made.
            note: loss, learning rate and speed.
            is_logged: whether this step is worth a line where lines are kept.
        """
        if self._live is not None:
            self._live.update(self._task, completed=step, note=note)
        elif is_logged:
            self.tell(f"step {step}/{self._total}, {note}, {self._time_left(step)} left")

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _time_left(self, step: int) -> str:
        spent = self._clock() - self._started
        return format_seconds(spent * (self._total - step) / max(step - self._first, 1))


def _live(stream: TextIO) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("step"),
        rich.progress.MofNCompleteColumn(),
        rich.progress.BarColumn(bar_width=20),
        rich.progress.TextColumn("{task.fields[note]}"),
        rich.progress.TimeRemainingColumn(elapsed_when_finished=True),
        rich.progress.TextColumn("left"),
        console=rich.console.Console(file=stream),
    )


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            "TensorBoard is not installed; leave it out, or install it: "
            "pip install 'midge[tensorboard]'"
        ) from error
    return SummaryWriter(str(folder))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's log, which may just be written; none if there is no log."""
    if not path.exists():
        return []
    lines = path.read_text("utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
