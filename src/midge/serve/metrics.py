"""Counters, gauges and histograms, written as Prometheus reads them."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Iterator, Sequence

TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
"""Upper edges, in seconds, of the histograms of times."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper edges of the histogram of batch sizes."""


class Counter:
    """A number for each value of a label, or one number. Threads may share it.

    Args:
        name: as Prometheus wants it.
        meaning: what it counts.
        label: what its parts are called; empty if it has none.
        kind: "counter", which only grows, or "gauge".
    """

    def __init__(self, name: str, meaning: str, label: str = "", kind: str = "counter") -> None:
        self._head = (name, meaning, kind)
        self._label = label
        self._values: dict[str, float] = {} if label else {"": 0.0}
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0, part: str = "") -> None:
        """Adds to it."""
        with self._lock:
            self._values[part] = self._values.get(part, 0.0) + amount

    def set(self, value: float) -> None:
        """Sets a gauge."""
        with self._lock:
            self._values[""] = value

    @property
    def value(self) -> float:
        """The sum of its parts."""
        with self._lock:
            return sum(self._values.values())

    def lines(self) -> Iterator[str]:
        """Its part of the page."""
        yield from _head(*self._head)
        with self._lock:
            values = sorted(self._values.items())
        for part, value in values:
            label = f'{{{self._label}="{part}"}}' if self._label else ""
            yield f"{self._head[0]}{label} {value:.12g}"


class Histogram:
    r"""How often values fell below each of some edges. Threads may share it.

    Args:
        name: as Prometheus wants it.
        meaning: what is measured.
        edges: upper ones, rising.

    Example:
        >>> sizes = Histogram("size", "Of a batch.", (1, 4))
        >>> for value in (1, 3, 9):
        ...     sizes.observe(value)
        >>> print(*sizes.lines(), sep="\n")
        # HELP size Of a batch.
        # TYPE size histogram
        size_bucket{le="1"} 1
        size_bucket{le="4"} 2
        size_bucket{le="+Inf"} 3
        size_sum 13
        size_count 3
    """

    def __init__(self, name: str, meaning: str, edges: Sequence[float]) -> None:
        self._name, self._meaning, self._edges = name, meaning, tuple(edges)
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Counts a value."""
        place = bisect.bisect_left(self._edges, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def lines(self) -> Iterator[str]:
        """Its part of the page."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        yield from _head(self._name, self._meaning, "histogram")
        below = 0
        for edge, count in zip((*self._edges, None), counts, strict=True):
            below += count
            yield f'{self._name}_bucket{{le="{"+Inf" if edge is None else f"{edge:g}"}"}} {below}'
        yield f"{self._name}_sum {total:.12g}"
        yield f"{self._name}_count {below}"


class Metrics:
    """All that a server counts."""

    def __init__(self) -> None:
        self.streams = Counter("midge_streams", "Streams now.", kind="gauge")
        self.max_streams = Counter("midge_max_streams", "Streams allowed.", kind="gauge")
        self.started = Counter("midge_streams_started_total", "Streams so far.", "protocol")
        self.refused = Counter("midge_streams_refused_total", "Streams refused.", "code")
        self.errors = Counter("midge_errors_total", "Errors that clients were told.", "code")
        self.audio_seconds = Counter("midge_audio_seconds_total", "Seconds of sound heard.")
        self.busy_seconds = Counter("midge_busy_seconds_total", "Seconds the worker has worked.")
        self.queue_delay = Histogram(
            "midge_queue_delay_seconds", "From the arrival of sound until it is heard.", TIMES
        )
        self.latency = Histogram(
            "midge_latency_seconds", "From the arrival of sound until its result.", TIMES
        )
        self.loop_delay = Histogram(
            "midge_loop_delay_seconds", "By which the event loop is late.", TIMES
        )
        self.search_delay = Histogram(
            "midge_alternatives_delay_seconds", "From a segment to its alternatives.", TIMES
        )
        self.searches_left_out = Counter(
            "midge_alternatives_left_out_total", "Segments whose alternatives were not looked for."
        )
        self.batch_size = Histogram("midge_batch_size", "Streams stepped together.", SIZES)

    def page(self) -> str:
        """All of them, in Prometheus's text format."""
        audio = self.audio_seconds.value
        factor = Counter("midge_real_time_factor", "Work per sound, since the start.", kind="gauge")
        factor.set(self.busy_seconds.value / audio if audio else 0.0)
        processor = Counter("process_cpu_seconds_total", "Processor time of the server.")
        processor.set(time.process_time())
        parts = [*vars(self).values(), factor, processor]
        return "".join(f"{line}\n" for part in parts for line in part.lines())


def _head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
