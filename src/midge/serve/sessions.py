"""A stream between its connection, on the event loop, and the worker, a thread.

What goes to the worker goes through a queue that threads may share; what comes back is handed over
on the event loop. Each field has one writer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from midge.decoding.events import Partial, Segment
from midge.models import Transcript
from midge.serve.settings import StreamSettings


@dataclass(frozen=True)
class Message:
    """Sound on its way to the worker."""

    data: bytes
    """Whole samples."""
    arrived: float
    """When, by `time.monotonic`."""


@dataclass(frozen=True)
class News:
    """What the worker has found since it last told."""

    segments: tuple[Segment, ...] = ()
    """Those that are over."""
    partial: Partial | None = None
    """What the present segment says, if that is to be told."""
    errors: tuple[str, ...] = ()
    """Sound that could not be heard, and why."""
    end: Transcript | None = None
    """All that was said, at the end."""
    failure: str | None = None
    """Why there will be no end: an error of ours."""


class Session:
    """One stream.

    Args:
        settings: what the client asked for.
        wake: tells the worker that there is something to do.
    """

    def __init__(self, settings: StreamSettings, wake: Callable[[], None]) -> None:
        self.id = secrets.token_hex(8)
        """Names it in events, logs and kept files."""
        self.settings = settings
        self.inbox: deque[Message] = deque()
        """Sound for the worker, the oldest first."""
        self.is_closed = False
        """Whether no more sound comes; the worker reads it before the inbox."""
        self.num_heard = 0
        """Samples that the worker has taken; it alone counts them."""
        self.segments: deque[Segment] = deque()
        """Segments that were not told yet."""
        self.partial: Partial | None = None
        """The newest partial result."""
        self.has_new_partial = False
        """Whether it was not told yet."""
        self.errors: deque[str] = deque()
        """Errors that were not told yet."""
        self.end: Transcript | None = None
        """The whole, at the end."""
        self.failure: str | None = None
        """What went wrong in the worker, if anything did."""
        self._num_received = 0
        self._wake = wake
        self._changed = asyncio.Event()

    @property
    def seconds(self) -> float:
        """Length of the sound that was received."""
        return self._num_received / self.settings.sample_rate

    @property
    def backlog_seconds(self) -> float:
        """Sound that was received and not yet taken by the worker."""
        return (self._num_received - self.num_heard) / self.settings.sample_rate

    @property
    def is_over(self) -> bool:
        """Whether the worker is done with it."""
        return self.end is not None or self.failure is not None

    def send(self, data: bytes) -> None:
        """Hands sound, whole samples, to the worker."""
        assert not self.is_closed and len(data) % self.settings.sample_size == 0
        self._num_received += len(data) // self.settings.sample_size
        self.inbox.append(Message(data, time.monotonic()))
        self._wake()

    def close(self) -> None:
        """Says that no more sound comes."""
        self.is_closed = True
        self._wake()

    def receive(self, news: News) -> None:
        """Takes what the worker has found. On the event loop."""
        self.segments += news.segments
        self.errors += news.errors
        if news.segments:
            # What was shown of a segment that is over must not be shown after it.
            self.partial, self.has_new_partial = None, False
        if news.partial is not None:
            self.partial, self.has_new_partial = news.partial, True
        self.end = news.end or self.end
        self.failure = news.failure or self.failure
        self._changed.set()

    async def change(self) -> None:
        """Waits until the worker has told something. For one waiter at a time."""
        await self._changed.wait()
        self._changed.clear()

    async def room(self, max_backlog_seconds: float) -> None:
        """Waits until the worker has taken enough that more may be read."""
        while self.backlog_seconds > max_backlog_seconds and not self.is_over:
            await asyncio.sleep(0.02)

    async def ended(self) -> None:
        """Waits until the worker is done with it."""
        while not self.is_over:
            await self.change()
