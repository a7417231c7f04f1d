"""Endpoints: where a stream is cut into segments, and when the speaker has stopped.

The rules look at the best path alone: how long ago it emitted its last label. They are asked after
every block of frames, at the same frames however the sound arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

from midge.decoding.events import EndReason


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """When a segment ends. Times are in seconds.

    In the second half of the longest segment the pause that ends it shrinks to nothing, so that a
    speaker who does not pause is cut at the best place that comes.

    Example:
        >>> rules = EndpointConfig()
        >>> rules.reason(heard=3.0, trailing=0.5), rules.reason(heard=3.0, trailing=0.9)
        (None, 'pause')
        >>> rules.reason(heard=17.5, trailing=0.25), rules.reason(heard=4.0, trailing=None)
        ('pause', None)
    """

    pause: float = 0.8
    """Blank after the last label that ends a segment."""
    silence: float = 5.0
    """Time without any label, from the start of a segment, after which the speech is over."""
    max_segment: float = 20.0
    """A segment of this length ends wherever it is."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if not 0 < self.pause:
            raise ValueError(f"pause should be more than 0 seconds, got {self.pause}")
        for name in ("silence", "max_segment"):
            if not getattr(self, name) >= self.pause:
                raise ValueError(
                    f"{name} should be at least the pause of {self.pause} seconds, "
                    f"got {getattr(self, name)}"
                )

    def reason(self, *, heard: float, trailing: float | None) -> EndReason | None:
        """Why a segment ends now; None if it goes on.

        Args:
            heard: length of the segment so far.
            trailing: time since its last label; None if it has none.
        """
        if trailing is None:
            return "silence" if heard >= self.silence else None
        if heard >= self.max_segment:
            return "length"
        share_left = min(1.0, 2.0 * (1.0 - heard / self.max_segment))
        return "pause" if trailing >= share_left * self.pause else None
