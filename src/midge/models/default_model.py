"""The model that comes with the package."""

from __future__ import annotations

from pathlib import Path

from midge.models.recognizer import MODEL_FILES

_FOLDER = Path(__file__).parent / "default"


def default_model_path() -> Path:
    """The folder of the recognizer that is used where none is named; `load` reads it.

    It is a small streaming one, for letters, digits and short commands in English; README.md there
    says on what it was trained and what it can do.

    Raises:
        ValueError: if this installation has none.
    """
    if not all((_FOLDER / name).is_file() for name in MODEL_FILES):
        raise ValueError("this installation of midge has no default model: name one")
    return _FOLDER
