"""Back-traces against a walk by hand, on both engines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from midge.alignments import NO_SYMBOL
from midge.lattices.back_traces import agreement, traced_symbols

NUM_LABELS = 3


def random_pointers(num_frames: int, num_levels: int, num_states: int, seed: int) -> Tensor:
    """Any pointers are good ones, but that the first frame comes from state 0 alone."""
    random = np.random.default_rng(seed)
    shape = (num_frames, num_levels, num_states)
    most = NUM_LABELS + 1 if num_levels == 1 else num_levels
    source = random.integers(num_states, size=shape)
    source[0] = 0
    over = random.integers(most, size=shape)
    over[:, :-1] = random.integers(1, NUM_LABELS + 1, size=over[:, :-1].shape)
    return torch.from_numpy((over * num_states + source).astype(np.int16))


def walked(pointers: Tensor, state: int) -> tuple[list[list[int]], list[int]]:
    """The symbols of each frame, and the states before each."""
    num_states = pointers.shape[-1]
    symbols, states = [], []
    for here in pointers.tolist()[::-1]:
        over, state = divmod(here[-1][state], num_states)
        emitted = [over] if len(here) == 1 else [0]
        for level in reversed(range(over if len(here) > 1 else 0)):
            label, state = divmod(here[level][state], num_states)
            emitted.insert(0, label)
        symbols.append(emitted)
        states.append(state)
    return symbols[::-1], states[::-1]


@pytest.fixture(params=["native", "reference"])
def engine(request, monkeypatch):
    monkeypatch.setenv("MIDGE_ENGINE", request.param)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("num_levels", [1, 2, 4])
def test_symbols_of_a_way(engine, num_levels, dtype):
    pointers = random_pointers(30, num_levels, 7, seed=num_levels)
    for num_frames in (0, 1, 29, 30):
        for state in range(7):
            found = traced_symbols(pointers.to(dtype), num_frames, state)
            assert len(found) == num_frames * num_levels
            kept = [symbol for symbol in found if symbol != NO_SYMBOL]
            expected, _ = walked(pointers[:num_frames], state)
            assert kept == [symbol for frame in expected for symbol in frame]
            if num_levels > 1:  # the blank of a frame is its last symbol
                assert set(found[num_levels - 1 :: num_levels]) <= {0}


@pytest.mark.parametrize("num_levels", [1, 3])
@pytest.mark.parametrize("num_alive", [1, 2, 6, 40])
def test_agreement_is_the_longest_common_past(engine, num_levels, num_alive):
    for seed in range(20):
        pointers = random_pointers(60, num_levels, 40, seed)
        alive = torch.zeros(40, dtype=torch.bool)
        generator = torch.Generator().manual_seed(seed)
        alive[torch.randperm(40, generator=generator)[:num_alive]] = True
        states = alive.nonzero().flatten().tolist()
        ways = [[*walked(pointers[:50], state)[1], state] for state in states]
        common = [at[0] for at in zip(*ways, strict=True) if len(set(at)) == 1]
        assert agreement(pointers, 50, alive) == (len(common) - 1, common[-1])


def test_survivors_that_never_met_agree_on_nothing(engine):
    pointers = torch.arange(4, dtype=torch.int16).expand(9, 1, 4).clone()
    pointers[0] = 0
    assert agreement(pointers, 9, torch.tensor([False, True, False, True])) == (0, 0)
