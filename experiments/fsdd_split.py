"""Splits the Free Spoken Digit Dataset as the quick-start of google-research/last does, and for us.

    midge prepare manifest corpora/fsdd/manifest.jsonl data/fsdd
    python experiments/fsdd_split.py data/fsdd data/fsdd_quick_start

For the quick-start a test set of 1000 recordings is drawn from all 3000, and recordings of more
than 30 windows of 512 samples, 160 apart, are dropped from both parts. The same six speakers are in
both. The dropped ones are counted, and listed in dropped.txt.

For our own recipe, recordings 5 to 9 of each digit and speaker are taken out of the official
training part: tune_train.jsonl.gz and tune_dev.jsonl.gz. The official test part is 0 to 4.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np

from midge.data import Utterance, read_manifest, write_manifest

SEED = 20221128
NUM_TEST = 1000
WINDOW_SIZE, SHIFT_SIZE, MAX_NUM_WINDOWS = 512, 160, 30
SAMPLE_RATE = 8000
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def num_windows(utterance: Utterance) -> int:
    """Whole windows in a recording; what is after the last of them is not heard."""
    num_samples = round(utterance.duration * SAMPLE_RATE)
    return max((num_samples - WINDOW_SIZE) // SHIFT_SIZE + 1, 0)


def split(utterances: list[Utterance]) -> tuple[list[Utterance], list[Utterance]]:
    """Training and test recordings, in the order of their ids."""
    ordered = sorted(utterances, key=lambda each: each.id)
    chosen = set(np.random.default_rng(SEED).permutation(len(ordered))[:NUM_TEST].tolist())
    train = [each for number, each in enumerate(ordered) if number not in chosen]
    test = [each for number, each in enumerate(ordered) if number in chosen]
    return train, test


def with_alphabet(train: list[Utterance]) -> list[Utterance]:
    """The same, and a text of all letters, so that there are 26 labels as in the quick-start.

    The labels are the letters of the training texts, of which the ten words have 15. The recipe's
    `max_labels` keeps this one text, of no recording of its own, out of the batches.
    """
    return [*train, dataclasses.replace(train[0], id="alphabet", text=ALPHABET)]


def take(utterance: Utterance) -> int:
    """Which recording of a digit by a speaker it is: the number that ends its id."""
    return int(utterance.id.rpartition("_")[2])


def main() -> None:
    """Reads the manifests of one folder, and writes those of another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="folder of train.jsonl.gz and test.jsonl.gz")
    parser.add_argument("output", type=Path, help="folder to write")
    arguments = parser.parse_args()
    parts = [list(read_manifest(arguments.source / f"{n}.jsonl.gz")) for n in ("train", "test")]
    arguments.output.mkdir(parents=True, exist_ok=True)
    dropped: list[str] = []
    for name, members in zip(("train", "test"), split(parts[0] + parts[1]), strict=True):
        kept = [each for each in members if num_windows(each) <= MAX_NUM_WINDOWS]
        dropped += [f"{name} {each.id}\n" for each in members if each not in kept]
        written = with_alphabet(kept) if name == "train" else kept
        write_manifest(arguments.output / f"{name}.jsonl.gz", written)
        print(
            f"{name}: {len(members)} drawn, {len(members) - len(kept)} too long, {len(kept)} kept"
        )
    for name, is_dev in (("tune_train", False), ("tune_dev", True)):
        members = [each for each in parts[0] if (5 <= take(each) < 10) == is_dev]
        write_manifest(arguments.output / f"{name}.jsonl.gz", members)
        print(f"{name}: {len(members)}")
    (arguments.output / "dropped.txt").write_text("".join(dropped), encoding="utf-8")
    print(f"wrote {arguments.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
