"""Streams: error rates, delays of words, and whether their confidences can be believed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from measuring import Subject

from midge.data import Utterance
from midge.decoding import Partial, StreamingDecoder, evaluate
from midge.decoding.calibration import Bin, Calibration, Judged, calibration, judged_answer
from midge.decoding.latency import CHUNK_SECONDS
from midge.decoding.streaming_evaluation import (
    NUM_PASSES,
    StreamingEvaluation,
    evaluate_streaming,
)
from midge.decoding.streaming_evaluation import to_json as latency_json

BLOCK_SIZE = 4
NUM_DECODINGS = 1 + NUM_PASSES
"""How often `measure_latency` decodes every utterance."""
COMMITTED, TENTATIVE, LAST, BEGUN = KINDS = (
    "committed",
    "tentative, not last",
    "tentative, last",
    "the last as a beginning",
)
"""Words of streams that are judged apart; the last word of a partial result may be half heard."""


def measure_latency(subject: Subject) -> dict[str, Any]:
    """Error rates and delays, as `midge evaluate --streaming` has them."""
    decoder = StreamingDecoder(subject.recognizer, block_size=BLOCK_SIZE)

    def progress(count: int) -> None:
        for _ in range(count):
            subject.progress()

    offline = evaluate(subject.recognizer, subject.utterances, progress=progress)
    found = evaluate_streaming(decoder, subject.utterances, offline, progress=progress)
    return _figures(found)


def measure_live_words(subject: Subject) -> dict[str, Any]:
    """How far confidences of words of streams can be believed, by kind.

    The words themselves, each time that they are shown, would be a large file.
    """
    decoder = StreamingDecoder(subject.recognizer, block_size=BLOCK_SIZE)
    words: dict[str, list[Judged]] = {kind: [] for kind in KINDS}
    for utterance in subject.utterances:
        for kind, judged in _judged(decoder, utterance):
            words[kind].append(judged)
        subject.progress()
    return {kind: calibration_json(calibration(judged)) for kind, judged in words.items()}


def calibration_json(found: Calibration) -> dict[str, Any]:
    """The figures as JSON can hold them, NaN as null."""
    bins = [_without_nan(asdict(each)) for each in found.bins]
    return {**_without_nan(asdict(found)), "bins": bins}


def calibration_of(given: Mapping[str, Any]) -> Calibration:
    """The same figures again."""
    bins = tuple(Bin(**_with_nan(each)) for each in given["bins"])
    return Calibration(**{**_with_nan(given), "bins": bins})


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in values.items()}


def _with_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in values.items()}


def _figures(found: StreamingEvaluation) -> dict[str, Any]:
    """What a table shows of it; the rest would be a large file."""
    kept = latency_json(found)
    rates = {}
    for name in kept["evaluations"]:
        rate = getattr(found, name).rates[0].words
        rates[name] = {"estimate": rate.estimate, "low": rate.low, "high": rate.high}
    factor = found.streaming.real_time_factor
    return {
        "block_size": BLOCK_SIZE,
        "chunk_seconds": found.chunk_seconds,
        "pause": found.endpointing.pause,
        "num_different": found.num_different,
        "num_utterances": len(found.offline.results),
        "revision_rate": kept["revision_rate"],
        "real_time_factor": factor if math.isfinite(factor) else None,
        "percentiles": kept["percentiles"],
        "word_error_rates": rates,
        "units": found.offline.rates[0].units,
    }


def _judged(decoder: StreamingDecoder, utterance: Utterance) -> Iterator[tuple[str, Judged]]:
    """Every word of a stream that is shown, each time that the words change; then the final ones.

    Committed words are judged once, at the end, with the confidence they had when committed.
    """
    reference = decoder.recognizer.tokens.normalize(utterance.text).split()
    audio = utterance.load()
    size = round(CHUNK_SECONDS * audio.sample_rate)
    stream = decoder.stream(audio.sample_rate, has_confidence=True)
    shown: tuple[str, ...] = ()
    for first in range(0, len(audio.samples), size):
        stream.accept(audio.samples[first : first + size])
        partial = stream.result()
        now = tuple(word.text for word in partial.words)
        if now != shown:
            yield from tentative_words(reference, partial)
        shown = now
    final = judged_answer(reference, stream.finish().words)
    yield from ((COMMITTED, word) for word in final)


def tentative_words(reference: list[str], partial: Partial) -> Iterator[tuple[str, Judged]]:
    """The words of a partial result that may still change, judged, with their kind.

    The last one comes twice: as a whole word, and as the beginning of one.
    """
    judged = judged_answer(reference, partial.words, is_partial=True)
    if partial.num_committed == len(judged):
        return
    yield from ((TENTATIVE, word) for word in judged[partial.num_committed : -1])
    yield LAST, judged[-1]
    last = partial.words[-1].text
    begun = [last if word.startswith(last) else word for word in reference]
    yield BEGUN, judged_answer(begun, partial.words, is_partial=True)[-1]
