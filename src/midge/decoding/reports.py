"""What an evaluation shows: a table, files of results, and the alignment of every utterance."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from midge.decoding.bootstrap import LEVEL, Interval
from midge.decoding.calibration import Calibration, reliability_picture
from midge.decoding.errors import ErrorCounts, Pair, align
from midge.decoding.evaluation import Comparison, Evaluation, GroupRates, UtteranceResult
from midge.decoding.formats import trn_line
from midge.models import TimedWord

FORMAT_VERSION = 1
"""Of a folder of results; a reader refuses one that it does not know."""
RESULTS, HYPOTHESES, ALIGNMENTS = "results.json", "hypotheses.jsonl", "alignments.txt"
HYPOTHESES_TRN, REFERENCES_TRN = "hypotheses.trn", "references.trn"
RELIABILITY = "reliability.svg"
_LINE_SIZE = 96
_MAX_NUM_NAMED = 10


def table(evaluation: Evaluation) -> str:
    """Error rates of all groups as plain text, with what there is to say of them."""
    interval = f"{LEVEL:.0%} interval"
    heading = (evaluation.speech, "utterances", "words", "sub", "del", "ins", "WER %", interval)
    rows = [(*heading, "CER %", "SER %", "interval over"), *map(_row, evaluation.rates)]
    return "\n".join([*_columns(rows), "", *_notes(evaluation)])


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """Paired differences of word error rates as plain text."""
    interval = f"{LEVEL:.0%} interval"
    heading = ("", "WER % before", "now", "difference", interval, "relative", interval)
    rows = [(*heading, "better in", "interval over"), *map(_comparison_row, comparisons)]
    return "\n".join(_columns(rows))


def alignment_text(result: UtteranceResult) -> str:
    """The words of an utterance, reference above hypothesis, and what became of each.

    Example:
        >>> found = UtteranceResult(id="a", reference="ONE TWO", hypothesis="TWO TO", seconds=1)
        >>> print(alignment_text(found), end="")
        a: 2 words, 1 correct, 0 substituted, 1 deleted, 1 inserted
        REF ONE TWO **
        HYP *** TWO TO
        OPS D       I
    """
    words = result.errors.words
    speaker = f" ({result.speaker})" if result.speaker else ""
    lines = [
        f"{result.id}{speaker}: {words.num_reference} words, {words.num_correct} correct, "
        f"{words.num_substitutions} substituted, {words.num_deletions} deleted, "
        f"{words.num_insertions} inserted"
    ]
    if result.failure is not None:
        lines.append(f"FAILED {result.failure}")
    for row in _broken(align(result.reference.split(), result.hypothesis.split())):
        cells = [
            (pair.reference or "*" * size, pair.hypothesis or "*" * size, pair.operation)
            for pair in row
            for size in [_size(pair)]
        ]
        sizes = [max(map(len, cell)) for cell in cells]
        for name, line in zip(("REF", "HYP", "OPS"), zip(*cells, strict=True), strict=True):
            shown = (f"{text.replace('=', ' ') if name == 'OPS' else text}" for text in line)
            padded = (f"{text:<{size}}" for text, size in zip(shown, sizes, strict=True))
            lines.append(f"{name} {' '.join(padded)}".rstrip())
    return "\n".join(lines) + "\n"


def to_json(
    evaluation: Evaluation,
    comparisons: Sequence[Comparison] = (),
    description: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Rates of all groups, failures, times, and comparisons, as JSON can hold them.

    Args:
        evaluation: what was found.
        comparisons: with another evaluation.
        description: what was evaluated, in the caller's words.
        calibration: of the words' confidences, where they have some.
    """
    return {
        "format_version": FORMAT_VERSION,
        "description": dict(description or {}),
        "speech": evaluation.speech or None,
        "num_utterances": len(evaluation.results),
        "failed": {result.id: result.failure for result in evaluation.failed},
        "uncovered": {result.id: result.uncovered for result in evaluation.uncovered},
        "audio_seconds": evaluation.audio_seconds,
        "decode_seconds": evaluation.decode_seconds,
        "real_time_factor": _finite(evaluation.real_time_factor),
        "bootstrap_seed": evaluation.seed,
        "groups": {rates.name: _rates_json(rates) for rates in evaluation.rates},
        "comparisons": {each.name: _plain(each) for each in comparisons},
        "calibration": None if calibration is None else _plain(calibration),
    }


