"""The process of a server: sockets, signals, and a shutdown that loses nothing."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from midge.serve.endpoints import Endpoint, bound_socket
from midge.serve.logs import log_event
from midge.serve.service import Service
from midge.serve.web import application

_SWITCH_SECONDS = 0.001
"""How long the worker may keep Python to itself before the event loop gets its turn."""
_HEADERS = [
    ("Content-Security-Policy", "default-src 'self'; base-uri 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),  # an address may hold a token
    ("Cache-Control", "no-cache"),
]


class Server(uvicorn.Server):
    """A service on a socket.

    Args:
        service: new.
        endpoint: where to listen; the socket is bound here.
        grace_seconds: how long a shutdown waits for streams to be decoded.

    Raises:
        OSError: if the address cannot be had.
    """

    def __init__(self, service: Service, endpoint: Endpoint, grace_seconds: float = 30.0) -> None:
        """Binds the socket, so that its address is known."""
        self._service = service
        self._grace_seconds = grace_seconds
        self._tell: Callable[[str], None] | None = None
        self._socket = bound_socket(endpoint)
        self.url = endpoint.url(self._socket.getsockname()[1])
        """Of the page."""
        super().__init__(
            uvicorn.Config(
                application(service),
                ssl_certfile=endpoint.certificate,
                ssl_keyfile=endpoint.key,
                headers=_HEADERS,
                log_config=None,
                access_log=False,
                server_header=False,
                # Twice: a message between the two is refused by an event, and not by a close alone.
                ws_max_size=2 * service.limits.max_message_bytes,
                # Compressing sound takes time and saves nothing.
                ws_per_message_deflate=False,
                # While a stream has too much waiting nothing is read, answers to pings neither.
                ws_ping_timeout=None,
                timeout_graceful_shutdown=5,
            )
        )

    def serve_forever(self, tell: Callable[[str], None] | None = None) -> None:
        """Serves until a signal, or `should_exit`.

        Args:
            tell: called with the address of the page, once it can be opened.
        """
        self._tell = tell
        self.run(sockets=[self._socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and tells so."""
        await super().startup(sockets)
        log_event(
            "serving",
            url=self.url,
            model=self._service.card.name,
            max_streams=self._service.limits.max_streams,
        )
        if self._tell is not None:
            self._tell(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends; streams are finished, and their results told, before connections are closed."""
        log_event("shutdown", num_streams=self._service.admission.num_streams)
        if not self.force_exit:
            await self._service.drain(self._grace_seconds)
        await super().shutdown(sockets)
        log_event("stopped")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes a signal. A second one does not wait; uvicorn would raise the first again."""
        self.force_exit = self.should_exit
        self.should_exit = True


def prepare_process() -> None:
    """Sets this process up to answer soon: short turns, and no garbage search in the model."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
