"""One step of training: gradients of some batches, summed over processes, and an update.

A step is a pure function of the parameters, the optimizer's state, the batches and the step's
number: dropout draws from a generator that is seeded by (seed, step, process) before each.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from midge.data.loading import Batch, Skipped
from midge.models.recognizer import Recognizer
from midge.training.config import TrainingConfig
from midge.training.distributed import ProcessGroup
from midge.training.losses import BatchLosses, batch_losses, batch_on, batch_without
from midge.training.output_layer import output_parameters
from midge.training.schedules import learning_rate


@dataclass(frozen=True)
class StepResult:
    """What a step did; sums are over all processes."""

    loss: float
    """Sum of the losses of the utterances."""
    num_labels: int
    """Labels of the utterances that were used."""
    num_frames: int
    """Encoder frames of the utterances that were used."""
    learning_rate: float
    """Of this step."""
    gradient_norm: float
    """Of the gradient per label, before it was clipped."""
    is_skipped: bool
    """Whether the parameters were left alone, as the gradient was not finite or there was none."""
    skipped: Sequence[Skipped]
    """Utterances that were not used, or all if the step was skipped, of every process."""
    is_interrupted: bool
    """Whether a process was asked to stop."""
    example: tuple[Tensor, Tensor] | None
    """Encoder frames and labels of an utterance of this process, to look at."""


@dataclass
class _Sums:
    """What is added up over the batches of a step."""

    loss: float = 0.0
    num_labels: int = 0
    num_frames: int = 0
    ids: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    example: tuple[Tensor, Tensor] | None = None


class Updates:
    """Makes steps.

    Args:
        recognizer: the model, on the group's device.
        config: optimizer and schedule.
        group: the processes that step together.
    """

    def __init__(self, recognizer: Recognizer, config: TrainingConfig, group: ProcessGroup) -> None:
        self._recognizer = recognizer
        self._config = config
        self._group = group
        self._parameters = dict(recognizer.named_parameters())
        self._optimizer = _optimizer(recognizer, config)

    def step(self, step: int, batches: Sequence[Batch], is_interrupted: bool = False) -> StepResult:
        """Makes a step.

        Args:
            step: its number, from 1.
            batches: this process's share of the batches whose gradients are summed.
            is_interrupted: whether this process was asked to stop; all of them learn it.
        """
        torch.manual_seed(step_seed(self._config.seed, step, self._group.rank))
        self._optimizer.zero_grad(set_to_none=True)
        sums = _Sums()
        for batch in batches:
            self._add_gradients(step, batch_on(batch, self._group.device), sums)
        return self._apply(step, sums, is_interrupted)

    def try_batch(self, step: int, batch: Batch) -> float:
        """Times the gradients of a batch; parameters and random numbers stay as they were.

        Args:
            step: the step that it is for.
            batch: with at least one utterance.

        Returns:
            Seconds of a second pass: the first makes everything ready.
        """
        device = self._group.device
        batch = batch_on(batch, device)
        seconds = 0.0
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for _ in range(2):
                started = _now(device)
                result = self._losses(step, batch)
                assert result is not None, "a batch to try has utterances"
                result.losses.sum().backward()
                seconds = _now(device) - started
        self._optimizer.zero_grad(set_to_none=True)
        return seconds

    def _add_gradients(self, step: int, batch: Batch, sums: _Sums) -> None:
        sums.skipped += batch.skipped
        result = self._losses(step, batch)
        if result is not None and not bool(result.is_finite.all()):
            # Once more without them: a NaN would reach the gradients of all, whatever its weight.
            sums.skipped += _without_loss(batch, result)
            batch = batch_without(batch, ~result.is_finite)
            result = self._losses(step, batch)
        if result is None:
            return
        result.losses.sum().backward()
        sums.loss += float(result.losses.detach().double().sum())
        sums.num_labels += int(batch.num_labels.sum())
        sums.num_frames += int(batch.num_features.sum())
        sums.ids += batch.ids
        frames, labels = result.frames[-1].detach(), batch.labels[-1]
        sums.example = (
            frames[: int(batch.num_features[-1])],
            labels[: int(batch.num_labels[-1])],
        )

    def _losses(self, step: int, batch: Batch) -> BatchLosses | None:
        if not len(batch):
            return None
        config = self._config
        # During the warm-up a delay penalty keeps a model from finding where the labels are.
        is_warm = step > config.warmup_steps
        return batch_losses(
            self._recognizer,
            batch,
            config,
            entropy_weight=config.entropy_weight,
            delay_penalty=config.delay_penalty if is_warm else 0.0,
        )

    def _apply(self, step: int, sums: _Sums, is_interrupted: bool) -> StepResult:
        """Divides by the label count of all processes, clips, and updates."""
        loss, num_labels, num_frames, num_skipped, num_interrupted = self._group.sum(
            sums.loss, sums.num_labels, sums.num_frames, len(sums.skipped), is_interrupted
        )
        parameters = list(self._parameters.values())
        self._group.sum_gradients(parameters)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(max(num_labels, 1))
        norm = float(nn.utils.clip_grad_norm_(parameters, self._config.clip_norm))
        is_skipped = num_frames == 0 or norm != norm or norm == float("inf")
        rate = learning_rate(self._config, step)
        if is_skipped:
            sums.skipped += [Skipped(name, "the gradient is not finite") for name in sums.ids]
        else:
            for options in self._optimizer.param_groups:
                options["lr"] = rate
            self._optimizer.step()
        return StepResult(
            loss=loss,
            num_labels=int(num_labels),
            num_frames=int(num_frames),
            learning_rate=rate,
            gradient_norm=norm,
            is_skipped=is_skipped,
            skipped=self._gathered(sums.skipped) if num_skipped or is_skipped else [],
            is_interrupted=num_interrupted > 0,
            example=sums.example,
        )

    def _gathered(self, skipped: Sequence[Skipped]) -> list[Skipped]:
        everyone = self._group.gather([text for each in skipped for text in each])
        return [Skipped(*pair) for pair in zip(everyone[::2], everyone[1::2], strict=True)]

    def moments(self) -> dict[str, Tensor]:
        """The optimizer's state, by "parameter/quantity"."""
        return {
            f"{name}/{quantity}": value
            for name, parameter in self._parameters.items()
            for quantity, value in self._optimizer.state[parameter].items()
        }

    def load_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Goes on from what `moments` gave."""
        for key, value in moments.items():
            name, _, quantity = key.rpartition("/")
            parameter = self._parameters[name]
            # The count of steps too: a fused Adam keeps it where the parameters are.
            self._optimizer.state[parameter][quantity] = value.to(parameter.device)


def _without_loss(batch: Batch, result: BatchLosses) -> list[Skipped]:
    """The utterances that have no finite loss, and why."""
    reasons = {True: "no path spells its labels", False: "its loss is not a number"}
    rows = zip(batch.ids, result.is_finite.tolist(), result.has_numbers.tolist(), strict=True)
    return [Skipped(name, reasons[is_number]) for name, is_fine, is_number in rows if not is_fine]


def _now(device: torch.device) -> float:
    """The time in seconds, once a device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def step_seed(seed: int, step: int, rank: int) -> int:
    """A seed for the random numbers of a step in a process."""
    digest = hashlib.sha256(f"midge {seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # torch takes 63 bits


def _optimizer(recognizer: Recognizer, config: TrainingConfig) -> torch.optim.AdamW:
    output = list(output_parameters(recognizer.lattice.weights).values())
    kept = {id(parameter) for parameter in output}
    others = [parameter for parameter in recognizer.parameters() if id(parameter) not in kept]
    beta1, beta2 = config.adam_betas
    return torch.optim.AdamW(
        [
            {"params": others, "weight_decay": config.weight_decay},
            {"params": output, "weight_decay": config.output_weight_decay},
        ],
        betas=(beta1, beta2),
        eps=config.adam_epsilon,
        fused=True,
    )
