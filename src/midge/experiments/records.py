"""The record of a row: everything that tables and pages need of a training and its evaluations.

It is made from what `midge train` and `midge evaluate` have written, and kept as one JSON object.
The hypotheses themselves are not in it but for those that are wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors

from midge.configuration import to_table, to_toml
from midge.decoding import reports
from midge.decoding.calibration import calibration, judged_words
from midge.decoding.evaluation import ALL, Evaluation
from midge.decoding.streaming_evaluation import STREAMING
from midge.experiments.grid import EvaluationPlan, Row
from midge.experiments.tallies import rates_json, tallies
from midge.training import DataConfig, Recipe, RunFolder
from midge.training.config import RESUMABLE, differences
from midge.training.logs import read_log

FORMAT_VERSION = 1
"""Of a record; a reader refuses one that it does not know."""
_MAX_NUM_POINTS = 100
"""Points of a learning curve."""
_HARMLESS = RESUMABLE - {"training.num_steps", "training.patience"}
"""Fields that change no parameter of the result."""


def recipe_hash(recipe: Recipe) -> str:
    """The same for two recipes if all their choices are, whatever files they were read from."""
    return hashlib.sha256(to_toml(to_table(recipe)).encode()).hexdigest()[:16]


def stored_records(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a results.json, by the names of their rows.

    Raises:
        ValueError: if it is none of this version; names it.
        OSError: if it cannot be read.
    """
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["format_version"] != FORMAT_VERSION:
            raise ValueError(f"{path} should have format version {FORMAT_VERSION}")
        return {record["row"]: record for record in stored["rows"]}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} should be the results.json of an experiment: {error!r}") from None


def is_same_recipe(stored: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether a stored recipe asks for the same training as one of now.

    A field that there was not yet may be there now, if it has its default; and what changes no
    parameter, such as the number of workers, may differ.

    Args:
        stored: a recipe's table, as `to_table` gave it then.
        recipe: of now.
    """
    encoder = type(recipe.encoder)()
    defaults = to_table(Recipe(data=DataConfig(train="none"), encoder=encoder))
    for name, (old, new) in differences(stored, recipe).items():
        part, _, key = name.partition(".")
        is_new_default = old is None and new == defaults[part].get(key)
        if not is_new_default and name not in _HARMLESS:
            return False
    return True


def is_training_of(record: Mapping[str, Any], row: Row) -> bool:
    """Whether a record is of the training that a row asks for now: recipe and starting point.

    Raises:
        ValueError: if the row's recipe is wrong; names the row.
        OSError: if it cannot be read.
    """
    stored = record.get("resolved_recipe")  # none if it is the record of a model, not of a training
    starts_alike = record.get("init_from", "") == row.init_from
    return stored is not None and starts_alike and is_same_recipe(stored, row.recipe())


def training_record(folder: Path) -> dict[str, Any]:
    """What a finished training was.

    Args:
        folder: of the run.

    Returns:
        Steps, the step whose parameters were kept, seconds of the steps by the log (evaluations and
        checkpoints apart), number of parameters, learning curves and the best result on dev.
    """
    run = RunFolder(folder)
    described = json.loads((run.model / "model.json").read_text("utf-8"))["training"]
    log = read_log(run.log)
    steps = [line for line in log if line["kind"] == "step"]
    found = [line for line in log if line["kind"] == "evaluation"]
    skipped = [
        each["id"] for line in log if line["kind"] == "skipped" for each in line["utterances"]
    ]
    return {
        "num_steps": described["num_steps"],
        "kept_step": described["step"],
        "num_epochs": steps[-1]["epoch"] if steps else 0,
        "step_seconds": sum(x["num_frames"] / x["frames_per_second"] for x in steps),
        "num_parameters": num_parameters(run.model),
        "num_skipped": len(skipped),
        "dev": described["dev"],
        "losses": thinned([(line["step"], line["loss"]) for line in steps]),
        "dev_losses": [(line["step"], line["loss"]) for line in found],
        "dev_word_error_rates": [(line["step"], line["word_error_rate"]) for line in found],
    }


def num_parameters(model: Path) -> int:
    """Trained numbers in a saved model; the front end's mean and scale are not trained."""
    with safetensors.safe_open(model / "model.safetensors", framework="numpy") as tensors:
        names = [name for name in tensors.keys() if not name.startswith("front_end.")]  # noqa: SIM118
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)


