"""Segments of a stream that are decoded by another search, once they are over.

While a segment is open its words are those of the best path, and all are tentative. At its end an
`OfflineDecoder` hears all of its frames again, so that they have to be kept. So it is with phrases
to expect, by beam, in segments of at most `MAX_SEGMENT_SECONDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from midge.decoding.decoded import DecodedTranscript
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.offline import DecoderConfig, OfflineDecoder
from midge.models import Recognizer

MAX_SEGMENT_SECONDS = 20.0
"""Length of the longest segment, as with the default endpoints."""


def phrase_decoder(
    recognizer: Recognizer,
    phrases: Sequence[str],
    phrase_bonus: float,
    *,
    blank_penalty: float,
    has_confidence: bool,
    num_best: int,
) -> OfflineDecoder:
    """The beam search of the segments of a stream; the arguments are those of `Stream`."""
    config = DecoderConfig(
        search="beam",
        phrase_bonus=phrase_bonus,
        blank_penalty=blank_penalty,
        has_confidence=has_confidence,
        num_best=max(1, 2 * num_best),  # some of them spell the same
    )
    return OfflineDecoder(recognizer, config, phrases=phrases)


def bounded_rules(rules: EndpointConfig | None) -> EndpointConfig:
    """The rules of a stream with phrases: no segment is longer than what can be kept.

    Args:
        rules: that were asked for; None is one segment, which is then cut only where it has to be.
    """
    longest = MAX_SEGMENT_SECONDS
    if rules is None:
        return EndpointConfig(pause=longest, silence=longest, max_segment=longest)
    return EndpointConfig(
        **{name: min(value, longest) for name, value in dataclasses.asdict(rules).items()}
    )


class LateDecoding:
    """The frames of an open segment, for the search at its end.

    Args:
        decoder: of its frames, when it ends.
    """

    def __init__(self, decoder: OfflineDecoder) -> None:
        self._decoder = decoder
        size = decoder.recognizer.encoder.output_size
        self._heard = [decoder.recognizer.front_end.mean.new_zeros(0, size)]

    def hear(self, frames: Tensor) -> None:
        """Keeps encoder frames [n, output_size]."""
        self._heard.append(frames)

    def decoded(self, seconds: float) -> DecodedTranscript:
        """What was said if the segment ends here; times count from its first frame.

        Args:
            seconds: no word ends later.
        """
        return self._decoder.decode_frames(torch.cat(self._heard), seconds)
