"""Measures what docs/benchmarks.md shows, and writes it.

    python benchmarks/peers/document.py                     # everything: hours, as LAST takes them
    python benchmarks/peers/document.py reduced peak losses # some parts
    python benchmarks/peers/document.py --write             # the page alone, from what is there

Measurements are kept in a file of results, row by row: a run that was interrupted goes on where it
stopped. `--again` measures the chosen parts anew. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midge.bench import accuracy, contest, losses, peak, report, rows, scaling
from midge.bench.contest import Contestant, Result, ratio
from midge.bench.rows import Row
from midge.progress import Progress

ROOT = Path(__file__).parents[2]
SHAPES = {"reduced": rows.REDUCED, "paper": rows.PAPER}
PARTS = ("reduced", "paper", "peak", "losses", "scaling", "accuracy")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """How many times as fast as LAST a row must be, and the share of its memory it may take."""

    context: int
    weights: str
    normalization: str
    train: dict[str, float]
    decode: dict[str, float]
    memory: float = 0.5

    def matches(self, row: Row) -> bool:
        here = (self.context, self.weights, self.normalization)
        return here == (row.context, row.weights, row.normalization)


def both(paper: float, reduced: float) -> dict[str, float]:
    return {"paper": paper, "reduced": reduced}


WANTED = (
    Wanted(2, "shared-rnn", "global", both(7.5, 6.5), both(2, 2)),
    Wanted(2, "shared-emb", "global", both(5, 5), both(2, 2)),
    Wanted(2, "unshared", "global", both(10, 10), both(5, 5)),
    Wanted(1, "shared-rnn", "global", both(45, 15), both(1.5, 2.5)),
    Wanted(1, "shared-rnn", "hat", both(20, 7), both(1.5, 2.5)),
    Wanted(2, "shared-rnn", "hat", both(8, 6), both(2, 2)),
)
TUNED = {(2, "global"): both(5, 5), (1, "global"): both(15, 5)}
LABEL_FRAME_SHARE = 0.9
OTHERS_MB = 100.0

INTRODUCTION = """\
# Benchmarks

