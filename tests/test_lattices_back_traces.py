"""Back-traces against a walk by hand, on both engines."""

from __future__ import annotations

import numpy as np
import pytest

from midge.alignments import NO_SYMBOL
from midge.lattices.back_traces import agreement, before, traced_symbols

NUM_LABELS = 3


def random_pointers(num_frames: int, num_levels: int, num_states: int, seed: int) -> np.ndarray:
    """Any pointers are good ones, but that the first frame comes from state 0 alone."""
    random = np.random.default_rng(seed)
    shape = (num_frames, num_levels, num_states)
    most = NUM_LABELS + 1 if num_levels == 1 else num_levels
    source = random.integers(num_states, size=shape)
    source[0] = 0
    over = random.integers(most, size=shape)
    over[:, :-1] = random.integers(1, NUM_LABELS + 1, size=over[:, :-1].shape)
    return (over * num_states + source).astype(np.int16)


def walked(pointers: np.ndarray, state: int) -> tuple[list[list[int]], list[int]]:
    """The symbols of each frame, and the states before each."""
    num_states = pointers.shape[-1]
    symbols, states = [], []
    for here in pointers[::-1].tolist():
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


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("num_levels", [1, 2, 4])
def test_symbols_of_a_way(engine, num_levels, dtype):
    pointers = random_pointers(30, num_levels, 7, seed=num_levels).astype(dtype)
    for state in range(7):
        found = traced_symbols(pointers, state).tolist()
        kept = [[symbol for symbol in frame if symbol != NO_SYMBOL] for frame in found]
        assert kept == walked(pointers, state)[0]
    assert traced_symbols(pointers[:0], 3).shape == (0, num_levels)


@pytest.mark.parametrize("num_levels", [1, 3])
@pytest.mark.parametrize("num_alive", [1, 2, 6, 40])
def test_agreement_is_the_longest_common_past(engine, num_levels, num_alive):
    for seed in range(20):
        pointers = random_pointers(60, num_levels, 40, seed)
        alive = np.zeros(40, bool)
        alive[np.random.default_rng(seed).permutation(40)[:num_alive]] = True
        ways = [[*walked(pointers, state)[1], state] for state in alive.nonzero()[0].tolist()]
        common = [states[0] for states in zip(*ways, strict=True) if len(set(states)) == 1]
        count, last = agreement(pointers, alive)
        assert (count, last) == (len(common) - 1, common[-1])


def test_survivors_that_never_met_agree_on_nothing(engine):
    pointers = np.arange(4, dtype=np.int16)[None, None].repeat(9, axis=0)
    pointers[0] = 0
    assert agreement(pointers, np.array([False, True, False, True])) == (0, 0)


def test_one_frame_back_keeps_the_order_of_states():
    pointers = random_pointers(1, 3, 9, seed=5)
    states = np.array([8, 0, 3, 3])
    symbols, sources = before(pointers[0], states)
    for row, state in enumerate(states.tolist()):
        expected, past = walked(pointers, state)
        assert [x for x in symbols[row].tolist() if x != NO_SYMBOL] == expected[0]
        assert sources[row] == past[0]
