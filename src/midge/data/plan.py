"""The batch plan: which utterances make which batch, in which order.

A pure function of (seed, epoch, durations): every process computes the same plan without talking to
another, a run resumes at any batch at once, and the number of processes does not change it. A plan
is of global batches; of each, a process takes its part (`shard`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

_Item = TypeVar("_Item")

_JITTER = 0.1
"""Standard deviation of the logarithm of a duration when utterances are sorted, so that batches
hold similar, but not every epoch the same utterances."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch before it is loaded."""

    epoch: int
    """Which pass over the data."""
    index: int
    """Which batch of that pass."""
    members: Sequence[int]
    """The numbers of its utterances."""


def plan_batches(
    durations: Sequence[float] | np.ndarray,
    *,
    seed: int,
    epoch: int,
    batch_seconds: float,
    max_batch_size: int | None = None,
) -> list[list[int]]:
    """The batches of an epoch, each of utterances of similar length.

    Utterances are sorted by duration with some noise, cut into batches, and the batches shuffled.
    A batch of n utterances whose longest takes d seconds has n d <= `batch_seconds`, as the
    padding is computed too; an utterance longer than that is alone.

    Args:
        durations: [num_utterances] in seconds.
        seed: of the whole run.
        epoch: which pass over the data; each has another plan.
        batch_seconds: limit of the padded duration of a batch.
        max_batch_size: limit of the number of utterances in a batch.

    Returns:
        Numbers of utterances, longest first, in each batch; every utterance once. Where equal
        durations make it possible, the order in them is random.

    Example:
        >>> plan = plan_batches([1.0, 5.0, 1.1, 9.9], seed=0, epoch=0, batch_seconds=6.0)
        >>> sorted(plan)
        [[1], [2, 0], [3]]
    """
    lengths = _checked(durations, batch_seconds, max_batch_size)
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    order = random.permutation(len(lengths))  # ties: a stable sort keeps this order
    with np.errstate(divide="ignore"):  # an empty utterance comes first
        keys = np.log(lengths[order]) + random.normal(0.0, _JITTER, len(lengths))
    order = order[np.argsort(keys, kind="stable")]
    batches = [
        _longest_first(batch, lengths)
        for batch in _cut(order, lengths, batch_seconds, max_batch_size)
    ]
    return [batches[i] for i in random.permutation(len(batches))]


def plan_in_order(
    durations: Sequence[float] | np.ndarray,
    *,
    batch_seconds: float,
    max_batch_size: int | None = None,
) -> list[list[int]]:
    """Batches of neighbours in the given order, for evaluation; the limits are as in training.

    Example:
        >>> plan_in_order([1.0, 1.0, 3.0, 1.0], batch_seconds=4.0)
        [[0, 1], [2], [3]]
    """
    lengths = _checked(durations, batch_seconds, max_batch_size)
    order = np.arange(len(lengths))
    return [b.tolist() for b in _cut(order, lengths, batch_seconds, max_batch_size)]


def plan_forever(
    durations: Sequence[float] | np.ndarray,
    *,
    seed: int,
    batch_seconds: float,
    max_batch_size: int | None = None,
    epoch: int = 0,
    index: int = 0,
) -> Iterator[PlannedBatch]:
    """The batches of one epoch after the other, from a given one on.

    Args:
        durations: as for `plan_batches`, like the next three.
        seed: of the whole run.
        batch_seconds: limit of the padded duration of a batch.
        max_batch_size: limit of the number of utterances in a batch.
        epoch: where to start.
        index: the batch of that epoch to start with.

    Yields:
        Without end; nothing if there is no utterance.
    """
    while len(durations):
        batches = plan_batches(
            durations,
            seed=seed,
            epoch=epoch,
            batch_seconds=batch_seconds,
            max_batch_size=max_batch_size,
        )
        for i in range(index, len(batches)):
            yield PlannedBatch(epoch, i, batches[i])
        epoch, index = epoch + 1, 0


def shard(members: Sequence[_Item], rank: int, world_size: int) -> Sequence[_Item]:
    """The part of a global batch that a process takes; it may be empty.

    Example:
        >>> shard([7, 3, 5], 0, 2), shard([7, 3, 5], 1, 2)
        ([7, 5], [3])
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank should be in 0..{world_size - 1}, got {rank}")
    return members[rank::world_size]


def _checked(
    durations: Sequence[float] | np.ndarray, batch_seconds: float, max_batch_size: int | None
) -> np.ndarray:
    if not batch_seconds > 0:
        raise ValueError(f"batch_seconds should be positive, got {batch_seconds}")
    if max_batch_size is not None and max_batch_size < 1:
        raise ValueError(f"max_batch_size should be at least 1, got {max_batch_size}")
    lengths = np.asarray(durations, dtype=np.float64)
    if not (np.isfinite(lengths) & (lengths >= 0)).all():
        raise ValueError("durations should be finite and at least 0")
    return lengths


def _cut(
    order: np.ndarray, lengths: np.ndarray, batch_seconds: float, max_batch_size: int | None
) -> Iterator[np.ndarray]:
    """Cuts an order into batches that keep the limits."""
    largest = len(order) if max_batch_size is None else max_batch_size
    begin, longest = 0, 0.0
    for i, length in enumerate(lengths[order].tolist()):
        longest = max(longest, length)
        size = i - begin + 1
        if size > 1 and (size > largest or size * longest > batch_seconds):
            yield order[begin:i]
            begin, longest = i, length
    if begin < len(order):
        yield order[begin:]


def _longest_first(batch: np.ndarray, lengths: np.ndarray) -> list[int]:
    """Sorted so that the parts of several processes have similar lengths."""
    found: list[int] = batch[np.argsort(-lengths[batch], kind="stable")].tolist()
    return found
