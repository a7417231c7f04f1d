"""The decoding report: its figures by hand, its file, and the whole command on a tiny model."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.data import read_manifest
from midge.decoding import Partial
from midge.decoding.calibration import Judged, calibration
from midge.models import TimedWord
from recognizers import tiny_recognizer, write_recordings

FOLDER = Path(__file__).parent.parent / "benchmarks" / "decoding"
MODULES = [path.stem for path in FOLDER.glob("*.py")]


@pytest.fixture(scope="module")
def report():
    """The modules of the report, which import each other by their bare names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.chdir(FOLDER.parent.parent)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


def search_row(report, **changes):
    """An utterance whose best path is wrong, and no beam."""
    count = len(report.searches.CONTESTANTS)
    values = {
        "id": "u",
        "speaker": None,
        "audio_seconds": 2.0,
        "encode_seconds": 0.2,
        "num_words": 4,
        "num_labels": 5,
        "num_expansions": 6,
        "is_proved": True,
        "open_bound": 0.1,
        "seconds": [0.1, 0.4] + [0.2] * (count - 2),
        "num_errors": [1] + [0] * (count - 1),
        "log_probabilities": [math.log(0.25)] + [math.log(0.5)] * (count - 1),
        "is_same": [False] + [True] * (count - 1),
    }
    return report.searches.SearchRow(**values | changes)


def test_contestants_take_turns_and_the_least_time_counts(report, monkeypatch):
    ticks = iter([0.0, 3.0, 10.0, 11.0, 20.0, 25.0, 30.0, 32.0])
    monkeypatch.setattr(report.measuring.time, "perf_counter", lambda: next(ticks))
    calls = []
    contestants = {name: lambda name=name: calls.append(name) or name for name in "ab"}
    found = report.measuring.interleaved(contestants, num_rounds=2)
    assert calls == ["a", "b", "b", "a"]
    assert [(each.result, each.seconds) for each in found.values()] == [("a", 2.0), ("b", 1.0)]


def test_figures_of_the_exact_search(report):
    rows = [search_row(report), search_row(report, id="v", is_proved=False, num_expansions=1000)]
    found = report.summaries.exact_figures(rows)
    assert found.share_proved == 0.5 and found.num_different == 2
    assert found.expansions == pytest.approx((503.0, 900.6, 1000))
    assert found.real_time_factor == pytest.approx((0.2, 0.2))
    assert found.whole_factor == pytest.approx((0.3, 0.3))
    assert found.gain == pytest.approx((0.25, 0.25))
    assert found.rates.first.estimate == 0.25 and found.rates.second.estimate == 0.0
    assert found.rates.difference.estimate == -0.25


def test_figures_of_each_search(report):
    worse = search_row(report)
    place = report.searches.CONTESTANTS.index("beam 4")
    worse.is_same[place] = False
    worse.log_probabilities[place] = math.log(0.125)
    worse.num_errors[place] = 3
    found = {
        each.name: each for each in report.summaries.search_figures([search_row(report), worse])
    }
    assert list(found)[0] == "max-path" and list(found)[-1] == "sum-path"
    assert found["beam 4"].share_same == 0.5 and found["beam 4"].rate == 3 / 8
    assert found["beam 4"].missed == pytest.approx((0.1875, 0.375))
    assert found["sum-path"].missed == (0.0, 0.0)


def test_margins_are_weighed_by_frames(report):
    count = len(report.margins.MARGINS)

    def row(num_frames, kept, same):
        return report.margins.MarginRow(
            id="u",
            num_frames=num_frames,
            num_words=2,
            seconds=[2.0] + [1.0] * (count - 1),
            num_errors=[0] * (count - 1) + [1],
            is_same=[True] * (count - 1) + [same],
            share_kept=[1.0] * (count - 1) + [kept],
            tail_seconds=[0.5] * count,
        )

    *_, found = report.summaries.margin_figures([row(30, 0.2, True), row(10, 0.6, False)])
    assert found.margin == report.margins.MARGINS[-1] and found.num_changed == 1
    assert found.share_kept == pytest.approx(0.3) and found.time_ratio == 0.5
    assert found.rate == 0.5


def test_the_best_of_a_list_never_gets_worse_further_down(report):
    assert report.posteriors.least_errors([3, 2, 4, 4, 1]) == [3, 2, 1, 1, 1, 1]
    assert report.posteriors.least_errors([0]) == [0] * len(report.posteriors.LIST_SIZES)


def test_words_of_a_partial_result_are_judged_by_what_was_said_so_far(report):
    words = tuple(TimedWord(text, 0.0, 1.0, 0.5) for text in ("ONE", "TOO", "THR"))
    partial = Partial(words, num_committed=1, segment=0, seconds=1.0, num_cuts=0)
    found = list(report.live.tentative_words("ONE TWO THREE FOUR".split(), partial))
    assert [(kind, judged.is_right) for kind, judged in found] == [
        ("tentative, not last", False),
        ("tentative, last", False),
        ("the last as a beginning", True),
    ]
    assert {kind for kind, _ in found} < set(report.live.KINDS)


def test_committed_words_are_not_judged_as_tentative(report):
    words = (TimedWord("ONE", 0.0, 1.0, 0.5),)
    for count, num_judged in ((1, 0), (0, 2)):
        partial = Partial(words, num_committed=count, segment=0, seconds=1.0, num_cuts=0)
        assert len(list(report.live.tentative_words(["ONE"], partial))) == num_judged


