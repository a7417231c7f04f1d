"""Label bias on speech: one small streaming model, trained locally and globally normalized.

Both are trained on the embedded corpus (synthetic speech) for the same number of steps, from the
same recipe, with the same seed and batches; only the normalization differs. The corpus holds pairs
of homophones that nothing but the next word tells apart, and digits, where there is nothing to
revise. Whatever comes out is shown.

The time of a training step is measured first, and decides how many steps there are. Everything is
kept in one folder: the same call goes on where it was stopped, and repeats nothing that is done.

    folder/settings.json   what was asked for
    folder/data            the corpus
    folder/plan.json       the number of steps, and why
    folder/local, global   the runs
    folder/results-...     their evaluations on the test set

The figures are those of the most probable text, summed over all its alignments; what the best
alignment alone says stands beside them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from midge.configuration import to_table
from midge.data import Utterance, read_manifest
from midge.data.spoken import speak_corpus
from midge.data.workers import num_available_cores
from midge.decoding import (
    Comparison,
    DecoderConfig,
    Evaluation,
    OfflineDecoder,
    compare,
    evaluate,
    reports,
)
from midge.demos.side_by_side import train_side_by_side
from midge.models import Recognizer, load
from midge.progress import Progress, format_seconds
from midge.training import Recipe, RunFolder, opened_run, read_recipe, run
from midge.training.logs import read_log

NORMALIZATIONS = {"local": "hat", "global": "global"}
"""The two models, and how the weights of each are normalized."""
Search = Literal["max-path", "sum-path", "beam"]
BEST_PATH: Search = "max-path"
"""The search for the best alignment alone."""
NUM_EVALUATIONS = 6
"""How often each model is evaluated on the development set: the points of its learning curve."""
NUM_LOGGED = 25
"""How many lines of the log, at least, a run has."""

_NUM_TIMED_STEPS = 12
_NUM_TIMED_LINES = 3  # of the log; the first, in which all is slow, does not count
_CAUTION = 1.1
"""How much slower than measured a step may be: later the machine may be busier."""
_LEAST_STEPS = 20
_READING = 1.3
"""How much more than training itself takes, the reading of its data included."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is spoken, trained and measured."""

    recipe: str = "recipes/spoken/streaming.toml"
    """The recipe of both models, but for data, seed, normalization and number of steps."""
    overrides: tuple[str, ...] = ()
    """Assignments "part.field=value" that win over the recipe."""
    seed: int = 0
    """Of the corpus and of the training."""
    minutes: float = 30.0
    """Training speech."""
    num_dev: int = 60
    """Utterances of the development set."""
    num_test: int = 240
    """Utterances of the test set."""
    num_steps: int | None = None
    """Steps of each model; None is as many as there is time for, at most those of the recipe."""
    train_seconds: float = 215.0
    """Time for the training of both models together."""

    def __post_init__(self) -> None:
        for name in ("num_dev", "num_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        for name in ("minutes", "train_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} should be positive, got {getattr(self, name)}")
        if self.num_steps is not None and self.num_steps < 1:
            raise ValueError(f"num_steps should be at least 1, got {self.num_steps}")
        if self.seed < 0:
            raise ValueError(f"seed should be at least 0, got {self.seed}")


@dataclass(frozen=True)
class Plan:
    """How long the models are trained."""

    num_steps: int
    """Of each model."""
    reason: str
    """Why so many."""


