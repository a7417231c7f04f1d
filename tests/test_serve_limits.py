"""Who is let in, how much is allowed, and what happens to messages that are wrong."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed

from midge.decoding.endpointing import EndpointConfig
from midge.decoding.live import decode_offline
from midge.decoding.live_lattices import LiveLattice
from midge.decoding.open_segment import OpenSegment
from midge.models import TimedWord
from midge.serve import connections
from midge.serve.access import Access
from midge.serve.runner import prepare_process
from midge.serve.settings import Limits
from recognizers import RATE, noise
from servers import DECODER, chunks, events_of, heard_pcm16, pcm16, running, start

SAMPLES = noise(1.0, seed=2)
TEXT = decode_offline(DECODER, heard_pcm16(SAMPLES), RATE).text


@pytest.fixture(scope="module")
def server():
    with running() as found:
        yield found


@pytest.mark.parametrize(
    "message, code",
    [
        ("{", "bad_message"),
        ("[1, 2]", "bad_message"),
        ('"start"', "bad_message"),
        ('{"command": NaN}', "bad_message"),
        ("[" * 100_000, "bad_message"),
        ('{"a": "' + "x" * 300_000 + '"}', "bad_message"),
        ("1" * 5000, "bad_message"),
        ('{"command": "start"}', "bad_message"),
        ('{"command": ["end"]}', "bad_message"),
        ("{}", "bad_message"),
        (b"", "empty_message"),
        (b"abc", "odd_length"),
    ],
)
def test_a_wrong_message_gets_an_error_and_the_stream_goes_on(server, message, code):
    first, *rest = chunks(pcm16(SAMPLES), 4000)
    with server.connect() as connection:
        start(connection, sample_rate=RATE, endpointing=False)
        for sent in (first, message, *rest, '{"command": "end"}'):
            connection.send(sent)
        events = events_of(connection)
    (error,) = [event for event in events if event["event"] == "error"]
    assert error["code"] == code and not error["is_fatal"] and error["message"]
    assert events[-1]["text"] == TEXT


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"sample_rate": "16000"}, "sample_rate should be an integer"),
        ({"sample_rate": 0}, "sample_rate should be in 1000..384000"),
        ({"sample_rate": True}, "sample_rate should be an integer"),
        ({"encoding": "mp3"}, "encoding should be one of"),
        ({"endpointing": "yes"}, "endpointing should be true, false or an object"),
        ({"endpointing": {"pause": -1}}, "pause should be more than 0"),
        ({"endpointing": {"paus": 1}}, "did you mean 'pause'"),
        ({"num_best": 11}, "num_best should be in 0..10"),
        ({"num_best": 1.5}, "num_best should be an integer"),
        ({"confidence": 1}, "confidence should be true or false"),
        ({"blank_penalty": 1e9}, "blank_penalty should be within"),
        ({"samplerate": 16000}, "did you mean 'sample_rate'"),
        ({"phrases": "one"}, "phrases should be a list"),
        ({"phrases": ["one", "fish"]}, "got 'fish' with 'FHIS'"),
        ({"phrases": [" "]}, "phrases should have words"),
        ({"phrases": ["one"] * 501}, "phrases should be at most 500"),
        ({"phrases": ["one " * 30]}, "at most 100 characters each"),
    ],
)
def test_wrong_settings_end_the_stream_with_a_reason(server, settings, message):
    with server.connect() as connection:
        error = start(connection, **settings)
        assert error["event"] == "error" and error["is_fatal"] and error["code"] == "bad_request"
        assert message in error["message"]
        assert events_of(connection) == []
    assert connection.close_code == 1008


def test_sound_before_the_start_is_refused(server):
    with server.connect() as connection:
        connection.send(b"1234")
        assert json.loads(connection.recv())["code"] == "not_started"
        connection.send('{"command": "end"}')
        assert json.loads(connection.recv())["code"] == "not_started"
        assert start(connection)["event"] == "ready"


def test_samples_that_are_no_sound_are_told(server):
    broken = b"\x00\x00\xc0\x7f" * 100  # NaN
    loud = b"\x00\x00\x00\x46" * 100  # 8192
    for data in (broken, loud):
        with server.connect() as connection:
            start(connection, sample_rate=RATE, encoding="float32")
            connection.send(data)
            error = json.loads(connection.recv())
            assert error["code"] == "bad_audio" and "in [-1, 1]" in error["message"]
            connection.send('{"command": "end"}')
            assert events_of(connection)[-1]["seconds"] == 0.0


def test_a_full_server_says_so_at_once():
    limits = Limits(max_streams=2, max_streams_per_client=2)
    with running(limits=limits) as server:
        with server.connect() as first, server.connect("/"):
            start(first)
            for path in ("/stream", "/", "/vosk"):
                with server.connect(path) as third:
                    refused = json.loads(third.recv())
                    assert refused["code"] == "full" and refused.get("is_fatal", True)
                    assert events_of(third) == []
                assert third.close_code == 1013
            answer = httpx.post(f"{server.http}/transcribe", content=b"x")
            assert answer.status_code == 503 and answer.headers["retry-after"]
            assert httpx.get(f"{server.http}/health").json()["num_streams"] == 2
        server.wait_for(lambda: server.service.admission.num_streams == 0)
        with server.connect() as again:
            assert start(again)["event"] == "ready"
        assert (
            'midge_streams_refused_total{code="full"} 4' in httpx.get(f"{server.http}/metrics").text
        )


def test_one_client_does_not_take_all_places():
    with running(limits=Limits(max_streams=4, max_streams_per_client=1)) as server:
        with server.connect() as first:
            start(first)
            with server.connect() as second:
                assert json.loads(second.recv())["code"] == "client_full"


def test_a_message_that_is_too_large():
    with running(limits=Limits(max_message_bytes=4000)) as server:
        with server.connect() as connection:
            start(connection, sample_rate=RATE, endpointing=False)
            connection.send(pcm16(SAMPLES[:2000]))
            connection.send(bytes(4002))
            events = events_of(connection)
            assert [event["code"] for event in events if event["event"] == "error"] == [
                "message_too_large"
            ]
            assert events[-1]["event"] == "end" and events[-1]["seconds"] == 0.25
        assert connection.close_code == 1009
        with server.connect() as connection:  # far too large: the stack itself closes
            start(connection)
            connection.send(bytes(20_000))
            with pytest.raises(ConnectionClosed):
                connection.recv()
        assert connection.close_code == 1009
        assert httpx.get(f"{server.http}/health").json()["status"] == "ok"


def test_a_stream_that_is_too_long_keeps_what_it_has():
    limits = Limits(max_stream_seconds=0.5, max_upload_bytes=40_000)
    with running(limits=limits) as server:
        with server.connect() as connection:
            start(connection, sample_rate=RATE, endpointing=False)
            for message in chunks(pcm16(SAMPLES), 1600):
                connection.send(message)
            events = events_of(connection)
        assert {"too_long"} == {event["code"] for event in events if event["event"] == "error"}
        expected = decode_offline(DECODER, heard_pcm16(SAMPLES[: RATE // 2]), RATE)
        assert events[-1] == {"event": "end", "text": expected.text, "seconds": 0.5}
        with server.connect("/") as connection:
            connection.send(pcm16(SAMPLES))
            last = json.loads(connection.recv())
            assert "at most 0.5 seconds" in last["error"]


def test_files_that_are_too_large_or_too_long(tmp_path):
    soundfile.write(tmp_path / "speech.wav", SAMPLES, RATE)
    body = (tmp_path / "speech.wav").read_bytes()
    with running(limits=Limits(max_stream_seconds=0.5)) as server:
        answer = httpx.post(f"{server.http}/transcribe", content=body)
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "too_long"
    with running(limits=Limits(max_upload_bytes=1000)) as server:
        answer = httpx.post(f"{server.http}/transcribe", content=body)
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "too_large"


@pytest.mark.parametrize("path", ["/stream", "/"])
def test_who_sends_nothing_is_closed(path):
    with running(limits=Limits(max_idle_seconds=0.3)) as server:
        with server.connect(path) as connection:
            if path == "/stream":
                start(connection, sample_rate=RATE, endpointing=False)
            connection.send(pcm16(SAMPLES))
            events = events_of(connection)
        assert connection.close_code == 1008
        assert "nothing was sent for 0.3 seconds" in json.dumps(events)
        assert events[-1]["text"] == TEXT, "what was received is not lost"
        server.wait_for(lambda: server.service.admission.num_streams == 0)


def test_who_sends_only_nonsense_is_closed():
    with running(limits=Limits(max_errors=5)) as server:
        with server.connect() as connection:
            for _ in range(7):
                connection.send("{")
            events = events_of(connection)
        assert [event["code"] for event in events][-1] == "too_many_errors"
        assert len(events) == 6 and connection.close_code == 1008


def test_a_client_that_reads_nothing_does_not_hold_the_server_up():
    """Its answers do not fit into its socket: they are merged, and then it is given up."""
    limits = Limits(max_idle_seconds=0.5, max_streams=4)
    with running(limits=limits) as server:
        raw = socket.create_connection(("127.0.0.1", _port(server)))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with server.connect(sock=raw, max_queue=1) as deaf, server.connect() as other:
            start(deaf, sample_rate=RATE, progress=True)
            start(other, sample_rate=RATE, endpointing=False)
            for message in chunks(pcm16(noise(3.0, seed=1)), 320):
                deaf.send(message)
            for message in chunks(pcm16(SAMPLES), 1600):
                other.send(message)
            other.send('{"command": "end"}')
            assert events_of(other)[-1]["text"] == TEXT
            server.wait_for(lambda: server.service.admission.num_streams <= 1)


def _port(server) -> int:
    return int(server.http.rsplit(":", 1)[1])


TOKEN = "a secret of ours"


@pytest.fixture(scope="module")
def guarded():
    origins = ("https://friend.example",)
    with running(access=Access(token=TOKEN, origins=origins)) as found:
        yield found


@pytest.mark.parametrize("path", ["/stream", "/"])
def test_without_the_token_nobody_is_let_in(guarded, path):
    for options in ({}, {"additional_headers": {"Authorization": "Bearer wrong"}}):
        with guarded.connect(path, **options) as connection:
            refused = json.loads(connection.recv())
            assert refused["code"] == "unauthorized" and TOKEN not in json.dumps(refused)
            assert events_of(connection) == []
        assert connection.close_code == 1008
    assert httpx.post(f"{guarded.http}/transcribe", content=b"x").status_code == 401
    assert httpx.get(f"{guarded.http}/metrics").status_code == 401


def test_with_the_token_by_header_or_address(guarded):
    with guarded.connect(additional_headers={"Authorization": f"Bearer {TOKEN}"}) as connection:
        assert start(connection)["event"] == "ready"
    with guarded.connect("/stream?token=a%20secret%20of%20ours") as connection:
        assert start(connection)["event"] == "ready"
    headers = {"Authorization": f"bearer {TOKEN}"}
    assert httpx.get(f"{guarded.http}/metrics", headers=headers).status_code == 200
    answer = httpx.post(f"{guarded.http}/transcribe", content=b"x", headers=headers)
    assert answer.status_code == 415
    health = httpx.get(f"{guarded.http}/health").json()
    assert health["needs_token"] and health["status"] == "ok"


@pytest.mark.parametrize(
    "origin, is_welcome",
    [
        ("https://evil.example", False),
        ("null", False),
        ("http://[::1", False),
        ("http://127.0.0.1:1", False),
        ("https://friend.example", True),
        ("OWN", True),
        (None, True),
    ],
)
def test_pages_of_others_may_not_connect(guarded, origin, is_welcome):
    origin = guarded.http if origin == "OWN" else origin
    with guarded.connect(f"/stream?token={TOKEN}".replace(" ", "%20"), origin=origin) as connection:
        if is_welcome:
            assert start(connection)["event"] == "ready"
        else:
            assert json.loads(connection.recv())["code"] == "origin"
    headers = {"Authorization": f"Bearer {TOKEN}"} | ({} if origin is None else {"Origin": origin})
    answer = httpx.post(f"{guarded.http}/transcribe", content=b"x", headers=headers)
    assert answer.status_code == (415 if is_welcome else 403)


def test_a_name_that_leads_here_is_not_ours():
    """DNS rebinding: a page whose own name is made to lead to this machine."""
    access = Access()
    here = {"origin": "http://evil.example:2700", "host": "evil.example:2700"}
    with pytest.raises(Exception, match="evil.example"):
        access.check(here, None)
    Access(is_local=False).check(here, None)
    Access(origins=("*",)).check(here, None)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../service.py",
        "/static/..%2fservice.py",
        "/static/%2e%2e/service.py",
        "/static/....//service.py",
        "/static/..%5cservice.py",
        "/static//etc/passwd",
        "/static/",
        "/etc/passwd",
        "/../pyproject.toml",
        "/index.html",
    ],
)
def test_nothing_else_is_served_from_disk(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", _port(server))  # sends paths as they are
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status in (404, 405) and b"import" not in answer.read()
    connection.close()


def test_static_files_come_with_strict_headers(server):
    answer = httpx.get(f"{server.http}/static/style.css")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/css")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = httpx.get(server.http)
    assert page.status_code == 200 and "<html" in page.text


def test_metrics_count(server):
    before = httpx.get(f"{server.http}/metrics").text
    with server.connect() as connection:
        start(connection, sample_rate=RATE)
        connection.send(pcm16(SAMPLES))
        connection.send('{"command": "end"}')
        events_of(connection)
    after = httpx.get(f"{server.http}/metrics").text

    def value(page: str, name: str) -> float:
        lines = [line for line in page.splitlines() if line.startswith(f"{name} ")]
        return float(lines[0].split()[1]) if lines else 0.0

    assert value(after, "midge_audio_seconds_total") == pytest.approx(
        value(before, "midge_audio_seconds_total") + 1.0
    )
    for name in ("midge_latency_seconds_count", "midge_queue_delay_seconds_count"):
        assert value(after, name) == value(before, name) + 1
    assert value(after, "midge_real_time_factor") > 0
    assert value(after, "process_cpu_seconds_total") > value(before, "process_cpu_seconds_total")


@pytest.mark.parametrize("path", ["/stream", "/"])
def test_a_shutdown_decodes_all_that_was_sent(path):
    """Far more than a round decodes, and than may wait: most of it is still under way."""
    limits = Limits(max_streams=4, max_backlog_seconds=1.0)
    samples = noise(40.0, seed=6)
    rules = EndpointConfig() if path == "/" else None
    expected = decode_offline(DECODER, heard_pcm16(samples), RATE, endpointing=rules)
    with running(limits=limits) as server:
        with server.connect(path) as connection:
            if path == "/stream":
                start(connection, sample_rate=RATE, endpointing=False)
            else:
                connection.send(json.dumps({"config": {"sample_rate": RATE, "words": 0}}))
            for message in chunks(pcm16(samples), 1600):
                connection.send(message)
            server.wait_for(lambda: server.service.metrics.audio_seconds.value > 0)
            server.server.should_exit = True
            events = events_of(connection)
        assert server.service.metrics.audio_seconds.value == pytest.approx(40.0)
        assert connection.close_code == 1012
    if path == "/stream":
        assert events[-1] == {"event": "end", "text": expected.text, "seconds": 40.0}
        assert [each["code"] for each in events if each["event"] == "error"] == ["shutdown"]
    else:
        assert " ".join(each["text"] for each in events if each.get("text")) == expected.text
        assert events[-1]["error"].endswith("what it has heard is decoded")


class Slow:
    """A decoder that takes a tenth of a second for a step."""

    def __getattr__(self, name):
        return getattr(DECODER, name)

    def step(self, streams):
        time.sleep(0.1)
        return DECODER.step(streams)


def test_what_a_shutdown_has_no_time_for_is_told_and_logged(caplog):
    caplog.set_level("INFO")
    with running(Slow(), grace_seconds=0.5) as server:
        with server.connect() as connection, server.connect("/") as vosk:
            start(connection, sample_rate=RATE, endpointing=False)
            connection.send(pcm16(noise(20.0, seed=6)))
            vosk.send(pcm16(noise(20.0, seed=6)))
            server.wait_for(lambda: server.service.metrics.audio_seconds.value > 1)
            server.server.should_exit = True
            end = events_of(connection)[-1]
            last = events_of(vosk)[-1]
    assert end["event"] == "end" and 1 <= end["seconds"] < 10
    assert end["seconds"] + end["unheard_seconds"] == pytest.approx(20.0)
    assert "seconds were not heard" in last["error"]
    logged = [record for record in caplog.records if record.getMessage() == "stream_ended"]
    assert all(record.fields["unheard_seconds"] > 10 for record in logged) and len(logged) == 2


def test_who_goes_on_sending_is_heard_for_a_while_and_told(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(connections.Connection.stop, "__defaults__", (0.6,))
    with running() as server:
        with server.connect() as connection:
            start(connection, sample_rate=RATE, endpointing=False)
            num_sent = 0
            server.server.should_exit = True
            with pytest.raises(ConnectionClosed):
                while True:
                    connection.send(bytes(1600))
                    num_sent += 1
                    time.sleep(0.05)
            events = events_of(connection)
    (error,) = [event for event in events if event["event"] == "error"]
    assert error["code"] == "shutdown" and "not what was sent after it" in error["message"]
    assert 0 < events[-1]["seconds"] <= 0.1 * num_sent
    assert "stopped_listening" in [record.getMessage() for record in caplog.records]


NUM_WORDS = 40_000


@pytest.fixture
def as_a_server():
    """This process as `midge serve` sets its own up: short turns, no garbage search in the old."""
    before = sys.getswitchinterval()
    prepare_process()
    yield
    gc.unfreeze()
    sys.setswitchinterval(before)


@pytest.mark.parametrize("path", ["/stream", "/"])
def test_the_event_loop_is_never_late(as_a_server, monkeypatch, path):
    """Also not by a segment of hours: its words are told once, and written elsewhere."""
    open_segment = LiveLattice.open_segment
    labels = DECODER.recognizer.tokens.encode("ONE ") * NUM_WORDS
    word = TimedWord("ONE", 0.0, 0.1)

    def long_segment(*arguments: object, **options: object) -> OpenSegment:
        segment = open_segment(*arguments, **options)
        segment._labels, segment._frames = list(labels), [0] * len(labels)
        segment._words = [word] * NUM_WORDS
        return segment

    monkeypatch.setattr(LiveLattice, "open_segment", long_segment)
    with running() as server:
        delays: list[float] = []
        monkeypatch.setattr(server.service.metrics.loop_delay, "observe", delays.append)
        with server.connect(path) as connection:
            if path == "/stream":
                start(connection, sample_rate=RATE, endpointing=False, progress=True)
            else:
                connection.send(json.dumps({"config": {"sample_rate": RATE, "words": 0}}))
            num_committed = 0
            for message in chunks(pcm16(noise(3.0, seed=3)), 1600):
                connection.send(message)
                event = json.loads(connection.recv())
                num_committed += len(event.get("committed", ()))
                time.sleep(0.05)
            connection.send('{"command": "end", "eof": 1}')
            last = events_of(connection)[-1]
    assert last["text"].count("ONE") >= NUM_WORDS
    assert path == "/" or num_committed >= NUM_WORDS
    assert len(delays) > 10
    # A busy machine may hold up any process; the loop itself takes a few milliseconds at most.
    assert sorted(delays)[len(delays) // 2] < 0.01
    assert sorted(delays)[-3] < 0.1, delays


def test_the_event_loop_answers_while_the_worker_works(as_a_server, server, monkeypatch):
    """Much sound is decoded in the worker; the loop is on time, and answers others, meanwhile."""
    delays: list[float] = []
    monkeypatch.setattr(server.service.metrics.loop_delay, "observe", delays.append)
    with server.connect() as connection:
        start(connection, sample_rate=RATE, endpointing=False)
        connection.send(pcm16(noise(60.0, seed=3)))
        connection.send('{"command": "end"}')
        with ThreadPoolExecutor() as pool, httpx.Client() as client:
            done = pool.submit(events_of, connection)
            num_answers = 0
            while not done.done():
                assert client.get(f"{server.http}/health").status_code == 200
                num_answers += 1
                time.sleep(0.02)
            assert done.result()[-1]["seconds"] == 60.0
    assert num_answers > 5 and len(delays) > 5
    assert sorted(delays)[len(delays) // 2] < 0.01, delays
