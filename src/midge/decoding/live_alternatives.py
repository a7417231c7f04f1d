"""What else a segment of a stream may have said, once it is over.

The texts are those of the most probable label sequences, by the exact search within a small budget.
Where the budget runs out, sequences drawn from the posterior join them, with their exact
probabilities. Of a long segment the last `MAX_SEARCH_SECONDS` are searched; what is older is as the
best path has it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from midge.decoding.confidence import Labels
from midge.decoding.decoded import Alternative
from midge.decoding.exact import sum_path
from midge.decoding.live_posteriors import TailSampler
from midge.lattices import RecognitionLattice
from midge.tokens import Tokens

MAX_SEARCH_SECONDS = 20.0
"""How much of a segment is searched: with the default endpoints all of it."""
MAX_EXPANSIONS = 60
"""Budget of the exact search."""


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

    def listed(self, before: Sequence[int], state: int) -> tuple[Alternative, ...]:
        """The most probable texts, the best first.

        Several label sequences may spell one text; their probabilities are summed.

        Args:
            before: labels of the best path before the window.
            state: of the context after them.
        """
        if not len(self.window.frames):
            return ()
        found = self._whole() if self.window.first == 0 else self._drawn(state)
        total: dict[str, float] = {}
        for labels, log_probability in found:
            text = self._tokens.decode((*before, *labels))
            total[text] = float(np.logaddexp(total.get(text, -math.inf), log_probability))
        # Above 0 is rounding.
        listed = [Alternative(text, min(0.0, value), value) for text, value in total.items()]
        return tuple(sorted(listed, key=lambda each: -each.score)[: self._num_best])

    def _whole(self) -> Iterable[tuple[Labels, float]]:
        """Sequences of the whole segment with their exact log probabilities."""
        frames = self.window.frames
        exact = sum_path(
            self._lattice,
            frames,
            torch.tensor(len(frames)),
            num_best=2 * self._num_best,  # some of them spell the same
            max_expansions=MAX_EXPANSIONS,
        )
        found = {each.labels: each.log_probability for each in exact.sequences}
        if not exact.is_proved:
            drawn = set(self._sampler.sample(frames, self._sampler.start))
            found |= self._scored(frames, sorted(drawn - found.keys()))
        return found.items()

    def _drawn(self, state: int) -> Iterable[tuple[Labels, float]]:
        """Sequences of the end of a long segment, by how often they are drawn."""
        drawn = self._sampler.sample(self.window.frames, state)
        return [(labels, math.log(count / len(drawn))) for labels, count in Counter(drawn).items()]

    @torch.no_grad()
    def _scored(self, frames: Tensor, sequences: Sequence[Labels]) -> dict[Labels, float]:
        """The log probabilities of some sequences."""
        if not sequences:
            return {}
        count = len(sequences)
        losses = self._lattice(
            frames.expand(count, *frames.shape),
            torch.full((count,), len(frames)),
            pad_sequence([torch.tensor(x, dtype=torch.int64) for x in sequences], True),
            torch.tensor([len(x) for x in sequences]),
        )
        return dict(zip(sequences, (-losses).tolist(), strict=True))
