"""Experiments: grids of trainings and what they show, each row by the commands of everyday use."""

from midge.experiments.contrasts import ContrastResult, Pool, contrasts, pools
from midge.experiments.grid import Contrast, EvaluationPlan, Grid, Row, read_grid
from midge.experiments.row_runs import RowFolder, RowOutcome, RowRun
from midge.experiments.runner import open_rows, run_rows
from midge.experiments.tables import experiment_text, read_records, write_tables

__all__ = [
    "Contrast",
    "ContrastResult",
    "EvaluationPlan",
    "Grid",
    "Pool",
    "Row",
    "RowFolder",
    "RowOutcome",
    "RowRun",
    "contrasts",
    "experiment_text",
    "open_rows",
    "pools",
    "read_grid",
    "read_records",
    "run_rows",
    "write_tables",
]
