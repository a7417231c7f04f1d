"""`midge prepare`: corpora as manifests of checked utterances."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midge.cli.mistakes import users_own
from midge.data.digit_strings import join_digits
from midge.data.importers import IMPORTERS, Found
from midge.data.preparation import num_recordings, prepare, read_speakers, report_made
from midge.data.report import Report
from midge.data.spoken import SHARES, speak_corpus
from midge.data.workers import num_available_cores
from midge.progress import Progress

_DESCRIPTION = """\
Makes Lhotse manifests of a corpus, one for each split. Importing decodes every file, lists in a
report what it rejects and why, and goes on; the exit code is 2 only if nothing can be used."""

_EXAMPLES = """\
examples:
  midge prepare librispeech corpora/LibriSpeech data/librispeech
  midge prepare manifest corpora/an4/manifest.jsonl data/an4 --dev-speakers dev_speakers.txt
  midge prepare spoken data/spoken --minutes 15
  midge prepare digit-strings corpora/fsdd corpora/audiomnist data/digits

each writes <split>.jsonl.gz, report.txt and report.json, and has a --help of its own."""

_SOURCES = {
    "librispeech": (
        "LibriSpeech's own layout",
        "folder of <part>/<speaker>/<chapter>/; a part is a split",
        "midge prepare librispeech corpora/LibriSpeech data/librispeech",
    ),
    "kaldi": (
        "Kaldi directories",
        "folder with wav.scp, text, utt2spk, segments; or of such folders, each a split",
        "midge prepare kaldi egs/an4/data data/an4",
    ),
    "manifest": (
        "Lhotse cuts, Lhotse Shar, NeMo's or our JSON lines",
        "file, or Shar's folder; a field `split` is the split",
        "midge prepare manifest corpora/an4/manifest.jsonl data/an4",
    ),
    "table": (
        "a table (CSV or TSV), also CommonVoice's",
        "file with a header: audio, text and perhaps speaker, id, split",
        "midge prepare table corpora/cv/test.tsv data/cv --split test",
    ),
    "folder": (
        "audio files with texts beside them",
        "folder in which x.wav (or .flac, ...) has its text in x.txt",
        "midge prepare folder recordings data/mine --split test",
    ),
}
"""Help, what SOURCE is, and an example of each importer."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "prepare",
        help="import, or make, a corpus",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(title="corpora", metavar="KIND", required=True)
    for name, (meaning, source, example) in _SOURCES.items():
        _add_importer(_subparser(kinds, name, meaning, example), name, source)
    _add_spoken(kinds)
    _add_digit_strings(kinds)


def _subparser(kinds: Any, name: str, meaning: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=meaning,
        description=f"Prepares {meaning}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _add_importer(parser: argparse.ArgumentParser, name: str, source: str) -> None:
    parser.add_argument("source", type=Path, metavar="SOURCE", help=source)
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder to write")
    parser.add_argument(
        "--split",
        default="train",
        metavar="NAME",
        help="split of what the source gives none (train)",
    )
    parser.add_argument(
        "--dev-speakers",
        type=Path,
        metavar="FILE",
        help="speakers, one in a line, that go from train to dev",
    )
    parser.add_argument(
        "--folds",
        type=int,
        default=0,
        metavar="K",
        help="also deal the training speakers into K folds, for cross-validation",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="deals the speakers into folds (0)"
    )
    cores = num_available_cores()
    parser.add_argument(
        "--workers",
        type=int,
        default=cores,
        metavar="N",
        help=f"processes that decode; 0 for none but this ({cores})",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_run_importer, importer=name)


def _run_importer(arguments: argparse.Namespace) -> int:
    with users_own():
        _check_numbers(arguments)
        speakers = read_speakers(arguments.dev_speakers) if arguments.dev_speakers else ()
        found = list(IMPORTERS[arguments.importer](arguments.source))
        report = _prepared(found, speakers, arguments)
    print(json.dumps(report.to_json()) if arguments.json else report.summary())
    _tell_written(arguments.output, report)
    return 0 if report.num_utterances else 2


def _check_numbers(arguments: argparse.Namespace) -> None:
    for name in ("seed", "workers"):
        if getattr(arguments, name) < 0:
            raise ValueError(f"--{name} should be at least 0, got {getattr(arguments, name)}")


def _prepared(
    found: Sequence[Found], speakers: Iterable[str], arguments: argparse.Namespace
) -> Report:
    with Progress(num_recordings(found), "checking", unit="recordings") as progress:
        return prepare(
            found,
            arguments.output,
            split=arguments.split,
            dev_speakers=speakers,
            num_folds=arguments.folds,
            seed=arguments.seed,
            num_workers=arguments.workers,
            advance=progress.advance,
        )


def _add_spoken(kinds: Any) -> None:
    parser = _subparser(
        kinds,
        "spoken",
        "the embedded corpus: synthetic speech by espeak-ng",
        "midge prepare spoken data/spoken --minutes 15",
    )
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder to write")
    parser.add_argument(
        "--minutes", type=float, default=15.0, metavar="M", help="of training speech (15)"
    )
    parser.add_argument(
        "--num-dev", type=int, default=120, metavar="N", help="utterances of dev (120)"
    )
    parser.add_argument(
        "--num-test", type=int, default=240, metavar="N", help="utterances of test (240)"
    )
    usual = ", ".join(f"{kind}={share:g}" for kind, share in SHARES.items())
    parser.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="KIND=X",
        help=f"how much of a kind; may be given again, and then others are not spoken ({usual})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is drawn (0)")
    parser.set_defaults(run=_run_spoken)