def save(
    evaluation: Evaluation,
    folder: Path,
    comparisons: Sequence[Comparison] = (),
    description: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
) -> list[Path]:
    """Writes results.json, hypotheses (JSON lines and trn), references (trn) and alignments.

    With a calibration also reliability.svg, if matplotlib is installed.

    Args:
        evaluation: what was found.
        folder: where to; made if it is not there.
        comparisons: with another evaluation.
        description: what was evaluated, for results.json.
        calibration: of the words' confidences.

    Returns:
        The files written.
    """
    results = evaluation.results
    texts = {
        HYPOTHESES: "".join(map(_hypothesis_line, results)),
        HYPOTHESES_TRN: "".join(trn_line(each.hypothesis, each.id) for each in results),
        REFERENCES_TRN: "".join(trn_line(each.reference, each.id) for each in results),
        ALIGNMENTS: "\n".join(map(alignment_text, results)),
        # Last: a folder with it is whole.
        RESULTS: _indented(to_json(evaluation, comparisons, description, calibration)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    written = [folder / name for name in texts]
    if calibration is not None and find_spec("matplotlib") is not None:
        written.append(folder / RELIABILITY)
        reliability_picture(calibration).savefig(written[-1])
    return written


def _indented(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def load(folder: Path) -> Evaluation:
    """Reads an evaluation that was saved.

    Raises:
        ValueError: if the files are not what `save` writes; it names the file.
        OSError: if they cannot be read.
    """
    path = folder / RESULTS
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if summary["format_version"] != FORMAT_VERSION:
            raise ValueError(
                f"has format version {summary['format_version']}; this midge reads {FORMAT_VERSION}"
            )
        decode_seconds, seed = float(summary["decode_seconds"]), int(summary["bootstrap_seed"])
        path = folder / HYPOTHESES
        lines = path.read_text(encoding="utf-8").splitlines()
        results = tuple(_from_line(json.loads(line)) for line in lines)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not of an evaluation: {error!r}") from error
    return Evaluation(results=results, decode_seconds=decode_seconds, seed=seed)


def _hypothesis_line(result: UtteranceResult) -> str:
    return json.dumps(dataclasses.asdict(result), ensure_ascii=False) + "\n"


def _from_line(line: Mapping[str, Any]) -> UtteranceResult:
    words = tuple(TimedWord(**word) for word in line["words"])
    return UtteranceResult(**{**line, "groups": tuple(line["groups"]), "words": words})


def _row(rates: GroupRates) -> tuple[str, ...]:
    words = rates.errors.words
    counts = (words.num_substitutions, words.num_deletions, words.num_insertions)
    return (
        rates.name,
        str(rates.num_utterances),
        str(words.num_reference),
        *map(str, counts),
        _percent(rates.words.estimate),
        _range(rates.words),
        _percent(rates.characters.estimate),
        _percent(rates.sentences.estimate),
        rates.units,
    )


def _comparison_row(comparison: Comparison) -> tuple[str, ...]:
    return (
        comparison.name,
        _percent(comparison.first),
        _percent(comparison.second),
        _percent(comparison.difference.estimate, "+"),
        _range(comparison.difference, "+"),
        _percent(comparison.relative.estimate, "+"),
        _range(comparison.relative, "+"),
        f"{comparison.share_better:.1%}",
        comparison.units,
    )


def _notes(evaluation: Evaluation) -> Iterator[str]:
    if evaluation.audio_seconds:
        yield (
            f"Real-time factor {evaluation.real_time_factor:.3f}: "
            f"{evaluation.decode_seconds:.1f} s from samples to words for "
            f"{evaluation.audio_seconds:.1f} s of audio."
        )
    if failed := evaluation.failed:
        yield f"{len(failed)} could not be read; all their words count as deleted:"
        yield from _named({each.id: str(each.failure) for each in failed})
    if uncovered := evaluation.uncovered:
        yield f"{len(uncovered)} have characters that the model cannot write; scored nevertheless:"
        yield from _named({each.id: repr(each.uncovered) for each in uncovered})


def _named(reasons: Mapping[str, str]) -> Iterator[str]:
    """The first utterances with what there is to say of them, and how many more there are."""
    lines = [f"  {name}: {reason}" for name, reason in reasons.items()]
    yield from lines[:_MAX_NUM_NAMED]
    if len(lines) > _MAX_NUM_NAMED:
        yield f"  and {len(lines) - _MAX_NUM_NAMED} more; see {RESULTS}"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of one width: the first and the last column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    lines = [
        "  ".join(
            f"{text:<{width}}" if place in (0, last) else f"{text:>{width}}"
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _percent(share: float, sign: str = "") -> str:
    return f"{100 * share:{sign}.2f}" if math.isfinite(share) else "-"


def _range(interval: Interval, sign: str = "") -> str:
    return f"[{_percent(interval.low, sign)}, {_percent(interval.high, sign)}]"


def _broken(pairs: Sequence[Pair[str]]) -> Iterator[list[Pair[str]]]:
    """Lines of an alignment that fit on a page."""
    line: list[Pair[str]] = []
    room = _LINE_SIZE
    for pair in pairs:
        if line and _size(pair) + 1 > room:
            yield line
            line, room = [], _LINE_SIZE
        line.append(pair)
        room -= _size(pair) + 1
    if line:
        yield line


def _size(pair: Pair[str]) -> int:
    return max(len(pair.reference or ""), len(pair.hypothesis or ""))


def _rates_json(rates: GroupRates) -> dict[str, Any]:
    named: dict[str, tuple[ErrorCounts, Interval]] = {
        "words": (rates.errors.words, rates.words),
        "characters": (rates.errors.characters, rates.characters),
        "sentences": (rates.errors.sentences, rates.sentences),
    }
    kinds = {
        kind: {**dataclasses.asdict(counts), "rate": _plain(interval)}
        for kind, (counts, interval) in named.items()
    }
    return {
        "num_utterances": rates.num_utterances,
        "num_failed": rates.num_failed,
        "interval_over": rates.units,
        **kinds,
    }


def _plain(value: Any) -> Any:
    """A dataclass as JSON, which has no NaN and no infinity: null."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
