"""Every public name, and every public method and property of it, has a docstring."""

import importlib
import sys

import pytest

import api_pages  # docs/api_pages.py
import midge
import public_names  # docs/public_names.py, which also fails the build of the documentation


def test_public_names_are_documented():
    assert public_names.undocumented_names(midge) == []


def test_public_names_exist_once():
    assert len(midge.__all__) == len(set(midge.__all__))
    assert [name for name in midge.__all__ if not hasattr(midge, name)] == []


SOURCE = '''
"""A package with one name of each kind."""
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

class Interface(torch.nn.Module):
    """Written."""
    def method(self):
        """Written."""
    def bare_method(self): ...
    @property
    def bare_property(self): ...
    @cached_property
    def bare_cached(self): ...
    @classmethod
    def bare_build(cls): ...
    def _private(self): ...

class Implementation(Interface):
    """Written."""
    def method(self): ...
    def bare_method(self):
        """Written here, though not in the interface."""

class Bare(Interface): ...

@dataclass
class BareData:
    size: int

class BareTuple(NamedTuple):
    size: int

def function():
    """Written."""

def bare_function(): ...

__version__ = "1"
VALUE = 1
"""Written."""
BARE_VALUE = 1
INSTANCE = Implementation()
BARE_INSTANCE = Bare()
'''

ALL = ["__version__", "Interface", "Implementation", "Bare", "BareData", "BareTuple"]
ALL += ["function", "bare_function", "VALUE", "BARE_VALUE", "INSTANCE", "BARE_INSTANCE"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that imports the names of SOURCE from a module of its own, as midge does."""
    folder = tmp_path / "documented"
    folder.mkdir()
    (folder / "names.py").write_text(SOURCE)
    imports = ", ".join(ALL)
    (folder / "__init__.py").write_text(f"from .names import {imports}\n__all__ = {ALL}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("documented")
    for name in [name for name in sys.modules if name.split(".")[0] == "documented"]:
        del sys.modules[name]


def test_what_is_not_documented_is_found(package):
    found = public_names.undocumented_names(package)
    classes = ("Interface", "Implementation", "Bare", "INSTANCE", "BARE_INSTANCE")
    inherited = ("bare_property", "bare_cached", "bare_build")
    assert sorted(found) == sorted(
        [f"{name}.{member}" for name in classes for member in inherited]
        + ["Interface.bare_method", "Bare.bare_method", "BARE_INSTANCE.bare_method"]
        + ["Bare", "BareData", "BareTuple", "bare_function", "BARE_VALUE", "BARE_INSTANCE"]
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[*batch, 2, *states] *any* |Q|", r"[\*batch, 2, \*states] *any* \|Q\|"),
        ("*batch leads; *two words* follow", r"\*batch leads; *two words* follow"),
        ("`[*batch] |Q|` and 2*x", "`[*batch] |Q|` and 2*x"),
        (">>> a | b\n*c", ">>> a | b\n*c"),
        ("arcs::\n\n    a | b\n\n|Q|", "arcs::\n\n    a | b\n\n\\|Q\\|"),
    ],
)
def test_docstrings_may_write_shapes_and_sizes_plainly(text, expected):
    assert "\n".join(api_pages.escaped(text)) == expected
