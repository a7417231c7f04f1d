"""A real server on a free port, in a thread of the test, and plain clients of both protocols."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from midge.decoding.endpointing import EndpointConfig
from midge.decoding.streams import StreamingDecoder
from midge.serve.access import Access
from midge.serve.endpoints import Endpoint
from midge.serve.runner import Server
from midge.serve.service import ModelCard, Service
from midge.serve.settings import Limits
from recognizers import RATE, noise, tiny_recognizer

DECODER = StreamingDecoder(tiny_recognizer())
"""Of tests that do not want another; each server uses it from its own worker alone."""
PAUSING = 31
"""Seed of a tiny recognizer that hears nothing in silence, so that pauses end its segments."""
QUICK = {"pause": 0.12, "silence": 0.4, "max_segment": 1.0}
"""Rules that fire often on noise, as a client writes them."""
RULES = EndpointConfig(**QUICK)


class RunningServer:
    """A server, and how to reach it."""

    def __init__(self, server: Server, service: Service) -> None:
        self.server = server
        self.service = service
        self.http = server.url.rstrip("/")
        self.websocket = self.http.replace("http", "ws", 1)

    def connect(self, path: str = "/stream", **options: object) -> ClientConnection:
        return connect(self.websocket + path, **{"max_size": None, "compression": None, **options})

    def wait_for(self, condition, seconds: float = 20.0) -> None:
        """Waits until something holds; a test that waits in vain fails."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it never came to hold"
            time.sleep(0.01)


@contextmanager
def running(
    decoder: StreamingDecoder = DECODER,
    limits: Limits | None = None,
    access: Access | None = None,
    keep_folder: Path | None = None,
    **options: object,
) -> Iterator[RunningServer]:
    """Serves while it is entered."""
    limits = limits or Limits(max_streams=64, max_streams_per_client=64, max_idle_seconds=20)
    service = Service(
        decoder,
        ModelCard(name="tiny", description="letters"),
        limits=limits,
        access=access,
        keep_folder=keep_folder,
    )
    server = Server(service, Endpoint(port=0), **options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        found = RunningServer(server, service)
        found.wait_for(lambda: server.started)
        yield found
    finally:
        server.should_exit = True
        thread.join()


def with_pauses(rate: int = RATE) -> np.ndarray:
    """Noise, silence, noise, silence, noise: eight seconds, at some rate."""
    silence = np.zeros(2 * rate, np.float32)
    spoken = [noise(seconds * rate / RATE, seed) for seconds, seed in ((1.5, 1), (1.5, 3), (1, 5))]
    return np.concatenate([spoken[0], silence, spoken[1], silence, spoken[2]])


def pcm16(samples: np.ndarray) -> bytes:
    """As 16-bit integers."""
    return np.clip(np.round(samples * 32768), -32768, 32767).astype("<i2").tobytes()


def heard_pcm16(samples: np.ndarray) -> np.ndarray:
    """What a server hears of samples that were sent as 16-bit integers."""
    return np.frombuffer(pcm16(samples), "<i2").astype(np.float32) / np.float32(32768)


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[first : first + size] for first in range(0, len(data), size)]


def events_of(connection: ClientConnection) -> list[dict]:
    """All events until the server closes, for whatever reason."""
    events = []
    while True:
        try:
            events.append(json.loads(connection.recv()))
        except ConnectionClosed:
            return events


def start(connection: ClientConnection, **settings: object) -> dict:
    """Starts a stream of our protocol; what the server says to it."""
    connection.send(json.dumps({"command": "start", **settings}))
    return json.loads(connection.recv())


def streamed(server: RunningServer, messages: list[bytes], **settings: object) -> list[dict]:
    """Sends a whole stream by our protocol; all events after "ready"."""
    with server.connect() as connection:
        assert start(connection, **settings)["event"] == "ready"
        for message in messages:
            connection.send(message)
        connection.send('{"command": "end"}')
        return events_of(connection)


def vosk_streamed(server: RunningServer, messages: list[bytes], **config: object) -> list[dict]:
    """Sends a whole stream by the Vosk protocol, in lock step; all answers."""
    with server.connect("/") as connection:
        connection.send(json.dumps({"config": config}))
        answers = []
        for message in messages:
            connection.send(message)
            answers.append(json.loads(connection.recv()))
        connection.send('{"eof" : 1}')
        answers.append(json.loads(connection.recv()))
        assert events_of(connection) == [], "an answer too many"
    return answers
