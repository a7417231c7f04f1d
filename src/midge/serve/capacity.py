"""How many streams this machine carries, measured with the model itself."""

from __future__ import annotations

import time

import numpy as np

from midge.decoding.endpointing import EndpointConfig
from midge.decoding.streams import StreamingDecoder

BUSY_SHARE = 0.6
"""Share of the time that the worker may work. The rest is for the network, and for bad luck."""
_SIZES = (4, 16)
_NUM_ROUNDS = 7


def measured_capacity(decoder: StreamingDecoder, busy_share: float = BUSY_SHARE) -> int:
    """How many streams at once leave the worker idle for a part of the time.

    The time of a step grows as fixed + each * num_streams. Steps of two sizes, over noise, give the
    two numbers; as many streams fit as keep a step within a share of the sound of a block.

    Args:
        decoder: what streams run on.
        busy_share: how much of the time the worker may work.

    Returns:
        At least 1.
    """
    small, large = (_seconds_per_step(decoder, size) for size in _SIZES)
    each = max((large - small) / (_SIZES[1] - _SIZES[0]), 1e-6)
    fixed = max(small - each * _SIZES[0], 0.0)
    return max(1, int((busy_share * block_seconds(decoder) - fixed) / each))


def block_seconds(decoder: StreamingDecoder) -> float:
    """Sound that is decoded at a time."""
    return decoder.block_size * decoder.recognizer.front_end.frame_seconds


def _seconds_per_step(decoder: StreamingDecoder, num_streams: int) -> float:
    """The time to hear and decode a block in so many streams, when nothing comes between."""
    config = decoder.recognizer.front_end.config
    has_blank = decoder.recognizer.lattice.alignment.has_blank
    rules = EndpointConfig() if has_blank else None
    streams = [decoder.stream(config.sample_rate, endpointing=rules) for _ in range(num_streams)]
    random = np.random.default_rng(0)
    noise = 0.05 * random.standard_normal((num_streams, config.frame_size * decoder.block_size))
    times = []
    for _ in range(_NUM_ROUNDS):
        started = time.perf_counter()
        for stream, samples in zip(streams, noise.astype(np.float32), strict=True):
            stream.feed(samples)
        decoder.step(streams)
        for stream in streams:
            stream.result()
        times.append(time.perf_counter() - started)
    return min(times)
