"""What the posterior gives beyond an answer: confidences, least risk, and n-best lists."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from measuring import Subject

from midge.decoding import DecodedTranscript, DecoderConfig, OfflineDecoder, count_errors
from midge.decoding.calibration import Judged, judged_answer
from midge.decoding.offline import NUM_SEQUENCES

LIST_SIZES = (1, 2, 5, 10, 20, NUM_SEQUENCES)
"""In this order stand the errors of the best of a list."""


@dataclass(frozen=True, kw_only=True)
class PosteriorRow:
    """What the posterior of one utterance gave."""

    id: str
    speaker: str | None
    audio_seconds: float
    num_words: int
    """Of the reference."""
    seconds: float
    """From samples to words with their confidences."""
    is_proved: bool
    """Whether the whole list is for certain that of the most probable sequences."""
    unlisted: float
    """Probability of all sequences that are not in the list."""
    num_errors: int
    """Of the most probable sequence, by word."""
    num_errors_of_least_risk: int
    least_errors: list[int]
    """Of the best of the first so many of the list; see `LIST_SIZES`."""
    words: list[tuple[float, bool]]
    """Confidence of each word of the most probable sequence, and whether it is right."""

    def judged(self) -> list[Judged]:
        return [Judged(confidence, is_right) for confidence, is_right in self.words]


def measure_posteriors(subject: Subject) -> list[PosteriorRow]:
    """A row for each utterance."""
    config = DecoderConfig(search="sum-path", num_best=NUM_SEQUENCES, has_confidence=True)
    decoder = OfflineDecoder(subject.recognizer, config)
    careful = OfflineDecoder(subject.recognizer, replace(config, has_least_risk=True))
    rows = []
    for utterance in subject.utterances:
        audio = utterance.load()
        started = time.perf_counter()
        (found,) = decoder.decode([audio])
        seconds = time.perf_counter() - started
        (chosen,) = careful.decode([audio])
        reference = subject.recognizer.tokens.normalize(utterance.text).split()
        rows.append(
            PosteriorRow(
                id=utterance.id,
                speaker=utterance.speaker,
                audio_seconds=round(audio.duration, 6),
                num_words=len(reference),
                seconds=round(seconds, 6),
                is_proved=bool(found.segments[0].is_proved),
                unlisted=round(_unlisted(found), 6),
                num_errors=_num_errors(reference, found.text),
                num_errors_of_least_risk=_num_errors(reference, chosen.text),
                least_errors=least_errors(
                    [_num_errors(reference, each.text) for each in found.segments[0].alternatives]
                ),
                words=[
                    (round(each.confidence, 5), each.is_right)
                    for each in judged_answer(reference, found.words)
                ],
            )
        )
        subject.progress()
    return rows


def least_errors(listed: list[int]) -> list[int]:
    """Errors of the best of the first 1, 2, 5, ... of a list, from those of each.

    A list that is shorter than asked for has no better one further down.
    """
    return [min(listed[:size]) for size in LIST_SIZES]


def _unlisted(found: DecodedTranscript) -> float:
    listed = (math.exp(each.log_probability) for each in found.segments[0].alternatives)
    return max(0.0, 1.0 - math.fsum(listed))


def _num_errors(reference: list[str], text: str) -> int:
    return count_errors(reference, text.split()).num_errors
