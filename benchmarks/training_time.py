"""Where the time of a training step goes: reading and features, encoder, lattice, optimizer.

    midge prepare spoken data/spoken
    python benchmarks/training_time.py recipes/spoken/streaming.toml
    python benchmarks/training_time.py recipes/an4/streaming.toml --set lattice.normalization=hat

Loads batches in this process first, as one worker would, and then trains on them, part by part.
Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch

from midge.data import plan_forever
from midge.training import opened_run, read_recipe
from midge.training.losses import encoder_arithmetic

PARTS = (
    "encoder, forward",
    "lattice, forward",
    "lattice, backward",
    "encoder, backward",
    "optimizer",
)


def measure(recipe_path: Path, overrides: list[str], num_steps: int) -> None:
    """Prints seconds per step and shares."""
    recipe = read_recipe(recipe_path, overrides)
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, num_workers=0))
    with tempfile.TemporaryDirectory() as folder, opened_run(recipe, folder) as training:
        plan = plan_forever(
            [utterance.duration for utterance in training.corpus.utterances],
            seed=recipe.training.seed,
            batch_seconds=recipe.data.batch_seconds,
            max_batch_size=recipe.data.max_batch_size,
        )
        loaded = training.loader.load(plan)
        batches = [next(loaded)]  # not timed: it loads libraries too
        started = time.perf_counter()
        batches += itertools.islice(loaded, num_steps)
        loading = (time.perf_counter() - started) / num_steps
        optimizer = torch.optim.Adam(training.recognizer.parameters(), lr=1e-6, fused=True)
        step = functools.partial(one_step, training.recognizer, optimizer, recipe.training)
        times = [step(batch) for batch in batches][1:]
    seconds = [statistics.median(column) for column in zip(*times, strict=True)]
    total = sum(seconds)
    audio = sum(batch.seconds for batch in batches) / len(batches)
    print(
        f"{audio:.1f} s of audio in a step, which takes {total:.3f} s on "
        f"{torch.get_num_threads()} threads (median of {num_steps}):"
    )
    for name, part in zip(PARTS, seconds, strict=True):
        print(f"  {name:<18} {part:.3f} s  {part / total:4.0%}")
    print(
        f"One worker reads, augments and transforms a batch in {loading:.3f} s: "
        f"{loading / total:.0%} of a step, in parallel with it."
    )


def one_step(recognizer, optimizer, config, batch) -> list[float]:  # type: ignore[no-untyped-def]
    """Seconds of each part."""
    times = [time.perf_counter()]
    with encoder_arithmetic(config, batch.features.device):
        frames = recognizer.encode(batch.features, batch.num_features)
    times.append(time.perf_counter())
    cut = frames.detach().requires_grad_()
    loss = recognizer.lattice(cut, batch.num_features, batch.labels, batch.num_labels)
    loss = loss.sum() / batch.num_labels.sum()
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    frames.backward(cut.grad)
    times.append(time.perf_counter())
    torch.nn.utils.clip_grad_norm_(recognizer.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    measure(arguments.recipe, arguments.overrides, arguments.steps)


if __name__ == "__main__":
    main()
