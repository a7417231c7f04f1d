"""Progress of a long job: a bar on a terminal, a line now and then in a log.

Knows nothing of what the job is, and needs no package.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_BAR_SIZE = 20
_REDRAW_SECONDS = 0.1


class Progress:
    """How far a job is, how fast it goes and how long it will still take.

    On a terminal one line is redrawn in place. Elsewhere (a file, a pipe) a plain line is written
    every `log_seconds`, and one at the end.

    Args:
        total: number of steps of the job.
        description: what the job is.
        unit: what a step is called, in the plural.
        stream: where to write; standard error by default.
        log_seconds: time between two lines of a log.
        clock: the time in seconds.

    Example:
        >>> import sys
        >>> with Progress(2, "training", stream=sys.stdout, clock=lambda: 0.0) as progress:
        ...     progress.advance("loss 1.5")
        ...     progress.advance("loss 0.3")
        training: 2/2 steps, 0:00 in all, loss 0.3
    """

    def __init__(
        self,
        total: int,
        description: str = "",
        *,
        unit: str = "steps",
        stream: TextIO | None = None,
        log_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the clock."""
        if total < 0:
            raise ValueError(f"total should be at least 0, got {total}")
        self._total = total
        self._description = description
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._interval = _REDRAW_SECONDS if self._is_terminal else log_seconds
        self._clock = clock
        self._started = self._shown = clock()
        self._count = 0
        self._note = ""

    def advance(self, note: str = "", count: int = 1) -> None:
        """Tells that steps are done.

        Args:
            note: what to show beside the numbers, such as the loss.
            count: how many steps.
        """
        self._count += count
        self._note = note
        now = self._clock()
        if now - self._shown >= self._interval:
            self._shown = now
            self._show(now - self._started, is_last=False)

    def close(self) -> None:
        """Writes the last line."""
        self._show(self._clock() - self._started, is_last=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _show(self, seconds: float, is_last: bool) -> None:
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            line = f"{self._bar()} {self._numbers(seconds, is_last)}"[:width]
            self._stream.write(f"\r{line:<{width}}" + ("\n" if is_last else ""))
        else:
            self._stream.write(self._numbers(seconds, is_last) + "\n")
        self._stream.flush()

    def _bar(self) -> str:
        share = min(self._count / self._total, 1.0) if self._total else 1.0
        filled = int(share * _BAR_SIZE)
        return f"[{'#' * filled}{'.' * (_BAR_SIZE - filled)}] {share:4.0%}"

    def _numbers(self, seconds: float, is_last: bool) -> str:
        parts = [f"{self._count}/{self._total} {self._unit}"]
        if self._count and seconds > 0:
            parts.append(f"{self._count / seconds:.1f}/s")
        if is_last:
            parts.append(f"{format_seconds(seconds)} in all")
        elif self._count:
            left = (self._total - self._count) * seconds / self._count
            parts.append(f"{format_seconds(max(left, 0.0))} left")
        if self._note:
            parts.append(self._note)
        return (f"{self._description}: " if self._description else "") + ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """A duration as m:ss, or h:mm:ss from an hour on.

    Example:
        >>> format_seconds(75.4), format_seconds(3661)
        ('1:15', '1:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
