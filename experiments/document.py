"""Writes docs/results.md and its pictures from the results in experiments/results.

    cp runs/an4_square/results.json experiments/results/an4_square.json
    python experiments/document.py

results.json is what `midge experiment` writes. Text by hand is in experiments/texts: a file for
each experiment, and what_did_not_work.md. What score_models.py found of the models that are in the
repository is a section of its own, and goes into the card of the default model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midge.experiments import Grid, pools
from midge.experiments.pages import (
    Results,
    delay_table,
    emission_table,
    group_table,
    match_table,
    rate_table,
    read_results,
    section,
    summary_table,
    write_pictures,
)
from midge.experiments.records import stored_records
from midge.experiments.tables import markdown_table, percent

ROOT = Path(__file__).parents[1]
GRIDS = ROOT / "experiments"
PAGE = ROOT / "docs" / "results.md"
CARD = ROOT / "src" / "midge" / "models" / "default" / "README.md"
MODELS = GRIDS / "models" / "results.json"
FIGURES = ROOT / "docs" / "images"
ORDER = (
    "fsdd_quick_start",
    "fsdd_tuning",
    "fsdd_best",
    "an4_tuning",
    "an4_square",
    "an4_square_1gram",
    "an4_rates_1gram",
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
that is not there is listed as missing.

The commands at the head of an experiment make all of its rows, from the root of the project, with
the corpora that `recipes/README.md` names in the folder `corpora`; those of each row are folded
away below it. Word error rates are in %, with 95 % intervals by bootstrap over speakers: they tell
how much a figure owes to who was recorded, not to the seed of a training, and where the speakers
are ten or less they are too narrow.
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


MODELS_TEXT = """\
## models

The models that are in the repository, scored by

```sh
python experiments/score_models.py runs/models
```

on AN4's official test set, on strings of digits by eight speakers of AudioMNIST that neither was
trained on, on FSDD's official test set, which is foreign to both, and on synthetic speech by voices
that neither has heard. `default` is the one that comes with midge
(`src/midge/models/default/README.md`), `an4_streaming` the streaming 2-gram of an4-long.
"""


def models_section(records: Mapping[str, Any]) -> str:
    """What was found of the models that are here."""
    rows = list(records.values())
    grid = Grid(name="models", description="", axes={"model": tuple(records)}, rows=())
    found = pools(grid, rows)
    tables = [rate_table(grid, found), group_table(grid, found), match_table(grid, found)]
    commands = [each["command"] for row in rows for each in row["evaluations"].values()]
    tables += [delay_table(rows), "```sh\n" + "\n".join(commands) + "\n```"]
    return "\n\n".join([MODELS_TEXT.strip(), *tables]) + "\n"


SHOWN = (
    ("an4", "all", "AN4, official test set, by the best path"),
    ("an4-sum-path", "all", "the same by the most probable text (`--decoder sum-path`)"),
    ("an4", "an4_new_texts", "AN4, the test texts that do not occur in training"),
    ("digit-strings", "all", "strings of digits by eight speakers held out"),
    ("fsdd", "all", "FSDD, official test set: a foreign corpus of single digits at 8 kHz"),
    ("spoken", "kind=commands", "synthetic commands, by voices held out"),
    ("spoken", "kind=digits", "synthetic digits, by voices held out"),
    ("spoken", "kind=letters", "synthetic letters, by voices held out"),
    ("spoken", "kind=numbers", "synthetic numbers, by voices held out"),
)
"""Evaluation and group of each line of the card, and what it is."""


def card_tables(record: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the default model's card that are measured, by name."""
    scored = record["evaluations"]
    rates = []
    for name, group, title in SHOWN:
        found = scored[name]["groups"][group]
        words = found["words"]
        ends = f"[{percent(words['low'])}, {percent(words['high'])}]"
        rates.append([title, str(found["num_words"]), f"{percent(words['estimate'])} % {ends}"])
    fsdd = scored["fsdd"]["groups"]
    matches = [1 - fsdd[group]["sentences"]["estimate"] for group in ("all", "nearest word")]
    delays = []
    for name, title in (
        ("digit-strings", "strings of digits, speakers held out"),
        ("spoken", "synthetic speech, voices held out"),
    ):
        times = scored[name]["streaming"]["percentiles"]
        cells = [
            ", ".join(f"{times[kind][p]:.2f}" for p in ("p50", "p90", "p99")) + " s"
            for kind in ("first_shown", "last_changed")
        ]
        words = f"{times['last_changed']['count']} of {scored[name]['groups']['all']['num_words']}"
        delays.append([title, words, *cells])
    return {
        "rates": markdown_table(["test set", "words", "word error rate"], rates),
        "matches": f"Of FSDD's recordings {percent(matches[0])} % are wholly right, and "
        f"{percent(matches[1])} % once mapped to the nearest of the ten words.",
        "delays": markdown_table(
            [
                "test set",
                "words that are right",
                "first shown: p50, p90, p99",
                "last changed: p50, p90, p99",
            ],
            delays,
        ),
        "commands": "```sh\n" + "\n".join(each["command"] for each in scored.values()) + "\n```",
    }


def card(text: str, record: Mapping[str, Any]) -> str:
    """The card with what was measured, between comments that name each part.

    Raises:
        ValueError: if a part has no place in it.
    """
    for name, table in card_tables(record).items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = place.subn(
            lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", text
        )
        if count != 1:
            raise ValueError(f"the card should have one place for {name}, it has {count}")
    return text


def page(several: list[Results], figures: Path) -> str:
    """The whole page; writes the pictures."""
    parts = [INTRODUCTION, summary_table(several) + "\n"]
    for results in several:
        links = write_pictures(results, figures, "images/")
        name = results.grid.name
        parts.append(section(results, text_of(name), links, emissions_of(name)))
    parts.append(models_section(stored_records(MODELS)))
    return "\n".join([*parts, text_of("what_did_not_work")])


def main() -> None:
    """Writes the page and the card."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PAGE.write_text(page(read_all(), FIGURES), encoding="utf-8")
    measured = stored_records(MODELS)["default"]
    CARD.write_text(card(CARD.read_text("utf-8"), measured), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {CARD.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
