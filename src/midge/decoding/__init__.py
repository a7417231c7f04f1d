"""From frames to words, and how good they are: decoding, written results and evaluation."""

from midge.decoding.bootstrap import (
    Interval,
    Units,
    confidence_interval,
    difference,
    error_rate,
    interaction,
    relative_difference,
)
from midge.decoding.errors import ErrorCounts, Pair, TextErrors, align, count_errors, text_errors
from midge.decoding.evaluation import (
    Comparison,
    Evaluation,
    GroupRates,
    UtteranceResult,
    check_comparable,
    compare,
    evaluate,
)
from midge.decoding.exact import LabelSequence, SumPath, sum_path
from midge.decoding.formats import FORMATS, Format
from midge.decoding.recordings import cut_at_pauses, transcribe_files

__all__ = [
    "FORMATS",
    "Comparison",
    "ErrorCounts",
    "Evaluation",
    "Format",
    "GroupRates",
    "Interval",
    "LabelSequence",
    "Pair",
    "SumPath",
    "TextErrors",
    "Units",
    "UtteranceResult",
    "align",
    "check_comparable",
    "compare",
    "confidence_interval",
    "count_errors",
    "cut_at_pauses",
    "difference",
    "error_rate",
    "evaluate",
    "interaction",
    "relative_difference",
    "sum_path",
    "text_errors",
    "transcribe_files",
]
