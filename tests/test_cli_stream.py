import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import soundfile

from commands import help_examples
from midge.cli import main
from midge.cli import stream as command
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.events import Partial
from midge.decoding.live import decode_offline
from midge.decoding.streams import StreamingDecoder
from midge.models import TimedWord, load
from recognizers import RATE, noise, tiny_recognizer, write_nan

SHORT = ["--pause", "0.12", "--silence", "0.4", "--max-segment", "1"]
RULES = EndpointConfig(pause=0.12, silence=0.4, max_segment=1.0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model and a recording."""
    monkeypatch.chdir(tmp_path)
    tiny_recognizer().save(tmp_path / "model")
    soundfile.write("speech.wav", noise(2.0, seed=2), RATE)
    return tmp_path


def heard(**options):
    samples, rate = soundfile.read("speech.wav", dtype="float32")
    return decode_offline(load("model"), samples, rate, **options)


def test_a_file_becomes_lines(here, capsys):
    assert main(["stream", "model", "speech.wav", "--fast", *SHORT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1 and " ".join(lines) == heard(endpointing=RULES).text
    assert "\x1b" not in "".join(lines), "dimmed, but not on a terminal"
    assert main(["stream", "model", "speech.wav", "--fast", "--no-endpoints"]) == 0
    assert capsys.readouterr().out == heard().text + "\n"


def test_events(here, capsys):
    assert main(["stream", "model", "speech.wav", "--fast", "--json", *SHORT]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [event["event"] for event in events]
    assert set(kinds) <= {"partial", "final", "end_of_speech", "end"}
    assert kinds[-2:] == ["final", "end"] and kinds.count("end") == 1 and "partial" in kinds
    whole = heard(endpointing=RULES)
    assert events[-1] == {"event": "end", "seconds": 2.0, "text": whole.text}
    words = [word for event in events if event["event"] == "final" for word in event["words"]]
    assert [word["text"] for word in words] == [word.text for word in whole.words]
    assert [word["end"] for word in words] == [word.end for word in whole.words]
    finals = [event for event in events if "reason" in event]
    assert [event["segment"] for event in finals] == list(range(len(finals)))
    assert finals[-1]["reason"] == "end" and finals[0]["reason"] != "end"


def test_events_have_confidences_and_alternatives_on_request(here, capsys):
    options = ["--fast", "--json", "--confidence", "--num-best", "2", *SHORT]
    assert main(["stream", "model", "speech.wav", *options]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    finals = [event for event in events if event["event"] == "final" and event["text"]]
    assert finals and all(0 < word["confidence"] < 1 for each in finals for word in each["words"])
    assert all(1 <= len(each["alternatives"]) <= 2 for each in finals)
    assert events[-1]["text"] == heard(endpointing=RULES).text


def test_phrases_are_expected(here, capsys):
    Path("phrases.txt").write_text("two one\n\n")
    options = ["--fast", "--phrases", "phrases.txt", "--phrase-bonus", "30"]
    assert main(["stream", "model", "speech.wav", *options, "--json", *SHORT]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(event["committed"] == [] for event in events if event["event"] == "partial")
    assert "TWO ONE" in events[-1]["text"] and "TWO ONE" not in heard(endpointing=RULES).text
    Path("phrases.txt").write_text("xy\n")
    assert main(["stream", "model", "speech.wav", *options]) == 2
    assert "'X'" in capsys.readouterr().err


def test_a_margin_that_drops_everything_else(here, capsys):
    options = ["--fast", "--no-endpoints", "--margin"]
    assert main(["stream", "model", "speech.wav", *options, "0.5"]) == 0
    decoder = StreamingDecoder(load("model"), margin=0.5)
    samples, rate = soundfile.read("speech.wav", dtype="float32")
    expected = decode_offline(decoder, samples, rate).text
    assert capsys.readouterr().out == expected + "\n" != heard().text + "\n"
    assert main(["stream", "model", "speech.wav", *options, "-1"]) == 2
    assert "margin should be at least 0 nats" in capsys.readouterr().err


def test_chunks_do_not_matter(here, capsys):
    found = set()
    for chunk in ("0.01", "0.1", "5"):
        options = ["--fast", "--chunk-seconds", chunk, *SHORT]
        assert main(["stream", "model", "speech.wav", *options]) == 0
        found.add(capsys.readouterr().out)
    assert len(found) == 1


def test_a_penalty_gives_more_words(here, capsys):
    numbers = []
    for penalty in ("-30", "0"):
        options = ["--fast", "--no-endpoints", "--blank-penalty", penalty]
        assert main(["stream", "model", "speech.wav", *options]) == 0
        numbers.append(len(capsys.readouterr().out))
    assert numbers[0] < numbers[1]


def test_a_file_is_heard_at_its_own_speed(here, capsys):
    soundfile.write("short.wav", noise(0.6, seed=2), RATE)
    started = time.monotonic()
    assert main(["stream", "model", "short.wav"]) == 0
    assert time.monotonic() - started > 0.6


def test_on_a_terminal_the_tail_is_dim(here):
    """In a process of its own, on a pseudo-terminal, as a user sees it."""
    leader, follower = pty.openpty()
    code = "from midge.cli import main; raise SystemExit(main())"
    arguments = ["stream", "model", "speech.wav", "--fast", "--no-endpoints"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=follower,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "40"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait() == 0
    text = shown.decode().replace("\r\n", "\n")
    drawn = text.split("\r\x1b[K")
    assert len(drawn) > 3 and any("\x1b[2m" in each for each in drawn)
    assert drawn[-1] == heard().text + "\n"
    for each in drawn[:-1]:
        assert len(each.replace("\x1b[2m", "").replace("\x1b[0m", "")) < 40


@pytest.mark.parametrize(
    "width, shown",
    [(40, "ONE TWO {THREE FOUR}"), (13, "WO {THREE FOUR}"), (4, "{FOUR}")],
)
def test_of_a_long_line_the_end_is_shown(width, shown):
    words = tuple(TimedWord(text, 0.0, 1.0) for text in "ONE TWO THREE FOUR".split())
    partial = Partial(words, num_committed=2, segment=0, seconds=1.0, num_cuts=0)
    dimmed = command._dimmed(partial, width)
    assert dimmed.replace("\x1b[2m", "{").replace("\x1b[0m", "}") == shown
    nothing = Partial((), num_committed=0, segment=0, seconds=1.0, num_cuts=0)
    assert command._dimmed(nothing, width) == ""


class Microphone:
    """Stands in for sounddevice.InputStream: there is no sound card where tests run."""

    def __init__(self, *, samplerate, channels, dtype, blocksize):
        assert (channels, dtype) == (1, "float32")
        self._samples = noise(1.0, seed=4)
        self._place = 0
        assert samplerate == RATE and blocksize == 800

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def read(self, size):
        piece = self._samples[self._place : self._place + size]
        self._place += size
        if self._place >= len(self._samples):
            signal.raise_signal(signal.SIGINT)  # the user has heard enough
        return piece[:, None], self._place == 2 * size


def test_the_microphone_until_interrupted(here, capsys, monkeypatch):
    module = types.SimpleNamespace(InputStream=Microphone, PortAudioError=RuntimeError)
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    assert main(["stream", "model", "microphone", "--no-endpoints"]) == 0
    captured = capsys.readouterr()
    expected = decode_offline(load("model"), noise(1.0, seed=4), RATE)
    assert captured.out == expected.text + "\n" and expected.text
    assert "listening" in captured.err and captured.err.count("sound was lost") == 1


def test_a_microphone_that_cannot_be_heard_is_told(here, capsys, monkeypatch):
    def broken(**options):
        raise RuntimeError("no device")

    module = types.SimpleNamespace(InputStream=broken, PortAudioError=RuntimeError)
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    assert main(["stream", "model"]) == 2
    assert "microphone cannot be heard: no device" in capsys.readouterr().err


def test_without_the_package_the_user_is_told_how_to_get_it(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)  # as if it were not installed
    assert main(["stream", "model"]) == 2
    captured = capsys.readouterr()
    assert "pip install sounddevice" in captured.err and captured.out == ""


def test_the_examples_of_the_help_work(here, capsys):
    shutil.copytree("model", "demo/speech/global/model")
    soundfile.write("speech.flac", np.zeros(RATE // 4), RATE)
    Path("names.txt").write_text("two one\n")
    for arguments in help_examples("stream", capsys):
        assert main(arguments) == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["stream", "nowhere", "speech.wav"], "neither the folder of a model nor an audio file"),
        (["stream", "model", "speech.wav", "speech.wav"], "one recording can be streamed"),
        (["stream", "model", "speech.wav", "--num-best", "-1"], "num_best should be at least 0"),
        (["stream", "model", "speech.wav", "--no-endpoints", "--pause", "1"], "--pause is for"),
        (["stream", "model", "nowhere.wav"], "nowhere.wav"),
        (["stream", "model", "broken.wav"], "broken.wav"),
        (["stream", "model", "nan.wav", "--fast"], "nan.wav has samples that are not finite"),
        (["stream", "full", "speech.wav"], "streaming encoder"),
        (["stream", "model", "--fast"], "--fast is for a file"),
        (["stream", "model", "speech.wav", "--pause", "0"], "pause should be more than 0"),
        (["stream", "model", "speech.wav", "--block-size", "0"], "block_size should be"),
        (["stream", "model", "speech.wav", "--chunk-seconds", "0"], "--chunk-seconds should be"),
        (["stream", "model", "speech.wav", "--blank-penalty", "nan"], "blank_penalty should be"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, message, here, capsys):
    (here / "broken.wav").write_bytes(b"RIFF")
    write_nan(here / "nan.wav")
    tiny_recognizer(is_streaming=False).save(here / "full")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert "error: " in captured.err and "Traceback" not in captured.err
