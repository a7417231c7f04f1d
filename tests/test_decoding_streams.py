"""Streams: against whole recordings, against a plain re-reading of the rules, and among others."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import midge
from midge.audio import Audio
from midge.decoding import streams as streams_module
from midge.decoding.blank_penalty import with_blank_penalty
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.events import Partial, Segment, event_json
from midge.decoding.live import decode_blocks, decode_offline, decode_together, follow
from midge.decoding.live_posteriors import TailSampler
from midge.decoding.offline import DecoderConfig, OfflineDecoder
from midge.decoding.streams import Stream, StreamingDecoder
from midge.encoders import ConformerConfig
from midge.models import BestPathRules, Recognizer, RecognizerConfig
from recognizers import RATE, noise, tiny_recognizer

torch.set_num_threads(1)
QUICK = EndpointConfig(pause=0.12, silence=0.4, max_segment=1.0)
"""Rules that fire often on noise."""


def with_conformer(look_ahead: int, left_context: int | None) -> Recognizer:
    """The tiny recognizer with another encoder."""
    plain = tiny_recognizer()
    encoder = ConformerConfig(
        num_layers=2,
        size=8,
        num_heads=2,
        kernel_size=3,
        look_ahead=look_ahead,
        left_context=left_context,
    )
    lattice = plain.config.lattice
    config = RecognizerConfig(
        front_end=plain.config.front_end,
        tokens=plain.config.tokens,
        encoder=encoder,
        lattice=lattice,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        recognizer = Recognizer(config, plain.tokens)
        for parameter in recognizer.lattice.parameters():
            torch.nn.init.normal_(parameter, std=2.0)
    recognizer.front_end.load_state_dict(plain.front_end.state_dict())
    return recognizer.eval()


RECOGNIZERS = {
    "lstm": tiny_recognizer(),
    "hat": tiny_recognizer(seed=3, normalization="hat"),
    "deduplicated": tiny_recognizer(deduplicate=True, normalization="softmax"),
    "k-constrained": tiny_recognizer(alignment="label-frame", max_labels_per_frame=2),
    "conformer": with_conformer(look_ahead=0, left_context=6),
    "look-ahead": with_conformer(look_ahead=2, left_context=None),
}
DECODERS = {name: StreamingDecoder(each) for name, each in RECOGNIZERS.items()}
SMALL_BLOCKS = StreamingDecoder(
    RECOGNIZERS["lstm"], margin=20.0, max_tail_seconds=0.3, block_size=3
)


def in_pieces(stream: Stream, samples: np.ndarray, cuts: list[int]) -> midge.Transcript:
    for piece in np.split(samples, sorted(cuts)):
        stream.accept(piece)
    return stream.finish()


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("size", [1, 401])
def test_pieces_of_any_size_give_the_whole(name, size):
    samples = noise(0.25 if size == 1 else 1.0, seed=3)
    decoder = DECODERS[name]
    for endpointing in (None, QUICK):
        whole = decode_offline(decoder, samples, RATE, endpointing=endpointing)
        stream = decoder.stream(RATE, endpointing=endpointing)
        assert in_pieces(stream, samples, list(range(size, len(samples), size))) == whole
        assert len(whole.labels) > 1, "the model hears nothing"


@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_a_stream_is_the_whole_recording(data):
    decoder = data.draw(st.sampled_from([*DECODERS.values(), SMALL_BLOCKS]))
    rate = data.draw(st.sampled_from([RATE, 11025, 16000]))
    samples = noise(data.draw(st.floats(0.0, 1.5)), seed=data.draw(st.integers(0, 99)))
    cuts = data.draw(st.lists(st.integers(0, len(samples)), max_size=8))
    options = {
        "endpointing": data.draw(st.sampled_from([None, QUICK])),
        "blank_penalty": data.draw(st.sampled_from([0.0, 1.5, -1.5])),
    }
    whole = decode_offline(decoder, samples, rate, **options)
    stream = decoder.stream(rate, **options)
    assert in_pieces(stream, samples, cuts) == whole
    assert whole.seconds == len(samples) / rate
    assert list(whole.frames) == sorted(whole.frames)
    assert all(word.end <= whole.seconds for word in whole.words)
    blocks = [Audio(piece, rate) for piece in np.split(samples, sorted(cuts))]
    assert decode_blocks(decoder, blocks, **options) == whole


@pytest.mark.parametrize("name", DECODERS)
def test_without_endpoints_it_is_what_transcribe_says(name):
    recognizer = RECOGNIZERS[name]
    for seed in range(3):
        samples = noise(1.3, seed)
        expected = recognizer.transcribe(samples, RATE)
        found = decode_offline(DECODERS[name], samples, RATE)
        assert (found.text, found.words, found.labels) == (
            expected.text,
            expected.words,
            expected.labels,
        )
        assert found.frames == expected.frames and found.seconds == expected.seconds
        assert found.score == pytest.approx(expected.score, abs=1e-4 * max(1, abs(expected.score)))


@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_offline_keeps_the_same_rules(data):
    """Also where the tail outgrows its limit, and where the margin costs the best path."""
    name = data.draw(st.sampled_from(list(RECOGNIZERS)))
    recognizer = RECOGNIZERS[name]
    rules = BestPathRules(
        margin=data.draw(st.sampled_from([2.0, 200.0, math.inf])),
        max_tail_seconds=data.draw(st.sampled_from([0.05, 0.2, None])),
    )
    samples = noise(data.draw(st.floats(0.5, 2.0)), seed=data.draw(st.integers(0, 99)))
    decoder = StreamingDecoder(recognizer, **dataclasses.asdict(rules))
    expected = decode_offline(decoder, samples, RATE)
    config = DecoderConfig(**dataclasses.asdict(rules))
    (decoded,) = OfflineDecoder(recognizer, config).decode([Audio(samples, RATE)])
    features = recognizer.front_end.features(samples, RATE)
    others = [features, features[: len(features) // 2]]
    together = recognizer.transcribe_features(others, [expected.seconds, 9.0], rules)
    for found in (recognizer.transcribe(samples, RATE, rules), decoded, together[0]):
        assert (found.labels, found.frames) == (expected.labels, expected.frames)
        assert (found.words, found.seconds) == (expected.words, expected.seconds)
        assert found.score == pytest.approx(expected.score, abs=1e-4 * max(1, abs(expected.score)))


def test_a_cut_changes_the_answer_offline_too():
    """So that the test above is not one of the exact search alone."""
    recognizer, samples = RECOGNIZERS["lstm"], noise(3.0, seed=1)
    exact = recognizer.lattice.shortest_path(*_encoded(recognizer, samples))
    rules = BestPathRules(margin=math.inf, max_tail_seconds=0.02)
    found = recognizer.transcribe(samples, RATE, rules)
    assert found.labels != tuple(exact.labels()[0]) and found.score < float(exact.weight) - 1.0
    free = BestPathRules(margin=math.inf, max_tail_seconds=None)
    assert recognizer.transcribe(samples, RATE, free).labels == tuple(exact.labels()[0])
    # A model that cannot run live follows the exact path, whatever the rules.
    whole = tiny_recognizer(is_streaming=False)
    assert whole.transcribe(samples, RATE, rules) == whole.transcribe(samples, RATE)


@torch.no_grad()
def _encoded(recognizer: Recognizer, samples: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Encoder frames [1, num_frames, output_size] of a recording, and how many."""
    features = recognizer.front_end.features(samples, RATE)[None]
    count = torch.tensor([features.shape[1]])
    return recognizer.encode(features, count), count


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_what_is_committed_never_changes(data):
    """Random weights are harsher than speech: they revise all the time."""
    recognizer = data.draw(st.sampled_from(list(RECOGNIZERS.values())))
    decoder = StreamingDecoder(
        recognizer,
        margin=data.draw(st.sampled_from([5.0, 200.0])),
        max_tail_seconds=data.draw(st.sampled_from([None, 0.1, 0.5])),
        block_size=data.draw(st.sampled_from([1, 3, 8])),
    )
    endpointing = data.draw(st.sampled_from([None, QUICK]))
    samples = noise(1.2, seed=data.draw(st.integers(0, 99)))
    stream = decoder.stream(RATE, endpointing=endpointing)
    committed: dict[int, tuple] = {}
    segments: tuple = ()
    for piece in np.split(samples, range(300, len(samples), 300)):
        stream.accept(piece)
        assert stream.segments[: len(segments)] == segments
        segments = stream.segments
        partial = stream.result()
        before = committed.get(partial.segment, ())
        assert partial.committed[: len(before)] == before
        committed[partial.segment] = partial.committed
        assert partial.committed + partial.tentative == partial.words
    final = stream.finish()
    assert stream.segments[: len(segments)] == segments
    for number, words in committed.items():
        assert stream.segments[number].transcript.words[: len(words)] == words
    assert final.words == tuple(w for each in stream.segments for w in each.transcript.words)
    assert stream.result().tentative == ()


