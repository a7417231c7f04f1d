"""`midge demo`: jobs on which the theory makes a sharp prediction, from five frames to speech."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from midge.cli.mistakes import Mistake, users_own
from midge.cli.outputs import check_folder, tell
from midge.demos import label_bias, label_bias_report, ready_model, speech, speech_report
from midge.drawing.canvas import require_matplotlib
from midge.progress import Progress
from midge.training import TrainingError

_DESCRIPTION = """\
Shows what global normalization does. First label bias, on a task where theory gives exact numbers;
then speech: it speaks a small corpus (synthetic, espeak-ng), trains the same streaming recognizer
locally and globally normalized for the same number of steps, and compares them on held-out voices.
All of it ends in one page, DIR/report.html. Last, the model that comes with midge transcribes."""

_EXAMPLES = """\
examples, in the folder of midge:
  midge demo --output demo
  midge demo --output small --minutes 2 --num-steps 40

The same command goes on where it was stopped, and repeats nothing that is done. The exit code is 1
if theory and measurement do not agree on label bias."""

_BIAS_DESCRIPTION = """\
Trains streaming and non-streaming models, locally and globally normalized, on a task where each
label is the symbol of the next frame. Prints what the theory predicts beside what was measured,
and saves a picture of how each streaming model revises, or cannot revise, its early decisions."""

_BIAS_EXAMPLE = """\
example, in less than a minute:
  midge demo label-bias --output demo

writes demo/label-bias.png, demo/label-bias.svg and demo/results.json. The exit code is 1 if theory
and measurement do not agree, as after too few steps."""

_SPEECH_DESCRIPTION = """\
Speaks a small corpus (synthetic, espeak-ng), trains the same streaming recognizer locally and
globally normalized for the same number of steps, and compares them on held-out voices: digits, and
pairs of homophones that only the next word tells apart."""

_SPEECH_EXAMPLE = """\
example, in the folder of midge:
  midge demo speech --output demo --minutes 2 --num-steps 40

