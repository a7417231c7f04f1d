"""How the states of one stream were reached, by its back-pointers.

A live stream traces after every block, so the native engine does it where it is there. Numbers are
numpy's: a tensor of one number costs a hundred times what the number does.

Shapes: n frames, L levels (`AlignmentLattice.num_levels`), F flat states.
"""

from __future__ import annotations

import numpy as np

from midge.alignments import NO_SYMBOL
from midge.contexts import BLANK
from midge.kernels import native, use_native


def traced_symbols(pointers: np.ndarray, state: int) -> np.ndarray:
    """What each frame emitted on the way to a state: `AlignmentLattice.trace` for one path.

    Args:
        pointers: [n, L, F] back-pointers.
        state: flat state after the last frame.

    Returns:
        [n, L] int32 symbols in the order of the path, blanks included; `NO_SYMBOL` fills up.

    Example:
        >>> pointers = np.array([[[2, 2]], [[0, 2 * 2 + 0]]])  # of two states, at two frames
        >>> traced_symbols(pointers, 1)  # label 2 from state 0, which label 1 had led to
        array([[1],
               [2]], dtype=int32)
    """
    if use_native():
        return native.trace(np.ascontiguousarray(pointers), state)
    symbols = np.full(pointers.shape[:2], NO_SYMBOL, np.int32)
    states = np.array([state])
    for frame in reversed(range(len(pointers))):
        emitted, states = before(pointers[frame], states)
        symbols[frame] = emitted[0]
    return symbols


def agreement(pointers: np.ndarray, alive: np.ndarray) -> tuple[int, int]:
    """How many frames all ways to the states that are alive begin with, and where these end.

    Args:
        pointers: [n, L, F] back-pointers. All ways begin in one state.
        alive: [F] bool, True somewhere.

    Returns:
        The number of frames, and the flat state after them.

    Example:
        >>> pointers = np.array([[[2, 2]], [[0, 2 * 2 + 0]]])
        >>> agreement(pointers, np.array([True, True]))  # both came from state 0
        (1, 0)
    """
    if use_native():
        return native.agreement(np.ascontiguousarray(pointers), np.ascontiguousarray(alive))
    frame, states = len(pointers), alive.nonzero()[0]
    while len(states) > 1 and frame > 0:
        frame -= 1
        states = np.unique(before(pointers[frame], states)[1])
    return frame, int(states[0])


def before(pointers: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One frame back.

    Args:
        pointers: [L, F] of the frame.
        states: [A] flat states after it.

    Returns:
        [A, L] the symbols it emitted, as in `traced_symbols`, and [A] the states before it.
    """
    num_levels, num_states = pointers.shape
    symbol, states = np.divmod(pointers[-1, states].astype(np.int64), num_states)
    if num_levels == 1:
        return symbol[:, None], states
    # Of several levels the last says how many labels came before the blank.
    symbols = np.full((len(states), num_levels), NO_SYMBOL)
    symbols[:, -1] = BLANK
    for level in reversed(range(num_levels - 1)):
        label, source = np.divmod(pointers[level, states].astype(np.int64), num_states)
        emits = symbol > level
        symbols[emits, level] = label[emits]
        states = np.where(emits, source, states)
    return symbols, states
