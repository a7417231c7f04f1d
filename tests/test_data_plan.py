import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.data import plan_batches, plan_forever, plan_in_order, shard

DURATIONS = st.lists(st.floats(0.0, 30.0), max_size=60)
LIMITS = st.fixed_dictionaries(
    {
        "batch_seconds": st.floats(0.1, 100.0),
        "max_batch_size": st.one_of(st.none(), st.integers(1, 10)),
    }
)


def check_limits(batches, durations, batch_seconds, max_batch_size):
    for batch in batches:
        assert batch
        assert max_batch_size is None or len(batch) <= max_batch_size
        padded = len(batch) * max(durations[i] for i in batch)
        assert len(batch) == 1 or padded <= batch_seconds


@settings(deadline=None)
@given(durations=DURATIONS, limits=LIMITS, seed=st.integers(0, 99), epoch=st.integers(0, 99))
def test_every_utterance_once_within_the_limits(durations, limits, seed, epoch):
    batches = plan_batches(durations, seed=seed, epoch=epoch, **limits)
    assert sorted(itertools.chain(*batches)) == list(range(len(durations)))
    check_limits(batches, durations, **limits)
    assert all(
        durations[a] >= durations[b] for batch in batches for a, b in itertools.pairwise(batch)
    )
    assert batches == plan_batches(np.array(durations), seed=seed, epoch=epoch, **limits)


@settings(deadline=None)
@given(durations=DURATIONS, limits=LIMITS)
def test_evaluation_keeps_the_order(durations, limits):
    batches = plan_in_order(durations, **limits)
    assert list(itertools.chain(*batches)) == list(range(len(durations)))
    check_limits(batches, durations, **limits)


def test_epochs_and_seeds_differ():
    durations = np.random.default_rng(0).uniform(1.0, 10.0, 200)
    plans = [
        plan_batches(durations, seed=seed, epoch=epoch, batch_seconds=60.0)
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    as_sets = [{frozenset(batch) for batch in plan} for plan in plans]
    # Not the order alone: other utterances come together.
    assert all(len(a & b) < len(a) / 4 for a, b in itertools.combinations(as_sets, 2))


@pytest.mark.slow
def test_another_process_has_the_same_plan():
    code = (
        "from midge.data.plan import plan_batches;"
        "print(plan_batches([i % 17 + 0.5 for i in range(99)], seed=3, epoch=2, batch_seconds=40))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = plan_batches([i % 17 + 0.5 for i in range(99)], seed=3, epoch=2, batch_seconds=40)
    assert done.stdout.strip() == str(here)


def test_little_is_lost_to_padding():
    durations = np.random.default_rng(0).lognormal(1.5, 0.7, 5000)
    batches = plan_batches(durations, seed=0, epoch=0, batch_seconds=200.0)
    padded = sum(len(batch) * durations[batch].max() for batch in batches)
    assert padded < 1.35 * durations.sum()
    shuffled = np.array_split(np.random.default_rng(0).permutation(5000), len(batches))
    assert sum(len(batch) * durations[batch].max() for batch in shuffled) > 2 * durations.sum()


def test_a_plan_without_end_resumes_anywhere():
    durations = [float(i % 7 + 1) for i in range(40)]
    options = {"seed": 5, "batch_seconds": 20.0}
    whole = list(itertools.islice(plan_forever(durations, **options), 50))
    assert [each.epoch for each in whole] == sorted(each.epoch for each in whole)
    assert whole[-1].epoch >= 2
    for start in (1, 17, 30):
        first = whole[start]
        rest = plan_forever(durations, **options, epoch=first.epoch, index=first.index)
        assert list(itertools.islice(rest, 50 - start)) == whole[start:]
    assert list(plan_forever([], **options)) == []


@given(members=st.lists(st.integers()), world_size=st.integers(1, 5))
def test_shards_make_up_the_batch(members, world_size):
    shards = [shard(members, rank, world_size) for rank in range(world_size)]
    assert sorted(itertools.chain(*shards)) == sorted(members)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_a_million_utterances_are_planned_in_seconds():
    durations = np.random.default_rng(0).uniform(1.0, 20.0, 1_000_000)
    batches = plan_batches(durations, seed=0, epoch=0, batch_seconds=600.0)
    assert sum(map(len, batches)) == 1_000_000


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch_seconds": 0.0}, "batch_seconds should be positive"),
        ({"max_batch_size": 0}, "max_batch_size should be at least 1"),
        ({"durations": [1.0, float("nan")]}, "durations should be finite"),
        ({"durations": [-1.0]}, "durations should be finite"),
    ],
)
def test_wrong_arguments(changes, message):
    given = {"durations": [1.0], "seed": 0, "epoch": 0, "batch_seconds": 1.0} | changes
    with pytest.raises(ValueError, match=message):
        plan_batches(given.pop("durations"), **given)


def test_a_wrong_rank():
    with pytest.raises(ValueError, match=r"rank should be in 0..1, got 2"):
        shard([1, 2], 2, 2)
