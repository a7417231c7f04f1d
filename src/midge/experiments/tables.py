"""Tables of an experiment in Markdown, and all that is known of its rows as one JSON file."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midge.decoding.bootstrap import Interval
from midge.decoding.evaluation import ALL
from midge.experiments.contrasts import ContrastResult, Pool, contrasts, pools
from midge.experiments.grid import Grid
from midge.experiments.records import FORMAT_VERSION, write_json
from midge.experiments.row_runs import RowFolder
from midge.progress import format_seconds

RESULTS, TABLE = "results.json", "table.md"
"""What is written into the folder of an experiment."""


def read_records(grid: Grid, output: Path) -> list[dict[str, Any]]:
    """The records of the rows that are trained and scored in every way, in order.

    Raises:
        ValueError: if a record is not one; names the file.
    """
    found = [(row, RowFolder(output / row.name).record()) for row in grid.rows]
    return [
        record
        for row, record in found
        if record and row.evaluations.keys() <= record["evaluations"].keys()
    ]


def write_tables(grid: Grid, output: Path) -> list[Path]:
    """Writes results.json and table.md of what is done.

    Returns:
        The files written.
    """
    output.mkdir(parents=True, exist_ok=True)
    records = read_records(grid, output)
    write_json(output / RESULTS, results_json(grid, records))
    (output / TABLE).write_text(experiment_text(grid, records), "utf-8")
    return [output / RESULTS, output / TABLE]


def results_json(grid: Grid, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An experiment with the records of its rows, as `read_results` takes it."""
    return {
        "format_version": FORMAT_VERSION,
        "experiment": grid.name,
        "description": grid.description,
        "axes": {axis: list(values) for axis, values in grid.axes.items()},
        "pooled": grid.pooled,
        "contrast": None if grid.contrast is None else dataclasses.asdict(grid.contrast),
        "missing": missing_rows(grid, records),
        "rows": list(records),
    }


def missing_rows(grid: Grid, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the rows that are not done."""
    done = {record["row"] for record in records}
    return [row.name for row in grid.rows if row.name not in done]


def experiment_text(grid: Grid, records: Sequence[Mapping[str, Any]]) -> str:
    """All tables in Markdown."""
    parts = [f"# {grid.name}", grid.description, row_table(grid, records)]
    if grid.pooled and records:
        parts += [f"Repeated over {grid.pooled}:", pool_table(pools(grid, records))]
    if found := contrasts(grid, records):
        parts.append(contrast_table(found))
    if missing := missing_rows(grid, records):
        parts.append("Missing: " + ", ".join(missing) + ".")
    return "\n\n".join(part for part in parts if part) + "\n"


def row_table(grid: Grid, records: Sequence[Mapping[str, Any]]) -> str:
    """A line for each row that is done: error rates, steps, time, and where it comes from."""
    heading = ["row", "dev WER %", *(f"{name} WER %" for name in grid.evaluations)]
    heading += ["parameters", "steps", "time", "seed", "commit", "recipe"]
    return markdown_table(heading, [_row_cells(grid, record) for record in records])


def row_line(record: Mapping[str, Any]) -> str:
    """A row in one line of plain text."""
    scores = [
        f"{name} {interval_text(_word_rate(scored))} %"
        for name, scored in record["evaluations"].items()
    ]
    seconds = record["training"]["seconds"]
    return f"{record['row']}: {', '.join(scores) or 'trained'} (in {format_seconds(seconds)})"


def pool_table(found: Sequence[Pool]) -> str:
    """A line for each pool: the mean and the spread of its rows, and the rate of all together."""
    heading = [
        "rows",
        "scored on",
        "group",
        "repeats",
        "mean WER %",
        "least to most",
        "pooled WER %",
    ]
    cells = []
    for pool in found:
        single = pool.single_rates()
        cells.append(
            [
                "-".join(pool.values.values()),
                pool.evaluation,
                pool.group,
                str(len(single)),
                percent(math.fsum(single) / len(single)),
                f"{percent(min(single))} to {percent(max(single))}",
                interval_text(pool.rate()),
            ]
        )
    return markdown_table(heading, cells)


def contrast_table(found: Sequence[ContrastResult]) -> str:
    """A line for each question: rates of all cells, differences, interaction, share closed."""
    first = found[0]
    inner = list(next(iter(first.rates.values())))
    has_outer = first.interaction is not None
    heading = ["rows", "scored on", "group", "repeats"]
    heading += [f"{o} {i}".strip() for o in first.rates for i in inner]
    heading += [f"{inner[1]} - {inner[0]}" + (f", {o}" if o else "") for o in first.rates]
    heading += ["interaction", "share of the gap closed"] if has_outer else []
    cells = []
    for each in found:
        line = ["-".join(each.values.values()), each.evaluation, each.group, str(len(each.repeats))]
        line += [percent(rate.estimate) for row in each.rates.values() for rate in row.values()]
        line += [interval_text(change, "+") for change in each.differences.values()]
        if each.interaction is not None and each.share_closed is not None:
            line += [interval_text(each.interaction, "+"), interval_text(each.share_closed)]
        cells.append(line)
    return markdown_table(heading, cells)


def markdown_table(heading: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; "" without any line."""
    if not cells:
        return ""
    lines = [heading, ["---"] * len(heading), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float | None, sign: str = "") -> str:
    """A share in percent with two digits; "-" if there is none."""
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:{sign}.2f}"


def interval_text(interval: Interval, sign: str = "") -> str:
    """A share with its interval, in percent.

    Example:
        >>> interval_text(Interval(0.1, 0.05, 0.152))
        '10.00 [5.00, 15.20]'
    """
    low, high = percent(interval.low, sign), percent(interval.high, sign)
    return f"{percent(interval.estimate, sign)} [{low}, {high}]"


def spread_text(shares: Sequence[float]) -> str:
    """Mean, standard deviation and each of several shares, in percent.

    Example:
        >>> spread_text([0.9, 0.8])
        '85.00 ± 7.07 (90.00, 80.00)'
    """
    each = ", ".join(map(percent, shares))
    if len(shares) < 2:
        return each
    return f"{percent(statistics.mean(shares))} ± {percent(statistics.stdev(shares))} ({each})"


def _row_cells(grid: Grid, record: Mapping[str, Any]) -> list[str]:
    training = record["training"]
    scored = record["evaluations"]
    return [
        record["row"],
        percent(training["dev"].get("word_error_rate")),
        *(
            interval_text(_word_rate(scored[name])) if name in scored else ""
            for name in grid.evaluations
        ),
        f"{training['num_parameters'] / 1e6:.2f} M",
        str(training["num_steps"]),
        format_seconds(training["seconds"]),
        str(record["seed"]),
        record["commit"],
        record["recipe_hash"],
    ]


def _word_rate(scored: Mapping[str, Any]) -> Interval:
    """The word error rate of all utterances of an evaluation's record."""
    found = scored["groups"][ALL]["words"]
    ends = (math.nan if found[end] is None else found[end] for end in ("estimate", "low", "high"))
    return Interval(*ends)
