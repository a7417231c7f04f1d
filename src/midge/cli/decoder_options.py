"""Options of commands that decode whole recordings: which search, and with which hints."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from midge.decoding.beam import BeamConfig
from midge.decoding.language_models import label_words, read_arpa
from midge.decoding.offline import DecoderConfig, OfflineDecoder
from midge.models import Recognizer

_DEFAULTS = DecoderConfig()
NAMES = {
    "decoder": "search",
    "num_best": "num_best",
    "confidence": "has_confidence",
    "least_risk": "has_least_risk",
    "max_expansions": "max_expansions",
    "search_seconds": "max_seconds",
    "blank_penalty": "blank_penalty",
    "lm_weight": "lm_weight",
    "label_bonus": "label_bonus",
    "internal_lm_weight": "internal_lm_weight",
    "phrase_bonus": "phrase_bonus",
}
"""Option and field of `DecoderConfig`."""


def add_decoder_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options, in a group of their own."""
    group = parser.add_argument_group(
        "decoding",
        "By default the best path is followed. sum-path finds the most probable label sequence; "
        "beam approximates it, for every model.",
    )
    group.add_argument(
        "--decoder", choices=("max-path", "sum-path", "beam"), default="max-path", help="(max-path)"
    )
    group.add_argument(
        "--num-best", type=int, default=1, metavar="N", help="alternatives in JSON (1)"
    )
    group.add_argument(
        "--confidence", action="store_true", help="posterior probability of each word"
    )
    group.add_argument(
        "--least-risk", action="store_true", help="answer by the fewest expected word errors"
    )
    size = BeamConfig().beam_size
    group.add_argument("--beam-size", type=int, default=size, metavar="N", help=f"({size})")
    group.add_argument(
        "--beam-window",
        type=int,
        metavar="N",
        help="frames that a beam looks ahead, to save memory; globally normalized models (all)",
    )
    budget = _DEFAULTS.max_expansions
    group.add_argument(
        "--max-expansions",
        type=int,
        default=budget,
        metavar="N",
        help=f"prefixes that sum-path expands at most ({budget})",
    )
    group.add_argument(
        "--search-seconds",
        type=float,
        metavar="S",
        help="time that sum-path may take for each piece of a recording (no limit)",
    )
    group.add_argument("--lm", type=Path, metavar="ARPA", help="n-gram model of the labels")
    group.add_argument("--phrases", type=Path, metavar="FILE", help="phrases to expect, one a line")
    for name, what in {
        "lm_weight": "weight of --lm",
        "internal_lm_weight": "of the model's own language model, to be subtracted",
        "label_bonus": "for each label, in nats",
        "phrase_bonus": "for each label of a phrase, in nats",
        "blank_penalty": "on blank, in nats, so that fewer labels are missed",
    }.items():
        default = getattr(_DEFAULTS, NAMES[name])
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=float,
            default=default,
            metavar="X",
            help=f"{what} ({default:g})",
        )


def live_options_of(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What the options ask of a stream; None if they ask for what a stream cannot do.

    A stream follows the best path. It knows confidences and a penalty on blank, and nothing else.
    """
    config = _config_of(arguments)
    live = {name: getattr(config, name) for name in ("has_confidence", "blank_penalty")}
    if arguments.lm is not None or arguments.phrases is not None:
        return None
    return live if config == dataclasses.replace(_DEFAULTS, **live) else None


def decoder_of(arguments: argparse.Namespace, recognizer: Recognizer) -> OfflineDecoder | None:
    """The decoder that the options ask for; None for the plain best path.

    Raises:
        ValueError: if the options do not go together, or a file is not what it should be.
        OSError: if a file cannot be read.
    """
    config = _config_of(arguments)
    if config == _DEFAULTS and arguments.lm is None and arguments.phrases is None:
        return None
    model = None
    if arguments.lm is not None:
        model = read_arpa(arguments.lm, label_words(recognizer.tokens))
    return OfflineDecoder(recognizer, config, model, phrases_of(arguments))


def phrases_of(arguments: argparse.Namespace) -> list[str]:
    """The phrases that --phrases names, one for each line that is not empty; none without it.

    Raises:
        OSError: if the file cannot be read.
    """
    if arguments.phrases is None:
        return []
    lines = arguments.phrases.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip()]


def description_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options as JSON can hold them, for a file of results."""
    files = {"lm": arguments.lm, "phrases": arguments.phrases}
    named = {name: None if path is None else str(path) for name, path in files.items()}
    return {**dataclasses.asdict(_config_of(arguments)), **named}


def _config_of(arguments: argparse.Namespace) -> DecoderConfig:
    return DecoderConfig(
        beam=BeamConfig(beam_size=arguments.beam_size, window=arguments.beam_window),
        **{field: getattr(arguments, name) for name, field in NAMES.items()},
    )
