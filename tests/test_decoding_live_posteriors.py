"""Confidences and alternatives of streams: against exact sums, and against themselves."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import midge
from midge.audio import Audio
from midge.decoding import live_alternatives, live_lattices
from midge.decoding.confidence import Confidence, sampled_confidence
from midge.decoding.decoded import DecodedTranscript
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.events import event_json
from midge.decoding.exact import sum_path
from midge.decoding.formats import json_object
from midge.decoding.live import decode_offline, follow
from midge.decoding.live_posteriors import NUM_SAMPLES, LiveConfidence, TailSampler
from midge.decoding.offline import DecoderConfig, OfflineDecoder
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


def heard(stream: Stream, samples: np.ndarray, size: int = 300) -> midge.Transcript:
    """The end of a stream that is looked at all the time."""
    for piece in np.split(samples, range(size, len(samples), size)):
        stream.accept(piece)
        stream.result()
    return stream.finish()


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("max_labels", [None, 2])
@pytest.mark.parametrize("normalization", ["global", "softmax"])
def test_what_follows_a_history_is_drawn_by_its_probability(deduplicate, max_labels, normalization):
    """The lattice begun in another state is the same automaton with another start."""
    alignment = midge.LabelFrameDependent(max_labels) if max_labels else midge.FrameDependent()
    table = torch.tensor([[1, 0], [0, 1]])

    def lattice(start: int) -> midge.RecognitionLattice:
        context = midge.NextStateTable(table, start)
        weights = midge.TableWeights(context)
        return midge.RecognitionLattice(context, alignment, weights, normalization, deduplicate)

    frames = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    drawn = Counter(TailSampler(lattice(0)).sample(frames, state=1, num_samples=4000))
    exact = sum_path(
        lattice(1), frames, torch.tensor(4), num_best=10_000, max_expansions=None
    ).sequences
    assert set(drawn) <= {each.labels for each in exact}
    for each in exact:
        share = math.exp(each.log_probability)
        error = math.sqrt(share * (1 - share) / 4000)
        assert drawn[each.labels] / 4000 == pytest.approx(share, abs=5 * error + 1e-3)


@pytest.mark.parametrize("name", DECODERS)
def test_confidences_are_those_of_the_whole_recording(name, monkeypatch):
    """A recording that fits into the window, and nothing is committed before its end."""
    num_samples = 2000
    sample = TailSampler.sample
    monkeypatch.setattr(
        TailSampler,
        "sample",
        lambda self, frames, state, known=None: sample(self, frames, state, num_samples, known),
    )
    recognizer, samples = RECOGNIZERS[name], noise(0.4, seed=1)
    # The most probable sequences exactly, the rest by other samples.
    config = DecoderConfig(has_confidence=True, num_samples=num_samples)
    (whole,) = OfflineDecoder(recognizer, config).decode([Audio(samples, RATE)])
    decoder = StreamingDecoder(recognizer, margin=math.inf, max_tail_seconds=None)
    found = decode_offline(decoder, samples, RATE, has_confidence=True)
    assert [word.text for word in found.words] == [word.text for word in whole.words] != []
    for word, expected in zip(found.words, whole.words, strict=True):
        share = expected.confidence
        error = math.sqrt(2 * share * (1 - share) / num_samples)
        assert word.confidence == pytest.approx(share, abs=4 * error + 2e-3)


@settings(deadline=None, max_examples=5, phases=[Phase.generate])
@given(data=st.data())
def test_options_change_nothing_else_and_pieces_do_not_matter(data):
    decoder = data.draw(st.sampled_from(list(DECODERS.values())))
    endpointing = data.draw(st.sampled_from([None, QUICK]))
    samples = noise(data.draw(st.floats(0.0, 1.0)), seed=data.draw(st.integers(0, 99)))
    plain = decode_offline(decoder, samples, RATE, endpointing=endpointing)
    streams = [
        decoder.stream(RATE, endpointing=endpointing, has_confidence=True, num_best=2)
        for _ in range(2)
    ]
    found = heard(streams[0], samples, size=data.draw(st.integers(200, 3000)))
    streams[1].accept(samples)
    assert streams[1].finish() == found
    assert [each.alternatives for each in streams[0].segments] == [
        each.alternatives for each in streams[1].segments
    ]
    assert (found.labels, found.frames, found.score) == (plain.labels, plain.frames, plain.score)
    assert [(w.text, w.start, w.end) for w in found.words] == [
        (w.text, w.start, w.end) for w in plain.words
    ]
    assert all(word.confidence is not None and 0 < word.confidence < 1 for word in found.words)
    assert all(word.confidence is None for word in plain.words)


@settings(deadline=None, max_examples=4, phases=[Phase.generate])
@given(seed=st.integers(0, 99), name=st.sampled_from(list(RECOGNIZERS)))
def test_confidences_of_committed_words_stay(seed, name):
    decoder = StreamingDecoder(RECOGNIZERS[name], margin=5.0, max_tail_seconds=0.3, block_size=3)
    stream = decoder.stream(RATE, has_confidence=True)
    committed: tuple = ()
    for piece in np.split(noise(1.0, seed), range(500, 8000, 500)):
        stream.accept(piece)
        partial = stream.result()
        assert partial.committed[: len(committed)] == committed
        committed = partial.committed
        assert all(word.confidence is not None for word in partial.words)
    assert stream.finish().words[: len(committed)] == committed


def test_something_is_committed_with_its_confidence():
    stream = StreamingDecoder(RECOGNIZERS["global"], margin=20.0).stream(RATE, has_confidence=True)
    stream.accept(noise(2.0, seed=5))
    partial = stream.result()
    assert partial.num_committed > 2
    assert len({word.confidence for word in partial.committed}) > 1


def test_the_last_word_of_long_silence_keeps_its_confidence():
    """The window moves on; what it leaves behind is as it was."""
    decoder = StreamingDecoder(tiny_recognizer(seed=4), max_tail_seconds=0.5)
    stream = decoder.stream(RATE, has_confidence=True, blank_penalty=-8.0)
    stream.accept(noise(1.0, seed=8))
    stream.accept(np.zeros(RATE * 3, np.float32))
    window = stream._open._confidence.window
    assert window.first > 0, "nothing was left behind"
    words = stream.result().words
    assert words and all(word.confidence is not None for word in words)
    assert all(word.confidence is not None for word in stream.finish().words)


def test_a_word_that_replaces_an_older_one_has_what_that_left():
    tokens = RECOGNIZERS["global"].tokens
    confidence = LiveConfidence(TailSampler(RECOGNIZERS["global"].lattice), tokens, 50)
    one, two = Confidence(0.9, 0.85, 0.95, 0.95), Confidence(0.8, 0.7, 0.9, 0.95)
    confidence.shorten(0, [("ONE", one), ("TWO", two)])
    first, second = confidence.values((), 0, ["ONE", "TO"])
    assert first == one
    assert (second.value, second.low, second.high) == pytest.approx((0.2, 0.0, 0.3))
    nothing_known = Confidence(0.5, 0.0, 1.0, 0.95)
    assert confidence.values((), 0, ["ONE", "TWO", "N"]) == [one, two, nothing_known]
    confidence.forget(1)
    assert confidence.values((), 0, ["TWO"]) == [two]


def test_sampled_intervals_hold_as_often_as_they_say():
    """Wilson's interval by its definition, and its coverage by the binomial itself."""
    for share in (0.02, 0.3, 0.5, 0.97):
        held = 0.0
        for count in range(NUM_SAMPLES + 1):
            found = sampled_confidence(count / NUM_SAMPLES, NUM_SAMPLES)
            assert 0.0 <= found.low <= found.value <= found.high <= 1.0
            for end in (found.low, found.high):
                if 0.0 < end < 1.0:
                    error = math.sqrt(end * (1 - end) / NUM_SAMPLES)
                    assert abs(end - count / NUM_SAMPLES) / error == pytest.approx(1.96, abs=1e-3)
            if found.low <= share <= found.high:
                ways = math.comb(NUM_SAMPLES, count)
                held += ways * share**count * (1 - share) ** (NUM_SAMPLES - count)
        assert held == pytest.approx(0.95, abs=0.03), share


