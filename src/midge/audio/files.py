"""Audio files: read whole, in part, or in blocks, always as one channel of float32 samples.

Every format that libsndfile knows is read (WAV, FLAC, Ogg, MP3, ...). A file that cannot be read,
that ends before it should, or that has samples which are no finite numbers is an error with its
name; nothing is cut short in silence.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile  # type: ignore[import-untyped]

_logger = logging.getLogger(__name__)

_BLOCK_SECONDS = 10.0
_DURATION_TOLERANCE = 0.05
"""Seconds by which a file may be shorter than asked for: manifests round their durations."""

_UNKNOWN_LENGTH = 1 << 62
"""From here on libsndfile's number of samples means "not known", and it cannot find the end."""

_UNKNOWN_DATA_SIZE = (1 << 31) - (1 << 16)
"""From here on the data size in a WAV header means "not known": programs that write to a pipe put
2 ** 31 - 1, 2 ** 32 - 1 or a little less."""


class AudioError(ValueError):
    """A file that holds no readable audio, or less than was asked for; the message names it."""


@dataclass(frozen=True, eq=False)
class Audio:
    """One channel of sound."""

    samples: np.ndarray
    """[num_samples] float32, full scale is [-1, 1]."""

    sample_rate: int
    """Samples per second."""

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate


@dataclass(frozen=True)
class AudioInfo:
    """What a file's header says."""

    sample_rate: int
    """Samples per second."""

    num_channels: int
    """1 is mono."""

    num_samples: int
    """Per channel."""

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return self.num_samples / self.sample_rate


def audio_info(path: str | Path) -> AudioInfo:
    """Reads the header of a file.

    Raises:
        AudioError: if the file holds no audio that libsndfile knows.
        OSError: if the file cannot be opened.
    """
    with _opened(path) as file:
        return AudioInfo(file.samplerate, file.channels, file.frames)


def read_audio(
    path: str | Path,
    *,
    start: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
) -> Audio:
    """Reads a file, or a part of it, as one channel.

    Args:
        path: the file.
        start: where to begin, in seconds.
        duration: how much to read, in seconds; None reads to the end.
        channel: which channel, from 0; None mixes all of them, with a notice in the log.

    Returns:
        The samples at the file's own rate.

    Raises:
        AudioError: if the file holds no readable audio, or samples that are no finite numbers, or
            ends before `start + duration` or before its own header says.
        OSError: if the file cannot be opened.
    """
    blocks = list(audio_blocks(path, start=start, duration=duration, channel=channel))
    return Audio(np.concatenate([block.samples for block in blocks]), blocks[0].sample_rate)


def audio_blocks(
    path: str | Path,
    block_seconds: float = _BLOCK_SECONDS,
    *,
    start: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
) -> Iterator[Audio]:
    """Reads a file block by block, so that a long one is never held whole.

    Args:
        path: the file.
        block_seconds: length of a block; the last one may be shorter.
        start: as in `read_audio`.
        duration: as in `read_audio`.
        channel: as in `read_audio`.

    Yields:
        At least one block; joined they are what `read_audio` gives.

    Raises:
        AudioError: as `read_audio`.
        OSError: as `read_audio`.
    """
    _check_part(start, duration, block_seconds)
    with _opened(path) as file:
        _check_channel(path, file, channel)
        rate = file.samplerate
        num_wanted = _seek(path, file, start, duration)
        block_size = max(1, round(block_seconds * rate))
        num_read = 0
        while num_read < num_wanted:
            block = _read_block(path, file, min(block_size, num_wanted - num_read))
            if not len(block):
                break
            num_read += len(block)
            samples = _one_channel(block, channel)
            check_finite(path, samples)
            yield Audio(samples, rate)
        if not num_read:
            yield Audio(np.zeros(0, np.float32), rate)
        _check_length(path, num_read, num_wanted, rate, is_exact=duration is None)


