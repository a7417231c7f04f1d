"""Whole recordings decoded by any of the searches, with all that the posterior gives.

`Recognizer.transcribe` follows the best path. An `OfflineDecoder` may sum over paths instead,
exactly or by beam; lists alternatives with their probabilities; says how sure each word is; and
takes a language model, phrases and a penalty on blank into account.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from midge.alignments import LabelDependent
from midge.audio import Audio
from midge.decoding.beam import BeamConfig, beam_search
from midge.decoding.biasing import phrase_bias
from midge.decoding.blank_penalty import with_blank_penalty
from midge.decoding.confidence import (
    Confidence,
    Labels,
    Posterior,
    confidences,
    emission_frames,
    with_confidence,
)
from midge.decoding.decoded import (
    Alternative,
    DecodedSegment,
    DecodedTranscript,
    with_segments,
)
from midge.decoding.exact import sum_path
from midge.decoding.fusion import Fusion, LabelScorer, fused_lattice
from midge.decoding.language_models import NgramModel
from midge.decoding.risk import least_risk
from midge.lattices import BestPathSearch, greedy_path
from midge.models import BestPathRules, Recognizer, Transcript
from midge.models.best_paths import MARGIN, MAX_TAIL_SECONDS
from midge.models.transcripts import transcript_of

NUM_SEQUENCES = 50
"""How many sequences are searched for where confidences or risks are wanted; so wide is a beam."""

PHRASE_BONUS = 1.5
"""For each label of a phrase, in nats."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """How to decode."""

    search: Literal["max-path", "sum-path", "beam"] = "max-path"
    """The best path; the most probable label sequence, exactly; or that by beam."""
    num_best: int = 1
    """How many alternatives to list; not for max-path."""
    has_confidence: bool = False
    """Whether words get their posterior probabilities."""
    has_least_risk: bool = False
    """Whether to answer by the fewest expected word errors among the sequences listed."""
    margin: float = MARGIN
    """Of the best path, in nats, where the model can run live; see `BestPathRules`."""
    max_tail_seconds: float | None = MAX_TAIL_SECONDS
    """The same."""
    max_expansions: int = 1000
    """Budget of the exact search."""
    max_seconds: float | None = None
    """How long the exact search may take for each piece of a recording; None is no limit."""
    beam: BeamConfig = field(default_factory=BeamConfig)
    """How wide the beam is."""
    num_samples: int = 100
    """Samples for confidences and risks, where the sequences listed leave much open; 0 is none."""
    blank_penalty: float = 0.0
    """Taken off the score of blank, in nats."""
    lm_weight: float = 0.3
    """Of a language model."""
    label_bonus: float = 0.0
    """For each label, in nats."""
    internal_lm_weight: float = 0.0
    """How much of the model's own language model to subtract; by beam only."""
    phrase_bonus: float = PHRASE_BONUS
    """For each label of a phrase, in nats."""

    def __post_init__(self) -> None:
        if self.num_best < 1:
            raise ValueError(f"num_best should be at least 1, got {self.num_best}")
        if self.num_best > 1 and self.search == "max-path":
            raise ValueError(
                f"num_best should be 1 for max-path, got {self.num_best}; its paths are no "
                "alternatives, search by sum-path or beam"
            )
        if self.has_least_risk and self.search == "max-path":
            raise ValueError("has_least_risk needs sequences; search by sum-path or beam")
        for name, least in (("max_expansions", 1), ("max_seconds", 0), ("num_samples", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} should be at least {least}, got {value}")
        self.best_path_rules()  # they check themselves
        if self.internal_lm_weight and self.search != "beam":
            raise ValueError("internal_lm_weight should be 0 unless the search is a beam")

    def best_path_rules(self) -> BestPathRules:
        """Those of max-path."""
        return BestPathRules(margin=self.margin, max_tail_seconds=self.max_tail_seconds)

    @property
    def needs_sequences(self) -> bool:
        """Whether many sequences are needed, however few are listed."""
        return self.has_confidence or self.has_least_risk


@dataclass(frozen=True)
class _Found:
    """What a search gave for one utterance."""

    answer: Labels
    score: float
    listed: tuple[tuple[Labels, float, float], ...] = ()
    """Labels, log probability and score of the alternatives."""
    posterior: Posterior | None = None
    is_proved: bool | None = None
    frames: tuple[int, ...] | None = None
    """Of the answer's labels, where the search knows them."""


class OfflineDecoder:
    """Decodes whole recordings.

    Args:
        recognizer: the model.
        config: how to decode.
        language_model: over the model's labels. With max-path and sum-path it is added inside the
            lattice, exactly, which needs a context that remembers as much as it does.
        phrases: that are to be expected; by beam only.

    Raises:
        ValueError: if the model, the search and the hints do not go together; says what does.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        config: DecoderConfig | None = None,
        language_model: NgramModel | None = None,
        phrases: Sequence[str] = (),
    ) -> None:
        """Prepares the lattice. The search for the best path reads the parameters here."""
        self.recognizer = recognizer
        self.config = config = config or DecoderConfig()
        self._lattice = recognizer.lattice
        if config.blank_penalty:
            self._lattice = with_blank_penalty(self._lattice, config.blank_penalty)
        self._fusion = Fusion()
        if config.search == "beam":
            self._fusion = self._new_fusion(language_model, phrases)
        elif phrases:
            raise ValueError("phrases need a beam: no lattice remembers them")
        elif language_model is not None or config.label_bonus:
            model = language_model or _Nothing(recognizer.tokens.vocab_size)
            self._lattice = fused_lattice(
                self._lattice, model, config.lm_weight, config.label_bonus
            )
        self._search: BestPathSearch | None = None
        if config.search == "max-path" and recognizer.can_run_live:
            rules, frame_seconds = config.best_path_rules(), recognizer.front_end.frame_seconds
            self._search = rules.search(self._lattice, frame_seconds)
        if config.search == "sum-path" and not recognizer.is_exact:
            raise ValueError(
                "search should be a beam for a model with unbounded history or labels per frame, "
                "got sum-path"
            )

    def _new_fusion(self, model: NgramModel | None, phrases: Sequence[str]) -> Fusion:
        config = self.config
        scorers: list[tuple[float, LabelScorer]] = []
        if model is not None:
            scorers.append((config.lm_weight, model))
        if phrases:
            bias = phrase_bias(self.recognizer.tokens, phrases, config.phrase_bonus)
            scorers.append((1.0, bias))
        return Fusion(tuple(scorers), config.label_bonus, config.internal_lm_weight)

    @torch.no_grad()
    def decode(self, audio: Sequence[Audio]) -> list[DecodedTranscript]:
        """What is said in recordings, encoded in one batch.

        Args:
            audio: the recordings; none is fine.
        """
        if not audio:
            return []
        recognizer = self.recognizer
        features = [recognizer.front_end.features(each.samples, each.sample_rate) for each in audio]
        num_features = torch.tensor([len(x) for x in features])
        frames = recognizer.encode(pad_sequence(features, batch_first=True), num_features)
        return [
            self.decode_frames(row[:count], each.duration)
            for row, count, each in zip(frames, num_features.tolist(), audio, strict=True)
        ]

    @torch.no_grad()
    def decode_frames(self, frames: Tensor, seconds: float) -> DecodedTranscript:
        """What is said in one recording that is encoded already.

        Args:
            frames: [num_frames, output_size] of the encoder.
            seconds: length of the recording; no word ends later.
        """
        found = self._searched(frames)
        if self.config.has_least_risk and found.posterior is not None:
            chosen = least_risk(found.posterior, self._words).labels
            if chosen != found.answer:
                found = dataclasses.replace(found, answer=chosen, frames=None)
        transcript = self._transcript(found, frames, seconds)
        sure: tuple[Confidence, ...] = ()
        if self.config.has_confidence and found.posterior is not None:
            sure = tuple(confidences(found.answer, found.posterior, self._words))
            words = with_confidence(transcript.words, sure)
            transcript = dataclasses.replace(transcript, words=words)
        alternatives = tuple(
            Alternative(self.recognizer.tokens.decode(labels), log_probability, score)
            for labels, log_probability, score in found.listed[: self.config.num_best]
        )
        segment = DecodedSegment(0.0, seconds, alternatives, found.is_proved, sure)
        return with_segments(transcript, segment)

    def _searched(self, frames: Tensor) -> _Found:
        config = self.config
        if config.search == "max-path":
            found = self._best_path(frames)
            if not config.needs_sequences:
                return found
            other = self._sequences(frames, is_exact=self.recognizer.is_exact)
            return dataclasses.replace(found, posterior=other.posterior)
        return self._sequences(frames, is_exact=config.search == "sum-path")

    def _best_path(self, frames: Tensor) -> _Found:
        count = torch.tensor([len(frames)])
        if self._search is not None:
            (live,) = self._search.whole(frames[None], count)
            return _Found(live.labels, live.weight, frames=live.frames)
        if self.recognizer.is_exact:
            path = self._lattice.shortest_path(frames[None], count)
        else:
            path = greedy_path(self._lattice, frames[None], count)
        (transcript,) = self.recognizer.transcripts_of(path, [0.0])
        return _Found(transcript.labels, transcript.score, frames=transcript.frames)

    def _sequences(self, frames: Tensor, is_exact: bool) -> _Found:
        """The most probable label sequences, and their posterior."""
        config = self.config
        num_best = max(config.num_best, NUM_SEQUENCES if config.needs_sequences else 1)
        if is_exact:
            exact = sum_path(
                self._lattice,
                frames,
                torch.tensor(len(frames)),
                num_best=num_best,
                max_expansions=config.max_expansions,
                max_seconds=config.max_seconds,
            )
            listed = [(x.labels, x.log_probability, x.log_probability) for x in exact.sequences]
            is_proved: bool | None = exact.num_proved >= config.num_best or exact.is_proved
        else:
            beam = dataclasses.replace(config.beam, beam_size=max(config.beam.beam_size, num_best))
            found = beam_search(
                self._lattice, frames, num_best=num_best, config=beam, fusion=self._fusion
            )
            listed = [(x.labels, x.log_probability, x.score) for x in found.sequences]
            is_proved = None
        if not listed:
            return _Found((), -math.inf, is_proved=is_proved)
        return _Found(
            listed[0][0], listed[0][2], tuple(listed), self._posterior(listed, frames), is_proved
        )

    def _posterior(
        self, listed: Sequence[tuple[Labels, float, float]], frames: Tensor
    ) -> Posterior | None:
        """The distribution over sequences, where it is asked for."""
        if not self.config.needs_sequences:
            return None
        if self._fusion != Fusion():
            # Scores with a fusion have no known sum: what is listed has to be everything.
            scores = np.array([score for _, _, score in listed])
            shares = np.exp(scores - scores.max())
            known = dict(
                zip([labels for labels, _, _ in listed], shares / shares.sum(), strict=True)
            )
            return Posterior(known, is_relative=True)
        found = Posterior.of_logs((labels, value) for labels, value, _ in listed)
        if found.unexplored < 0.01 or not self.config.num_samples or not self.recognizer.is_exact:
            return found
        drawn = self._lattice.sample(
            frames,
            torch.tensor(len(frames)),
            self.config.num_samples,
            torch.Generator(frames.device).manual_seed(0),
        )
        return Posterior(found.known, [tuple(labels) for labels in drawn.labels()])

    def _transcript(self, found: _Found, frames: Tensor, seconds: float) -> Transcript:
        """The answer with the times of its words: of the path, or by posteriors."""
        times = found.frames
        if times is None and isinstance(self._lattice.alignment, LabelDependent):
            times = tuple(range(len(found.answer)))  # a path has no better ones
        if times is None:
            times = tuple(emission_frames(self._lattice, frames, found.answer))
        recognizer = self.recognizer
        return transcript_of(
            found.answer, times, found.score, seconds, recognizer.tokens, recognizer.front_end
        )

    def _words(self, labels: Labels) -> Sequence[Hashable]:
        return [word.text for word in self.recognizer.tokens.words(labels)]


class _Nothing(LabelScorer):
    """A scorer without opinion, beside a bonus for labels."""

    start = 0

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def arcs(self, state: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(self.vocab_size), np.zeros(self.vocab_size, dtype=np.int64)

    def final(self, state: int) -> float:
        return 0.0
