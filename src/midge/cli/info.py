"""`midge info`: what a model is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from midge.cli.mistakes import users_own
from midge.configuration import to_table
from midge.contexts import FiniteContext
from midge.models import Recognizer, load

_DESCRIPTION = """\
Tells what a model is: its parts and their sizes, its tokens, whether it streams and how far it
looks ahead, and how it was trained."""

_EXAMPLE = """\
example:
  midge info demo/speech/global"""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "info",
        help="what a model is",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a model or a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _run(arguments: argparse.Namespace) -> int:
    with users_own():
        recognizer = load(arguments.model)
    found = description(recognizer)
    print(json.dumps(found, ensure_ascii=False) if arguments.json else "\n".join(_lines(found)))
    return 0


def description(recognizer: Recognizer) -> dict[str, Any]:
    """What a model is, as JSON can hold it: one table for each part."""
    config = recognizer.config
    return {
        "model": _model(recognizer),
        "front end": {
            **to_table(config.front_end),
            "feature_size": recognizer.front_end.feature_size,
            "frame_seconds": recognizer.front_end.frame_seconds,
        },
        "tokens": {
            **to_table(config.tokens),
            "vocab_size": recognizer.tokens.vocab_size,
            "symbols": list(recognizer.tokens.symbols),
        },
        "encoder": {**to_table(config.encoder), "output_size": recognizer.encoder.output_size},
        "lattice": _lattice(recognizer),
        "training": dict(recognizer.training_summary),
    }


def _model(recognizer: Recognizer) -> dict[str, Any]:
    encoder = recognizer.encoder
    look_ahead = encoder.look_ahead * recognizer.front_end.frame_seconds
    return {
        "streaming": encoder.is_streaming,
        "look_ahead_seconds": round(look_ahead, 6) if encoder.is_streaming else None,
        "best_path": "exact" if recognizer.is_exact else "greedy",
        "parameters": num_parameters(recognizer),
        "encoder_parameters": num_parameters(encoder),
        "lattice_parameters": num_parameters(recognizer.lattice),
    }


def _lattice(recognizer: Recognizer) -> dict[str, Any]:
    config = recognizer.config.lattice
    parts = config.parts()
    context = recognizer.lattice.context
    sizes = ("hidden_size", "embedding_size", "rnn_size")
    is_bounded = parts.alignment != "label-frame" or parts.max_labels_per_frame is not None
    return {
        "model": config.model,
        "context_size": "full" if parts.context_size is None else parts.context_size,
        "context_states": context.num_states if isinstance(context, FiniteContext) else "unbounded",
        "alignment": parts.alignment,
        "max_labels_per_frame": parts.max_labels_per_frame if is_bounded else "unbounded",
        "weights": parts.weights,
        "normalization": parts.normalization,
        "deduplicate": parts.deduplicate,
        **({} if parts.weights == "unshared" else {name: getattr(config, name) for name in sizes}),
    }


def num_parameters(module: nn.Module) -> int:
    """Number of trained values; normalization of the front end is not trained."""
    return sum(parameter.numel() for parameter in module.parameters())


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for part, table in found.items():
        yield part
        if not table:
            yield "  nothing is known"
        yield from _table_lines(table, 1)


def _table_lines(table: Mapping[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, value in table.items():
        shown = name.replace("_", " ")
        if isinstance(value, Mapping):
            yield f"{indent}{shown}"
            yield from _table_lines(value, depth + 1)
        elif value is not None:
            yield f"{indent}{shown:<24} {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:_}".replace("_", " ")
    if isinstance(value, list):
        return " ".join("(space)" if item == " " else str(item) for item in value)
    return str(value)
