"""Whole recordings by streams: at once, in blocks, in batches, or followed as they go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from midge.audio import Audio
from midge.decoding.events import Partial, Segment
from midge.decoding.streams import Stream, StreamingDecoder
from midge.models import Recognizer, Transcript


def decode_offline(
    decoder: StreamingDecoder | Recognizer,
    samples: np.ndarray,
    sample_rate: int,
    **options: Any,
) -> Transcript:
    """What a stream says of a whole recording: one `accept`, then `finish`.

    Args:
        decoder: as for `Stream`.
        samples: [num_samples] mono, floats in [-1, 1].
        sample_rate: in hertz.
        options: of `Stream`.
    """
    stream = Stream(decoder, sample_rate, **options)
    stream.accept(samples)
    return stream.finish()


def decode_blocks(decoder: StreamingDecoder, blocks: Iterable[Audio], **options: Any) -> Transcript:
    """What a stream says of a recording of any length, which is never held whole.

    Args:
        decoder: what decodes it.
        blocks: at least one, all of one sample rate, as from `midge.audio.audio_blocks`.
        options: of `StreamingDecoder.stream`.

    Raises:
        ValueError: without a block.
    """
    stream: Stream | None = None
    for block in blocks:
        if stream is None:
            stream = decoder.stream(block.sample_rate, **options)
        stream.accept(block.samples)
    if stream is None:
        raise ValueError("blocks should be at least one, got none")
    return stream.finish()


def decode_together(
    decoder: StreamingDecoder, recordings: Sequence[Audio], **options: Any
) -> list[Transcript]:
    """What streams say of several recordings, stepped in one batch.

    Args:
        decoder: what decodes them.
        recordings: whole.
        options: of `StreamingDecoder.stream`.
    """
    streams = [decoder.stream(each.sample_rate, **options) for each in recordings]
    for stream, recording in zip(streams, recordings, strict=True):
        stream.feed(recording.samples)
        stream.close()
    while decoder.step(streams):
        pass
    return [stream.transcript() for stream in streams]


def follow(stream: Stream, pieces: Iterable[np.ndarray]) -> Iterator[Partial | Segment]:
    """Feeds a stream to its end and tells what happens, as soon as it does.

    Args:
        stream: a new one.
        pieces: of its sound, [num_samples] each.

    Yields:
        Each segment when it is over, and a partial result whenever the words of the current
        segment, or how many of them are committed, have changed.
    """
    num_told = 0
    shown: tuple[object, ...] = (0, (), 0)
    for piece in pieces:
        stream.accept(piece)
        yield from stream.segments[num_told:]
        num_told = len(stream.segments)
        partial = stream.result()
        now = (partial.segment, partial.words, partial.num_committed)
        if now != shown and (partial.words or now[0] == shown[0]):
            yield partial
        shown = now
    stream.finish()
    yield from stream.segments[num_told:]
