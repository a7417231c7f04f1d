"""What else a segment of a stream may have said, once it is over.

The texts are those of the most probable label sequences, by the exact search within a small budget.
Where the budget runs out, sequences drawn from the posterior join them, with their exact
probabilities. Of a segment longer than `MAX_SEARCH_SECONDS` the end is sampled alone, and a
probability is how often a text was drawn; what is older is as the best path has it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from midge.decoding.confidence import Labels
from midge.decoding.decoded import Alternative, by_text
from midge.decoding.exact import sum_path
from midge.decoding.live_posteriors import TailSampler
from midge.lattices import RecognitionLattice
from midge.tokens import Tokens

MAX_SEARCH_SECONDS = 20.0
"""How much of a segment is searched: with the default endpoints all of it."""
MAX_EXPANSIONS = 60
"""Budget of the exact search."""
_NUM_TOGETHER = 10


class LiveAlternatives:
    """Alternatives of an open segment, for when it ends.

    Args:
        lattice: of the segment.
        sampler: of the same lattice.
        tokens: what spells texts.
        num_best: how many texts to list.
        max_num_frames: how many of the last frames to search.
    """

    def __init__(
        self,
        lattice: RecognitionLattice,
        sampler: TailSampler,
        tokens: Tokens,
        num_best: int,
        max_num_frames: int,
    ) -> None:
        self.window = sampler.window()
        """What is searched."""
        self._lattice = lattice
        self._sampler = sampler
        self._tokens = tokens
        self._num_best = num_best
        self._max_num_frames = max_num_frames

    @property
    def overflow(self) -> int | None:
        """The frame at which the window has to begin, if it is too long."""
        surplus = len(self.window.frames) - self._max_num_frames
        return self.window.first + surplus if surplus > 0 else None

    def listed(
        self, before: Sequence[int], state: int, max_seconds: float | None = None
    ) -> tuple[Alternative, ...]:
        """The most probable texts, the best first.

        Args:
            before: labels of the best path before the window.
            state: of the context after them.
            max_seconds: for how long to look; what was found by then is listed.
        """
        if not len(self.window.frames):
            return ()
        found = self._whole(max_seconds) if self.window.first == 0 else self._drawn(state)
        each = (
            Alternative(self._tokens.decode((*before, *labels)), log_probability, log_probability)
            for labels, log_probability in found
        )
        return by_text(each, self._num_best)

    def _whole(self, max_seconds: float | None) -> Iterable[tuple[Labels, float]]:
        """Sequences of the whole segment with their exact log probabilities."""
        frames = self.window.frames
        deadline = time.monotonic() + (math.inf if max_seconds is None else max_seconds)
        exact = sum_path(
            self._lattice,
            frames,
            torch.tensor(len(frames)),
            num_best=2 * self._num_best,  # some of them spell the same
            max_expansions=MAX_EXPANSIONS,
            max_seconds=None if max_seconds is None else max_seconds / 2,
        )
        found = {each.labels: each.log_probability for each in exact.sequences}
        if not exact.is_proved and time.monotonic() < deadline:
            drawn = Counter(self._sampler.sample(frames, self._sampler.start))
            often = [labels for labels, _ in drawn.most_common() if labels not in found]
            for first in range(0, len(often), _NUM_TOGETHER):
                if time.monotonic() >= deadline:
                    break
                found |= self._scored(frames, often[first : first + _NUM_TOGETHER])
        return found.items()

    def _drawn(self, state: int) -> Iterable[tuple[Labels, float]]:
        """Sequences of the end of a long segment, by how often they are drawn."""
        drawn = self._sampler.sample(self.window.frames, state)
        return [(labels, math.log(count / len(drawn))) for labels, count in Counter(drawn).items()]

    @torch.no_grad()
    def _scored(self, frames: Tensor, sequences: Sequence[Labels]) -> dict[Labels, float]:
        """The log probabilities of some sequences, at least one."""
        count = len(sequences)
        losses = self._lattice(
            frames.expand(count, *frames.shape),
            torch.full((count,), len(frames)),
            pad_sequence([torch.tensor(x, dtype=torch.int64) for x in sequences], True),
            torch.tensor([len(x) for x in sequences]),
        )
        return dict(zip(sequences, (-losses).tolist(), strict=True))


@dataclass(frozen=True)
class AlternativesSearch:
    """A search in a segment that is over, for whoever has the time; any thread may run it."""

    segment: int
    """Number of the segment."""
    alternatives: LiveAlternatives
    """Of the segment."""
    before: tuple[int, ...]
    """Labels of the best path before the window."""
    state: int
    """Of the context after them."""

    def run(self, max_seconds: float | None = None) -> tuple[Alternative, ...]:
        """The most probable texts, the best first.

        Args:
            max_seconds: for how long to look; None is no limit. A look at the frames, and a
                few steps, are taken whatever it says.
        """
        return self.alternatives.listed(self.before, self.state, max_seconds)
