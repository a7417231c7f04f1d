"""The parts of a server: settings, samples, metrics, access, logs, and a worker that goes on."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from midge.decoding.endpointing import EndpointConfig
from midge.decoding.events import Partial
from midge.decoding.live_posteriors import TailSampler
from midge.models import Transcript
from midge.serve.access import Access, Admission, Refusal
from midge.serve.live import _Behind, _LiveStream
from midge.serve.logs import JsonFormatter
from midge.serve.metrics import Counter, Metrics
from midge.serve.samples import samples_of
from midge.serve.searches import give_way
from midge.serve.sessions import News, Session
from midge.serve.settings import Limits, StreamSettings, settings_from
from midge.serve.worker import Worker
from midge.serve.writing import written
from recognizers import RATE, noise
from servers import DECODER, pcm16


def test_settings_of_a_start_message():
    assert settings_from({}) == StreamSettings()
    asked = settings_from(
        {
            "sample_rate": 44100.0,
            "encoding": "float32",
            "endpointing": {"pause": 0.5},
            "confidence": True,
            "num_best": 3,
            "blank_penalty": 1,
            "phrases": ["one two"],
            "progress": True,
        }
    )
    assert asked == StreamSettings(
        sample_rate=44100,
        encoding="float32",
        endpointing=EndpointConfig(pause=0.5),
        has_confidence=True,
        num_best=3,
        blank_penalty=1.0,
        phrases=("one two",),
        has_progress=True,
    )
    for key in ("has_confidence", "partial_seconds"):
        with pytest.raises(ValueError, match=f"has no key '{key}'"):
            settings_from({key: 1})


@pytest.mark.parametrize("name", ["max_streams", "max_idle_seconds", "max_errors"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_more_than_nothing(name, value):
    with pytest.raises(ValueError, match=f"{name} should be more than 0"):
        Limits(**{name: value})


@pytest.mark.parametrize("count", [0, 1, 16, 17, 199, 200, 201, 1000])
def test_what_is_written_in_pieces_is_what_is_written_at_once(count):
    words = [{"text": f"naïve \n{number}", "confidence": None} for number in range(count)]
    event = {"event": "final", "words": words, "alternatives": [{"result": words}], "score": -0.5}
    assert written(event) == json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def test_samples():
    data = np.array([-32768, -1, 0, 32767], "<i2").tobytes()
    assert samples_of(data, "pcm16").tolist() == [-1.0, -1 / 32768, 0.0, 32767 / 32768]
    floats = np.array([0.5, -1.5], "<f4")
    assert samples_of(memoryview(floats.tobytes()), "float32").tolist() == [0.5, -1.5]
    assert len(samples_of(b"", "float32")) == 0
    for wrong in (np.nan, np.inf, -1e30, 32768.0):
        with pytest.raises(ValueError, match=r"should be in \[-1, 1\]"):
            samples_of(np.array([0.0, wrong], "<f4").tobytes(), "float32")


def test_a_page_of_metrics_has_a_head_and_a_value_for_each():
    metrics = Metrics()
    metrics.refused.add(part="full")
    metrics.latency.observe(0.2)
    lines = metrics.page().splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {"midge_streams", "midge_latency_seconds", "midge_real_time_factor"} <= names
    assert 'midge_streams_refused_total{code="full"} 1' in lines
    assert 'midge_latency_seconds_bucket{le="0.2"} 1' in lines
    assert 'midge_latency_seconds_bucket{le="0.1"} 0' in lines
    for line in lines:
        assert line.startswith("# ") or float(line.rsplit(" ", 1)[1]) >= 0


def test_threads_may_share_a_counter():
    counter = Counter("count", "Of all.")

    def count():
        for _ in range(5000):
            counter.add()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 20_000


def test_confidences_take_places_of_plain_streams():
    admission = Admission(Limits(max_streams=6, confident_places=3))
    with admission.admitted("a"), admission.costly(True):
        with admission.admitted("b"), admission.costly(True):
            assert admission.num_streams == 2
            with pytest.raises(Refusal, match="has 2 streams, and carries 6 plain ones, of which"):
                admission.admitted("c").__enter__()
        with admission.admitted("b"), admission.costly(False), admission.admitted("c"):
            with pytest.raises(Refusal, match="full"), admission.costly(True):
                pass
            with admission.costly(False):
                assert admission.num_streams == 3
    # Alone even the costliest is let in.
    lone = Admission(Limits(max_streams=1, confident_places=9))
    with lone.admitted("a"), lone.costly(True):
        assert lone.num_streams == 1


def test_places_are_given_back():
    admission = Admission(Limits(max_streams=2, max_streams_per_client=1))
    with admission.admitted("a"), admission.admitted("b"):
        with pytest.raises(Refusal, match="2 streams"), admission.admitted("c"):
            pass
        assert admission.num_streams == 2
    with pytest.raises(RuntimeError), admission.admitted("a"):
        raise RuntimeError
    assert admission.num_streams == 0
    admission.is_closed = True
    with pytest.raises(Refusal, match="shutting down"), admission.admitted("a"):
        pass


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer other", "Basic secret", "secret"])
def test_a_wrong_token(given):
    access = Access(token="secret")
    with pytest.raises(Refusal, match="missing or wrong"):
        access.check({"authorization": given}, None)
    access.check({"authorization": given}, "secret") if "Bearer" not in given else None
    access.check({"authorization": "Bearer secret"}, "other")


def test_a_stream_is_told_that_it_is_behind_and_that_it_no_longer_is():
    behind = _Behind(1.0)
    assert behind.event(0.5) is None
    assert behind.event(1.5) == {"event": "behind", "seconds": 1.5}
    assert behind.event(1.6) is None, "not again so soon"
    assert behind.event(0.25) == {"event": "behind", "seconds": 0.25}
    assert behind.event(0.2) is None


@pytest.mark.parametrize("ends_while", ["partial", "behind", None])
def test_a_stream_is_told_its_end_whenever_it_comes_and_nothing_after_it(ends_while):
    """Here while another event is on its way, with sound left that nobody will hear."""
    session = Session(StreamSettings(sample_rate=RATE), wake=lambda: None)
    end = News(end=Transcript("A", (), (), (), 0.0, 1.0))
    told = []

    class Connection:
        service = SimpleNamespace(limits=Limits(behind_seconds=2.0))

        async def send(self, event):
            told.append(event["event"])
            await asyncio.sleep(0)
            if event["event"] == ends_while:
                session.receive(end)

        async def send_text(self, text):
            await self.send(json.loads(text))

    async def run():
        stream = _LiveStream(Connection(), session)
        session.send(bytes(2 * 10 * RATE))  # ten seconds, of which none is heard
        if ends_while is None:
            session.receive(end)
        else:
            session.receive(News(partial=Partial((), 0, 0, 0.5, 0)))
        await asyncio.wait_for(stream._tell(), 10)
        await stream._tell_behind()

    asyncio.run(run())
    assert told[-1] == "end" and told.count("end") == 1
    assert told[:-1] == ([] if ends_while is None else ["partial", "behind"])


def test_a_log_line_is_a_json_object():
    logger = logging.Logger("test")
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.info("stream_ended", extra={"fields": {"session": "a", "seconds": 1.5}})
    try:
        raise KeyError("x")
    except KeyError as error:
        logger.error("failed", exc_info=error)
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        logger.error("a client's", exc_info=error)
    plain, failed, clients = map(json.loads, output.getvalue().splitlines())
    assert "UnicodeDecodeError" in clients["error"] and "traceback" not in clients
    assert plain["event"] == "stream_ended" and plain["seconds"] == 1.5 and "Z" in plain["time"]
    assert failed["error"] == "KeyError: 'x'" and "Traceback" in failed["traceback"]


def test_a_partial_of_a_segment_that_is_over_is_forgotten():
    session = Session(StreamSettings(), lambda: None)
    stream = DECODER.stream(RATE)
    stream.accept(noise(0.5, seed=2))
    session.receive(News(partial=stream.result()))
    assert session.partial is not None and session.has_new_partial
    stream.finish()
    session.receive(News(segments=stream.segments))
    assert session.partial is None and len(session.segments) == 1


def test_a_search_for_alternatives_keeps_its_time(monkeypatch):
    """Without time it draws nothing more; the best path is among what it finds."""
    stream = DECODER.stream(RATE, num_best=3, has_late_alternatives=True)
    stream.accept(noise(1.0, seed=2))
    text = stream.finish().text
    (search,) = stream.take_searches()
    assert stream.take_searches() == [] and stream.segments[0].alternatives == ()
    whole = search.run()
    waiting = DECODER.stream(RATE, num_best=3)
    waiting.accept(noise(1.0, seed=2))
    waiting.finish()
    assert waiting.segments[0].alternatives == whole and len(whole) == 3
    monkeypatch.setattr(TailSampler, "sample", None)
    assert text in [each.text for each in search.run(0.0)]


class Failing:
    """A decoder whose steps fail while it is told to."""

    def __init__(self) -> None:
        self.is_broken = False

    def __getattr__(self, name):
        return getattr(DECODER, name)

    def step(self, streams):
        if self.is_broken:
            raise RuntimeError("a fault of ours")
        return DECODER.step(streams)


def heard(worker: Worker, sessions: list[Session], data: bytes) -> None:
    for session in sessions:
        worker.add(session)
        session.send(data)
        session.close()


def test_a_worker_goes_on_after_a_fault(caplog):
    async def run() -> None:
        loop = asyncio.get_running_loop()
        decoder = Failing()
        worker = Worker(decoder, Metrics())

        def hand_over(news):
            for session, each in news:
                session.receive(each)

        worker.start(lambda news: loop.call_soon_threadsafe(hand_over, news))
        settings = StreamSettings(sample_rate=RATE)
        decoder.is_broken = True
        broken = Session(settings, worker.wake)
        heard(worker, [broken], pcm16(noise(0.5, seed=2)))
        await asyncio.wait_for(broken.ended(), 60)
        assert broken.failure and broken.end is None
        decoder.is_broken = False
        whole = [Session(settings, worker.wake) for _ in range(3)]
        heard(worker, whole, pcm16(noise(0.5, seed=2)))
        for session in whole:
            await asyncio.wait_for(session.ended(), 60)
            assert session.failure is None and session.end.seconds == 0.5
        assert len({session.end.text for session in whole}) == 1
        await asyncio.to_thread(worker.stop)

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == ["a stream failed"]


def test_a_thread_that_gives_way_keeps_to_itself():
    """One thread for who gives way; others, also those that start later, have all of them."""
    found = {}

    def note(name: str) -> None:
        if name == "alone":
            give_way()
        torch.ones(64, 64) @ torch.ones(64, 64)
        found[name] = torch.get_num_threads()

    before = torch.get_num_threads()
    for name in ("first", "alone", "later"):
        thread = threading.Thread(target=note, args=(name,))
        thread.start()
        thread.join()
    assert found == {"first": before, "alone": 1, "later": before}
    assert torch.get_num_threads() == before
