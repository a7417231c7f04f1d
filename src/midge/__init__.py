"""midge: streaming speech recognition with globally normalized autoregressive transducers."""

from midge.alignments import (
    AlignmentLattice,
    FrameDependent,
    LabelDependent,
    LabelFrameDependent,
)
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
from midge.drawing import draw
from midge.lattices import ArcMarginals, Path, PushedArcs, RecognitionLattice, engine_name
from midge.models import NAMED_MODELS, ModelParts, named_model
from midge.semirings import (
    Log,
    LogEntropy,
    LogExpectation,
    MaxTropical,
    Real,
    Semiring,
)
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
    "ContextDependency",
    "FiniteContext",
    "FrameDependent",
    "FullHistory",
    "FullNGram",
    "LabelDependent",
    "LabelFrameDependent",
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
    "Semiring",
    "SharedEmbeddingWeights",
    "SharedRNNWeights",
    "TableWeights",
    "UnsharedWeights",
    "WeightFn",
    "__version__",
    "clustered_context",
    "draw",
    "engine_name",
    "fst_symbols",
    "named_model",
    "to_fst",
    "variable_length_context",
]
