"""The load that a live server carries: recordings replayed at real time, from another process.

Every stream sends a message whenever its sound would have been spoken, whatever the server does,
and notes when the answer comes by which it is decoded. The delay of a message counts from when it
was due, so that a server, or a replay, that falls behind is not flattered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from midge.audio import Audio

DELAY_LIMIT = 0.5
"""Seconds. A load is carried if all but one in a hundred answers come sooner."""
_PAUSE_SECONDS = 1.0
_PATIENCE_SECONDS = 20.0
_ROUNDING = 1e-3
_DECODED = {"partial": "decoded_seconds", "final": "end", "end_of_speech": "end", "end": "seconds"}
"""The key of each event that says how much sound was decoded."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is replayed."""

    num_streams: int = 10
    """Streams at once."""
    seconds: float = 20.0
    """Length of each."""
    message_seconds: float = 0.1
    """Sound in a message."""
    has_endpoints: bool = True
    """Whether streams are cut at pauses."""
    has_confidence: bool = False
    """Whether streams ask for confidences."""
    num_best: int = 0
    """Alternatives of each segment that streams ask for."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.num_streams < 1:
            raise ValueError(f"num_streams should be at least 1, got {self.num_streams}")
        if self.num_best < 0:
            raise ValueError(f"num_best should be at least 0, got {self.num_best}")
        if not 0 < self.message_seconds <= self.seconds < math.inf:
            raise ValueError(
                f"message_seconds should be above 0 and at most the length of {self.seconds} s, "
                f"got {self.message_seconds}"
            )


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What came of a load. Times are in seconds."""

    load: Load
    block_seconds: float
    """Sound that is decoded together; a message waits for the end of its block."""
    delays: dict[str, float]
    """Of answers, that wait included: p50, p90, p99 and the largest."""
    lateness: float
    """By which the replay itself was late; p99."""
    num_messages: int
    num_missed: int
    """Messages that no answer has covered."""
    num_failed: int
    """Streams that were refused, or broke."""
    server_share: float | None
    """Processors that the server kept busy; None if it does not say."""
    client_share: float
    """Processors that the replay kept busy."""

    @property
    def is_carried(self) -> bool:
        """Whether nothing was lost, and p99 is below the limit."""
        is_whole = not self.num_missed and not self.num_failed
        return is_whole and self.delays["p99"] < DELAY_LIMIT

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; a time that was never reached is null."""
        found = dataclasses.asdict(self) | {"is_carried": self.is_carried}
        delays = {name: _finite(value) for name, value in self.delays.items()}
        return found | {"delays": delays, "lateness": _finite(self.lateness)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass
class _Record:
    """What one stream noted."""

    due: list[float] = field(default_factory=list)
    """When each message was to be sent."""
    lateness: list[float] = field(default_factory=list)
    """How much later it was sent."""
    answers: list[tuple[float, float]] = field(default_factory=list)
    """When an answer came, and how many seconds of sound were decoded by then."""
    num_messages: int = 0
    """How many there were to send."""
    block_seconds: float = 0.0
    failure: str = ""


def replayed(
    url: str, recordings: Sequence[Audio], load: Load, token: str | None = None
) -> LoadReport:
    """Replays recordings to a server at real time.

    Args:
        url: of the server, as http://127.0.0.1:2700/.
        recordings: at least one, all of one sample rate; streams repeat them, each from another.
        load: how many, and how.
        token: what the server wants to hear, if anything.

    Raises:
        ValueError: if recordings are missing or do not fit together.
        OSError: if the server cannot be reached.
    """
    rates = {recording.sample_rate for recording in recordings}
    if len(rates) != 1:
        raise ValueError(f"recordings should have one sample rate, got {sorted(rates) or 'none'}")
    before = processor_seconds(url, token)
    started, own = time.perf_counter(), time.process_time()
    records = asyncio.run(_replay_all(url, recordings, load, token))
    elapsed = time.perf_counter() - started
    share = (time.process_time() - own) / elapsed
    after = processor_seconds(url, token)
    server_share = None if before is None or after is None else (after - before) / elapsed
    return _report(load, records, server_share, share)


async def _replay_all(
    url: str, recordings: Sequence[Audio], load: Load, token: str | None
) -> list[_Record]:
    address = url.rstrip("/").replace("http", "ws", 1) + "/stream"
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    random = np.random.default_rng(0)
    # Spread over a message's time, as speakers are.
    offsets = random.random(load.num_streams) * load.message_seconds
    settings = {
        "command": "start",
        "sample_rate": recordings[0].sample_rate,
        "endpointing": load.has_endpoints,
        "confidence": load.has_confidence,
        "num_best": load.num_best,
        "progress": True,
    }
    replays = [
        _Replay(_messages(recordings, number, load), load.message_seconds, offset)
        for number, offset in enumerate(offsets)
    ]
    await asyncio.gather(*(each.run(address, headers, settings) for each in replays))
    return [each.record for each in replays]


def _messages(recordings: Sequence[Audio], first: int, load: Load) -> list[bytes]:
    """The messages of one stream: recordings with pauses between, from the given one on."""
    rate = recordings[0].sample_rate
    num_wanted = round(load.seconds * rate)
    pieces: list[np.ndarray] = []
    size, number = 0, first
    while size < num_wanted:
        samples = recordings[number % len(recordings)].samples
        pieces += [samples, np.zeros(round(_PAUSE_SECONDS * rate), np.float32)]
        size += len(pieces[-2]) + len(pieces[-1])
        number += 1
    scaled = np.round(32768 * np.concatenate(pieces)[:num_wanted])
    data = np.clip(scaled, -32768, 32767).astype("<i2").tobytes()
    step = 2 * round(load.message_seconds * rate)
    return [data[place : place + step] for place in range(0, len(data), step)]


class _Replay:
    """One stream.

    Args:
        messages: what it sends.
        message_seconds: sound in each.
        offset: seconds by which it starts later.
    """

    def __init__(self, messages: Sequence[bytes], message_seconds: float, offset: float) -> None:
        self.record = _Record(num_messages=len(messages))
        self._messages = messages
        self._message_seconds = message_seconds
        self._offset = offset

    async def run(self, address: str, headers: dict[str, str], settings: dict[str, Any]) -> None:
        """Sends everything in its time, and notes what comes."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        try:
            async with connect(
                address,
                additional_headers=headers,
                compression=None,
                open_timeout=_PATIENCE_SECONDS,
                ping_timeout=None,
            ) as socket:
                await socket.send(json.dumps(settings))
                await self._talk(socket)
        except (WebSocketException, OSError) as error:  # a TimeoutError is an OSError
            self.record.failure = str(error) or type(error).__name__

    async def _talk(self, socket: Any) -> None:
        ready = json.loads(await socket.recv())
        if ready["event"] != "ready":
            self.record.failure = ready.get("message", "refused")
            return
        self.record.block_seconds = ready["block_seconds"]
        listener = asyncio.create_task(self._listen(socket))
        await asyncio.sleep(self._offset)
        await self._send_all(socket)
        await asyncio.wait_for(listener, _PATIENCE_SECONDS)

    async def _send_all(self, socket: Any) -> None:
        started = time.perf_counter()
        for number, message in enumerate(self._messages, start=1):
            due = started + number * self._message_seconds
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self.record.due.append(due)
            self.record.lateness.append(max(0.0, time.perf_counter() - due))
            await socket.send(message)
        await socket.send('{"command": "end"}')

    async def _listen(self, socket: Any) -> None:
        async for message in socket:
            now = time.perf_counter()
            event = json.loads(message)
            if event["event"] in _DECODED:
                self.record.answers.append((now, event[_DECODED[event["event"]]]))
            elif event["event"] == "error":
                self.record.failure = event["message"]


