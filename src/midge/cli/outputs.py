"""Where a command writes: checked before the work, named after it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from midge.decoding import FORMATS


def check_folder(folder: Path) -> None:
    """Makes sure, before the work, that files can be written to a folder.

    Args:
        folder: made if it is not there.

    Raises:
        OSError: if it can neither be found nor made, or not be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def output_paths(
    names: Iterable[str], format_name: str, folder: Path | None
) -> Mapping[str, Path | None]:
    """Where the transcript of each recording goes: a file of its own, or standard output (None).

    Args:
        names: of the recordings, paths or ids.
        format_name: one of `FORMATS`.
        folder: for the files; checked. None is standard output.

    Raises:
        ValueError: if two recordings would share a file, or standard output would be no file of
            the format.
        OSError: if the folder cannot be written to.
    """
    names = list(names)
    suffix = FORMATS[format_name].suffix
    if folder is None:
        if len(names) > 1 and not FORMATS[format_name].can_be_joined:
            raise ValueError(
                f"{len(names)} recordings do not go into one {suffix} file; give --output"
            )
        return dict.fromkeys(names)
    paths: dict[str, Path | None] = {}
    owners: dict[Path, str] = {}
    for name in names:
        path = folder / f"{_file_stem(name)}{suffix}"
        if owners.setdefault(path, name) != name:
            raise ValueError(f"{owners[path]} and {name} would both be written to {path}")
        paths[name] = path
    check_folder(folder)
    return paths


def write(text: str, path: Path | None) -> None:
    """Writes to a file, or to standard output at once."""
    if path is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        path.write_text(text, encoding="utf-8")


def tell(message: str) -> None:
    """Says something on standard error, where progress goes too."""
    print(f"midge: {message}", file=sys.stderr)


def _file_stem(name: str) -> str:
    """The file name of a path without its suffix; an id may have slashes, and has no suffix."""
    path = Path(name)
    return path.stem if path.exists() else name.replace("/", "-")
