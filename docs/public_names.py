"""The public names of midge: which they are, where they are defined, which lack a docstring.

Knows nothing of Sphinx: `api_pages` makes pages of it and fails the build,
`tests/test_documentation.py` makes the same check in the tests.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

MEMBER_KINDS = (FunctionType, property, classmethod, staticmethod, functools.cached_property)


def undocumented_names(module: ModuleType) -> list[str]:
    """Public names of a module, and public members of their classes, that have no docstring.

    The names are those of `module.__all__`. A class needs a docstring of its own; a method or a
    property may inherit it from the interface it implements; a plain value has a string literal
    after its definition; an instance of a class of ours is documented by that class. Members that
    come from outside the package (torch) do not count.
    """
    missing = []
    for name in public_names(module):
        value = getattr(module, name)
        if not is_documented(module, name):
            missing.append(name)
        if cls := documenting_class(value, module.__name__):
            members = public_members(cls, module.__name__)
            missing += [f"{name}.{member}" for member in members if not has_docstring(cls, member)]
    return missing


def public_names(module: ModuleType) -> list[str]:
    """What `module.__all__` names, without metadata such as `__version__`."""
    return [name for name in module.__all__ if not name.startswith("__")]


def is_documented(module: ModuleType, name: str) -> bool:
    """Whether a public name has a docstring that somebody wrote."""
    value = getattr(module, name)
    if cls := documenting_class(value, module.__name__):
        text = cls.__doc__ or ""
        # A dataclass or a named tuple without a docstring is given its signature as one.
        return bool(text.strip()) and not text.startswith(f"{cls.__name__}(")
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        return bool(inspect.getdoc(value))
    return bool(value_docstring(module, name))


def documenting_class(value: Any, package: str) -> type | None:
    """The class of the package that describes a value: the value itself, or what it is one of."""
    if inspect.isroutine(value) or inspect.ismodule(value):
        return None
    cls = value if inspect.isclass(value) else type(value)
    return cls if in_package(cls.__module__, package) else None


def public_members(cls: type, package: str) -> Iterator[str]:
    """Public methods and properties that a class has from this package."""
    for name in dir(cls):
        if name.startswith("_"):
            continue
        owner = next((base for base in cls.__mro__ if name in vars(base)), None)
        if owner is None or not in_package(owner.__module__, package):
            continue
        if isinstance(vars(owner)[name], MEMBER_KINDS):
            yield name


def has_docstring(cls: type, member: str) -> bool:
    """Whether a member of a class has a docstring, its own or that of the method it overrides."""
    bases = (vars(base).get(member) for base in cls.__mro__)
    return any(inspect.getdoc(value) for value in bases if isinstance(value, MEMBER_KINDS))


def in_package(module: str, package: str) -> bool:
    """Whether a module is a package or lies in it."""
    return module == package or module.startswith(f"{package}.")


def value_docstring(module: ModuleType, name: str) -> str | None:
    """The string literal after the definition of a value, wherever it was imported from."""
    module, name = definition(module, name)
    body = syntax_tree(module).body
    for node, after in zip(body, body[1:], strict=False):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        is_it = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if is_it and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return inspect.cleandoc(str(after.value.value))
    return None


def definition(module: ModuleType, name: str) -> tuple[ModuleType, str]:
    """The module whose source defines a name, and the name there: follows the imports."""
    for node in ast.walk(syntax_tree(module)):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                package = module.__name__ if hasattr(module, "__path__") else module.__package__
                source = "." * node.level + (node.module or "")
                return definition(importlib.import_module(source, package), alias.name)
    return module, name


@functools.cache
def syntax_tree(module: ModuleType) -> ast.Module:
    """The parsed source of a module."""
    return ast.parse(inspect.getsource(module))