def _run_spoken(arguments: argparse.Namespace) -> int:
    with users_own():
        parts = speak_corpus(
            arguments.output,
            seed=arguments.seed,
            minutes=arguments.minutes,
            num_dev=arguments.num_dev,
            num_test=arguments.num_test,
            shares=_shares(arguments.share),
        )
        notes = ["All of it is synthetic speech, by espeak-ng."]
        report = report_made(arguments.output, {part.split for part in parts}, notes)
    for part in parts:
        print(
            f"{part.split:6} {part.kind:11} {part.num_utterances:6} utterances "
            f"{part.seconds / 60:6.1f} minutes (synthetic)"
        )
    _tell_made(arguments.output, report)
    return 0


def _shares(options: Sequence[str]) -> Mapping[str, float]:
    """From options KIND=X; without any, the usual ones."""
    shares = {}
    for option in options:
        kind, _, number = option.partition("=")
        try:
            shares[kind] = float(number)
        except ValueError:
            raise ValueError(
                f"--share should be KIND=X with a number X, as digits=0.5, got {option}"
            ) from None
    return shares or SHARES


def _add_digit_strings(kinds: Any) -> None:
    parser = _subparser(
        kinds,
        "digit-strings",
        "recordings of single digits, joined to strings with known word times",
        "midge prepare digit-strings corpora/fsdd corpora/audiomnist data/digits",
    )
    parser.add_argument(
        "sources",
        type=Path,
        nargs="+",
        metavar="SOURCE",
        help="manifest of one-digit recordings, or folder with a manifest.jsonl",
    )
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder to write")
    numbers: tuple[tuple[str, type, float, str], ...] = (
        ("--num-strings", int, 40, "strings of each speaker of train"),
        ("--num-held-out-strings", int, 20, "strings of each speaker of dev and test"),
        ("--min-length", int, 1, "digits of the shortest"),
        ("--max-length", int, 7, "digits of the longest"),
        ("--min-gap", float, 0.05, "least silence between two digits, in seconds"),
        ("--max-gap", float, 0.4, "most silence between two digits"),
        ("--seed", int, 0, "of all that is drawn"),
    )
    for name, kind, default, meaning in numbers:
        parser.add_argument(
            name, type=kind, default=default, metavar="N", help=f"{meaning} ({default})"
        )
    for split in ("dev", "test"):
        parser.add_argument(
            f"--{split}-speakers",
            type=Path,
            metavar="FILE",
            help=f"speakers, one in a line, that are all for {split}",
        )
    parser.set_defaults(run=_run_digit_strings)


def _run_digit_strings(arguments: argparse.Namespace) -> int:
    with users_own():
        files = {"dev": arguments.dev_speakers, "test": arguments.test_speakers}
        held_out = {split: read_speakers(file) if file else () for split, file in files.items()}
        parts = join_digits(
            arguments.output,
            arguments.sources,
            seed=arguments.seed,
            num_strings=arguments.num_strings,
            num_held_out_strings=arguments.num_held_out_strings,
            min_length=arguments.min_length,
            max_length=arguments.max_length,
            min_gap=arguments.min_gap,
            max_gap=arguments.max_gap,
            dev_speakers=held_out["dev"],
            test_speakers=held_out["test"],
        )
        report = report_made(arguments.output, {part.split for part in parts})
    for part in parts:
        print(f"{part.split:6} {part.num_utterances:6} utterances {part.seconds / 60:6.1f} minutes")
    _tell_made(arguments.output, report)
    return 0


def _tell_made(folder: Path, report: Report) -> None:
    print(f"\n{report.summary()}")
    _tell_written(folder, report)


def _tell_written(folder: Path, report: Report) -> None:
    names = [*(f"{name}.jsonl.gz" for name in report.manifests), "report.txt", "report.json"]
    print("Wrote " + ", ".join(str(folder / name) for name in names), file=sys.stderr)
