"""A stream between its connection, on the event loop, and the worker, a thread.

What goes to the worker goes through a queue that threads may share; what comes back is handed over
on the event loop. Each field has one writer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from midge.decoding.decoded import Alternative
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
    awaited: frozenset[int] = frozenset()
    """Numbers of those whose alternatives will be told later."""
    partial: Partial | None = None
    """What the present segment says, if that is to be told."""
    alternatives: Mapping[int, tuple[Alternative, ...]] = field(default_factory=dict)
    """Alternatives of segments that were told before, by their numbers."""
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
        self.is_cut = False
        """Whether what waits is not to be heard any more."""
        self.num_heard = 0
        """Samples that the worker has taken; it alone counts them."""
        self.num_searched = 0
        """Segments whose alternatives were looked for; the searcher alone counts them."""
        self.segments: deque[Segment] = deque()
        """Segments that were not told yet."""
        self.alternatives: dict[int, tuple[Alternative, ...]] = {}
        """Alternatives that were not told yet, by the numbers of their segments."""
        self.awaited: set[int] = set()
        """Segments whose alternatives are still looked for, by their numbers."""
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
        """Whether there will be no more news."""
        has_all = self.end is not None and not self.awaited
        return has_all or self.failure is not None

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

    def cut(self) -> None:
        """Ends it here: what waits is not heard."""
        self.is_cut = True
        self.close()

    def note_search(self) -> None:
        """Counts a search that is over; the worker may have waited for it."""
        self.num_searched += 1
        self._wake()

    def receive(self, news: News) -> None:
        """Takes what the worker has found. On the event loop."""
        self.segments += news.segments
        self.alternatives |= news.alternatives
        self.awaited = (self.awaited | news.awaited) - news.alternatives.keys()
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

    async def room(
        self, max_backlog_seconds: float, is_urgent: Callable[[], bool] = lambda: False
    ) -> None:
        """Waits until the worker has taken enough that more may be read.

        Args:
            max_backlog_seconds: sound that may wait.
            is_urgent: says that there is no time for waiting.
        """
        while self.backlog_seconds > max_backlog_seconds and not (self.is_over or is_urgent()):
            await asyncio.sleep(0.02)

    async def ended(self) -> None:
        """Waits until the worker is done with it."""
        while not self.is_over:
            await self.change()


Delivery = tuple[Session, News]
"""What is told to whom."""
