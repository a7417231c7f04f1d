"""From frames to words, and how good they are: decoding, written results and evaluation."""

from midge.decoding.beam import BeamConfig, BeamResult, beam_search
from midge.decoding.biasing import PhraseBias, phrase_bias
from midge.decoding.bootstrap import (
    Interval,
    Units,
    confidence_interval,
    difference,
    error_rate,
    interaction,
    relative_difference,
)
from midge.decoding.calibration import Calibration, calibration
from midge.decoding.confidence import Confidence, Posterior, confidences
from midge.decoding.decoded import Alternative, DecodedTranscript
from midge.decoding.endpointing import EndpointConfig
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
from midge.decoding.events import Partial, Segment
from midge.decoding.exact import LabelSequence, SumPath, sum_path
from midge.decoding.files import stream_files, transcribe_files
from midge.decoding.formats import FORMATS, Format
from midge.decoding.fusion import Fusion, fused_lattice
from midge.decoding.language_models import NgramModel, read_arpa
from midge.decoding.live import decode_offline
from midge.decoding.offline import DecoderConfig, OfflineDecoder
from midge.decoding.recordings import cut_at_pauses
from midge.decoding.risk import least_risk
from midge.decoding.streams import Stream, StreamingDecoder

__all__ = [
    "FORMATS",
    "Alternative",
    "BeamConfig",
    "BeamResult",
    "Calibration",
    "Comparison",
    "Confidence",
    "DecodedTranscript",
    "DecoderConfig",
    "EndpointConfig",
    "ErrorCounts",
    "Evaluation",
    "Format",
    "Fusion",
    "GroupRates",
    "Interval",
    "LabelSequence",
    "NgramModel",
    "OfflineDecoder",
    "Pair",
    "Partial",
    "PhraseBias",
    "Posterior",
    "Segment",
    "Stream",
    "StreamingDecoder",
    "SumPath",
    "TextErrors",
    "Units",
    "UtteranceResult",
    "align",
    "beam_search",
    "calibration",
    "check_comparable",
    "compare",
    "confidence_interval",
    "confidences",
    "count_errors",
    "cut_at_pauses",
    "decode_offline",
    "difference",
    "error_rate",
    "evaluate",
    "fused_lattice",
    "interaction",
    "least_risk",
    "phrase_bias",
    "read_arpa",
    "relative_difference",
    "stream_files",
    "sum_path",
    "text_errors",
    "transcribe_files",
]
