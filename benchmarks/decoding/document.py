"""Measures what docs/decoding_results.md shows, and writes it.

    python benchmarks/decoding/document.py \\
        runs/an4 data/an4/test.jsonl.gz --name "AN4, global" \\
        runs/an4-local data/an4/test.jsonl.gz --name "AN4, local"
    python benchmarks/decoding/document.py --part searches --part margins ...  # some parts
    python benchmarks/decoding/document.py  # the page alone, from what is there

Measurements are kept in a file of results, part by part: a run that was interrupted goes on where
it stopped. `--again` measures the chosen parts anew. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from live import NUM_DECODINGS, measure_latency, measure_live_words
from margins import measure_margins
from measuring import Subject
from page import page
from pictures import draw_all
from posteriors import measure_posteriors
from results import ROOT, About, Store
from searches import measure_searches

from midge.data import Utterance, read_manifest
from midge.models import Recognizer, load
from midge.progress import Progress

NUM_ROUNDS = 3


@dataclass(frozen=True)
class Part:
    """Something that is measured as a whole, or not at all."""

    measure: Callable[[Subject], Any]
    num_decodings: int = 1
    """How often it decodes every utterance, for the progress bar."""
    needs_stream: bool = False


def rows_of(measure: Callable[[Subject], Sequence[Any]]) -> Callable[[Subject], Any]:
    """The rows as JSON holds them."""
    return lambda subject: [asdict(row) for row in measure(subject)]


PARTS = {
    "searches": Part(rows_of(measure_searches)),
    "posteriors": Part(rows_of(measure_posteriors)),
    "live-words": Part(measure_live_words, needs_stream=True),
    "margins": Part(rows_of(measure_margins)),
    "latency": Part(measure_latency, NUM_DECODINGS, needs_stream=True),
}


def measure(
    store: Store,
    name: str,
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    parts: Sequence[str],
    num_rounds: int,
) -> None:
    """Measures the parts that the store does not have of one model."""
    for key in parts:
        part = PARTS[key]
        if store.has(name, key):
            continue
        if part.needs_stream and not recognizer.encoder.is_streaming:
            print(f"{name}: no {key}, the encoder hears the whole recording")
            continue
        total = part.num_decodings * len(utterances)
        with Progress(total, f"{name}: {key}", unit="utterances") as progress:
            subject = Subject(recognizer, utterances, num_rounds, progress.advance)
            store.keep(name, key, part.measure(subject))


def spread(utterances: Sequence[Utterance], limit: int | None) -> list[Utterance]:
    """At most so many utterances, evenly from all of the manifest."""
    if limit is None or limit >= len(utterances):
        return list(utterances)
    return [utterances[place * len(utterances) // limit] for place in range(limit)]


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="*", type=Path, metavar="MODEL MANIFEST")
    parser.add_argument("--name", action="append", default=[], help="of each model, in order")
    parser.add_argument(
        "--trained-by", action="append", default=[], metavar="COMMAND", help="likewise, to be told"
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="(all)")
    parser.add_argument("--again", action="store_true", help="measure the parts anew")
    parser.add_argument("--limit", type=int, metavar="N", help="utterances of each manifest (all)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=NUM_ROUNDS,
        help=f"of which the least time counts ({NUM_ROUNDS})",
    )
    parser.add_argument("--threads", type=int, default=1, help="(1)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "decoding_results.md")
    parser.add_argument("--results", type=Path, help="(beside the page, as .json)")
    parser.add_argument("--pictures", type=Path, help="folder (images, beside the page)")
    found = parser.parse_intermixed_args(words)
    if len(found.pairs) % 2:
        parser.error("models and manifests should come in pairs")
    count = len(found.pairs) // 2
    for option, given in (("--name", found.name), ("--trained-by", found.trained_by)):
        if given and len(given) != count:
            parser.error(f"{option} should be given {count} times, or not at all")
    if len(set(found.name)) < len(found.name):
        parser.error("--name should be another one for each model")
    for option in ("limit", "rounds", "threads"):
        value = getattr(found, option)
        if value is not None and value < 1:
            parser.error(f"--{option} should be at least 1, got {value}")
    return found


def measure_all(store: Store, arguments: argparse.Namespace) -> None:
    """Measures what is missing of every model that is named."""
    parts = arguments.part or list(PARTS)
    models, manifests = arguments.pairs[::2], arguments.pairs[1::2]
    names = arguments.name or [path.name for path in models]
    origins = arguments.trained_by or [""] * len(models)
    options: list[str] = []
    if arguments.limit is not None:
        options += ["--limit", str(arguments.limit)]
    if arguments.rounds != NUM_ROUNDS:
        options += ["--rounds", str(arguments.rounds)]
    for name, model, manifest, origin in zip(names, models, manifests, origins, strict=True):
        recognizer = load(model)
        utterances = spread(read_manifest(manifest), arguments.limit)
        if arguments.again:
            for part in parts:
                store.forget(name, part)
        about = About.of(
            model, manifest, recognizer, utterances, trained_by=origin, options=tuple(options)
        )
        store.enter(name, about)
        measure(store, name, recognizer, utterances, parts, arguments.rounds)


def main(words: Sequence[str] | None = None) -> None:
    arguments = arguments_of(words)
    torch.set_num_threads(arguments.threads)
    store = Store(arguments.results or arguments.output.with_suffix(".json"))
    measure_all(store, arguments)
    if not store.names():
        raise SystemExit(f"{store.path} has no results; name a model and its manifest")
    pictures = arguments.pictures or arguments.output.parent / "images"
    draw_all(store, pictures)
    folder = Path(os.path.relpath(pictures, arguments.output.parent)).as_posix()
    arguments.output.write_text(page(store, folder), encoding="utf-8")
    print(f"Wrote {arguments.output}")


if __name__ == "__main__":
    main()
