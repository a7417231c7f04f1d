"""A WebSocket with the limits of a server: what both protocols stand on."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from midge.serve.access import Refusal
from midge.serve.logs import log_event
from midge.serve.service import Service
from midge.serve.sessions import Session
from midge.serve.writing import written

MAX_TEXT_SIZE = 1 << 18
"""Characters of a text message: more would take the event loop too long to read."""
QUIET_SECONDS = 0.25
"""At a shutdown: a client that has sent nothing for so long has nothing more under way."""
LAST_SECONDS = 2.0
"""At a shutdown: for so long a client that goes on sending is listened to."""
LAST_BYTES = 16 << 20
"""At a shutdown: no more is taken; what systems keep between two processes is less."""
_CLOSE_CODES = {
    "end": 1000,
    "disconnect": 1000,
    "shutdown": 1012,
    "full": 1013,
    "client_full": 1013,
    "message_too_large": 1009,
    "internal": 1011,
}
_POLICY = 1008
_SHUTDOWN = "the server is shutting down; what it has heard is decoded"


class Stop(Exception):
    """The end of what a client sends.

    Args:
        reason: for programs.
        message: for people; empty if all is well.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class BadMessage(ValueError):
    """A message that is not what it should be. The stream goes on.

    Args:
        code: for programs.
        message: for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Connection:
    """A WebSocket, within the limits of a service.

    Args:
        websocket: accepted.
        service: what it belongs to.
    """

    def __init__(self, websocket: WebSocket, service: Service) -> None:
        self.service = service
        self.client = client_address(websocket)
        """Where it comes from."""
        self.is_gone = False
        """Whether nothing can be sent any more."""
        self._websocket = websocket
        self._limits = service.limits
        self._num_errors = 0
        self._is_stopping = False
        self._received_at = -math.inf
        self._last_seconds = 0.0
        self._last_bytes = LAST_BYTES
        self._deadline: asyncio.Timeout | None = None

    async def receive(self) -> str | bytes:
        """The next message.

        Raises:
            Stop: if there is none: the client is gone or idle, has sent too much at once, or the
                server is shutting down, and what the client had sent by then is read.
        """
        idle = self._limits.max_idle_seconds
        try:
            async with asyncio.timeout(self._patience()) as self._deadline:
                message = await self._websocket.receive()
        except TimeoutError:
            if self._is_stopping:
                raise self._shutdown() from None
            raise Stop("idle", f"nothing was sent for {idle:g} seconds") from None
        finally:
            self._deadline = None
        if message["type"] == "websocket.disconnect":
            self.is_gone = True
            raise Stop("disconnect")
        text = message.get("text")
        content: str | bytes = message["bytes"] if text is None else text
        if len(content) > self._limits.max_message_bytes:
            raise Stop(
                "message_too_large",
                f"a message should be at most {self._limits.max_message_bytes} bytes, "
                f"got {len(content)}",
            )
        self._received_at = asyncio.get_running_loop().time()
        if self._is_stopping:
            self._last_bytes -= len(content)
        return content

    def stop(self, last_seconds: float = LAST_SECONDS) -> None:
        """Ends what is received, also while it is waited for.

        What the client has sent already is still read: it may be much, if it sent a file at once.

        Args:
            last_seconds: for how long at most.
        """
        now = asyncio.get_running_loop().time()
        self._is_stopping = True
        self._last_seconds = now + last_seconds
        if self._deadline is not None:
            self._deadline.reschedule(now + min(QUIET_SECONDS, last_seconds))

    def _patience(self) -> float:
        """How long to wait for the next message.

        Raises:
            Stop: if no more is read, though the client sends more.
        """
        if not self._is_stopping:
            return self._limits.max_idle_seconds
        left = self._last_seconds - asyncio.get_running_loop().time()
        if left <= 0 or self._last_bytes <= 0:
            raise self._shutdown()
        return min(QUIET_SECONDS, left)

    def _shutdown(self) -> Stop:
        """The end by a shutdown; a client that would have gone on is told so."""
        quiet = asyncio.get_running_loop().time() - self._received_at
        if quiet >= QUIET_SECONDS:
            return Stop("shutdown", _SHUTDOWN)
        log_event("stopped_listening", level=logging.WARNING, client=self.client)
        return Stop("shutdown", f"{_SHUTDOWN}, but not what was sent after it")

    async def hear(self, session: Session, data: bytes) -> None:
        """Hands sound to a session, and waits while it has too much of it.

        Raises:
            BadMessage: if it is no sound.
            Stop: if the stream is too long.
        """
        size = session.settings.sample_size
        if not data:
            raise BadMessage("empty_message", "a message of sound should not be empty")
        if len(data) % size:
            raise BadMessage(
                "odd_length",
                f"a message of {session.settings.encoding} should be a multiple of {size} bytes, "
                f"got {len(data)}; it was not heard",
            )
        seconds = len(data) / size / session.settings.sample_rate
        longest = self._limits.max_stream_seconds
        if session.seconds + seconds > longest:
            raise Stop("too_long", f"a stream should be at most {longest:g} seconds long")
        if session.is_cut:
            raise Stop("shutdown", _SHUTDOWN)
        session.send(data)
        await session.room(self._limits.max_backlog_seconds, lambda: self._is_stopping)

    def count_error(self, code: str) -> None:
        """Counts an error that the client is told.

        Raises:
            Stop: if there are too many.
        """
        self.service.metrics.errors.add(part=code)
        self._num_errors += 1
        if self._num_errors > self._limits.max_errors:
            most = self._limits.max_errors
            raise Stop("too_many_errors", f"more than {most} messages were wrong")

    async def send(self, event: dict[str, Any]) -> None:
        """Sends an event; who does not take it for as long as one may be idle is gone."""
        await self.send_text(written(event))

    async def send_text(self, text: str) -> None:
        """Sends an event that is written already."""
        if self.is_gone:
            return
        try:
            async with asyncio.timeout(self._limits.max_idle_seconds):
                await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, OSError):  # a TimeoutError is an OSError
            self.is_gone = True

    async def close(self, reason: str) -> None:
        """Closes it, with the code that a reason has."""
        if self.is_gone:
            return
        try:
            async with asyncio.timeout(self._limits.max_idle_seconds):
                await self._websocket.close(_CLOSE_CODES.get(reason, _POLICY), reason)
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass
        self.is_gone = True


async def serve_websocket(
    websocket: WebSocket,
    service: Service,
    talk: Callable[[Connection], Awaitable[None]],
    refusal_event: Callable[[Refusal], dict[str, Any]],
) -> None:
    """Lets a client in and talks with it, or tells it why not.

    A refusal is told on an open connection: a browser hides from its page how a handshake failed.

    Args:
        websocket: a new one.
        service: what it belongs to.
        talk: the protocol.
        refusal_event: how the protocol tells a refusal.
    """
    await websocket.accept()
    connection = Connection(websocket, service)
    try:
        service.access.check(websocket.headers, websocket.query_params.get("token"))
        with service.connected(connection, connection.client):
            await talk(connection)
    except Refusal as refusal:
        service.metrics.refused.add(part=refusal.code)
        log_event("refused", level=logging.WARNING, code=refusal.code, client=connection.client)
        await connection.send(refusal_event(refusal))
        await connection.close(refusal.code)


def client_address(connection: Any) -> str:
    """Where a request comes from, without its port."""
    return connection.client.host if connection.client is not None else "unknown"


def parsed(text: str) -> dict[str, Any]:
    """The JSON object of a text message.

    Raises:
        BadMessage: if it is none.
    """
    if len(text) > MAX_TEXT_SIZE:
        raise BadMessage(
            "bad_message",
            f"a text message should be at most {MAX_TEXT_SIZE} characters, got {len(text)}",
        )
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage("bad_message", f"a text message should be JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadMessage("bad_message", "a text message should be a JSON object")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
