"""The layers of midge import one way: each may use the layers before it, never one after it.

A layer is a module or a package directly under `midge`. Every import counts: inside functions,
under TYPE_CHECKING, relative or absolute. `midge/__init__.py` gathers the public names and is free.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PACKAGE = PROJECT / "src" / "midge"

THEORY = ("semirings", "contexts", "alignments", "weights", "lattices")
LAYERS = (
    *THEORY[:-1],
    "kernels",  # below lattices, and for it alone
    "lattices",
    "automata",
    "drawing",
    "progress",
    "configuration",
    "audio",
    "tokens",
    "encoders",
    "data",
    "models",
    "decoding",
    "training",
    "experiments",
    "demos",
    "bench",
    "serve",
    "cli",
    "__main__",
)
ONLY_FOR = {"kernels": "lattices"}
LAZY = {"matplotlib"}  # an optional dependency: imported by the function that needs it
FOLDERS = ("src", "tests", "docs", "benchmarks", "recipes", "experiments")


def layer_of(path: Path, package: Path) -> str:
    """The layer a file belongs to; "__init__" for that of the package itself."""
    return path.relative_to(package).with_suffix("").parts[0]


def imported_names(node: ast.Import | ast.ImportFrom, parents: tuple[str, ...]) -> Iterator[str]:
    """Full dotted names of what a statement imports, relative ones resolved."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = parents[: len(parents) - node.level + 1] if node.level else ()
    module = (*base, *(node.module.split(".") if node.module else ()))
    yield from (".".join((*module, alias.name)) for alias in node.names)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def lazy_nodes(tree: ast.AST) -> set[ast.AST]:
    """Everything that does not run when the module is imported."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    hidden = (n for n in ast.walk(tree) if isinstance(n, functions) or is_type_checking(n))
    return {inner for outer in hidden for inner in ast.walk(outer)}


def imports_of(path: Path, package: Path) -> Iterator[tuple[int, str, bool]]:
    """Every import of a file: line, full dotted name, whether it runs only when called for."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    lazy = lazy_nodes(tree)
    parents = ("midge", *path.relative_to(package).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported_names(node, parents):
                yield node.lineno, name, node in lazy


def layers_imported(name: str, public: frozenset[str]) -> frozenset[str]:
    """The layers that importing a name loads; `import midge` loads all that `__init__` does."""
    if not name.startswith("midge.") or name.split(".")[1] not in LAYERS:
        return public
    return frozenset({name.split(".")[1]})


def wrong_layers(layer: str, wanted: frozenset[str]) -> Iterator[str]:
    for other in sorted(wanted - {layer}):
        if LAYERS.index(other) > LAYERS.index(layer):
            yield f"{layer} may not import {other}, a layer above it"
        elif layer != ONLY_FOR.get(other, layer):
            yield f"{layer} may not import {other}, which is for {ONLY_FOR[other]} alone"


def wrong_package(layer: str, package: str, is_lazy: bool) -> Iterator[str]:
    if package in sys.stdlib_module_names:
        return
    if layer in THEORY and package != "torch":
        yield f"{layer} is theory and may import torch alone, not {package}"
    if package in LAZY and not is_lazy:
        yield f"{package} is optional: import it inside the function that needs it"


def violations(package: Path) -> list[str]:
    """One message for each broken rule in a package, with file and line."""
    found = []
    init = package / "__init__.py"
    names = [name for _, name, _ in imports_of(init, package)] if init.exists() else []
    public = frozenset[str]().union(*(layers_imported(name, frozenset()) for name in names))
    for path in sorted(package.rglob("*.py")):
        layer = layer_of(path, package)
        where = path.relative_to(package.parent)
        if layer == "__init__":
            continue
        if layer not in LAYERS:
            found.append(f"{where}: {layer} is no layer; put it into one of {', '.join(LAYERS)}")
            continue
        for line, name, is_lazy in imports_of(path, package):
            top = name.split(".")[0]
            wrong = (
                wrong_layers(layer, layers_imported(name, public))
                if top == "midge"
                else wrong_package(layer, top, is_lazy)
            )
            found += [f"{where}:{line}: {message}" for message in wrong]
    return found


def files_called_utils(root: Path) -> list[str]:
    paths = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    return sorted(str(p.relative_to(root)) for p in paths if p.stem.strip("_") in ("util", "utils"))


def test_imports_go_one_way():
    assert list(PACKAGE.rglob("*.py")), f"{PACKAGE} holds no modules"
    assert violations(PACKAGE) == []


def test_no_file_is_called_utils():
    assert files_called_utils(PROJECT) == [], "name a file after what it holds"


@pytest.mark.parametrize(
    "path, source, message",
    [
        ("contexts.py", "from midge.lattices import RecognitionLattice", "above it"),
        ("contexts/ngrams.py", "from ..alignments import FrameDependent", "above it"),
        ("contexts/ngrams.py", "from .. import alignments", "above it"),
        ("contexts.py", "def f():\n    import midge.weights", "above it"),
        ("contexts.py", "from midge import RecognitionLattice", "above it"),
        ("semirings.py", "import midge", "above it"),
        ("kernels/engine.py", "from midge import lattices", "above it"),
        ("models.py", "from midge.kernels import engine", "for lattices alone"),
        ("weights.py", "import numpy as np", "torch alone"),
        ("lattices/loss.py", "def f():\n    import scipy.special", "torch alone"),
        ("drawing.py", "import matplotlib.pyplot as plt", "optional"),
        ("helpers.py", "", "no layer"),
        ("helpers/__init__.py", "", "no layer"),
    ],
)
def test_a_broken_rule_is_found(tmp_path, path, source, message):
    package = package_with(tmp_path, path, source)
    (found,) = violations(package)
    assert message in found
    assert found.startswith(f"midge/{path}:")


@pytest.mark.parametrize(
    "path, source",
    [
        ("contexts/ngrams.py", "import math\nimport torch.nn\nfrom ..semirings import Log"),
        ("contexts/__init__.py", "from .ngrams import FullNGram"),
        ("lattices/loss.py", "from midge.kernels import engine\nfrom midge import weights"),
        ("drawing.py", "def draw():\n    import matplotlib"),
        ("drawing.py", "import typing\nif typing.TYPE_CHECKING:\n    import matplotlib"),
        ("cli/main.py", "import midge\nfrom midge import RecognitionLattice, __version__"),
        ("data/corpora.py", "import numpy\nfrom midge.audio import LogMel"),
    ],
)
def test_what_is_allowed_passes(tmp_path, path, source):
    assert violations(package_with(tmp_path, path, source)) == []


def test_a_file_called_utils_is_found(tmp_path):
    (tmp_path / "src" / "midge" / "data").mkdir(parents=True)
    (tmp_path / "src" / "midge" / "data" / "_utils.py").touch()
    assert files_called_utils(tmp_path) == ["src/midge/data/_utils.py"]


def package_with(root: Path, path: str, source: str) -> Path:
    """A package whose `__init__` publishes the lattices, and that holds one file more."""
    package = root / "midge"
    (package / path).parent.mkdir(parents=True)
    (package / "__init__.py").write_text("from midge.lattices import RecognitionLattice\n")
    (package / path).write_text(source + "\n")
    return package