@pytest.mark.parametrize("endpointing", [None, QUICK])
def test_every_word_of_a_stream_has_an_interval(endpointing):
    stream = StreamingDecoder(RECOGNIZERS["global"], margin=20.0).stream(
        RATE, endpointing=endpointing, has_confidence=True
    )
    found = heard(stream, noise(2.0, seed=5))
    assert isinstance(found, DecodedTranscript)
    assert len(found.segments) == len(stream.segments) > (0 if endpointing is None else 1)
    sure = [each for segment in found.segments for each in segment.confidences]
    assert [each.value for each in sure] == [word.confidence for word in found.words]
    assert all(each.low <= each.value <= each.high and each.level == 0.95 for each in sure)
    assert any(each.high - each.low > 0.05 for each in sure)
    written = json_object(found, "u")["segments"]
    assert [pair for each in written for pair in each["confidence_intervals"]] == [
        [each.low, each.high] for each in sure
    ]
    assert {each["confidence_level"] for each in written if each["confidence_intervals"]} == {0.95}
    plain = decode_offline(RECOGNIZERS["global"], noise(0.4, seed=5), RATE)
    assert "segments" not in json_object(plain, "u")


def test_memory_does_not_grow_with_the_segment(monkeypatch):
    monkeypatch.setattr(live_lattices, "MAX_SEARCH_SECONDS", 1.0)
    monkeypatch.setattr(live_lattices, "MAX_WINDOW_SECONDS", 0.5)
    decoder = StreamingDecoder(RECOGNIZERS["global"], max_tail_seconds=0.3)
    stream = decoder.stream(RATE, has_confidence=True, num_best=1)
    frame_seconds = decoder.recognizer.front_end.frame_seconds
    for part in range(4):
        stream.accept(noise(1.5, seed=part))
        segment = stream._open
        assert len(segment._alternatives.window.frames) == round(1.0 / frame_seconds)
        assert 0 < len(segment._confidence.window.frames) * frame_seconds <= 0.5 + 1e-6
    stream.finish()
    (best,) = stream.segments[0].alternatives
    assert len(best.text) > 20 and -math.log(NUM_SAMPLES) - 1e-9 <= best.log_probability <= 0.0


