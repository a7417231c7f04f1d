"""Our protocol and whole files, on a real server: what comes out is what a stream says offline."""

from __future__ import annotations

import json
import threading
import time

import httpx
import numpy as np
import pytest
import soundfile

from midge.decoding import FORMATS
from midge.decoding.live import decode_offline
from midge.decoding.live_alternatives import LiveAlternatives
from midge.serve import searches
from midge.serve.settings import Limits
from recognizers import RATE, noise
from servers import (
    DECODER,
    QUICK,
    RULES,
    chunks,
    events_of,
    heard_pcm16,
    pcm16,
    running,
    start,
    streamed,
)

SAMPLES = noise(1.6, seed=2)


@pytest.fixture(scope="module")
def server():
    with running() as found:
        yield found


def told(samples, rate=RATE, **options):
    return decode_offline(DECODER, samples, rate, **options)


@pytest.mark.parametrize("size", [2, 58, 1600, 1 << 20])
@pytest.mark.parametrize("endpointing", [False, QUICK], ids=["whole", "segments"])
def test_messages_of_any_size_give_the_text_of_the_whole(server, size, endpointing):
    samples = SAMPLES[: RATE // 4] if size == 2 else SAMPLES
    events = streamed(
        server, chunks(pcm16(samples), size), sample_rate=RATE, endpointing=endpointing
    )
    expected = told(heard_pcm16(samples), endpointing=RULES if endpointing else None)
    assert events[-1] == {"event": "end", "text": expected.text, "seconds": expected.seconds}
    assert expected.text
    words = [word for event in events if event["event"] == "final" for word in event["words"]]
    assert [(word["text"], word["start"], word["end"]) for word in words] == [
        (word.text, word.start, word.end) for word in expected.words
    ]


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 44100.0])
@pytest.mark.parametrize("encoding", ["pcm16", "float32"])
def test_every_rate_and_encoding(server, rate, encoding):
    samples = np.repeat(SAMPLES, 2)[: int(0.8 * rate)]
    data = pcm16(samples) if encoding == "pcm16" else samples.astype("<f4").tobytes()
    events = streamed(server, chunks(data, 4000), sample_rate=rate, encoding=encoding)
    heard = heard_pcm16(samples) if encoding == "pcm16" else samples
    expected = told(heard, int(rate), endpointing=type(RULES)())
    assert events[-1]["text"] == expected.text and expected.text
    assert events[-1]["seconds"] == len(samples) / rate


def test_events_come_in_order(server):
    events = streamed(server, chunks(pcm16(SAMPLES), 800), sample_rate=RATE, endpointing=QUICK)
    kinds = [event["event"] for event in events]
    assert kinds[-2:] == ["final", "end"] and {"partial", "final", "end"} <= set(kinds)
    over = [event["segment"] for event in events if "reason" in event]
    assert over == list(range(len(over)))
    newest = 0.0
    num_over = 0
    committed: list[str] = []
    for event in events[:-1]:
        if event["event"] == "partial":
            assert event["segment"] == num_over, "a partial of a segment that is over"
            assert event["seconds"] >= newest
            newest = event["seconds"]
            assert event["decoded_seconds"] <= event["seconds"]
            committed += [word["text"] for word in event["committed"]]
            assert event["num_committed"] == len(committed)
        elif "reason" in event:
            assert [word["text"] for word in event["words"]][: len(committed)] == committed
            num_over, committed = event["segment"] + 1, []


def test_a_stream_without_words_still_tells_how_far_it_is(server):
    silent = bytes(2 * 3 * RATE)
    with server.connect() as connection:
        assert start(connection, sample_rate=RATE, blank_penalty=-20.0)["event"] == "ready"
        for message in chunks(silent, 1600):
            connection.send(message)
        heard = [json.loads(connection.recv()) for _ in range(2)]
        connection.send('{"command": "end"}')
        events = [*heard, *events_of(connection)]
    partials = [event for event in events if event["event"] == "partial"]
    assert len(partials) >= 2 and all(not event["committed"] for event in partials)


def test_with_progress_each_message_is_answered(server):
    with server.connect() as connection:
        start(connection, sample_rate=RATE, progress=True, endpointing=False)
        for number, message in enumerate(chunks(pcm16(SAMPLES), 1600), start=1):
            connection.send(message)
            event = json.loads(connection.recv())
            assert event["event"] == "partial" and event["seconds"] == pytest.approx(0.1 * number)
        connection.send('{"command": "end"}')
        assert events_of(connection)[-1]["event"] == "end"


