"""Alternatives of segments, looked for beside the worker, so that no stream waits for another's."""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from midge.decoding.decoded import Alternative
from midge.decoding.live_alternatives import AlternativesSearch
from midge.serve.metrics import Metrics
from midge.serve.sessions import Delivery, News, Session

SEARCH_SECONDS = 1.0
"""For how long to look for the alternatives of a segment; what was found by then is told."""
MAX_WAIT_SECONDS = 5.0
"""A search that has waited for longer is left out: the segment has no alternatives."""
_NICENESS = 10

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Task:
    session: Session
    search: AlternativesSearch
    asked: float


class Searcher:
    """Runs searches one after the other, in a thread of its own.

    It gives way to the worker: it uses one processor, at a lower priority where the system has
    priorities of threads. If there is more to search than time, what has waited for long is left
    out.

    Args:
        metrics: where to count.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="midge-searcher", daemon=True)
        self._deliver: Callable[[Sequence[Delivery]], None]

    def start(self, deliver: Callable[[Sequence[Delivery]], None]) -> None:
        """Starts the thread.

        Args:
            deliver: called in it with the alternatives of a segment.
        """
        self._deliver = deliver
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after the present search; waits for it."""
        self._is_stopping = True
        self._tasks.put(None)
        self._thread.join()

    def add(self, session: Session, search: AlternativesSearch) -> None:
        """Takes a search on. Any thread may."""
        self._tasks.put(_Task(session, search, time.monotonic()))

    def _run(self) -> None:
        give_way()
        while (task := self._tasks.get()) is not None:
            found = {task.search.segment: self._found(task)}
            self._deliver([(task.session, News(alternatives=found))])
            task.session.note_search()

    def _found(self, task: _Task) -> tuple[Alternative, ...]:
        waited = time.monotonic() - task.asked
        if self._is_stopping or task.session.is_cut or waited > MAX_WAIT_SECONDS:
            self._metrics.searches_left_out.add()
            return ()
        try:
            found = task.search.run(SEARCH_SECONDS)
        except Exception as error:  # a segment without alternatives must not end the others
            fields = {"session": task.session.id}
            _logger.error("a search failed", exc_info=error, extra={"fields": fields})
            return ()
        self._metrics.search_delay.observe(time.monotonic() - task.asked)
        return found


def give_way() -> None:
    """Leaves the processors to other threads than this one.

    `torch.set_num_threads` would reach the others: the number it sets is the process's, of the
    matrix library at once and of every thread that has not computed yet. OpenMP's is the thread's.
    """
    torch.get_num_threads()  # now, or torch sets the number when this thread first computes
    with suppress(OSError, AttributeError):  # a torch with another library for threads
        ctypes.CDLL(None).omp_set_num_threads(1)
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            # On Linux a number of a thread stands for that thread alone.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
