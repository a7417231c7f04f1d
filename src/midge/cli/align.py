"""`midge align`: when each word of a known text is said."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midge.audio import read_audio
from midge.cli.mistakes import Mistake, users_own
from midge.cli.outputs import output_paths, tell, write
from midge.data import Utterance, read_manifest
from midge.decoding import FORMATS
from midge.models import Recognizer, Transcript, load
from midge.progress import Progress

_DESCRIPTION = """\
Finds when each word of a known text is said: the best path among those that spell it. With a
manifest, an utterance that cannot be aligned is named and the others go on; the exit code is then
1."""

_EXAMPLES = """\
examples:
  midge align demo/speech/global speech.flac "ONE TWO THREE"
  midge align demo/speech/global speech.flac "$(cat speech.txt)" --format textgrid > speech.TextGrid
  midge align demo/speech/global --manifest data/test.jsonl.gz --format textgrid --output aligned

Times are in seconds from the start of the recording, or of the manifest's utterance."""

_TIMED = [name for name in FORMATS if name not in ("text", "trn")]


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "align",
        help="when each word of a known text is said",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a model or a run")
    parser.add_argument("audio", nargs="?", metavar="AUDIO", help="an audio file")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is said in it")
    parser.add_argument("--manifest", type=Path, metavar="M", help="align all its utterances")
    parser.add_argument("--format", choices=_TIMED, default="ctm", help="(ctm)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.manifest is None:
        return _align_file(arguments)
    with users_own():
        if arguments.audio is not None:
            raise ValueError("AUDIO and TEXT do not go with --manifest")
        utterances = read_manifest(arguments.manifest)
        targets = output_paths([each.id for each in utterances], arguments.format, arguments.output)
        recognizer = load(arguments.model)
    return _align_all(recognizer, utterances, _writer(arguments.format, targets))


def _align_file(arguments: argparse.Namespace) -> int:
    with users_own():
        if arguments.audio is None or arguments.text is None:
            raise ValueError("give AUDIO and TEXT, or --manifest")
        targets = output_paths([arguments.audio], arguments.format, arguments.output)
        audio = read_audio(arguments.audio)
        recognizer = load(arguments.model)
        found = recognizer.align(audio.samples, audio.sample_rate, arguments.text)
        _writer(arguments.format, targets)(arguments.audio, Path(arguments.audio).stem, found)
    return 0


def _align_all(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    write_result: Callable[[str, str, Transcript], None],
) -> int:
    num_failed = 0
    with Progress(len(utterances), "aligning", unit="utterances") as progress:
        for utterance in utterances:
            try:
                audio = utterance.load()
                found = recognizer.align(audio.samples, audio.sample_rate, utterance.text)
            except (ValueError, OSError) as error:
                num_failed += 1
                tell(f"{utterance.id}: {error}")
            else:
                with users_own():
                    write_result(utterance.id, utterance.id, found)
            progress.advance()
    if num_failed == len(utterances):
        raise Mistake("no utterance could be aligned")
    return 1 if num_failed else 0


def _writer(
    format_name: str, targets: Mapping[str, Path | None]
) -> Callable[[str, str, Transcript], None]:
    """Writes the transcript of a recording, called by a shorter name, where it belongs."""

    def write_result(name: str, shown: str, transcript: Transcript) -> None:
        write(FORMATS[format_name].write(transcript, shown), targets[name])

    return write_result
