"""`midge transcribe`: audio files to words."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midge.audio import audio_info
from midge.cli.decoder_options import add_decoder_options, decoder_of, live_options_of
from midge.cli.endpoint_options import add_endpoint_options, endpointing_of, refuse_rules
from midge.cli.mistakes import Mistake, users_own
from midge.cli.model_argument import add_names, model_and_audio
from midge.cli.outputs import output_paths, tell, write
from midge.decoding import FORMATS, StreamingDecoder, stream_files, transcribe_files
from midge.decoding.files import Found
from midge.decoding.recordings import MAX_SECONDS
from midge.encoders import ConformerConfig
from midge.models import Recognizer, Transcript, load
from midge.progress import Progress

_LONG_SECONDS = 600.0
"""From here on memory that grows with a file is worth a warning."""

_DESCRIPTION = """\
Transcribes audio files of any format, sample rate and length. A model that can run live hears them
as streams, cut into segments where somebody pauses, as `midge stream` and `midge serve` do, and
gives the same words; other searches than the best path decode the same segments. Other models take
long files in pieces that are cut at quiet places, and so does every other search with
--no-endpoints. A file that cannot be read is named and the others go on; the exit code is then
1."""

_EXAMPLES = """\
examples:
  midge transcribe demo/speech/global speech.flac
  midge transcribe demo/speech/global *.wav --format srt --output captions
  midge transcribe demo/speech/global *.wav --format trn > hypotheses.trn
  midge transcribe demo/speech/global speech.flac --no-endpoints
  midge transcribe demo/speech/global speech.flac --decoder sum-path --num-best 5 --format json

Without --output the result goes to standard output; the text of several files with their names
before it. With --output each file has one of its own there."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "transcribe",
        help="audio files to words",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    add_names(parser, "audio files")
    parser.add_argument("--format", choices=list(FORMATS), default="text", help="(text)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=MAX_SECONDS,
        metavar="S",
        help=f"cut longer recordings, where they are not streamed ({MAX_SECONDS:g})",
    )
    add_endpoint_options(parser)
    add_decoder_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    with users_own():
        folder, audio = model_and_audio(arguments)
        names = list(dict.fromkeys(audio))
        if not names:
            raise ValueError("name at least one AUDIO file")
        targets = output_paths(names, arguments.format, arguments.output)
        transcribed = _transcriber(arguments, load(folder))
    num_failed = 0
    with Progress(_total_seconds(names), "transcribing", unit="s of audio") as progress:
        found = transcribed([Path(name) for name in names], _WholeSeconds(progress).advance)
        for name, (_, result) in zip(names, found, strict=True):
            if isinstance(result, Transcript):
                with users_own():
                    write(_text(result, name, arguments.format, names, targets), targets[name])
            else:
                num_failed += 1
                tell(f"{name}: {result}")
    return _exit_code(num_failed, len(names))


def _transcriber(
    arguments: argparse.Namespace, recognizer: Recognizer
) -> Callable[[Sequence[Path], Callable[[float], object]], Found]:
    """What the options ask for: from files, and what is told of progress, to transcripts.

    Raises:
        ValueError: if the options do not go together, or not with the model.
        OSError: if a file that they name cannot be read.
    """
    endpointing = endpointing_of(arguments)
    if not arguments.max_seconds >= 1:
        raise ValueError(f"--max-seconds should be at least 1, got {arguments.max_seconds}")
    if not recognizer.lattice.alignment.has_blank:
        refuse_rules(arguments, "models with blank: this one never waits")
        endpointing = None
    live = live_options_of(arguments) if recognizer.can_run_live else None
    if live is None and recognizer.can_run_live and endpointing is not None:
        search = decoder_of(arguments, recognizer)
        live = {"segment_decoder": search, "blank_penalty": arguments.blank_penalty}
    if live is not None:
        decoder = StreamingDecoder(recognizer)
        rate = recognizer.front_end.config.sample_rate
        decoder.stream(rate, endpointing=endpointing, **live)  # what is refused is refused here
        options = {"endpointing": endpointing, **live}

        def streamed(paths: Sequence[Path], progress: Callable[[float], object]) -> Found:
            if endpointing is None:
                _warn_of_memory(recognizer, paths)
            return stream_files(decoder, paths, progress=progress, **options)

        return streamed
    refuse_rules(arguments, "streams: it needs a model that can run live")
    whole = decoder_of(arguments, recognizer) or recognizer
    return lambda paths, progress: transcribe_files(
        whole, paths, max_seconds=arguments.max_seconds, progress=progress
    )


def _warn_of_memory(recognizer: Recognizer, paths: Sequence[Path]) -> None:
    """Says so, once, if a long file as one segment takes memory that grows with its length."""
    encoder = recognizer.config.encoder
    if not isinstance(encoder, ConformerConfig) or encoder.left_context is not None:
        return
    for path in paths:
        if _seconds(path) > _LONG_SECONDS:
            tell(
                f"warning: {path} is longer than {_LONG_SECONDS / 60:g} minutes, and as one "
                "segment takes memory that grows with its length: this encoder keeps all that it "
                "has heard. Endpoints, or a model with encoder.left_context, bound it"
            )
            return


class _WholeSeconds:
    """Progress in whole seconds, of audio that comes in fractions."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._seconds = 0.0

    def advance(self, seconds: float) -> None:
        before = int(self._seconds)
        self._seconds += seconds
        self._progress.advance(count=int(self._seconds) - before)


def _total_seconds(names: Sequence[str]) -> int:
    """Length of all files that can be read, by their headers."""
    return int(sum(map(_seconds, names)))


def _seconds(path: str | Path) -> float:
    """Length of a file by its header; 0 of one that cannot be read, which is told in its turn."""
    try:
        return audio_info(path).duration
    except (ValueError, OSError):
        return 0.0


def _text(
    transcript: Transcript,
    name: str,
    format_name: str,
    names: Sequence[str],
    targets: Mapping[str, Path | None],
) -> str:
    written = FORMATS[format_name].write(transcript, Path(name).stem)
    is_shared = format_name == "text" and targets[name] is None and len(names) > 1
    return f"{name}\t{written}" if is_shared else written


def _exit_code(num_failed: int, total: int) -> int:
    if num_failed == total:
        raise Mistake("no file could be read")
    return 1 if num_failed else 0
