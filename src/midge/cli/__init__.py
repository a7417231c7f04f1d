"""The command line: parse, call one library function, print. One file per command.

Exit codes: 0 is success, 2 a mistake of the user (told in one line, without a traceback), and 1
anything else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import midge
from midge.cli import (
    align,
    bench,
    demo,
    draw,
    evaluate,
    experiment,
    export,
    info,
    prepare,
    serve,
    stream,
    train,
    transcribe,
)
from midge.cli.mistakes import Mistake

_COMMANDS = (
    prepare,
    train,
    evaluate,
    experiment,
    transcribe,
    stream,
    serve,
    align,
    info,
    export,
    demo,
    bench,
    draw,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        The exit code.
    """
    try:
        arguments = _parser().parse_args(argv)
        code: int = arguments.run(arguments)
        return code
    except SystemExit as stop:  # by argparse: after --help or --version, or for a wrong argument
        return stop.code if isinstance(stop.code, int) else 1
    except Mistake as mistake:
        print(f"midge: error: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("midge: interrupted", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="midge",
        description="Streaming speech recognition with globally normalized transducers.",
        epilog="example:  midge demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"midge {midge.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    return parser
