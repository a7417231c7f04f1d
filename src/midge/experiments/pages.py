"""The page of results: a section for each experiment, from the records that are committed.

A row is shown only if it was made by the recipe and from the model that its grid asks for now, and
an evaluation only if it was made as the grid asks. All other rows are listed as missing, so that no
table can promise what was not measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midge.decoding.evaluation import ALL
from midge.drawing.canvas import save
from midge.experiments import pictures
from midge.experiments.contrasts import ContrastResult, Pool, contrasts, pools
from midge.experiments.grid import Grid, Row, read_grid
from midge.experiments.records import is_training_of, stored_records
from midge.experiments.tables import (
    contrast_table,
    interval_text,
    markdown_table,
    percent,
    spread_text,
)
from midge.experiments.tallies import NEAREST, SENTENCES
from midge.progress import format_seconds

EMISSION_PERCENTILES = (10, 50, 90)
"""Of the differences between the times of words."""
_DELAY_TEXT = """\
Delays of words in simulated streams, heard 0.1 s at a time: seconds of sound from a word's true end
until it was first shown, until it was last changed, and until it was committed, after which it
cannot change. Only words that are right in the end have a delay: *words timed* says how many, so
that rows of other error rates are of other words. *Without trailing silence*: recordings cut at the
end of the last word. *With endpoints*: cut into segments at pauses. *Words revised*: those that
were changed after they had been shown."""
_DELAYS = {"first_shown": "first shown", "last_changed": "last changed", "committed": "committed"}


@dataclass(frozen=True, kw_only=True)
class Results:
    """An experiment, and as much of it as was measured."""

    grid: Grid
    """What it asks for."""
    records: tuple[dict[str, Any], ...]
    """The rows that were made so, in the grid's order."""
    outdated: tuple[str, ...]
    """Names of rows that were made by another recipe, or from another model."""
    commands: str = ""
    """What the head of the grid's file says to type."""

    @property
    def missing(self) -> list[str]:
        """Names of the rows that are not there."""
        done = {record["row"] for record in self.records}
        return [row.name for row in self.grid.rows if row.name not in done]


def read_results(grid_path: Path, results_path: Path) -> Results:
    """Reads an experiment with its committed results.

    Args:
        grid_path: the TOML file. The recipes it names are relative to the working directory.
        results_path: results.json of it; there may be none.

    Raises:
        ValueError: if a file is not what it should be; names it.
        OSError: if one cannot be read.
    """
    grid = read_grid(grid_path)
    kept = stored_records(results_path) if results_path.exists() else {}
    same = {
        row.name: _as_asked(row, kept[row.name])
        for row in grid.rows
        if row.name in kept and is_training_of(kept[row.name], row)
    }
    return Results(
        grid=grid,
        records=tuple(same.values()),
        outdated=tuple(name for name in kept if name not in same),
        commands=_head_commands(grid_path.read_text("utf-8")),
    )


def _as_asked(row: Row, record: dict[str, Any]) -> dict[str, Any]:
    """A record without the evaluations that were made in another way than the grid asks for."""
    scored = record["evaluations"]
    asked = {name: plan.as_json() for name, plan in row.evaluations.items()}
    kept = {name: scored[name] for name in asked if scored.get(name, {}).get("plan") == asked[name]}
    return record | {"evaluations": kept}


def _head_commands(text: str) -> str:
    """The lines of a grid's first comment that are set in by three spaces."""
    head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return "\n".join(line.removeprefix("#   ") for line in head if line.startswith("#   "))


def summary_table(several: Sequence[Results]) -> str:
    """A line for each experiment: what it is, and how much of it was measured."""
    cells = [
        [
            f"[{each.grid.name}](#{each.grid.name.replace('_', '-')})",
            each.grid.description,
            f"{len(each.records)} of {len(each.grid.rows)}",
        ]
        for each in several
    ]
    return markdown_table(["experiment", "what", "rows measured"], cells)


