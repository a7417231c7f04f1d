"""The loss of a batch: sequence losses, and what an option adds to them.

All are nats per utterance. They are summed over a batch and divided by its label count, for both
normalizations alike, so that clipping and learning rates mean the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from midge.data.loading import Batch
from midge.encoders.linear import bfloat16_products
from midge.models.recognizer import Recognizer
from midge.training.config import TrainingConfig


@dataclass(frozen=True)
class BatchLosses:
    """What a batch costs."""

    losses: Tensor
    """[batch] nats; +inf for labels that no path spells."""
    frames: Tensor
    """[batch, max_num_frames, encoder.output_size] encoder frames, of the features' dtype."""

    @property
    def has_numbers(self) -> Tensor:
        """[batch] bool, whether neither loss nor frames have a NaN."""
        # The frames too: an engine that takes maxima may lose sight of a NaN.
        return ~self.losses.isnan() & self.frames.detach().isfinite().flatten(1).all(1)

    @property
    def is_finite(self) -> Tensor:
        """[batch] bool, whether there is a gradient to be had."""
        return self.has_numbers & self.losses.isfinite()


def batch_losses(
    recognizer: Recognizer,
    batch: Batch,
    config: TrainingConfig,
    *,
    entropy_weight: float = 0.0,
    delay_penalty: float = 0.0,
) -> BatchLosses:
    """Runs encoder and lattice.

    The loss of an utterance is -log P(labels | features), and with options

        + entropy_weight x the entropy of the alignments of its labels, which keeps the best
          alignment close to all of them together (the paper's future work);
        and, with a delay penalty, the numerator of P counts an alignment exp(delay_penalty x
          (T / 2 - t)) times for each of its labels, at frame t of T. The denominator stays: a bonus
          there too would only shift the model's own weights. So one definition serves both
          normalizations; for local ones it is that of Kang et al. (2211.00490).

    Args:
        recognizer: the model.
        batch: features and labels, on the model's device.
        config: the precision of the encoder.
        entropy_weight: weight of the entropy.
        delay_penalty: nats that a label costs for each frame it comes later.
    """
    with encoder_arithmetic(config, batch.features.device):
        frames = recognizer.encode(batch.features, batch.num_features)
    frames = frames.to(batch.features.dtype)
    given = (frames, batch.num_features, batch.labels, batch.num_labels)
    bonus = None
    if delay_penalty:
        frame = torch.arange(frames.shape[1], device=frames.device)
        bonus = delay_penalty * (batch.num_features[:, None] / 2 - frame).to(frames.dtype)
    losses: Tensor = recognizer.lattice(*given, bonus)
    if entropy_weight:
        losses = losses + entropy_weight * recognizer.lattice.entropy(*given)
    return BatchLosses(losses, frames)


def encoder_arithmetic(
    config: TrainingConfig, device: torch.device
) -> AbstractContextManager[None]:
    """Inside it encoders compute in the precision that is configured."""
    if config.precision == "float32":
        return nullcontext()
    return bfloat16_products(device.type)


def batch_on(batch: Batch, device: torch.device) -> Batch:
    """The same batch with its tensors on a device."""
    names = ("features", "num_features", "labels", "num_labels")
    return replace(batch, **{name: getattr(batch, name).to(device) for name in names})


def batch_without(batch: Batch, is_dropped: Tensor) -> Batch:
    """The same batch without some of its utterances.

    Args:
        batch: the batch.
        is_dropped: [batch] bool.
    """
    kept = (~is_dropped).nonzero().flatten()
    num_features, num_labels = batch.num_features[kept], batch.num_labels[kept]
    longest, most = (int(x.max()) if len(x) else 0 for x in (num_features, num_labels))
    return replace(
        batch,
        ids=[batch.ids[row] for row in kept.tolist()],
        texts=[batch.texts[row] for row in kept.tolist()],
        features=batch.features[kept, :longest],
        num_features=num_features,
        labels=batch.labels[kept, :most],
        num_labels=num_labels,
    )