@settings(deadline=None)
@given(st.lists(st.builds(Judged, st.floats(0.0, 1.0), st.booleans()), max_size=5))
def test_a_calibration_survives_the_file(report, words):
    found = calibration(words)
    again = report.live.calibration_of(
        json.loads(report.results.written(report.live.calibration_json(found)))
    )
    assert again.table() == found.table()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=30)
@given(JSON)
def test_a_file_of_results_is_json(report, value):
    assert json.loads(report.results.written(value)) == value


def test_a_row_is_a_line_and_infinity_is_refused(report):
    rows = [{"id": name, "seconds": [0.123456] * 30} for name in "abcdefgh"]
    lines = report.results.written({"rows": rows}).splitlines()
    assert sum('"id"' in line for line in lines) == len(rows)
    with pytest.raises(ValueError, match="JSON compliant"):
        report.results.written([math.inf])


def test_a_path_shows_nothing_of_the_machine(report):
    assert report.results.shown_path(Path("runs/an4")) == "runs/an4"
    assert report.results.shown_path(FOLDER) == "benchmarks/decoding"
    assert report.results.shown_path(Path("/home/someone/a/b/c")) == ".../a/b/c"


def test_few_utterances_come_from_everywhere(report):
    assert report.document.spread(range(10), 4) == [0, 2, 5, 7]
    assert report.document.spread(range(3), 4) == [0, 1, 2]
    assert report.document.spread(range(3), None) == [0, 1, 2]


def test_an_answer_less_probable_than_the_best_path_is_an_error(report, monkeypatch):
    exact = SimpleNamespace(labels=[1], log_probability=-2.0, rounding=1e-12)
    values = {(1,): -2.0, (2,): -1.0}
    subject = SimpleNamespace(log_posterior=lambda encoded, labels: values[tuple(labels)])
    encoded = SimpleNamespace(utterance=SimpleNamespace(id="u7"))
    answers = {"max-path": [2], "sum-path": [1]}
    with pytest.raises(ArithmeticError, match="u7: the best path's sequence is more probable"):
        report.searches._log_probabilities(subject, encoded, answers, exact)
    values[(1,)] = -3.0
    with pytest.raises(ArithmeticError, match="u7: the exact search gives its answer"):
        report.searches._log_probabilities(subject, encoded, answers, exact)


@pytest.fixture(scope="module")
def measured(report, tmp_path_factory):
    """A tiny model measured by the command; gives the words of the command."""
    folder = tmp_path_factory.mktemp("report")
    tiny_recognizer(context_size=1).save(folder / "model")
    manifest = write_recordings(folder / "data")
    words = [str(folder / "model"), str(manifest), "--name", "tiny", "--rounds", "1"]
    words += ["--limit", "1", "--output", str(folder / "page.md")]
    report.document.main(words)
    return words


def test_the_page_has_every_section_and_picture(report, measured):
    page = Path(measured[-1])
    text = page.read_text()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(headings) == len(report.page.SECTIONS)
    for part in report.document.PARTS:
        assert f"--part {part}" in text
    for name in ("expansions", "beams", "reliability"):
        assert f"images/decoding_{name}.svg" in text
        assert (page.parent / "images" / f"decoding_{name}.svg").read_text().startswith("<?xml")
    assert str(page.parent) not in text and "nan" not in text


def test_an_interrupted_run_goes_on_where_it_stopped(report, measured, monkeypatch, tmp_path):
    found = json.loads(Path(measured[-1]).with_suffix(".json").read_text())
    page = tmp_path / "page.md"
    del found["tiny"]["parts"]["margins"]
    page.with_suffix(".json").write_text(json.dumps(found))

    def fail(subject):
        raise AssertionError("measured again")

    parts = {name: report.document.Part(fail) for name in report.document.PARTS}
    monkeypatch.setattr(
        report.document, "PARTS", parts | {"margins": report.document.PARTS["margins"]}
    )
    report.document.main([*measured[:-1], str(page)])
    store = report.results.Store(page.with_suffix(".json"))
    assert len(store.values("tiny", "margins")) == 1
    assert store.values("tiny", "searches") == found["tiny"]["parts"]["searches"]["values"]
    assert report.page.page(store, "images") == page.read_text()


def test_figures_of_different_models_are_not_mixed(report, measured, tmp_path):
    page = Path(measured[-1])
    tiny_recognizer(seed=1, context_size=1).save(tmp_path / "other")
    with pytest.raises(ValueError, match="'tiny' of another model or other utterances"):
        report.document.main([str(tmp_path / "other"), *measured[1:-1], str(page)])


def test_exact_figures_of_a_tiny_model_agree_with_the_loss(report, measured):
    store = report.results.Store(Path(measured[-1]).with_suffix(".json"))
    rows = report.tables.search_rows(store, "tiny")
    assert len(rows) == 1
    for row in rows:
        assert all(np.isfinite(row.log_probabilities)) and max(row.seconds) > 0
        best = row.figure("log_probabilities", "sum-path")
        assert not row.is_proved or best >= max(row.log_probabilities) - 1e-6
    utterances = read_manifest(Path(measured[1]))
    assert {row.id for row in rows} <= {each.id for each in utterances}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model"], "pairs"),
        (["a", "b", "--name", "x", "--name", "y"], "--name should be given 1 times"),
        (["a", "b", "--rounds", "0"], "--rounds should be at least 1, got 0"),
        (["a", "b", "--part", "nothing"], "invalid choice"),
    ],
)
def test_mistakes_in_the_command(report, words, message, capsys):
    with pytest.raises(SystemExit):
        report.document.main(words)
    assert message in capsys.readouterr().err
