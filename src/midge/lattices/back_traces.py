"""How the states of one stream were reached, by its back-pointers.

A live stream traces after every block, so the native engine does it where it is there.

Shapes: n frames, L levels (`AlignmentLattice.num_levels`), F flat states. Pointers are on the CPU.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from midge.alignments import NO_SYMBOL
from midge.contexts import BLANK
from midge.kernels import native, use_native


def traced_symbols(pointers: Tensor, num_frames: int, state: int) -> list[int]:
    """What each frame emitted on the way to a state: `AlignmentLattice.trace` for one path.

    Args:
        pointers: [n, L, F] back-pointers.
        num_frames: how many of the frames to follow, from the first.
        state: flat state after them.

    Returns:
        [num_frames * L] symbols in the order of the path, L for each frame, blanks included;
        `NO_SYMBOL` fills up.

    Example:
        >>> import torch
        >>> pointers = torch.tensor([[[2, 2]], [[0, 2 * 2 + 0]]])  # of two states, at two frames
        >>> traced_symbols(pointers, 2, 1)  # label 2 from state 0, which label 1 had led to
        [1, 2]
    """
    if use_native():
        return native.trace(pointers, num_frames, state)
    each = pointers.numpy()  # a tensor of one number costs a hundred times what the number does
    backward: list[int] = []
    for frame in reversed(range(num_frames)):
        emitted, state = _before(each[frame], state)
        backward += emitted[::-1]
    return backward[::-1]


def agreement(pointers: Tensor, num_frames: int, alive: Tensor) -> tuple[int, int]:
    """How many frames all ways to the states that are alive begin with, and where these end.

    Args:
        pointers: [n, L, F] back-pointers. All ways begin in one state.
        num_frames: after how many of the frames the states are alive.
        alive: [F] bool, True somewhere.

    Returns:
        The number of frames, and the flat state after them.

    Example:
        >>> import torch
        >>> pointers = torch.tensor([[[2, 2]], [[0, 2 * 2 + 0]]])
        >>> agreement(pointers, 2, torch.tensor([True, True]))  # both came from state 0
        (1, 0)
    """
    if use_native():
        return native.agreement(pointers, num_frames, alive)
    each = pointers.numpy()
    frame, states = num_frames, set(alive.nonzero().flatten().tolist())
    while len(states) > 1 and frame > 0:
        frame -= 1
        states = {_before(each[frame], state)[1] for state in states}
    return frame, states.pop()


def _before(pointers: Any, state: int) -> tuple[list[int], int]:
    """One frame back: the symbols [L] it emitted, and the state before it.

    Args:
        pointers: [L, F] of the frame, a tensor's `numpy()`.
        state: flat state after it.
    """
    num_levels, num_states = pointers.shape
    symbol, state = divmod(int(pointers[-1, state]), num_states)
    if num_levels == 1:
        return [symbol], state
    # Of several levels the last says how many labels came before the blank.
    symbols = [NO_SYMBOL] * (num_levels - 1) + [BLANK]
    for level in reversed(range(symbol)):
        symbols[level], state = divmod(int(pointers[level, state]), num_states)
    return symbols, state