def section(results: Results, text: str, figures: Sequence[str], more: str = "") -> str:
    """The section of an experiment in Markdown.

    Args:
        results: what was measured.
        text: written by hand, to go before the tables; "" for none.
        figures: links of pictures.
        more: another table, to go after the others.
    """
    grid, records = results.grid, results.records
    parts = [f"## {grid.name.replace('_', '-')}", grid.description]
    if results.commands:
        parts.append(f"```sh\n{results.commands}\n```")
    parts.append(text.strip())
    if records:
        found = pools(grid, records)
        parts += [rate_table(grid, found), group_table(grid, found)]
        parts += [match_table(grid, found), spread_table(grid, found)]
        if rows := contrasts(grid, records):
            parts += [_contrast_text(grid), contrast_table(rows), verdict(grid, rows)]
            parts.append(single_interactions(grid, records))
        parts += [delay_table(records), more, *figures, made_table(grid, records)]
    if results.missing:
        parts.append("Missing: " + ", ".join(results.missing) + ".")
    if results.outdated:
        names = ", ".join(results.outdated)
        parts.append(f"Made by another recipe or from another model, and not shown: {names}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def rate_table(grid: Grid, found: Sequence[Pool]) -> str:
    """Word error rates of all utterances: a line for each combination of axes.

    A column for each way of scoring says over how many speakers the bootstrap draws. Repetitions
    are pooled: all their errors over all their words.
    """
    kept = [pool for pool in found if pool.group == ALL]
    speakers = {pool.evaluation: len(pool.tally()) for pool in kept}
    lines: dict[tuple[str, ...], dict[str, Pool]] = {}
    for pool in kept:
        lines.setdefault(tuple(pool.values.values()), {})[pool.evaluation] = pool
    heading = [*_shown_axes(grid), "runs"]
    heading += [f"{name} ({count} speakers)" for name, count in speakers.items()]
    cells = [
        [
            *names,
            str(max(len(pool.members) for pool in line.values())),
            *(interval_text(line[name].rate()) if name in line else "" for name in speakers),
        ]
        for names, line in lines.items()
    ]
    return markdown_table(heading, cells)


def group_table(grid: Grid, found: Sequence[Pool]) -> str:
    """The same for groups of utterances, words or speakers, a group a column; "" without any."""
    kept = [pool for pool in found if pool.group not in (ALL, NEAREST)]
    groups = list(dict.fromkeys(pool.group for pool in kept))
    lines: dict[tuple[str, ...], dict[str, Pool]] = {}
    for pool in kept:
        lines.setdefault((*pool.values.values(), pool.evaluation), {})[pool.group] = pool
    cells = [
        [*names, *(interval_text(line[x].rate()) if x in line else "" for x in groups)]
        for names, line in lines.items()
    ]
    heading = [*_shown_axes(grid), "scored on", *groups]
    return _folded("Word error rates of groups", markdown_table(heading, cells))


def spread_table(grid: Grid, found: Sequence[Pool]) -> str:
    """How single runs differ: mean and deviation of their word error rates, and each of them.

    "" if no row is repeated.
    """
    cells = [
        [*pool.values.values(), pool.evaluation, spread_text(pool.single_rates())]
        for pool in found
        if pool.group == ALL and len(pool.members) > 1
    ]
    heading = [*_shown_axes(grid), "scored on", "WER of single runs: mean ± deviation (each)"]
    return _folded(f"Single runs, by {grid.pooled}", markdown_table(heading, cells))


def single_interactions(grid: Grid, records: Sequence[Mapping[str, Any]]) -> str:
    """The interaction of each repetition by itself: how much it owes to single trainings."""
    repeats = grid.axes.get(grid.pooled, ())
    found: dict[str, list[str]] = {}
    for repeat in repeats if len(repeats) > 1 else ():
        chosen = [record for record in records if record["values"][grid.pooled] == repeat]
        for row in contrasts(grid, chosen):
            if row.group == ALL and row.interaction is not None:
                name = ", ".join(filter(None, (row.evaluation, *row.values.values())))
                found.setdefault(name, []).append(percent(row.interaction.estimate, "+"))
    lines = [f"- {name}: {', '.join(each)} points." for name, each in found.items()]
    title = f"The interaction in each {grid.pooled} by itself, in no interval above:"
    return "\n".join([title, "", *lines]) if lines else ""


def match_table(grid: Grid, found: Sequence[Pool]) -> str:
    """Utterances that are wholly right, and those that are once mapped to the nearest word.

    A line for each combination of axes, with the mean and the spread of its runs; "" if no
    evaluation asks for the nearest word.
    """
    nearest = [pool for pool in found if pool.group == NEAREST]
    heading = [*_shown_axes(grid), "scored on", "runs"]
    heading += ["exact match %: mean ± deviation (each)", "nearest word %: mean ± deviation (each)"]
    cells = []
    for pool in nearest:
        (exact,) = (
            other
            for other in found
            if (other.values, other.evaluation, other.group)
            == (pool.values, pool.evaluation, "all")
        )
        shares = [[1 - rate for rate in each.single_rates(SENTENCES)] for each in (exact, pool)]
        cells.append(
            [*pool.values.values(), pool.evaluation, str(len(shares[0])), *map(spread_text, shares)]
        )
    return markdown_table(heading, cells)


def verdict(grid: Grid, rows: Sequence[ContrastResult]) -> str:
    """What the interactions over all utterances say, in words; "" if the experiment has none."""
    if grid.contrast is None or not grid.contrast.outer:
        return ""
    better, where = grid.axes[grid.contrast.inner][1], grid.axes[grid.contrast.outer][1]
    lines = []
    for row in rows:
        if row.group != ALL or row.interaction is None:
            continue
        if row.interaction.high < 0:
            said = f"{better} helps more at {where}, as the claim has it"
        elif row.interaction.low > 0:
            said = f"{better} helps less at {where}, against the claim"
        else:
            said = "the interval has 0 in it, so no direction is stated"
        name = ", ".join(filter(None, (row.evaluation, *row.values.values())))
        interval = interval_text(row.interaction, "+")
        lines.append(f"- {name}: interaction {interval} points; {said}.")
    return "\n".join(lines)


def delay_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Error rates of streams with their delays, in seconds; "" if none was measured."""
    heading = ["row", "scored on", "streaming WER %", "without trailing silence", "with endpoints"]
    heading += ["words timed"]
    heading += [f"{name}, p50 / p90 s" for name in _DELAYS.values()]
    heading += ["words revised %"]
    cells = []
    for record in records:
        for name, scored in record["evaluations"].items():
            if live := scored.get("streaming"):
                rates = live["word_error_rates"]
                line = [record["row"], name]
                line += [
                    percent(rates[x]["estimate"]) for x in ("streaming", "tight", "endpointed")
                ]
                line.append(str(live["percentiles"]["last_changed"]["count"]))
                line += [_seconds(live["percentiles"][delay]) for delay in _DELAYS]
                cells.append([*line, percent(live["revision_rate"])])
    return f"{_DELAY_TEXT}\n\n{markdown_table(heading, cells)}" if cells else ""


def emission_table(experiment: str, kept: Mapping[str, Any]) -> str:
    """How much later than by the first row words are written, where their true times are unknown.

    Args:
        experiment: its name.
        kept: what experiments/emissions.py writes.
    """
    shown = ["mean", *(f"p{p}" for p in EMISSION_PERCENTILES)]
    cells = [
        [name, str(row["num_words"]), *(f"{row[each]:+.2f}" for each in shown)]
        for name, row in kept["rows"].items()
    ]
    return (
        f"How much later than by {kept['first']} words are written on {kept['evaluation']}, where "
        "both rows have them right (the best path's time of the last letter; `python "
        f"experiments/emissions.py experiments/{experiment}.toml runs/{experiment} "
        f"{kept['evaluation']}`):\n\n"
        + markdown_table(["row", "words", *(f"{each}, s" for each in shown)], cells)
    )


def made_table(grid: Grid, records: Sequence[Mapping[str, Any]]) -> str:
    """How each row was made: size, steps, time, code and machine, and the very commands."""
    heading = ["row", "parameters", "steps", "training", "seed", "commit", "recipe", "hardware"]
    cells = [
        [
            _row_name(record),
            f"{record['training']['num_parameters'] / 1e6:.2f} M",
            str(record["training"]["num_steps"]),
            format_seconds(record["training"]["seconds"]),
            str(record["seed"]),
            record["commit"],
            record["recipe_hash"],
            _hardware(record["hardware"]),
        ]
        for record in records
    ]
    commands = [
        command
        for record in records
        for command in (
            record["training"]["command"],
            *(each["command"] for each in record["evaluations"].values()),
        )
    ]
    shown = _folded(f"The {len(commands)} commands", "```text\n" + "\n".join(commands) + "\n```")
    return f"{markdown_table(heading, cells)}\n\n{shown}"


def write_pictures(results: Results, folder: Path, prefix: str) -> list[str]:
    """Draws what the records allow.

    Args:
        results: what was measured.
        folder: where to write; it is made.
        prefix: of the links, from the page to the folder.

    Returns:
        Links to the pictures in Markdown.

    Raises:
        ImportError: if matplotlib is missing; says how to install it.
    """
    grid, records = results.grid, results.records
    if not records:
        return []
    drawn = {"curves": ("Learning curves", pictures.learning_curves(grid, records))}
    if squares := [row for row in contrasts(grid, records) if row.interaction is not None]:
        drawn["cells"] = ("Word error rates of the four cells", pictures.four_cells(squares))
    if pictures.has_delays(records):
        shown = pictures.error_against_delay(grid, records)
        drawn["delay"] = ("Word error rate against delay", shown)
    if pictures.has_calibration(records):
        drawn["calibration"] = ("Calibration", pictures.calibration_picture(records))
    folder.mkdir(parents=True, exist_ok=True)
    links = []
    for kind, (title, figure) in drawn.items():
        name = f"results_{grid.name}_{kind}.svg"
        save(figure, folder / name)
        links.append(f"![{title} of {grid.name}]({prefix}{name})")
    return links


def _folded(title: str, text: str) -> str:
    """What a reader opens if wanted; "" if there is nothing in it."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" if text else ""


def _shown_axes(grid: Grid) -> list[str]:
    return [axis for axis in grid.axes if axis != grid.pooled]


def _contrast_text(grid: Grid) -> str:
    assert grid.contrast is not None
    first, second = grid.axes[grid.contrast.inner]
    text = (
        f"Paired differences of word error rates, {second} minus {first}, on the same utterances, "
        f"with 95 % intervals by bootstrap over speakers; below 0, {second} is better."
    )
    if not grid.contrast.outer:
        return text
    before, after = grid.axes[grid.contrast.outer]
    return text + (
        f" The interaction is the difference at {after} minus that at {before}: below 0, {second} "
        f"helps more at {after}. The share of the gap closed is how much of ({after} {first} minus "
        f"{before} {first}) {after} {second} takes away."
    )


def _seconds(found: Mapping[str, float | None]) -> str:
    return " / ".join("-" if found[p] is None else f"{found[p]:.2f}" for p in ("p50", "p90"))


def _row_name(record: Mapping[str, Any]) -> str:
    if origin := record.get("taken_from"):
        return f"{record['row']} (is {origin['row']} of {origin['experiment']})"
    return str(record["row"])


def _hardware(found: Mapping[str, Any]) -> str:
    threads = "thread" if found["num_threads"] == 1 else "threads"
    return f"{found['processor']}, {found['num_threads']} {threads}, torch {found['torch']}"
