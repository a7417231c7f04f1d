"""`midge evaluate`: error rates of a model on a manifest."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import midge
from midge.cli.decoder_options import (
    add_decoder_options,
    decoder_of,
    description_of,
    live_options_of,
)
from midge.cli.endpoint_options import add_rules, refuse_rules, rules_of
from midge.cli.mistakes import users_own
from midge.cli.outputs import check_folder, tell
from midge.data import Utterance, read_manifest
from midge.decoding import (
    Calibration,
    Comparison,
    Evaluation,
    calibration,
    check_comparable,
    compare,
    evaluate,
    reports,
    streaming_evaluation,
)
from midge.decoding.calibration import judged_words
from midge.decoding.evaluation import Decode
from midge.decoding.latency import CHUNK_SECONDS
from midge.decoding.recordings import BATCH_SECONDS
from midge.decoding.streaming_evaluation import StreamingEvaluation, evaluate_streaming
from midge.decoding.streams import BLOCK_SIZE, StreamingDecoder
from midge.models import Recognizer, load
from midge.progress import Progress

_DESCRIPTION = """\
Transcribes every utterance of a manifest, by the best path unless --decoder says otherwise, and
prints word, character and sentence error rates with confidence intervals (bootstrap over speakers).
An utterance that cannot be read counts as all deleted, is named, and makes the exit code 1. Named
too are references with characters that the model cannot write. With --confidence also how far the
confidences of words can be believed. With --streaming each is also heard as a stream, chunk by
chunk: how late words are shown and last changed, how many are revised, and error rates beside the
offline one, without trailing silence and with endpoints."""

_EXAMPLES = """\
examples:
  midge evaluate demo/speech/global data/test.jsonl.gz --output results
  midge evaluate demo/speech/global data/test.jsonl.gz --output results --group kind --ids hard.txt
  midge evaluate demo/speech/local data/test.jsonl.gz --output others --compare results
  midge evaluate demo/speech/global data/test.jsonl.gz --output live --streaming
  midge evaluate demo/speech/global data/test.jsonl.gz --output sums --decoder sum-path --confidence

writes results.json, hypotheses.jsonl, hypotheses.trn, references.trn and alignments.txt; with
--confidence also reliability.svg, with --streaming streaming.json. A manifest is what `midge
prepare` writes, or JSON lines with id, audio, text and perhaps speaker; for the delays of words it
has to have their times."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "evaluate",
        help="word error rates on a manifest",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a model or a run")
    parser.add_argument("manifest", type=Path, metavar="MANIFEST", help="utterances with texts")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="FIELD",
        help="report apart by this field of the manifest; may be given again",
    )
    parser.add_argument(
        "--ids",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="report apart the utterances whose ids a text file lists, one a line",
    )
    parser.add_argument(
        "--compare", type=Path, metavar="DIR", help="--output of another evaluation"
    )
    parser.add_argument(
        "--batch-seconds",
        type=float,
        default=BATCH_SECONDS,
        metavar="S",
        help=f"audio decoded together ({BATCH_SECONDS:g})",
    )
    parser.add_argument("--streaming", action="store_true", help="measure live streams too")
    parser.add_argument(
        "--chunk-seconds",
        type=float,
        default=CHUNK_SECONDS,
        metavar="S",
        help=f"how much a stream hears at a time ({CHUNK_SECONDS:g})",
    )
    parser.add_argument(
        "--block-size",
        type=int,
        default=BLOCK_SIZE,
        metavar="N",
        help=f"frames that a stream encodes together ({BLOCK_SIZE})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap (0)")
    parser.add_argument("--json", action="store_true", help="print results.json, not tables")
    add_decoder_options(parser)
    add_rules(parser.add_argument_group("segments of --streaming"))


def _run(arguments: argparse.Namespace) -> int:
    with users_own():
        if arguments.seed < 0:
            raise ValueError(f"--seed should be at least 0, got {arguments.seed}")
        utterances = read_manifest(arguments.manifest)
        if not utterances:
            raise ValueError(f"{arguments.manifest} should hold utterances, it is empty")
        recognizer = load(arguments.model)
        options = {
            "group_fields": arguments.group,
            "id_groups": _id_groups(arguments.ids),
            "batch_seconds": arguments.batch_seconds,
            "seed": arguments.seed,
        }
        streamed = _streamed(arguments, recognizer)
        decode = _decode(arguments, recognizer)
        before = None if arguments.compare is None else _before(arguments, utterances, recognizer)
        check_folder(arguments.output)
        with Progress(len(utterances), "decoding", unit="utterances") as progress:
            evaluation = evaluate(
                recognizer,
                utterances,
                progress=lambda count: progress.advance(count=count),
                decode=decode,
                **options,
            )
        live = None if streamed is None else streamed(utterances, evaluation, options)
        found = _Found(
            evaluation,
            () if before is None else compare(before, evaluation, arguments.seed),
            calibration(judged_words(evaluation)) if arguments.confidence else None,
            live,
        )
        written = found.save(arguments.output, _description(arguments, recognizer))
    found.show(arguments)
    tell("wrote " + ", ".join(map(str, written)))
    return 1 if evaluation.failed else 0


