"""`midge demo`: small jobs on which the theory makes a sharp prediction."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from midge.cli.mistakes import users_own
from midge.demos import label_bias, label_bias_report
from midge.progress import Progress

_DESCRIPTION = """\
Trains streaming and non-streaming models, locally and globally normalized, on a task where each
label is the symbol of the next frame. Prints what the theory predicts beside what was measured,
and saves a picture of how each streaming model revises, or cannot revise, its early decisions."""

_EXAMPLE = """\
example, in less than a minute:
  midge demo label-bias --output demo

writes demo/label-bias.png, demo/label-bias.svg and demo/results.json. The exit code is 1 if theory
and measurement do not agree, as after too few steps."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser("demo", help="run a demonstration", description=__doc__)
    demos = parser.add_subparsers(title="demonstrations", metavar="NAME", required=True)
    bias = demos.add_parser(
        "label-bias",
        help="what a streaming, locally normalized model cannot do",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = label_bias.Config()
    bias.add_argument(
        "--output", type=Path, default=Path("demo"), metavar="DIR", help="folder to write (demo)"
    )
    bias.add_argument(
        "--seed",
        type=int,
        default=default.seed,
        metavar="N",
        help=f"seed of parameters and inputs ({default.seed})",
    )
    bias.add_argument(
        "--steps",
        type=int,
        default=default.num_steps,
        metavar="N",
        help=f"training steps of each model ({default.num_steps})",
    )
    bias.add_argument("--json", action="store_true", help="print JSON instead of the table")
    bias.set_defaults(run=_run_label_bias)


def _run_label_bias(arguments: argparse.Namespace) -> int:
    with users_own():  # before the training, which would be lost
        config = label_bias.Config(seed=arguments.seed, num_steps=arguments.steps)
        label_bias_report.check_output(arguments.output)
    with Progress(label_bias.num_training_steps(config), "training") as progress:
        results = label_bias.run(config, progress.advance)
    print(
        json.dumps(label_bias_report.to_json(results), indent=2)
        if arguments.json
        else label_bias_report.table(results)
    )
    with users_own():
        written = label_bias_report.save(results, arguments.output)
    print("Wrote " + ", ".join(map(str, written)), file=sys.stderr)
    return 0 if results.agrees else 1
