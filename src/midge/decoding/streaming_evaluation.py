"""Evaluation of streams: error rates beside the offline ones, and how late the words are."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from midge.audio import Audio, end_of_speech
from midge.data import Utterance, WordTime
from midge.decoding import reports
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.evaluation import Evaluation, evaluate
from midge.decoding.latency import (
    CHUNK_SECONDS,
    Percentiles,
    SimulatedStream,
    WordDelay,
    revisions,
    simulate,
    word_delays,
)
from midge.decoding.live import decode_together
from midge.decoding.streams import StreamingDecoder
from midge.models import Transcript
from midge.tokens import Tokens

STREAMING = "streaming.json"
"""File of a folder of results."""
NUM_PASSES = 3
"""How often `evaluate_streaming` decodes every utterance."""


@dataclass(frozen=True, kw_only=True)
class UtteranceLatency:
    """What was measured on one utterance."""

    id: str
    """Its name in the manifest."""
    delays: tuple[WordDelay, ...]
    """Of the words that are right and whose true times are known."""
    num_timed_words: int
    """How many words have known times."""
    first_partial: float | None
    """From the true start of the first word to the first word shown; None if unknown."""
    final_latency: float
    """As in `SimulatedStream`."""
    real_time_factor: float
    """As in `SimulatedStream`."""
    num_shown: int
    """Words that were shown."""
    num_changed: int
    """Those of them that were later changed."""


@dataclass(frozen=True, kw_only=True)
class StreamingEvaluation:
    """How a recognizer does live."""

    offline: Evaluation
    """By whole utterances."""
    streaming: Evaluation
    """By streams without endpoints, heard chunk by chunk: the offline result, if all is well."""
    tight: Evaluation
    """By streams, of recordings that end with the last word: all trailing silence is removed."""
    endpointed: Evaluation
    """By streams with endpoints."""
    latencies: tuple[UtteranceLatency, ...]
    """Of the utterances that could be read."""
    chunk_seconds: float
    """How much was heard at a time."""
    endpointing: EndpointConfig
    """The rules of `endpointed`."""

    @property
    def num_different(self) -> int:
        """How many utterances have another text live than offline."""
        pairs = zip(self.offline.results, self.streaming.results, strict=True)
        return sum(first.hypothesis != second.hypothesis for first, second in pairs)

    @property
    def revision_rate(self) -> float:
        """Share of the words shown that were later changed; NaN if none was shown."""
        num_shown = sum(each.num_shown for each in self.latencies)
        num_changed = sum(each.num_changed for each in self.latencies)
        return num_changed / num_shown if num_shown else math.nan

    @cached_property
    def percentiles(self) -> dict[str, Percentiles]:
        """Of each measure by its name: in seconds, and the real-time factor per second."""
        delays = [delay for each in self.latencies for delay in each.delays]
        first = [each.first_partial for each in self.latencies if each.first_partial is not None]
        return {
            "first_shown": Percentiles.of(delay.first_shown for delay in delays),
            "last_changed": Percentiles.of(delay.last_changed for delay in delays),
            "committed": Percentiles.of(delay.committed for delay in delays),
            "first_partial": Percentiles.of(first),
            "final_latency": Percentiles.of(each.final_latency for each in self.latencies),
            "real_time_factor": Percentiles.of(
                each.real_time_factor
                for each in self.latencies
                if math.isfinite(each.real_time_factor)
            ),
        }


def evaluate_streaming(
    decoder: StreamingDecoder,
    utterances: Sequence[Utterance],
    offline: Evaluation,
    *,
    endpointing: EndpointConfig | None = None,
    chunk_seconds: float = CHUNK_SECONDS,
    blank_penalty: float = 0.0,
    progress: Callable[[int], object] | None = None,
    **options: Any,
) -> StreamingEvaluation:
    """Decodes utterances by streams: chunk by chunk, without trailing silence, with endpoints.

    Args:
        decoder: what decodes them.
        utterances: with their texts; delays are measured where they have the times of words.
        offline: the evaluation of the same utterances as wholes.
        endpointing: the rules to try; the default ones if not given.
        chunk_seconds: how much is heard at a time.
        blank_penalty: of the streams.
        progress: called with numbers of utterances, `NUM_PASSES` times as many in all.
        options: groups, batch and seed as for `evaluate`.
    """
    rules = EndpointConfig() if endpointing is None else endpointing
    latencies: list[UtteranceLatency] = []

    def live(batch: Sequence[Utterance], audio: Sequence[Audio]) -> list[Transcript]:
        found = [
            simulate(decoder, each, chunk_seconds=chunk_seconds, blank_penalty=blank_penalty)
            for each in audio
        ]
        tokens = decoder.recognizer.tokens
        latencies.extend(_latency(*each, tokens) for each in zip(batch, found, strict=True))
        return [each.transcript for each in found]

    def tight(batch: Sequence[Utterance], audio: Sequence[Audio]) -> list[Transcript]:
        cut = [without_silence(*each) for each in zip(batch, audio, strict=True)]
        return decode_together(decoder, cut, blank_penalty=blank_penalty)

    def endpointed(batch: Sequence[Utterance], audio: Sequence[Audio]) -> list[Transcript]:
        return decode_together(decoder, audio, endpointing=rules, blank_penalty=blank_penalty)

    evaluations = [
        evaluate(decoder.recognizer, utterances, decode=decode, progress=progress, **options)
        for decode in (live, tight, endpointed)
    ]
    return StreamingEvaluation(
        offline=offline,
        streaming=evaluations[0],
        tight=evaluations[1],
        endpointed=evaluations[2],
        latencies=tuple(latencies),
        chunk_seconds=chunk_seconds,
        endpointing=rules,
    )


def without_silence(utterance: Utterance, audio: Audio) -> Audio:
    """The audio up to the true end of its last word or, if that is not known, of its last sound."""
    if utterance.words:
        num_samples = round(max(word.end for word in utterance.words) * audio.sample_rate)
    else:
        num_samples = end_of_speech(audio.samples, audio.sample_rate)
    return Audio(audio.samples[:num_samples], audio.sample_rate)


def _latency(utterance: Utterance, found: SimulatedStream, tokens: Tokens) -> UtteranceLatency:
    reference = [
        WordTime(part, word.start, word.end)
        for word in utterance.words
        for part in tokens.normalize(word.word).split()
    ]
    appeared = next((look.seconds for look in found.shown if look.words), None)
    num_shown, num_changed = revisions(found.shown)
    return UtteranceLatency(
        id=utterance.id,
        delays=tuple(word_delays(reference, found.shown)),
        num_timed_words=len(reference),
        first_partial=appeared - reference[0].start if reference and appeared is not None else None,
        final_latency=found.final_latency,
        real_time_factor=found.real_time_factor,
        num_shown=num_shown,
        num_changed=num_changed,
    )


def table(evaluation: StreamingEvaluation) -> str:
    """Error rates and latencies as plain text."""
    named = {
        "offline": evaluation.offline,
        "streaming": evaluation.streaming,
        "streaming, trailing silence removed": evaluation.tight,
        f"streaming, endpoints (pause {evaluation.endpointing.pause:g} s)": evaluation.endpointed,
    }
    lines = [f"{evaluation.offline.speech:<44}{'WER %':>8}{'95% interval':>18}"]
    for name, each in named.items():
        rate = each.rates[0].words
        shown = f"[{100 * rate.low:.2f}, {100 * rate.high:.2f}]"
        lines.append(f"{name:<44}{100 * rate.estimate:>8.2f}{shown:>18}")
    lines += ["", f"{'seconds':<44}{'p50':>8}{'p90':>8}{'p99':>8}{'count':>8}"]
    for name, found in evaluation.percentiles.items():
        figures = "".join(
            f"{x:>8.3f}" if math.isfinite(x) else f"{'-':>8}"
            for x in (found.p50, found.p90, found.p99)
        )
        lines.append(f"{_MEASURES[name]:<44}{figures}{found.count:>8}")
    return "\n".join([*lines, "", *_notes(evaluation)])


_MEASURES = {
    "first_shown": "word's true end to first shown",
    "last_changed": "word's true end to last changed",
    "committed": "word's true end to committed",
    "first_partial": "first word's true start to first partial",
    "final_latency": "end of the recording to final result",
    "real_time_factor": "seconds of decoding per second of sound",
}


def _notes(evaluation: StreamingEvaluation) -> list[str]:
    num_timed = sum(each.num_timed_words for each in evaluation.latencies)
    rate = evaluation.revision_rate
    revised = f"{100 * rate:.1f} %" if math.isfinite(rate) else "none"
    factor = evaluation.streaming.real_time_factor
    return [
        f"Heard in chunks of {evaluation.chunk_seconds:g} s. Delays of words are in time of the "
        "sound, for words",
        f"that are right and have a true time ({num_timed} have one); the last two rows are "
        "measured on this",
        f"machine, partial results included; over all sound the real-time factor is {factor:.3f}.",
        f"Words shown that were later changed: {revised}; the last word may grow.",
        f"Texts that differ between streaming and offline: {evaluation.num_different} of "
        f"{len(evaluation.offline.results)}.",
    ]


def to_json(evaluation: StreamingEvaluation) -> dict[str, Any]:
    """Everything that was measured, as JSON can hold it."""
    return {
        "chunk_seconds": evaluation.chunk_seconds,
        "endpointing": dataclasses.asdict(evaluation.endpointing),
        "num_different": evaluation.num_different,
        "revision_rate": _finite(evaluation.revision_rate),
        "percentiles": {
            name: {key: _finite(value) for key, value in dataclasses.asdict(found).items()}
            for name, found in evaluation.percentiles.items()
        },
        "evaluations": {
            name: reports.to_json(getattr(evaluation, name))
            for name in ("offline", "streaming", "tight", "endpointed")
        },
        "utterances": [_utterance_json(each) for each in evaluation.latencies],
    }


def _utterance_json(latency: UtteranceLatency) -> dict[str, Any]:
    found = dataclasses.asdict(latency)
    return {**found, "real_time_factor": _finite(latency.real_time_factor)}


def save(evaluation: StreamingEvaluation, folder: Path) -> Path:
    """Writes streaming.json into a folder of results."""
    path = folder / STREAMING
    path.write_text(json.dumps(to_json(evaluation), indent=2) + "\n", encoding="utf-8")
    return path


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
