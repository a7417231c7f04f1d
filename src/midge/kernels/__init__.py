"""Fast engines under `lattices`, and how one is chosen.

The native engine (C++, `source/`) serves float32 on the CPU wherever it was built. Everything else,
and everything if the environment has MIDGE_ENGINE=reference, is computed by the readable engine in
`lattices`, which it must agree with.
"""

from __future__ import annotations

import os
import warnings
from functools import cache

import torch

from midge.kernels import native, operators

__all__ = ["engine_name", "native", "operators", "use_native"]


def engine_name() -> str:
    """The engine for float32 on the CPU: "native (avx2)", for instance, or "reference".

    Raises:
        ValueError: if MIDGE_ENGINE is neither "native" nor "reference".
    """
    return f"native ({native.variant()})" if use_native() else "reference"


@torch.compiler.assume_constant_result
def use_native() -> bool:
    """Whether the native engine is there and wanted."""
    wanted = os.environ.get("MIDGE_ENGINE", "native")
    if wanted not in ("native", "reference"):
        raise ValueError(f"MIDGE_ENGINE should be 'native' or 'reference', got {wanted!r}")
    return wanted == "native" and _is_there()


@cache
def _is_there() -> bool:
    """Whether the library loads; says so once if it does not."""
    if native.library() is not None:
        return True
    warnings.warn(
        "midge's native engine was not built or does not load (no C++ compiler when midge was "
        "installed, or sources newer than the build), so that lattices are computed in PyTorch, "
        "many times slower. With a compiler, install midge again; MIDGE_ENGINE=reference silences "
        "this.",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
