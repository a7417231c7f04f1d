"""What all connections of a server share: the worker, who is let in, and what is counted."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from midge.decoding.streams import StreamingDecoder
from midge.serve.access import Access, Admission
from midge.serve.capacity import block_seconds
from midge.serve.logs import log_event
from midge.serve.metrics import Metrics
from midge.serve.sessions import Delivery, Session
from midge.serve.settings import Limits, StreamSettings
from midge.serve.worker import Worker

_HEARTBEAT_SECONDS = 0.1
_CUT_SECONDS = 5.0
"""How long a stream that is cut at a shutdown may take to tell what it has."""


class Stoppable(Protocol):
    """A connection that can be asked to come to its end."""

    def stop(self) -> None:
        """Reads what is under way, and no more; what was received is decoded."""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """How a server presents its model."""

    name: str
    """Short."""
    description: str = ""
    """What it can hear, in a sentence."""


class Service:
    """A model that serves streams.

    Args:
        decoder: what streams run on.
        card: how it is presented.
        limits: what clients are given at most.
        access: who is let in.
        keep_folder: where received samples are kept, for tests; None keeps none.
        has_text_logs: whether what was said is logged.
    """

    def __init__(
        self,
        decoder: StreamingDecoder,
        card: ModelCard,
        *,
        limits: Limits | None = None,
        access: Access | None = None,
        keep_folder: Path | None = None,
        has_text_logs: bool = False,
    ) -> None:
        self.card = card
        self.limits = limits or Limits()
        self.access = access or Access()
        self.metrics = Metrics()
        self.admission = Admission(self.limits)
        self._decoder = decoder
        self._has_text_logs = has_text_logs
        self._worker = Worker(decoder, self.metrics, keep_folder)
        # Where phrases are expected the end of a segment takes long: nobody else waits for it.
        self._phrase_worker = Worker(decoder, self.metrics, keep_folder, gives_way=True)
        self._connections: set[Stoppable] = set()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._heartbeat: asyncio.Task[None] | None = None
        self.metrics.max_streams.set(self.limits.max_streams)

    async def start(self) -> None:
        """Starts the workers. On the event loop that the connections will be on."""
        loop = asyncio.get_running_loop()

        def deliver(news: Sequence[Delivery]) -> None:
            loop.call_soon_threadsafe(_hand_over, news)

        for worker in (self._worker, self._phrase_worker):
            worker.start(deliver)
        self._heartbeat = asyncio.create_task(self._watch_loop())

    async def stop(self) -> None:
        """Ends the workers. Nobody may be connected any more."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for worker in (self._worker, self._phrase_worker):
            await asyncio.to_thread(worker.stop)

    async def drain(self, max_seconds: float) -> None:
        """Lets nobody in, and waits until what was received is decoded and told.

        A stream that takes longer is cut: what was decoded of it is told, and how much was not.

        Args:
            max_seconds: how long at most.
        """
        self.admission.is_closed = True
        for connection in list(self._connections):
            connection.stop()
        if await self._is_empty_within(max_seconds):
            return
        log_event(
            "shutdown_incomplete", level=logging.WARNING, num_streams=self.admission.num_streams
        )
        for session in list(self._sessions):
            session.cut()
        await self._is_empty_within(_CUT_SECONDS)

    async def _is_empty_within(self, seconds: float) -> bool:
        """Waits until there is no stream; whether that was soon enough."""
        try:
            async with asyncio.timeout(seconds):
                while self.admission.num_streams:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return False
        return True

    @contextmanager
    def connected(self, connection: Stoppable, client: str) -> Iterator[None]:
        """Holds a place for a stream, and stops its connection at a shutdown.

        Raises:
            Refusal: if there is no place.
        """
        with self.admission.admitted(client):
            self.metrics.streams.set(self.admission.num_streams)
            self._connections.add(connection)
            try:
                yield
            finally:
                self._connections.discard(connection)
        self.metrics.streams.set(self.admission.num_streams)

    def check(self, settings: StreamSettings) -> None:
        """Looks whether a stream can be what a client asks for.

        Raises:
            ValueError: for a phrase that the model cannot spell; it names it.
        """
        tokens = self._decoder.recognizer.tokens
        for phrase in settings.phrases:
            if missing := tokens.uncovered(phrase):
                raise ValueError(
                    f"phrases should have characters that the model knows, got {phrase!r} "
                    f"with {missing!r}"
                )
            if not tokens.encode(phrase):
                raise ValueError(f"phrases should have words, got {phrase!r}")

    def open(self, settings: StreamSettings, protocol: str, client: str) -> Session:
        """Starts a stream.

        Args:
            settings: what the client asks for. A model without blank has no endpoints.
            protocol: by which it came, for the records.
            client: its address.
        """
        if not self._decoder.recognizer.lattice.alignment.has_blank:
            settings = dataclasses.replace(settings, endpointing=None)
        worker = self._phrase_worker if settings.phrases else self._worker
        session = Session(settings, worker.wake)
        self._sessions.add(session)
        worker.add(session)
        self.metrics.started.add(part=protocol)
        log_event(
            "stream_started",
            session=session.id,
            protocol=protocol,
            client=client,
            sample_rate=settings.sample_rate,
        )
        return session

    def log_end(self, session: Session, reason: str) -> None:
        """Logs how a stream ended, and how much was heard, not heard, and found in it."""
        found: dict[str, Any] = {"failure": session.failure}
        if session.end is not None:
            text = session.end.text
            found = {"num_words": len(session.end.words), "num_characters": len(text)}
            found |= {"text": text} if self._has_text_logs else {}
        if unheard := session.backlog_seconds:
            found["unheard_seconds"] = round(unheard, 3)
        log_event(
            "stream_ended",
            session=session.id,
            reason=reason,
            seconds=round(session.seconds, 3),
            **found,
        )

    def health(self) -> Mapping[str, Any]:
        """What is to be told to who asks how it is."""
        return {
            "status": "shutdown" if self.admission.is_closed else "ok",
            "model": self.card.name,
            "description": self.card.description,
            "num_streams": self.admission.num_streams,
            "max_streams": self.limits.max_streams,
            "needs_token": self.access.token is not None,
            **self.stream_facts(),
        }

    def stream_facts(self) -> dict[str, Any]:
        """What a client may want to know of any stream."""
        front_end = self._decoder.recognizer.front_end
        return {
            "sample_rate": front_end.config.sample_rate,
            "block_seconds": round(block_seconds(self._decoder), 6),
            "limits": {
                "max_message_bytes": self.limits.max_message_bytes,
                "max_stream_seconds": self.limits.max_stream_seconds,
                "max_idle_seconds": self.limits.max_idle_seconds,
            },
        }

    async def _watch_loop(self) -> None:
        """Measures by how much the event loop is late."""
        clock = asyncio.get_running_loop().time
        while True:
            before = clock()
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            self.metrics.loop_delay.observe(max(0.0, clock() - before - _HEARTBEAT_SECONDS))


def _hand_over(news: Sequence[Delivery]) -> None:
    for session, each in news:
        session.receive(each)
