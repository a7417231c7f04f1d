"""The recipe: all choices of a training run, as one TOML file gives them.

A table of the file fills each of these dataclasses. Paths of data are relative to the working
directory, as on any command line, whether a file or `--set` gives them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from midge.audio import AugmentationConfig, FrontEndConfig
from midge.configuration import from_table, read_table, to_table, with_overrides
from midge.encoders import ConformerConfig, LSTMConfig
from midge.models.recognizer import LatticeConfig, RecognizerConfig
from midge.tokens import TokensConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train on, and how it is cut into batches."""

    train: str | tuple[str, ...]
    """Manifest, or manifests, of the training data."""
    dev: str | tuple[str, ...] = ()
    """Manifest, or manifests, of the development data; without any, the last model is the best."""
    batch_seconds: float = 100.0
    """Audio in a batch of all processes together."""
    max_batch_size: int | None = None
    """Most utterances in such a batch; None is no limit."""
    max_frames: int | None = None
    """Longest utterance to train on, in encoder frames; longer ones are left out and counted."""
    max_labels: int | None = None
    """Most labels of an utterance to train on; others are left out and counted."""
    num_workers: int = 2
    """Processes that read and augment audio, for each training process; 0 is the process itself."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if not self.train_paths:
            raise ValueError("train should be at least one manifest, got none")
        _check_above(0, batch_seconds=self.batch_seconds)
        _check_at_least(0, num_workers=self.num_workers)
        for name in ("max_batch_size", "max_frames", "max_labels"):
            if (limit := getattr(self, name)) is not None:
                _check_at_least(1, **{name: limit})

    @property
    def train_paths(self) -> tuple[Path, ...]:
        """The manifests of the training data."""
        return _paths(self.train)

    @property
    def dev_paths(self) -> tuple[Path, ...]:
        """The manifests of the development data."""
        return _paths(self.dev)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the parameters are found."""

    num_steps: int = 10_000
    """Updates of the parameters."""
    seed: int = 0
    """Of parameters, order of batches, augmentation and dropout."""
    learning_rate: float = 1e-3
    """The peak, at the end of the warm-up; the paper's is 0.05 / sqrt(512)."""
    schedule: Literal["warmup-decay", "transformer"] = "warmup-decay"
    """After the warm-up: down to 0 in a straight line, or as 1 / sqrt(step) (Transformer)."""
    num_warmup_steps: int | None = None
    """Steps of the warm-up; None is 5 % of all steps."""
    adam_betas: tuple[float, ...] = (0.9, 0.98)
    """How much of its running means of gradients and of their squares Adam keeps in a step."""
    adam_epsilon: float = 1e-9
    """What Adam adds to the root of the mean square."""
    output_weight_decay: float = 0.01
    """Decoupled weight decay of the layer that makes arc weights.

    What is added to all arcs of a frame cancels in the global loss, and would drift without it.
    """
    weight_decay: float = 0.0
    """Decoupled weight decay of all other parameters."""
    clip_norm: float = 1.0
    """Largest norm of the gradient, per label of the batch; inf is no limit."""
    accumulation: int = 1
    """Batches whose gradients are summed for one step."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the encoder; parameters and the lattice are always float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; "auto" is a graphics processor where there is one."""
    averaging: Literal["none", "exponential", "last"] = "none"
    """The mean of the parameters over steps, which is then evaluated and saved.

    "exponential" forgets by `averaging_decay`; "last" is the plain mean after each of the last
    `averaging_steps` steps.
    """
    averaging_decay: float = 0.999
    """How much of the exponential mean stays in a step; less in the first steps."""
    averaging_steps: int = 1000
    """Steps in the plain mean."""
    entropy_weight: float = 0.0
    """Weight of the entropy of the alignments of an utterance's labels, added to its loss."""
    delay_penalty: float = 0.0
    """Nats that a label costs for each frame it comes later, once the warm-up is over."""
    evaluate_every: int = 500
    """Steps between two evaluations on the development data."""
    select_by: Literal["words", "loss"] = "words"
    """What makes a model the best: its word error rate, a tie decided by the loss; or the loss."""
    patience: int | None = None
    """Evaluations without a better result after which training stops; None is never."""
    checkpoint_every: int = 500
    """Steps between two checkpoints; there is one with each evaluation too."""
    keep_checkpoints: int = 2
    """How many of the last checkpoints are kept, besides the best."""
    log_every: int = 10
    """Steps between two lines of the log."""

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in (
            "num_steps",
            "accumulation",
            "averaging_steps",
            "evaluate_every",
            "checkpoint_every",
            "keep_checkpoints",
            "log_every",
        ):
            _check_at_least(1, **{name: getattr(self, name)})
        _check_at_least(
            0,
            seed=self.seed,
            weight_decay=self.weight_decay,
            output_weight_decay=self.output_weight_decay,
            entropy_weight=self.entropy_weight,
            delay_penalty=self.delay_penalty,
        )
        _check_above(
            0,
            learning_rate=self.learning_rate,
            adam_epsilon=self.adam_epsilon,
            clip_norm=self.clip_norm,
        )
        if self.patience is not None:
            _check_at_least(1, patience=self.patience)
        if self.num_warmup_steps is not None:
            _check_at_least(0, num_warmup_steps=self.num_warmup_steps)
        if len(self.adam_betas) != 2 or not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ValueError(f"adam_betas should be two numbers in [0, 1), got {self.adam_betas}")
        if not 0 < self.averaging_decay < 1:
            raise ValueError(
                f"averaging_decay should be between 0 and 1, got {self.averaging_decay}"
            )

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up."""
        if self.num_warmup_steps is not None:
            return self.num_warmup_steps
        return round(0.05 * self.num_steps)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All choices of a run."""

    data: DataConfig
    """What to train on."""
    front_end: FrontEndConfig = field(default_factory=FrontEndConfig)
    """From samples to features."""
    tokens: TokensConfig = field(default_factory=TokensConfig)
    """From text to labels."""
    encoder: ConformerConfig | LSTMConfig = field(default_factory=ConformerConfig)
    """From features to encoder frames."""
    lattice: LatticeConfig = field(default_factory=LatticeConfig)
    """From encoder frames to the weights of alignments."""
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    """What is changed in the training data at random."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How the parameters are found."""

    @property
    def recognizer(self) -> RecognizerConfig:
        """What the model is, apart from how it is trained."""
        return RecognizerConfig(
            front_end=self.front_end,
            tokens=self.tokens,
            encoder=self.encoder,
            lattice=self.lattice,
        )


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe.

    Args:
        path: a TOML file.
        overrides: assignments "part.field=value" that win over the file.

    Raises:
        ValueError: if the file is no TOML, or a table has an unknown key or a wrong value.
        OSError: if the file cannot be read.
    """
    return from_table(Recipe, with_overrides(read_table(path), overrides))


RESUMABLE = frozenset(
    {
        "data.num_workers",
        "training.num_steps",
        "training.patience",
        "training.checkpoint_every",
        "training.keep_checkpoints",
        "training.log_every",
        "training.device",
    }
)
"""Fields that may change between the parts of a run.

A new `num_steps` changes the learning rates from then on; the others change no parameter.
"""


def differences(before: Recipe | Mapping[str, Any], now: Recipe) -> dict[str, tuple[Any, Any]]:
    """The fields in which two recipes differ.

    Args:
        before: a recipe, or its table as a checkpoint holds it.
        now: a recipe.

    Returns:
        By dotted name the two values; None for one that is not set.

    Example:
        >>> old = Recipe(data=DataConfig(train="cuts"), training=TrainingConfig(seed=1))
        >>> new = Recipe(data=DataConfig(train="cuts"), training=TrainingConfig(seed=2))
        >>> differences(old, new)
        {'training.seed': (1, 2)}
    """
    old = _flat(to_table(before) if dataclasses.is_dataclass(before) else dict(before))
    new = _flat(to_table(now))
    names = sorted(old.keys() | new.keys())
    return {n: (old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def _paths(given: str | tuple[str, ...]) -> tuple[Path, ...]:
    each = (given,) if isinstance(given, str) else given
    return tuple(Path(path) for path in each)


def _check_at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} should be at least {least}, got {value}")


def _check_above(least: float, **values: float) -> None:
    for name, value in values.items():
        if not value > least:
            raise ValueError(f"{name} should be more than {least}, got {value}")
