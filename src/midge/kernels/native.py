"""The native engine's library: found, loaded and called through ctypes, on tensor memory.

No torch headers are used, so that one build works with every version of torch. The C interface is
described in `source/engine.h`.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

JOINT, UNSHARED, TABLE = 0, 1, 2
GLOBAL, SOFTMAX, HAT = 0, 1, 2
NGRAM, NEXT_STATE_TABLE, FULL_HISTORY = 0, 1, 2
FRAME, FRAME_WITHOUT_BLANK, K_CONSTRAINED, UNBOUNDED = 0, 1, 2, 3
LOG_Z, NUMERATOR, ENTROPY, KEEP, POSITIONS = 1, 2, 4, 8, 16

_SIZES = ("batch", "frames", "states", "vocab", "size", "labels")
_CHOICES = (
    "scorer",
    "normalization",
    "context",
    "alignment",
    "k",
    "order",
    "start",
    "deduplicate",
)
_POINTERS = (
    "next_state",
    "final_weight",
    "x",
    "embedding",
    "weight",
    "bias",
    "num_frames",
    "num_labels",
    "label_ids",
    "label_bonus",
)
CHOICES = _CHOICES
"""The integers that describe a problem, in the order of the C struct."""


class _Struct(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in _SIZES],
        *[(name, ctypes.c_int32) for name in _CHOICES],
        *[(name, ctypes.c_void_p) for name in _POINTERS],
    ]


class _Piece(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("batch", "frames", "pointer_bytes")],
        *[
            (name, ctypes.c_void_p)
            for name in ("x", "first", "count", "alpha", "offset", "pointers")
        ],
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The loaded library; None where it was not built, does not load, or is of an older midge."""
    found = sorted(Path(__file__).parent.glob("_engine*.so"))
    if not found:
        return None
    try:
        return _declared(ctypes.CDLL(str(found[-1])))
    except (OSError, AttributeError):
        return None


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    functions = {"forward": 5, "backward": 9, "marginals": 3, "chain_marginals": 4, "best_path": 4}
    for name, num_pointers in functions.items():
        function = getattr(loaded, f"midge_{name}")
        function.argtypes = [pointer, int32] + [pointer] * num_pointers
        function.restype = ctypes.c_int
    for name in ("kept_bytes", "path_length"):
        function = getattr(loaded, f"midge_{name}")
        function.argtypes, function.restype = [pointer, int32], ctypes.c_int64
    size: Any = ctypes.c_int64
    matrix: list[Any] = [pointer, size, size]
    loaded.midge_product.argtypes = [size, size, size, *matrix, *matrix, pointer]
    loaded.midge_product.restype = ctypes.c_int
    loaded.midge_search_open.argtypes = [pointer, size, ctypes.c_double]
    loaded.midge_search_open.restype = pointer
    loaded.midge_search_run.argtypes = [pointer, pointer]
    loaded.midge_search_run.restype = ctypes.c_int
    loaded.midge_search_close.argtypes, loaded.midge_search_close.restype = [pointer], None
    loaded.midge_trace.argtypes = [pointer, *[size] * 5, pointer]
    loaded.midge_trace.restype = None
    loaded.midge_agreement.argtypes = [pointer, *[size] * 4, *[pointer] * 3]
    loaded.midge_agreement.restype = None
    loaded.midge_variant.restype = ctypes.c_char_p
    return loaded


def variant() -> str | None:
    """The instruction set in use: "avx512", "avx2" or "portable"; None without a library."""
    loaded = library()
    return None if loaded is None else str(loaded.midge_variant().decode())


class Problem:
    """One batch in the form that the library reads; keeps its tensors alive.

    Args:
        x: [B, T, size] float32: projected frames (joint), frames (unshared) or arc weights (table).
        embedding: [S, H], or [B, U + 1, H] with full history; joint only.
        weight: [1 + V, H] (joint) or [S, 1 + V, D] (unshared).
        bias: [1 + V] (joint) or [S, 1 + V] (unshared).
        num_frames: [B] int64.
        labels: [B, U] int64.
        num_labels: [B] int64.
        next_state: [S, V] int32, for a table context.
        final_weight: [S] float32.
        label_bonus: [B, T] float32 added to the numerator's new labels at each frame.
        num_states: S; 0 with full history.
        vocab_size: V.
        choices: the integers of `CHOICES`.
    """

    def __init__(
        self,
        x: Tensor,
        embedding: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        num_frames: Tensor,
        labels: Tensor | None,
        num_labels: Tensor | None,
        next_state: Tensor | None,
        final_weight: Tensor | None,
        label_bonus: Tensor | None,
        num_states: int,
        vocab_size: int,
        choices: list[int],
    ) -> None:
        self.batch_size, self.num_frames, size = x.shape
        self.num_states, self.vocab_size = num_states, vocab_size
        self.num_labels = 0 if labels is None else labels.shape[1]
        self.inputs = [None if t is None else t.contiguous() for t in (x, embedding, weight, bias)]
        others = [
            None if t is None else t.contiguous()
            for t in (next_state, final_weight, num_frames, num_labels, labels, label_bonus)
        ]
        self._tensors = [*others[:2], *self.inputs, *others[2:]]
        sizes = (self.batch_size, self.num_frames, num_states, vocab_size, size, self.num_labels)
        self._struct = _Struct(*sizes, *choices, *(_pointer(t) for t in self._tensors))

    def call(self, name: str, what: int, *tensors: Tensor | None) -> None:
        """Calls a function of the library on the problem and further tensors."""
        loaded = library()
        assert loaded is not None
        function = getattr(loaded, f"midge_{name}")
        if function(ctypes.addressof(self._struct), what, *(_pointer(t) for t in tensors)):
            raise MemoryError(f"the native engine ran out of memory in {name}")

    def ask(self, name: str, what: int) -> int:
        """Calls a function that returns a size."""
        loaded = library()
        assert loaded is not None
        size = int(getattr(loaded, f"midge_{name}")(ctypes.addressof(self._struct), what))
        if size < 0:
            raise MemoryError(f"the native engine ran out of memory in {name}")
        return size


