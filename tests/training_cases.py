"""A corpus of tones and a recipe so small that a run takes seconds, for the tests of training."""

import json
from pathlib import Path

import numpy as np
import soundfile

from midge.configuration import from_table, with_overrides
from midge.training import Recipe

RATE = 8000
TONES = {"A": 400.0, "B": 900.0, "C": 1500.0, " ": 0.0}


def spoken(text: str, seconds: float = 0.1) -> np.ndarray:
    """Each letter a tone, a space a pause."""
    time = np.arange(round(seconds * RATE)) / RATE
    tones = [0.3 * np.sin(2 * np.pi * TONES[letter] * time) for letter in text]
    return np.concatenate([*tones, np.zeros(0)]).astype(np.float32)


def write_corpus(folder: Path, num_utterances: int = 12, seed: int = 0) -> Path:
    """Writes audio and a manifest, and returns the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    lines = []
    for number in range(num_utterances):
        # Two different letters: two of the same would sound like one.
        words = [
            "".join(random.choice(list("ABC"), 2, replace=False)) for _ in range(1 + number % 3)
        ]
        text = " ".join(words)
        samples = spoken(text)
        name = f"u{seed}-{number:02}"
        soundfile.write(folder / f"{name}.wav", samples, RATE)
        entry = {"id": name, "audio": f"{name}.wav", "text": text}
        lines.append(json.dumps({**entry, "duration": len(samples) / RATE}))
    manifest = folder / "manifest.jsonl"
    manifest.write_text("\n".join(lines) + "\n")
    return manifest


def tiny_table(train: Path, dev: Path | None = None) -> dict:
    """The table of a recipe."""
    data = {"train": str(train), "batch_seconds": 2.0, "max_batch_size": 4, "num_workers": 0}
    return {
        "data": data if dev is None else {**data, "dev": str(dev)},
        "front_end": {
            "sample_rate": RATE,
            "num_mels": 12,
            "stacking": 2,
            "stride": 2,
            "tail_padding": 0.1,
        },
        "encoder": {"kind": "lstm", "num_layers": 1, "size": 16, "dropout": 0.1},
        "lattice": {"context_size": 1, "hidden_size": 12, "embedding_size": 6, "rnn_size": 8},
        "training": {
            "num_steps": 12,
            "learning_rate": 0.01,
            "log_every": 2,
            "evaluate_every": 4,
            "checkpoint_every": 4,
            "device": "cpu",
        },
    }


def tiny_recipe(train: Path, dev: Path | None = None, *assignments: str) -> Recipe:
    """Such a recipe, with assignments "part.field=value"."""
    return from_table(Recipe, with_overrides(tiny_table(train, dev), assignments))
