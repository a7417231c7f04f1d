"""Lists the utterances of AN4's test set whose texts are also said in training, and the others.

    midge prepare manifest corpora/an4/manifest.jsonl data/an4-folds --folds 5
    python experiments/an4_lists.py data/an4-folds experiments/lists

A text that was heard in training is easier, whoever says it: the two are reported apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from midge.data import read_manifest


def main() -> None:
    """Reads train and test of a folder, and writes the two lists of ids."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="folder of train.jsonl.gz and test.jsonl.gz")
    parser.add_argument("output", type=Path, help="folder of the lists")
    arguments = parser.parse_args()
    train, test = (read_manifest(arguments.source / f"{n}.jsonl.gz") for n in ("train", "test"))
    heard = {utterance.text for utterance in train}
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, is_heard in (("an4_heard_texts", True), ("an4_new_texts", False)):
        ids = sorted(each.id for each in test if (each.text in heard) == is_heard)
        (arguments.output / f"{name}.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")
        print(f"{name}: {len(ids)} utterances")


if __name__ == "__main__":
    main()
