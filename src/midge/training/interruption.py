"""Ctrl-C between two steps: asked to stop, a run ends its step, saves and says how to go on."""

from __future__ import annotations

import signal
import threading
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Notes a request to stop (Ctrl-C, or SIGTERM from a scheduler) while it is entered.

    A second request is not noted but obeyed at once, by KeyboardInterrupt.

    Example:
        >>> with Interruption() as interruption:
        ...     signal.raise_signal(signal.SIGINT)
        ...     interruption.is_requested
        True
    """

    def __init__(self) -> None:
        self.is_requested = False
        """Whether the run should stop after its present step."""
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        # Only the main thread may say what a signal does; elsewhere Ctrl-C is the caller's.
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._note) for each in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
