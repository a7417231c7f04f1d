"""Options of commands that cut sound into segments."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from midge.decoding.endpointing import EndpointConfig

_MEANINGS = {
    "pause": "seconds of blank that end a segment",
    "silence": "seconds without a word that end the speech",
    "max_segment": "seconds of the longest segment",
}


def add_endpoint_options(parser: argparse.ArgumentParser) -> None:
    """Adds the rules, and the option to have none, in a group of their own."""
    group = parser.add_argument_group("segments")
    group.add_argument(
        "--no-endpoints",
        action="store_true",
        help="one segment, however long; the memory of a Conformer without left_context then grows "
        "with the length",
    )
    add_rules(group)


def add_rules(group: Any) -> None:
    """Adds the rules to a parser, or a group of one."""
    for field in fields(EndpointConfig):
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=float,
            metavar="S",
            help=f"{_MEANINGS[field.name]} ({field.default:g})",
        )


def endpointing_of(arguments: argparse.Namespace) -> EndpointConfig | None:
    """The rules that the options ask for; None is one segment.

    Raises:
        ValueError: if they do not go together.
    """
    if arguments.no_endpoints:
        refuse_rules(arguments, "segments, and --no-endpoints asks for none")
        return None
    return rules_of(arguments)


def rules_of(arguments: argparse.Namespace) -> EndpointConfig:
    """The rules that were given; the others are the default ones.

    Raises:
        ValueError: if one is out of range.
    """
    return EndpointConfig(**_given(arguments))


def refuse_rules(arguments: argparse.Namespace, purpose: str) -> None:
    """Refuses rules where they would change nothing.

    Args:
        arguments: of a command.
        purpose: what they are for.

    Raises:
        ValueError: if one was given.
    """
    if given := _given(arguments):
        raise ValueError(f"--{next(iter(given)).replace('_', '-')} is for {purpose}")


def _given(arguments: argparse.Namespace) -> dict[str, float]:
    """The rules that were given, by their names in `EndpointConfig`."""
    found = {name: getattr(arguments, name) for name in _MEANINGS}
    return {name: value for name, value in found.items() if value is not None}
