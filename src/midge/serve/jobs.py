"""A session as the worker sees it: its stream, and what was told of it. In the worker's thread."""

from __future__ import annotations

import time
from pathlib import Path

import soundfile  # type: ignore[import-untyped]

from midge.decoding.events import Partial
from midge.decoding.live_alternatives import AlternativesSearch
from midge.decoding.streams import StreamingDecoder
from midge.serve.metrics import Metrics
from midge.serve.samples import samples_of
from midge.serve.sessions import Message, News, Session

PIECE_SECONDS = 1.0
"""Sound that is heard at a time, so that a long message does not hold up other streams."""
PARTIAL_SECONDS = 1.0
"""Sound after which a partial result is told though no word has changed: it says how far we are."""
MAX_SEARCHES = 2
"""Segments of a stream that may wait for their alternatives; then no more of it is heard."""
LOOK_SECONDS = 0.8
"""Sound between two looks at the confidences of tentative words, which cost more than the words."""
CATCH_UP_SECONDS = 0.25
"""Time between two partial results of a stream that still has sound waiting."""


class Job:
    """A session's stream.

    Args:
        session: the other end.
        decoder: what its stream runs on.
        metrics: told how long sound waits.
        keep_folder: where its samples are kept; None keeps none.
    """

    def __init__(
        self,
        session: Session,
        decoder: StreamingDecoder,
        metrics: Metrics,
        keep_folder: Path | None = None,
    ) -> None:
        """Starts the stream."""
        settings = session.settings
        self.session = session
        self.stream = decoder.stream(settings.sample_rate, **settings.stream_options())
        self._metrics = metrics
        self._kept = None if keep_folder is None else _kept_audio(session, keep_folder)
        self._rest = memoryview(b"")
        self._arrivals: list[float] = []
        self._errors: list[str] = []
        self._num_segments = 0
        self._searches: list[AlternativesSearch] = []
        self._num_searches = 0
        self._shown: tuple[object, ...] = (0, (), 0)
        self._told_seconds = 0.0
        self._sure_seconds = -LOOK_SECONDS
        self._told_at = 0.0
        self._is_closed = False
        self.is_over = False
        """Whether no more news will come."""

    def hear(self) -> bool:
        """Takes sound out of the inbox, at most a piece; whether there was anything.

        A stream that can be stepped hears nothing new: what it has comes first. Neither does one
        that is far ahead of its alternatives, as a file that is sent faster than it was spoken.
        """
        if self._is_closed or self.stream.is_ready or self._has_many_searches:
            return False
        # Asked before the inbox is read: nothing is put into it afterwards.
        is_last = self.session.is_closed
        data = self._next_piece()
        if data:
            self._feed(data)
        elif is_last:
            self.stream.close()
            self._is_closed = True
        return bool(data) or is_last

    def _next_piece(self) -> memoryview:
        """At most a piece of what waits; the rest of a long message is not copied each time."""
        settings, inbox = self.session.settings, self.session.inbox
        if self.session.is_cut:
            inbox.clear()
            self._rest = memoryview(b"")
            return self._rest
        limit = int(PIECE_SECONDS * settings.sample_rate) * settings.sample_size
        parts: list[memoryview | bytes] = [self._rest]
        size = len(self._rest)
        while size < limit and inbox:
            message = inbox.popleft()
            self._note(message)
            parts.append(message.data)
            size += len(message.data)
        waiting = self._rest if len(parts) == 1 else memoryview(b"".join(parts))
        self._rest = waiting[limit:]
        return waiting[:limit]

    def _note(self, message: Message) -> None:
        self._metrics.queue_delay.observe(time.monotonic() - message.arrived)
        self._arrivals.append(message.arrived)

    def _feed(self, data: memoryview) -> None:
        settings = self.session.settings
        self.session.num_heard += len(data) // settings.sample_size
        try:
            samples = samples_of(data, settings.encoding)
        except ValueError as error:
            self._errors.append(str(error))
            return
        self.stream.feed(samples)
        self._metrics.audio_seconds.add(len(samples) / settings.sample_rate)
        if self._kept is not None:
            self._kept.write(samples)

    def news(self) -> News:
        """What is to be told now."""
        segments = self.stream.segments[self._num_segments :]
        self._num_segments += len(segments)
        self._searches += (searches := self.stream.take_searches())
        awaited = frozenset(search.segment for search in searches)
        errors, self._errors = tuple(self._errors), []
        has_caught_up = not self.stream.is_ready and not self._rest
        partial = None
        if self._is_closed and has_caught_up:
            self.release()
        elif time.monotonic() - self._told_at >= self._partial_seconds(has_caught_up):
            partial = self._new_partial()
        if has_caught_up:
            self._note_latency()
        end = self.stream.transcript() if self.is_over else None
        return News(segments, awaited, partial, errors=errors, end=end)

    def take_searches(self) -> list[AlternativesSearch]:
        """What finds the alternatives of the segments that were told since the last call."""
        searches, self._searches = self._searches, []
        self._num_searches += len(searches)
        return searches

    @property
    def _has_many_searches(self) -> bool:
        num_waiting = self._num_searches - self.session.num_searched
        return num_waiting >= MAX_SEARCHES and not self.session.is_cut

    def _partial_seconds(self, has_caught_up: bool) -> float:
        """Least time between two partial results now."""
        asked = self.session.settings.partial_seconds
        return asked if has_caught_up else max(asked, CATCH_UP_SECONDS)

    def _note_latency(self) -> None:
        now = time.monotonic()
        for arrived in self._arrivals:
            self._metrics.latency.observe(now - arrived)
        self._arrivals = []

    def release(self) -> None:
        """Ends it."""
        self.is_over = True
        if self._kept is not None:
            self._kept.close()

    def _new_partial(self) -> Partial | None:
        """The partial result, if it is to be told."""
        seconds = self.stream.seconds
        is_sure = seconds - self._sure_seconds >= LOOK_SECONDS
        if is_sure:
            self._sure_seconds = seconds
        partial = self.stream.result(is_sure=is_sure)
        now = (partial.segment, partial.words, partial.num_committed)
        has_changed = now != self._shown and bool(partial.words or now[0] == self._shown[0])
        self._shown = now
        is_due = partial.seconds - self._told_seconds >= PARTIAL_SECONDS
        if not (has_changed or is_due or self.session.settings.has_progress):
            return None
        self._told_seconds, self._told_at = partial.seconds, time.monotonic()
        return partial


def _kept_audio(session: Session, folder: Path) -> soundfile.SoundFile:
    """A file for the samples as they are heard, to the bit."""
    rate = session.settings.sample_rate
    return soundfile.SoundFile(folder / f"{session.id}.wav", "w", rate, 1, "FLOAT")
