"""MODEL where it may be left out: then it is the model that comes with midge."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midge.models import default_model_path

HELP = "folder of a model or a run (the model that comes with midge)"


def add_names(parser: argparse.ArgumentParser, audio_help: str) -> None:
    """Adds the arguments [MODEL] [AUDIO ...], before, between or after the options."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=HELP)
    parser.add_argument("audio", nargs="*", metavar="AUDIO", help=audio_help)
    _allow_options_between(parser)


def model_and_audio(arguments: argparse.Namespace) -> tuple[Path, list[str]]:
    """The model's folder, and the recordings.

    The first name is a model if it is a folder. Otherwise all names are recordings, and the model
    is the default one.

    Raises:
        ValueError: if there is no default model, or the first name is nothing at all.
    """
    names: Sequence[str] = [name for name in (arguments.model, *arguments.audio) if name]
    if names and Path(names[0]).is_dir():
        return Path(names[0]), list(names[1:])
    if names and not Path(names[0]).suffix and not Path(names[0]).exists():
        raise ValueError(f"{names[0]} is neither the folder of a model nor an audio file")
    return default_model_path(), list(names)


def _allow_options_between(parser: argparse.ArgumentParser) -> None:
    """Lets options stand between positional arguments.

    By itself argparse (3.11) takes `MODEL --option AUDIO` for a MODEL without AUDIO, and then
    refuses what is left.
    """
    plain = parser.parse_known_args

    def mixed(*arguments: Any) -> Any:
        setattr(parser, "parse_known_args", plain)  # noqa: B010  # which the mixed form calls
        try:
            return parser.parse_known_intermixed_args(*arguments)
        finally:
            setattr(parser, "parse_known_args", mixed)  # noqa: B010

    setattr(parser, "parse_known_args", mixed)  # noqa: B010
