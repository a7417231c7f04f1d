"""`midge draw`: pictures of automata, as in the paper's figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from midge.alignments import AlignmentLattice, FrameDependent, LabelDependent, LabelFrameDependent
from midge.automata import Automaton
from midge.cli.mistakes import users_own
from midge.contexts import FullNGram
from midge.drawing import Highlight, draw
from midge.lattices import RecognitionLattice
from midge.weights import Normalization, TableWeights

_DESCRIPTION = """\
Draws a context dependency, an alignment lattice, the deduplication transducer, or a recognition
lattice of random weights, with at most 300 states. The same command writes the same bytes."""

_EXAMPLES = """\
examples:
  midge draw context --vocab-size 2 --context-size 2 -o context.svg
  midge draw alignment --kind label-frame --num-frames 3 --max-labels 2 -o ladder.svg
  midge draw deduplication -o deduplication.svg
  midge draw lattice --num-frames 3 --highlight "best path" -o lattice.svg
  midge draw lattice --labels 1 2 --weights -o spells_ab.svg"""

MAX_NUM_ARCS = 500
"""Placing the labels of more takes minutes, and nobody could read them."""

Kind = Literal["frame", "frame-without-blank", "label-frame", "label"]
"""The alignment lattices by name."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "draw",
        help="pictures of automata",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("what", choices=["context", "alignment", "deduplication", "lattice"])
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help=".svg or .png to write"
    )
    parser.add_argument("--vocab-size", type=int, metavar="N", help="number of labels (2)")
    parser.add_argument("--context-size", type=int, metavar="N", help="labels remembered (1)")
    parser.add_argument("--num-frames", type=int, metavar="N", help="of the utterance (3)")
    parser.add_argument("--kind", choices=get_args(Kind), help="alignment lattice (frame)")
    parser.add_argument(
        "--max-labels", type=int, metavar="N", help="per frame, or in all for --kind label (2)"
    )
    lattice = parser.add_argument_group("lattice")
    lattice.add_argument("--normalization", choices=get_args(Normalization), help="(softmax)")
    lattice.add_argument("--deduplicate", action="store_true", default=None, help="as in CTC")
    lattice.add_argument("--labels", type=int, nargs="+", metavar="Y", help="their alignments only")
    lattice.add_argument("--weights", action="store_true", default=None, help="write log weights")
    lattice.add_argument("--highlight", choices=get_args(Highlight), help="by colour and width")
    lattice.add_argument("--seed", type=int, metavar="N", help="of the random weights (0)")


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 2,
    "context_size": 1,
    "num_frames": 3,
    "kind": "frame",
    "max_labels": 2,
    "normalization": "softmax",
    "deduplicate": False,
    "labels": None,
    "weights": False,
    "highlight": None,
    "seed": 0,
}
_USED = {
    "context": ("vocab_size", "context_size"),
    "alignment": ("vocab_size", "num_frames", "kind", "max_labels"),
    "deduplication": ("vocab_size",),
    "lattice": tuple(_DEFAULTS),
}


def _run(arguments: argparse.Namespace) -> int:
    with users_own():
        options = _options(arguments)
        automaton = _automaton(arguments.what, options)
        if len(automaton.arcs) > MAX_NUM_ARCS:
            raise ValueError(
                f"a picture of {len(automaton.arcs)} arcs could not be read; draw at most "
                f"{MAX_NUM_ARCS}, with a smaller --vocab-size, --context-size or --num-frames"
            )
        draw(
            automaton,
            arguments.output,
            weights=options["weights"],
            highlight=options["highlight"],
        )
    print(f"Wrote {arguments.output}")
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was given, or else the defaults; what would be ignored is refused."""
    given = {name: getattr(arguments, name) for name in _DEFAULTS}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in _USED[arguments.what]:
            raise ValueError(f"--{name.replace('_', '-')} does not go with {arguments.what}")
    options = {**_DEFAULTS, **given}
    if options["kind"] not in ("label-frame", "label") and "max_labels" in given:
        raise ValueError(f"--max-labels does not go with --kind {options['kind']}")
    for name in ("num_frames", "seed"):
        if options[name] < 0:
            raise ValueError(f"--{name.replace('_', '-')} should be at least 0")
    return options


def _automaton(what: str, options: dict[str, Any]) -> Automaton:
    if what == "context":
        return Automaton.of_context(FullNGram(options["vocab_size"], options["context_size"]))
    if what == "deduplication":
        return Automaton.of_deduplication(options["vocab_size"])
    alignment = _alignment(options["kind"], options["max_labels"])
    if what == "alignment":
        return Automaton.of_alignment(alignment, options["num_frames"], options["vocab_size"])
    return _lattice(alignment, options)


def _alignment(kind: Kind, max_labels: int) -> AlignmentLattice:
    if kind == "label-frame":
        return LabelFrameDependent(max_labels)
    if kind == "label":
        return LabelDependent(max_labels)
    return FrameDependent(allow_blank=kind == "frame")


def _lattice(alignment: AlignmentLattice, options: dict[str, Any]) -> Automaton:
    """A of random table weights: standard normal, before normalization."""
    context = FullNGram(options["vocab_size"], options["context_size"])
    weights = TableWeights(context)
    lattice = RecognitionLattice(
        context,
        alignment,
        weights,
        normalization=options["normalization"],
        deduplicate=options["deduplicate"],
    )
    generator = torch.Generator().manual_seed(options["seed"])
    frames = torch.randn(options["num_frames"], weights.input_size, generator=generator)
    return Automaton.of_lattice(lattice, frames, labels=options["labels"])
