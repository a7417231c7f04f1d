"""Scores the models that are in this repository, and keeps what was found beside them.

    python experiments/score_models.py runs/models
    python experiments/document.py

The commands of recipes/default/README.md prepare the test sets. Each model is scored by `midge
evaluate` in every way; what is there already of the same model is not done again. document.py shows
the results on the page, and in the card of the default model.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from midge.data.spoken.texts import DIGITS
from midge.experiments import EvaluationPlan
from midge.experiments.machines import commit, hardware
from midge.experiments.records import FORMAT_VERSION, evaluation_record, write_json

ROOT = Path(__file__).parents[1]
MODELS = {
    "default": "src/midge/models/default",
    "an4_streaming": "experiments/models/an4_streaming",
}
"""By name the folders of the models."""
RESULTS = ROOT / "experiments" / "models" / "results.json"
_LISTS = ("experiments/lists/an4_heard_texts.txt", "experiments/lists/an4_new_texts.txt")
_AN4, _FSDD = "data/an4/test.jsonl.gz", "data/fsdd/test.jsonl.gz"
_STRINGS, _SPOKEN = "data/audiomnist-strings/test.jsonl.gz", "data/varied-spoken/test.jsonl.gz"
PLANS = {
    "an4": EvaluationPlan(manifest=_AN4, options=("--ids", *_LISTS), has_letters_apart=True),
    "an4-sum-path": EvaluationPlan(manifest=_AN4, options=("--decoder", "sum-path")),
    "digit-strings": EvaluationPlan(manifest=_STRINGS, options=("--streaming",)),
    "fsdd": EvaluationPlan(manifest=_FSDD, words=DIGITS),
    "spoken": EvaluationPlan(manifest=_SPOKEN, options=("--group", "kind", "--streaming")),
}
"""By name the ways in which each is scored."""


def weights_hash(model: Path) -> str:
    """Which parameters they are: the same for two models if all their tensors are."""
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


def evaluate_command(model: str, plan: EvaluationPlan, output: str) -> list[str]:
    """The arguments of `midge`."""
    return ["evaluate", model, plan.manifest, "--output", output, *plan.options]


def record_of(name: str, output: Path) -> dict[str, Any]:
    """Evaluates a model in every way."""
    path = MODELS[name]
    weights = weights_hash(ROOT / path)
    evaluations = {}
    for evaluation, plan in PLANS.items():
        folder = output / f"{name}-{weights[:12]}" / evaluation
        arguments = evaluate_command(path, plan, str(folder))
        if not (folder / "results.json").exists():
            subprocess.run([sys.executable, "-m", "midge", *arguments], cwd=ROOT, check=True)
        evaluations[evaluation] = {
            "plan": plan.as_json(),
            "command": " ".join(["midge", *evaluate_command(path, plan, f"results/{evaluation}")]),
            **evaluation_record(folder, plan),
        }
    return {
        "row": name,
        "values": {"model": name},
        "path": path,
        "weights": weights,
        "commit": commit(),
        "hardware": hardware(),
        "evaluations": evaluations,
    }


def main() -> None:
    """Scores all models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="folder of the evaluations")
    arguments = parser.parse_args()
    rows = [record_of(name, arguments.output.resolve()) for name in MODELS]
    write_json(RESULTS, {"format_version": FORMAT_VERSION, "rows": rows})
    print(f"wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