@dataclass(frozen=True)
class Job:
    """A demonstration that can run: what is asked for, and a folder that fits it."""

    config: Config
    """What is asked for."""
    folder: Path
    """Everything the demonstration makes."""

    @property
    def data(self) -> Path:
        """The corpus."""
        return self.folder / "data"

    def manifest(self, split: str) -> Path:
        """The manifest of a split."""
        return self.data / f"{split}.jsonl.gz"

    def run_folder(self, name: str) -> Path:
        """The run of a model."""
        return self.folder / name

    def results_folder(self, name: str, search: Search) -> Path:
        """The evaluation of a model on the test set by a search."""
        return self.folder / f"results-{name}-{search}"

    @property
    def search(self) -> Search:
        """What finds the most probable texts: exactly, where the model allows it."""
        return "sum-path" if self.recipe("global").lattice.parts().is_finite else "beam"

    def assignments(self, name: str, num_steps: int | None = None) -> list[str]:
        """What a model's recipe has in place of the file's own values.

        Args:
            name: "local" or "global".
            num_steps: of the training; None leaves that to the recipe.
        """
        found = [
            f"data.train={self.manifest('train')}",
            f"data.dev={self.manifest('dev')}",
            *self.config.overrides,
            f"training.seed={self.config.seed}",
            f"lattice.normalization={NORMALIZATIONS[name]}",
        ]
        if num_steps is not None:
            between = math.ceil(num_steps / NUM_EVALUATIONS)
            found += [
                f"training.num_steps={num_steps}",
                f"training.evaluate_every={between}",
                f"training.checkpoint_every={between}",
                f"training.log_every={max(num_steps // NUM_LOGGED, 1)}",
            ]
        return found

    def recipe(self, name: str, num_steps: int | None = None) -> Recipe:
        """The recipe of a model; see `assignments`."""
        return read_recipe(Path(self.config.recipe), self.assignments(name, num_steps))

    def commands(self, plan: Plan) -> list[str]:
        """The commands of midge that do the same, step by step."""
        config = self.config
        sizes = ("minutes", "num_dev", "num_test", "seed")
        options = [f"--{size.replace('_', '-')}={getattr(config, size):g}" for size in sizes]
        lines = [shlex.join(["midge", "prepare", "spoken", str(self.data), *options])]
        for name in NORMALIZATIONS:
            sets = [f"--set={each}" for each in self.assignments(name, plan.num_steps)]
            output = f"--output={self.run_folder(name)}"
            lines.append(shlex.join(["midge", "train", config.recipe, output, *sets]))
        for name in NORMALIZATIONS:
            words = ["midge", "evaluate", str(self.run_folder(name)), str(self.manifest("test"))]
            for search in (self.search, BEST_PATH):
                options = ["--group=kind", f"--decoder={search}"]
                output = f"--output={self.results_folder(name, search)}"
                lines.append(shlex.join([*words, *options, output]))
        return lines


@dataclass(frozen=True)
class Trained:
    """One of the two models, and what it does."""

    name: str
    """Local or global."""
    run: RunFolder
    """Its files."""
    evaluation: Evaluation
    """On the test set, by the most probable texts."""
    best_path: Evaluation
    """The same by the best alignments alone."""

    @cached_property
    def recognizer(self) -> Recognizer:
        """The model itself."""
        return load(self.run.model)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the run's log."""
        return read_log(self.run.log)


