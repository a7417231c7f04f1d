"""A Sphinx extension: the API pages, written from `midge.__all__`, one for each layer.

A new public name needs no hand work: it appears on the page of the layer that defines it. A public
name, method or property without a docstring fails the build. The pages are not kept in the
repository.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

import midge
from public_names import (
    definition,
    documenting_class,
    public_names,
    undocumented_names,
    value_docstring,
)

# The theory comes in the paper's order; other layers follow by name.
FIRST_PAGES = ("semirings", "contexts", "alignments", "weights", "lattices")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the extension."""
    app.connect("builder-inited", check_docstrings)
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", escape_markup, priority=400)  # before napoleon's 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def check_docstrings(app: Sphinx) -> None:
    """Names every public name without a docstring; with one, the build ends as a failure."""
    for name in undocumented_names(midge):
        logging.getLogger(__name__).error("the public name midge.%s has no docstring", name)
        app.statuscode = 1


def write_pages(app: Sphinx) -> None:
    """Writes `api/index.rst` and `api/<layer>.rst`; pages of layers that are gone are removed."""
    layers: dict[str, list[str]] = {}
    for name in public_names(midge):
        layers.setdefault(layer_of(name), []).append(name)
    in_order = [layer for layer in FIRST_PAGES if layer in layers]
    in_order += sorted(layers.keys() - set(in_order))
    pages = {layer: layer_page(layer, layers[layer]) for layer in in_order}
    pages["index"] = index_page(in_order)

    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()
    for stem, text in pages.items():
        (folder / f"{stem}.rst").write_text(text, encoding="utf-8")


def layer_of(name: str) -> str:
    """The layer that defines a public name; "midge" for what the package itself defines."""
    module, _ = definition(midge, name)
    return f"{module.__name__}.midge".split(".")[1]


def heading(text: str, line: str = "=") -> str:
    """A title in reStructuredText."""
    return f"{text}\n{line * len(text)}\n\n"


def index_page(layers: list[str]) -> str:
    """The contents of the API pages."""
    entries = "".join(f"   {layer}\n" for layer in layers)
    note = "Every public name, by the layer that defines it. All are imported from ``midge``.\n\n"
    return heading("API") + note + f".. toctree::\n   :maxdepth: 2\n\n{entries}"


def layer_page(layer: str, names: list[str]) -> str:
    """One layer: the docstring of its module, then its public names."""
    module = midge if layer == "midge" else importlib.import_module(f"midge.{layer}")
    about = "\n".join(escaped(inspect.getdoc(module) or ""))
    # Values of one class name it each; it is shown once.
    entries = dict.fromkeys(entry for name in names for entry in name_entries(name))
    return heading(layer) + about + "\n\n" + "\n".join(entries)


def name_entries(name: str) -> list[str]:
    """The directives that document one public name."""
    value = getattr(midge, name)
    if inspect.isclass(value):
        return [f".. autoclass:: midge.{name}\n"]
    if inspect.isroutine(value):
        return [f".. autofunction:: midge.{name}\n"]
    if inspect.ismodule(value):
        return [f".. automodule:: midge.{name}\n"]
    return value_entries(name, value)


def value_entries(name: str, value: Any) -> list[str]:
    """A value: what is said where it is defined, and the class of ours that it is one of."""
    cls = documenting_class(value, "midge")
    about = f"   :type: {cls.__name__}\n" if cls else f"   :value: {value!r}\n"
    text = "".join(f"   {line}\n" for line in escaped(value_docstring(midge, name) or ""))
    entries = [f".. py:data:: midge.{name}\n{about}\n{text}"]
    if cls is not None and cls.__name__ not in midge.__all__:
        entries.append(f".. autoclass:: {cls.__module__}.{cls.__qualname__}\n")
    return entries


def escape_markup(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Lets docstrings say `[*batch, ...]` and `|Q|` in running text."""
    lines[:] = escaped("\n".join(lines))
    if what in ("attribute", "data", "property"):
        # Else napoleon takes what stands before a colon in the first line for a type.
        lines.insert(0, "\\")  # an escaped line break: nothing


def escaped(text: str) -> list[str]:
    """The lines of a docstring, with what is plain to a reader but markup to Sphinx escaped.

    Examples and literal blocks, and whatever stands between backquotes, stay as they are.
    """
    lines = text.splitlines()
    literal_indent: int | None = None
    in_example = False
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if literal_indent is not None and line.strip() and indent <= literal_indent:
            literal_indent = None
        if literal_indent is None and not in_example:
            lines[i] = escape_line(line)
            if line.rstrip().endswith("::"):
                literal_indent = indent
    return lines


def escape_line(line: str) -> str:
    """Escapes bars, and the asterisk of `*batch` but not those of an emphasized word."""
    opening, closed = r"(?<![\w*\\])\*(?=\w)", r"[^*]*[^\s*]\*(?!\w)"
    parts = re.split(r"(`+[^`]*`+)", line)
    parts[::2] = [re.sub(rf"{opening}(?!{closed})|\|", r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)