def test_confidences_and_alternatives(server):
    events = streamed(
        server,
        chunks(pcm16(SAMPLES), 1600),
        sample_rate=RATE,
        endpointing=QUICK,
        confidence=True,
        num_best=3,
    )
    finals = [event for event in events if "reason" in event]
    assert any(event["words"] for event in finals)
    for event in finals:
        assert all(0 <= word["confidence"] <= 1 for word in event["words"])
        assert event["alternatives"] == [], "they come later"
    later = [event for event in events if event["event"] == "alternatives"]
    assert [event["segment"] for event in later] == [event["segment"] for event in finals]
    for event, segment in zip(later, finals, strict=True):
        assert events.index(event) > events.index(segment)
        found = [each["probability"] for each in event["alternatives"]]
        assert 1 <= len(found) <= 3 and found == sorted(found, reverse=True)
        assert all(isinstance(each["text"], str) for each in event["alternatives"])
    plain = streamed(server, [pcm16(SAMPLES)], sample_rate=RATE, endpointing=QUICK)
    assert plain[-1] == events[-1], "confidences change no text"


def test_committed_words_are_told_once(server):
    samples = noise(6.0, seed=2)
    events = streamed(server, chunks(pcm16(samples), 800), sample_rate=RATE, endpointing=False)
    partials = [event for event in events if event["event"] == "partial"]
    told = [word for event in partials for word in event["committed"]]
    (final,) = [event for event in events if event["event"] == "final"]
    assert final["words"][: len(told)] == told
    assert len(told) == partials[-1]["num_committed"] > 2
    assert max(len(event["committed"]) for event in partials) < len(told)


@pytest.mark.parametrize("path", ["/stream", "/"])
def test_nobody_waits_for_the_alternatives_of_another(server, monkeypatch, path):
    """A search that takes a second holds up its own stream alone, and that by its last event."""
    search = LiveAlternatives.listed

    def slowly(*arguments: object) -> object:
        time.sleep(1.0)
        return search(*arguments)

    monkeypatch.setattr(LiveAlternatives, "listed", slowly)
    with server.connect(path) as slow, server.connect() as other:
        if path == "/":
            config = {"sample_rate": RATE, "words": 0, "max_alternatives": 2}
            slow.send(json.dumps({"config": config}))
        else:
            start(slow, sample_rate=RATE, endpointing=QUICK, num_best=2)
        start(other, sample_rate=RATE, endpointing=False, progress=True)
        slow.send(pcm16(SAMPLES))
        slow.send('{"command": "end", "eof": 1}')
        asked = time.monotonic()
        for message in chunks(pcm16(SAMPLES), 1600):
            other.send(message)
            assert json.loads(other.recv())["event"] == "partial"
        assert time.monotonic() - asked < 0.9, "it waited for a search"
        events = events_of(slow)
        assert time.monotonic() - asked > 1.0
    if path == "/":
        assert len(events) == 2 and len(events[1]["alternatives"]) == 2
    else:
        kinds = [event["event"] for event in events]
        assert kinds.index("final") < kinds.index("alternatives") and kinds[-1] == "end"


def test_alternatives_that_have_waited_for_long_are_left_out(monkeypatch):
    monkeypatch.setattr(searches, "MAX_WAIT_SECONDS", -1.0)
    with running() as server:
        events = streamed(server, [pcm16(SAMPLES)], sample_rate=RATE, endpointing=QUICK, num_best=2)
        left_out = server.service.metrics.searches_left_out.value
    found = [event["alternatives"] for event in events if event["event"] == "alternatives"]
    assert found and not any(found) and events[-1]["event"] == "end"
    assert left_out == len(found)


def test_a_search_that_fails_leaves_the_stream_as_it_is(server, monkeypatch, caplog):
    def failing(*_: object) -> object:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(LiveAlternatives, "listed", failing)
    events = streamed(server, [pcm16(SAMPLES)], sample_rate=RATE, endpointing=False, num_best=2)
    assert events[-2]["alternatives"] == [] and events[-1]["event"] == "end"
    assert "a search failed" in [record.getMessage() for record in caplog.records]


def test_phrases_are_expected(server):
    """The text is that of a stream with the same phrases; its words stay tentative."""
    phrases = ["n", "No"]
    events = streamed(
        server,
        chunks(pcm16(SAMPLES), 1600),
        sample_rate=RATE,
        endpointing=QUICK,
        phrases=phrases,
        num_best=2,
    )
    expected = told(heard_pcm16(SAMPLES), endpointing=RULES, phrases=phrases)
    assert events[-1]["text"] == expected.text
    assert expected.text != told(heard_pcm16(SAMPLES), endpointing=RULES).text
    assert not any(event["committed"] for event in events if event["event"] == "partial")
    finals = [event for event in events if event["event"] == "final"]
    assert all(1 <= len(event["alternatives"]) <= 2 for event in finals)
    assert "alternatives" not in {event["event"] for event in events}


def test_a_penalty_is_one_streams_own(server):
    data = [pcm16(SAMPLES)]
    fewer = streamed(server, data, sample_rate=RATE, blank_penalty=-5.0, endpointing=False)
    expected = told(heard_pcm16(SAMPLES), blank_penalty=-5.0)
    assert fewer[-1]["text"] == expected.text
    assert fewer[-1]["text"] != told(heard_pcm16(SAMPLES)).text


