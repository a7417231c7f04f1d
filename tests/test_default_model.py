"""The model that comes with midge: small, described, streaming, and of some use."""

import re

import numpy as np
import pytest

from midge.cli import main
from midge.data.spoken import Voice, speak
from midge.data.spoken.corpus import TEST_VARIANTS
from midge.decoding.errors import count_errors
from midge.demos import ready_model
from midge.models import default_model_path, load
from midge.models.recognizer import MODEL_FILES

MAX_BYTES = 8_000_000


@pytest.fixture(scope="module")
def recognizer():
    return load(default_model_path())


def test_it_is_small_and_comes_with_a_card():
    folder = default_model_path()
    assert {path.name for path in folder.iterdir()} == {*MODEL_FILES, "README.md"}
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES
    card = (folder / "README.md").read_text("utf-8")
    for said in ("AN4", "AudioMNIST", "FSDD", "held out", "synthetic", "Delay", "Limits"):
        assert said in card
    assert re.search(r"\d+\.\d+ %", card)


def test_it_streams_and_is_globally_normalized(recognizer):
    assert recognizer.can_run_live
    assert recognizer.lattice.normalization == "global"
    assert recognizer.encoder.look_ahead == 0


def test_it_understands_voices_that_it_never_heard(recognizer):
    """More than half of the words of strings of digits, by each of five voices (synthetic)."""
    text = "FOUR NINE TWO SEVEN ONE THREE".split()
    for variant in TEST_VARIANTS[:5]:
        speech = speak(text, Voice(variant=variant, rate=150))
        samples = 0.3 * speech.samples / np.abs(speech.samples).max()
        heard = recognizer.transcribe(samples, speech.sample_rate).text.split()
        errors = count_errors(text, heard)
        assert errors.num_errors < len(text) / 2, (variant, heard)


@pytest.mark.parametrize("level", [0.0, 1e-4, 1e-3, 1e-2])
def test_where_nobody_speaks_nothing_is_heard(recognizer, level):
    noise = np.random.default_rng(0).standard_normal(5 * 16000).astype(np.float32)
    assert recognizer.transcribe(level * noise, 16000).text == ""


def test_the_demonstration_ends_with_it(tmp_path, capsys):
    heard = ready_model.listen(tmp_path)
    assert heard.recording.is_file() and heard.said == ready_model.TEXT
    assert main(["transcribe", str(heard.recording), "--no-endpoints"]) == 0
    assert capsys.readouterr().out.strip() == heard.heard
    told = ready_model.told(heard)
    assert heard.heard in told and "synthetic" in told
