"""Phrases and other searches in streams: against decoding offline, and against plain streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from midge.audio import Audio
from midge.decoding import late_decoding
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.late_decoding import bounded_rules
from midge.decoding.live import decode_offline
from midge.decoding.offline import DecoderConfig, OfflineDecoder
from midge.decoding.open_segment import OpenSegment
from midge.decoding.streams import Stream, StreamingDecoder
from recognizers import RATE, noise, tiny_recognizer

torch.set_num_threads(1)
QUICK = EndpointConfig(pause=0.12, silence=0.4, max_segment=1.0)
RECOGNIZERS = {
    "global": tiny_recognizer(),
    "hat": tiny_recognizer(seed=3, normalization="hat"),
    "deduplicated": tiny_recognizer(deduplicate=True, normalization="softmax"),
    "k-constrained": tiny_recognizer(alignment="label-frame", max_labels_per_frame=2),
}
DECODERS = {name: StreamingDecoder(each) for name, each in RECOGNIZERS.items()}
HINTS = {"phrases": ["two one"], "phrase_bonus": 30.0}


def beam(recognizer, **options) -> OfflineDecoder:
    """What `midge transcribe --decoder beam --phrases` decodes by."""
    config = DecoderConfig(search="beam", phrase_bonus=HINTS["phrase_bonus"], **options)
    return OfflineDecoder(recognizer, config, phrases=HINTS["phrases"])


def followed(stream: Stream, samples: np.ndarray) -> set[int]:
    """Feeds a stream to its end; how many words were committed in an open segment."""
    committed = set()
    for piece in np.split(samples, range(400, len(samples), 400)):
        stream.accept(piece)
        committed.add(stream.result().num_committed)
    stream.finish()
    return committed


@pytest.mark.parametrize("name", DECODERS)
def test_a_stream_ends_with_the_words_of_the_offline_beam(name):
    samples = noise(0.8, seed=3)
    (expected,) = beam(RECOGNIZERS[name]).decode([Audio(samples, RATE)])
    stream = DECODERS[name].stream(RATE, **HINTS)
    assert followed(stream, samples) == {0}, "a word was committed before the end"
    found = stream.transcript()
    assert "TWO ONE" in found.text
    assert (found.text, found.words, found.labels, found.frames) == (
        expected.text,
        expected.words,
        expected.labels,
        expected.frames,
    )
    assert found.score == pytest.approx(expected.score, abs=1e-3)
    assert found.seconds == expected.seconds == 0.8
    assert stream.result().words == found.words and stream.result().tentative == ()
    plain = decode_offline(DECODERS[name], samples, RATE)
    assert "TWO ONE" not in plain.text
    assert decode_offline(DECODERS[name], samples, RATE, phrases=()) == plain


SEARCHES = {
    "phrases": (HINTS, lambda recognizer, penalty: beam(recognizer, blank_penalty=penalty)),
    "sum-path": (
        {},
        lambda recognizer, penalty: OfflineDecoder(
            recognizer, DecoderConfig(search="sum-path", num_best=3, blank_penalty=penalty)
        ),
    ),
    "least risk": (
        {},
        lambda recognizer, penalty: OfflineDecoder(
            recognizer,
            DecoderConfig(search="sum-path", has_least_risk=True, blank_penalty=penalty),
        ),
    ),
}
"""Options of a stream, and what decodes its segments; without options it is handed over."""


@torch.no_grad()
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("penalty", [0.0, -2.0])
def test_every_segment_is_decoded_at_its_end(penalty, search, monkeypatch):
    recognizer, decoder = RECOGNIZERS["global"], DECODERS["global"]
    samples = np.concatenate((noise(1.0, seed=2), np.zeros(RATE // 2), noise(1.0, seed=4)))
    options = {"endpointing": QUICK, "blank_penalty": penalty}
    plain = decoder.stream(RATE, **options)
    plain.accept(samples)
    plain.finish()
    places: list[tuple[int, int]] = []
    close = OpenSegment.close

    def watched(self, *arguments):
        places.append((self.first, self.first + self.num_frames))
        return close(self, *arguments)

    monkeypatch.setattr(OpenSegment, "close", watched)
    hints, made = SEARCHES[search]
    offline = made(recognizer, penalty)
    stream = decoder.stream(RATE, **options, **(hints or {"segment_decoder": offline}))
    segments: tuple = ()
    for piece in np.split(samples, range(400, len(samples), 400)):
        stream.accept(piece)
        assert stream.segments[: len(segments)] == segments, "a final segment changed"
        assert stream.result().num_committed == 0
        segments = stream.segments
    stream.finish()
    # The best path decides where segments end, whatever decodes them.
    assert [(each.start, each.end, each.reason) for each in stream.segments] == [
        (each.start, each.end, each.reason) for each in plain.segments
    ]
    features = recognizer.front_end.features(samples, RATE)
    assert len(places) == len(stream.segments) > 1
    for (first, last), segment in zip(places, stream.segments, strict=True):
        heard = features[None, first:last]
        encoded = recognizer.encode(heard, torch.tensor([last - first]))[0]
        found = offline.decode_frames(encoded, math.inf)
        assert found.labels == segment.transcript.labels
        assert tuple(frame + first for frame in found.frames) == segment.transcript.frames
        assert segment.transcript.score == pytest.approx(found.score, abs=1e-3)
        if not hints:
            assert [each.text for each in segment.alternatives] == [
                each.text for each in found.segments[0].alternatives
            ]
            assert segment.transcript.segments[0].is_proved == found.segments[0].is_proved
    assert ("TWO ONE" in stream.transcript().text) == (search == "phrases")


def test_searches_that_do_not_fit_a_stream():
    other = OfflineDecoder(RECOGNIZERS["hat"], DecoderConfig(search="sum-path"))
    with pytest.raises(ValueError, match="of the stream's recognizer"):
        DECODERS["global"].stream(RATE, segment_decoder=other)
    with pytest.raises(ValueError, match="given to the segment_decoder"):
        DECODERS["hat"].stream(RATE, segment_decoder=other, **HINTS)


def test_alternatives_and_confidences_are_those_of_the_beam():
    samples = noise(0.6, seed=5)
    options = {"has_confidence": True, "num_best": 3}
    stream = DECODERS["global"].stream(RATE, **options, **HINTS)
    followed(stream, samples)
    (segment,) = stream.segments
    decoder = beam(RECOGNIZERS["global"], has_confidence=True, num_best=6)
    (expected,) = decoder.decode([Audio(samples, RATE)])
    assert segment.transcript.words == expected.words
    assert 1 < len(segment.alternatives) <= 3
    assert segment.alternatives[0].text == expected.text
    assert len({each.text for each in segment.alternatives}) == len(segment.alternatives)
    # What phrases add has no known sum, so that nothing is known for certain.
    (decoded,) = segment.transcript.segments
    assert [(each.low, each.high) for each in decoded.confidences] == [(None, None)] * len(
        expected.words
    )
    assert decoded.alternatives == segment.alternatives


def test_segments_with_phrases_have_a_longest_length(monkeypatch):
    monkeypatch.setattr(late_decoding, "MAX_SEGMENT_SECONDS", 0.5)
    stream = DECODERS["global"].stream(RATE, **HINTS)
    kept = []
    for part in range(6):
        stream.accept(noise(0.4, seed=part))
        kept.append(sum(len(x) for x in stream._open._late._heard))
    stream.finish()
    assert len(stream.segments) >= 4
    frame_seconds = RECOGNIZERS["global"].front_end.frame_seconds
    assert max(kept) * frame_seconds <= 0.5 + 4 * frame_seconds
    assert all(each.end - each.start <= 0.6 for each in stream.segments)


def test_rules_are_bounded():
    assert bounded_rules(EndpointConfig()) == EndpointConfig()
    found = bounded_rules(EndpointConfig(silence=math.inf, max_segment=math.inf))
    assert found == EndpointConfig(pause=0.8, silence=20.0, max_segment=20.0)
    whole = bounded_rules(None)
    assert whole.reason(heard=9.9, trailing=9.9) is None
    assert whole.reason(heard=19.0, trailing=0.5) is None
    assert whole.reason(heard=20.0, trailing=0.0) == "length"
    assert whole.reason(heard=20.0, trailing=None) == "silence"


def test_no_sound_and_wrong_phrases():
    stream = DECODERS["global"].stream(RATE, phrases=["one"])
    stream.finish()
    assert [each.reason for each in stream.segments] == ["end"]
    with pytest.raises(ValueError, match="'X'"):
        DECODERS["global"].stream(RATE, phrases=["xy"])
    with pytest.raises(ValueError, match="bonus should be a finite number"):
        DECODERS["global"].stream(RATE, phrases=["one"], phrase_bonus=math.nan)


def test_streams_with_and_without_phrases_run_together():
    decoder, samples = DECODERS["hat"], noise(0.7, seed=6)
    streams = [decoder.stream(RATE), decoder.stream(RATE, **HINTS)]
    for stream in streams:
        stream.feed(samples)
        stream.close()
    while decoder.step(streams):
        pass
    for stream, options in zip(streams, ({}, HINTS), strict=True):
        alone = decode_offline(decoder, samples, RATE, **options)
        assert stream.transcript().labels == alone.labels
