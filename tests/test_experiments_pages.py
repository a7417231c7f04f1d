"""The page of results shows what was measured, and lists what was not."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from midge.configuration import to_table, to_toml
from midge.encoders import LSTMConfig
from midge.experiments.contrasts import pools
from midge.experiments.grid import read_grid
from midge.experiments.pages import (
    delay_table,
    group_table,
    match_table,
    read_results,
    section,
    summary_table,
    write_pictures,
)
from midge.experiments.pictures import (
    _look,
    calibration_picture,
    error_against_delay,
    learning_curves,
)
from midge.experiments.records import FORMAT_VERSION, is_same_recipe, recipe_hash
from midge.experiments.tables import spread_text
from midge.training import DataConfig, Recipe, TrainingConfig

ROOT = Path(__file__).parent.parent
GRID = {
    "recipe": "base.toml",
    "description": "Digits.",
    "pooled": "seed",
    "axes": {
        "penalty": {"0": ["training.delay_penalty=0.0"], "1": ["training.delay_penalty=1.0"]},
        "normalization": {"local": ["lattice.normalization=hat"], "global": []},
        "seed": {"a": ["training.seed=1"], "b": ["training.seed=2"]},
    },
    "contrast": {"inner": "normalization"},
    "evaluations": {"test": {"manifest": "m.jsonl", "words": ["ONE", "TWO"]}},
}
PLAN = {"manifest": "m.jsonl", "options": [], "has_letters_apart": False, "words": ["ONE", "TWO"]}


def record_of(row, errors):
    """A record as `midge experiment` writes it, with so many errors in ten words."""
    tallies = {"ann": [errors, 10, errors, 10], "ben": [0, 10, 0, 10]}
    delays = ("first_shown", "last_changed", "committed")
    kinds = ("streaming", "tight", "endpointed")
    live = {
        "word_error_rates": {kind: {"estimate": 0.1 * n} for n, kind in enumerate(kinds, 1)},
        "percentiles": {
            delay: {"p50": n / 4, "p90": n / 2, "p99": None, "count": n}
            for n, delay in enumerate(delays, 1)
        },
        "revision_rate": None,
    }
    bins = [{"num_words": 3, "confidence": 0.5, "share_right": 0.4}]
    return {
        "row": row.name,
        "values": dict(row.values),
        "seed": 1,
        "commit": "abc123",
        "recipe_hash": recipe_hash(row.recipe()),
        "resolved_recipe": to_table(row.recipe()),
        "hardware": {"processor": "Z80", "num_threads": 1, "torch": "2.13"},
        "training": {
            "command": f"midge train base.toml --output runs/{row.name}",
            "num_parameters": 2_000_000,
            "num_steps": 20,
            "seconds": 3601.0,
            "losses": [[10, 2.0], [20, 1.0]],
            "dev": {},
        },
        "evaluations": {
            "test": {
                "plan": PLAN,
                "command": "midge evaluate run m.jsonl --output x",
                "tallies": {"all": tallies, "nearest word": {"ann": [0, 1, 0, 10]}},
                "streaming": live,
                "calibration": {"bins": bins},
            }
        },
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a grid and the results of all of its rows but the last."""
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text('data = {train = "x"}')
    write_grid()
    rows = read_grid(Path("digits.toml")).rows
    write_results([record_of(row, errors) for errors, row in enumerate(rows[:-1])])
    return tmp_path


def write_grid(**changes):
    head = "# Digits.\n#\n#   midge experiment digits.toml --output runs/digits\n\n"
    Path("digits.toml").write_text(head + to_toml({**GRID, **changes}) + "#   no command\n")


def write_results(records):
    Path("digits.json").write_text(json.dumps({"format_version": FORMAT_VERSION, "rows": records}))


def results():
    return read_results(Path("digits.toml"), Path("digits.json"))


