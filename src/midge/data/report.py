"""The report of a preparation: what a corpus holds, and what was rejected and why."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from midge.audio import AugmentationConfig, FrontEnd, FrontEndConfig, num_resampled
from midge.data.importers import Rejection
from midge.data.utterances import Utterance
from midge.data.writing import replacing
from midge.tokens import TokensConfig

_STRIDES = (2, 3, 4, 6)
"""Mel frames of 10 ms between two encoder frames."""
_PERCENTILES = (0, 5, 50, 95, 100)
_NUM_RARE = 3
"""A character seen at most so often is shown with an utterance that has it."""
_NUM_SHOWN = 10
"""Rejections in the summary; the report has all."""
_LEGEND = """\
Labels are graphemes; frames are those at speed {speed}, tail padding included. Impossible are
utterances with more labels than frames: a frame-dependent lattice cannot align them, nor can a
label- and frame-dependent one with k = 1, which needs as many frames and no more. Deduplicating
(CTC) needs one more for each label that repeats. Training drops them, evaluation does not.
"""


@dataclass(frozen=True, kw_only=True)
class FrameRate:
    """Frames and labels of a split at one frame rate, after the fastest speed perturbation."""

    milliseconds: int
    """Time between two encoder frames."""
    frames_per_label: float
    """Median over utterances; labels are graphemes."""
    num_impossible: int
    """Utterances with more labels than frames, which no frame-dependent lattice can align."""
    num_impossible_deduplicated: int
    """The same with deduplication (CTC), where a label that repeats needs a blank before it."""
    num_impossible_unpadded: int
    """Utterances with more labels than the frames of their audio alone, without tail padding."""


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """What a split holds."""

    num_utterances: int
    """Utterances."""
    num_speakers: int
    """Different speakers among those that are known."""
    hours: float
    """Duration of all of them."""
    sample_rates: Mapping[int, int]
    """Utterances by sample rate."""
    duration_percentiles: Mapping[int, float]
    """In seconds, by percentile."""
    num_words: int
    """Words in the texts."""
    characters: Mapping[str, int]
    """How often each character is in the texts."""
    rare_characters: Mapping[str, str]
    """An utterance for each character that is hardly ever there."""
    frame_rates: Sequence[FrameRate]
    """Whether there are frames enough for the labels."""
    fastest_speed: float
    """The speed perturbation that was reckoned with."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a preparation has found."""

    splits: Mapping[str, SplitReport]
    """By name."""
    manifests: Sequence[str]
    """Names of what was written: the splits, and folds if asked for."""
    rejections: Sequence[Rejection]
    """Everything that is not in a split, and why."""
    clipped: Sequence[str]
    """Utterances, used nevertheless, whose recordings are driven to full scale."""
    mixed: Sequence[str]
    """Utterances, used nevertheless, whose channels are mixed to one."""
    notes: Sequence[str] = ()
    """What else the user should know."""

    @property
    def num_utterances(self) -> int:
        """Utterances that can be used."""
        return sum(split.num_utterances for split in self.splits.values())

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {**asdict(self), "rejections": [each._asdict() for each in self.rejections]}

    def summary(self) -> str:
        """The figures of every split, and the first rejections."""
        return "\n".join([*self._figures(), *self._rejected(_NUM_SHOWN)])

    def text(self) -> str:
        """The figures of every split, and every rejection."""
        return "\n".join([*self._figures(), *self._rejected(len(self.rejections))]) + "\n"

    def _figures(self) -> list[str]:
        lines = []
        for name, split in self.splits.items():
            lines += [name, *(f"  {line}" for line in split_lines(split)), ""]
        if self.splits:
            speed = max(split.fastest_speed for split in self.splits.values())
            lines.append(_LEGEND.format(speed=speed))
        for ids, meaning in (
            (self.clipped, "clipped (at full scale); used nevertheless"),
            (self.mixed, "of several channels, which are mixed to one"),
        ):
            if ids:
                more = ", ..." if len(ids) > 5 else ""
                lines.append(f"{len(ids)} {meaning}: {', '.join(ids[:5])}{more}")
        return [*lines, *self.notes]

    def _rejected(self, num_shown: int) -> list[str]:
        lines = [f"{len(self.rejections)} rejected" + (":" if self.rejections else "")]
        lines += [f"  {each.id}: {each.reason}" for each in self.rejections[:num_shown]]
        if len(self.rejections) > num_shown:
            lines.append(f"  ... and {len(self.rejections) - num_shown} more")
        return lines


