"""`midge export`: a model as a folder to give away."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from midge.cli.mistakes import users_own
from midge.cli.outputs import check_folder, tell
from midge.models import load

_DESCRIPTION = """\
Copies the model of a training run, without its checkpoints, into a folder of two files. With --half
parameters are rounded to 16 bits, for half the size; they are 32 bits again when loaded."""

_EXAMPLE = """\
example:
  midge export demo/speech/global models/demo --half --description "spoken digits"
"""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "export",
        help="a model as a folder to give away",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a model or a run")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder to write")
    parser.add_argument("--half", action="store_true", help="round parameters to 16 bits")
    parser.add_argument(
        "--description", metavar="TEXT", help="what it is for; `midge info` and the page show it"
    )


def _run(arguments: argparse.Namespace) -> int:
    with users_own():
        recognizer = load(arguments.model)
        check_folder(arguments.output)
        if arguments.description is not None:
            recognizer.training_summary["description"] = arguments.description
        recognizer.save(arguments.output, is_half=arguments.half)
        size = sum(file.stat().st_size for file in arguments.output.iterdir() if file.is_file())
    tell(f"wrote {arguments.output}, {size / 1e6:.1f} MB")
    return 0
