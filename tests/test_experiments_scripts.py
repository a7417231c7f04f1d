"""The scripts of experiments: splits are the same every time, and word times are compared."""

import importlib.util
import sys
from pathlib import Path

import pytest

from corpora import tones
from midge.configuration import to_toml
from midge.data import Utterance, read_manifest, write_manifest
from midge.decoding import reports
from midge.decoding.evaluation import Evaluation, UtteranceResult
from midge.experiments import read_grid
from midge.experiments.pages import emission_table
from midge.experiments.records import stored_records
from midge.models import TimedWord

FOLDER = Path(__file__).parent.parent / "experiments"


def script(name):
    found = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_models_here_are_those_that_were_scored():
    models = script("score_models")
    stored = stored_records(models.RESULTS)
    assert set(stored) == set(models.MODELS)
    for name, record in stored.items():
        assert record["weights"] == models.weights_hash(models.ROOT / models.MODELS[name]), name
        plans = {each: plan.as_json() for each, plan in models.PLANS.items()}
        assert {each: x["plan"] for each, x in record["evaluations"].items()} == plans


def test_the_card_of_the_default_model_says_what_was_measured():
    document = script("document")
    measured = stored_records(document.MODELS)["default"]
    text = document.CARD.read_text("utf-8")
    assert document.card(text, measured) == text
    rates = document.card_tables(measured)["rates"]
    an4 = measured["evaluations"]["an4"]["groups"]["all"]
    assert f"| {an4['num_words']} | {100 * an4['words']['estimate']:.2f} % [" in rates
    with pytest.raises(ValueError, match="one place for delays, it has 0"):
        document.card(text.replace("<!-- delays -->", ""), measured)


def recording(number, num_samples=4000):
    return Utterance(
        id=f"fsdd_1_ann_{number}", audio="a.flac", duration=num_samples / 8000, text="ONE"
    )


def test_the_test_set_is_drawn_from_all_recordings_whatever_their_order():
    fsdd = script("fsdd_split")
    recordings = [recording(number) for number in range(3000)]
    train, test = fsdd.split(recordings)
    assert (len(train), len(test)) == (2000, 1000)
    assert {each.id for each in train + test} == {each.id for each in recordings}
    again = fsdd.split(recordings[::-1])
    assert again == (train, test)
    assert len({each.id for each in test[:100]} & {f"fsdd_1_ann_{n}" for n in range(100)}) < 100


@pytest.mark.parametrize(
    ("num_samples", "num_windows"), [(511, 0), (512, 1), (671, 1), (672, 2), (5311, 30), (5312, 31)]
)
def test_whole_windows_are_counted(num_samples, num_windows):
    assert script("fsdd_split").num_windows(recording(0, num_samples)) == num_windows


def test_the_alphabet_adds_a_text_and_no_recording():
    fsdd = script("fsdd_split")
    train = [recording(0), recording(1)]
    *same, added = fsdd.with_alphabet(train)
    assert same == train
    assert len(set(added.text)) == 26
    assert added.audio == train[0].audio


def test_test_texts_are_told_apart_by_whether_training_has_them(tmp_path, monkeypatch, capsys):
    train = tones(tmp_path / "train", [0.2, 0.2], ["ONE", "TWO"])
    test = tones(tmp_path / "test", [0.2, 0.2, 0.2], ["TWO", "ONE TWO", "ONE"])
    write_manifest(tmp_path / "train.jsonl.gz", train)
    write_manifest(tmp_path / "test.jsonl.gz", test)
    assert len(list(read_manifest(tmp_path / "test.jsonl.gz"))) == 3
    monkeypatch.setattr(sys, "argv", ["an4_lists.py", str(tmp_path), str(tmp_path / "lists")])
    script("an4_lists").main()
    assert "an4_heard_texts: 2 utterances" in capsys.readouterr().out
    assert (tmp_path / "lists/an4_heard_texts.txt").read_text() == "u0\nu2\n"
    assert (tmp_path / "lists/an4_new_texts.txt").read_text() == "u1\n"


def evaluated(folder, reference, words):
    """An evaluation of one utterance, with (word, end) as its hypothesis."""
    timed = tuple(TimedWord(text, end - 0.1, end) for text, end in words)
    result = UtteranceResult(
        id="a",
        reference=reference,
        hypothesis=" ".join(text for text, _ in words),
        seconds=2.0,
        words=timed,
    )
    reports.save(Evaluation(results=(result,), decode_seconds=1.0, seed=0), folder)


def test_the_times_of_words_that_both_rows_have_right_are_compared(tmp_path):
    emissions = script("emissions")
    recipe = tmp_path / "base.toml"
    recipe.write_text('data = {train = "x"}')
    grid_path = tmp_path / "digits.toml"
    axes = {"fold": {"1": [], "2": []}, "kind": {"local": [], "global": []}}
    grid_path.write_text(to_toml({"recipe": str(recipe), "pooled": "fold", "axes": axes}))
    said = "ONE TWO THREE FOUR"
    heard = {
        "1-local": [("ONE", 0.5), ("TOO", 0.9), ("THREE", 1.2), ("FOUR", 1.5)],
        "1-global": [("ONE", 0.6), ("TWO", 0.9), ("AND", 1.0), ("THREE", 1.5)],
        "2-local": [("ONE", 0.5)],  # of the second fold there is no other row
    }
    for row, words in heard.items():
        evaluated(tmp_path / row / "evaluations" / "test", said, words)
    found = emissions.summary(read_grid(grid_path), tmp_path, "test")
    row = {"num_words": 2, "mean": 0.2, "p10": 0.12, "p50": 0.2, "p90": 0.28}
    assert found == {"evaluation": "test", "first": "local", "rows": {"global": row}}
    text = emission_table("digits", found)
    assert "later than by local words are written on test" in text
    assert "| global | 2 | +0.20 | +0.12 | +0.20 | +0.28 |" in text