writes demo/report.html, and below demo/speech the corpus, the models and their results. Without
--num-steps the time of a step is measured first, and there are as many steps as fit."""

_RAW = argparse.RawDescriptionHelpFormatter


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "demo",
        help="see what global normalization does",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=_RAW,
    )
    # In a subparser an option that is not given must not undo one that was given before its name.
    _add_shared(parser, output=Path("demo"), seed=0)
    _add_speech_options(parser, None)
    parser.set_defaults(run=_run_all)
    demos = parser.add_subparsers(title="one of them alone", metavar="NAME")
    _add_label_bias(demos)
    alone = demos.add_parser(
        "speech",
        help="two recognizers of synthetic speech, side by side",
        description=_SPEECH_DESCRIPTION,
        epilog=_SPEECH_EXAMPLE,
        formatter_class=_RAW,
    )
    _add_shared(alone, output=argparse.SUPPRESS, seed=argparse.SUPPRESS)
    _add_speech_options(alone, argparse.SUPPRESS)
    alone.set_defaults(run=_run_speech)


def _add_label_bias(demos: Any) -> None:
    bias = demos.add_parser(
        "label-bias",
        help="what a streaming, locally normalized model cannot do",
        description=_BIAS_DESCRIPTION,
        epilog=_BIAS_EXAMPLE,
        formatter_class=_RAW,
    )
    default = label_bias.Config()
    _add_shared(bias, output=argparse.SUPPRESS, seed=argparse.SUPPRESS)
    bias.add_argument(
        "--steps",
        type=int,
        default=default.num_steps,
        metavar="N",
        help=f"training steps of each model ({default.num_steps})",
    )
    bias.add_argument("--json", action="store_true", help="print JSON instead of the table")
    bias.set_defaults(run=_run_label_bias)


def _add_shared(parser: argparse.ArgumentParser, *, output: Any, seed: Any) -> None:
    parser.add_argument(
        "--output", type=Path, default=output, metavar="DIR", help="folder to write (demo)"
    )
    parser.add_argument(
        "--seed", type=int, default=seed, metavar="N", help="seed of parameters and inputs (0)"
    )


def _add_speech_options(parser: argparse.ArgumentParser, default: Any) -> None:
    config = speech.Config()
    options: tuple[tuple[str, dict[str, Any]], ...] = (
        ("--minutes", {"type": float, "metavar": "M", "help": f"of speech ({config.minutes:g})"}),
        (
            "--num-dev",
            {"type": int, "metavar": "N", "help": f"utterances to select on ({config.num_dev})"},
        ),
        (
            "--num-test",
            {"type": int, "metavar": "N", "help": f"utterances to test on ({config.num_test})"},
        ),
        (
            "--num-steps",
            {"type": int, "metavar": "N", "help": "training steps of each recognizer (measured)"},
        ),
        (
            "--train-seconds",
            {
                "type": float,
                "metavar": "S",
                "help": f"time to train both recognizers ({config.train_seconds:g})",
            },
        ),
        ("--recipe", {"metavar": "FILE", "help": f"of both recognizers ({config.recipe})"}),
        (
            "--set",
            {
                "action": "append",
                "dest": "overrides",
                "metavar": "PART.FIELD=VALUE",
                "help": "set a field of the recipe; may be given again",
            },
        ),
        ("--again", {"action": "store_true", "help": "repeat what is done already"}),
    )
    for name, settings in options:
        is_flag = settings.get("action") == "store_true" and default is None
        parser.add_argument(name, default=False if is_flag else default, **settings)


_SPEECH_FIELDS = (
    "minutes",
    "num_dev",
    "num_test",
    "num_steps",
    "train_seconds",
    "recipe",
    "overrides",
)


def _run_label_bias(arguments: argparse.Namespace) -> int:
    with users_own():  # before the training, which would be lost
        given = [name for name in _SPEECH_FIELDS if getattr(arguments, name) is not None]
        if given or arguments.again:
            name = (given or ["again"])[0].replace("_", "-").replace("overrides", "set")
            raise ValueError(f"--{name} does not go with label-bias")
        config = label_bias.Config(seed=arguments.seed, num_steps=arguments.steps)
        label_bias_report.check_output(arguments.output)
    results = _label_bias_results(config)
    print(
        json.dumps(label_bias_report.to_json(results), indent=2)
        if arguments.json
        else label_bias_report.table(results)
    )
    with users_own():
        written = label_bias_report.save(results, arguments.output)
    print("Wrote " + ", ".join(map(str, written)), file=sys.stderr)
    return 0 if results.agrees else 1


def _label_bias_results(config: label_bias.Config) -> label_bias.Results:
    with Progress(label_bias.num_training_steps(config), "training") as progress:
        return label_bias.run(config, progress.advance)


def _run_speech(arguments: argparse.Namespace) -> int:
    _show_speech(_prepared(arguments), arguments.output)
    return 0


def _run_all(arguments: argparse.Namespace) -> int:
    job = _prepared(arguments)
    config = label_bias.Config(seed=arguments.seed)
    if not arguments.again and _finished_label_bias(arguments.output, config) is not None:
        tell(f"label bias is done: {arguments.output / 'results.json'}")
    else:
        results = _label_bias_results(config)
        print(label_bias_report.table(results) + "\n", flush=True)
        with users_own():
            label_bias_report.save(results, arguments.output)
    _show_speech(job, arguments.output)
    with users_own():
        print("\n" + ready_model.told(ready_model.listen(arguments.output)))
    found = _finished_label_bias(arguments.output, config)
    return 0 if found is not None and found["agrees"] else 1


def _prepared(arguments: argparse.Namespace) -> speech.Job:
    """The job, with everything checked before the first minute is spent."""
    given = {name: getattr(arguments, name) for name in _SPEECH_FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    if "overrides" in given:
        given["overrides"] = tuple(given["overrides"])
    with users_own():
        config = speech.Config(seed=arguments.seed, **given)
        if not Path(config.recipe).is_file():
            raise ValueError(
                f"there is no {config.recipe}; run this in the folder of midge, or give --recipe"
            )
        require_matplotlib()
        check_folder(arguments.output)
        return speech.prepare(config, arguments.output / "speech", is_again=arguments.again)


def _show_speech(job: speech.Job, folder: Path) -> None:
    with users_own():  # the recipe meets the data here
        results = _speech_results(job)
    print(speech_report.table(results))
    print("\n" + speech_report.transcription(results), flush=True)
    tell("drawing")
    found = _finished_label_bias(folder, label_bias.Config(seed=job.config.seed))
    page = speech_report.page(results, folder, found, ["midge", *sys.argv[1:]])
    path = folder / "report.html"
    with users_own():
        path.write_text(page, "utf-8")
    print(f"\nEverything, with pictures, is in {path}: open it in a browser.")


def _speech_results(job: speech.Job) -> speech.Results:
    try:
        return speech.run_job(job, tell)
    except (OSError, TrainingError) as error:  # a full disk, say
        raise Mistake(f"{error}. What is done is kept, and the same command goes on") from error


def _finished_label_bias(folder: Path, config: label_bias.Config) -> dict[str, Any] | None:
    """The results of the label-bias demonstration of these settings, if the folder has them."""
    path = folder / "results.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    is_same = found.get("config") == dataclasses.asdict(config)
    return found if is_same and (folder / "label-bias.svg").exists() else None
