"""`midge stream`: words as they are spoken, from the microphone or from a file at its own speed."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from midge.audio import audio_blocks, audio_info
from midge.cli.decoder_options import phrases_of
from midge.cli.endpoint_options import add_endpoint_options, endpointing_of
from midge.cli.mistakes import users_own
from midge.cli.model_argument import add_names, model_and_audio
from midge.cli.outputs import tell
from midge.decoding.events import Partial, Segment, event_json
from midge.decoding.latency import CHUNK_SECONDS
from midge.decoding.live import follow
from midge.decoding.offline import PHRASE_BONUS
from midge.decoding.streams import BLOCK_SIZE, Stream, StreamingDecoder
from midge.models import load
from midge.models.best_paths import MARGIN
from midge.training.interruption import Interruption

MICROPHONE = "microphone"
_DIM, _PLAIN, _NEW_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"

_DESCRIPTION = """\
Shows words as they are spoken, in a file, which is heard at its own speed, or into the microphone.
On a terminal the words that may still change are dim. A pause ends a segment, which becomes a line
of its own; elsewhere than on a terminal only those lines are written."""

_EXAMPLES = """\
examples:
  midge stream demo/speech/global speech.flac
  midge stream demo/speech/global speech.flac --fast --json
  midge stream demo/speech/global speech.flac --fast --no-endpoints --chunk-seconds 0.05
  midge stream demo/speech/global speech.flac --fast --json --confidence --num-best 3
  midge stream demo/speech/global speech.flac --fast --phrases names.txt

Without AUDIO the microphone is heard until Ctrl-C; that needs the package sounddevice, by
`pip install sounddevice`. With --json each line is an event: "partial" (words committed and
tentative), "final" (a segment that is over), "end_of_speech" (nothing said for long), and "end".
With --phrases all words may change until a segment is over, which is then decoded again by beam."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "stream",
        help="words as they are spoken",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    add_names(parser, "a file (the microphone)")
    parser.add_argument("--fast", action="store_true", help="a file as fast as the machine can")
    parser.add_argument("--json", action="store_true", help="print events, one a line")
    parser.add_argument(
        "--confidence", action="store_true", help="posterior probability of each word, in events"
    )
    parser.add_argument(
        "--phrases", type=Path, metavar="FILE", help="phrases to expect, one a line"
    )
    add_endpoint_options(parser)
    numbers: dict[str, tuple[type, float, str]] = {
        "--num-best": (int, 0, "alternatives of each segment, in events"),
        "--chunk-seconds": (float, CHUNK_SECONDS, "seconds that are heard at a time"),
        "--block-size": (int, BLOCK_SIZE, "frames that are encoded together"),
        "--margin": (float, MARGIN, "nats below the best at which a state is dropped"),
        "--blank-penalty": (float, 0.0, "nats taken off blank; more words if above 0"),
        "--phrase-bonus": (float, PHRASE_BONUS, "for each label of a phrase, in nats"),
    }
    for name, (kind, default, meaning) in numbers.items():
        shown = f"{meaning} ({default:g})"
        parser.add_argument(name, type=kind, default=default, metavar="N", help=shown)


def _run(arguments: argparse.Namespace) -> int:
    screen = _Screen(sys.stdout, is_json=arguments.json)
    with users_own():
        folder, audio = model_and_audio(arguments)
        if len(audio) > 1:
            raise ValueError(f"one recording can be streamed at a time, got {len(audio)}")
        endpointing = endpointing_of(arguments)
        if not arguments.chunk_seconds > 0:
            raise ValueError(f"--chunk-seconds should be above 0, got {arguments.chunk_seconds}")
        decoder = StreamingDecoder(
            load(folder), margin=arguments.margin, block_size=arguments.block_size
        )
        rate, pieces = _source(audio[0] if audio else MICROPHONE, arguments, decoder)
        stream = decoder.stream(
            rate,
            endpointing=endpointing,
            blank_penalty=arguments.blank_penalty,
            has_confidence=arguments.confidence,
            num_best=arguments.num_best,
            phrases=phrases_of(arguments),
            phrase_bonus=arguments.phrase_bonus,
        )
        for event in follow(stream, pieces):
            screen.show(event)
    screen.end(stream)
    return 0


