"""How many streams this machine carries, measured with the model itself."""

from __future__ import annotations

import time

import numpy as np

from midge.decoding.streams import Stream, StreamingDecoder
from midge.serve.jobs import LOOK_SECONDS
from midge.serve.settings import PAGE_SETTINGS, StreamSettings

BUSY_SHARE = 0.45
"""Share of the time that the worker may work. The rest is for the network, and for bad luck."""
CONFIDENT_SHARE = BUSY_SHARE / 2
"""The same where alternatives are searched beside it, which takes about as much."""
_SIZES = (4, 32)
_NUM_ROUNDS = 10
_WARM_UP_SECONDS = 1.0
_BLANK_PENALTY = 20.0
"""Nats. With it noise is full of words, as speech is, and words are what confidences cost."""


def measured_capacity(
    decoder: StreamingDecoder,
    busy_share: float = BUSY_SHARE,
    settings: StreamSettings = PAGE_SETTINGS,
) -> int:
    """How many streams at once leave the worker idle for a part of the time.

    The time of a step grows as fixed + each * num_streams. Steps of two sizes, over noise that is
    taken for words, give the two numbers; as many streams fit as keep a step within a share of the
    sound of a block.

    Args:
        decoder: what streams run on.
        busy_share: how much of the time the worker may work.
        settings: of the streams. Their alternatives are not the worker's: see `Searcher`.

    Returns:
        At least 1.
    """
    small, large = (_seconds_per_step(decoder, size, settings) for size in _SIZES)
    each = max((large - small) / (_SIZES[1] - _SIZES[0]), 1e-6)
    fixed = max(small - each * _SIZES[0], 0.0)
    return max(1, int((busy_share * block_seconds(decoder) - fixed) / each))


def block_seconds(decoder: StreamingDecoder) -> float:
    """Sound that is decoded at a time."""
    return decoder.block_size * decoder.recognizer.front_end.frame_seconds


def _seconds_per_step(
    decoder: StreamingDecoder, num_streams: int, settings: StreamSettings
) -> float:
    """The time to hear and decode a block in so many streams, when nothing comes between."""
    rate = decoder.recognizer.front_end.config.sample_rate
    streams = [_stream(decoder, rate, settings) for _ in range(num_streams)]
    size = decoder.recognizer.front_end.config.frame_size * decoder.block_size
    random = np.random.default_rng(0)
    num_before = round(_WARM_UP_SECONDS / block_seconds(decoder))
    num_between = max(1, round(LOOK_SECONDS / block_seconds(decoder)))
    times = []
    for number in range(num_before + _NUM_ROUNDS):
        noise = (0.05 * random.standard_normal((num_streams, size))).astype(np.float32)
        started = time.perf_counter()
        for stream, samples in zip(streams, noise, strict=True):
            stream.feed(samples)
        decoder.step(streams)
        if number >= num_before:  # until then there is little to be sure of
            for place, stream in enumerate(streams):
                stream.result(is_sure=(number + place) % num_between == 0)
            times.append(time.perf_counter() - started)
    return float(np.quantile(times, 0.25))  # what comes between makes it longer alone


def _stream(decoder: StreamingDecoder, rate: int, settings: StreamSettings) -> Stream:
    options = settings.stream_options()
    if not decoder.recognizer.lattice.alignment.has_blank:
        return decoder.stream(rate, **options | {"endpointing": None})
    return decoder.stream(rate, **options | {"blank_penalty": _BLANK_PENALTY})
