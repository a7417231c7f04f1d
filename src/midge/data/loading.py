"""Loading: planned batches become tensors, in worker processes, in order.

    utterance -> samples -> augmented -> mels -> normalized, masked, stacked -> padded batch

What a batch holds is a function of the plan, the files and the seed of the augmentation alone,
whatever the number of workers. An utterance that cannot be used is left out of its batch and named
there, with the reason; it never ends a run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from midge.audio import Audio, Augmentation, FrontEnd
from midge.data.plan import PlannedBatch, plan_in_order, shard
from midge.data.utterances import Utterance
from midge.data.workers import Workers
from midge.tokens import TokenError, Tokens

CanAlign = Callable[[Sequence[int], int], bool]
"""Whether labels (the first argument) have a path over a number of frames (the second)."""


class Skipped(NamedTuple):
    """An utterance that could not be used."""

    id: str
    """Which."""
    reason: str
    """Why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Utterances as padded tensors; B of them, T frames and U labels in the longest."""

    epoch: int
    """Which pass over the data."""
    index: int
    """Which batch of that pass."""
    ids: list[str]
    """Which utterances."""
    texts: list[str]
    """What was said, normalized as labels are."""
    features: Tensor
    """[B, T, feature_size] float32; normalized, masked if augmented, stacked; 0 on padding."""
    num_features: Tensor
    """[B] int64, number of real frames."""
    labels: Tensor
    """[B, U] int64; 0 on padding."""
    num_labels: Tensor
    """[B] int64, number of real labels."""
    seconds: float
    """Duration of the audio, as it is after augmentation, without padding."""
    skipped: tuple[Skipped, ...]
    """Utterances planned for this batch that are not in it."""
    without_labels: tuple[Skipped, ...] = ()
    """Utterances in it whose text is no labels, so that `num_labels` is 0; in evaluation only."""

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        # Between processes tensors would travel in shared memory, of which containers have little.
        fields = {
            name: value.numpy() if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }
        return _rebuilt, (fields,)


class BatchLoader:
    """Loads batches of utterances, given by their numbers.

    Each batch planned is yielded, also if nothing in it could be used, so that several processes
    keep step. The workers start with the first batch and stay until `close`.

    Args:
        utterances: what the numbers of a plan mean.
        tokens: text as labels.
        front_end: samples as frames; its mean and scale are used as they are at the first batch.
        augmentation: what is done to training data; None is nothing.
        can_align: refuses utterances in training; None refuses none.
        num_workers: processes that load; 0 loads in this one.
        rank: which of several processes this is.
        world_size: how many train together. Each loads its part of every global batch.
        keeps_all: for evaluation: also keep utterances whose text is no labels.

    Example:
        Training, from batch 40 of epoch 3 on::

            plan = plan_forever(durations, seed=1, batch_seconds=100.0, epoch=3, index=40)
            with BatchLoader(utterances, tokens, front_end, num_workers=2) as loader:
                for batch in loader.load(plan):
                    ...
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        tokens: Tokens,
        front_end: FrontEnd,
        *,
        augmentation: Augmentation | None = None,
        can_align: CanAlign | None = None,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        keeps_all: bool = False,
    ) -> None:
        shard((), rank, world_size)  # checks both
        self._rank, self._world_size = rank, world_size
        self._durations = [utterance.duration for utterance in utterances]
        self._workers: Workers[PlannedBatch, Batch] = Workers(
            functools.partial(
                _load_batch,
                _Ingredients(utterances, tokens, front_end, augmentation, can_align, keeps_all),
            ),
            num_workers,
        )

    def load(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Loads global batches one after the other; of each, the part of this process.

        Only one such iteration goes on at a time: a new one ends the last.

        Args:
            plan: finite or endless; it is read a few batches ahead.
        """
        mine = (
            PlannedBatch(each.epoch, each.index, shard(each.members, self._rank, self._world_size))
            for each in plan
        )
        return self._workers.run(mine)

    def load_in_order(
        self, batch_seconds: float = 120.0, max_batch_size: int | None = None
    ) -> Iterator[Batch]:
        """Loads every utterance once, in the given order, for evaluation."""
        batches = plan_in_order(
            self._durations, batch_seconds=batch_seconds, max_batch_size=max_batch_size
        )
        return self.load(PlannedBatch(0, index, each) for index, each in enumerate(batches))

    def close(self) -> None:
        """Ends the workers."""
        self._workers.close()

    def __enter__(self) -> BatchLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def sample_mels(
    utterances: Sequence[Utterance],
    front_end: FrontEnd,
    *,
    num_utterances: int = 1000,
    seed: int = 0,
    num_workers: int = 0,
) -> Iterator[Tensor]:
    """Mel frames of some utterances, for `FrontEnd.fit`.

    Args:
        utterances: the training data.
        front_end: its configuration is used, not its mean and scale.
        num_utterances: how many to take; all of them if there are fewer.
        seed: chooses which, whatever the number of workers.
        num_workers: processes that load.

    Yields:
        [num_mel_frames, num_mels] of each; an utterance that cannot be read is left out.

    Raises:
        ValueError: if none can be read; it names the first.
    """
    generator = np.random.default_rng(seed)
    size = min(num_utterances, len(utterances))
    chosen = np.sort(generator.choice(len(utterances), size, replace=False)).tolist()
    workers: Workers[int, np.ndarray | Skipped] = Workers(
        functools.partial(_mels_of, utterances, front_end), num_workers
    )
    problem: Skipped | None = None
    num_read = 0
    try:
        for found in workers.run(chosen):
            if isinstance(found, Skipped):
                problem = problem or found
            else:
                num_read += 1
                yield torch.from_numpy(found)
    finally:
        workers.close()
    if not num_read:
        told = f"the first: {problem.id}: {problem.reason}" if problem else "there is none"
        raise ValueError(f"no utterance can be read to normalize by; {told}")


class _Ingredients(NamedTuple):
    """What a worker needs to make batches."""

    utterances: Sequence[Utterance]
    tokens: Tokens
    front_end: FrontEnd
    augmentation: Augmentation | None
    can_align: CanAlign | None
    keeps_all: bool


class _Example(NamedTuple):
    """An utterance, loaded."""

    id: str
    text: str
    features: Tensor
    labels: list[int]
    seconds: float
    label_problem: str


def _load_batch(having: _Ingredients, planned: PlannedBatch) -> Batch:
    found = [_load_example(having, number, planned.epoch) for number in planned.members]
    examples = [each for each in found if isinstance(each, _Example)]
    max_num_frames = max((len(each.features) for each in examples), default=0)
    max_num_labels = max((len(each.labels) for each in examples), default=0)
    features = torch.zeros(len(examples), max_num_frames, having.front_end.feature_size)
    labels = torch.zeros(len(examples), max_num_labels, dtype=torch.int64)
    for row, each in enumerate(examples):
        features[row, : len(each.features)] = each.features
        labels[row, : len(each.labels)] = torch.tensor(each.labels, dtype=torch.int64)
    problems = [Skipped(each.id, each.label_problem) for each in examples if each.label_problem]
    return Batch(
        epoch=planned.epoch,
        index=planned.index,
        ids=[each.id for each in examples],
        texts=[each.text for each in examples],
        features=features,
        num_features=torch.tensor([len(each.features) for each in examples], dtype=torch.int64),
        labels=labels,
        num_labels=torch.tensor([len(each.labels) for each in examples], dtype=torch.int64),
        seconds=sum(each.seconds for each in examples),
        skipped=tuple(each for each in found if isinstance(each, Skipped)),
        without_labels=tuple(problems),
    )


def _load_example(having: _Ingredients, number: int, epoch: int) -> _Example | Skipped:
    utterance = having.utterances[number]
    labels: list[int] = []
    problem = ""
    try:
        labels = having.tokens.encode(utterance.text, utterance.id)
    except TokenError as error:
        if not having.keeps_all:
            return Skipped(utterance.id, str(error))
        problem = str(error)
    try:
        audio = _augmented(utterance.load(), having.augmentation, utterance.id, epoch)
        features = _features(having, audio, utterance.id, epoch)
    except (ValueError, OSError) as error:  # an AudioError, a rate of 3 Hz, a missing file, ...
        return Skipped(utterance.id, str(error))
    if having.can_align is not None and not having.can_align(labels, len(features)):
        reason = f"{len(labels)} labels have no path over {len(features)} frames"
        return Skipped(utterance.id, reason)
    text = having.tokens.normalize(utterance.text)
    return _Example(utterance.id, text, features, labels, audio.duration, problem)


def _augmented(
    audio: Audio, augmentation: Augmentation | None, utterance_id: str, epoch: int
) -> Audio:
    if augmentation is None:
        return audio
    changed = augmentation.waveform(
        audio.samples, audio.sample_rate, epoch=epoch, utterance_id=utterance_id
    )
    return Audio(changed, audio.sample_rate)


@torch.no_grad()
def _features(having: _Ingredients, audio: Audio, utterance_id: str, epoch: int) -> Tensor:
    mask = None
    if having.augmentation is not None:
        mask = functools.partial(having.augmentation.mels, epoch=epoch, utterance_id=utterance_id)
    mels = having.front_end.mels(audio.samples, audio.sample_rate)
    return having.front_end.stack(mels, mask)


def _mels_of(
    utterances: Sequence[Utterance], front_end: FrontEnd, number: int
) -> np.ndarray | Skipped:
    utterance = utterances[number]
    try:
        audio = utterance.load()
        mels: np.ndarray = front_end.mels(audio.samples, audio.sample_rate).numpy()
    except (ValueError, OSError) as error:
        return Skipped(utterance.id, str(error))
    return mels


def _rebuilt(fields: dict[str, Any]) -> Batch:
    """A batch that came from another process."""
    tensors = {k: torch.from_numpy(x) for k, x in fields.items() if isinstance(x, np.ndarray)}
    return Batch(**{**fields, **tensors})