@pytest.mark.parametrize("name", DECODERS)
def test_alternatives_are_the_most_probable_texts(name, monkeypatch):
    monkeypatch.setattr(live_alternatives, "MAX_EXPANSIONS", 1000)
    recognizer = RECOGNIZERS[name]
    samples = noise(0.4, seed=7)
    stream = DECODERS[name].stream(RATE, num_best=3)
    stream.accept(samples)
    stream.finish()
    (segment,) = stream.segments
    features = recognizer.front_end.features(samples, RATE)
    with torch.no_grad():
        frames = recognizer.encode(features[None], torch.tensor([len(features)]))[0]
    exact = sum_path(recognizer.lattice, frames, torch.tensor(len(frames)), num_best=6)
    assert exact.is_proved
    total: dict[str, float] = {}
    for each in exact.sequences:
        text = recognizer.tokens.decode(each.labels)
        total[text] = total.get(text, 0.0) + math.exp(each.log_probability)
    expected = sorted(total.items(), key=lambda item: -item[1])[:3]
    found = [(each.text, math.exp(each.log_probability)) for each in segment.alternatives]
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert [p for _, p in found] == pytest.approx([p for _, p in expected], abs=1e-4)


def test_out_of_budget_the_probabilities_are_still_exact(monkeypatch):
    recognizer, samples = RECOGNIZERS["global"], noise(0.4, seed=7)
    plenty = DECODERS["global"].stream(RATE, num_best=20)
    heard(plenty, samples)
    known = {each.text: each.log_probability for each in plenty.segments[0].alternatives}
    monkeypatch.setattr(live_alternatives, "MAX_EXPANSIONS", 1)
    stream = StreamingDecoder(recognizer).stream(RATE, num_best=2)
    heard(stream, samples)
    first, second = stream.segments[0].alternatives
    assert first.log_probability > second.log_probability
    for each in (first, second):
        # Sequences that were not drawn may spell the same text.
        assert each.log_probability == pytest.approx(known[each.text], abs=0.05)


def test_long_segments_are_searched_from_the_end(monkeypatch):
    monkeypatch.setattr(live_lattices, "MAX_SEARCH_SECONDS", 0.5)
    decoder = StreamingDecoder(RECOGNIZERS["global"], max_tail_seconds=0.3)
    stream = decoder.stream(RATE, num_best=4)
    text = heard(stream, noise(2.0, seed=1)).text
    texts = [each.text for each in stream.segments[0].alternatives]
    assert len(texts) > 1
    assert all(each.startswith(text[: len(text) // 2]) for each in texts)


def test_a_segment_without_frames_has_no_alternatives():
    stream = DECODERS["global"].stream(RATE, num_best=2, has_confidence=True)
    assert stream.finish().text == stream.result().text
    assert all(len(each.alternatives) <= 2 for each in stream.segments)


def test_events_show_them():
    stream = DECODERS["hat"].stream(RATE, endpointing=QUICK, has_confidence=True, num_best=2)
    samples = noise(1.5, seed=2)
    events = list(follow(stream, np.split(samples, range(400, len(samples), 400))))
    written = [json.loads(json.dumps(event_json(event), allow_nan=False)) for event in events]
    partial = next(each for each in written if each["event"] == "partial" and each["tentative"])
    assert set(partial["tentative"][0]) == {"text", "start", "end", "confidence"}
    assert all(
        0 < word["confidence"] < 1
        for each in written
        for name in ("committed", "tentative", "words")
        for word in each.get(name, ())
    )
    final = [each for each in written if each["event"] == "final" and each["text"]]
    assert final
    for each in final:
        shares = [alternative["probability"] for alternative in each["alternatives"]]
        assert 1 <= len(shares) <= 2 and shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-9


def test_streams_together_have_the_confidences_of_each_alone():
    decoder = DECODERS["hat"]
    recordings = [noise(0.4 + 0.2 * number, seed=number) for number in range(2)]
    streams = [decoder.stream(RATE, has_confidence=True, num_best=2) for _ in recordings]
    for stream, samples in zip(streams, recordings, strict=True):
        stream.feed(samples)
        stream.close()
    while decoder.step(streams):
        pass
    for stream, samples in zip(streams, recordings, strict=True):
        alone = decoder.stream(RATE, has_confidence=True, num_best=2)
        alone.accept(samples)
        expected = alone.finish()
        found = stream.transcript()
        assert found.text == expected.text
        values = [word.confidence for word in found.words]
        # A sample on the edge may fall to the other side.
        assert values == pytest.approx([word.confidence for word in expected.words], abs=0.05)


def test_a_number_of_alternatives_below_0_is_refused():
    with pytest.raises(ValueError, match="num_best should be at least 0, got -1"):
        DECODERS["global"].stream(RATE, num_best=-1)
