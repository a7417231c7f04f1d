"""The rules by which a recognizer follows the best path, offline and live alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

from midge.lattices import BestPathSearch, RecognitionLattice

MARGIN = 200.0
"""Nats. States further below the best are dropped."""
MAX_TAIL_SECONDS = 10.0
"""Older frames are committed even if survivors disagree on them."""


@dataclass(frozen=True, kw_only=True)
class BestPathRules:
    """What a search for the best path may drop, and when it has to decide."""

    margin: float = MARGIN
    """How far below the best, in nats, a state may fall; see `BestPathSearch`."""
    max_tail_seconds: float | None = MAX_TAIL_SECONDS
    """How much may stay uncommitted; None is no limit."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if not self.margin >= 0:
            raise ValueError(f"margin should be at least 0 nats, or infinity, got {self.margin}")
        if self.max_tail_seconds is not None and not self.max_tail_seconds > 0:
            raise ValueError(f"max_tail_seconds should be more than 0, got {self.max_tail_seconds}")

    def search(self, lattice: RecognitionLattice, frame_seconds: float) -> BestPathSearch:
        """The search over a lattice, whose parameters are read here.

        Args:
            lattice: with a finite context, moving along frames.
            frame_seconds: length of a frame.
        """
        seconds = math.inf if self.max_tail_seconds is None else self.max_tail_seconds
        max_tail = None if math.isinf(seconds) else max(1, round(seconds / frame_seconds))
        return BestPathSearch(lattice, self.margin, max_tail)
