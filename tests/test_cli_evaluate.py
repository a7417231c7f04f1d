import json
import shutil

import pytest

import midge
from commands import help_examples
from midge.cli import main
from midge.data import read_manifest
from midge.decoding import BeamConfig, DecoderConfig, OfflineDecoder, reports
from recognizers import tiny_recognizer, write_nan, write_recordings


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model and a manifest."""
    monkeypatch.chdir(tmp_path)
    tiny_recognizer().save(tmp_path / "model")
    write_recordings(tmp_path / "data")
    return tmp_path


EVALUATE = ["evaluate", "model", "data/manifest.jsonl", "--output", "results"]


def test_an_evaluation_prints_a_table_and_writes_files(here, capsys):
    assert main([*EVALUATE, "--group", "kind"]) == 0
    captured = capsys.readouterr()
    shown = [line.split()[0] for line in captured.out.splitlines() if line.strip()]
    assert shown[2:5] == ["all", "kind=long", "kind=short"]
    assert "Real-time factor" in captured.out and "2 speakers" in captured.out
    assert "decoding: 4/4 utterances" in captured.err
    assert sorted(path.name for path in (here / "results").iterdir()) == [
        "alignments.txt",
        "hypotheses.jsonl",
        "hypotheses.trn",
        "references.trn",
        "results.json",
    ]


def test_json_is_what_the_file_holds(here, capsys):
    assert main([*EVALUATE, "--json", "--seed", "3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((here / "results" / "results.json").read_text())
    assert printed["description"]["model"] == "model" and printed["bootstrap_seed"] == 3


def test_another_decoder_is_evaluated_and_named(here, capsys):
    options = ["--decoder", "beam", "--beam-size", "4", "--blank-penalty", "1", "--json"]
    assert main([*EVALUATE, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    decoder = found["description"]["decoder"]
    assert (decoder["search"], decoder["beam"]["beam_size"]) == ("beam", 4)
    assert decoder["blank_penalty"] == 1.0 and decoder["lm"] is None
    assert found["calibration"] is None
    recognizer = midge.load("model")
    config = DecoderConfig(search="beam", beam=BeamConfig(beam_size=4), blank_penalty=1.0)
    audio = [each.load() for each in read_manifest(here / "data" / "manifest.jsonl")]
    expected = [each.text for each in OfflineDecoder(recognizer, config).decode(audio)]
    results = reports.load(here / "results").results
    assert [each.hypothesis for each in results] == expected


def test_confidences_are_calibrated(here, capsys):
    assert main([*EVALUATE, "--confidence"]) == 0
    assert "Confidences of words:" in capsys.readouterr().out
    found = json.loads((here / "results" / "results.json").read_text())["calibration"]
    results = reports.load(here / "results").results
    assert found["num_words"] == sum(len(each.words) for each in results) > 0
    assert 0 <= found["ece"] <= 1 and sum(each["num_words"] for each in found["bins"]) > 0
    assert "<svg" in (here / "results" / "reliability.svg").read_text()


def test_streams_are_evaluated_beside_the_whole(here, capsys):
    options = ["--streaming", "--pause", "0.2", "--blank-penalty", "1"]
    assert main([*EVALUATE, *options]) == 0
    captured = capsys.readouterr().out
    assert "streaming, endpoints (pause 0.2 s)" in captured
    assert "Texts that differ between streaming and offline: 0 of 4" in captured
    found = json.loads((here / "results" / "streaming.json").read_text())
    assert found["endpointing"]["pause"] == 0.2 and found["num_different"] == 0


def test_ids_of_files_are_groups(here, capsys):
    (here / "easy.txt").write_text("u1\nu3\n\n")
    (here / "hard.txt").write_text("u2 \r\n")
    assert main([*EVALUATE, "--ids", "easy.txt", "hard.txt"]) == 0
    groups = {rates.name: rates.num_utterances for rates in reports.load(here / "results").rates}
    assert groups == {"all": 4, "easy": 2, "hard": 1}


def test_two_models_are_compared(here, capsys):
    """With what one model hears as the truth, it makes no errors and the other some."""
    assert main(EVALUATE) == 0
    heard = {each.id: each.hypothesis for each in reports.load(here / "results").results}
    manifest = here / "data" / "manifest.jsonl"
    entries = [json.loads(line) for line in manifest.read_text().splitlines()]
    lines = [json.dumps({**entry, "text": heard[entry["id"]]}) for entry in entries]
    manifest.write_text("\n".join(lines))
    tiny_recognizer(seed=1).save(here / "other")
    assert main(EVALUATE) == 0
    assert main(["evaluate", "other", *EVALUATE[2:4], "others", "--compare", "results"]) == 0
    assert "Compared with results, on the same utterances:" in capsys.readouterr().out
    compared = json.loads((here / "others" / "results.json").read_text())["comparisons"]["all"]
    assert compared["first"] == 0.0 < compared["second"]
    assert compared["difference"]["estimate"] == compared["second"]
    assert compared["relative"]["estimate"] is None  # per nothing
    assert compared["share_better"] == 0.0


def test_what_cannot_be_read_is_named_and_makes_the_exit_code_1(here, capsys):
    (here / "data" / "u2.wav").write_bytes(b"RIFF")
    write_nan(here / "data" / "u3.wav")
    assert main([*EVALUATE, "--streaming"]) == 1
    shown = capsys.readouterr().out
    assert "u2: " in shown and "u3.wav has samples that are not finite numbers" in shown
    failed = json.loads((here / "results" / "results.json").read_text())["failed"]
    assert list(failed) == ["u2", "u3"]


def test_characters_that_the_model_cannot_write_are_named(here, capsys):
    manifest = here / "data" / "manifest.jsonl"
    entries = [json.loads(line) for line in manifest.read_text().splitlines()]
    entries += [{**entries[0], "id": f"x{n}", "text": "one \u00e9\u00f1"} for n in range(12)]
    manifest.write_text("\n".join(map(json.dumps, entries)))
    assert main(EVALUATE) == 0
    shown = capsys.readouterr().out
    assert "12 have characters that the model cannot write; scored nevertheless:" in shown
    assert "  x9: '\u00c9\u00d1'" in shown and "x10" not in shown and "and 2 more" in shown
    found = json.loads((here / "results" / "results.json").read_text())
    assert found["uncovered"] == {f"x{n}": "\u00c9\u00d1" for n in range(12)}
    assert found["groups"]["all"]["num_utterances"] == 16
    assert reports.load(here / "results").results[4].uncovered == "\u00c9\u00d1"


@pytest.mark.parametrize(
    "num_synthetic, speech", [(4, "synthetic speech"), (1, "partly synthetic speech"), (0, None)]
)
def test_synthetic_speech_is_called_so(here, capsys, num_synthetic, speech):
    manifest = here / "data" / "manifest.jsonl"
    entries = [json.loads(line) for line in manifest.read_text().splitlines()]
    for number, entry in enumerate(entries):
        entry["synthetic"] = "espeak-ng" if number < num_synthetic else False
    manifest.write_text("\n".join(map(json.dumps, entries)))
    assert main(EVALUATE) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split("  ")[0] == (speech or "") and ("synthetic" in first) == bool(speech)
    assert json.loads((here / "results" / "results.json").read_text())["speech"] == speech


def test_the_examples_of_the_help_work(here, capsys):
    for name in ("local", "global"):
        shutil.copytree("model", f"demo/speech/{name}/model")
    shutil.copy("data/manifest.jsonl", "data/test.jsonl.gz")  # not gzipped, which is read
    (here / "hard.txt").write_text("u1\n")
    for arguments in help_examples("evaluate", capsys):
        assert main(arguments) == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["evaluate"], "MODEL"),
        (["evaluate", "model", "data/manifest.jsonl"], "--output"),
        (["evaluate", "nowhere", *EVALUATE[2:]], "nowhere"),
        (["evaluate", "model", "nowhere.jsonl", *EVALUATE[3:]], "nowhere.jsonl"),
        (["evaluate", "model", "empty.txt", *EVALUATE[3:]], "empty.txt should hold utterances"),
        ([*EVALUATE, "--group", "sex"], "'sex'; fields: kind"),
        ([*EVALUATE, "--ids", "nowhere.txt"], "nowhere.txt"),
        ([*EVALUATE, "--ids", "empty.txt"], "empty.txt should list ids"),
        ([*EVALUATE, "--ids", "others.txt"], "ids are not in the manifest, such as x"),
        ([*EVALUATE, "--ids", "others.txt", "sub/others.txt"], "two files of ids"),
        ([*EVALUATE, "--compare", "data"], "results.json"),
        ([*EVALUATE, "--compare", "another"], "such as a"),
        ([*EVALUATE, "--seed", "-1"], "--seed should be at least 0"),
        ([*EVALUATE, "--streaming", "--decoder", "beam"], "--streaming is for the best path"),
        ([*EVALUATE, "--pause", "1"], "--pause is for --streaming"),
        ([*EVALUATE, "--num-best", "3"], "num_best should be 1 for max-path"),
        ([*EVALUATE[:-1], "occupied"], "occupied: File exists"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, message, here, capsys):
    (here / "occupied").touch()
    (here / "empty.txt").write_text("\n")
    (here / "sub").mkdir()
    for folder in ("", "sub"):
        (here / folder / "others.txt").write_text("x\n")
    found = reports.UtteranceResult(id="a", reference="A", hypothesis="A", seconds=1.0)
    reports.save(reports.Evaluation(results=(found,), decode_seconds=1.0), here / "another")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert "error: " in captured.err and "Traceback" not in captured.err
    assert not (here / "results" / "results.json").exists()
