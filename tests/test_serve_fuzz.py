"""Thousands of random and mutated messages: the server stays up, and others are undisturbed."""

from __future__ import annotations

import ctypes
import gc
import json
import random
import socket
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from midge.decoding.live import decode_offline
from midge.serve.settings import Limits
from recognizers import RATE, noise
from servers import (
    DECODER,
    QUICK,
    RULES,
    RunningServer,
    chunks,
    heard_pcm16,
    pcm16,
    running,
    start,
    streamed,
)

SOUND = pcm16(noise(0.5, seed=3))
SEEDS = [
    '{"command": "start", "sample_rate": 8000, "encoding": "float32", "endpointing": true}',
    '{"command": "start", "endpointing": {"pause": 0.1, "silence": 1.0}, "num_best": 2}',
    '{"command": "end"}',
    '{"config": {"sample_rate": 8000.0, "words": 1, "max_alternatives": 3, "phrase_list": ["a"]}}',
    '{"eof" : 1}',
    '{"a": [1, 2, {"b": null}], "command": {}}',
]
VALUES = [None, True, -1, 0, 1e308, "x", "start", [], {}, [[]], 2**70, "\u0000", "\ud83d\ude00"]


MAX_GROWTH_MB = 2.0
"""Free memory between the used comes to half of one. If jobs are kept, thousands of messages leave
five and more."""


def mutated(generator: random.Random, text: str) -> str:
    """A message with something in it changed: a character, a key, a value."""
    kind = generator.randrange(4)
    if kind == 0:
        place = generator.randrange(len(text))
        return text[:place] + chr(generator.randrange(1, 0x2000)) + text[place + 1 :]
    if kind == 1:
        return text[: generator.randrange(len(text))]
    message = json.loads(text)
    key = generator.choice([*message, "sample_rate", "config", "command", "eof", "num_best"])
    message[key] = generator.choice(VALUES)
    return json.dumps(message)


def random_message(generator: random.Random) -> str | bytes:
    kind = generator.randrange(6)
    if kind == 0:
        return generator.choice(SEEDS)
    if kind in (1, 2):
        return mutated(generator, generator.choice(SEEDS))
    if kind == 3:
        return generator.randbytes(generator.choice([0, 1, 2, 3, 4, 100, 4001]))
    if kind == 4:
        first = generator.randrange(0, len(SOUND) - 800, 2)
        return SOUND[first : first + 800]
    return "".join(chr(generator.randrange(1, 0x800)) for _ in range(generator.randrange(40)))


def pestered(server: RunningServer, seed: int, num_messages: int) -> int:
    """Sends random messages over as many connections as that takes; how many were sent.

    Everything that comes back is read: it must be JSON objects.
    """
    generator = random.Random(seed)
    num_sent = 0
    while num_sent < num_messages:
        path = generator.choice(["/stream", "/stream", "/", "/vosk"])
        with suppress(ConnectionClosed), server.connect(path, close_timeout=30) as connection:
            for _ in range(generator.randrange(1, 60)):
                connection.send(random_message(generator))
                num_sent += 1
            if generator.randrange(3):
                connection.send('{"command": "end"}')
                connection.send('{"eof": 1}')
                while True:
                    assert isinstance(json.loads(connection.recv()), dict)
    return num_sent


def raw_nonsense(server: RunningServer, seed: int, num_connections: int) -> None:
    """Bytes that are no HTTP, and frames that are no frames or no UTF-8, on bare sockets."""
    generator = random.Random(seed)
    port = int(server.http.rsplit(":", 1)[1])
    handshake = (
        f"GET /stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    no_text = bytes([0x81, 0x82, 0, 0, 0, 0, 0xFF, 0xFE])
    for number in range(num_connections):
        # The server may close before all is sent.
        with (
            suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
        ):
            if number % 3:
                raw.sendall(handshake)
                raw.recv(4096)
            if number % 3 == 1:
                raw.sendall(no_text)
            raw.sendall(generator.randbytes(generator.randrange(1, 3000)))
            with suppress(OSError):  # no connection any more
                raw.shutdown(socket.SHUT_WR)
            raw.recv(4096)


def memory_mb() -> float:
    """Of this process, after all that is free was given back."""
    gc.collect()
    with suppress(AttributeError):  # another library than glibc gives it back by itself
        ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("num_messages", [600, pytest.param(8000, marks=pytest.mark.slow)])
def test_nonsense_harms_nobody(num_messages, caplog):
    """Four clients send nonsense; meanwhile streams of others say what they say alone."""
    caplog.set_level("ERROR")
    samples = noise(0.8, seed=2)
    expected = decode_offline(DECODER, heard_pcm16(samples), RATE, endpointing=RULES).text
    limits = Limits(max_streams=16, max_streams_per_client=16, max_errors=30, max_idle_seconds=5)
    with running(limits=limits) as server:

        def pester(seed: int) -> float:
            """Nonsense of four clients, a third of all; the memory after it."""
            raw_nonsense(server, seed, num_connections=num_messages // 60)
            sent: list[int] = []
            threads = [
                threading.Thread(
                    target=lambda each=each: sent.append(pestered(server, each, num_messages // 12))
                )
                for each in range(seed, seed + 4)
            ]
            for thread in threads:
                thread.start()
            texts = []
            while any(thread.is_alive() for thread in threads) or not texts:
                events = streamed(
                    server, chunks(pcm16(samples), 1600), sample_rate=RATE, endpointing=QUICK
                )
                texts.append(events[-1]["text"])
            for thread in threads:
                thread.join()
            assert sum(sent) >= num_messages // 3, "a client gave up"
            assert set(texts) == {expected}
            server.wait_for(lambda: server.service.admission.num_streams == 0)
            assert httpx.get(f"{server.http}/health").json()["status"] == "ok"
            return memory_mb()

        pester(100)  # what is done for the first time stays in memory
        first, second = pester(200), pester(300)
        assert second < first + MAX_GROWTH_MB, "memory is not given back"
        with server.connect() as connection:
            assert start(connection)["event"] == "ready"
    ours = [record for record in caplog.records if record.name.startswith("midge")]
    assert [record.getMessage() for record in ours if record.exc_info] == []
