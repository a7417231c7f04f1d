"""CTC and RNN-T losses with their gradients, ours beside what others offer for them.

CTC starts from unnormalized scores; RNN-T from the outputs of an encoder and a predictor, which
both go through the same tanh joint. The worker is `python -m midge.bench.losses CASE CONTESTANT`,
where the case is JSON.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from midge import (
    FrameDependent,
    FullHistory,
    FullNGram,
    LabelFrameDependent,
    RecognitionLattice,
    TableWeights,
    WeightFn,
)
from midge.bench import stopwatch
from midge.bench.contest import LOSS_TOLERANCE, run_json
from midge.bench.worker import engine_name
from midge.weights import Scorer
from midge.weights.base import Linear
from midge.weights.shared import Joint


@dataclass(frozen=True, kw_only=True)
class Case:
    """A loss at a shape."""

    loss: Literal["ctc", "rnnt"]
    batch: int
    frames: int
    labels: int
    vocab: int
    """Size of the alphabet, without blank."""
    hidden: int = 512
    """Size of encoder and predictor outputs and of the joint; for RNN-T alone."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "frames", "labels", "vocab", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        if self.loss == "ctc" and 2 * self.labels > self.frames:
            raise ValueError(
                f"labels should be at most half of frames ({self.frames}), as CTC needs a blank "
                f"between two alike, got {self.labels}"
            )

    @property
    def name(self) -> str:
        """In words."""
        sizes = f"batch {self.batch}, {self.frames} frames, {self.labels} labels"
        hidden = f", hidden {self.hidden}" if self.loss == "rnnt" else ""
        return f"{self.loss}: {sizes}, alphabet {self.vocab}{hidden}"


CTC = tuple(
    Case(loss="ctc", batch=32, frames=1024, labels=256, vocab=vocab) for vocab in (32, 1024)
)
"""The CTC cases."""
RNNT = (Case(loss="rnnt", batch=8, frames=512, labels=128, vocab=1024),)
"""The RNN-T case."""


@dataclass(frozen=True)
class LossCost:
    """What a contestant takes for a case."""

    contestant: str
    seconds: float
    peak_mb: float | None
    loss: float
    """Mean over the batch, in nats."""
    engine: str


def contestants(case: Case) -> list[str]:
    """Ourselves first, then those that can be imported here."""
    if case.loss == "ctc":
        return ["midge", "torch"]
    peers = ("torchaudio", "k2", "warprnnt_numba")
    return ["midge", *(name for name in peers if importlib.util.find_spec(name) is not None)]


def measure_case(
    case: Case,
    names: Sequence[str] | None = None,
    rounds: int = 1,
    progress: Callable[[str], object] | None = None,
) -> list[LossCost]:
    """Measures contestants in turn, each in a process of its own.

    Args:
        case: the loss and its shape.
        names: the contestants, ours first; by default all that are there.
        rounds: how many turns; the best time and the largest peak count.
        progress: called after each measurement with a short note.

    Raises:
        RuntimeError: if a measurement fails, or the losses differ.
    """
    names = contestants(case) if names is None else names
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    described = json.dumps(dataclasses.asdict(case))
    for _ in range(rounds):
        for name in names:
            command = [sys.executable, "-m", "midge.bench.losses", described, name]
            found[name].append(run_json(command))
            if progress is not None:
                progress(f"{case.name}: {name} {found[name][-1]['seconds']:.3g} s")
    costs = [_merged(name, results) for name, results in found.items()]
    for cost in costs[1:]:
        if not abs(cost.loss / costs[0].loss - 1) <= LOSS_TOLERANCE:
            raise RuntimeError(
                f"{case.name}: the loss of {cost.contestant} is {cost.loss}, ours {costs[0].loss}"
            )
    return costs


def _merged(name: str, results: list[dict[str, Any]]) -> LossCost:
    peaks = [result["peak_mb"] for result in results]
    return LossCost(
        name,
        min(result["seconds"] for result in results),
        None if None in peaks else round(max(peaks), 2),
        results[0]["loss"],
        results[0]["engine"],
    )


class GivenPredictor(WeightFn):
    """The joint of a transducer whose predictor outputs are given.

    Args:
        context: the full history.
        hidden_size: size of encoder and predictor outputs, and of the hidden layer.
        outputs: [B, U + 1, hidden_size] predictor outputs after 0, 1, ... labels.
    """

    kind = "joint"

    def __init__(self, context: FullHistory, hidden_size: int, outputs: Tensor) -> None:
        super().__init__()
        self.context = context
        self.input_size = hidden_size
        self.joint = Joint(hidden_size, hidden_size, hidden_size, 1 + context.vocab_size)
        self.outputs = outputs

    def scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        states: Tensor | None,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        raise NotImplementedError("a full history has no list of states")

    def history_scorer(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor,
        linear: Linear = nn.functional.linear,
    ) -> Scorer:
        return self.joint.scorer(frames, self.outputs.flatten(0, 1), linear)

    def logits(self, frames: Tensor) -> Tensor:
        """[B, T, U + 1, 1 + V] all scores at once, as other losses want them."""
        joint = self.joint
        by_label = joint.context_projection(self.outputs) + joint.hidden_bias
        hidden = torch.tanh(joint.frame_projection(frames)[:, :, None] + by_label[:, None])
        scores: Tensor = joint.output(hidden)
        return scores


