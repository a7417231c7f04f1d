"""Training: one loop from a recipe to a recognizer, which can be stopped at any moment."""

from midge.training.checkpoints import Checkpoint, CheckpointError, CheckpointFolder
from midge.training.config import DataConfig, Recipe, TrainingConfig, read_recipe
from midge.training.evaluation import Evaluation
from midge.training.loop import TrainingError
from midge.training.output_layer import initialize_blank
from midge.training.run import RunFolder, RunState
from midge.training.start import Outcome, opened_run, run, train

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointFolder",
    "DataConfig",
    "Evaluation",
    "Outcome",
    "Recipe",
    "RunFolder",
    "RunState",
    "TrainingConfig",
    "TrainingError",
    "initialize_blank",
    "opened_run",
    "read_recipe",
    "run",
    "train",
]