def _description(arguments: argparse.Namespace, recognizer: Recognizer) -> dict[str, Any]:
    return {
        "midge": midge.__version__,
        "model": str(arguments.model),
        "manifest": str(arguments.manifest),
        "compared_with": None if arguments.compare is None else str(arguments.compare),
        "is_exact": recognizer.is_exact,
        "decoder": description_of(arguments),
    }


def _decode(arguments: argparse.Namespace, recognizer: Recognizer) -> Decode | None:
    """What decodes a batch; None for the plain best path."""
    decoder = decoder_of(arguments, recognizer)
    return None if decoder is None else lambda _, audio: decoder.decode(audio)


_Streamed = Callable[[Sequence[Utterance], Evaluation, dict[str, Any]], StreamingEvaluation]


def _streamed(arguments: argparse.Namespace, recognizer: Recognizer) -> _Streamed | None:
    """What evaluates streams, if that is asked for.

    Raises:
        ValueError: if the options, or the model, are not for streams.
    """
    if not arguments.streaming:
        refuse_rules(arguments, "--streaming")
        return None
    endpointing = rules_of(arguments)
    live = live_options_of(arguments)
    if live is None:
        raise ValueError(
            "--streaming is for the best path: evaluate other decoders, a language model and "
            "phrases without it"
        )
    decoder = StreamingDecoder(recognizer, block_size=arguments.block_size)

    def evaluated(
        utterances: Sequence[Utterance], offline: Evaluation, options: dict[str, Any]
    ) -> StreamingEvaluation:
        total = streaming_evaluation.NUM_PASSES * len(utterances)
        with Progress(total, "streaming", unit="utterances") as progress:
            return evaluate_streaming(
                decoder,
                utterances,
                offline,
                endpointing=endpointing,
                chunk_seconds=arguments.chunk_seconds,
                blank_penalty=live["blank_penalty"],
                progress=lambda count: progress.advance(count=count),
                **options,
            )

    return evaluated


def _id_groups(paths: Sequence[Path]) -> dict[str, frozenset[str]]:
    """The ids that each file lists, by the file's name without suffix."""
    groups: dict[str, frozenset[str]] = {}
    for path in paths:
        ids = frozenset(path.read_text(encoding="utf-8").split("\n")) - {""}
        if not ids:
            raise ValueError(f"{path} should list ids, one a line; it is empty")
        if path.stem in groups:
            raise ValueError(f"two files of ids are called {path.stem}; rename one")
        groups[path.stem] = frozenset(name.strip() for name in ids)
    return groups


def _before(
    arguments: argparse.Namespace, utterances: Sequence[Utterance], recognizer: Recognizer
) -> Evaluation:
    """The evaluation to compare with, if it is one of the same utterances."""
    before = reports.load(arguments.compare)
    normalize = recognizer.tokens.normalize
    check_comparable(before, {each.id: normalize(each.text) for each in utterances})
    return before


@dataclass
class _Found:
    """All that was measured."""

    evaluation: Evaluation
    comparisons: Sequence[Comparison]
    calibration: Calibration | None
    live: StreamingEvaluation | None
    stored: dict[str, Any] = field(default_factory=dict)
    """What results.json holds."""

    def save(self, folder: Path, description: dict[str, Any]) -> list[Path]:
        """Writes the files; which they are."""
        rest = (self.comparisons, description, self.calibration)
        self.stored = reports.to_json(self.evaluation, *rest)
        written = reports.save(self.evaluation, folder, *rest)
        if self.live is not None:
            written.append(streaming_evaluation.save(self.live, folder))
        return written

    def show(self, arguments: argparse.Namespace) -> None:
        """Prints tables, or JSON."""
        if arguments.json:
            live = self.live
            streaming = {} if live is None else {"streaming": streaming_evaluation.to_json(live)}
            print(json.dumps({**self.stored, **streaming}))
            return
        print(reports.table(self.evaluation))
        if self.calibration is not None:
            print(f"\nConfidences of words:\n{self.calibration.table()}")
        if self.live is not None:
            print(f"\nLive:\n{streaming_evaluation.table(self.live)}")
        if self.comparisons:
            print(f"\nCompared with {arguments.compare}, on the same utterances:")
            print(reports.comparison_table(self.comparisons))
