"""midge: streaming speech recognition with globally normalized autoregressive transducers."""

from midge.alignments import (
    AlignmentLattice,
    FrameDependent,
    LabelDependent,
    LabelFrameDependent,
)
from midge.audio import FrontEnd, FrontEndConfig
from midge.automata import Arc, Automaton, fst_symbols, to_fst
from midge.contexts import (
    BLANK,
    ContextDependency,
    FiniteContext,
    FullHistory,
    FullNGram,
    NextStateTable,
    clustered_context,
    variable_length_context,
)
from midge.decoding import LabelSequence, SumPath, sum_path
from midge.drawing import draw
from midge.encoders import ConformerConfig, LSTMConfig
from midge.lattices import (
    ArcMarginals,
    Path,
    PushedArcs,
    RecognitionLattice,
    engine_name,
    greedy_path,
)
from midge.models import (
    NAMED_MODELS,
    LatticeConfig,
    ModelParts,
    Recognizer,
    RecognizerConfig,
    TimedWord,
    Transcript,
    load,
    named_model,
)
from midge.semirings import (
    Log,
    LogEntropy,
    LogExpectation,
    MaxTropical,
    Real,
    Semiring,
)
from midge.tokens import Tokens, TokensConfig, build_tokens
from midge.weights import (
    AttentionWeights,
    SharedEmbeddingWeights,
    SharedRNNWeights,
    TableWeights,
    UnsharedWeights,
    WeightFn,
)

__version__ = "0.1.0"

__all__ = [
    "BLANK",
    "NAMED_MODELS",
    "AlignmentLattice",
    "Arc",
    "ArcMarginals",
    "AttentionWeights",
    "Automaton",
    "ConformerConfig",
    "ContextDependency",
    "FiniteContext",
    "FrameDependent",
    "FrontEnd",
    "FrontEndConfig",
    "FullHistory",
    "FullNGram",
    "LSTMConfig",
    "LabelDependent",
    "LabelFrameDependent",
    "LabelSequence",
    "LatticeConfig",
    "Log",
    "LogEntropy",
    "LogExpectation",
    "MaxTropical",
    "ModelParts",
    "NextStateTable",
    "Path",
    "PushedArcs",
    "Real",
    "RecognitionLattice",
    "Recognizer",
    "RecognizerConfig",
    "Semiring",
    "SharedEmbeddingWeights",
    "SharedRNNWeights",
    "SumPath",
    "TableWeights",
    "TimedWord",
    "Tokens",
    "TokensConfig",
    "Transcript",
    "UnsharedWeights",
    "WeightFn",
    "__version__",
    "build_tokens",
    "clustered_context",
    "draw",
    "engine_name",
    "fst_symbols",
    "greedy_path",
    "load",
    "named_model",
    "sum_path",
    "to_fst",
    "variable_length_context",
]
