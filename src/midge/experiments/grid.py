"""The grid of an experiment: a TOML file that says which rows there are and how each is scored.

    recipe = "recipes/an4/streaming.toml"
    settings = ["data.train=data/an4/{fold}.train.jsonl.gz"]    # of every row

    [axes.normalization]                                        # axes multiply
    local = ["lattice.normalization=hat"]
    global = ["lattice.normalization=global"]

    [axes.fold]
    fold-1 = []
    fold-2 = []

    [evaluations.test]                                          # of every row
    manifest = "data/an4/test.jsonl.gz"

A row is one value of every axis; its name is theirs, joined. `{axis}` stands for the row's value of
that axis, in settings and in evaluations. Speakers whose names fit a pattern of the table
`speakers` are also told apart in what is shown. The setting "recipe=path" takes another recipe, and
"init_from=path" starts from the parameters of a trained model. A row whose name fits a pattern of
`exclude` is not made.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midge.configuration import from_table, read_table
from midge.training import Recipe, read_recipe

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOP = (
    "recipe",
    "description",
    "settings",
    "exclude",
    "pooled",
    "axes",
    "evaluations",
    "contrast",
    "speakers",
)
_RECIPE = "recipe="
_INIT_FROM = "init_from="


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """How a trained row is scored: a call of `midge evaluate`."""

    manifest: str
    """Utterances with texts."""
    options: tuple[str, ...] = ()
    """Further arguments of the command, such as "--streaming"."""
    only: str = "*"
    """Pattern of the names of the rows that are scored so."""
    never: str = ""
    """Pattern of the names of those that are not."""
    has_letters_apart: bool = False
    """Whether words of one letter and other words are counted apart, too."""
    words: tuple[str, ...] = ()
    """If given, also the share of utterances that are right once mapped to the nearest of these."""

    def as_json(self) -> dict[str, Any]:
        """What it does, as it comes back from JSON; which rows it is for does not change that."""
        table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {key: value for key, value in table.items() if key not in ("only", "never")}


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Which question a grid answers: what one axis changes, and where it changes more."""

    inner: str
    """The axis whose two values are compared, the first with the second."""
    outer: str = ""
    """The axis over whose two values that change itself is compared; "" for none."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training of an experiment."""

    name: str
    """The values of the axes, joined."""
    values: Mapping[str, str]
    """The value of each axis."""
    recipe_path: str
    """The recipe it starts from."""
    overrides: tuple[str, ...]
    """What is set in it."""
    evaluations: Mapping[str, EvaluationPlan]
    """How it is scored, by name."""
    init_from: str = ""
    """The model whose parameters it starts from; "" for fresh ones."""

    def recipe(self) -> Recipe:
        """The recipe, overrides included.

        Raises:
            ValueError: if there is something wrong in it; names the row.
            OSError: if it cannot be read.
        """
        try:
            return read_recipe(Path(self.recipe_path), self.overrides)
        except ValueError as error:
            raise ValueError(f"row {self.name}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Grid:
    """An experiment."""

    name: str
    """That of the file."""
    description: str
    """What it is for."""
    axes: Mapping[str, tuple[str, ...]]
    """The values of each axis, in order."""
    rows: tuple[Row, ...]
    """All rows, the last axis fastest."""
    pooled: str = ""
    """The axis over which rows are repetitions of each other, such as folds; "" for none."""
    contrast: Contrast | None = None
    """The question, if there is one."""
    evaluations: tuple[str, ...] = field(default=())
    """Names of the evaluations, in order."""
    speakers: Mapping[str, str] = field(default_factory=dict)
    """Groups of speakers that are told apart: a pattern of their names for each."""

    def matching(self, pattern: str) -> tuple[Row, ...]:
        """The rows whose name fits a pattern such as "streaming-*".

        Raises:
            ValueError: if there is none.
        """
        found = tuple(row for row in self.rows if _fits_any(row.name, [pattern]))
        if not found:
            raise ValueError(
                f"the pattern should fit a row of {self.name}, got {pattern!r}; rows: "
                + ", ".join(row.name for row in self.rows)
            )
        return found


def read_grid(path: Path) -> Grid:
    """Reads an experiment; see the beginning of this module.

    Args:
        path: a TOML file. The recipes it names are read when a row is.

    Raises:
        ValueError: if it is not what it should be; says where.
        OSError: if it cannot be read.
    """
    table = read_table(path)
    try:
        return _grid(path.stem, table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _grid(name: str, table: Mapping[str, Any]) -> Grid:
    if unknown := sorted(table.keys() - set(_TOP)):
        raise ValueError(f"unknown key {unknown[0]!r}; known: {', '.join(_TOP)}")
    recipe = _text(table, "recipe")
    settings = _strings(table.get("settings", []), "settings")
    axes = {
        axis: {value: _strings(x, f"axes.{axis}.{value}") for value, x in _table(values, axis)}
        for axis, values in _table(table.get("axes", {}), "axes")
    }
    plans = {
        plan: from_table(EvaluationPlan, values, f"evaluations.{plan}")
        for plan, values in _table(table.get("evaluations", {}), "evaluations")
    }
    _check_names(axes, plans)
    excluded = _strings(table.get("exclude", []), "exclude")
    contrast = None
    if "contrast" in table:
        contrast = from_table(Contrast, table["contrast"], "contrast")
        _check_contrast(contrast, axes)
    pooled = _text(table, "pooled", "")
    if pooled and pooled not in axes:
        raise ValueError(f"pooled should be one of the axes {list(axes)}, got {pooled!r}")
    rows = [
        _row(dict(zip(axes, values, strict=True)), axes, recipe, settings, plans)
        for values in itertools.product(*axes.values())
    ]
    return Grid(
        name=name,
        description=_text(table, "description", ""),
        axes={axis: tuple(values) for axis, values in axes.items()},
        rows=tuple(row for row in rows if not _fits_any(row.name, excluded)),
        pooled=pooled,
        contrast=contrast,
        evaluations=tuple(plans),
        speakers=_speakers(dict(_table(table.get("speakers", {}), "speakers"))),
    )


def _row(
    values: dict[str, str],
    axes: Mapping[str, Mapping[str, Sequence[str]]],
    recipe: str,
    settings: Sequence[str],
    plans: Mapping[str, EvaluationPlan],
) -> Row:
    chosen = [setting for axis, value in values.items() for setting in axes[axis][value]]
    filled = [_filled(setting, values) for setting in (*settings, *chosen)]
    recipes = [_filled(recipe, values), *_taken(filled, _RECIPE)]
    models = ["", *_taken(filled, _INIT_FROM)]
    name = "-".join(values.values()) or "row"
    evaluations = {
        plan: dataclasses.replace(
            each,
            manifest=_filled(each.manifest, values),
            options=tuple(_filled(option, values) for option in each.options),
        )
        for plan, each in plans.items()
        if _fits_any(name, [each.only]) and not _fits_any(name, [each.never])
    }
    return Row(
        name=name,
        values=values,
        recipe_path=recipes[-1],
        overrides=tuple(each for each in filled if not each.startswith((_RECIPE, _INIT_FROM))),
        evaluations=evaluations,
        init_from=models[-1],
    )


def _taken(settings: Iterable[str], key: str) -> list[str]:
    """The values of the settings of this key, which are no fields of a recipe."""
    return [setting.removeprefix(key) for setting in settings if setting.startswith(key)]


def _fits_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _filled(text: str, values: Mapping[str, str]) -> str:
    """The text with the row's values in the place of {axis}."""
    for axis, value in values.items():
        text = text.replace(f"{{{axis}}}", value)
    if unknown := re.search(r"\{(\w+)\}", text):
        raise ValueError(f"{text!r}: there is no axis {unknown[1]!r}; axes: {', '.join(values)}")
    return text


def _speakers(patterns: Mapping[str, Any]) -> Mapping[str, str]:
    return {group: _text(patterns, group) for group in patterns}


def _check_names(axes: Mapping[str, Mapping[str, Any]], plans: Mapping[str, Any]) -> None:
    for axis, values in axes.items():
        if not values:
            raise ValueError(f"axes.{axis} should have at least one value")
    for name in (*axes, *itertools.chain(*axes.values()), *plans):
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"a name should be letters, digits, '.', '_' and '-', as for a folder, got {name!r}"
            )


def _check_contrast(contrast: Contrast, axes: Mapping[str, Mapping[str, Any]]) -> None:
    for axis in filter(None, (contrast.inner, contrast.outer)):
        if len(axes.get(axis, ())) != 2:
            raise ValueError(f"contrast: {axis!r} should be an axis of two values")


def _table(value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"[{where}] should be a table, got {value!r}")
    return value.items()


def _text(table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key} should be a text, got {value!r}")
    return value


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{where} should be a list of 'part.field=value', got {value!r}")
    return tuple(value)
