import json
import shutil

import pytest
import soundfile

from commands import help_examples
from midge.cli import main, transcribe
from midge.decoding import FORMATS, formats
from midge.encoders import ConformerConfig
from midge.models import load
from recognizers import RATE, noise, tiny_recognizer, write_nan, write_recordings


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model and recordings u1.wav to u4.wav."""
    monkeypatch.chdir(tmp_path)
    tiny_recognizer().save(tmp_path / "model")
    write_recordings(tmp_path)
    return tmp_path


def heard(name):
    samples, rate = soundfile.read(f"{name}.wav", dtype="float32")
    return load("model").transcribe(samples, rate)


def test_one_file_gives_its_text_alone(here, capsys):
    assert main(["transcribe", "model", "u1.wav"]) == 0
    captured = capsys.readouterr()
    assert captured.out == heard("u1").text + "\n"
    assert "transcribing: " in captured.err


def test_several_files_give_their_names_too(here, capsys):
    assert main(["transcribe", "model", "u2.wav", "u1.wav", "u2.wav"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{name}.wav\t{heard(name).text}" for name in ("u2", "u1")]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_file_for_each_recording(here, name, capsys):
    options = ["--format", name, "--output", "new/out"]
    assert main(["transcribe", "model", "u1.wav", "u2.wav", *options]) == 0
    suffix = FORMATS[name].suffix
    for recording in ("u1", "u2"):
        written = (here / "new" / "out" / f"{recording}{suffix}").read_text()
        expected = FORMATS[name].write(heard(recording), recording)
        if name == "json":  # the score differs in its last digits by the batch
            written, expected = ({**json.loads(x), "score": 0} for x in (written, expected))
        assert written == expected
    assert len(list((here / "new" / "out").iterdir())) == 2
    assert capsys.readouterr().out == ""


def test_formats_of_lines_are_joined(here, capsys):
    assert main(["transcribe", "model", "u1.wav", "u2.wav", "--format", "trn"]) == 0
    found = formats.read_trn(capsys.readouterr().out)
    assert found == {name: heard(name).text for name in ("u1", "u2")}
    assert main(["transcribe", "model", "u1.wav", "u2.wav", "--format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["recording"] for line in lines] == ["u1", "u2"]


def test_a_long_recording_is_cut(here, capsys):
    """By a model that hears all of it at once."""
    tiny_recognizer(is_streaming=False).save(here / "full")
    soundfile.write("long.wav", noise(12.0, seed=9), RATE)
    options = ["--max-seconds", "3", "--format", "json"]
    assert main(["transcribe", "full", "long.wav", *options]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["seconds"] == pytest.approx(12.0) and found["words"][-1]["start"] > 9.0
    assert "12/12 s of audio" in captured.err


SHORT = ["--pause", "0.12", "--silence", "0.4", "--max-segment", "1"]
"""Rules that fire often on noise."""


@pytest.mark.parametrize(
    "options", [[], SHORT, ["--no-endpoints"], ["--blank-penalty", "2", *SHORT]], ids=" ".join
)
def test_it_writes_what_a_stream_ends_with(here, options, capsys):
    soundfile.write("long.wav", noise(3.0, seed=9), RATE)
    assert main(["transcribe", "model", "long.wav", *options]) == 0
    text = capsys.readouterr().out
    assert main(["stream", "model", "long.wav", "--fast", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert text == " ".join(lines) + "\n" and (len(lines) > 1) == ("--pause" in options)
    if options == ["--no-endpoints"]:
        assert text == heard("long").text + "\n"


@pytest.mark.parametrize(
    "search",
    [["--decoder", "sum-path", "--num-best", "2"], ["--decoder", "beam"], ["--label-bonus", "0.5"]],
    ids=" ".join,
)
def test_every_search_is_cut_where_the_best_path_is(here, search, capsys):
    soundfile.write("long.wav", noise(3.0, seed=9), RATE)
    assert main(["stream", "model", "long.wav", "--fast", "--json", *SHORT]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ends = [event["end"] for event in events if "end" in event]
    assert main(["transcribe", "model", "long.wav", "--format", "json", *search, *SHORT]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [segment["end"] for segment in found["segments"]] == pytest.approx(ends)
    assert len(ends) > 1 and found["seconds"] == pytest.approx(3.0)
    options = ["--no-endpoints", "--max-seconds", "1", "--format", "json"]
    assert main(["transcribe", "model", "long.wav", *search, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 3 <= len(found["segments"]) and found["segments"][-1]["end"] == pytest.approx(3.0)


@pytest.mark.parametrize("left_context", [None, 4])
@pytest.mark.parametrize("options", [[], ["--no-endpoints"]], ids=["cut", "whole"])
def test_memory_that_grows_is_told_once(here, capsys, monkeypatch, left_context, options):
    sizes = {"num_layers": 1, "size": 8, "num_heads": 2, "kernel_size": 3}
    encoder = ConformerConfig(**sizes, left_context=left_context)
    tiny_recognizer(encoder=encoder).save(here / "conformer")
    monkeypatch.setattr(transcribe, "_LONG_SECONDS", 0.6)  # u1.wav takes 0.5 s
    assert main(["transcribe", "conformer", "u1.wav", "u2.wav", "u3.wav", *options]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "grows" in line]
    if left_context is None and options:
        (line,) = told
        assert line.startswith("midge: warning: u2.wav is longer than")
    else:
        assert told == []


def test_confidences_of_a_stream(here, capsys):
    assert main(["transcribe", "model", "u4.wav", "--confidence", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == heard("u4").text
    assert found["words"] and all(0 < word["confidence"] < 1 for word in found["words"])


@pytest.mark.parametrize("is_streaming", [True, False])
def test_an_unreadable_file_is_named_and_the_others_go_on(here, capsys, is_streaming):
    tiny_recognizer(is_streaming=is_streaming).save(here / "any")
    (here / "broken.wav").write_bytes(b"RIFF")
    write_nan(here / "nan.wav")
    broken = ["broken.wav", "nowhere.wav", "nan.wav"]
    assert main(["transcribe", "any", "u1.wav", *broken, "u2.wav"]) == 1
    captured = capsys.readouterr()
    assert [line.split("\t")[0] for line in captured.out.splitlines()] == ["u1.wav", "u2.wav"]
    assert all(f"midge: {name}: " in captured.err for name in broken)
    assert "nan.wav has samples that are not finite numbers" in captured.err
    assert "Traceback" not in captured.err


def test_the_examples_of_the_help_work(here, capsys):
    shutil.copytree("model", "demo/speech/global/model")
    soundfile.write("speech.flac", noise(1.0, seed=2), RATE)
    for arguments in help_examples("transcribe", capsys):
        assert main(arguments) == 0
    assert len(list((here / "captions").glob("*.srt"))) == 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["transcribe", "model"], "AUDIO"),
        (["transcribe", "nowhere", "u1.wav"], "nowhere is neither the folder of a model nor"),
        (["transcribe", "sub", "u1.wav"], "sub is no model of midge"),
        (["transcribe", "model", "u1.wav", "--pause", "0"], "pause should be more than 0"),
        (["transcribe", "model", "u1.wav", "--no-endpoints", "--silence", "3"], "--silence is for"),
        (["transcribe", "full", "u1.wav", "--pause", "1"], "--pause is for streams"),
        (["transcribe", "model", "u1.wav", "--blank-penalty", "nan"], "blank_penalty should be"),
        (["transcribe", "model", "nowhere.wav"], "no file could be read"),
        (["transcribe", "model", "u1.wav", "--format", "doc"], "invalid choice"),
        (["transcribe", "model", "u1.wav", "u2.wav", "--format", "srt"], "give --output"),
        (["transcribe", "model", "u1.wav", "--max-seconds", "0"], "--max-seconds should be"),
        (["transcribe", "model", "u1.wav", "--output", "u2.wav"], "u2.wav: File exists"),
        (
            ["transcribe", "model", "u1.wav", "sub/u1.wav", "--output", "out"],
            "u1.wav and sub/u1.wav would both be written to out/u1.txt",
        ),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, message, here, capsys):
    (here / "sub").mkdir()
    shutil.copy("u1.wav", "sub/u1.wav")
    tiny_recognizer(is_streaming=False).save(here / "full")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert "error: " in captured.err and "Traceback" not in captured.err
