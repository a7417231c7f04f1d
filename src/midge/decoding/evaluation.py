"""Evaluation: every utterance of a manifest decoded, scored, and told apart by group.

No utterance is left out. One whose audio cannot be read has an empty hypothesis, so that all its
words count as deleted, and is named with the reason.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from midge.audio import Audio
from midge.data import Utterance
from midge.decoding.bootstrap import (
    Floats,
    Interval,
    Units,
    difference,
    draws,
    error_rate,
    interval_of,
    relative_difference,
)
from midge.decoding.errors import ErrorCounts, TextErrors, text_errors
from midge.decoding.recordings import BATCH_SECONDS, transcribe_batch
from midge.models import Recognizer, TimedWord, Transcript
from midge.tokens import Tokens

ALL = "all"
"""Name of the group of all utterances."""
Decode = Callable[[Sequence[Utterance], Sequence[Audio]], Sequence[Transcript]]
"""From utterances and their audio to what was said in each."""
_KINDS = ("words", "characters", "sentences")
_NOT_SYNTHETIC = ("", "0", "no", "none", "false")
"""Values of the manifest field `synthetic` that deny it."""


@dataclass(frozen=True, kw_only=True)
class UtteranceResult:
    """What became of one utterance."""

    id: str
    """Its name in the manifest."""
    reference: str
    """What was said, normalized as the model's tokens are."""
    hypothesis: str
    """What was recognized; empty if the audio could not be read."""
    seconds: float
    """Length of the audio; by the manifest, if it could not be read."""
    speaker: str | None = None
    """Who said it, if known."""
    groups: tuple[str, ...] = ()
    """The groups it is in, besides that of all."""
    words: tuple[TimedWord, ...] = ()
    """The recognized words with their times."""
    failure: str | None = None
    """Why the audio could not be read."""
    uncovered: str = ""
    """Characters of the reference that the model has no label for: it cannot write these words."""
    is_synthetic: bool = False
    """Whether a program spoke it, as its manifest says by a field `synthetic`."""

    @cached_property
    def errors(self) -> TextErrors:
        """Of the hypothesis."""
        return text_errors(self.reference, self.hypothesis)


@dataclass(frozen=True, kw_only=True)
class GroupRates:
    """Error rates of a group of utterances."""

    name: str
    """Of the group."""
    num_utterances: int
    """How many are in it, those that failed included."""
    num_failed: int
    """How many could not be read."""
    errors: TextErrors
    """All errors together."""
    words: Interval
    """Word error rate."""
    characters: Interval
    """Character error rate."""
    sentences: Interval
    """Share of utterances with an error."""
    units: str
    """What the intervals are drawn over."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Word error rates of two systems on the same utterances of a group."""

    name: str
    """Of the group."""
    num_utterances: int
    """How many are in it."""
    first: float
    """Rate of the one compared with."""
    second: float
    """Rate of the one at hand."""
    difference: Interval
    """Second minus first; below 0 the second is better."""
    relative: Interval
    """The same per rate of the first."""
    share_better: float
    """Share of the draws in which the second has fewer errors (ties count half)."""
    units: str
    """What the intervals are drawn over."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a recognizer made of a set of utterances."""

    results: tuple[UtteranceResult, ...]
    """One for each utterance, in the manifest's order."""
    decode_seconds: float
    """Time from samples to words: front end, encoder and search, without reading files."""
    seed: int = 0
    """Of the bootstrap."""

    @property
    def failed(self) -> tuple[UtteranceResult, ...]:
        """The utterances that could not be read."""
        return tuple(result for result in self.results if result.failure is not None)

    @property
    def uncovered(self) -> tuple[UtteranceResult, ...]:
        """The utterances with a character that the model has no label for; they are scored too."""
        return tuple(result for result in self.results if result.uncovered)

    @property
    def speech(self) -> str:
        """What the figures are to be called if not all was spoken by people; else empty."""
        num_synthetic = sum(result.is_synthetic for result in self.results)
        if not num_synthetic:
            return ""
        is_all = num_synthetic == len(self.results)
        return "synthetic speech" if is_all else "partly synthetic speech"

    @property
    def audio_seconds(self) -> float:
        """Length of all audio that was decoded."""
        return sum(result.seconds for result in self.results if result.failure is None)

    @property
    def real_time_factor(self) -> float:
        """Seconds of decoding per second of audio; NaN without any audio."""
        return self.decode_seconds / self.audio_seconds if self.audio_seconds else float("nan")

    @property
    def groups(self) -> dict[str, list[UtteranceResult]]:
        """The utterances of each group by its name, all of them first."""
        found: dict[str, list[UtteranceResult]] = {ALL: list(self.results)}
        for name in sorted({name for result in self.results for name in result.groups}):
            found[name] = [result for result in self.results if name in result.groups]
        return found

    @cached_property
    def rates(self) -> tuple[GroupRates, ...]:
        """Error rates of each group, those of all utterances first."""
        return tuple(_rates(name, each, self.seed) for name, each in self.groups.items())


