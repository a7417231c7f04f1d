"""What the parts of the report share: a model with its encoded test set, and fair times."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from midge.audio import Audio
from midge.data import Utterance
from midge.decoding.errors import count_errors
from midge.lattices import RecognitionLattice
from midge.models import Recognizer

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Timed(Generic[_Result]):
    """What something gave, and the least time that it took."""

    result: _Result
    seconds: float


def interleaved(
    contestants: Mapping[str, Callable[[], _Result]], num_rounds: int, first: int = 0
) -> dict[str, Timed[_Result]]:
    """Runs contestants in turn, and round after round, so that all meet the same disturbances.

    Args:
        contestants: by name.
        num_rounds: how often each runs, at least 1; the least time counts.
        first: which of them begins; others begin in later rounds.
    """
    names = list(contestants)
    found: dict[str, Timed[_Result]] = {}
    for number in range(num_rounds):
        start = (first + number) % len(names)
        for name in [*names[start:], *names[:start]]:
            started = time.perf_counter()
            result = contestants[name]()
            seconds = time.perf_counter() - started
            least = min(seconds, found[name].seconds) if name in found else seconds
            found[name] = Timed(result, least)
    return {name: found[name] for name in names}


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An utterance as the searches see it."""

    utterance: Utterance
    reference: list[str]
    """Its words, normalized as the model's tokens are."""
    audio: Audio
    frames: Tensor
    """[num_frames, output_size] of the encoder."""
    seconds: float
    """Time of front end and encoder."""

    @property
    def num_frames(self) -> Tensor:
        """Of the encoder, as an integer tensor without dims."""
        return torch.tensor(len(self.frames))


@dataclass(frozen=True)
class Subject:
    """A model and the utterances that it is measured on."""

    recognizer: Recognizer
    utterances: Sequence[Utterance]
    num_rounds: int = 3
    """How often a time is taken; the least counts."""
    progress: Callable[[], object] = field(default=lambda: None)
    """Called after each utterance of a part."""

    def encoded(self, utterance: Utterance) -> Encoded:
        """Reads and encodes one utterance, alone."""
        recognizer, audio = self.recognizer, utterance.load()

        def encode() -> Tensor:
            with torch.no_grad():
                features = recognizer.front_end.features(audio.samples, audio.sample_rate)
                return recognizer.encode(features[None], torch.tensor([len(features)]))[0]

        timed = interleaved({"encoder": encode}, self.num_rounds)["encoder"]
        reference = recognizer.tokens.normalize(utterance.text).split()
        return Encoded(
            utterance=utterance,
            reference=reference,
            audio=audio,
            frames=timed.result,
            seconds=timed.seconds,
        )

    def words(self, labels: Sequence[int]) -> list[str]:
        """What labels spell."""
        return [word.text for word in self.recognizer.tokens.words(tuple(labels))]

    def num_errors(self, encoded: Encoded, labels: Sequence[int]) -> int:
        """Word errors of an answer."""
        return count_errors(encoded.reference, self.words(labels)).num_errors

    @cached_property
    def _wide_lattice(self) -> RecognitionLattice:
        return copy.deepcopy(self.recognizer.lattice).double()

    @torch.no_grad()
    def log_posterior(self, encoded: Encoded, labels: Sequence[int]) -> float:
        """log P(labels | frames), summed in float64 by the loss: not by what is being measured."""
        loss = self._wide_lattice(
            encoded.frames.double()[None],
            torch.tensor([len(encoded.frames)]),
            torch.tensor([list(labels)], dtype=torch.int64),
            torch.tensor([len(labels)]),
        )
        return -float(loss)