def test_a_section_shows_what_was_measured(folder):
    text = section(results(), "By hand.", ["![picture](x.svg)"])
    assert text.startswith(
        "## digits\n\nDigits.\n\n```sh\nmidge experiment digits.toml --output runs/digits\n```\n\n"
        "By hand.\n\n| penalty | normalization | runs | test (2 speakers) |"
    )
    assert "| 0 | local | 2 | 2.50 [0.00, 5.00] |" in text  # 0 and 1 errors in 20 words each
    assert "| 0 | local | test | 2.50 ± 3.54 (0.00, 5.00) |" in text
    assert "Paired differences of word error rates, global minus local" in text
    assert "![picture](x.svg)" in text
    assert "| 0-local-a | 2.00 M | 20 | 1:00:01 | 1 | abc123 |" in text
    assert "Z80, 1 thread, torch 2.13" in text
    assert "midge train base.toml --output runs/0-local-a" in text
    assert text.rstrip().endswith("Missing: 1-global-b.")
    assert "7 of 8" in summary_table([results()])


def test_a_row_of_another_recipe_is_not_shown(folder):
    Path("base.toml").write_text('data = {train = "y"}')
    found = results()
    assert found.records == ()
    assert len(found.missing) == 8
    assert len(found.outdated) == 7
    text = section(found, "", [])
    assert "Made by another recipe or from another model, and not shown: 0-local-a" in text
    assert "|" not in text


def test_a_row_that_started_from_another_model_is_not_shown(folder):
    write_grid(settings=["init_from=runs/base/{penalty}"])
    assert len(results().outdated) == 7
    stored = json.loads(Path("digits.json").read_text())["rows"]
    for record in stored:
        record["init_from"] = f"runs/base/{record['values']['penalty']}"
    write_results(stored)
    assert results().outdated == ()


def test_an_evaluation_that_was_made_otherwise_is_not_shown(folder):
    plans = {"test": {**PLAN, "options": ["--decoder", "beam"]}, "again": PLAN}
    write_grid(evaluations=plans)
    assert [dict(record["evaluations"]) for record in results().records] == [{}] * 7
    assert results().outdated == ()


def test_speakers_are_told_apart(folder):
    write_grid(speakers={"heard": "a*", "unheard": "[!a]*", "none": "z*"})
    found = results()
    text = group_table(found.grid, pools(found.grid, found.records))
    assert "| scored on | heard | unheard |" in text
    assert "| 0 | local | test | 5.00 [5.00, 5.00] | 0.00 [0.00, 0.00] |" in text


def test_a_recipe_is_the_same_if_it_asks_for_the_same_training():
    recipe = Recipe(data=DataConfig(train="x"), encoder=LSTMConfig(dropout=0.2))
    stored = to_table(recipe)
    assert is_same_recipe(stored, recipe)
    del stored["encoder"]["is_bidirectional"]  # a field that was added since, with its default
    assert is_same_recipe(stored, recipe)
    del stored["encoder"]["dropout"]  # with another value
    assert not is_same_recipe(stored, recipe)
    stored["encoder"]["dropout"] = 0.2
    assert is_same_recipe(stored, replace(recipe, data=DataConfig(train="x", num_workers=9)))
    assert not is_same_recipe(stored, replace(recipe, data=DataConfig(train="x", max_frames=9)))
    assert not is_same_recipe(stored, replace(recipe, training=TrainingConfig(num_steps=9)))
    assert not is_same_recipe({**stored, "extra": {"gone": 1}}, recipe)
    assert recipe_hash(recipe) != recipe_hash(replace(recipe, encoder=LSTMConfig()))


def test_without_results_all_rows_are_missing(folder):
    Path("digits.json").unlink()
    assert len(results().missing) == 8
    assert "0 of 8" in summary_table([results()])


def test_results_of_another_format_are_refused(folder):
    Path("digits.json").write_text('{"format_version": 0, "rows": []}')
    with pytest.raises(ValueError, match=r"digits\.json should have format version"):
        results()


def test_exact_matches_stand_beside_the_nearest_word(folder):
    found = results()
    text = match_table(found.grid, pools(found.grid, found.records))
    assert "| 0 | local | test | 2 | 97.50 ± 3.54 (100.00, 95.00) | 100.00 ± 0.00" in text
    assert spread_text([0.5]) == "50.00"


def square_results(errors_of):
    """A square of two axes in place of the grid; errors in ten words of each of 20 speakers."""
    write_grid(contrast={"inner": "normalization", "outer": "penalty"})
    records = []
    for row in read_grid(Path("digits.toml")).rows:
        record = record_of(row, 0)
        errors = errors_of[row.values["penalty"], row.values["normalization"]]
        tally = {f"speaker-{n}": [errors + n % 2, 10, 1, 10] for n in range(20)}
        record["evaluations"]["test"]["tallies"] = {"all": tally}
        records.append(record)
    write_results(records)
    return results()


