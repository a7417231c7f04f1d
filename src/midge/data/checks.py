"""Checks of audio files: each is decoded once, block by block, in worker processes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from midge.audio import Audio, audio_blocks, audio_info
from midge.data.importers import Rejection
from midge.data.utterances import Recording, TarMember, Utterance
from midge.data.workers import Workers

_FULL_SCALE = 0.999
"""Samples from here on count as clipped, if three follow each other."""

_TOLERANCE = 0.1
"""Seconds by which a stated time may miss the true one; manifests round. And 1 % of it."""

Place = tuple[str, TarMember | None, str]
"""What tells one recording from another."""


@dataclass(frozen=True)
class Checked:
    """What decoding a recording has shown."""

    recording: Recording | None
    """Its true length; None if it cannot be decoded to the end."""
    problem: str = ""
    """Why it cannot be used; "" if it can."""
    is_clipped: bool = False
    """Whether it is driven to full scale."""


def place_of(utterance: Utterance) -> Place:
    """Which recording an utterance is from."""
    return utterance.audio, utterance.member, utterance.cut


def check_recordings(
    utterances: Sequence[Utterance], num_workers: int, advance: Callable[[], None]
) -> dict[Place, Checked]:
    """Decodes every recording once.

    Args:
        utterances: whose recordings; several may share one.
        num_workers: processes that decode.
        advance: called after each recording.
    """
    first: dict[Place, Utterance] = {}
    for utterance in utterances:
        first.setdefault(place_of(utterance), utterance)
    workers: Workers[Utterance, Checked] = Workers(_check_recording, num_workers)
    found = {}
    try:
        for place, checked in zip(first, workers.run(first.values()), strict=True):
            found[place] = checked
            advance()
    finally:
        workers.close()
    return found


def check_utterance(utterance: Utterance, checked: Checked) -> Utterance | Rejection:
    """The utterance with its true duration, or why it cannot be used."""
    problem = checked.problem
    if not problem and not utterance.text.strip():
        problem = "it has no text"
    if problem or checked.recording is None:
        return Rejection(utterance.id, utterance.audio, problem)
    recording = checked.recording
    if utterance.channel is not None and utterance.channel >= recording.num_channels:
        problem = f"it is in channel {utterance.channel} of {recording.num_channels}, from 0"
    problem = problem or _time_problem(utterance, recording.duration)
    if problem:
        return Rejection(utterance.id, utterance.audio, problem)
    duration = recording.duration - utterance.start
    if not utterance.is_whole and utterance.duration:
        duration = min(utterance.duration, duration)
    return dataclasses.replace(utterance, duration=duration, recording=recording)


def _time_problem(utterance: Utterance, duration: float) -> str:
    """What is wrong with the times of an utterance in a recording of a true duration."""
    tolerance = _TOLERANCE + 0.01 * duration
    stated = utterance.duration
    end = utterance.start + stated
    if utterance.start >= duration:
        return f"it starts at {utterance.start:.2f} s, its recording ends at {duration:.2f} s"
    if utterance.is_whole and stated and abs(stated - duration) > tolerance:
        return f"it should take {stated:.2f} s, its recording takes {duration:.2f} s"
    if not utterance.is_whole and end > duration + tolerance:
        return f"it should end at {end:.2f} s, its recording ends at {duration:.2f} s"
    last = max((word.end for word in utterance.words), default=0.0)
    length = stated if stated and not utterance.is_whole else duration - utterance.start
    if last > length + tolerance:
        return f"its last word should end at {last:.2f} s, it takes {length:.2f} s"
    return ""


def _check_recording(utterance: Utterance) -> Checked:
    """Decodes the recording of an utterance; in a worker."""
    # The report counts files of several channels; a notice for each would drown all else.
    with _without_notices():
        return _decoded(utterance)


@contextmanager
def _without_notices() -> Iterator[None]:
    logger = logging.getLogger("midge.audio")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _decoded(utterance: Utterance) -> Checked:
    num_samples, sample_rate, peak = 0, 0, 0.0
    is_clipped = False
    try:
        if utterance.member is None and not utterance.cut:
            num_channels = audio_info(utterance.audio).num_channels
        else:
            num_channels = utterance.recording.num_channels if utterance.recording else 1
        for block in _blocks(utterance):
            sample_rate = block.sample_rate
            num_samples += len(block.samples)
            level = np.abs(block.samples)
            peak = max(peak, float(level.max(initial=0.0)))
            is_clipped = is_clipped or _has_run(level >= _FULL_SCALE)
    except (ValueError, OSError) as error:
        return Checked(None, str(error))
    if not num_samples:
        return Checked(None, "its recording is empty")
    if not peak:
        return Checked(None, "its recording is silent, every sample is 0")
    return Checked(Recording(sample_rate, num_samples, num_channels), "", is_clipped)


def _blocks(utterance: Utterance) -> Iterator[Audio]:
    """The whole recording; one in an archive is no longer than its utterance."""
    if utterance.member is None and not utterance.cut:
        return audio_blocks(utterance.audio)
    whole = dataclasses.replace(utterance, start=0.0, is_whole=True)
    return iter((whole.load(),))


def _has_run(flags: np.ndarray) -> bool:
    return bool((flags[:-2] & flags[1:-1] & flags[2:]).any())
