"""The exact search beside the best path and beams of several sizes, utterance by utterance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from measuring import Encoded, Subject, interleaved

from midge.decoding import BeamConfig, BeamResult, SumPath, beam_search, sum_path

MAX_EXPANSIONS = 1000
BEAM_SIZES = (1, 2, 4, 8, 16, 32, 64)
WINDOWS = (5, 15, 50)
"""Frames ahead of a beam that does not hold the backward weights of the whole utterance."""
WINDOWED_SIZE = 16
MAX_PATH, SUM_PATH = "max-path", "sum-path"


def beam_name(size: int, window: int | None = None) -> str:
    return f"beam {size}" if window is None else f"beam {size}, {window} frames ahead"


WINDOWED = tuple(beam_name(WINDOWED_SIZE, window) for window in WINDOWS)
CONTESTANTS = (MAX_PATH, SUM_PATH, *map(beam_name, BEAM_SIZES), *WINDOWED)
"""In this order stand the figures of a row."""


@dataclass(frozen=True, kw_only=True)
class SearchRow:
    """What the searches made of one utterance; lists are in the order of `CONTESTANTS`."""

    id: str
    speaker: str | None
    audio_seconds: float
    encode_seconds: float
    """Of front end and encoder."""
    num_words: int
    """Of the reference."""
    num_labels: int
    """Of the most probable sequence."""
    num_expansions: int
    is_proved: bool
    open_bound: float
    """Nothing that the exact search has not seen is more probable."""
    seconds: list[float]
    """Of the search alone."""
    num_errors: list[int]
    """By word."""
    log_probabilities: list[float]
    """Of the answer, summed over all its alignments in float64."""
    is_same: list[bool]
    """Whether the answer is that of the exact search."""
    texts: dict[str, str] = field(default_factory=dict)
    """Reference and both answers, where best path and exact search differ."""

    def figure(self, name: str, contestant: str) -> Any:
        """One of the lists' values."""
        return getattr(self, name)[CONTESTANTS.index(contestant)]

    def missed(self, contestant: str) -> float:
        """How much less probable the answer is than that of the exact search."""
        best = math.exp(self.figure("log_probabilities", SUM_PATH))
        return best - math.exp(self.figure("log_probabilities", contestant))


def measure_searches(subject: Subject) -> list[SearchRow]:
    """A row for each utterance.

    Raises:
        ValueError: for a model whose context is not finite.
        ArithmeticError: if a best path's sequence is more probable than the exact answer.
    """
    rows = []
    for number, utterance in enumerate(subject.utterances):
        encoded = subject.encoded(utterance)
        if number == 0:
            _row(subject, encoded, number)  # not counted: it loads what is loaded once
        rows.append(_row(subject, encoded, number))
        subject.progress()
    return rows


def _row(subject: Subject, encoded: Encoded, number: int) -> SearchRow:
    found = interleaved(_contestants(subject, encoded), subject.num_rounds, first=number)
    exact: SumPath = found[SUM_PATH].result
    answers = {name: _labels(timed.result) for name, timed in found.items()}
    values = _log_probabilities(subject, encoded, answers, exact)
    is_same = {name: labels == exact.labels for name, labels in answers.items()}
    return SearchRow(
        id=encoded.utterance.id,
        speaker=encoded.utterance.speaker,
        audio_seconds=round(encoded.audio.duration, 6),
        encode_seconds=round(encoded.seconds, 6),
        num_words=len(encoded.reference),
        num_labels=len(exact.labels),
        num_expansions=exact.num_expansions,
        is_proved=exact.is_proved,
        open_bound=round(math.exp(exact.log_open_bound), 9),
        seconds=[round(found[name].seconds, 5) for name in CONTESTANTS],
        num_errors=[subject.num_errors(encoded, answers[name]) for name in CONTESTANTS],
        log_probabilities=[round(values[name], 6) for name in CONTESTANTS],
        is_same=[is_same[name] for name in CONTESTANTS],
        texts={} if is_same[MAX_PATH] else _texts(subject, encoded, answers),
    )


def _labels(result: list[int] | SumPath | BeamResult) -> list[int]:
    return result if isinstance(result, list) else result.labels


def _contestants(subject: Subject, encoded: Encoded) -> dict[str, Callable[[], Any]]:
    lattice, frames, count = subject.recognizer.lattice, encoded.frames, encoded.num_frames

    @torch.no_grad()
    def best_path() -> list[int]:
        labels: list[int] = lattice.shortest_path(frames, count).labels()
        return labels

    def beam(size: int, window: int | None = None) -> Callable[[], Any]:
        config = BeamConfig(beam_size=size, window=window)
        return lambda: beam_search(lattice, frames, config=config)

    return {
        MAX_PATH: best_path,
        SUM_PATH: lambda: sum_path(lattice, frames, count, max_expansions=MAX_EXPANSIONS),
        **{beam_name(size): beam(size) for size in BEAM_SIZES},
        **{beam_name(WINDOWED_SIZE, window): beam(WINDOWED_SIZE, window) for window in WINDOWS},
    }


def _log_probabilities(
    subject: Subject, encoded: Encoded, answers: dict[str, list[int]], exact: SumPath
) -> dict[str, float]:
    """Of each answer; that of the exact search is its own, and checked against the loss."""
    known = {tuple(exact.labels): exact.log_probability}
    for labels in map(tuple, answers.values()):
        if labels not in known:
            known[labels] = subject.log_posterior(encoded, labels)
    values = {name: known[tuple(labels)] for name, labels in answers.items()}
    again = subject.log_posterior(encoded, exact.labels)
    tolerance = 1e-6 + exact.rounding
    if abs(again - exact.log_probability) > tolerance:
        raise ArithmeticError(
            f"utterance {encoded.utterance.id}: the exact search gives its answer the log "
            f"probability {exact.log_probability}, the loss {again}"
        )
    if values[MAX_PATH] > exact.log_probability + tolerance:
        raise ArithmeticError(
            f"utterance {encoded.utterance.id}: the best path's sequence is more probable "
            f"({values[MAX_PATH]}) than the exact answer ({exact.log_probability})"
        )
    return values


def _texts(subject: Subject, encoded: Encoded, answers: dict[str, list[int]]) -> dict[str, str]:
    texts = {name: " ".join(subject.words(answers[name])) for name in (MAX_PATH, SUM_PATH)}
    return {"reference": " ".join(encoded.reference), **texts}
