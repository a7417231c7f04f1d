"""Whole recordings by every search, with alternatives, confidences and hints."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import soundfile
import torch

from midge.audio import Audio
from midge.cli import main
from midge.data import read_manifest
from midge.decoding import sum_path
from midge.decoding.beam import BeamConfig
from midge.decoding.calibration import calibration, judged_words
from midge.decoding.decoded import DecodedTranscript
from midge.decoding.evaluation import evaluate
from midge.decoding.files import transcribe_files
from midge.decoding.formats import json_object
from midge.decoding.language_models import label_words, read_arpa
from midge.decoding.offline import DecoderConfig, OfflineDecoder
from recognizers import RATE, noise, tiny_recognizer, write_recordings

AUDIO = Audio(noise(0.4, seed=3), RATE)


def searched(recognizer, **options):
    """The answer of an exact search over the same frames."""
    features = recognizer.front_end.features(AUDIO.samples, RATE)[None]
    count = torch.tensor(features.shape[1])
    with torch.no_grad():
        frames = recognizer.encode(features, count[None])[0]
    return sum_path(recognizer.lattice, frames, count, **options)


def write_arpa(path, recognizer, favourite):
    """A unigram model that likes one label."""
    words = label_words(recognizer.tokens)
    lines = ["\\data\\", f"ngram 1={len(words) + 2}", "", "\\1-grams:", "-99 <s>", "-1 </s>"]
    lines += [f"{-0.1 if word == favourite else -3.0} {word}" for word in words]
    path.write_text("\n".join([*lines, "", "\\end\\", ""]))
    return path


def test_max_path_is_what_the_recognizer_says():
    recognizer = tiny_recognizer()
    (found,) = OfflineDecoder(recognizer).decode([AUDIO])
    plain = recognizer.transcribe(AUDIO.samples, RATE)
    assert (found.text, found.words, found.labels, found.frames) == (
        plain.text,
        plain.words,
        plain.labels,
        plain.frames,
    )
    assert found.score == pytest.approx(plain.score, abs=1e-3)
    assert OfflineDecoder(recognizer).decode([]) == []


def test_sum_path_lists_alternatives_with_their_probabilities():
    recognizer = tiny_recognizer()
    config = DecoderConfig(search="sum-path", num_best=4, has_confidence=True)
    (found,) = OfflineDecoder(recognizer, config).decode([AUDIO])
    exact = searched(recognizer, num_best=4)
    (segment,) = found.segments
    assert found.labels == exact.sequences[0].labels
    assert [each.log_probability for each in segment.alternatives] == pytest.approx(
        [each.log_probability for each in exact.sequences], abs=1e-9
    )
    assert [each.text for each in segment.alternatives] == [
        recognizer.tokens.decode(each.labels) for each in exact.sequences
    ]
    assert len(segment.confidences) == len(found.words)
    for word, sure in zip(found.words, segment.confidences, strict=True):
        assert word.confidence == sure.value and 0.0 <= sure.low <= sure.value <= sure.high <= 1.0
    assert list(found.frames) == sorted(found.frames)
    assert segment.end == pytest.approx(0.4) and segment.is_proved is not None


MODELS = {"hat": "full", "rnn-t": "full", "las": "full", "ctc": 0, "gnat": 1}
"""Named models with blank, and their context sizes."""


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_a_beam(model):
    recognizer = tiny_recognizer(model=model, context_size=MODELS[model])
    config = DecoderConfig(
        search="beam", num_best=2, has_confidence=True, beam=BeamConfig(beam_size=4)
    )
    (found,) = OfflineDecoder(recognizer, config).decode([AUDIO])
    assert math.isfinite(found.score) and found.segments[0].is_proved is None
    assert len(found.segments[0].alternatives) == 2
    assert all(0.0 <= word.confidence <= 1.0 for word in found.words)
    if recognizer.is_exact:
        exact = searched(recognizer)
        assert found.segments[0].alternatives[0].log_probability <= exact.log_probability + 1e-3


def test_confidences_of_the_best_path_and_of_least_risk():
    recognizer = tiny_recognizer()
    plain = recognizer.transcribe(AUDIO.samples, RATE)
    (found,) = OfflineDecoder(recognizer, DecoderConfig(has_confidence=True)).decode([AUDIO])
    assert found.text == plain.text
    assert all(word.confidence is not None for word in found.words)
    config = DecoderConfig(search="sum-path", has_least_risk=True)
    (risk,) = OfflineDecoder(recognizer, config).decode([AUDIO])
    assert isinstance(risk.text, str) and math.isfinite(risk.score)


def test_a_language_model_inside_the_lattice_and_in_the_beam(tmp_path):
    recognizer = tiny_recognizer()
    model = read_arpa(
        write_arpa(tmp_path / "n.arpa", recognizer, "N"), label_words(recognizer.tokens)
    )
    config = {"lm_weight": 3.0, "label_bonus": 5.0, "num_best": 1}
    texts = {
        search: OfflineDecoder(
            recognizer,
            DecoderConfig(search=search, beam=BeamConfig(beam_size=64), **config),
            model,
        ).decode([AUDIO])[0]
        for search in ("max-path", "sum-path", "beam")
    }
    plain = OfflineDecoder(recognizer).decode([AUDIO])[0].text
    assert texts["sum-path"].labels == texts["beam"].labels
    for found in texts.values():
        assert found.text.count("N") > plain.count("N")


@pytest.mark.parametrize("model", MODELS)
def test_phrases_and_penalties_change_what_is_heard(model):
    recognizer = tiny_recognizer(model=model, context_size=MODELS[model])
    config = DecoderConfig(search="beam", phrase_bonus=30.0, beam=BeamConfig(beam_size=32))
    (found,) = OfflineDecoder(recognizer, config, phrases=["two one"]).decode([AUDIO])
    assert "TWO ONE" in found.text
    for search in ("max-path", "beam"):
        lengths = []
        for penalty in (-40.0, 0.0, 40.0):
            config = DecoderConfig(search=search, blank_penalty=penalty)
            (found,) = OfflineDecoder(recognizer, config).decode([AUDIO])
            lengths.append(len(found.labels))
        assert lengths == sorted(lengths) and lengths[0] < lengths[2], search


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_best": 0}, "num_best should be at least 1"),
        ({"num_best": 2}, "num_best should be 1 for max-path"),
        ({"has_least_risk": True}, "has_least_risk"),
        ({"internal_lm_weight": 0.1}, "internal_lm_weight"),
        ({"max_expansions": 0}, "max_expansions should be"),
        ({"max_seconds": -1.0}, "max_seconds should be"),
        ({"margin": -1.0}, "margin should be"),
        ({"max_tail_seconds": 0.0}, "max_tail_seconds should be"),
        ({"num_samples": -1}, "num_samples should be"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**options)


def test_what_needs_a_beam_says_so():
    with pytest.raises(ValueError, match="beam"):
        OfflineDecoder(tiny_recognizer(), phrases=["one"])
    with pytest.raises(ValueError, match="beam"):
        OfflineDecoder(
            tiny_recognizer(model="hat", context_size="full"), DecoderConfig(search="sum-path")
        )
    with pytest.raises(ValueError, match="'X'"):
        OfflineDecoder(tiny_recognizer(), DecoderConfig(search="beam"), phrases=["xy"])


def test_files_are_cut_and_joined(tmp_path):
    long, broken = tmp_path / "long.wav", tmp_path / "broken.wav"
    soundfile.write(long, noise(3.0, seed=4), RATE)
    broken.write_bytes(b"RIFF")
    decoder = OfflineDecoder(tiny_recognizer(), DecoderConfig(search="beam", num_best=2))
    done: list[float] = []
    found = dict(transcribe_files(decoder, [long, broken], max_seconds=1.2, progress=done.append))
    assert isinstance(found[broken], ValueError)
    whole = found[long]
    assert isinstance(whole, DecodedTranscript) and sum(done) == pytest.approx(3.0)
    assert len(whole.segments) > 2 and whole.segments[-1].end == pytest.approx(3.0)
    for before, after in zip(whole.segments, whole.segments[1:], strict=False):
        assert before.end == pytest.approx(after.start)
    spoken = " ".join(each.alternatives[0].text for each in whole.segments)
    assert spoken.split() == whole.text.split()
    written = json_object(whole, "long")
    assert [len(each["alternatives"]) for each in written["segments"]] == [2] * len(whole.segments)


def test_an_evaluation_can_be_calibrated(tmp_path):
    recognizer = tiny_recognizer()
    decoder = OfflineDecoder(recognizer, DecoderConfig(search="sum-path", has_confidence=True))
    utterances = read_manifest(write_recordings(tmp_path))[:2]
    found = evaluate(recognizer, utterances, decode=lambda _, audio: decoder.decode(audio))
    report = calibration(judged_words(found))
    assert report.num_words == sum(len(result.words) for result in found.results)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recognizer = tiny_recognizer()
    recognizer.save(tmp_path / "model")
    soundfile.write("u.wav", AUDIO.samples, RATE)
    write_arpa(Path("n.arpa"), recognizer, "N")
    Path("phrases.txt").write_text("two one\n\none\n")
    return tmp_path


def told(capsys, *options):
    assert main(["transcribe", "model", "u.wav", "--format", "json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_has_all_of_it(here, capsys):
    found = told(capsys, "--decoder", "sum-path", "--num-best", "3", "--confidence")
    assert len(found["segments"][0]["alternatives"]) == 3
    assert all(0 <= word["confidence"] <= 1 for word in found["words"])
    assert len(found["segments"][0]["confidence_intervals"]) == len(found["words"])
    hints = ["--lm", "n.arpa", "--lm-weight", "2", "--label-bonus", "4"]
    beam = told(capsys, "--decoder", "beam", "--beam-size", "8", *hints)
    assert beam["segments"][0]["is_proved"] is None
    exact = told(capsys, "--decoder", "sum-path", *hints)
    assert beam["text"].count("N") > found["text"].count("N") < exact["text"].count("N")
    phrases = told(capsys, "--decoder", "beam", "--phrases", "phrases.txt", "--phrase-bonus", "30")
    assert "ONE" in phrases["text"]
    shy = told(capsys, "--blank-penalty", "-20")
    assert len(shy["text"]) < len(found["text"])
    assert "segments" not in told(capsys)


def test_budgets_are_options(here, capsys):
    exact = ["--decoder", "sum-path", "--num-best", "20"]
    proved = told(capsys, *exact, "--max-expansions", "100000")
    assert proved["segments"][0]["is_proved"]
    for budget in (["--max-expansions", "1"], ["--search-seconds", "0"]):
        found = told(capsys, *exact, *budget)
        assert not found["segments"][0]["is_proved"]
    window = told(capsys, "--decoder", "beam", "--beam-window", "3")
    assert window["text"] and window["segments"][0]["alternatives"]
    config = DecoderConfig(search="beam", beam=BeamConfig(window=3))
    (expected,) = OfflineDecoder(tiny_recognizer(), config).decode([AUDIO])
    assert window["text"] == expected.text


def test_intervals_say_what_they_are(here, capsys):
    """Certain by exact sums, at 95 % by the samples of a stream, none for scores of a fusion."""
    for options, level in ((["--decoder", "sum-path"], 1.0), ([], 0.95)):
        found = told(capsys, "--confidence", *options)
        (segment,) = found["segments"]
        assert segment["confidence_level"] == level
        for word, (low, high) in zip(found["words"], segment["confidence_intervals"], strict=True):
            assert 0.0 <= low <= word["confidence"] <= high <= 1.0 and low < high
    hints = ["--decoder", "beam", "--phrases", "phrases.txt"]
    found = told(capsys, "--confidence", *hints)
    (segment,) = found["segments"]
    assert segment["confidence_level"] is None and found["words"]
    assert segment["confidence_intervals"] == [None] * len(found["words"])
    assert all(0.0 <= word["confidence"] <= 1.0 for word in found["words"])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--num-best", "2"], "num_best should be 1 for max-path"),
        (["--phrases", "phrases.txt"], "phrases need a beam"),
        (["--lm", "nowhere.arpa"], "nowhere.arpa"),
        (["--lm", "phrases.txt"], "phrases.txt"),
        (["--decoder", "beam", "--beam-size", "0"], "beam_size should be"),
    ],
)
def test_mistakes_are_told(here, options, message, capsys):
    assert main(["transcribe", "model", "u.wav", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err and "Traceback" not in captured.err