def thinned(
    points: Sequence[tuple[int, float | None]], max_num_points: int = _MAX_NUM_POINTS
) -> list[tuple[int, float]]:
    """A curve of fewer points: means over stretches of equal numbers of points.

    Args:
        points: step and value; values of None are left out.
        max_num_points: how many to keep.

    Example:
        >>> thinned([(1, 4.0), (2, 2.0), (3, 1.0), (4, 0.0)], 2)
        [(2, 3.0), (4, 0.5)]
    """
    size = -(-len(points) // max_num_points) or 1
    curve = []
    for start in range(0, len(points), size):
        values = [value for _, value in points[start : start + size] if value is not None]
        if values:
            last = points[min(start + size, len(points)) - 1][0]
            curve.append((last, math.fsum(values) / len(values)))
    return curve


def evaluation_record(folder: Path, plan: EvaluationPlan) -> dict[str, Any]:
    """What an evaluation found.

    Args:
        folder: that `midge evaluate` wrote.
        plan: what was asked for.

    Returns:
        Rates and tallies of all groups, what was recognized wrongly, and, where they were measured,
        calibration and delays.
    """
    evaluation = reports.load(folder)
    summary = json.loads((folder / reports.RESULTS).read_text("utf-8"))
    found = tallies(evaluation, plan)
    record = {
        "manifest": plan.manifest,
        "num_failed": len(evaluation.failed),
        "interval_over": summary["groups"][ALL]["interval_over"],
        "real_time_factor": summary["real_time_factor"],
        "characters": summary["groups"][ALL]["characters"]["rate"],
        "groups": rates_json(found),
        "tallies": found,
        "wrong": [
            {"id": result.id, "reference": result.reference, "hypothesis": result.hypothesis}
            for result in evaluation.results
            if result.reference != result.hypothesis
        ],
    }
    if _has_confidences(evaluation):
        record["calibration"] = _calibration(evaluation)
    if (folder / STREAMING).exists():
        record["streaming"] = _streaming(json.loads((folder / STREAMING).read_text("utf-8")))
    return record


def _has_confidences(evaluation: Evaluation) -> bool:
    words = [word for result in evaluation.results for word in result.words]
    return bool(words) and all(word.confidence is not None for word in words)


def _calibration(evaluation: Evaluation) -> dict[str, Any]:
    found = calibration(judged_words(evaluation))
    figures = {name: getattr(found, name) for name in ("num_words", "share_right", "ece", "nce")}
    bins = [
        {"num_words": x.num_words, "confidence": x.mean_confidence, "share_right": x.share_right}
        for x in found.bins
        if x.num_words
    ]
    return {name: _finite(value) for name, value in figures.items()} | {"bins": bins}


def _streaming(found: Mapping[str, Any]) -> dict[str, Any]:
    """Delays and rates, without what is known of single utterances."""
    kept = ("chunk_seconds", "endpointing", "num_different", "revision_rate", "percentiles")
    rates = {
        name: each["groups"][ALL]["words"]["rate"] for name, each in found["evaluations"].items()
    }
    return {name: found[name] for name in kept if name in found} | {"word_error_rates": rates}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def write_json(path: Path, value: Any) -> None:
    """Writes JSON, a line for each field of an object's first levels; the file is replaced at once.

    A record has thousands of numbers: with each on a line of its own nobody could read it, and all
    on one line no change could be seen.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(_json_text(value, 3) + "\n", "utf-8")
    unfinished.replace(path)


def _json_text(value: Any, depth: int, indent: str = "") -> str:
    if not depth or not isinstance(value, dict | list) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    if isinstance(value, list):
        parts: Iterable[str] = (_json_text(x, depth - 1, inner) for x in value)
        opening, closing = "[]"
    else:
        parts = (
            f"{json.dumps(key, ensure_ascii=False)}: {_json_text(x, depth - 1, inner)}"
            for key, x in value.items()
        )
        opening, closing = "{}"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{closing}"