@dataclass(frozen=True)
class Results:
    """Everything the demonstration found."""

    job: Job
    """What was asked for, and where it is."""
    plan: Plan
    """How long the models were trained."""
    test: tuple[Utterance, ...]
    """The test set."""
    models: tuple[Trained, ...]
    """The local and the global one."""

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Word error rates of the global model against the local, for all and for each kind."""
        local, other = self.models
        return compare(local.evaluation, other.evaluation, self.job.config.seed)

    @cached_property
    def best_path_comparisons(self) -> tuple[Comparison, ...]:
        """The same by the best alignments alone."""
        local, other = self.models
        return compare(local.best_path, other.best_path, self.job.config.seed)


def prepare(config: Config, folder: Path, *, is_again: bool = False) -> Job:
    """Makes sure that a demonstration can run in a folder, or go on there.

    Args:
        config: what is asked for.
        folder: everything the demonstration makes; made if it is not there.
        is_again: whether to remove first what an earlier one left.

    Raises:
        ValueError: if the recipe is wrong, or the folder holds a demonstration of other settings.
        OSError: if the recipe cannot be read, or the folder not be written.
    """
    job = Job(config, folder)
    table = {**to_table(config), "recipe": to_table(job.recipe("global"))}
    asked = json.loads(json.dumps(table))  # as it is when it is read again
    settings = folder / "settings.json"
    if is_again and settings.exists():  # no folder but one of ours
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not settings.exists():
        _write_json(settings, asked)
    elif (before := json.loads(settings.read_text("utf-8"))) != asked:
        changed = sorted(k for k in before.keys() | asked.keys() if before.get(k) != asked.get(k))
        raise ValueError(
            f"{folder} holds a demonstration of other settings ({', '.join(changed)}); give "
            "--again to replace it, another --output, or the same settings to go on"
        )
    return job


def run_job(job: Job, tell: Callable[[str], None]) -> Results:
    """Speaks the corpus, trains both models and evaluates them, or goes on with that.

    Args:
        job: from `prepare`.
        tell: is told what happens.

    Raises:
        KeyboardInterrupt: if the training was asked to stop; it has been saved.
        TrainingError: if a training cannot go on.
        OSError: if a file cannot be written.
    """
    speak(job, tell)
    plan = planned(job, tell)
    test = tuple(read_manifest(job.manifest("test")))
    models = []
    _train(job, plan, tell)
    for name in NORMALIZATIONS:
        folder = RunFolder(job.run_folder(name))
        found = [_evaluate(job, name, search, test) for search in (job.search, BEST_PATH)]
        models.append(Trained(name, folder, *found))
    return Results(job, plan, test, tuple(models))


def speak(job: Job, tell: Callable[[str], None]) -> None:
    """Speaks the corpus, if it is not there."""
    if job.manifest("test").exists():  # the last file that is written
        tell(f"the corpus is there: {job.data}")
        return
    config = job.config
    tell(f"speaking {config.minutes:g} minutes of synthetic speech (espeak-ng)")
    speak_corpus(
        job.data,
        seed=config.seed,
        minutes=config.minutes,
        num_dev=config.num_dev,
        num_test=config.num_test,
    )


def planned(job: Job, tell: Callable[[str], None]) -> Plan:
    """How many steps to train: as asked, as planned before, or as there is time for."""
    path = job.folder / "plan.json"
    if path.exists():
        plan = Plan(**json.loads(path.read_text("utf-8")))
    else:
        plan = _new_plan(job, tell)
        _write_json(path, dataclasses.asdict(plan))
    tell(f"{plan.num_steps} steps for each model: {plan.reason}")
    return plan


def _new_plan(job: Job, tell: Callable[[str], None]) -> Plan:
    if job.config.num_steps is not None:
        return Plan(job.config.num_steps, "as asked for")
    tell("measuring the time of a training step of each model")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = {name: measured(job, name) for name in NORMALIZATIONS}
    finally:
        torch.set_num_threads(num_threads)
    wanted = job.recipe("global").training.num_steps
    return fitting_plan(times, wanted, job.config.train_seconds, num_available_cores())


@dataclass(frozen=True)
class Times:
    """How long the parts of a run take, in seconds."""

    start: float
    """Until the first step."""
    step: float
    """One step."""
    evaluation: float
    """An evaluation on the development set, and a checkpoint."""


def measured(job: Job, name: str) -> Times:
    """Trains a model for a few steps that are then thrown away."""
    recipe = job.recipe(name)
    short = dataclasses.replace(
        recipe.training,
        num_steps=_NUM_TIMED_STEPS,
        log_every=_NUM_TIMED_STEPS // _NUM_TIMED_LINES,
        evaluate_every=_NUM_TIMED_STEPS,
    )
    with tempfile.TemporaryDirectory(dir=job.folder, prefix="measured-") as scratch:
        begun = time.perf_counter()
        with opened_run(dataclasses.replace(recipe, training=short), scratch) as training:
            ready = time.perf_counter()
            outcome = run(training)
            ended = time.perf_counter()
        if not outcome.is_finished:
            raise KeyboardInterrupt
        lines = [line for line in read_log(RunFolder(Path(scratch)).log) if line["kind"] == "step"]
    seconds = [line["num_frames"] / line["frames_per_second"] for line in lines]
    step = sum(seconds[1:]) / (short.log_every * len(seconds[1:]))
    return Times(ready - begun, step, max(ended - ready - sum(seconds), 0.0))


def fitting_plan(times: Mapping[str, Times], wanted: int, seconds: float, num_cores: int) -> Plan:
    """As many steps as fit, the same for all models; at most those wanted, and some in any case.

    The models are trained side by side, each by one thread, and share the cores with the processes
    that read.

    Args:
        times: of each model, by its name.
        wanted: how many steps would be enough.
        seconds: time for all of it.
        num_cores: that there are.

    Example:
        >>> times = {
        ...     "local": Times(start=4.0, step=0.1, evaluation=1.0),
        ...     "global": Times(start=4.0, step=0.3, evaluation=1.0),
        ... }
        >>> fitting_plan(times, 1000, seconds=241.0, num_cores=2).num_steps
        700
    """
    around = max(each.start + NUM_EVALUATIONS * each.evaluation for each in times.values())
    slowest = max(each.step for each in times.values())
    work = _READING * sum(each.step for each in times.values())
    per_step = _CAUTION * max(slowest, work / num_cores)
    num_steps = max(min(int((seconds - around) / per_step), wanted), _LEAST_STEPS)
    told = " and ".join(f"{each.step:.2f} s ({name})" for name, each in times.items())
    reason = f"a step takes {told} here"
    if num_steps == wanted:
        return Plan(num_steps, f"{reason}, and all {wanted} of the recipe fit")
    return Plan(
        num_steps,
        f"{reason}, and there are {format_seconds(seconds)} for both; a slower machine gets fewer, "
        f"a faster one more, at most the {wanted} of the recipe",
    )


def _train(job: Job, plan: Plan, tell: Callable[[str], None]) -> None:
    """Trains the models that are not there yet."""
    waiting = [
        name for name in NORMALIZATIONS if not RunFolder(job.run_folder(name)).model.exists()
    ]
    for name in NORMALIZATIONS:
        if name not in waiting:
            tell(f"the {name} model is there: {job.run_folder(name)}")
    if not waiting:
        return
    told = " and ".join(f"{name} ({NORMALIZATIONS[name]})" for name in waiting)
    tell(f"training {told}, {plan.num_steps} steps; more is in {job.folder}/.../train.txt")
    try:
        train_side_by_side(
            {name: job.recipe(name, plan.num_steps) for name in waiting},
            {name: job.run_folder(name) for name in waiting},
        )
    except KeyboardInterrupt:
        tell(f"stopped and saved: {job.folder}; the same command goes on")
        raise


def _evaluate(job: Job, name: str, search: Search, test: tuple[Utterance, ...]) -> Evaluation:
    folder = job.results_folder(name, search)
    if (folder / reports.RESULTS).exists():  # the last file that is written
        return reports.load(folder)
    recognizer = load(job.run_folder(name))
    decoder = OfflineDecoder(recognizer, DecoderConfig(search=search))
    told = f"testing the {name} model by {search}"
    with Progress(len(test), told, unit="utterances") as progress:
        evaluation = evaluate(
            recognizer,
            test,
            group_fields=["kind"],
            progress=lambda count: progress.advance(count=count),
            decode=lambda _, audio: decoder.decode(audio),
        )
    described = {
        "model": str(job.run_folder(name)),
        "data": "synthetic speech (espeak-ng)",
        "decoder": {"search": search},
    }
    reports.save(evaluation, folder, description=described)
    return evaluation


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
    unfinished.replace(path)
