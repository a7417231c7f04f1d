"""Our own protocol: settings and sound in, events out. docs/serving.md describes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from starlette.websockets import WebSocket

from midge.decoding.events import Partial, Segment, alternatives_json, event_json
from midge.serve.access import Refusal
from midge.serve.connections import BadMessage, Connection, Stop, parsed, serve_websocket
from midge.serve.sessions import Session
from midge.serve.settings import StreamSettings, settings_from
from midge.serve.writing import written

PROTOCOL = "midge"
MANY_WORDS = 200
"""An event with more of them is written in another thread: the event loop has others to serve."""


async def stream_endpoint(websocket: WebSocket) -> None:
    """`WS /stream`."""
    service = websocket.app.state.service
    await serve_websocket(websocket, service, _talk, _refusal_event)


def error_event(code: str, message: str, *, is_fatal: bool) -> dict[str, Any]:
    """What a client is told when something is wrong.

    Args:
        code: for programs.
        message: for people.
        is_fatal: whether the stream ends by it.
    """
    return {"event": "error", "code": code, "message": message, "is_fatal": is_fatal}


def _refusal_event(refusal: Refusal) -> dict[str, Any]:
    return error_event(refusal.code, str(refusal), is_fatal=True)


async def _talk(connection: Connection) -> None:
    try:
        settings = await _settings(connection)
    except Stop as stop:
        await _tell_stop(connection, stop)
    else:
        service = connection.service
        with service.admission.costly(settings.has_confidence):
            session = service.open(settings, PROTOCOL, connection.client)
            await _LiveStream(connection, session).run()


async def _settings(connection: Connection) -> StreamSettings:
    """What the first command asks for.

    Raises:
        Stop: if the client asks for what is not to be had, or leaves.
    """
    while True:
        message = await connection.receive()
        try:
            if isinstance(message, bytes):
                raise BadMessage("not_started", "send the command start before any sound")
            command = parsed(message)
            if command.pop("command", None) != "start":
                raise BadMessage("not_started", "the first command should be start")
        except BadMessage as error:
            await _tell_error(connection, error)
            continue
        try:
            settings = settings_from(command)
            connection.service.check(settings)
            return settings
        except ValueError as error:
            raise Stop("bad_request", str(error)) from None


async def _tell_error(connection: Connection, error: BadMessage) -> None:
    connection.count_error(error.code)
    await connection.send(error_event(error.code, str(error), is_fatal=False))


async def _tell_stop(connection: Connection, stop: Stop) -> None:
    """Says why, if there is something to say, and closes."""
    await _tell_reason(connection, stop)
    await connection.close(stop.reason)


async def _tell_reason(connection: Connection, stop: Stop) -> None:
    if str(stop):
        connection.service.metrics.errors.add(part=stop.reason)
        await connection.send(error_event(stop.reason, str(stop), is_fatal=True))


class _LiveStream:
    """One stream, from its settings to its end."""

    def __init__(self, connection: Connection, session: Session) -> None:
        self._connection = connection
        self._session = session
        self._behind = _Behind(connection.service.limits.behind_seconds)
        self._segment = 0
        self._num_told = 0
        self._has_ended = False

    async def run(self) -> None:
        """Hears until there is nothing more, and tells until all is told."""
        service, session = self._connection.service, self._session
        ready = {"event": "ready", "session": session.id, "model": service.card.name}
        await self._connection.send(ready | service.stream_facts())
        teller = asyncio.create_task(self._tell())
        try:
            stop = await self._listen()
            if session.failure is None:
                await _tell_reason(self._connection, stop)
        finally:
            session.close()  # also if this task is cancelled: the worker must come to an end
            await teller
        if session.failure is not None:
            stop = Stop("internal", session.failure)
            await _tell_reason(self._connection, stop)
        service.log_end(session, stop.reason)
        await self._connection.close(stop.reason)

    async def _listen(self) -> Stop:
        """Takes messages until the last; why it was the last."""
        try:
            while not self._session.is_over:
                message = await self._connection.receive()
                try:
                    await self._take(message)
                except BadMessage as error:
                    await _tell_error(self._connection, error)
        except Stop as stop:
            return stop
        return Stop("internal")

    async def _take(self, message: str | bytes) -> None:
        if isinstance(message, str):
            command = parsed(message).get("command")
            if command == "end":
                raise Stop("end")
            raise BadMessage("bad_message", f"here the command should be end, got {command!r:.100}")
        await self._connection.hear(self._session, message)
        await self._tell_behind()

    async def _tell(self) -> None:
        """Sends what the worker finds."""
        while not self._has_ended:
            await self._session.change()
            # What comes while this is sent, also the end, is told in the next round.
            self._has_ended = self._session.is_over
            for event in self._events():
                await self._send(event)
            await self._tell_behind()
        if self._session.failure is not None:
            self._connection.stop(0.0)

    def _events(self) -> Iterator[Partial | Segment | dict[str, Any]]:
        """What is to be told, in order, each once."""
        session = self._session
        while session.errors:
            yield error_event("bad_audio", session.errors.popleft(), is_fatal=False)
        while session.segments:
            yield session.segments.popleft()
        while session.alternatives:
            number = next(iter(session.alternatives))
            found = alternatives_json(session.alternatives.pop(number))
            yield {"event": "alternatives", "segment": number, "alternatives": found}
        if session.has_new_partial and session.partial is not None:
            session.has_new_partial = False
            yield session.partial
        if self._has_ended and session.end is not None:
            yield self._end()

    def _end(self) -> dict[str, Any]:
        session = self._session
        assert session.end is not None
        end = {"event": "end", "text": session.end.text, "seconds": session.end.seconds}
        unheard = session.backlog_seconds
        return end | ({"unheard_seconds": round(unheard, 3)} if unheard else {})

    async def _send(self, event: Partial | Segment | dict[str, Any]) -> None:
        if isinstance(event, dict):
            await self._connection.send(event)
            return
        num_told, num_words = self._counts(event)
        if num_words > MANY_WORDS:
            text = await asyncio.to_thread(_event_text, event, num_told)
        else:
            text = _event_text(event, num_told)
        await self._connection.send_text(text)

    def _counts(self, event: Partial | Segment) -> tuple[int, int]:
        """How many words of an event were told as committed before, and how many it tells."""
        if isinstance(event, Segment):
            return 0, len(event.transcript.words)
        num_told = self._num_told if event.segment == self._segment else 0
        self._segment, self._num_told = event.segment, event.num_committed
        return num_told, len(event.words) - num_told

    async def _tell_behind(self) -> None:
        event = self._behind.event(self._session.backlog_seconds)
        if event is not None and not self._has_ended:  # nothing follows the end
            await self._connection.send(event)


def _event_text(event: Partial | Segment, num_told: int) -> str:
    return written(event_json(event, num_told))


class _Behind:
    """When a stream is told that it is behind, and that it no longer is.

    Args:
        limit: seconds of sound that may wait; also the time between two such events.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._is_behind = False
        self._told_at = 0.0

    def event(self, seconds: float) -> dict[str, Any] | None:
        """The event for so much sound that waits, if it is time for one."""
        was_behind, self._is_behind = self._is_behind, seconds > self._limit
        now = time.monotonic()
        is_due = self._is_behind and now - self._told_at >= self._limit
        if self._is_behind == was_behind and not is_due:
            return None
        self._told_at = now
        return {"event": "behind", "seconds": round(seconds, 3)}