def _opened(path: str | Path) -> soundfile.SoundFile:
    with open(path, "rb"):
        pass  # the system's own error says more than libsndfile's "System error"
    try:
        file = soundfile.SoundFile(path)
    except (soundfile.LibsndfileError, TypeError) as error:  # TypeError: headerless .raw
        raise AudioError(f"{path} holds no audio that can be read: {error}") from error
    problem = _header_problem(file)
    if problem:
        file.close()
        raise AudioError(f"{path} {problem}")
    return file


def _header_problem(file: soundfile.SoundFile) -> str:
    """What is wrong with the length that the header gives; empty if nothing is."""
    if file.frames >= _UNKNOWN_LENGTH:  # a FLAC that was written to a pipe
        return "does not say how long it is; convert it, for example by `ffmpeg -i`"
    # libsndfile shortens a WAV that is cut off and mentions it in its log alone.
    cut = re.search(r"^data : (\d+) \(should be (\d+)\)$", file.extra_info, re.MULTILINE)
    if cut and int(cut[2]) < int(cut[1]) < _UNKNOWN_DATA_SIZE:
        return f"is cut off: its header says {cut[1]} bytes, {cut[2]} are there"
    return ""


def _seek(path: str | Path, file: soundfile.SoundFile, start: float, duration: float | None) -> int:
    """Goes to the start and says how many samples to read from there."""
    first = round(start * file.samplerate)
    if first > file.frames:
        length = file.frames / file.samplerate
        raise AudioError(f"{path} is {length:.3f} s long, it has nothing at {start:.3f} s")
    if first:
        try:
            file.seek(first)
        except soundfile.LibsndfileError as error:
            raise AudioError(f"{path} cannot be read from {start:.3f} s on: {error}") from error
    return file.frames - first if duration is None else round(duration * file.samplerate)


def _read_block(path: str | Path, file: soundfile.SoundFile, size: int) -> np.ndarray:
    try:
        return file.read(size, dtype="float32", always_2d=True)  # [size or less, num_channels]
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{path} is damaged: {error}") from error


def _one_channel(block: np.ndarray, channel: int | None) -> np.ndarray:
    if channel is not None:
        return np.ascontiguousarray(block[:, channel])
    with np.errstate(over="ignore", invalid="ignore"):  # what comes of infinities is refused
        return block[:, 0] if block.shape[1] == 1 else block.mean(1, dtype=np.float32)


def check_finite(name: str | Path, samples: np.ndarray) -> None:
    """Refuses samples that are NaN or infinite, as files of floats may hold.

    Args:
        name: of the file, for the message.
        samples: of any shape.

    Raises:
        AudioError: if there are some.
    """
    if not np.isfinite(samples).all():
        raise AudioError(f"{name} has samples that are not finite numbers")


def _check_part(start: float, duration: float | None, block_seconds: float) -> None:
    if not start >= 0:
        raise ValueError(f"start should be at least 0 seconds, got {start}")
    if duration is not None and not duration >= 0:
        raise ValueError(f"duration should be at least 0 seconds, got {duration}")
    if not block_seconds > 0:
        raise ValueError(f"block_seconds should be positive, got {block_seconds}")


def _check_channel(path: str | Path, file: soundfile.SoundFile, channel: int | None) -> None:
    if channel is None:
        if file.channels > 1:
            _tell_mixed(str(path), file.channels)
    elif not 0 <= channel < file.channels:
        raise AudioError(f"{path} has {file.channels} channels, counted from 0: no {channel}")


def _check_length(
    path: str | Path, num_read: int, num_wanted: int, rate: int, is_exact: bool
) -> None:
    tolerance = 0 if is_exact else round(_DURATION_TOLERANCE * rate)
    if num_read < num_wanted - tolerance:
        raise AudioError(
            f"{path} is cut off: {num_wanted / rate:.3f} s were to be read, "
            f"only {num_read / rate:.3f} s are there"
        )


@functools.lru_cache(maxsize=4096)  # once for each file, and not once for each epoch
def _tell_mixed(path: str, num_channels: int) -> None:
    _logger.warning("%s has %d channels; their mean is used", path, num_channels)
