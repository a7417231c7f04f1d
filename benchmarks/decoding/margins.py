"""The best path with margins: how often the answer changes, and what is saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from measuring import Encoded, Subject, interleaved

from midge.lattices import BestPathSearch
from midge.lattices.search_state import Hypothesis

MARGINS = (math.inf, 200.0, 100.0, 50.0, 25.0, 10.0, 5.0)
"""In nats. In this order stand the figures of a row."""
_CHUNK_SIZE = 4


def margin_name(margin: float) -> str:
    return "none" if math.isinf(margin) else f"{margin:g}"


@dataclass(frozen=True, kw_only=True)
class MarginRow:
    """What margins made of one utterance; lists are in the order of `MARGINS`."""

    id: str
    num_frames: int
    num_words: int
    seconds: list[float]
    """Of the search, all frames at once."""
    num_errors: list[int]
    """By word."""
    is_same: list[bool]
    """Whether the labels are those of `RecognitionLattice.shortest_path`."""
    share_kept: list[float]
    """Of all states, mean over frames."""
    tail_seconds: list[float]
    """What is not committed, mean over frames."""


def measure_margins(subject: Subject) -> list[MarginRow]:
    """A row for each utterance."""
    lattice = subject.recognizer.lattice
    searches = {margin_name(margin): BestPathSearch(lattice, margin) for margin in MARGINS}
    rows = []
    for number, utterance in enumerate(subject.utterances):
        encoded = subject.encoded(utterance)
        if number == 0:
            _row(subject, encoded, searches, number)  # not counted: it loads what is loaded once
        rows.append(_row(subject, encoded, searches, number))
        subject.progress()
    return rows


def _row(
    subject: Subject, encoded: Encoded, searches: dict[str, BestPathSearch], number: int
) -> MarginRow:
    contestants = {name: _whole(search, encoded) for name, search in searches.items()}
    found = interleaved(contestants, subject.num_rounds, first=number)
    with torch.no_grad():
        path = subject.recognizer.lattice.shortest_path(encoded.frames, encoded.num_frames)
    exact = tuple(path.labels())
    frame_seconds = subject.recognizer.front_end.frame_seconds
    followed = [_followed(search, encoded) for search in searches.values()]
    answers = [timed.result.labels for timed in found.values()]
    return MarginRow(
        id=encoded.utterance.id,
        num_frames=len(encoded.frames),
        num_words=len(encoded.reference),
        seconds=[round(timed.seconds, 5) for timed in found.values()],
        num_errors=[subject.num_errors(encoded, labels) for labels in answers],
        is_same=[labels == exact for labels in answers],
        share_kept=[round(kept, 5) for kept, _ in followed],
        tail_seconds=[round(tail * frame_seconds, 4) for _, tail in followed],
    )


def _whole(search: BestPathSearch, encoded: Encoded) -> Callable[[], Hypothesis]:
    """A search over all frames at once."""

    def run() -> Hypothesis:
        state = search.start(1, encoded.frames.dtype)
        state = search.step(encoded.frames[None], encoded.num_frames[None], state)
        return search.finish(state)[0]

    return run


def _followed(search: BestPathSearch, encoded: Encoded) -> tuple[float, float]:
    """Means over every fourth frame: share of states kept, and number of frames not committed."""
    state = search.start(1, encoded.frames.dtype)
    kept = tail = 0.0
    chunks = encoded.frames.split(_CHUNK_SIZE)
    for chunk in chunks:
        state = search.step(chunk[None], torch.tensor([len(chunk)]), state)
        kept += float((state.alpha > -torch.inf).double().mean())
        tail += float(state.tail)
    return kept / len(chunks), tail / len(chunks)