def evaluate(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    *,
    group_fields: Sequence[str] = (),
    id_groups: Mapping[str, Collection[str]] | None = None,
    batch_seconds: float = BATCH_SECONDS,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    decode: Decode | None = None,
) -> Evaluation:
    """Decodes utterances and scores them.

    Args:
        recognizer: the model.
        utterances: with their texts.
        group_fields: fields of the manifest by whose values to report apart.
        id_groups: further groups by name, each the ids of its utterances.
        batch_seconds: how much audio is decoded together, padding included.
        seed: of the bootstrap.
        progress: called after each batch with the number of its utterances.
        decode: what decodes a batch; by default the best path of the recognizer.

    Raises:
        ValueError: without utterances; if two have one id; for a field that none has, or ids that
            are not there.
    """
    groups = _groups(utterances, group_fields, id_groups or {})
    results: dict[str, UtteranceResult] = {}
    decode_seconds = 0.0
    for batch in _batches(utterances, batch_seconds):
        audio, failures = _loaded(batch)
        readable = [utterance for utterance in batch if utterance.id in audio]
        started = time.perf_counter()
        if decode is None:
            transcripts = transcribe_batch(recognizer, list(audio.values()))
        else:
            transcripts = list(decode(readable, list(audio.values())))
        decode_seconds += time.perf_counter() - started
        by_id = dict(zip(audio, transcripts, strict=True))
        for utterance in batch:
            results[utterance.id] = _result(
                utterance,
                recognizer.tokens,
                groups[utterance.id],
                by_id.get(utterance.id) or failures[utterance.id],
            )
        if progress is not None:
            progress(len(batch))
    return Evaluation(
        results=tuple(results[utterance.id] for utterance in utterances),
        decode_seconds=decode_seconds,
        seed=seed,
    )


def compare(first: Evaluation, second: Evaluation, seed: int = 0) -> tuple[Comparison, ...]:
    """Paired differences of word error rates, for each group of the second evaluation.

    Args:
        first: what is compared with.
        second: of the same utterances.
        seed: of the bootstrap.

    Raises:
        ValueError: if the utterances, or their references (but for case), are not the same.
    """
    others = {result.id: result for result in first.results}
    check_comparable(first, {result.id: result.reference for result in second.results})
    return tuple(
        _comparison(name, [others[result.id] for result in results], results, seed)
        for name, results in second.groups.items()
    )


def check_comparable(first: Evaluation, references: Mapping[str, str]) -> None:
    """Makes sure, before anything is decoded, that `compare` will be possible.

    Args:
        first: what is to be compared with.
        references: normalized text of each utterance by its id.

    Raises:
        ValueError: if the utterances, or their references (but for case), are not the same.
    """
    others = {result.id: result.reference for result in first.results}
    if unpaired := sorted(others.keys() ^ references.keys()):
        raise ValueError(
            f"both evaluations should be of the same utterances; {len(unpaired)} are in one of "
            f"them alone, such as {unpaired[0]}"
        )
    for name, reference in references.items():
        if reference.casefold() != others[name].casefold():
            raise ValueError(
                f"both evaluations should have the same references; {name} has "
                f"{others[name]!r} and {reference!r}"
            )


def _rates(name: str, results: Sequence[UtteranceResult], seed: int) -> GroupRates:
    units = Units.of_speakers([result.speaker for result in results])
    counts = units.sums(np.stack([_counts(results, kind) for kind in _KINDS], axis=1))
    estimates = error_rate(counts.sum(0)).tolist()
    drawn = draws(counts, error_rate, seed=seed)  # [num_draws, kinds]
    intervals = {
        kind: interval_of(estimate, column)
        for kind, estimate, column in zip(_KINDS, estimates, drawn.T, strict=True)
    }
    return GroupRates(
        name=name,
        num_utterances=len(results),
        num_failed=sum(result.failure is not None for result in results),
        errors=sum((result.errors for result in results), TextErrors()),
        units=units.description,
        **intervals,
    )