def test_many_streams_at_once_say_what_each_says_alone(server):
    recordings = [noise(0.5 + 0.05 * number, seed=number) for number in range(16)]
    texts: dict[int, str] = {}

    def run(number: int) -> None:
        messages = chunks(pcm16(recordings[number]), 800 + 34 * number)
        events = streamed(server, messages, sample_rate=RATE, endpointing=QUICK)
        texts[number] = events[-1]["text"]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(recordings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, samples in enumerate(recordings):
        assert texts[number] == told(heard_pcm16(samples), endpointing=RULES).text
    assert 'midge_batch_size_bucket{le="1"}' in server.service.metrics.page()


def test_an_empty_stream(server):
    events = streamed(server, [], sample_rate=RATE)
    assert events[-1] == {"event": "end", "text": told(SAMPLES[:0]).text, "seconds": 0.0}


def test_ready_says_what_a_client_should_know(server):
    with server.connect() as connection:
        ready = start(connection)
        assert ready["model"] == "tiny" and ready["sample_rate"] == RATE
        assert ready["block_seconds"] == pytest.approx(0.08)
        assert ready["limits"]["max_stream_seconds"] > 0 and len(ready["session"]) == 16


def test_what_is_kept_is_what_was_heard(tmp_path):
    with running(keep_folder=tmp_path) as server:
        with server.connect() as connection:
            session = start(connection, sample_rate=RATE, endpointing=False)["session"]
            for message in chunks(pcm16(SAMPLES), 1000):
                connection.send(message)
            connection.send('{"command": "end"}')
            text = events_of(connection)[-1]["text"]
    kept, rate = soundfile.read(tmp_path / f"{session}.wav", dtype="float32")
    assert rate == RATE and np.array_equal(kept, heard_pcm16(SAMPLES))
    assert told(kept).text == text


def test_a_stream_that_is_behind_is_told_and_reading_waits():
    """A message of seconds is more than may wait: the server says so, and still hears it all."""
    limits = Limits(behind_seconds=0.5, max_backlog_seconds=1.0, max_idle_seconds=30)
    samples = noise(8.0, seed=5)
    with running(limits=limits) as server:
        events = streamed(server, chunks(pcm16(samples), 1 << 16), sample_rate=RATE)
    behind = [event["seconds"] for event in events if event["event"] == "behind"]
    assert behind and max(behind) > 0.5 and behind[-1] <= 0.5
    assert events[-1]["seconds"] == 8.0
    assert events[-1]["text"] == told(heard_pcm16(samples), endpointing=type(RULES)()).text


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_whole_file(server, tmp_path, format_name):
    soundfile.write(tmp_path / "speech.flac", SAMPLES, RATE)
    body = (tmp_path / "speech.flac").read_bytes()
    options = {"format": format_name, "endpoints": "false", "name": "speech"}
    answer = httpx.post(f"{server.http}/transcribe", content=body, params=options, timeout=60)
    assert answer.status_code == 200
    samples, rate = soundfile.read(tmp_path / "speech.flac", dtype="float32")
    assert answer.text == FORMATS[format_name].write(told(samples, rate), "speech")


def test_a_whole_file_is_cut_as_a_stream_is(server, tmp_path):
    samples = noise(3.0, seed=7)
    soundfile.write(tmp_path / "speech.wav", samples, RATE)
    body = (tmp_path / "speech.wav").read_bytes()
    answer = httpx.post(f"{server.http}/transcribe", content=body, timeout=60)
    heard, rate = soundfile.read(tmp_path / "speech.wav", dtype="float32")
    assert answer.text == told(heard, rate, endpointing=type(RULES)()).text + "\n"
    asked = httpx.post(
        f"{server.http}/transcribe",
        content=body,
        params={"format": "json", "confidence": "true"},
        timeout=60,
    ).json()
    assert asked["text"] + "\n" == answer.text
    assert all(0 <= word["confidence"] <= 1 for word in asked["words"])


@pytest.mark.parametrize(
    "body, options, status, message",
    [
        (b"", {}, 400, "empty"),
        (b"no audio at all", {}, 415, "the file holds no audio"),
        (b"x", {"format": "docx"}, 400, "format should be one of text"),
        (b"x", {"endpoints": "yes"}, 400, "endpoints should be true or false"),
        (b"x", {"fromat": "srt"}, 400, "unknown option 'fromat'"),
    ],
)
def test_a_file_that_is_none(server, body, options, status, message):
    answer = httpx.post(f"{server.http}/transcribe", content=body, params=options, timeout=60)
    assert answer.status_code == status and message in answer.json()["error"]["message"]
    assert "/" not in answer.json()["error"]["message"].replace("text/", ""), "a path of ours"


def test_a_file_that_is_cut_off(server, tmp_path):
    soundfile.write(tmp_path / "speech.wav", SAMPLES, RATE)
    body = (tmp_path / "speech.wav").read_bytes()[:-5000]
    answer = httpx.post(f"{server.http}/transcribe", content=body)
    assert answer.status_code == 415 and "cut off" in answer.json()["error"]["message"]
