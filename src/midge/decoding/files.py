"""Audio files of any length to transcripts, many at once.

At no time is more held than one batch of pieces, or one block of each stream, so that a recording
of hours takes no more memory than one of minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from midge.audio import Audio, audio_blocks
from midge.decoding.decoded import joined, shifted
from midge.decoding.offline import OfflineDecoder
from midge.decoding.recordings import (
    BATCH_SECONDS,
    MAX_SECONDS,
    Piece,
    check_max_seconds,
    cut_at_pauses,
    transcribe_batch,
)
from midge.decoding.streams import Stream, StreamingDecoder
from midge.models import Recognizer, Transcript

Found = Iterator[tuple[Path, Transcript | Exception]]
"""Files with their transcripts, or with why there is none."""
NUM_STREAMS = 16
"""How many files are heard at once."""
_BLOCK_SECONDS = 1.0


def transcribe_files(
    decoder: Recognizer | OfflineDecoder,
    paths: Sequence[Path],
    *,
    max_seconds: float = MAX_SECONDS,
    batch_seconds: float = BATCH_SECONDS,
    progress: Callable[[float], object] | None = None,
) -> Found:
    """Transcribes audio files as wholes, or in long pieces; any decoder can.

    A file that cannot be read does not stop the others.

    Args:
        decoder: what decodes; a recognizer does by the best path.
        paths: the files.
        max_seconds: longer recordings are cut, see `cut_at_pauses`.
        batch_seconds: how much audio goes together.
        progress: called with the seconds of audio that were done, again and again.

    Yields:
        Each path in order with its transcript, or with the error (ValueError, OSError) of a file
        that cannot be read; as soon as it is known.
    """
    check_max_seconds(max_seconds)  # here it is no fault of a file
    open_files: dict[int, list[Transcript]] = {}
    failed: dict[int, Exception] = {}
    told = 0
    for batch in _batches(paths, max_seconds, batch_seconds, failed):
        decoded = _decoded(decoder, [piece for _, piece in batch])
        for (number, _), transcript in zip(batch, decoded, strict=True):
            open_files.setdefault(number, []).append(transcript)
        if progress is not None:
            progress(sum(piece.audio.duration for _, piece in batch))
        # The last file of a batch may go on in the next.
        while told < batch[-1][0]:
            yield paths[told], failed.get(told) or joined(open_files[told])
            open_files.pop(told, None)
            told += 1
    for number in range(told, len(paths)):
        yield paths[number], failed.get(number) or joined(open_files[number])


def _batches(
    paths: Sequence[Path],
    max_seconds: float,
    batch_seconds: float,
    failed: dict[int, Exception],
) -> Iterator[list[tuple[int, Piece]]]:
    """Pieces with the number of their file, as many as a batch holds; errors go to `failed`."""
    batch: list[tuple[int, Piece]] = []
    longest = 0.0
    for number, path in enumerate(paths):
        try:
            for piece in cut_at_pauses(audio_blocks(path), max_seconds):
                longest = max(longest, piece.audio.duration)
                if batch and longest * (len(batch) + 1) > batch_seconds:
                    yield batch
                    batch, longest = [], piece.audio.duration
                batch.append((number, piece))
        except (ValueError, OSError) as error:
            failed[number] = error
    if batch:
        yield batch


def _decoded(decoder: Recognizer | OfflineDecoder, pieces: Sequence[Piece]) -> Iterable[Transcript]:
    """Pieces in one batch, with times from the beginning of their recordings."""
    audio = [piece.audio for piece in pieces]
    found: Sequence[Transcript]
    if isinstance(decoder, OfflineDecoder):
        found, recognizer = decoder.decode(audio), decoder.recognizer
    else:
        found, recognizer = transcribe_batch(decoder, audio), decoder
    for transcript, piece in zip(found, pieces, strict=True):
        num_frames = round(piece.start / recognizer.front_end.frame_seconds)
        yield shifted(transcript, piece.start, num_frames)


def stream_files(
    decoder: StreamingDecoder,
    paths: Sequence[Path],
    *,
    num_streams: int = NUM_STREAMS,
    progress: Callable[[float], object] | None = None,
    **options: Any,
) -> Found:
    """Transcribes audio files by streams: each has the words that a live stream of it ends with.

    A file that cannot be read does not stop the others.

    Args:
        decoder: what decodes.
        paths: the files.
        num_streams: how many are heard at once.
        progress: called with the seconds of audio that were done, again and again.
        options: of `StreamingDecoder.stream`, such as where to cut into segments.

    Yields:
        As `transcribe_files`.
    """
    waiting = list(enumerate(paths))[::-1]
    heard: list[tuple[int, _HeardFile]] = []
    found: dict[int, Transcript | Exception] = {}
    told = 0
    while waiting or heard:
        while waiting and len(heard) < num_streams:
            number, path = waiting.pop()
            heard.append((number, _HeardFile(decoder, path, options)))
        seconds = sum(file.hear() for _, file in heard)
        while decoder.step([file.stream for _, file in heard if file.stream is not None]):
            pass
        if progress is not None:
            progress(seconds)
        found.update((number, file.result()) for number, file in heard if file.is_over)
        heard = [(number, file) for number, file in heard if not file.is_over]
        while told in found:
            yield paths[told], found.pop(told)
            told += 1


class _HeardFile:
    """A file that is read block by block into a stream of its own."""

    def __init__(self, decoder: StreamingDecoder, path: Path, options: dict[str, Any]) -> None:
        self.stream: Stream | None = None
        """None until the sample rate is known."""
        self.is_over = False
        self._decoder = decoder
        self._options = options
        self._blocks = audio_blocks(path, _BLOCK_SECONDS)
        self._failure: Exception | None = None

    def hear(self) -> float:
        """Feeds the next block; the length of it in seconds."""
        try:
            block = next(self._blocks, None)
        except (ValueError, OSError) as error:
            self._failure, self.stream, self.is_over = error, None, True
            return 0.0
        if block is None:
            assert self.stream is not None, "there is at least one block"
            self.stream.close()
            self.is_over = True
            return 0.0
        self._feed(block)
        return block.duration

    def _feed(self, block: Audio) -> None:
        if self.stream is None:
            self.stream = self._decoder.stream(block.sample_rate, **self._options)
        self.stream.feed(block.samples)

    def result(self) -> Transcript | Exception:
        """Of a file that is over, decoded to its end."""
        if self._failure is not None:
            return self._failure
        assert self.stream is not None
        return self.stream.transcript()
