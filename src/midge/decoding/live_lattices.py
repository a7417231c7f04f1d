"""A recognizer's lattice as streams use it: what they share, and the segments they open on it."""

from __future__ import annotations

from functools import cached_property

from midge.decoding.blank_penalty import with_blank_penalty
from midge.decoding.late_decoding import LateDecoding
from midge.decoding.live_alternatives import MAX_SEARCH_SECONDS, LiveAlternatives
from midge.decoding.live_posteriors import MAX_WINDOW_SECONDS, LiveConfidence, TailSampler
from midge.decoding.offline import OfflineDecoder
from midge.decoding.open_segment import OpenSegment
from midge.models import BestPathRules, Recognizer


class LiveLattice:
    """The lattice with a penalty on blank, its search and its posterior.

    Args:
        recognizer: the model.
        rules: of the search.
        blank_penalty: see `with_blank_penalty`.
    """

    def __init__(self, recognizer: Recognizer, rules: BestPathRules, blank_penalty: float) -> None:
        """Embeds the context states."""
        self._recognizer = recognizer
        self._lattice = recognizer.lattice
        if blank_penalty:
            self._lattice = with_blank_penalty(self._lattice, blank_penalty)
        self.search = rules.search(self._lattice, recognizer.front_end.frame_seconds)

    @cached_property
    def _sampler(self) -> TailSampler:
        """Made when the first stream asks for confidences or alternatives."""
        return TailSampler(self._lattice)

    def open_segment(
        self,
        number: int,
        first: int,
        *,
        has_confidence: bool,
        num_best: int,
        decoder: OfflineDecoder | None = None,
    ) -> OpenSegment:
        """Starts a segment.

        Args:
            number: its place in the stream.
            first: its first frame, counted from the beginning of the stream.
            has_confidence: whether its words get confidences.
            num_best: how many alternatives it lists at its end.
            decoder: what decodes it at its end, if not the search.
        """
        recognizer, tokens = self._recognizer, self._recognizer.tokens
        confidence = alternatives = None
        if has_confidence:
            confidence = LiveConfidence(
                self._sampler, tokens, num_frames(recognizer, MAX_WINDOW_SECONDS)
            )
        if num_best and decoder is None:
            longest = num_frames(recognizer, MAX_SEARCH_SECONDS)
            alternatives = LiveAlternatives(self._lattice, self._sampler, tokens, num_best, longest)
        late = None if decoder is None else LateDecoding(decoder)
        return OpenSegment(recognizer, self.search, number, first, confidence, alternatives, late)


def num_frames(recognizer: Recognizer, seconds: float) -> int:
    """Encoder frames in some seconds, at least 1."""
    return max(1, round(seconds / recognizer.front_end.frame_seconds))