@dataclass(frozen=True)
class _Inputs:
    """A case with its numbers."""

    frames: Tensor
    """Scores for CTC, encoder outputs for RNN-T; with a gradient."""
    num_frames: Tensor
    labels: Tensor
    num_labels: Tensor
    lattice: RecognitionLattice


def _inputs(case: Case) -> _Inputs:
    generator = np.random.default_rng(case.seed)

    def normal(*size: int) -> Tensor:
        numbers = generator.standard_normal(size, dtype=np.float32)
        return torch.from_numpy(numbers).requires_grad_()

    labels = torch.from_numpy(generator.integers(1, case.vocab + 1, (case.batch, case.labels)))
    num_frames = torch.full((case.batch,), case.frames)
    num_labels = torch.full((case.batch,), case.labels)
    torch.manual_seed(case.seed)
    if case.loss == "ctc":
        context = FullNGram(case.vocab, 0)
        lattice = RecognitionLattice(
            context, FrameDependent(), TableWeights(context), "softmax", deduplicate=True
        )
        frames = normal(case.batch, case.frames, 1 + case.vocab)
    else:
        history = FullHistory(case.vocab)
        outputs = normal(case.batch, case.labels + 1, case.hidden)
        weights = GivenPredictor(history, case.hidden, outputs)
        lattice = RecognitionLattice(history, LabelFrameDependent(None), weights, "softmax")
        frames = normal(case.batch, case.frames, case.hidden)
    return _Inputs(frames, num_frames, labels, num_labels, lattice)


def _midge(inputs: _Inputs) -> Tensor:
    losses: Tensor = inputs.lattice(
        inputs.frames, inputs.num_frames, inputs.labels, inputs.num_labels
    )
    return losses


def _torch(inputs: _Inputs) -> Tensor:
    return nn.functional.ctc_loss(
        inputs.frames.log_softmax(-1).transpose(0, 1),
        inputs.labels,
        inputs.num_frames,
        inputs.num_labels,
        reduction="none",
    )


def _torchaudio(inputs: _Inputs) -> Tensor:
    losses: Tensor = importlib.import_module("torchaudio.functional").rnnt_loss(
        _logits(inputs),
        inputs.labels.int(),
        inputs.num_frames.int(),
        inputs.num_labels.int(),
        blank=0,
        reduction="none",
    )
    return losses


def _k2(inputs: _Inputs) -> Tensor:
    nothing = torch.zeros_like(inputs.num_labels)
    boundary = torch.stack([nothing, nothing, inputs.num_labels, inputs.num_frames], dim=1)
    losses: Tensor = importlib.import_module("k2").rnnt_loss(
        _logits(inputs), inputs.labels, 0, boundary=boundary, reduction="none"
    )
    return losses


def _warprnnt_numba(inputs: _Inputs) -> Tensor:
    loss = importlib.import_module("warprnnt_numba").RNNTLossNumba(blank=0, reduction="none")
    losses: Tensor = loss(
        _logits(inputs), inputs.labels.int(), inputs.num_frames.int(), inputs.num_labels.int()
    )
    return losses.flatten()


def _logits(inputs: _Inputs) -> Tensor:
    assert isinstance(inputs.lattice.weights, GivenPredictor)
    return inputs.lattice.weights.logits(inputs.frames)


_LOSSES: dict[str, Callable[[_Inputs], Tensor]] = {
    "midge": _midge,
    "torch": _torch,
    "torchaudio": _torchaudio,
    "k2": _k2,
    "warprnnt_numba": _warprnnt_numba,
}


def _step(inputs: _Inputs, name: str) -> Tensor:
    inputs.frames.grad = None
    inputs.lattice.zero_grad(set_to_none=True)
    if isinstance(inputs.lattice.weights, GivenPredictor):
        inputs.lattice.weights.outputs.grad = None
    losses = _LOSSES[name](inputs)
    losses.sum().backward()
    return losses.detach()


def measure_here(case: Case, name: str) -> dict[str, object]:
    """Measures one contestant in this process."""
    inputs = _inputs(case)
    tiny = dataclasses.replace(case, batch=1, frames=4, labels=2, vocab=2, hidden=2)
    _step(_inputs(tiny), name)  # loads what is loaded once
    newest: list[Tensor] = []

    def step() -> None:
        newest[:] = [_step(inputs, name)]

    cost = stopwatch.measure(step)
    version = engine_name() if name == "midge" else f"torch {torch.__version__}"
    return {**cost._asdict(), "loss": newest[0].double().mean().item(), "engine": version}


if __name__ == "__main__":
    print(json.dumps(measure_here(Case(**json.loads(sys.argv[1])), sys.argv[2])))
