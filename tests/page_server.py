"""`midge serve` in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import soundfile

from midge.decoding.endpointing import EndpointConfig
from midge.decoding.live import decode_offline
from midge.models import load

_PATIENCE = 60.0


class Server:
    """A server on a port that stays the same when it is started again.

    Args:
        model: folder of the model.
        keep: folder for the sound that it hears.
        options: more of the command line. Without --max-streams it would measure for a while.
    """

    def __init__(
        self, model: Path, *, keep: Path, options: tuple[str, ...] = ("--max-streams", "8")
    ) -> None:
        self.model = model
        self.keep = keep
        self.port = _free_port()
        self._options = options

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        command = [sys.executable, "-m", "midge", "serve", str(self.model)]
        command += ["--port", str(self.port), "--keep-audio", str(self.keep), *self._options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._log = (self.keep / "log.jsonl").open("ab")
        self._process = subprocess.Popen(command, stderr=self._log, env=environment)
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it by a signal, unless it has ended, and waits until it is gone."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(_PATIENCE)
        self._log.close()

    def log(self) -> str:
        return (self.keep / "log.jsonl").read_text()

    def heard(self) -> list[Path]:
        """The sound of each stream, the oldest first."""
        return sorted(self.keep.glob("*.wav"), key=lambda path: path.stat().st_mtime_ns)

    def _answers(self) -> bool:
        address = f"http://127.0.0.1:{self.port}/health"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return bool(json.load(answer))
        except OSError:
            return False


def decoded(model: Path, audio: Path, endpointing: EndpointConfig | None = None) -> str:
    """The text of a recording, decoded offline."""
    samples, rate = soundfile.read(audio, dtype="float32")
    return decode_offline(load(model), samples, rate, endpointing=endpointing).text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
