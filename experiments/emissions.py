"""Compares when the rows of an experiment write the same words, on speech without word times.

    midge experiment experiments/an4_square.toml --output runs/an4_square
    python experiments/emissions.py experiments/an4_square.toml runs/an4_square held-out

A streaming model may wait, and be better for it. Where nobody has written down when words end,
their delay is not known, but differences of delays are: this takes the words that two rows both
have right, and the time of their last letter on the best path of each. All rows are compared with
the first one of their fold or seed. Writes experiments/emissions/<experiment>.json for document.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from midge.decoding.errors import align
from midge.decoding.reports import load
from midge.experiments import Grid, read_grid
from midge.experiments.pages import EMISSION_PERCENTILES, emission_table

FOLDER = Path(__file__).parent / "emissions"


def word_ends(evaluation: Path) -> dict[tuple[str, int], float]:
    """When each word that is right was written, in seconds.

    Args:
        evaluation: what `midge evaluate` wrote.

    Returns:
        By id of the utterance and number of the word in its reference.
    """
    found = {}
    for result in load(evaluation).results:
        place = heard = 0
        for pair in align(result.reference.split(), result.hypothesis.split()):
            if pair.operation == "=":
                found[result.id, place] = result.words[heard].end
            place += pair.reference is not None
            heard += pair.hypothesis is not None
    return found


def differences(grid: Grid, runs: Path, evaluation: str) -> dict[str, list[float]]:
    """Seconds by which words come later than in the first row, by the values of the other axes.

    Args:
        grid: the experiment; rows that differ in its pooled axis alone are taken together.
        runs: its folder. Repetitions of which a row was not evaluated are left out.
        evaluation: name of one without a decoder of its own.
    """
    by_repeat: dict[str, dict[str, Path]] = {}
    for row in grid.rows:
        name = "-".join(value for axis, value in row.values.items() if axis != grid.pooled)
        folder = runs / row.name / "evaluations" / evaluation
        by_repeat.setdefault(row.values.get(grid.pooled, ""), {})[name] = folder
    found: dict[str, list[float]] = {}
    for folders in by_repeat.values():
        if not all((folder / "hypotheses.jsonl").exists() for folder in folders.values()):
            continue
        ends = {name: word_ends(folder) for name, folder in folders.items()}
        first, *others = ends
        for name in others:
            common = sorted(ends[first].keys() & ends[name].keys())
            later = [ends[name][word] - ends[first][word] for word in common]
            found.setdefault(name, []).extend(later)
    return found


def summary(grid: Grid, runs: Path, evaluation: str) -> dict[str, Any]:
    """What is kept of the differences."""
    found = differences(grid, runs, evaluation)
    first = "-".join(v for a, v in grid.rows[0].values.items() if a != grid.pooled)
    rows = {
        name: {
            "num_words": len(later),
            "mean": round(float(np.mean(later)), 4),
            **{f"p{p}": round(float(np.percentile(later, p)), 4) for p in EMISSION_PERCENTILES},
        }
        for name, later in found.items()
        if later
    }
    return {"evaluation": evaluation, "first": first, "rows": rows}


def main() -> None:
    """Writes the differences, and shows them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grid", type=Path, help="the experiment")
    parser.add_argument("runs", type=Path, help="its folder")
    parser.add_argument("evaluation", help="name of one by the best path")
    arguments = parser.parse_args()
    grid = read_grid(arguments.grid)
    found = summary(grid, arguments.runs, arguments.evaluation)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{grid.name}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(emission_table(grid.name, found))


if __name__ == "__main__":
    main()
