"""Weight functions: the part of a model that has parameters, and the local normalizations."""

from midge.weights.attention import AttentionWeights
from midge.weights.base import Scorer, WeightFn
from midge.weights.normalization import Normalization
from midge.weights.shared import SharedEmbeddingWeights, SharedRNNWeights
from midge.weights.table import TableWeights
from midge.weights.unshared import UnsharedWeights

__all__ = [
    "AttentionWeights",
    "Normalization",
    "Scorer",
    "SharedEmbeddingWeights",
    "SharedRNNWeights",
    "TableWeights",
    "UnsharedWeights",
    "WeightFn",
]