Time and peak memory of training (loss and gradients down to the encoder's output and all
parameters) and of decoding (the best path), as in the appendix of the GNAT paper; `make
bench-peers` measures all of it and writes this page. Each measurement runs in a process of its own,
and the contestants take turns on the same inputs and parameters; a time is the best of a few
repetitions after one that is not counted, memory the high-water mark less what inputs and
parameters take, in MB of 2^20 bytes. Beside a peer's number stands how many times ours it is.
*LAST* is [google-research/last](https://github.com/google-research/last), compiled beforehand;
*LAST tuned* has the gradients of its two projections moved out of its loops. LAST has no unshared
weight function: a subclass of its `WeightFn` stands in. Its k-constrained lattice loses
probability under local normalization; those losses were compared on the lattice that does not. A
row that is not here has not been measured.
"""


def chosen_rows(part: str, is_every: bool) -> list[Row]:
    """All rows; at the paper's shape, unless asked, those with a claim of their own."""
    if part == "reduced" or is_every:
        return rows.rows()
    return [row for row in rows.rows() if any(wanted.matches(row) for wanted in WANTED)]


class Store:
    """The file of results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def results(self, part: str) -> list[Result]:
        return [Result.from_json(given) for given in self.found.get(part, [])]

    def keep(self, part: str, value: Any) -> None:
        machines = self.found.get("machines", {}) | {part: report.machine()}
        self.found |= {part: value, "machines": machines}
        self.path.write_text(json.dumps(self.found, indent=2) + "\n")


def measure_rows(
    part: str, wanted: Sequence[Row], store: Store, peers: Sequence[Contestant], rounds: int
) -> None:
    """Measures the rows that the store does not have."""
    done = store.results(part)
    missing = [row for row in wanted if row not in [each.row for each in done]]
    # Rows with a claim of their own first: an interrupted run has measured what matters most.
    missing.sort(key=lambda row: (not any(each.matches(row) for each in WANTED), row.alignment))
    total = contest.num_measurements(missing, peers, rounds)
    with Progress(total, f"{part} shape", unit="measurements") as progress:
        for row in missing:
            done.append(
                contest.measure_row(
                    row, SHAPES[part], peers, rounds=rounds, progress=progress.advance
                )
            )
            done.sort(key=lambda result: rows.rows().index(result.row))
            store.keep(part, [result.to_json() for result in done])


def measure_losses(store: Store, rounds: int) -> None:
    cases = (*losses.CTC, *losses.RNNT)
    total = rounds * sum(len(losses.contestants(case)) for case in cases)
    found = []
    with Progress(total, "CTC and RNN-T", unit="measurements") as progress:
        for case in cases:
            costs = losses.measure_case(case, None, rounds, progress.advance)
            listed = [dataclasses.asdict(cost) for cost in costs]
            found.append({"case": dataclasses.asdict(case), "costs": listed})
    store.keep("losses", found)


def measure_scaling(store: Store) -> None:
    total = scaling.num_measurements(scaling.ROW, rows.REDUCED)
    with Progress(total, "scaling", unit="measurements") as progress:
        series = scaling.measure_scaling(scaling.ROW, rows.REDUCED, 0, progress.advance)
    listed = [
        {**each.to_json(), "results": [result.to_json() for result in each.results]}
        for each in series
    ]
    store.keep("scaling", listed)


def claims(part: str, results: Sequence[Result]) -> str:
    """Markdown: what must hold against LAST beside what was measured."""
    columns = ("row", "training", "against tuned", "decoding", "memory", "decoding memory")
    lines = [columns, ("---",) * len(columns)]
    for result in results:
        if "LAST" in result.peers:
            lines.append((result.row.name, *claim_cells(part, result)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def claim_cells(part: str, result: Result) -> tuple[str, ...]:
    """Measured ratio, what it must be, and whether it is."""
    row, ours, theirs = result.row, result.ours, result.peers["LAST"]
    wanted = next((each for each in WANTED if each.matches(row)), None)
    share = LABEL_FRAME_SHARE if row.alignment == "label-frame" else 1.0
    train = share * wanted.train[part] if wanted else 1.0
    decode = share * wanted.decode[part] if wanted else 1.0
    tuned = TUNED.get((row.context, row.normalization)) if row.weights == "shared-rnn" else None
    against_tuned = ""
    if "LAST tuned" in result.peers:
        faster = ratio(result.peers["LAST tuned"].train_s, ours.train_s)
        against_tuned = at_least(faster, share * tuned[part]) if tuned else f"{faster:.1f} x"
    return (
        at_least(ratio(theirs.train_s, ours.train_s), train),
        against_tuned,
        at_least(ratio(theirs.decode_s, ours.decode_s), decode),
        memory_cell(part, ours.train_peak_mb, theirs.train_peak_mb, wanted),
        memory_cell(part, ours.decode_peak_mb, theirs.decode_peak_mb, wanted),
    )


def unshared_bound(found: dict[str, Any], results: Sequence[Result]) -> str:
    """What the wanted ratio of the unshared row would take, beside what the machine does."""
    row = Row(2, "frame", "unshared", "global")
    result = next((each for each in results if each.row == row), None)
    if result is None or "LAST" not in result.peers or "peak" not in found:
        return ""
    shape = result.shape
    states = sum(shape.vocab**size for size in range(row.context + 1))
    product = 2 * shape.batch * shape.frames * states * (shape.vocab + 1) * shape.encoder / 1e9
    seconds = result.peers["LAST"].train_s / 10
    sgemm, joint = found["peak"]["sgemm_gflops"], found["peak"]["forward_gflops"]
    return (
        f"The 2-gram unshared row is a matrix product of {product / 1e3:.3g} TFLOP forward, the "
        "same once more for the gradient, as its arcs are too many to keep, and two products for "
        f"the gradient itself. Ten times as fast as LAST would be {seconds:.3g} s: "
        f"{4 * product / seconds:.0f} GFLOP/s, or {3 * product / seconds:.0f} if all arcs were "
        f"kept. sgemm reaches {sgemm:.0f} GFLOP/s here, and our joint {joint:.0f}.\n\n"
    )


def at_least(found: float, least: float) -> str:
    verdict = "" if found >= least else " **missed**"
    return f"{found:.1f} x (wanted {least:.3g}){verdict}"


def memory_cell(part: str, ours: float | None, theirs: float | None, wanted: Wanted | None) -> str:
    """The claims on memory are those of the paper's shape."""
    if ours is None or theirs is None:
        return "?"
    cell = f"{ours:.0f} of {theirs:.0f} MB"
    if part != "paper":
        return cell
    most = wanted.memory * theirs if wanted else max(theirs, OTHERS_MB)
    return cell + ("" if ours <= most else f" (wanted {most:.0f}) **missed**")


def page(store: Store) -> str:
    """The page, from what was measured."""
    sections = [INTRODUCTION]
    titles = {"reduced": "Reduced shape", "paper": "The paper's shape"}
    for part, title in titles.items():
        results = store.results(part)
        if not results:
            continue
        options = "--peers" if part == "reduced" else "--peers --paper"
        sections.append(
            f"## {title}\n\n    midge bench {options}\n\n{report.sizes(results)}. "
            f"Ours: {results[0].ours.engine}. LAST: {theirs_engine(results)}. "
            f"{measured_on(store.found, part)}\n\n"
            f"### How many times as fast as LAST\n\n{claims(part, results)}\n\n"
            f"{unshared_bound(store.found, results) if part == 'paper' else ''}"
            f"### All numbers\n\n{report.table(results)}\n"
        )
    return "\n".join([*sections, *other_sections(store.found)])


def measured_on(found: dict[str, Any], part: str) -> str:
    return f"Measured on {found['machines'][part]}."


def theirs_engine(results: Sequence[Result]) -> str:
    engines = [peer.engine for result in results for peer in result.peers.values()]
    return engines[0] if engines else "not measured"


def other_sections(found: dict[str, Any]) -> list[str]:
    sections = []
    if "peak" in found:
        shape = rows.Shape(**found["peak"]["shape"])
        fields = {field.name for field in dataclasses.fields(peak.Peak)}
        values = {name: x for name, x in found["peak"].items() if name in fields}
        measured = peak.Peak(**values | {"shape": shape})
        heading = "## Share of the machine's peak\n\n    midge bench --peak\n\n"
        sections.append(f"{heading}{measured_on(found, 'peak')}\n\n```text\n{measured}\n```\n")
    if "losses" in found:
        cases = [
            (losses.Case(**each["case"]), [losses.LossCost(**cost) for cost in each["costs"]])
            for each in found["losses"]
        ]
        sections.append(
            "## CTC and RNN-T\n\n    midge bench --ctc\n    midge bench --rnnt\n\n"
            f"{measured_on(found, 'losses')}\n\n"
            f"{report.losses_table(cases)}\n"
        )
    if "accuracy" in found:
        errors = [accuracy.Error(**each) for each in found["accuracy"]]
        sections.append(
            "## Float32 against float64\n\n    midge bench --accuracy\n\n"
            f"{accuracy.SHAPE.frames} frames, {accuracy.SHAPE.labels} labels, alphabet "
            f"{accuracy.SHAPE.vocab}; both start from the same float32 numbers. "
            f"{measured_on(found, 'accuracy')}\n\n"
            f"{accuracy.table(errors)}\n"
        )
    if "scaling" in found:
        sections.append(
            "## Growth\n\n    midge bench --scaling\n\n"
            f"{scaling.ROW.name}; a slope is the power of the size that the cost grows with. "
            f"{measured_on(found, 'scaling')}\n\n"
            f"{scaling.table(series_of(found['scaling']))}\n"
        )
    return sections


def series_of(listed: list[dict[str, Any]]) -> list[scaling.Series]:
    return [
        scaling.Series(
            each["variable"],
            tuple(each["sizes"]),
            tuple(Result.from_json(result) for result in each["results"]),
        )
        for each in listed
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--again", action="store_true", help="measure the parts anew")
    parser.add_argument(
        "--every-row", action="store_true", help="all 36 rows at the paper's shape too"
    )
    parser.add_argument("--shipped-only", action="store_true", help="without LAST tuned")
    parser.add_argument("--rounds", type=int, default=2, help="turns at the reduced shape (2)")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-last/bin/python")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "benchmarks.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    store = Store(arguments.results)
    parts = [] if arguments.write else arguments.parts or PARTS
    peers = contest.last_contestants(arguments.python) if {"reduced", "paper"} & {*parts} else []
    if arguments.shipped_only:
        peers = [peer for peer in peers if peer.name == "LAST"]
    if arguments.again:
        store.found = {name: x for name, x in store.found.items() if name not in parts}
    for part in parts:
        if part in SHAPES:
            wanted = chosen_rows(part, arguments.every_row)
            rounds = arguments.rounds if part == "reduced" else 1
            measure_rows(part, wanted, store, peers, rounds)
        elif part not in store.found:
            measure_part(part, store, arguments.rounds)
    arguments.page.write_text(page(store), encoding="utf-8")
    print(f"Wrote {arguments.page}")


def measure_part(part: str, store: Store, rounds: int) -> None:
    if part == "peak":
        store.keep("peak", peak.measure_peak(rows.REDUCED).to_json())
    elif part == "losses":
        measure_losses(store, rounds)
    elif part == "accuracy":
        store.keep("accuracy", [dataclasses.asdict(each) for each in accuracy.measure_errors()])
    else:
        measure_scaling(store)


if __name__ == "__main__":
    main()
