"""Development data inside the loop: loss, and word errors of the best path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from midge.data.loading import Batch
from midge.decoding.errors import count_errors
from midge.models.recognizer import Recognizer
from midge.training.config import TrainingConfig
from midge.training.distributed import ProcessGroup
from midge.training.losses import batch_losses, batch_on


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on development data."""

    loss: float
    """-log P per label, over utterances that the lattice has room for; inf without any."""
    word_error_rate: float
    """Errors of the best path per word; the greedy path where there is no best of all."""
    num_utterances: int
    """How many there are."""
    num_impossible: int
    """How many of them no path spells, or no labels; they count in words, but not in the loss."""
    num_unread: int
    """How many more could not be read at all."""

    def is_better_than(self, other: Evaluation, select_by: str) -> bool:
        """Whether it has the lower word error rate, or the same and a lower loss.

        Args:
            other: an earlier result.
            select_by: "words"; with "loss" the loss alone counts.
        """
        if select_by == "words" and self.word_error_rate != other.word_error_rate:
            return self.word_error_rate < other.word_error_rate
        return self.loss < other.loss


@torch.no_grad()
def evaluate(
    recognizer: Recognizer, batches: Iterable[Batch], config: TrainingConfig, group: ProcessGroup
) -> Evaluation:
    """Runs a model over development data, each process over its own batches.

    Args:
        recognizer: the model; afterwards it is in training mode if it was before.
        batches: this process's share.
        config: the precision of the encoder.
        group: the processes whose results are added up.
    """
    was_training = recognizer.training
    recognizer.eval()
    sums = [0.0] * 7
    for batch in batches:
        batch = batch_on(batch, group.device)
        sums = [a + b for a, b in zip(sums, _counts(recognizer, batch, config), strict=True)]
    recognizer.train(was_training)
    loss, num_labels, num_errors, num_words, *counts = group.sum(*sums)
    num_utterances, num_impossible, num_unread = map(int, counts)
    return Evaluation(
        loss=loss / num_labels if num_labels else float("inf"),
        word_error_rate=num_errors / max(num_words, 1),
        num_utterances=num_utterances,
        num_impossible=num_impossible,
        num_unread=num_unread,
    )


def _counts(recognizer: Recognizer, batch: Batch, config: TrainingConfig) -> list[float]:
    if not len(batch):
        return [0.0] * 6 + [len(batch.skipped)]
    result = batch_losses(recognizer, batch, config)
    unlabelled = {utterance.id for utterance in batch.without_labels}
    has_labels = torch.tensor([name not in unlabelled for name in batch.ids])
    is_possible = result.is_finite & has_labels.to(result.losses.device)
    labels = recognizer.best_path(result.frames, batch.num_features).labels()
    num_errors = num_words = 0
    for text, found in zip(batch.texts, labels, strict=True):
        errors = count_errors(text.split(), recognizer.tokens.decode(found).split())
        num_errors += errors.num_errors
        num_words += errors.num_reference
    return [
        float(result.losses[is_possible].double().sum()),
        float(batch.num_labels[is_possible].sum()),
        num_errors,
        num_words,
        len(batch),
        float((~is_possible).sum()),
        len(batch.skipped),
    ]
