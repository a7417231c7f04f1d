"""Clients of the Vosk server, as they are, against `midge serve` in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
import websockets

from midge.cli import main
from page_server import Server
from recognizers import tiny_recognizer
from servers import PAUSING, with_pauses

pytestmark = pytest.mark.peers

RATE = 16000
"""Hertz. What the client of the package asks ffmpeg for."""

TRANSCRIBER = """
import sys
from vosk.transcriber import cli, transcriber

# `vosk-transcriber --server` always goes to port 2700, and loads (or fetches) a model of Vosk that
# it then does not use. All the rest is as it is: arguments, ffmpeg, protocol, writing.
transcriber.Model = lambda **options: None
(server,) = [action for action in cli.parser._actions if action.dest == "server"]
server.const = sys.argv.pop(1)
cli.main()
"""


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "speech.wav"
    soundfile.write(path, with_pauses(RATE), RATE)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = tmp_path_factory.mktemp("vosk") / "model"
    tiny_recognizer(PAUSING).save(model)
    with Server(model, keep=tmp_path_factory.mktemp("kept")) as running:
        yield running


def transcribed(server: Server, speech: Path, capsys) -> str:
    capsys.readouterr()
    assert main(["transcribe", str(server.model), str(speech)]) == 0
    return capsys.readouterr().out.strip()


def path_with_ffmpeg(folder: Path) -> str:
    """A search path on which the client finds the ffmpeg of the package imageio-ffmpeg."""
    import imageio_ffmpeg

    (folder / "ffmpeg").symlink_to(imageio_ffmpeg.get_ffmpeg_exe())
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_the_client_of_the_package_vosk(server, speech, tmp_path, capsys, kind):
    samples, rate = soundfile.read(speech, dtype="int16")
    audio, output = tmp_path / f"speech.{kind}", tmp_path / "speech.txt"
    soundfile.write(audio, samples, rate)
    address = f"ws://127.0.0.1:{server.port}"
    arguments = [address, "--server", "--input", str(audio), "--output", str(output)]
    environment = {**os.environ, "PATH": path_with_ffmpeg(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", TRANSCRIBER, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    lines = output.read_text(encoding="utf-8").splitlines()
    assert " ".join(lines) == transcribed(server, speech, capsys) != ""


def test_a_plain_script_of_the_package_websockets(server, speech, capsys):
    """The example of the Vosk server: `test.py` of its repository, but for the microphone."""

    async def run() -> list[dict]:
        answers = []
        async with websockets.connect(f"ws://127.0.0.1:{server.port}") as websocket:
            samples, rate = soundfile.read(speech, dtype="int16")
            await websocket.send(f'{{ "config" : {{ "sample_rate" : {rate} }} }}')
            data = samples.tobytes()
            size = 2 * int(0.2 * rate)
            for first in range(0, len(data), size):
                await websocket.send(data[first : first + size])
                answers.append(json.loads(await websocket.recv()))
            await websocket.send('{"eof" : 1}')
            answers.append(json.loads(await websocket.recv()))
        return answers

    answers = asyncio.run(run())
    assert all(("partial" in answer) != ("text" in answer) for answer in answers)
    text = " ".join(answer["text"] for answer in answers if answer.get("text"))
    assert text == transcribed(server, speech, capsys) != ""
    words = [word for answer in answers for word in answer.get("result", ())]
    assert [word["word"] for word in words] == text.split()
    assert all(set(word) == {"conf", "end", "start", "word"} for word in words)