@pytest.mark.parametrize(
    "streaming_global, said",
    [
        (2, "-20.00 [-20.00, -20.00] points; global helps more at 1, as the claim has it."),
        (6, "+20.00 [+20.00, +20.00] points; global helps less at 1, against the claim."),
        (4, "+0.00 [+0.00, +0.00] points; the interval has 0 in it, so no direction is stated."),
    ],
)
def test_the_direction_of_an_interaction_is_stated_if_its_interval_excludes_zero(
    folder, streaming_global, said
):
    cells = {("0", "local"): 2, ("0", "global"): 2, ("1", "local"): 4}
    found = square_results({**cells, ("1", "global"): streaming_global})
    text = section(found, "", [])
    assert f"- test: interaction {said}" in text
    single = said.split()[0]
    assert (
        f"in each seed by itself, in no interval above:\n\n- test: {single}, {single} points."
        in text
    )


def test_a_square_is_drawn(folder):
    pytest.importorskip("matplotlib")
    cells = {("0", "local"): 2, ("0", "global"): 2, ("1", "local"): 4, ("1", "global"): 3}
    links = write_pictures(square_results(cells), Path("drawn"), "")
    assert "![Word error rates of the four cells of digits](results_digits_cells.svg)" in links
    text = Path("drawn/results_digits_cells.svg").read_text("utf-8")
    assert all(f"<!-- {word} -->" in text for word in ("local", "global", "test"))


def test_delays_stand_beside_error_rates(folder):
    text = delay_table(results().records)
    delays = "2 | 0.25 / 0.50 | 0.50 / 1.00 | 0.75 / 1.50"
    assert f"| 0-local-a | test | 10.00 | 20.00 | 30.00 | {delays} | - |" in text
    columns = (
        "streaming WER % | without trailing silence | with endpoints | words timed | first shown"
    )
    assert columns in text
    assert delay_table([]) == ""


def test_pictures_show_what_was_measured(folder):
    found = results()
    curves = learning_curves(found.grid, found.records[:2]).axes[0].lines
    assert [line.get_xydata().tolist() for line in curves] == [[[10, 2.0], [20, 1.0]]] * 3
    (axes,) = error_against_delay(found.grid, found.records[::4]).axes
    # The median until the last change, and the rate of streams, at both penalties.
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[0.5, 10.0], [0.5, 10.0]]]
    assert [text.get_text() for text in axes.texts] == ["0", "1"]
    perfect, *bins = calibration_picture(found.records[:1]).axes[0].lines
    assert [line.get_xydata().tolist() for line in bins] == [[[0.5, 0.4]]]
    looks = {tuple(_look(number).values()) for number in range(24)}
    assert len(looks) == 24


def test_pictures_are_the_same_every_time(folder):
    pytest.importorskip("matplotlib")
    links = write_pictures(results(), Path("one"), "figures/")
    assert links[0] == "![Learning curves of digits](figures/results_digits_curves.svg)"
    assert [re.search(r"_(\w+)\.svg", link)[1] for link in links] == [
        "digits_curves",
        "digits_delay",
        "digits_calibration",
    ]
    write_pictures(results(), Path("two"), "figures/")
    for path in Path("one").iterdir():
        assert path.read_bytes() == (Path("two") / path.name).read_bytes()
    Path("digits.json").unlink()
    assert write_pictures(results(), Path("three"), "") == []


def test_the_committed_page_is_what_the_committed_results_give(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(ROOT)
    found = importlib.util.spec_from_file_location("document", ROOT / "experiments/document.py")
    document = importlib.util.module_from_spec(found)
    found.loader.exec_module(document)
    assert document.page(document.read_all(), tmp_path) == document.PAGE.read_text("utf-8")
    assert sorted(document.ORDER) == sorted(p.stem for p in (ROOT / "experiments").glob("*.toml"))
    stored = {path.stem for path in (ROOT / "experiments/results").glob("*.json")}
    assert stored <= set(document.ORDER)