def describe(utterances: Sequence[Utterance], fastest_speed: float | None = None) -> SplitReport:
    """The figures of a split.

    Args:
        utterances: with their durations and recordings known.
        fastest_speed: the largest factor of speed perturbation; the default is that of training.
    """
    speed = AugmentationConfig().fastest_speed if fastest_speed is None else fastest_speed
    durations = np.array([utterance.duration for utterance in utterances])
    rates = collections.Counter(_sample_rate(utterance) for utterance in utterances)
    texts = [TokensConfig().normalize(utterance.text) for utterance in utterances]
    counts = collections.Counter[str]()
    for text in texts:
        counts.update(text)
    rare = {character for character, count in counts.items() if count <= _NUM_RARE}
    return SplitReport(
        num_utterances=len(utterances),
        num_speakers=len({each.speaker for each in utterances if each.speaker is not None}),
        hours=float(durations.sum()) / 3600,
        sample_rates=dict(sorted(rates.items())),
        duration_percentiles={
            each: round(float(np.percentile(durations, each)), 3) for each in _PERCENTILES
        },
        num_words=sum(len(text.split()) for text in texts),
        characters=dict(sorted(counts.items())),
        rare_characters={
            character: next(u.id for u, t in zip(utterances, texts, strict=True) if character in t)
            for character in sorted(rare)
        },
        frame_rates=[_frame_rate(utterances, texts, stride, speed) for stride in _STRIDES],
        fastest_speed=speed,
    )


def split_lines(split: SplitReport) -> list[str]:
    """The figures of a split as lines of text."""
    percentiles = ", ".join(f"{p} %: {x:.2f}" for p, x in split.duration_percentiles.items())
    rates = ", ".join(f"{rate} Hz: {count}" for rate, count in split.sample_rates.items())
    characters = "".join(split.characters).strip()
    lines = [
        f"utterances {split.num_utterances}, speakers {split.num_speakers or 'unknown'}, "
        f"hours {split.hours:.3f}, words {split.num_words}",
        f"sample rates {rates}",
        f"seconds at percentile {percentiles}",
        f"{len(split.characters)} characters {characters}"
        + (" and the space" if " " in split.characters else ""),
    ]
    for character, where in split.rare_characters.items():
        count = split.characters[character]
        lines.append(f"only {count} of {character!r} (U+{ord(character):04X}), as in {where}")
    lines.append("frame  frames per label  impossible  deduplicating  without tail padding")
    lines += [
        f"{each.milliseconds} ms {each.frames_per_label:17.1f} {each.num_impossible:11} "
        f"{each.num_impossible_deduplicated:14} {each.num_impossible_unpadded:21}"
        for each in split.frame_rates
    ]
    return lines


def write_report(report: Report, folder: Path) -> list[Path]:
    """Writes report.txt and report.json.

    Raises:
        OSError: if that fails.
    """
    contents = {
        "report.txt": report.text(),
        "report.json": json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n",
    }
    for name, content in contents.items():
        with replacing(folder / name) as file:
            file.write(content.encode())
    return [folder / name for name in contents]


def _sample_rate(utterance: Utterance) -> int:
    assert utterance.recording is not None
    return utterance.recording.sample_rate


def _frame_rate(
    utterances: Sequence[Utterance], texts: Sequence[str], stride: int, speed: float
) -> FrameRate:
    sizes = {"stride": stride, "stacking": max(stride, FrontEndConfig().stacking)}
    padded = FrontEnd(FrontEndConfig(**sizes))
    unpadded = FrontEnd(FrontEndConfig(**sizes, tail_padding=0.0))
    ratios = []
    impossible = np.zeros(3, dtype=np.int64)
    for utterance, text in zip(utterances, texts, strict=True):
        rate = _sample_rate(utterance)
        num_samples = round(utterance.duration * rate)
        num_samples = num_resampled(num_samples, round(rate * speed), rate)
        num_frames = padded.num_frames(num_samples, rate)
        num_repeats = sum(a == b for a, b in zip(text, text[1:], strict=False))
        ratios.append(num_frames / max(len(text), 1))
        impossible += (
            len(text) > num_frames,
            len(text) + num_repeats > num_frames,
            len(text) > unpadded.num_frames(num_samples, rate),
        )
    return FrameRate(
        milliseconds=round(1000 * padded.frame_seconds),
        frames_per_label=round(float(np.median(ratios)), 2),
        num_impossible=int(impossible[0]),
        num_impossible_deduplicated=int(impossible[1]),
        num_impossible_unpadded=int(impossible[2]),
    )
