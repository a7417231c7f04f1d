"""Label bias: what a streaming, locally normalized model cannot do, and how to see it.

The task: the label of a frame is the symbol of the *next* frame, and the last frame's label is the
first symbol. Frames are one-hot symbols; every input is equally likely. There are U labels, V
symbols and, unless frames are spared, U frames, so that each frame must emit its label at once.

What the theory says. A streaming, locally normalized model spends its probability on label u when
it has heard frames 1..u alone, and what it hears later can take none of it back: P(label u | all
frames) = P(label u | frames 1..u). Frame u + 1 is still any of V symbols then. Hence, for whatever
parameters, over all V^U inputs,

- the mean loss is at least (U - 1) log V: U - 1 labels are ambiguous when they are emitted;
- the most probable label of a frame is right for exactly one in V of the ambiguous labels.

A globally normalized model with the same streaming encoder escapes: at frame u + 1 it sees both the
symbol and, as its context state, the label it emitted before, and gives weight to those paths on
which the two agree. That is a revision of the earlier label. It needs a context of at least one
label: with none the global model equals the local one, and fails too. A model that hears the next
frame needs no revision. And with one frame more than labels a streaming, locally normalized model
succeeds as well, by waiting: blank first, then every label one frame late.

All inputs are evaluated, so the two statements above hold without sampling error.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from midge import FrameDependent, FullNGram, RecognitionLattice, UnsharedWeights

MAX_NUM_INPUTS = 2**16
"""The most inputs that a task may have, as all of them are evaluated."""

ROUNDING = 1e-4
"""How far, in nats, rounding may take the mean loss below its bound."""
SMALL_LOSS = 0.1
"""Nats per utterance below which a model counts as successful."""
ACCURACY_TOLERANCE = 0.01
"""How far the share of right labels may be from its prediction."""
DELAY_TOLERANCE = 0.05
"""How far the mean delay may be from its prediction, in frames."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The sizes of the task, of the models and of their training."""

    vocab_size: int = 4
    """Number of symbols, V."""
    num_labels: int = 5
    """Number of labels of an utterance, U."""
    context_size: int = 1
    """Labels that a context state remembers."""
    hidden_size: int = 32
    """Size of the encoder's output."""
    batch_size: int = 64
    """Utterances per training step."""
    num_steps: int = 100
    """Training steps of each model."""
    learning_rate: float = 0.03
    """That of the first step; it falls linearly to 0."""
    seed: int = 0
    """Of the parameters, the training batches and the utterance that is kept for the picture."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} should be at least {least}, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate should be positive, got {self.learning_rate}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed should be in 0..2**63 - 1, got {self.seed}")
        if self.num_inputs > MAX_NUM_INPUTS:
            raise ValueError(
                f"vocab_size ** num_labels should be at most {MAX_NUM_INPUTS}, as all inputs are "
                f"evaluated, got {self.vocab_size} ** {self.num_labels} = {self.num_inputs}"
            )

    @property
    def num_inputs(self) -> int:
        """Number of different inputs, V^U."""
        return self.vocab_size**self.num_labels

    @property
    def num_ambiguous(self) -> int:
        """Labels of an utterance whose frame comes before the one that decides them, U - 1."""
        return self.num_labels - 1


_LEAST = {
    "vocab_size": 2,
    "num_labels": 2,
    "context_size": 0,
    "hidden_size": 1,
    "batch_size": 1,
    "num_steps": 1,
}


@dataclass(frozen=True)
class Case:
    """One model of the demonstration."""

    is_streaming: bool
    """Whether the encoder hears only the frames up to the present one."""
    normalization: Literal["softmax", "global"]
    """Local is softmax."""
    num_spare_frames: int = 0
    """Frames of silence at the end: 0, or 1, which leaves no choice how long to wait."""

    @property
    def name(self) -> str:
        """In words."""
        hearing = "streaming" if self.is_streaming else "non-streaming"
        scope = "global" if self.normalization == "global" else "local"
        return f"{hearing}, {scope}" + (", spare frame" if self.num_spare_frames else "")


CASES = (
    Case(is_streaming=True, normalization="softmax"),
    Case(is_streaming=True, normalization="global"),
    Case(is_streaming=False, normalization="softmax"),
    Case(is_streaming=False, normalization="global"),
    Case(is_streaming=True, normalization="softmax", num_spare_frames=1),
)
"""The four models, and the one that may wait."""


@dataclass(frozen=True)
class Prediction:
    """What the theory says of a model."""

    can_succeed: bool
    """Whether the model can have a loss near 0."""
    bound: float
    """The least mean loss in nats that any parameters can have."""
    accuracy: float
    """Share of right ambiguous labels."""
    delay: float
    """Mean number of frames by which a label comes later than the frame of its own number."""


@dataclass(frozen=True)
class Measurement:
    """What was measured of a trained model, over all inputs."""

    loss: float
    """Mean -log P(labels | frames), in nats per utterance."""
    accuracy: float
    """Share of right ambiguous labels: the most probable label of each frame given all frames;
    with spare frames, where a frame has no label of its own, the label on the best path."""
    best_path_accuracy: float
    """Share of right ambiguous labels on the best path. The theory is silent about it for a model
    that fails: search prefers paths through contexts that training never visited, if only their
    arcs are peaked."""
    delay: float
    """Mean number of frames by which a label comes later than the frame of its own number."""
    num_parameters: int
    """Of encoder and weight function."""
    seconds: float
    """Time of training and evaluation."""


@dataclass(frozen=True)
class ModelResult:
    """One row of the table."""

    case: Case
    prediction: Prediction
    measurement: Measurement

    @property
    def agrees(self) -> bool:
        """Whether the measurement is what the theory predicts."""
        want, got = self.prediction, self.measurement
        loss_agrees = (
            got.loss <= SMALL_LOSS if want.can_succeed else got.loss >= want.bound - ROUNDING
        )
        return (
            loss_agrees
            and abs(got.accuracy - want.accuracy) <= ACCURACY_TOLERANCE
            and abs(got.delay - want.delay) <= DELAY_TOLERANCE
        )


@dataclass(frozen=True)
class Revision:
    """What a streaming model holds of each label of an utterance, as it hears frame after frame."""

    case: Case
    posteriors: tuple[tuple[tuple[float, ...], ...], ...]
    """[heard][label][symbol]: the probabilities of labels 1..heard given frames 1..heard."""


@dataclass(frozen=True)
class Results:
    """Everything the demonstration found."""

    config: Config
    models: tuple[ModelResult, ...]
    utterance: tuple[int, ...]
    """The symbols, from 1, of an input that no model was trained on."""
    revisions: tuple[Revision, ...]
    """Of that utterance, for the streaming models without spare frames."""

    @property
    def agrees(self) -> bool:
        """Whether every model does what the theory predicts."""
        return all(model.agrees for model in self.models)


class WindowEncoder(nn.Module):
    """One layer over all frames around the present one; a streaming one hears none of the future.

    A streaming encoder gets zeros in place of the future, so both kinds have the same parameters.
    A one-hot frame is never zero: how many zeros there are in the past tells the number of the
    frame.

    Args:
        input_size: size of a frame.
        output_size: size of the output.
        max_num_frames: the longest input.
        is_streaming: whether the future is hidden.
    """

    def __init__(
        self, input_size: int, output_size: int, max_num_frames: int, is_streaming: bool
    ) -> None:
        super().__init__()
        self._reach = max_num_frames - 1
        self._is_streaming = is_streaming
        self.layer = nn.Linear((2 * self._reach + 1) * input_size, output_size)

    def forward(self, frames: Tensor) -> Tensor:
        """[*batch, num_frames, input_size] -> [*batch, num_frames, output_size]."""
        padded = nn.functional.pad(frames, (0, 0, self._reach, self._reach))
        windows = padded.unfold(-2, 2 * self._reach + 1, 1)
        if self._is_streaming:
            offset = torch.arange(-self._reach, self._reach + 1, device=frames.device)
            windows = windows.masked_fill(offset > 0, 0.0)
        return torch.tanh(self.layer(windows.flatten(-2)))


class Recognizer(nn.Module):
    """An encoder and a recognition lattice on the frame-dependent alignment lattice, with blank.

    Without spare frames no alignment of the labels has room for a blank, so nothing but one frame
    distinguishes the models that may wait from those that may not.

    All arcs start at weight 0. The global loss speaks of whole paths alone and leaves open what a
    model holds of a label before the next frame decides it; this start keeps it near uniform, as
    the local loss does, so that the two can be compared in a picture.
    """

    def __init__(self, config: Config, case: Case) -> None:
        super().__init__()
        context = FullNGram(config.vocab_size, config.context_size)
        longest = config.num_labels + max(case.num_spare_frames for case in CASES)
        self.encoder = WindowEncoder(
            config.vocab_size, config.hidden_size, longest, case.is_streaming
        )
        weights = UnsharedWeights(context, config.hidden_size)
        nn.init.zeros_(weights.weight)
        self.lattice = RecognitionLattice(
            context, FrameDependent(), weights, normalization=case.normalization
        )

    def forward(self, batch: Batch) -> Tensor:
        """[*batch] losses."""
        frames = self.encoder(batch.frames)
        return self.lattice(frames, batch.num_frames, batch.labels, batch.num_labels)


@dataclass(frozen=True)
class Batch:
    """Utterances of one length."""

    frames: Tensor
    """[*batch, num_frames, vocab_size] one-hot symbols, then zeros for silence."""
    num_frames: Tensor
    """[*batch]."""
    labels: Tensor
    """[*batch, num_labels]."""
    num_labels: Tensor
    """[*batch]."""


def all_inputs(config: Config) -> Tensor:
    """[V^U, U] every sequence of symbols 0..V-1, in lexicographic order."""
    symbols = torch.arange(config.vocab_size)
    return torch.cartesian_prod(*[symbols] * config.num_labels)


def utterances(inputs: Tensor, vocab_size: int, num_spare_frames: int = 0) -> Batch:
    """The task: frames and labels of the symbols [*batch, U], counted from 0."""
    *shape, num_labels = inputs.shape
    frames = nn.functional.one_hot(inputs, vocab_size).float()
    return Batch(
        frames=nn.functional.pad(frames, (0, 0, 0, num_spare_frames)),
        num_frames=torch.full(shape, num_labels + num_spare_frames),
        labels=1 + inputs.roll(-1, dims=-1),
        num_labels=torch.full(shape, num_labels),
    )


def predict(config: Config, case: Case) -> Prediction:
    """What the theory says of a model."""
    can_revise = case.normalization == "global" and config.context_size > 0
    can_succeed = not case.is_streaming or case.num_spare_frames > 0 or can_revise
    return Prediction(
        can_succeed=can_succeed,
        bound=0.0 if can_succeed else config.num_ambiguous * math.log(config.vocab_size),
        accuracy=1.0 if can_succeed else 1.0 / config.vocab_size,
        delay=float(case.num_spare_frames),
    )


def num_training_steps(config: Config) -> int:
    """Training steps of all models together: how often `run` reports progress."""
    return len(CASES) * config.num_steps


def run(config: Config, progress: Callable[[str], object] | None = None) -> Results:
    """Trains and measures the models of the demonstration.

    The same configuration gives the same results (but for the seconds).

    Args:
        config: sizes and seed.
        progress: called after each training step with a short note.
    """
    generator = torch.Generator().manual_seed(config.seed)
    inputs = all_inputs(config)
    chosen = _clear_input(inputs[torch.randperm(len(inputs), generator=generator)])
    pool = inputs[(inputs != chosen).any(-1)]
    models, revisions = [], []
    with _one_thread():
        for case in CASES:
            started = time.perf_counter()
            recognizer = train(config, case, pool, progress)
            measurement = measure(config, case, recognizer, inputs)
            seconds = time.perf_counter() - started
            measurement = dataclasses.replace(measurement, seconds=seconds)
            models.append(ModelResult(case, predict(config, case), measurement))
            if case.is_streaming and not case.num_spare_frames:
                revisions.append(Revision(case, prefix_posteriors(config, recognizer, chosen)))
    return Results(config, tuple(models), tuple((1 + chosen).tolist()), tuple(revisions))


def _clear_input(inputs: Tensor) -> Tensor:
    """The first input [U] in which no two neighbours are alike, which is easy to read; or any."""
    is_clear = (inputs != inputs.roll(1, dims=-1)).all(-1)
    return inputs[int(is_clear.int().argmax())]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors this small gain nothing by threads; on busy cores two took ten times as long."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def train(
    config: Config, case: Case, pool: Tensor, progress: Callable[[str], object] | None = None
) -> Recognizer:
    """Trains one model on inputs drawn from the pool [N, U]; all models see the same batches."""
    generator = torch.Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        recognizer = Recognizer(config, case)
    optimizer = torch.optim.Adam(recognizer.parameters(), lr=config.learning_rate)
    for step in range(config.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * (1 - step / config.num_steps)
        drawn = torch.randint(len(pool), (config.batch_size,), generator=generator)
        loss = recognizer(utterances(pool[drawn], config.vocab_size, case.num_spare_frames)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if progress is not None:
            progress(f"{case.name}: loss {loss.item():.3f}")
    return recognizer


@torch.no_grad()
def measure(config: Config, case: Case, recognizer: Recognizer, inputs: Tensor) -> Measurement:
    """Measures a model on inputs [N, U]; the seconds are left at 0."""
    batch = utterances(inputs, config.vocab_size, case.num_spare_frames)
    right_on_path = best_path_labels(recognizer, batch) == batch.labels
    right = right_on_path
    if not case.num_spare_frames:
        right = 1 + label_posteriors(recognizer, batch).argmax(-1) == batch.labels
    ambiguous = slice(0, config.num_ambiguous)
    return Measurement(
        loss=recognizer(batch).double().mean().item(),
        accuracy=right[:, ambiguous].double().mean().item(),
        best_path_accuracy=right_on_path[:, ambiguous].double().mean().item(),
        delay=mean_delay(recognizer, batch),
        num_parameters=sum(parameter.numel() for parameter in recognizer.parameters()),
        seconds=0.0,
    )


def label_posteriors(recognizer: Recognizer, batch: Batch) -> Tensor:
    """[*batch, num_frames, vocab_size] the probability of each label at each frame."""
    frames = recognizer.encoder(batch.frames)
    return recognizer.lattice.arc_marginals(frames, batch.num_frames).lexical.sum(-2)


def best_path_labels(recognizer: Recognizer, batch: Batch) -> Tensor:
    """[N, num_labels] the labels of the best path, cut or filled up with 0."""
    frames = recognizer.encoder(batch.frames)
    found = recognizer.lattice.shortest_path(frames, batch.num_frames).labels()
    num_labels = batch.labels.shape[-1]
    filled = [[*labels, *[0] * num_labels][:num_labels] for labels in found]
    return torch.tensor(filled)


def mean_delay(recognizer: Recognizer, batch: Batch) -> float:
    """Mean of (frame of label u) - u over the labels of a batch, by the alignments' posteriors."""
    frames = recognizer.encoder(batch.frames)
    arcs = recognizer.lattice.arc_marginals(
        frames, batch.num_frames, batch.labels, batch.num_labels
    )
    emitted = arcs.lexical.sum((-2, -1)).double()  # [*batch, num_frames]
    num_frames, num_labels = emitted.shape[-1], batch.labels.shape[-1]
    total = (emitted * torch.arange(num_frames)).sum(-1) - sum(range(num_labels))
    return (total / num_labels).mean().item()


@torch.no_grad()
def prefix_posteriors(
    config: Config, recognizer: Recognizer, symbols: Tensor
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """The posteriors of labels 1..t in the lattice cut after frame t, for every t.

    A streaming encoder's frame does not depend on later ones, so the cut lattice is what the model
    has when it has heard t frames.

    Args:
        config: sizes.
        recognizer: a model with a streaming encoder.
        symbols: [U] an input.

    Returns:
        [heard][label][symbol].
    """
    num_labels = len(symbols)
    batch = utterances(symbols.expand(num_labels, -1), config.vocab_size)
    heard = torch.arange(1, num_labels + 1)
    cut = label_posteriors(recognizer, dataclasses.replace(batch, num_frames=heard))
    return tuple(
        tuple(tuple(label.tolist()) for label in labels[:count])
        for count, labels in zip(heard.tolist(), cut, strict=True)
    )