class Search:
    """The library's best-path search over streams that come in pieces.

    Args:
        problem: topology and weights; its frames are not read. Kept alive, and not to be changed.
        places: number of states of each context state: 1, or with deduplication 1 + the largest
            number of distinct labels that enter one.
        margin: states more than this below a frame's best are dropped.
    """

    def __init__(self, problem: Problem, places: int, margin: float) -> None:
        loaded = library()
        assert loaded is not None
        address = ctypes.addressof(problem._struct)
        self._handle = loaded.midge_search_open(address, places, margin)
        if not self._handle:
            raise MemoryError("the native engine ran out of memory in search_open")
        self._problem = problem
        self._lock = threading.Lock()  # calls run outside of Python's own lock
        weakref.finalize(self, loaded.midge_search_close, self._handle)

    def run(
        self,
        x: Tensor,
        first: Tensor,
        count: Tensor,
        alpha: Tensor,
        offset: Tensor,
        pointers: Sequence[Tensor],
        places: Sequence[int],
    ) -> None:
        """Takes streams through frames; alpha, offset and pointers are changed in place.

        Args:
            x: [B, T, size] float32 as in `Problem`, contiguous as all others.
            first: [B] int64 first frame of each stream.
            count: [B] int64 number of frames, 0 for a stream that waits.
            alpha: [B, S * places] float32 forward weights.
            offset: [B] float64, to which goes what is taken off alpha.
            pointers: B times room [capacity, levels, S * places] int16 or int32 for pointers of the
                readable engine's form.
            places: B times where in the room those of the first frame go.
        """
        loaded = library()
        assert loaded is not None
        tensors = (x, first, count, alpha, offset)
        assert all(t.is_contiguous() for t in (*tensors, *pointers))
        frame_bytes = pointers[0][0].numel() * pointers[0].element_size()
        rooms = (ctypes.c_void_p * len(pointers))(
            *(t.data_ptr() + at * frame_bytes for t, at in zip(pointers, places, strict=True))
        )
        sizes = (*x.shape[:2], pointers[0].element_size())
        piece = _Piece(*sizes, *(_pointer(t) for t in tensors), ctypes.addressof(rooms))
        with self._lock:
            failed = loaded.midge_search_run(self._handle, ctypes.addressof(piece))
        if failed:
            raise MemoryError("the native engine ran out of memory in search_run")


def trace(pointers: Tensor, num_frames: int, state: int) -> list[int]:
    """The symbols [num_frames * levels] on the way to a state; see `midge_trace`.

    Args:
        pointers: [num_frames or more, levels, F] integers, contiguous.
        num_frames: how many to follow.
        state: flat state after them.
    """
    loaded = library()
    assert loaded is not None and pointers.is_contiguous()
    capacity, levels, num_states = pointers.shape
    assert 0 <= num_frames <= capacity
    symbols = (ctypes.c_int32 * (num_frames * levels))()
    sizes = (pointers.element_size(), num_frames, levels, num_states)
    loaded.midge_trace(pointers.data_ptr(), *sizes, state, ctypes.addressof(symbols))
    return list(symbols)


def agreement(pointers: Tensor, num_frames: int, alive: Tensor) -> tuple[int, int]:
    """How many frames the states that are alive have in common, and the state after them.

    Args:
        pointers: [num_frames or more, levels, F] integers, contiguous.
        num_frames: after which the states are alive.
        alive: [F] bool, contiguous, True somewhere.
    """
    loaded = library()
    assert loaded is not None and pointers.is_contiguous() and alive.is_contiguous()
    capacity, levels, num_states = pointers.shape
    assert 0 <= num_frames <= capacity and alive.shape == (num_states,)
    memory, found = (ctypes.c_int32 * (2 * num_states))(), (ctypes.c_int64 * 2)()
    sizes = (pointers.element_size(), num_frames, levels, num_states)
    addresses = (alive.data_ptr(), ctypes.addressof(memory), ctypes.addressof(found))
    loaded.midge_agreement(pointers.data_ptr(), *sizes, *addresses)
    return found[0], found[1]


def product(a: Tensor, b: Tensor) -> Tensor:
    """A [M, K] times b [K, N], of any strides, with the same bits for any number of threads."""
    loaded = library()
    assert loaded is not None
    result = a.new_empty(a.shape[0], b.shape[1])
    operands = [value for t in (a, b) for value in (t.data_ptr(), *t.stride())]
    if loaded.midge_product(*result.shape, a.shape[1], *operands, result.data_ptr()):
        raise MemoryError("the native engine ran out of memory in product")
    return result


def _pointer(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.data_ptr()
