"""Utterances: a stretch of a recording, and what was said in it.

An utterance knows where its audio is and loads it when asked; a list of a million of them fits in
memory. Its audio is in a file, in a member of a tar archive (Lhotse's Shar), or whatever a Lhotse
cut describes.
"""

from __future__ import annotations

import copy
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import soundfile  # type: ignore[import-untyped]

from midge.audio.files import (
    Audio,
    AudioError,
    audio_blocks,
    audio_info,
    check_finite,
    read_audio,
)


class WordTime(NamedTuple):
    """When a word, or a phoneme, is spoken; in seconds from the start of its utterance."""

    word: str
    """The word."""
    start: float
    """Where it starts."""
    end: float
    """Where it ends."""


class Recording(NamedTuple):
    """What is known of a whole audio file."""

    sample_rate: int
    """Samples per second."""
    num_samples: int
    """Length, in samples of one channel."""
    num_channels: int = 1
    """1 is mono, 2 stereo."""

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return self.num_samples / self.sample_rate


class TarMember(NamedTuple):
    """Where in a tar archive an audio file lies."""

    offset: int
    """Position of its first byte."""
    size: int
    """Number of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """A stretch of a recording with its transcript.

    Example:
        >>> utterance = Utterance(id="a1", audio="a1.flac", duration=1.5, text="GO")
        >>> utterance.is_whole, utterance.speaker is None
        (True, True)
    """

    id: str
    """Its name, unique in a manifest."""
    audio: str
    """Path of the audio file, or of the archive that holds it."""
    start: float = 0.0
    """Where it starts in the recording, in seconds."""
    duration: float
    """Its length in seconds."""
    text: str = ""
    """What was said, as written in the corpus."""
    speaker: str | None = None
    """Who said it."""
    channel: int | None = None
    """Which channel of the file; None mixes all of them."""
    group: Mapping[str, str] = field(default_factory=dict)
    """Further fields of the manifest, by which results may be told apart."""
    words: tuple[WordTime, ...] = ()
    """The true time of every word, where it is known."""
    phones: tuple[WordTime, ...] = ()
    """The true time of every phoneme, where it is known."""
    is_whole: bool = True
    """Whether it is all of its recording, also if `duration` was rounded."""
    recording: Recording | None = None
    """The whole file, if somebody has looked."""
    member: TarMember | None = None
    """Where `audio` holds the audio, if that is a tar archive."""
    cut: str = ""
    """A Lhotse cut as JSON which Lhotse itself has to load; "" for plain audio."""

    def __post_init__(self) -> None:
        if not 0 <= self.duration < math.inf or not 0 <= self.start < math.inf:
            raise ValueError(
                f"{self.id}: start and duration should be finite and at least 0, "
                f"got {self.start} and {self.duration}"
            )
        if self.is_whole and self.start:
            raise ValueError(f"{self.id}: is_whole should be False as start is {self.start}")
        if not isinstance(self.audio, str):
            object.__setattr__(self, "audio", os.fspath(self.audio))

    def load(self) -> Audio:
        """Its samples.

        Raises:
            AudioError: if they cannot be read.
        """
        if self.cut:
            return _load_cut(self)
        part = {} if self.is_whole else {"start": self.start, "duration": self.duration}
        if self.member is not None:
            return _load_member(self, **part)
        return read_audio(self.audio, channel=self.channel, **part)


def look_at(path: str) -> Recording:
    """What the header of an audio file says.

    Raises:
        AudioError: if it is no audio.
        OSError: if it cannot be read.
    """
    info = audio_info(path)
    num_samples = info.num_samples
    if num_samples is None:  # a header written before the end was known: count
        num_samples = sum(len(block.samples) for block in audio_blocks(path, channel=0))
    return Recording(info.sample_rate, num_samples, info.num_channels)


def _load_member(utterance: Utterance, start: float = 0.0, duration: float | None = None) -> Audio:
    """Reads a file inside a tar archive; it holds an utterance or little more."""
    assert utterance.member is not None
    with open(utterance.audio, "rb") as archive:
        archive.seek(utterance.member.offset)
        file = io.BytesIO(archive.read(utterance.member.size))
    try:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{utterance.id} in {utterance.audio} is no audio: {error}") from error
    first = round(start * rate)
    num_samples = len(samples) - first if duration is None else round(duration * rate)
    part = samples[first : first + num_samples]
    check_finite(f"{utterance.id} in {utterance.audio}", part)
    channel = utterance.channel
    return Audio(part.mean(1) if channel is None else part[:, channel].copy(), rate)


def lhotse_cut(cut: Mapping[str, Any]) -> Any:
    """The cut as an object of Lhotse's, whose import takes seconds.

    Raises:
        ValueError: if Lhotse refuses it.
    """
    from lhotse import CutSet  # type: ignore[import-untyped]

    try:
        return next(iter(CutSet.from_dicts([copy.deepcopy(dict(cut))])))  # it takes things out
    except Exception as error:  # it checks by assertions, and by whatever happens
        raise ValueError(f"Lhotse cannot read this cut: {error!r}") from error


def _load_cut(utterance: Utterance) -> Audio:
    """Lets Lhotse load what only it can: mixtures, transformed audio, remote files."""
    cut = lhotse_cut(json.loads(utterance.cut))
    try:
        samples = np.asarray(cut.load_audio(), dtype=np.float32)
    except Exception as error:  # whatever a decoder, a network or a command may raise
        raise AudioError(f"{utterance.id}: Lhotse cannot load this cut: {error}") from error
    check_finite(utterance.id, samples)
    return Audio(samples.reshape(-1, samples.shape[-1]).mean(0), cut.sampling_rate)