def test_something_is_committed_long_before_the_end():
    stream = DECODERS["lstm"].stream(RATE)
    stream.accept(noise(8.0, seed=5))
    partial = stream.result()
    assert 0 < partial.num_committed < len(partial.words)
    assert partial.committed[-1].end > 2.0
    assert partial.seconds == 8.0 and partial.num_cuts == 0
    assert partial.text == " ".join(word.text for word in partial.words)


def test_a_long_tail_is_cut_and_said_so():
    decoder = StreamingDecoder(RECOGNIZERS["lstm"], margin=math.inf, max_tail_seconds=0.5)
    stream = decoder.stream(RATE)
    stream.accept(noise(3.0, seed=6))
    assert stream.result().num_cuts > 0 and stream.result().num_committed > 0
    free = StreamingDecoder(RECOGNIZERS["lstm"], margin=math.inf, max_tail_seconds=None)
    stream = free.stream(RATE)
    stream.accept(noise(3.0, seed=6))
    assert stream.result().num_cuts == 0 and stream.result().num_committed == 0


@pytest.mark.parametrize("name", ["lstm", "deduplicated", "conformer", "look-ahead"])
def test_streams_together_are_as_alone(name):
    """Of different lengths, rates, ages and penalties, with and without endpoints."""
    decoder = DECODERS[name]
    penalties = (0.0, 0.0, 1.0, 1.0, -1.0)
    rates = (RATE, RATE, 16000, RATE, RATE)
    recordings = [noise(0.4 + 0.3 * number, seed=number) for number in range(5)]
    options = [
        {"blank_penalty": penalty, "endpointing": QUICK if number % 2 else None}
        for number, penalty in enumerate(penalties)
    ]
    streams = []
    waiting = list(zip(recordings, rates, options, strict=True))
    size = 900
    position = 0
    while waiting or any(not stream._is_closed for stream, _ in streams):
        if waiting and position % 2 == 0:  # one more joins
            samples, rate, chosen = waiting.pop(0)
            streams.append(
                (
                    decoder.stream(rate, **chosen),
                    iter(np.split(samples, range(size, len(samples), size))),
                )
            )
        for stream, pieces in streams:
            if not stream._is_closed:
                piece = next(pieces, None)
                stream.close() if piece is None else stream.feed(piece)
        decoder.step([stream for stream, _ in streams])
        position += 1
    while decoder.step([stream for stream, _ in streams]):
        pass
    for (stream, _), samples, rate, chosen in zip(streams, recordings, rates, options, strict=True):
        found = stream.transcript()
        alone = decode_offline(decoder, samples, rate, **chosen)
        assert (found.labels, found.frames, found.words) == (
            alone.labels,
            alone.frames,
            alone.words,
        )
        assert found.score == pytest.approx(alone.score, abs=1e-4 * max(1.0, abs(alone.score)))


