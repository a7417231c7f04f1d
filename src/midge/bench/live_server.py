"""A server to be measured: a process of its own, and the search for what it carries."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from midge.audio import Audio
from midge.audio.resampling import resample
from midge.bench.live import Load, LoadReport
from midge.data.spoken import Voice, speak
from midge.data.spoken.texts import SINGLE_TEXTS

MAX_STREAMS = 512
"""No search goes beyond it."""
RATE = 16000
"""Hertz. Of all that is replayed: what the page sends."""
_RESOLUTION = 0.1
_NUM_SPOKEN = 12
_STOP_SECONDS = 30.0


@contextmanager
def server_process(options: Sequence[str]) -> Iterator[str]:
    """Runs `midge serve` on a free port while it is entered; its address.

    Args:
        options: of `midge serve`, besides the port.

    Raises:
        ValueError: if it does not start; with its own last words.
    """
    command = [sys.executable, "-m", "midge", "serve", *options, "--port", "0"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                log.seek(0)
                raise ValueError(f"the server did not start: {log.read().strip()[-1000:]}")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def spoken_recordings(seed: int = 0) -> list[Audio]:
    """Synthetic speech to replay: texts of the embedded corpus, by espeak-ng, at `RATE`.

    Args:
        seed: of the texts.

    Raises:
        ValueError: without espeak-ng.
    """
    random = np.random.default_rng(seed)
    kinds = list(SINGLE_TEXTS.values())
    texts = [kinds[number % len(kinds)](random) for number in range(_NUM_SPOKEN)]
    spoken = [speak(text, Voice()) for text in texts]
    return [at_one_rate(Audio(each.samples, each.sample_rate)) for each in spoken]


def at_one_rate(audio: Audio) -> Audio:
    """A recording at `RATE`."""
    return Audio(resample(audio.samples, audio.sample_rate, RATE), RATE)


def most_carried(
    measure: Callable[[Load], LoadReport], load: Load, max_streams: int = MAX_STREAMS
) -> list[LoadReport]:
    """Looks for the most streams that are carried: doubles until they are not, then halves.

    Args:
        measure: a load.
        load: the first to be tried.
        max_streams: no more are tried.

    Returns:
        All that was tried, in order. The most streams that were carried and the fewest that were
        not lie within a tenth of each other, unless a limit was met.
    """
    reports = [measure(load)]
    while (number := _next_number(reports, max_streams)) is not None:
        reports.append(measure(dataclasses.replace(load, num_streams=number)))
    return reports


def _next_number(reports: Sequence[LoadReport], max_streams: int) -> int | None:
    carried = [each.load.num_streams for each in reports if each.is_carried]
    failed = [each.load.num_streams for each in reports if not each.is_carried]
    low, high = max(carried, default=0), min(failed, default=None)
    if high is None:
        return None if low >= max_streams else min(2 * low, max_streams)
    # What failed once is not tried again, nor anything above it.
    step = max(1, int(_RESOLUTION * high))
    return None if high - low <= step else (low + high) // 2
