"""`midge experiment`: a grid of trainings, and the table of what they show."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midge.cli.mistakes import users_own
from midge.cli.outputs import check_folder, tell
from midge.experiments import Grid, RowRun, open_rows, read_grid, run_rows, write_tables
from midge.experiments.records import stored_records

_DESCRIPTION = """\
Trains and evaluates every row of an experiment by `midge train` and `midge evaluate`, and writes a
table of all rows. What is done is not repeated: the same command goes on where it was stopped or
killed. A row that fails is named, and the others go on; the exit code is then 1."""

_EXAMPLES = """\
examples, in the folder of midge:
  midge experiment experiments/an4_square.toml --output runs/square --list
  midge experiment experiments/an4_square.toml --output runs/square --jobs 2
  midge experiment experiments/an4_square.toml --output runs/square --only 'fold-1-*' --rows 1
  midge experiment experiments/an4_square.toml --output runs/square --known results.json

writes table.md and results.json, and for each row a folder with its training, its evaluations and
output.txt, what they said. Paths in the file are relative to the working directory."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "experiment",
        help="train and compare a grid of recipes",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("grid", type=Path, metavar="FILE", help="a TOML file of rows")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder of it all"
    )
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="rows whose names fit, such as 'fold-1-*'"
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="run this many rows at most; 0 writes the table alone"
    )
    parser.add_argument(
        "--known",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="results.json of rows that were run elsewhere, or for other experiments; what has the "
        "same recipe is not run again",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows at a time (1)")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="of each row; small models are slower with more (1)",
    )
    parser.add_argument("--list", action="store_true", help="show the rows and do nothing")


def _run(arguments: argparse.Namespace) -> int:
    with users_own():
        for name in ("jobs", "threads"):
            if getattr(arguments, name) < 1:
                raise ValueError(f"--{name} should be at least 1, got {getattr(arguments, name)}")
        if arguments.rows is not None and arguments.rows < 0:
            raise ValueError(f"--rows should be at least 0, got {arguments.rows}")
        grid = read_grid(arguments.grid)
        rows = grid.matching(arguments.only)
        known = [record for path in arguments.known for record in stored_records(path).values()]
        runs = open_rows(grid, arguments.output, rows, arguments.threads, known)
        if arguments.list:
            _list(grid, runs, arguments.only)
            return 0
        check_folder(arguments.output)
    outcomes = run_rows(
        grid,
        arguments.output,
        runs[: arguments.rows],
        num_jobs=arguments.jobs,
        tell=tell,
    )
    written = write_tables(grid, arguments.output)
    print(written[-1].read_text("utf-8"), end="")
    tell("wrote " + ", ".join(map(str, written)))
    return 0 if all(outcome.status == "done" for outcome in outcomes) else 1


def _list(grid: Grid, runs: Sequence[RowRun], pattern: str) -> None:
    left = {run.folder.path.name: run.num_steps_left for run in runs}
    for row in grid.matching(pattern):
        steps = left.get(row.name)
        status = "done" if steps is None else f"{steps} steps left" if steps else "to be evaluated"
        print(f"{row.name:<40} {status}")
