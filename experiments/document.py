"""Writes docs/results.md and its pictures from the results in experiments/results.

    cp runs/an4_square/results.json experiments/results/an4_square.json
    python experiments/document.py

results.json is what `midge experiment` writes. Text by hand is in experiments/texts: a file for
each experiment, and what_did_not_work.md.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from midge.experiments.pages import (
    Results,
    emission_table,
    read_results,
    section,
    summary_table,
    write_pictures,
)

ROOT = Path(__file__).parents[1]
GRIDS = ROOT / "experiments"
PAGE = ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "images"
ORDER = (
    "fsdd_quick_start",
    "fsdd_tuning",
    "fsdd_best",
    "an4_tuning",
    "an4_square",
    "an4_square_1gram",
    "an4_long",
    "an4_table1",
    "an4_weights",
    "an4_entropy",
    "delay_digits",
    "delay_spoken",
)
INTRODUCTION = """\
# Results

What our software measures on real speech, and how to repeat each row. `python
experiments/document.py` writes this page from the records in `experiments/results`, which `midge
experiment` makes; nothing here is written by hand but the paragraphs about the experiments. A row
that is not there is listed as missing. Word error rates are in %, with 95 % intervals by bootstrap
over speakers: they tell how much a figure owes to who was recorded, not to the seed of a training.
"""


def read_all() -> list[Results]:
    """All experiments, in the order of the page."""
    # Recipes in a grid are relative to the root of the project.
    os.chdir(ROOT)
    return [
        read_results(GRIDS / f"{name}.toml", GRIDS / "results" / f"{name}.json") for name in ORDER
    ]


def text_of(name: str) -> str:
    """What is written by hand; "" if there is nothing."""
    path = GRIDS / "texts" / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def emissions_of(name: str) -> str:
    """When the rows write words, as experiments/emissions.py found; "" if it was not run."""
    path = GRIDS / "emissions" / f"{name}.json"
    return emission_table(name, json.loads(path.read_text("utf-8"))) if path.exists() else ""


def page(several: list[Results], figures: Path) -> str:
    """The whole page; writes the pictures."""
    parts = [INTRODUCTION, summary_table(several) + "\n"]
    for results in several:
        links = write_pictures(results, figures, "images/")
        name = results.grid.name
        parts.append(section(results, text_of(name), links, emissions_of(name)))
    return "\n".join([*parts, text_of("what_did_not_work")])


def main() -> None:
    """Writes the page."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PAGE.write_text(page(read_all(), FIGURES), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
