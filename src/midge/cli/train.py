"""`midge train`: from a recipe to a recognizer."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from midge.cli.mistakes import Mistake, users_own
from midge.training import Outcome, TrainingError, opened_run, read_recipe, run

_DESCRIPTION = """\
Trains a recognizer as a recipe says. The output folder holds checkpoints, a log in JSON lines and,
in the end, the model. The same command on the same folder goes on where a run was stopped or
killed, and ends with the parameters of one that never was. Under torchrun it trains in parallel."""

_EXAMPLE = """\
examples:
  midge train recipes/an4/streaming.toml --output runs/an4
  midge train recipes/an4/streaming.toml --set training.num_steps=100 --set data.num_workers=0
  torchrun --nproc-per-node 2 -m midge train recipes/an4/streaming.toml --output runs/an4

Paths in a recipe are relative to the working directory."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "train",
        help="train a recognizer",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a TOML file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="PART.FIELD=VALUE",
        help="set a field of the recipe; may be given several times",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of the run (runs/ and the recipe's name)"
    )
    parser.add_argument(
        "--init-from", type=Path, metavar="MODEL", help="start from the parameters of a model"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="write TensorBoard's events into the folder"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    output = arguments.output or Path("runs") / arguments.recipe.stem
    with ExitStack() as stack:
        with users_own():
            recipe = read_recipe(arguments.recipe, arguments.overrides)
            training = stack.enter_context(
                opened_run(
                    recipe,
                    output,
                    init_from=arguments.init_from,
                    tensorboard=arguments.tensorboard,
                )
            )
        try:
            outcome = run(training)
        except TrainingError as error:
            raise Mistake(str(error)) from error
        except OSError as error:  # a full disk, say; the checkpoints before are as they were
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise Mistake(f"{what}. Then the same command goes on:\n  {_command()}") from error
    if outcome.is_first:
        print(_told(outcome), file=sys.stderr)
    return 0 if outcome.is_finished else 1


def _told(outcome: Outcome) -> str:
    if not outcome.is_finished:
        return (
            f"Stopped after step {outcome.state.step}, and saved. The same command goes on:\n"
            f"  {_command()}"
        )
    best = outcome.state.best
    result = "" if best is None else f" (dev word error rate {best.word_error_rate:.2%})"
    return f"Wrote {outcome.folder / 'model'}{result}"


def _command() -> str:
    return shlex.join(["midge", *sys.argv[1:]])