def _source(
    audio: str, arguments: argparse.Namespace, decoder: StreamingDecoder
) -> tuple[int, Iterator[np.ndarray]]:
    """The sample rate, and the sound in pieces."""
    if audio != MICROPHONE or Path(MICROPHONE).exists():
        rate = audio_info(audio).sample_rate
        pieces = _file(audio, arguments.chunk_seconds)
        return rate, pieces if arguments.fast else _paced(pieces, rate)
    if arguments.fast:
        raise ValueError("--fast is for a file: the microphone has its own speed")
    rate = decoder.recognizer.front_end.config.sample_rate
    return rate, _microphone(rate, max(1, round(arguments.chunk_seconds * rate)))


def _file(path: str, chunk_seconds: float) -> Iterator[np.ndarray]:
    for block in audio_blocks(path, chunk_seconds):
        yield block.samples


def _paced(pieces: Iterator[np.ndarray], rate: int) -> Iterator[np.ndarray]:
    """Pieces of a file, each when it would have been heard."""
    started = time.monotonic()
    num_samples = 0
    for piece in pieces:
        num_samples += len(piece)
        time.sleep(max(0.0, started + num_samples / rate - time.monotonic()))
        yield piece


def _microphone(rate: int, size: int) -> Iterator[np.ndarray]:
    """What the microphone hears; Ctrl-C ends it, and the last words are still decoded."""
    try:
        import sounddevice  # type: ignore[import-not-found]
    except ImportError as error:
        raise ImportError(
            "the microphone needs the package sounddevice: pip install sounddevice; "
            "or give an audio file"
        ) from error
    try:
        with (
            Interruption() as interruption,
            sounddevice.InputStream(
                samplerate=rate, channels=1, dtype="float32", blocksize=size
            ) as microphone,
        ):
            tell("listening; Ctrl-C ends")
            while not interruption.is_requested:
                samples, has_lost = microphone.read(size)
                if has_lost:
                    tell("sound was lost: this machine is too slow, or was busy")
                yield samples[:, 0].copy()
    except sounddevice.PortAudioError as error:
        raise ValueError(f"the microphone cannot be heard: {error}") from error


class _Screen:
    """Shows events: on a terminal one line that is redrawn, elsewhere what is final."""

    def __init__(self, output: TextIO, *, is_json: bool) -> None:
        self._output = output
        self._is_json = is_json
        self._is_terminal = output.isatty()

    def show(self, event: Partial | Segment) -> None:
        if self._is_json:
            self._write(json.dumps(event_json(event), ensure_ascii=False) + "\n")
        elif isinstance(event, Segment):
            if event.transcript.text:
                start = _NEW_LINE if self._is_terminal else ""
                self._write(f"{start}{event.transcript.text}\n")
        elif self._is_terminal:
            self._write(_NEW_LINE + _dimmed(event, shutil.get_terminal_size().columns - 1))

    def end(self, stream: Stream) -> None:
        """After the last event."""
        if self._is_json:
            found = stream.transcript()
            end = {"event": "end", "seconds": found.seconds, "text": found.text}
            self._write(json.dumps(end, ensure_ascii=False) + "\n")

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


def _dimmed(partial: Partial, width: int) -> str:
    """The words of a partial result, the tail dim; of a long one what fits of its end."""
    committed = " ".join(word.text for word in partial.committed)
    tentative = " ".join(word.text for word in partial.tentative)
    gap = " " if committed and tentative else ""
    tentative = tentative[-width:]
    committed = (committed + gap)[max(0, len(committed + gap) + len(tentative) - width) :]
    return f"{committed}{_DIM}{tentative}{_PLAIN}" if tentative else committed
