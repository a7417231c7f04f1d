"""How sure the words of a stream are: the posterior of the lattice, cut at the present frame.

An open segment has no end yet. Its posterior is that of the lattice over the frames heard so far,
given what is older than a *window*: the encoder frames from the last label of the last committed
word on, at most `MAX_WINDOW_SECONDS`. The label history before the window is the best path's, so
the cost of a look does not grow with the length of the segment. A word that the window leaves
behind keeps the confidence it had then.

A confidence is what `confidence` says it is, over label sequences drawn from that posterior.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from midge.contexts import FiniteContext
from midge.contexts.spaces import Arcs
from midge.decoding.confidence import (
    SAMPLED_LEVEL,
    Confidence,
    Labels,
    Posterior,
    confidences,
    sampled_confidence,
)
from midge.decoding.errors import align
from midge.lattices import RecognitionLattice
from midge.lattices.paths import path_of_symbols, sample_paths
from midge.lattices.recursion import Recursion
from midge.lattices.whole import WholeLattice
from midge.tokens import Tokens

NUM_SAMPLES = 100
"""Sequences drawn for the confidences of a look: a standard error of 0.05 where it is largest."""
MAX_WINDOW_SECONDS = 2.0
"""How much of a segment a look sums over. A window that grows longer is halved, so that a word has
at least half of it to be doubted in."""


class Window:
    """The last encoder frames of a segment.

    Args:
        context: the automaton of label histories.
        nothing: [0, input_size].
    """

    def __init__(self, context: FiniteContext, nothing: Tensor) -> None:
        self.first = 0
        """Its first frame, counted from the start of the segment."""
        self.frames = nothing
        """[num_frames, input_size]."""
        self.arcs: Arcs | None = None
        """[1, n, ...], of the first n frames: those of the last look. They do not change, and most
        of a look would be spent on them."""
        self._context = context
        self._settled_state = context.start
        self._num_settled = 0

    def hear(self, frames: Tensor) -> None:
        """Adds frames [n, input_size]."""
        self.frames = torch.cat((self.frames, frames))

    def begin_at(self, first: int) -> None:
        """Forgets the frames before one, which is not before the first."""
        # Copies: a view would keep what is forgotten.
        num_forgotten = first - self.first
        self.frames = self.frames[num_forgotten:].clone()
        if self.arcs is not None:
            self.arcs = self.arcs.map(lambda x: x[:, num_forgotten:].clone())
        self.first = first

    def state(self, settled: Sequence[int], tentative: Sequence[int]) -> int:
        """The context state before the window.

        Args:
            settled: committed labels before it; at each call those of the last one and more.
            tentative: the labels between them and the window, as the best path has them now.
        """
        state = self._after(settled[self._num_settled :], self._settled_state)
        self._settled_state, self._num_settled = state, len(settled)
        return self._after(tentative, state)

    def _after(self, labels: Iterable[int], state: int) -> int:
        for label in labels:
            after = self._context.next_state(torch.tensor(state), torch.tensor(label))
            state = int(after)
        return state


class TailSampler:
    """Draws label sequences that may follow a known history.

    The parameters are read once, here, and the context states embedded.

    Args:
        lattice: with a finite context, moving along frames.
    """

    def __init__(self, lattice: RecognitionLattice) -> None:
        self._context = context = cast(FiniteContext, lattice.context)
        self._whole = WholeLattice(
            context, lattice.alignment, lattice.normalization, lattice.deduplicate
        )
        self._num_copies = math.prod(self._whole.space.state_shape) // context.num_states
        self._weights = copy.deepcopy(lattice.weights).requires_grad_(False)
        like = next(self._weights.parameters(), torch.empty(0))
        self._nothing = like.new_zeros(0, self._weights.input_size)
        self._start = torch.tensor([context.start], device=like.device)
        no_frames = torch.zeros_like(self._start)
        self._scorer = self._weights.scorer(self._nothing[None], no_frames, None)

    @property
    def start(self) -> int:
        """The context state of no history."""
        return self._context.start

    def window(self) -> Window:
        """An empty window at the start."""
        return Window(self._context, self._nothing)

    @torch.no_grad()
    def sample(
        self,
        frames: Tensor,
        state: int,
        num_samples: int = NUM_SAMPLES,
        known: Arcs | None = None,
    ) -> list[Labels]:
        """Label sequences of frames, each drawn with its posterior probability.

        The random numbers are the same at every call, so that a stream can be heard again.

        Args:
            frames: [num_frames, input_size].
            state: of the context, after the labels that come before.
            num_samples: how many.
            known: [1, num_frames, ...], the arcs, where they are at hand.
        """
        generator = torch.Generator(frames.device).manual_seed(0)
        start = state * self._num_copies
        drawn = sample_paths(self._recursion(frames), num_samples, generator, start, known)
        path = path_of_symbols(*drawn, self._whole.alignment, self._whole.deduplicate)
        return [tuple(labels) for (labels,) in path.labels()]

    def look(self, window: Window, state: int) -> list[Labels]:
        """The same of a window, which keeps its arcs for the next look."""
        with torch.no_grad():
            window.arcs = self._arcs(window.frames, window.arcs)
        return self.sample(window.frames, state, known=window.arcs)

    def _arcs(self, frames: Tensor, known: Arcs | None) -> Arcs:
        """The arcs of all frames. One at a time: so they are the same whenever one looks."""
        parts = [] if known is None else [known]
        num_known = 0 if known is None else known.blank.shape[1]
        for frame in frames[num_known:].split(1):
            source = self._recursion(frame).source
            parts.append(source.arcs(source.inputs, range(len(frame))))
        tensors = [part.tensors() for part in parts]
        return Arcs(**{name: torch.cat([x[name] for x in tensors], 1) for name in tensors[0]})

    def _recursion(self, frames: Tensor) -> Recursion:
        count = torch.full_like(self._start, len(frames))
        heard = self._weights.scorer(frames[None], count, self._start)
        # The states are embedded already; what is new are the frames.
        return self._whole.recursion(dataclasses.replace(self._scorer, step=heard.step), count)


class LiveConfidence:
    """Confidences of the words of an open segment that are not committed yet.

    Args:
        sampler: of the segment's lattice.
        tokens: what spells words.
        max_num_frames: length of the window.
    """

    def __init__(self, sampler: TailSampler, tokens: Tokens, max_num_frames: int) -> None:
        self.window = sampler.window()
        """What is looked at."""
        self._sampler = sampler
        self._tokens = tokens
        self._max_num_frames = max_num_frames
        self._older: list[tuple[str, Confidence]] = []
        """The first words, which end before the window, as they were when it left them behind."""

    @property
    def overflow(self) -> int | None:
        """The frame at which the window has to begin, if it is too long; it is halved then."""
        if len(self.window.frames) <= self._max_num_frames:
            return None
        return self.window.first + len(self.window.frames) - self._max_num_frames // 2

    def values(self, labels: Sequence[int], state: int, words: Sequence[str]) -> list[Confidence]:
        """The confidences of words of the best path that are not committed.

        Args:
            labels: of the best path, in the window; it may begin within a word.
            state: of the context, before them.
            words: the words asked for; the last of them are those of the labels.
        """
        if not words:
            return []
        found = self._sampled(labels, state)
        num_older = max(0, len(words) - len(found))
        return [
            *self._older_values(words[:num_older]),
            *found[len(found) - len(words) + num_older :],
        ]

    def forget(self, num_words: int) -> None:
        """Takes note that the first words are asked for no more."""
        del self._older[:num_words]

    def shorten(self, first: int, older: Iterable[tuple[str, Confidence]]) -> None:
        """Begins the window later.

        Args:
            first: its new first frame.
            older: the words that end before it and are still asked for, with their confidences.
        """
        self.window.begin_at(first)
        self._older = list(older)

    def _older_values(self, words: Sequence[str]) -> list[Confidence]:
        """Of words that end before the window.

        One that has taken the place of another since then has what that one left, which is at least
        what it had itself.
        """
        values: list[Confidence] = []
        known = iter(self._older)
        for pair in align([text for text, _ in self._older], words):
            before = _UNKNOWN if pair.reference is None else next(known)[1]
            if pair.hypothesis is not None:
                values.append(before if pair.operation == "=" else _left_by(before))
        return values

    def _sampled(self, labels: Sequence[int], state: int) -> list[Confidence]:
        samples = self._sampler.look(self.window, state)
        found = confidences(tuple(labels), Posterior({}, samples), self._words)
        return [sampled_confidence(each.value, len(samples)) for each in found]

    def _words(self, labels: Labels) -> Sequence[Hashable]:
        return [word.text for word in self._tokens.words(labels)]


_UNKNOWN = Confidence(0.5, 0.0, 1.0, SAMPLED_LEVEL)
"""Of a word that nothing was known of when it could be looked at."""


def _left_by(taken: Confidence) -> Confidence:
    """The confidence of a word in the place of another."""
    low = 0.0 if taken.low is None else taken.low
    return Confidence(1.0 - taken.value, 0.0, 1.0 - low, taken.level)