def _comparison(
    name: str,
    first: Sequence[UtteranceResult],
    second: Sequence[UtteranceResult],
    seed: int,
) -> Comparison:
    units = Units.of_speakers([result.speaker for result in second])
    both = np.stack([_counts(first, "words"), _counts(second, "words")], axis=1)
    counts = units.sums(both)  # [num_units, 2 systems, 2]
    total = counts.sum(0)
    rates = error_rate(total)
    changes, relative = draws(counts, _changes, seed=seed).T
    return Comparison(
        name=name,
        num_utterances=len(second),
        first=float(rates[0]),
        second=float(rates[1]),
        difference=interval_of(float(difference(total)), changes),
        relative=interval_of(float(relative_difference(total)), relative),
        share_better=float(np.mean((changes < 0) + 0.5 * (changes == 0))),
        units=units.description,
    )


def _changes(sums: Floats) -> Floats:
    """Two figures from one draw: [*draws, 2, 2] -> [*draws, 2]."""
    return np.stack([difference(sums), relative_difference(sums)], axis=-1)


def _counts(results: Sequence[UtteranceResult], kind: str) -> Floats:
    """[num_utterances, 2] errors and length of the reference."""
    counted: list[ErrorCounts] = [getattr(result.errors, kind) for result in results]
    return np.array([(each.num_errors, each.num_reference) for each in counted], dtype=np.float64)


def _groups(
    utterances: Sequence[Utterance],
    group_fields: Sequence[str],
    id_groups: Mapping[str, Collection[str]],
) -> dict[str, tuple[str, ...]]:
    """The groups of each utterance; a field's value may be missing, its group is then "none"."""
    ids = [utterance.id for utterance in utterances]
    if not ids:
        raise ValueError("utterances should be at least one, got none")
    if twice := [name for name, count in Counter(ids).items() if count > 1]:
        raise ValueError(f"utterances should have ids of their own, {twice[0]} comes twice")
    known = sorted({name for utterance in utterances for name in utterance.group})
    for name in group_fields:
        if name not in known:
            raise ValueError(f"no utterance has the field {name!r}; fields: {', '.join(known)}")
    for name, members in id_groups.items():
        if missing := sorted(set(members) - set(ids)):
            raise ValueError(
                f"group {name}: {len(missing)} of {len(members)} ids are not in the manifest, "
                f"such as {missing[0]}"
            )
    return {
        utterance.id: (
            *(f"{name}={utterance.group.get(name, 'none')}" for name in group_fields),
            *(name for name, members in id_groups.items() if utterance.id in members),
        )
        for utterance in utterances
    }


def _batches(utterances: Sequence[Utterance], batch_seconds: float) -> list[list[Utterance]]:
    """Utterances of like length together, the longest first: what does not fit fails at once."""
    batches: list[list[Utterance]] = []
    for utterance in sorted(utterances, key=lambda each: -each.duration):
        if batches and batches[-1][0].duration * (len(batches[-1]) + 1) <= batch_seconds:
            batches[-1].append(utterance)
        else:
            batches.append([utterance])
    return batches


def _loaded(batch: Sequence[Utterance]) -> tuple[dict[str, Audio], dict[str, str]]:
    """The audio of each utterance, or why there is none."""
    audio: dict[str, Audio] = {}
    failures: dict[str, str] = {}
    for utterance in batch:
        try:
            audio[utterance.id] = utterance.load()
        except (ValueError, OSError) as error:
            failures[utterance.id] = str(error)
    return audio, failures


def _result(
    utterance: Utterance, tokens: Tokens, groups: tuple[str, ...], found: Transcript | str
) -> UtteranceResult:
    """A transcript, or the reason why there is none, as a result."""
    shared: dict[str, Any] = {
        "id": utterance.id,
        "reference": tokens.normalize(utterance.text),
        "speaker": utterance.speaker,
        "groups": groups,
        "uncovered": tokens.uncovered(utterance.text),
        "is_synthetic": utterance.group.get("synthetic", "").casefold() not in _NOT_SYNTHETIC,
    }
    if isinstance(found, str):
        return UtteranceResult(hypothesis="", seconds=utterance.duration, failure=found, **shared)
    return UtteranceResult(
        hypothesis=found.text, seconds=found.seconds, words=found.words, **shared
    )
