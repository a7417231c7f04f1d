"""One measurement in a process of its own: `python -m midge.bench.worker INPUTS.npz TASK`.

Prints one JSON object. The peak of training would hide that of decoding, so each has a process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from midge import lattices
from midge.bench import rows, stopwatch

VALUES = {"train": "loss", "decode": "path_weight"}
"""The tasks, and what the mean of their results over the batch is called."""


def engine_name() -> str:
    """The engine behind the lattices; "unknown" where they do not tell."""
    name = getattr(lattices, "engine_name", None)
    return "unknown" if name is None else str(name())


def measure(inputs: Path, task: str) -> dict[str, object]:
    """Measures a task on inputs that `rows.save` wrote."""
    problem = rows.load(inputs)
    rows.warm_up(problem.row)
    newest: list[torch.Tensor] = []

    def step() -> None:
        newest[:] = [problem.train() if task == "train" else problem.decode()]

    cost = stopwatch.measure(step)
    return {
        **cost._asdict(),
        VALUES[task]: newest[0].double().mean().item(),
        "engine": engine_name(),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2])))
