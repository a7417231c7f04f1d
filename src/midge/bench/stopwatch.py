"""Time and peak memory of a step, measured in this process.

Needs the standard library alone: a peer with an interpreter of its own loads this very file, so
that all contestants are measured alike.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MAX_REPETITIONS = 5
"""How often a step is timed at most."""
BUDGET_SECONDS = 4.0
"""No further repetition is begun that would go beyond this."""
LONG_SECONDS = 30.0
"""A first step as long as this is itself the measurement: a warm-up no longer matters."""


class Cost(NamedTuple):
    """What a step takes."""

    seconds: float
    """Of the fastest repetition."""
    peak_mb: float | None
    """High-water mark in the first step less the resident size before it; None off Linux."""
    repetitions: int
    """How many were timed."""


def measure(step: Callable[[], object]) -> Cost:
    """Runs a step a few times.

    The first run gives the peak, as later ones find memory that the first has left behind; its
    time is not counted unless it is very long.

    Args:
        step: returns when its work is done.
    """
    gc.collect()
    _return_free_memory()
    _reset_high_water_mark()
    before = memory_mb("VmRSS")
    first = _seconds(step)
    after = memory_mb("VmHWM")
    peak = None if before is None or after is None else max(after - before, 0.0)
    if first >= LONG_SECONDS:
        return Cost(first, peak, 1)
    times = [_seconds(step)]
    while len(times) < MAX_REPETITIONS and sum(times) + min(times) <= BUDGET_SECONDS:
        times.append(_seconds(step))
    return Cost(min(times), peak, len(times))


def memory_mb(field: str) -> float | None:
    """A field of /proc/self/status in MB (2^20 bytes): VmRSS is in use now, VmHWM the most so far.

    It is not what `getrusage` calls maxrss, which a process inherits from the one it was forked
    from.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def _reset_high_water_mark() -> None:
    """Forgets what loading took, where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pass


def _return_free_memory() -> None:
    """Gives freed blocks back to the system; kept, they would hide what the step takes."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        pass


def _seconds(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
