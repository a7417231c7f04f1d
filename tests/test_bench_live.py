"""`midge bench live`: its arithmetic, its search, and the command on a real server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import shlex

import numpy as np
import pytest
import soundfile

from midge.audio import Audio
from midge.bench.live import Load, LoadReport, _Replay, covering_delays, replayed
from midge.bench.live_server import most_carried
from midge.cli import main
from midge.decoding.events import event_json
from midge.serve import jobs
from midge.serve.jobs import Job
from midge.serve.metrics import Metrics
from midge.serve.sessions import Session
from midge.serve.settings import Limits, StreamSettings
from recognizers import RATE, noise, tiny_recognizer
from servers import DECODER, chunks, pcm16, running

RECORDINGS = [Audio(noise(0.4, seed=number), RATE) for number in range(3)]


def report(load: Load, p99: float, **changes: object) -> LoadReport:
    values = {
        "load": load,
        "block_seconds": 0.1,
        "delays": {"p50": p99 / 2, "p90": p99, "p99": p99, "max": p99},
        "lateness": 0.0,
        "num_messages": 10,
        "num_missed": 0,
        "num_failed": 0,
        "server_share": 0.5,
        "client_share": 0.1,
    }
    return LoadReport(**(values | changes))


def test_delays_count_from_when_a_message_was_due():
    due = [0.1, 0.2, 0.3, 0.4]
    answers = [(0.15, 0.1), (0.45, 0.2999), (0.5, 0.3), (0.6, 0.3)]
    found = covering_delays(due, due, answers)
    assert found == pytest.approx([0.05, 0.25, 0.15]), "0.2999 is 0.3, rounded; the last is missed"


def test_what_is_carried():
    load = Load(num_streams=5)
    assert report(load, 0.49).is_carried, "the wait for a block is in the delays"
    assert not report(load, 0.51).is_carried
    assert not report(load, 0.1, num_missed=1).is_carried
    assert not report(load, 0.1, num_failed=1).is_carried


@pytest.mark.parametrize("capacity", [0, 1, 7, 37, 100, 511, 9999])
@pytest.mark.parametrize("first", [1, 10, 64])
def test_the_search_finds_the_most(capacity, first):
    def measure(load: Load) -> LoadReport:
        return report(load, 0.1 if load.num_streams <= capacity else 1.0)

    reports = most_carried(measure, Load(num_streams=first), max_streams=512)
    tried = [each.load.num_streams for each in reports]
    best = max((each.load.num_streams for each in reports if each.is_carried), default=0)
    assert len(tried) == len(set(tried)) < 20
    assert best <= min(capacity, 512) and best >= 0.89 * min(capacity, 512) - 1


@pytest.mark.parametrize(
    "changes",
    [{"num_streams": 0}, {"message_seconds": 0.0}, {"seconds": math.inf}, {"num_best": -1}],
)
def test_loads_that_are_none(changes):
    with pytest.raises(ValueError, match="should be"):
        Load(**changes)


class Events:
    """Events of a server, one after the other, as a replay gets them."""

    def __init__(self, events: list[dict]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> str:
        for event in self._events:
            return json.dumps(event)
        raise StopAsyncIteration


def test_sound_is_answered_when_it_is_decoded(monkeypatch):
    """Of five messages that wait the first step decodes no more than a block."""
    monkeypatch.setattr(jobs, "CATCH_UP_SECONDS", 0.0)
    settings = StreamSettings(sample_rate=RATE, endpointing=None, has_progress=True)

    async def run() -> list[tuple[float, float]]:
        session = Session(settings, lambda: None)
        for message in chunks(pcm16(noise(1.0, seed=2)), 2 * RATE // 5):
            session.send(message)
        job = Job(session, DECODER, Metrics())
        job.hear()
        events = []
        while job.stream.is_ready:
            DECODER.step([job.stream])
            events.append(event_json(job.news().partial))
        replay = _Replay([], 0.2, 0.0)
        await replay._listen(Events(events))
        assert {event["seconds"] for event in events} == {1.0}, "all was heard at once"
        return replay.record.answers

    answers = asyncio.run(run())
    decoded = [seconds for _, seconds in answers]
    assert decoded[0] == pytest.approx(0.08) and decoded == sorted(set(decoded))
    ends = [0.2, 0.4, 0.6, 0.8, 1.0]
    assert len(covering_delays(ends, ends, answers[:1])) == 0
    assert len(covering_delays(ends, ends, answers[: len(answers) // 2])) == 2
    assert len(covering_delays(ends, ends, answers)) == 4, "the last block is not whole"


@pytest.mark.parametrize("asked", [{}, {"has_confidence": True, "num_best": 3}])
def test_a_load_on_a_real_server(asked):
    load = Load(num_streams=3, seconds=0.9, message_seconds=0.2, **asked)
    with running() as server:
        found = replayed(server.http, RECORDINGS, load)
    assert found.num_messages == 15 and found.num_missed == found.num_failed == 0
    assert found.block_seconds == pytest.approx(0.08)
    assert 0 < found.delays["p50"] <= found.delays["p90"] <= found.delays["max"] < math.inf
    assert found.server_share > 0 and found.client_share > 0
    json.dumps(found.to_json(), allow_nan=False)


def test_what_was_never_reached_is_null():
    found = report(Load(), math.inf).to_json()
    assert found["delays"]["p99"] is None and not found["is_carried"]


def test_streams_that_are_refused_are_counted():
    load = Load(num_streams=3, seconds=0.4, message_seconds=0.2)
    with running(limits=Limits(max_streams=2)) as server:
        found = replayed(server.http, RECORDINGS, load)
    assert found.num_failed == 1 and found.num_missed == 2 and not found.is_carried


def test_recordings_of_two_rates_are_refused():
    mixed = [RECORDINGS[0], dataclasses.replace(RECORDINGS[0], sample_rate=16000)]
    with pytest.raises(ValueError, match="one sample rate"):
        replayed("http://127.0.0.1:1", mixed, Load())


@pytest.mark.slow
def test_the_examples_of_the_help_work(tmp_path, monkeypatch, capsys):
    pytest.importorskip("espeakng_loader")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tiny_recognizer().save(tmp_path / "demo" / "speech" / "global" / "model")
    soundfile.write("speech.flac", np.concatenate([noise(0.5, seed=1)] * 2), RATE)
    assert main(["bench", "live", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    examples = [shlex.split(line)[1:] for line in lines if line.startswith("  midge bench live")]
    assert len(examples) == 3
    for arguments in examples:
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        if "--json" in arguments:
            (found,) = json.loads(printed)["reports"]
            assert found["num_missed"] == found["num_failed"] == 0
        else:
            assert printed.startswith("| streams | p50 |")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--url", "http://example.org:2700"], "on this machine"),
        (["--url", "http://127.0.0.1:1", "--margin", "inf"], "--margin is for a server"),
        (["--streams", "0"], "num_streams should be at least 1"),
        (["nowhere.wav"], "nowhere.wav"),
        pytest.param(
            ["speech.wav", "--model", "nowhere"],
            "the server did not start: midge: error: nowhere",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_is_told_without_a_traceback(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    soundfile.write("speech.wav", noise(0.3, seed=1), RATE)
    assert main(["bench", "live", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("Traceback") == 0
