"""The share of the machine's sgemm peak that the joint reaches.

The joint W tanh(h_t + e_q) + b of all frames and states is 2 B T Q H (1 + V) floating-point
operations; a training step computes it twice (again for the gradient) and has two more products of
that size. The worker is `python -m midge.bench.peak INPUTS.npz`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from midge.bench import rows
from midge.bench.contest import run_json
from midge.bench.rows import Row, Shape
from midge.bench.worker import engine_name

ROW = Row(2, "frame", "shared-rnn", "global")
"""The row whose joint is measured."""
SGEMM_SIZE = 2048
"""Rows and columns of the matrices whose product is taken for the machine's peak."""
_ROUNDS = 5


@dataclass(frozen=True)
class Peak:
    """Speeds measured in turn in one process, the best of a few rounds each."""

    shape: Shape
    sgemm_gflops: float
    """Of torch.mm on 2048 x 2048 matrices."""
    forward_gflops: float
    """Of the joint's operations over the time of log Z alone."""
    train_gflops: float
    """Of four times as many over the time of a training step."""
    engine: str
    threads: int

    @property
    def forward_share(self) -> float:
        """Of the peak, in the forward pass."""
        return self.forward_gflops / self.sgemm_gflops

    @property
    def train_share(self) -> float:
        """Of the peak, over the whole training step."""
        return self.train_gflops / self.sgemm_gflops

    def to_json(self) -> dict[str, object]:
        """With the shares."""
        shares = {"forward_share": self.forward_share, "train_share": self.train_share}
        return {**dataclasses.asdict(self), **shares}

    def __str__(self) -> str:
        return (
            f"sgemm {self.sgemm_gflops:.1f} GFLOP/s ({SGEMM_SIZE} square, {self.threads} threads)\n"
            f"joint, forward pass: {self.forward_gflops:.1f} GFLOP/s, {self.forward_share:.0%}\n"
            f"joint, training step: {self.train_gflops:.1f} GFLOP/s, {self.train_share:.0%}\n"
            f"({ROW.name}; batch {self.shape.batch}, {self.shape.frames} frames; {self.engine})"
        )


def joint_flops(row: Row, shape: Shape) -> int:
    """2 B T Q H (1 + V).

    Example:
        >>> joint_flops(ROW, rows.REDUCED) / 1e9
        45.71922432
    """
    num_states = sum(shape.vocab**size for size in range(row.context + 1))
    cells = shape.batch * shape.frames * num_states
    return 2 * cells * shape.hidden * (1 + shape.vocab)


def measure_peak(shape: Shape, seed: int = 0) -> Peak:
    """Measures in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        rows.save(inputs, ROW, shape, seed)
        measured = run_json([sys.executable, "-m", "midge.bench.peak", str(inputs)])
    return Peak(shape, **measured)


def measure_here(inputs: Path) -> dict[str, object]:
    """Measures in this process."""
    problem = rows.load(inputs)
    left, right = torch.randn(2, SGEMM_SIZE, SGEMM_SIZE)
    steps: dict[str, Callable[[], object]] = {
        "sgemm": lambda: torch.mm(left, right),
        "forward": problem.log_z,
        "train": problem.train,
    }
    joint = joint_flops(problem.row, problem.shape)
    flops = {"sgemm": 2 * SGEMM_SIZE**3, "forward": joint, "train": 4 * joint}
    best = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    for _ in range(_ROUNDS):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            best[name] = min(best[name], time.perf_counter() - started)
        if sum(best.values()) > 30:
            break
    speeds = {f"{name}_gflops": flops[name] / best[name] / 1e9 for name in steps}
    return {**speeds, "engine": engine_name(), "threads": torch.get_num_threads()}


if __name__ == "__main__":
    print(json.dumps(measure_here(Path(sys.argv[1]))))
