"""Work in other processes, given in order and returned in order."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")

_AHEAD = 3
"""Keys that each worker has in hand, so that it need not wait for us to take a result."""

_LOOK_EVERY = 0.5
"""Seconds between two looks of a worker for its parent."""

_GRACE = 30.0
"""Seconds that a worker goes on after SIGTERM, for a parent that ends what it has begun."""


class Workers(Generic[_Key, _Result]):
    """Applies a function to keys in worker processes.

    The processes start with the first key and stay until `close`, so that a second run does not
    wait for them. They have one thread each, and end with this process, even if it is killed.

    Args:
        function: what to do with a key. It goes to the workers once, the keys one by one.
        num_workers: how many; 0 works in this process.
    """

    def __init__(self, function: Callable[[_Key], _Result], num_workers: int) -> None:
        if num_workers < 0:
            raise ValueError(f"num_workers should be at least 0, got {num_workers}")
        self._function = function
        self._num_workers = num_workers
        self._keys: _Keys[_Key] = _Keys()
        self._loader: DataLoader[_Result] | None = None
        self._iterator: Any = None
        self._turn = 0

    def run(self, keys: Iterable[_Key]) -> Iterator[_Result]:
        """The results of keys, in their order. A new run ends the last.

        Args:
            keys: finite or endless; they are taken a few ahead of the results.

        Raises:
            RuntimeError: if it is continued after a new run has begun.
        """
        self._turn += 1
        if not self._num_workers:
            return map(self._function, keys)
        return self._run(keys, self._turn)

    def close(self) -> None:
        """Ends the processes."""
        if self._iterator is not None:
            with _interrupted_later():
                # By itself it ends them only when nobody refers to it any more.
                self._iterator._shutdown_workers()
        self._loader = self._iterator = None
        self._turn += 1

    def _run(self, keys: Iterable[_Key], turn: int) -> Iterator[_Result]:
        self._check(turn)
        self._keys.current = keys
        with warnings.catch_warnings():
            # More workers than cores are the user's choice.
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            if self._loader is None:
                self._loader = self._started()
            with _interrupted_later():
                self._iterator = iterator = iter(self._loader)  # the same processes every time
        while True:
            self._check(turn)
            try:
                with _interrupted_later():
                    result = next(iterator)
            except StopIteration:
                return
            yield result

    def _check(self, turn: int) -> None:
        if turn != self._turn:
            raise RuntimeError("this iteration has ended, as a new one has begun or all is closed")

    def _started(self) -> DataLoader[_Result]:
        # A fork costs nothing and needs no `if __name__ == "__main__"` in the user's script. What
        # makes it unsafe, a second thread in the child, does not happen: torch gives a worker one.
        start = "fork" if sys.platform == "linux" else None
        return DataLoader(
            _Function(self._function),
            batch_size=None,
            sampler=self._keys,
            num_workers=self._num_workers,
            prefetch_factor=_AHEAD,
            persistent_workers=True,
            collate_fn=_unchanged,
            worker_init_fn=functools.partial(_start_worker, os.getpid()),
            multiprocessing_context=multiprocessing.get_context(start),
            generator=torch.Generator(),  # else each run draws from the global one
        )


def num_available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Puts Ctrl-C off until the end; a second one is heeded at once.

    Between the acquiring and the releasing of a lock of a queue, it would leave the lock held, and
    whoever closes the queue would wait for ever.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    heard: list[tuple[int, FrameType | None]] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append((number, frame))
        if len(heard) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if len(heard) == 1:
            before(*heard[0])


class _Keys(Generic[_Key]):
    """Keys that can be exchanged between two iterations."""

    def __init__(self) -> None:
        self.current: Iterable[_Key] = ()

    def __iter__(self) -> Iterator[_Key]:
        return iter(self.current)


class _Function(Dataset[_Result]):
    """A function in the form that a DataLoader calls."""

    def __init__(self, function: Callable[[Any], _Result]) -> None:
        self._function = function

    def __getitem__(self, key: Any) -> _Result:
        return self._function(key)


def _unchanged(result: _Result) -> _Result:
    """Keeps the DataLoader from turning arrays into tensors."""
    return result


def _start_worker(parent: int, number: int) -> None:
    del number
    # Ctrl-C and a scheduler's SIGTERM reach every process; the first one decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_later)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_later(number: int, frame: FrameType | None) -> None:
    """Ends this process after a while: the parent may end it sooner, or may be waiting for it."""
    del number, frame
    end = threading.Timer(_GRACE, os._exit, (1,))
    end.daemon = True
    end.start()


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended.

    torch's workers look for their parent themselves, but not if it was killed before they first
    looked, nor while a result waits in a pipe that nobody reads any more: they would stay for ever.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    os._exit(1)
