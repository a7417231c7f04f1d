"""Models: the paper's as choices of three parts, and recognizers from audio to words."""

from midge.models.best_paths import BestPathRules
from midge.models.default_model import default_model_path
from midge.models.parts import NAMED_MODELS, ModelParts, named_model
from midge.models.recognizer import (
    LatticeConfig,
    Recognizer,
    RecognizerConfig,
    load,
)
from midge.models.transcripts import TimedWord, Transcript

__all__ = [
    "NAMED_MODELS",
    "BestPathRules",
    "LatticeConfig",
    "ModelParts",
    "Recognizer",
    "RecognizerConfig",
    "TimedWord",
    "Transcript",
    "default_model_path",
    "load",
    "named_model",
]