def test_recordings_together_are_as_alone():
    recordings = [Audio(noise(0.5 * number, seed=number), RATE) for number in range(4)]
    stream = DECODERS["lstm"].stream(RATE)
    stream.feed(recordings[1].samples)
    assert DECODERS["lstm"].step([stream, stream]) == 1, "a stream that is named twice steps once"
    found = decode_together(DECODERS["lstm"], recordings, endpointing=QUICK)
    for transcript, recording in zip(found, recordings, strict=True):
        alone = decode_offline(DECODERS["lstm"], recording.samples, RATE, endpointing=QUICK)
        assert (transcript.labels, transcript.words) == (alone.labels, alone.words)
    assert decode_together(DECODERS["lstm"], []) == []


def plain_segments(
    recognizer: Recognizer, samples: np.ndarray, rules: EndpointConfig, block_size: int
):
    """Labels, their frames, first frame and reason of each segment, by whole-utterance means.

    After every block the segment so far is encoded and searched anew.
    """
    features = recognizer.front_end.features(samples, RATE)
    frame_seconds = recognizer.front_end.frame_seconds
    first, found, was_silent = 0, [], False
    heard = 0
    while True:
        heard = min(heard + block_size, len(features) - first)
        count = torch.tensor([heard])
        frames = recognizer.encode(features[None, first : first + heard], count)
        (transcript,) = recognizer.transcripts_of(
            recognizer.lattice.shortest_path(frames, count), [math.inf]
        )
        emitted = [frame + first for frame in transcript.frames]
        if first + heard == len(features):
            return [*found, (transcript.labels, tuple(emitted), first, "end")]
        trailing = heard - 1 - transcript.frames[-1] if transcript.frames else heard
        seconds = trailing * frame_seconds if transcript.frames else None
        reason = rules.reason(heard=heard * frame_seconds, trailing=seconds)
        if reason is None:
            continue
        if not (was_silent and reason == "silence"):
            found.append((transcript.labels, tuple(emitted), first, reason))
        was_silent = reason == "silence"
        first += heard - min(trailing // 2, int(rules.pause / frame_seconds / 2))
        heard = 0


@pytest.mark.parametrize("name", ["lstm", "hat", "conformer"])
def test_segments_are_cut_as_the_rules_say(name):
    recognizer = copy.deepcopy(RECOGNIZERS[name])
    recognizer.lattice = with_blank_penalty(recognizer.lattice, -6.0)  # so that there are pauses
    decoder = StreamingDecoder(recognizer)
    reasons = set()
    for seed, rules in enumerate((QUICK, EndpointConfig(pause=0.4, silence=0.4, max_segment=0.7))):
        samples = np.concatenate((noise(1.2, seed), np.zeros(RATE // 2), noise(1.5, seed + 10)))
        stream = decoder.stream(RATE, endpointing=rules)
        stream.accept(samples)
        whole = stream.finish()
        expected = plain_segments(recognizer, samples, rules, decoder.block_size)
        assert [
            (each.transcript.labels, each.transcript.frames, each.reason)
            for each in stream.segments
        ] == [(labels, frames, reason) for labels, frames, _, reason in expected]
        starts = [each.start for each in stream.segments]
        ends = [each.end for each in stream.segments]
        assert starts == [0.0, *ends[:-1]] and ends[-1] == whole.seconds
        assert [each.number for each in stream.segments] == list(range(len(ends)))
        assert [each.is_end_of_speech for each in stream.segments] == [
            each.reason in ("silence", "end") for each in stream.segments
        ]
        reasons |= {each.reason for each in stream.segments}
        assert whole.score == pytest.approx(sum(x.transcript.score for x in stream.segments))
    assert reasons >= {"pause", "end"} and len(reasons) > 2


@pytest.mark.parametrize(
    "heard, trailing, reason",
    [
        (4.9, None, None),
        (5.0, None, "silence"),
        (100.0, None, "silence"),
        (3.0, 0.7, None),
        (3.0, 0.8, "pause"),
        (10.0, 0.7, None),
        (15.0, 0.3, None),
        (15.0, 0.4, "pause"),
        (19.9, 0.03, "pause"),
        (20.0, 0.0, "length"),
    ],
)
def test_rules(heard, trailing, reason):
    assert EndpointConfig().reason(heard=heard, trailing=trailing) == reason


def test_rules_can_be_turned_off_one_by_one():
    never = EndpointConfig(silence=math.inf, max_segment=math.inf)
    assert never.reason(heard=1e9, trailing=None) is None
    assert never.reason(heard=1e9, trailing=0.7) is None
    assert never.reason(heard=1e9, trailing=0.8) == "pause"


@pytest.mark.parametrize("name", ["pause", "silence", "max_segment"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_wrong_rules_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} should be"):
        EndpointConfig(**{name: value})


def test_an_endpoint_in_the_silence_that_is_added_lies_at_the_end():
    """The front end adds 0.1 s, and these rules fire at every block of 0.04 s."""
    decoder = StreamingDecoder(RECOGNIZERS["hat"], block_size=2)
    rules = EndpointConfig(pause=0.03, silence=0.03, max_segment=0.03)
    stream = decoder.stream(RATE, endpointing=rules)
    stream.accept(noise(0.3, seed=1))
    num_before = len(stream.segments)
    stream.finish()
    assert len(stream.segments) > num_before + 1
    for each in stream.segments:
        assert 0.0 <= each.start <= each.end <= 0.3
        assert each.transcript.seconds == each.end - each.start


def test_an_end_of_speech_is_told_once():
    """Silence without a label for many times the limit is one segment."""
    recognizer = copy.deepcopy(RECOGNIZERS["lstm"])
    recognizer.lattice = with_blank_penalty(recognizer.lattice, -1000.0)
    stream = StreamingDecoder(recognizer).stream(RATE, endpointing=QUICK)
    stream.accept(noise(3.0, seed=1))
    assert [each.reason for each in stream.segments] == ["silence"]
    assert stream.finish().text == ""
    assert [each.reason for each in stream.segments] == ["silence", "end"]


def tensor_bytes(stream: Stream) -> int:
    """Memory of all tensors that a stream holds, without what it shares."""
    shared = {id(stream.decoder), id(stream._recognizer), id(stream._lattice)}
    seen, waiting, total = set(shared), [stream], 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            total += each.untyped_storage().nbytes()
        elif isinstance(each, list | tuple | dict) or type(each).__module__.startswith("midge"):
            waiting += gc.get_referents(each)
    return total


@pytest.mark.parametrize("name, endpointing", [("lstm", None), ("conformer", QUICK)])
def test_memory_is_constant(name, endpointing):
    decoder = StreamingDecoder(RECOGNIZERS[name], max_tail_seconds=0.5)
    stream = decoder.stream(RATE, endpointing=endpointing)
    sizes, num_words = [], 0
    for part in range(4):
        stream.accept(noise(3.0, seed=part))
        stream.accept(np.zeros(2 * RATE, np.float32))  # in silence nobody dies
        sizes.append(tensor_bytes(stream))
        assert len(stream._inputs) < decoder.block_size
        spelled = stream._open.search_state.committed[0].labels
        assert len(stream._recognizer.tokens.words(spelled)) <= 1, "committed words stay"
        assert len(stream.result().words) >= num_words or endpointing is not None
        num_words = len(stream.result().words)
    # A block's worth of frames, more or less, may wait or be kept to be heard again.
    slack = 2 * decoder.block_size * stream._recognizer.front_end.feature_size * 4
    assert sizes[0] > slack / 2 and max(sizes) <= sizes[0] + slack
    assert len(stream.finish().labels) > 50


def test_an_endpoint_frees_the_memory_of_an_unlimited_left_context():
    """With endpoints it is bounded by the longest segment, without it grows."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    longest = 0
    for has_endpoints, found in sizes.items():
        stream = DECODERS["look-ahead"].stream(
            RATE, endpointing=QUICK if has_endpoints else None, blank_penalty=-2.0
        )
        for part in range(60):
            stream.accept(noise(0.1, seed=part))
            found.append(_num_elements(stream._open.encoder_state))
            if has_endpoints:
                longest = max(longest, stream._open.num_inputs)
        assert bool(stream.segments) == has_endpoints
    frame_seconds = RECOGNIZERS["look-ahead"].front_end.frame_seconds
    assert longest * frame_seconds <= QUICK.max_segment + 0.1
    state = RECOGNIZERS["look-ahead"].encoder.start(1)
    _, state = RECOGNIZERS["look-ahead"].encoder.step(torch.zeros(1, longest, 16), state)
    assert max(sizes[True]) <= _num_elements(state) < sizes[False][-1] / 4
    assert sizes[False] == sorted(sizes[False])


def _num_elements(state) -> int:
    """Of all tensors of an encoder's state."""
    if isinstance(state, torch.Tensor):
        return state.numel()
    return sum(map(_num_elements, state))


def test_a_segment_that_grows_without_end_is_told_once(monkeypatch):
    monkeypatch.setattr(streams_module, "LONG_SEGMENT_SECONDS", 0.5)
    decoder = StreamingDecoder(RECOGNIZERS["look-ahead"])
    with pytest.warns(RuntimeWarning, match="encoder.left_context") as told:
        for _ in range(2):
            decode_offline(decoder, noise(1.0, seed=1), RATE)
    assert len(told) == 1
    # Warnings are errors here: what is bounded says nothing.
    short = EndpointConfig(pause=0.1, silence=0.2, max_segment=0.3)
    quiet = StreamingDecoder(RECOGNIZERS["look-ahead"])
    decode_offline(quiet, noise(1.0, seed=1), RATE, endpointing=short)
    for name in ("conformer", "lstm"):
        decode_offline(DECODERS[name], noise(1.0, seed=1), RATE)


def test_events_are_told_as_they_happen():
    samples = noise(2.0, seed=2)
    stream = DECODERS["lstm"].stream(RATE, endpointing=QUICK)
    events = list(follow(stream, np.split(samples, range(400, len(samples), 400))))
    segments = [event for event in events if isinstance(event, Segment)]
    partials = [event for event in events if isinstance(event, Partial)]
    assert tuple(segments) == stream.segments and len(segments) > 1
    assert events[-1] is segments[-1] and segments[-1].reason == "end"
    assert partials and all(a != b for a, b in zip(partials, partials[1:], strict=False))
    for event in partials:
        before = events[: events.index(event)]
        assert event.segment == sum(isinstance(each, Segment) for each in before)
    for event in events:
        found = json.loads(json.dumps(event_json(event)), parse_constant=pytest.fail)
        assert found["event"] in ("partial", "final", "end_of_speech")
        words = found.get("words") or found.get("committed", []) + found.get("tentative", [])
        texts = event.transcript.text if isinstance(event, Segment) else event.text
        assert " ".join(word["text"] for word in words) == texts


def test_a_penalty_on_blank_gives_more_labels():
    samples = noise(2.0, seed=4)
    numbers = [
        len(decode_offline(DECODERS["lstm"], samples, RATE, blank_penalty=penalty).labels)
        for penalty in (-30.0, -3.0, 0.0, 3.0, 30.0)
    ]
    assert numbers == sorted(numbers) and numbers[0] < numbers[2] < numbers[-1]


@torch.no_grad()
@pytest.mark.parametrize("weights", ["shared-embedding", "shared-rnn", "unshared"])
def test_the_penalty_is_taken_off_every_blank(weights):
    labels, num_labels, num_frames = torch.tensor([1, 2]), torch.tensor(2), torch.tensor(5)
    frames = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for changes, gain in (
        ({}, -3 * 0.5),  # three of five frames are blank
        ({"alignment": "label-frame", "max_labels_per_frame": 2}, 2 * 0.5),
    ):
        parts = midge.named_model("gnat", weights=weights, context_size=1, **changes)
        lattice = parts.build(3, 4, hidden_size=8, embedding_size=4, rnn_size=4)
        before = lattice.shortest_distance(
            frames, num_frames, midge.MaxTropical, labels, num_labels
        )
        changed = with_blank_penalty(lattice, 0.5)
        after = changed.shortest_distance(frames, num_frames, midge.MaxTropical, labels, num_labels)
        assert float(after - before) == pytest.approx(gain, abs=1e-5)
        again = lattice.shortest_distance(frames, num_frames, midge.MaxTropical, labels, num_labels)
        assert torch.equal(again, before), "the lattice itself was changed"


@torch.no_grad()
@pytest.mark.parametrize("normalization", ["softmax", "hat"])
def test_with_a_penalty_a_local_model_is_still_one(normalization):
    parts = midge.named_model("gnat", context_size=1, normalization=normalization)
    lattice = parts.build(3, 4, hidden_size=8, embedding_size=4, rnn_size=4)
    changed = with_blank_penalty(lattice, 2.0)
    frames = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert float(changed.shortest_distance(frames, torch.tensor(5))) == pytest.approx(0.0, abs=1e-5)
    none = torch.zeros(0, dtype=torch.int64)
    arguments = (frames, torch.tensor(5), none, torch.tensor(0))
    assert float(changed(*arguments)) > float(lattice(*arguments)) + 1.0


def test_a_search_lives_as_long_as_its_streams():
    decoder = StreamingDecoder(RECOGNIZERS["lstm"])
    first, second = (decoder.stream(RATE, blank_penalty=0.7) for _ in range(2))
    assert first._lattice is second._lattice
    assert decoder.stream(RATE)._lattice is not first._lattice
    del first, second
    gc.collect()
    assert list(decoder._lattices) == [0.0]


def test_a_stream_of_a_recognizer_has_a_decoder_of_its_own():
    samples = noise(1.0, seed=7)
    found = in_pieces(Stream(RECOGNIZERS["lstm"], RATE), samples, [100, 5000])
    assert found == decode_offline(DECODERS["lstm"], samples, RATE)


def test_no_sound_at_all():
    stream = DECODERS["lstm"].stream(RATE)
    assert stream.result().seconds == 0.0 and not stream.is_ready
    assert stream.finish().seconds == 0.0
    assert [each.reason for each in stream.segments] == ["end"]
    with pytest.raises(ValueError, match="blocks should be at least one"):
        decode_blocks(DECODERS["lstm"], [])


def test_models_that_cannot_run_live_are_refused():
    with pytest.raises(ValueError, match="streaming encoder.*encoder.is_streaming = true"):
        StreamingDecoder(tiny_recognizer(is_streaming=False))
    for name in ("rnn-t", "las"):
        unbounded = tiny_recognizer(model=name, context_size="full")
        with pytest.raises(ValueError, match="finite label context.*lattice.context_size = 2"):
            StreamingDecoder(unbounded)
    with pytest.raises(ValueError, match=r"evaluation mode: call eval\(\)"):
        StreamingDecoder(tiny_recognizer().train())
    without_blank = StreamingDecoder(tiny_recognizer(model="ce"))
    with pytest.raises(ValueError, match="endpointing should be None for a model without blank"):
        without_blank.stream(RATE, endpointing=QUICK)
    with pytest.raises(ValueError, match="blank_penalty should be 0 for a lattice without blank"):
        without_blank.stream(RATE, blank_penalty=1.0)


def test_bad_arguments_are_named():
    recognizer, decoder = RECOGNIZERS["lstm"], DECODERS["lstm"]
    for name, value in {"margin": -1.0, "block_size": 0, "max_tail_seconds": 0.0}.items():
        with pytest.raises(ValueError, match=f"{name} should be"):
            StreamingDecoder(recognizer, **{name: value})
    with pytest.raises(ValueError, match="blank_penalty should be a finite"):
        decoder.stream(RATE, blank_penalty=math.nan)
    with pytest.raises(ValueError, match="sample_rate should be a positive"):
        decoder.stream(0)
    stream = decoder.stream(RATE)
    with pytest.raises(ValueError, match="samples should be finite"):
        stream.accept(np.array([math.nan], np.float32))
    with pytest.raises(ValueError, match="floating-point"):
        stream.accept(np.zeros(10, np.int16))
    with pytest.raises(ValueError, match="before its end"):
        stream.transcript()
    with pytest.raises(ValueError, match="of the decoder that steps them"):
        StreamingDecoder(recognizer).step([stream])
    stream.finish()
    with pytest.raises(ValueError, match="the stream is finished"):
        stream.accept(np.zeros(1, np.float32))
    context = midge.FullNGram(2, 1)
    table = midge.RecognitionLattice(context, midge.FrameDependent(), midge.TableWeights(context))
    with pytest.raises(ValueError, match="TableWeights, which has no bias"):
        with_blank_penalty(table, 1.0)


def test_confidences_of_the_last_look_cost_nothing(monkeypatch):
    """Words are those of now; what the last look has not seen has no confidence."""
    decoder = next(iter(DECODERS.values()))
    stream = decoder.stream(RATE, has_confidence=True)
    num_unsure = num_kept = 0
    for number, piece in enumerate(np.array_split(noise(3.0, seed=5), 30)):
        stream.accept(piece)
        if number % 5 == 0:
            before = {word.text for word in stream.result().words}
            continue
        with monkeypatch.context() as patch:
            patch.setattr(TailSampler, "look", None)
            quick = stream.result(is_sure=False)
        assert [word.text for word in quick.words] == [word.text for word in stream.result().words]
        num_unsure += sum(word.confidence is None for word in quick.words)
        num_kept += sum(word.confidence is not None and word.text in before for word in quick.words)
        for word in quick.words[: quick.num_committed]:
            assert word.confidence is not None
    assert num_unsure and num_kept
