"""Peak memory of a loss with its gradient, above its inputs and parameters.

    python benchmarks/memory.py              # both claims of the documentation
    python benchmarks/memory.py gnat --json  # one of them, for a program

The peak is the process's high-water mark less its resident size just before the step, with inputs
and parameters already there and gradients counted. Each case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch

import midge
from midge.bench.stopwatch import memory_mb


def gnat() -> Callable[[], torch.Tensor]:
    """The global loss: 2-gram, vocabulary 32, shared RNN 640, batch 4, 1024 frames, 256 labels."""
    context = midge.FullNGram(32, 2)
    weights = midge.SharedRNNWeights(context, 512, 640, 128, 640)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
    return step(lattice, batch_size=4, num_frames=1024, num_labels=256)


def rnnt() -> Callable[[], torch.Tensor]:
    """The RNN-T loss: vocabulary 1024, hidden size 512, batch 8, 512 frames, 128 labels.

    The joint network's full output would be 2.2 GB.
    """
    context = midge.FullHistory(1024)
    weights = midge.SharedRNNWeights(context, 512, 512, 128, 512)
    lattice = midge.RecognitionLattice(
        context, midge.LabelFrameDependent(None), weights, normalization="softmax"
    )
    return step(lattice, batch_size=8, num_frames=512, num_labels=128)


def wide() -> Callable[[], torch.Tensor]:
    """A global loss with more than 2^31 arcs: 1-gram, vocabulary 1024, 2100 frames."""
    context = midge.FullNGram(1024, 1)
    weights = midge.UnsharedWeights(context, 2)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
    return step(lattice, batch_size=1, num_frames=2100, num_labels=20)


def step(
    lattice: midge.RecognitionLattice, batch_size: int, num_frames: int, num_labels: int
) -> Callable[[], torch.Tensor]:
    """One training step on random inputs."""
    torch.manual_seed(0)
    frames = torch.randn(batch_size, num_frames, lattice.weights.input_size, requires_grad=True)
    labels = torch.randint(1, 1 + lattice.context.vocab_size, (batch_size, num_labels))
    lengths = torch.full((batch_size,), num_frames), torch.full((batch_size,), num_labels)

    def run() -> torch.Tensor:
        loss = lattice(frames, lengths[0], labels, lengths[1])
        loss.sum().backward()
        return loss.detach()

    return run


CASES = {"gnat": gnat, "rnnt": rnnt, "wide": wide}
LIMITS_MB = {"gnat": 400, "rnnt": 600}


def measure(name: str) -> dict[str, object]:
    """Runs one case in this process."""
    # A first small step loads what PyTorch loads once.
    context = midge.FullNGram(2, 1)
    small = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.SharedRNNWeights(context, 4, 4, 4, 4)
    )
    step(small, 1, 4, 2)()
    run = CASES[name]()
    before = memory_mb("VmRSS")
    started = time.perf_counter()
    loss = run()
    seconds = time.perf_counter() - started
    peak = memory_mb("VmHWM")
    assert before is not None and peak is not None, "this needs Linux"
    return {
        "case": name,
        "peak_mb": round(peak - before, 1),
        "seconds": round(seconds, 1),
        "loss": float(loss.mean()),
    }


def main() -> None:
    """Prints a table, or one case as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", choices=sorted(CASES))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.json:
        if arguments.case is None:
            parser.error("--json needs a case")
        print(json.dumps(measure(arguments.case)))
        return
    for name in [arguments.case] if arguments.case else CASES:
        print(f"{name}: {' '.join((CASES[name].__doc__ or '').split())}", flush=True)
        command = [sys.executable, __file__, name, "--json"]
        result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        limit = f", limit {LIMITS_MB[name]} MB" if name in LIMITS_MB else ""
        print(f"  {result['peak_mb']} MB{limit}, {result['seconds']} s, loss {result['loss']:.3f}")


if __name__ == "__main__":
    main()
