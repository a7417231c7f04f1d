"""Configuration: TOML tables that fill frozen dataclasses, and nothing else.

A dataclass beside the class it configures is the truth: its fields, types and defaults. A table of
a recipe fills one; a key that it does not have, or a value of another type, is an error that says
where and what is known. A field that may be one of several dataclasses is chosen by the key `kind`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

_Config = TypeVar("_Config")


def read_table(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ValueError: if it is no TOML; it names the file and the line.
        OSError: if it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error


def with_overrides(table: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A table with some values set.

    Args:
        table: nested tables; it is not changed.
        assignments: each "part.field=value", the value written as in TOML; a word that is no TOML
            value is a string.

    Example:
        >>> with_overrides({"training": {"seed": 1}}, ["training.seed=2", "data.train=my/cuts"])
        {'training': {'seed': 2}, 'data': {'train': 'my/cuts'}}
    """
    changed = _copied(table)
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys):
            raise ValueError(f"an assignment should be part.field=value, got {assignment!r}")
        inner = changed
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{assignment!r}: {key} is a value, it has no fields")
        inner[keys[-1]] = _value(value.strip())
    return changed


def from_table(kind: type[_Config], table: Mapping[str, Any], where: str = "") -> _Config:
    """Fills a dataclass from a table.

    Args:
        kind: a frozen dataclass; its fields may be dataclasses, or a union of dataclasses that
            each have a field `kind` of one literal value.
        table: the values; what is missing has the dataclass's default.
        where: the dotted name of the table, for messages.

    Raises:
        ValueError: for an unknown key, a value of the wrong type, or one that the dataclass
            itself refuses; the message says where.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Mask:
        ...     size: int = 27
        >>> from_table(Mask, {"size": 10})
        Mask(size=10)
        >>> from_table(Mask, {"sise": 10}, "augmentation")
        Traceback (most recent call last):
        ValueError: [augmentation] has no key 'sise'; did you mean 'size'? Known: size
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{_place(where)} should be a table, got {table!r}")
    types_of = typing.get_type_hints(kind)
    fields = [field for field in dataclasses.fields(cast(Any, kind)) if field.init]
    known = [field.name for field in fields]
    for key in table:
        if key not in known:
            raise ValueError(f"{_place(where)} has no key {key!r}{_hint(key, known)}")
    values = {
        name: _converted(types_of[name], table[name], f"{where}.{name}" if where else name)
        for name in known
        if name in table
    }
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in required if name not in values]:
        raise ValueError(f"{_place(where)} needs {', '.join(missing)}")
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_place(where)}: {error}") from error


def to_table(config: Any) -> dict[str, Any]:
    """The table that fills such a dataclass; values of None are left out, as TOML has none.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Mask:
        ...     size: int = 27
        ...     path: str | None = None
        >>> to_table(Mask())
        {'size': 27}
    """
    table: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            table[field.name] = to_table(value)
        elif value is not None:
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def to_toml(table: Mapping[str, Any]) -> str:
    """A table as TOML text, scalars first and one section for each inner table."""
    return "\n".join(_toml_lines(table, ())) + "\n"


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{key} = {_toml_value(x)}" for key, x in table.items() if not isinstance(x, Mapping)]
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            here = (*path, key)
            lines += ([""] if lines else []) + [f"[{'.'.join(here)}]", *_toml_lines(inner, here)]
    return lines


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)  # inf and nan are spelled so in TOML too
    return json.dumps(value, ensure_ascii=False)  # strings, integers, true and false


def _converted(kind: Any, value: Any, where: str) -> Any:
    options = _options(kind)
    tables = [option for option in options if dataclasses.is_dataclass(option)]
    if tables:
        return _from_choice(tables, value, where)
    for option in options:
        fits, converted = _scalar(option, value)
        if fits:
            return converted
    names = " or ".join(_type_name(option) for option in options if option is not type(None))
    raise ValueError(f"{where} should be {names}, got {value!r}")


def _options(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _from_choice(tables: Sequence[Any], value: Any, where: str) -> Any:
    if any(isinstance(value, option) for option in tables):
        return value
    if len(tables) == 1:
        return from_table(tables[0], value, where)
    if not isinstance(value, Mapping):
        raise ValueError(f"{_place(where)} should be a table, got {value!r}")
    by_kind = {typing.get_args(typing.get_type_hints(t)["kind"])[0]: t for t in tables}
    chosen = value.get("kind", next(iter(by_kind)))
    if chosen not in by_kind:
        raise ValueError(f"{where}.kind should be one of {list(by_kind)}, got {chosen!r}")
    return from_table(by_kind[chosen], value, where)


def _scalar(kind: Any, value: Any) -> tuple[bool, Any]:
    """Whether a value is of a type, and it."""
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return value in typing.get_args(kind), value
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            return False, value
        items = [_scalar(inner, item) for item in value]
        return all(fits for fits, _ in items), tuple(item for _, item in items)
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number, float(value) if is_number else value
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    return isinstance(value, kind), value


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {list(typing.get_args(kind))}"
    if typing.get_origin(kind) is tuple:
        return f"a list of {_type_name(typing.get_args(kind)[0])}"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return names.get(kind, str(kind))


def _hint(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return (f"; did you mean {close[0]!r}?" if close else ";") + f" Known: {', '.join(known)}"


def _place(where: str) -> str:
    return f"[{where}]" if where else "the configuration"


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _copied(table: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(x) if isinstance(x, Mapping) else x for k, x in table.items()}
