"""Grids: rows are what the file says, and a mistake in it is told with its place."""

import shlex
from pathlib import Path

import pytest

from midge.cli import _parser
from midge.configuration import to_toml
from midge.experiments import read_grid
from midge.training import read_recipe

ROOT = Path(__file__).parent.parent
GRIDS = sorted((ROOT / "experiments").glob("*.toml"))
SQUARE = {
    "recipe": "base.toml",
    "settings": ["data.train={fold}.jsonl"],
    "pooled": "fold",
    "axes": {
        "encoder": {"full": ["encoder.num_layers=1"], "streaming": ["encoder.num_layers=2"]},
        "normalization": {"local": [], "global": ["lattice.normalization=global"]},
        "fold": {"fold-1": [], "fold-2": []},
    },
    "contrast": {"inner": "normalization", "outer": "encoder"},
    "evaluations": {"test": {"manifest": "{fold}.test.jsonl", "options": ["--ids", "{fold}.txt"]}},
}


def grid_of(folder, **changes):
    path = folder / "square.toml"
    path.write_text(to_toml({**SQUARE, **changes}))
    return read_grid(path)


def test_axes_multiply_and_fill_their_values_in(tmp_path):
    grid = grid_of(tmp_path)
    assert grid.name == "square"
    names = [row.name for row in grid.rows]
    assert names[:3] == ["full-local-fold-1", "full-local-fold-2", "full-global-fold-1"]
    assert len(names) == 8
    row = grid.rows[-1]
    assert row.values == {"encoder": "streaming", "normalization": "global", "fold": "fold-2"}
    assert row.overrides == (
        "data.train=fold-2.jsonl",
        "encoder.num_layers=2",
        "lattice.normalization=global",
    )
    assert row.evaluations["test"].manifest == "fold-2.test.jsonl"
    assert row.evaluations["test"].options == ("--ids", "fold-2.txt")


def test_rows_are_chosen_by_pattern(tmp_path):
    grid = grid_of(tmp_path)
    assert [row.name for row in grid.matching("full-*-fold-1")] == [
        "full-local-fold-1",
        "full-global-fold-1",
    ]
    with pytest.raises(ValueError, match="should fit a row of square, got 'none'; rows: full-loc"):
        grid.matching("none")


def test_rows_are_excluded_and_scored_by_pattern(tmp_path):
    plans = {
        "all": {"manifest": "a"},
        "some": {"manifest": "b", "only": "full-*", "never": "*-fold-2"},
    }
    grid = grid_of(tmp_path, exclude=["streaming-*"], evaluations=plans)
    assert {row.name: list(row.evaluations) for row in grid.rows} == {
        "full-local-fold-1": ["all", "some"],
        "full-local-fold-2": ["all"],
        "full-global-fold-1": ["all", "some"],
        "full-global-fold-2": ["all"],
    }


def test_a_value_may_start_from_a_model(tmp_path):
    settings = ["init_from=runs/base", "data.train={fold}.jsonl"]
    axes = SQUARE["axes"] | {
        "encoder": {"full": [], "streaming": ["init_from=runs/{encoder}"]},
    }
    rows = grid_of(tmp_path, settings=settings, axes=axes).rows
    assert {row.init_from for row in rows if row.values["encoder"] == "full"} == {"runs/base"}
    assert {row.init_from for row in rows[-4:]} == {"runs/streaming"}
    assert rows[-1].overrides == ("data.train=fold-2.jsonl", "lattice.normalization=global")


def test_a_value_may_take_another_recipe(tmp_path):
    axes = {"corpus": {"an4": [], "mine": ["recipe=mine.toml", "training.seed=1"]}}
    plans = {"test": {"manifest": "{corpus}.jsonl"}}
    asked = {"inner": "corpus"}
    grid = grid_of(tmp_path, axes=axes, settings=[], pooled="", contrast=asked, evaluations=plans)
    assert [row.recipe_path for row in grid.rows] == ["base.toml", "mine.toml"]
    assert grid.rows[1].overrides == ("training.seed=1",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axis": {}}, "unknown key 'axis'; known: recipe,"),
        ({"recipe": 3}, "recipe should be a text, got 3"),
        ({"settings": "a=1"}, "settings should be a list of 'part.field=value', got 'a=1'"),
        ({"settings": ["data.train={fold}{speaker}"]}, "there is no axis 'speaker'; axes: encoder"),
        ({"pooled": "seed"}, "pooled should be one of the axes"),
        ({"contrast": {"inner": "seed"}}, "contrast: 'seed' should be an axis of two values"),
        ({"contrast": {"middle": "fold"}}, "has no key 'middle'"),
        ({"evaluations": {"test": {}}}, "needs manifest"),
        ({"axes": {"fold": {"-a": []}}}, "a name should be letters, digits"),
        ({"axes": {"encoder": {}}}, "axes.encoder should have at least one value"),
        ({"axes": {"encoder": {"a": [1]}}}, "axes.encoder.a should be a list"),
        ({"axes": 1}, "should be a table, got 1"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        grid_of(tmp_path, **changes)
    assert "square.toml" in str(caught.value)


def test_a_wrong_override_names_its_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text('data = {train = "x"}')
    row = grid_of(tmp_path, settings=["training.sed=1"]).rows[0]
    with pytest.raises(ValueError, match="row full-local-fold-1: .*no key 'sed'"):
        row.recipe()


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_committed_grid_can_be_run(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    grid = read_grid(path)
    assert grid.description and grid.evaluations
    assert len({row.name for row in grid.rows}) == len(grid.rows)
    for row in grid.rows:
        recipe = row.recipe()
        assert recipe != read_recipe(Path(row.recipe_path))
        for plan in row.evaluations.values():
            command = ["evaluate", "model", plan.manifest, "--output", "out", *plan.options]
            parsed = _parser().parse_args(command)
            assert all((ROOT / listed).exists() for listed in parsed.ids)


def commands_of(path):
    text = path.read_text().replace("\\\n#", "")
    return [shlex.split(line[1:])[1:] for line in text.splitlines() if line.startswith("#   midge")]


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_the_commands_of_a_grid_can_be_given(path):
    commands = commands_of(path)
    assert ["experiment", f"experiments/{path.name}"] in [command[:2] for command in commands]
    for command in commands:
        _parser().parse_args(command)
