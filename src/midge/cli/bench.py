"""`midge bench`: the paper's benchmark of time and memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from midge.bench import accuracy, contest, losses, peak, report, rows, scaling
from midge.cli import bench_live
from midge.cli.mistakes import users_own
from midge.progress import Progress

_DESCRIPTION = """\
Measures training (loss and gradients, down to the encoder's output and all parameters) and decoding
(the best path) for the 36 rows of the GNAT paper's table, or those rows that the first four options
choose. Peak memory is what a step takes above inputs and parameters, in MB of 2^20 bytes. Every
measurement has a process of its own. Run nothing else meanwhile."""

_EXAMPLES = """\
examples:
  midge bench --output bench
  midge bench --context 2 --alignment frame --weights shared-rnn --normalization global --json
  midge bench --context 1 --alignment frame --peers --output bench
  midge bench --peak
  midge bench --accuracy
  midge bench --scaling --output bench
  midge bench --ctc
  midge bench --rnnt

--output writes table.md, results.json and the plot bench.svg and bench.png (with --scaling:
scaling.md, .json, .svg and .png). --peers needs an environment with google-research/last, which
`make .venv-last` makes in a checkout of midge. MIDGE_ENGINE=reference measures the readable
engine."""

_SIZES = {
    "batch": "utterances",
    "frames": "frames of each",
    "labels": "labels of each",
    "vocab": "size of the alphabet",
    "encoder": "size of a frame",
    "hidden": "size of the joint's hidden layer",
    "embedding": "size of an embedding",
    "rnn": "number of LSTM cells",
}
_LAST = Path(".venv-last/bin/python")


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "bench",
        help="measure time and memory",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    bench_live.add_to(parser.add_subparsers(title="a live server", metavar="live"))
    choice = parser.add_argument_group("rows (all of them by default)")
    choice.add_argument("--context", type=int, choices=rows.CONTEXTS, help="labels remembered")
    choice.add_argument("--alignment", choices=rows.ALIGNMENTS, help="alignment lattice")
    choice.add_argument("--weights", choices=rows.WEIGHTS, help="weight function")
    choice.add_argument(
        "--normalization",
        choices=("global", "softmax", "hat", "local"),
        help="local is hat (hat and global)",
    )
    shape = parser.add_argument_group("shape")
    shape.add_argument(
        "--paper", action="store_true", help="the paper's: batch 32, 1024 frames, 256 labels"
    )
    for name, meaning in _SIZES.items():
        default = getattr(rows.REDUCED, name)
        shape.add_argument(f"--{name}", type=int, metavar="N", help=f"{meaning} ({default})")
    other = parser.add_argument_group("instead of rows").add_mutually_exclusive_group()
    other.add_argument(
        "--scaling", action="store_true", help="how time and memory grow with each size"
    )
    other.add_argument(
        "--peak", action="store_true", help="share of the sgemm peak that the joint reaches"
    )
    other.add_argument(
        "--accuracy", action="store_true", help="how far float32 is from float64 at 1024 frames"
    )
    other.add_argument("--ctc", action="store_true", help="CTC beside torch's own")
    other.add_argument(
        "--rnnt", action="store_true", help="RNN-T beside torchaudio, k2 or warprnnt_numba"
    )
    parser.add_argument(
        "--peers",
        type=Path,
        nargs="?",
        const=_LAST,
        metavar="PYTHON",
        help=f"measure google-research/last in turn with us, by this interpreter ({_LAST})",
    )
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="turns of all (1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all numbers (0)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write")
    parser.add_argument("--save-inputs", type=Path, metavar="NPZ", help="of one row; no measuring")
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")


def _run(arguments: argparse.Namespace) -> int:
    with users_own():  # before the measurements, which would be lost
        _check(arguments)
        if arguments.ctc or arguments.rnnt:
            measure = _losses_run(arguments)
        elif arguments.peak:
            measure = _peak_run(arguments)
        elif arguments.accuracy:
            measure = _accuracy_run(arguments)
        elif arguments.scaling:
            measure = _scaling_run(arguments)
        else:
            measure = _rows_run(arguments)
        if arguments.output is not None:
            report.check_output(arguments.output)
    return measure()


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what would be ignored."""
    if arguments.rounds < 1:
        raise ValueError(f"--rounds should be at least 1, got {arguments.rounds}")
    if arguments.seed < 0:
        raise ValueError(f"--seed should be at least 0, got {arguments.seed}")
    kind = next((name for name in _UNUSED if getattr(arguments, name)), None)
    for name in _UNUSED.get(kind or "", ()):
        value = getattr(arguments, name)
        if value is not None and value is not False:  # 0 is an answer
            raise ValueError(f"--{name.replace('_', '-')} does not go with --{kind}")
    for kind in ("peak", "accuracy"):
        if getattr(arguments, kind) and arguments.rounds > 1:
            raise ValueError(f"--rounds does not go with --{kind}")


_ROW = ("context", "alignment", "weights", "normalization")
_LOSSES = (*_ROW, "peers", "output", "save_inputs", "paper", "encoder", "embedding", "rnn")
_UNUSED = {
    "ctc": (*_LOSSES, "hidden"),
    "rnnt": _LOSSES,
    "peak": (*_ROW, "peers", "output", "save_inputs"),
    "accuracy": (*_ROW, "peers", "output", "save_inputs", "paper"),
    "scaling": ("peers", "save_inputs"),
}


def _shape(arguments: argparse.Namespace) -> rows.Shape:
    base = rows.PAPER if arguments.paper else rows.REDUCED
    return dataclasses.replace(base, **_given(arguments, _SIZES))


def _given(arguments: argparse.Namespace, names: Any) -> dict[str, Any]:
    """The options that were given."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options say of rows, as fields of one."""
    given = _given(arguments, _ROW)
    return given | ({"normalization": "hat"} if given.get("normalization") == "local" else {})


def _rows_run(arguments: argparse.Namespace) -> Callable[[], int]:
    chosen, shape = _chosen(arguments), _shape(arguments)
    plural = {"context": "contexts", "alignment": "alignments", "normalization": "normalizations"}
    wanted = rows.rows(**{plural.get(name, name): [value] for name, value in chosen.items()})
    peers = [] if arguments.peers is None else contest.last_contestants(arguments.peers)
    if arguments.save_inputs is not None:
        if len(wanted) != 1:
            raise ValueError(f"--save-inputs is for one row, got {len(wanted)}; choose it")
        rows.save(arguments.save_inputs, wanted[0], shape, arguments.seed)
        return lambda: 0

    def measure() -> int:
        total = contest.num_measurements(wanted, peers, arguments.rounds)
        options = {"seed": arguments.seed, "rounds": arguments.rounds}
        with Progress(total, "measuring", unit="measurements") as progress:
            results = [
                contest.measure_row(row, shape, peers, **options, progress=progress.advance)
                for row in wanted
            ]
        if arguments.json:
            one = len(results) == 1
            print(json.dumps(results[0].to_json() if one else report.to_json(results)))
        else:
            print(report.table(results))
        if arguments.output is not None:
            _tell(report.save_results(results, arguments.output))
        return 0

    return measure


def _scaling_run(arguments: argparse.Namespace) -> Callable[[], int]:
    row = dataclasses.replace(scaling.ROW, **_chosen(arguments))
    shape = _shape(arguments)

    def measure() -> int:
        total = scaling.num_measurements(row, shape)
        with Progress(total, "measuring", unit="measurements") as progress:
            series = scaling.measure_scaling(row, shape, arguments.seed, progress.advance)
        found = [each.to_json() for each in series]
        print(json.dumps({"scaling": found}) if arguments.json else scaling.table(series))
        if arguments.output is not None:
            _tell(report.save_scaling(series, arguments.output))
        return 0

    return measure


def _peak_run(arguments: argparse.Namespace) -> Callable[[], int]:
    shape = _shape(arguments)

    def measure() -> int:
        found = peak.measure_peak(shape, arguments.seed)
        print(json.dumps(found.to_json()) if arguments.json else found)
        return 0

    return measure


def _accuracy_run(arguments: argparse.Namespace) -> Callable[[], int]:
    shape = dataclasses.replace(accuracy.SHAPE, **_given(arguments, _SIZES))

    def measure() -> int:
        with Progress(accuracy.num_cases(), "computing twice", unit="cases") as progress:
            found = accuracy.measure_errors(shape, arguments.seed, progress.advance)
        if arguments.json:
            print(json.dumps({"errors": [dataclasses.asdict(error) for error in found]}))
        else:
            print(accuracy.table(found))
        return 0

    return measure


def _losses_run(arguments: argparse.Namespace) -> Callable[[], int]:
    given = _given(arguments, ("batch", "frames", "labels", "vocab", "hidden", "seed"))
    several = losses.CTC if arguments.ctc else losses.RNNT
    cases = list(dict.fromkeys(dataclasses.replace(case, **given) for case in several))

    def measure() -> int:
        total = arguments.rounds * sum(len(losses.contestants(case)) for case in cases)
        with Progress(total, "measuring", unit="measurements") as progress:
            found = [
                (case, losses.measure_case(case, None, arguments.rounds, progress.advance))
                for case in cases
            ]
        if arguments.json:
            listed = [
                {**dataclasses.asdict(case), "costs": [dataclasses.asdict(c) for c in costs]}
                for case, costs in found
            ]
            print(json.dumps({"cases": listed}))
        else:
            print(report.losses_table(found))
        return 0

    return measure


def _tell(written: list[Path]) -> None:
    print("Wrote " + ", ".join(map(str, written)), file=sys.stderr)
