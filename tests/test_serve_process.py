"""`midge serve` as a process: its options, its logs, signals, and clients that break off."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from websockets.sync.client import connect

from commands import help_examples
from midge.cli import main
from midge.cli import serve as command
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.events import Partial
from midge.decoding.live import decode_offline
from midge.decoding.streams import Stream
from midge.models import load
from midge.serve.capacity import block_seconds, measured_capacity
from midge.serve.endpoints import Endpoint
from midge.serve.jobs import LOOK_SECONDS
from midge.serve.settings import PAGE_SETTINGS
from midge.serve.web import STATIC
from recognizers import RATE, noise, tiny_recognizer
from servers import DECODER, chunks, events_of, heard_pcm16, pcm16, start

SAMPLES = noise(1.5, seed=2)
BURST = noise(60.0, seed=6)
"""More than may wait: when it was sent, half of it is still under way."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "tiny"
    tiny_recognizer().save(folder / "model")
    return folder


class Process:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process = process
        self._log = log
        self.url = process.stdout.readline().strip()
        assert self.url, log.read_text()
        self.websocket = self.url.replace("http", "ws", 1)

    def events(self, name: str) -> list[dict]:
        """What it has logged under a name."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line for line in lines if line["event"] == name]

    def wait_for(self, name: str) -> dict:
        deadline = time.monotonic() + 60
        while not self.events(name):
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        return self.events(name)[0]


@contextmanager
def served(model: Path, folder: Path, *options: str) -> Iterator[Process]:
    log = folder / "log.jsonl"
    code = "from midge.cli import main; raise SystemExit(main())"
    arguments = ["serve", str(model), "--port", "0", "--max-streams", "8", *options]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield Process(process, log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_what_breaks_off_is_decoded_and_logged_and_sigterm_loses_nothing(model, tmp_path):
    """In one process, since to start one takes a while."""
    expected, burst = (
        decode_offline(DECODER, heard_pcm16(samples), RATE, endpointing=EndpointConfig())
        for samples in (SAMPLES, BURST)
    )
    kept = tmp_path / "kept"
    with served(model, tmp_path, "--keep-audio", str(kept)) as server:
        health = httpx.get(f"{server.url}health").json()
        assert health["model"] == "tiny" and health["max_streams"] == 8

        with connect(f"{server.websocket}stream") as connection:
            session = start(connection, sample_rate=RATE)["session"]
            connection.send(pcm16(SAMPLES))
            connection.socket.shutdown(socket.SHUT_RDWR)  # without a goodbye
        ended = server.wait_for("stream_ended")
        assert ended["session"] == session and ended["reason"] == "disconnect"
        assert ended["seconds"] == 1.5 and ended["num_characters"] == len(expected.text)
        assert "text" not in ended
        samples, rate = soundfile.read(kept / f"{session}.wav", dtype="float32")
        assert rate == RATE and np.array_equal(samples, heard_pcm16(SAMPLES))

        with (
            connect(f"{server.websocket}stream") as ours,
            connect(server.websocket) as vosk,
        ):
            start(ours, sample_rate=RATE)
            for message in chunks(pcm16(BURST), 1600):
                ours.send(message)
            vosk.send(json.dumps({"config": {"sample_rate": RATE, "words": 0}}))
            vosk.send(pcm16(SAMPLES))
            assert "partial" in json.loads(vosk.recv())
            while not [each for each in server.events("stream_started")][2:]:
                time.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            events = events_of(ours)
            assert [each["code"] for each in events if each["event"] == "error"] == ["shutdown"]
            assert events[-1] == {"event": "end", "text": burst.text, "seconds": 60.0}
            last = events_of(vosk)[-1]
            assert last["text"] == expected.text and "shutting down" in last["error"]
        assert ours.close_code == 1012 and vosk.close_code == 1012
        assert server.process.wait(60) == 0
        reasons = [each["reason"] for each in server.events("stream_ended")]
        assert reasons == ["disconnect", "shutdown", "shutdown"]
        assert server.events("stopped")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    paths = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-out", str(paths[0]), "-keyout", str(paths[1])]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl, which makes a certificate, is not here")
    return paths


@pytest.mark.slow
def test_https_with_a_token_and_logged_text(model, tmp_path, certificate):
    options = ["--certificate", str(certificate[0]), "--key", str(certificate[1])]
    with served(model, tmp_path, *options, "--token", "secret", "--log-text") as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        trusting.check_hostname = False
        assert httpx.get(f"{server.url}health", verify=trusting).json()["needs_token"]
        headers = {"Authorization": "Bearer secret"}
        with connect(
            f"{server.websocket}stream", ssl=trusting, additional_headers=headers
        ) as connection:
            start(connection, sample_rate=RATE)
            connection.send(pcm16(SAMPLES))
            connection.send('{"command": "end"}')
            text = events_of(connection)[-1]["text"]
        assert server.wait_for("stream_ended")["text"] == text
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0


@pytest.mark.slow
def test_the_same_text_as_midge_transcribe(model, tmp_path, capsys, monkeypatch):
    """By the commands themselves: a whole file, and both protocols."""
    soundfile.write(tmp_path / "speech.wav", noise(4.0, seed=4), RATE)
    assert main(["transcribe", str(model), str(tmp_path / "speech.wav")]) == 0
    expected = capsys.readouterr().out.strip()
    assert expected
    samples, _ = soundfile.read(tmp_path / "speech.wav", dtype="int16")
    with served(model, tmp_path) as server:
        body = (tmp_path / "speech.wav").read_bytes()
        assert httpx.post(f"{server.url}transcribe", content=body, timeout=60).text.strip() == (
            expected
        )
        with connect(f"{server.websocket}stream") as connection:
            start(connection, sample_rate=RATE)
            connection.send(samples.astype("<i2").tobytes())
            connection.send('{"command": "end"}')
            assert events_of(connection)[-1]["text"] == expected
        with connect(server.websocket) as connection:
            connection.send(json.dumps({"config": {"sample_rate": float(RATE), "words": False}}))
            answers = []
            for place in range(0, len(samples), 2000):
                connection.send(samples[place : place + 2000].astype("<i2").tobytes())
                answers.append(json.loads(connection.recv()))
            connection.send('{"eof" : 1}')
            answers.append(json.loads(connection.recv()))
        assert " ".join(each["text"] for each in answers if each.get("text")) == expected


@pytest.mark.parametrize(
    "options, message",
    [
        (["nowhere"], "nowhere"),
        (["FULL"], "streaming encoder"),
        (["MODEL", "--port", "70000"], "port should be in 0..65535"),
        (["MODEL", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["MODEL", "--certificate", "cert.pem"], "certificate and key should be given together"),
        (["MODEL", "--certificate", "a.pem", "--key", "b.pem"], "a.pem: No such file"),
        (["MODEL", "--max-streams", "0"], "max_streams should be more than 0"),
        (["MODEL", "--max-idle-seconds", "nan"], "max_idle_seconds should be more than 0"),
        (["MODEL", "--allow-origin", "friend"], "origin should be like https://example.org"),
        (["MODEL", "--threads", "0"], "--threads should be at least 1"),
        (["MODEL", "--block-size", "0"], "block_size should be at least 1"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(model, tmp_path, capsys, options, message):
    tiny_recognizer(is_streaming=False).save(tmp_path / "full")
    names = {"MODEL": str(model), "FULL": str(tmp_path / "full")}
    arguments = [names.get(option, option) for option in options]
    limited = [] if "--max-streams" in arguments else ["--max-streams", "1"]
    assert main(["serve", *arguments, *limited]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err


def test_an_address_that_is_taken(model, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(model), "--port", port, "--max-streams", "1"]) == 2
    assert f"127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_without_the_packages_the_user_is_told_how_to_get_them(model, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] in ("uvicorn", "starlette")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "midge.serve.runner")
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not installed
    monkeypatch.delattr("midge.serve.runner", raising=False)
    assert main(["serve", str(model)]) == 2
    assert "pip install 'midge[serve]'" in capsys.readouterr().err


def test_the_examples_of_the_help_can_be_parsed(capsys, monkeypatch):
    found = []
    monkeypatch.setattr(command, "_server", lambda arguments: found.append(arguments) or _Silent())
    for arguments in help_examples("serve", capsys):
        assert main(arguments) == 0
    assert len(found) == 3 and found[0].open and found[0].model is None


class _Silent:
    """Stands in for a server, which would serve for ever."""

    def serve_forever(self, tell):
        pass


def test_the_page_is_opened(model, monkeypatch, capsys):
    class Ready(_Silent):
        def serve_forever(self, tell):
            tell("http://127.0.0.1:1/")

    opened = []
    monkeypatch.setattr(command, "_server", lambda arguments: Ready())
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["serve", str(model), "--open"]) == 0
    monkeypatch.setenv(command.TOKEN_VARIABLE, "a secret")
    assert main(["serve", str(model), "--open"]) == 0
    assert opened == ["http://127.0.0.1:1/", "http://127.0.0.1:1/?token=a%20secret"]
    assert capsys.readouterr().out == "http://127.0.0.1:1/\n" * 2, "a token is not shown"


@pytest.mark.parametrize(
    "host, url",
    [
        ("127.0.0.1", "http://127.0.0.1:9/"),
        ("0.0.0.0", "http://127.0.0.1:9/"),
        ("::", "http://[::1]:9/"),
        ("asr.example", "http://asr.example:9/"),
    ],
)
def test_the_address_of_the_page_can_be_opened(host, url):
    assert Endpoint(host=host).url(9) == url


def test_a_model_is_presented(model):
    recognizer = load(model)
    card = command.model_card(recognizer, model / "model")
    assert card.name == "tiny" and "gnat" in card.description
    recognizer.training_summary["description"] = "Digits, in English."
    assert command.model_card(recognizer, model).description == "Digits, in English."


def test_the_capacity_is_measured():
    """More of the time for the worker, more streams; and more than none on any machine."""
    few, many = (measured_capacity(DECODER, share) for share in (1e-6, 100.0))
    assert few == 1 and many > 1


def test_the_capacity_is_that_for_streams_of_the_page(monkeypatch):
    """What is measured has words to be sure of, whatever the model makes of noise."""
    looks: list[Partial] = []
    result = Stream.result
    num_quick = 0

    def noted(stream: Stream, *, is_sure: bool) -> Partial:
        nonlocal num_quick
        partial = result(stream, is_sure=is_sure)
        assert stream._num_best == 3
        if is_sure:
            looks.append(partial)
        else:
            num_quick += 1
        return partial

    monkeypatch.setattr(Stream, "result", noted)
    measured_capacity(DECODER)
    words = [word for look in looks for word in look.words]
    assert len(words) > len(looks) and all(word.confidence is not None for word in words)
    # As often as a stream of the page is looked at.
    num_between = round(LOOK_SECONDS / block_seconds(DECODER))
    assert len(looks) + num_quick == pytest.approx(num_between * len(looks), rel=0.25)
    page = (STATIC / "settings.js").read_text()
    assert "hasConfidence: true," in page and "numBest: 3," in page
    assert PAGE_SETTINGS.has_confidence and PAGE_SETTINGS.num_best == 3