def _report(
    load: Load, records: Sequence[_Record], server_share: float | None, client_share: float
) -> LoadReport:
    delays, num_missed = [], 0
    for record in records:
        ends = [
            min(number * load.message_seconds, load.seconds)
            for number in range(1, len(record.due) + 1)
        ]
        found = covering_delays(record.due, ends, record.answers)
        delays += found
        num_missed += record.num_messages - len(found)
    lateness = [late for record in records for late in record.lateness]
    return LoadReport(
        load=load,
        block_seconds=max(record.block_seconds for record in records),
        delays=_percentiles(delays),
        lateness=_percentiles(lateness)["p99"],
        num_messages=len(lateness),
        num_missed=num_missed,
        num_failed=sum(bool(record.failure) for record in records),
        server_share=server_share,
        client_share=client_share,
    )


def covering_delays(
    due: Sequence[float], ends: Sequence[float], answers: Sequence[tuple[float, float]]
) -> list[float]:
    """How long after it was due each message was covered by an answer; fewer if some never were.

    Args:
        due: when each message was due, in order.
        ends: seconds of sound up to the end of each message.
        answers: times, in order, and the seconds of sound that each covers.

    Example:
        >>> covering_delays([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [(1.5, 1.0), (3.25, 2.0)])
        [0.5, 1.25]
    """
    delays: list[float] = []
    for at, seconds in answers:
        while len(delays) < len(due) and ends[len(delays)] <= seconds + _ROUNDING:
            delays.append(at - due[len(delays)])
    return delays


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    """By the nearest rank; infinite without values."""
    ordered = sorted(values) or [math.inf]
    ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in ranks.items()
    }


def processor_seconds(url: str, token: str | None = None) -> float | None:
    """Processor time that a server has used so far, by its metrics.

    Raises:
        OSError: if it cannot be reached.
    """
    from urllib.request import Request, urlopen

    request = Request(url.rstrip("/") + "/metrics")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=_PATIENCE_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("process_cpu_seconds_total ")]
    return float(found[0].split()[1]) if found else None
