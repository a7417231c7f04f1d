"""The training data of a run: what is read, what is left out and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from midge.alignments import AlignmentLattice, FrameDependent, LabelFrameDependent
from midge.audio import FrontEnd
from midge.data.manifests import read_manifest
from midge.data.utterances import Utterance
from midge.models.recognizer import Recognizer
from midge.training.config import DataConfig


@dataclass(frozen=True)
class Corpus:
    """Utterances to train on."""

    utterances: Sequence[Utterance]
    """Those that are used."""
    left_out: Mapping[str, Sequence[str]]
    """By reason, the ids of those that are not."""
    num_frames: int
    """Encoder frames of those that are used, before augmentation."""
    num_labels: int
    """Labels of those that are used."""

    @property
    def seconds(self) -> float:
        """Duration of those that are used."""
        return sum(utterance.duration for utterance in self.utterances)

    @property
    def labels_per_frame(self) -> float:
        """Labels over encoder frames."""
        return self.num_labels / max(self.num_frames, 1)


def read_utterances(paths: Sequence[Path]) -> list[Utterance]:
    """The utterances of several manifests, in order.

    Raises:
        ValueError: if a line is no utterance, two utterances have one id, or a manifest is empty.
        OSError: if a manifest cannot be read.
    """
    found: dict[str, Utterance] = {}
    for path in paths:
        utterances = read_manifest(path)
        if not utterances:
            raise ValueError(f"{path} should hold utterances, it is empty")
        for utterance in utterances:
            if utterance.id in found:
                raise ValueError(
                    f"{path} has an utterance {utterance.id!r}, which another manifest has too; "
                    "augmentation and the log need distinct ids"
                )
            found[utterance.id] = utterance
    return list(found.values())


def training_corpus(
    utterances: Sequence[Utterance],
    recognizer: Recognizer,
    config: DataConfig,
    fastest_speed: float = 1.0,
) -> Corpus:
    """Chooses the utterances to train on.

    Left out are those above the recipe's limits, and those with more labels than the lattice has
    room for once the fastest speed perturbation has shortened them.

    Args:
        utterances: all there are.
        recognizer: whose tokens, front end and lattice decide.
        config: the limits.
        fastest_speed: the largest factor of speed perturbation.

    Raises:
        ValueError: if nothing is left, or a text has a character that is no token.
    """
    used: list[Utterance] = []
    left_out: dict[str, list[str]] = {}
    total_frames = total_labels = 0
    room = Room(recognizer.lattice.alignment, recognizer.lattice.deduplicate)
    for utterance in utterances:
        labels = recognizer.tokens.encode(utterance.text, utterance.id)
        num_frames = _num_frames(recognizer.front_end, utterance)
        shortest = _num_frames(recognizer.front_end, utterance, fastest_speed)
        reason = _reason(num_frames, len(labels), room(labels, shortest), config)
        if reason:
            left_out.setdefault(reason, []).append(utterance.id)
            continue
        used.append(utterance)
        total_frames += num_frames
        total_labels += len(labels)
    if not used or not total_labels:
        told = "; ".join(f"{reason}: {len(ids)}" for reason, ids in left_out.items())
        raise ValueError(
            f"data.train should have utterances with text to train on, got none ({told or 'empty'})"
        )
    return Corpus(used, left_out, total_frames, total_labels)


def least_frames(labels: Sequence[int], alignment: AlignmentLattice, deduplicate: bool) -> int:
    """The fewest frames over which a lattice has a path for labels.

    Example:
        >>> least_frames([1, 1, 2], FrameDependent(), deduplicate=True)  # a blank between the two
        4
    """
    if isinstance(alignment, FrameDependent):
        repeats = sum(a == b for a, b in zip(labels, labels[1:], strict=False))
        return len(labels) + (repeats if deduplicate else 0)
    if isinstance(alignment, LabelFrameDependent) and alignment.max_labels_per_frame is not None:
        return -(-len(labels) // alignment.max_labels_per_frame)
    return 1 if labels else 0


@dataclass(frozen=True)
class Room:
    """Whether labels have a path over a number of frames; workers ask it after augmentation."""

    alignment: AlignmentLattice
    """The alignment lattice."""
    deduplicate: bool
    """Whether a repeated label needs a blank in between."""

    def __call__(self, labels: Sequence[int], num_frames: int) -> bool:
        return least_frames(labels, self.alignment, self.deduplicate) <= num_frames


def _reason(num_frames: int, num_labels: int, has_room: bool, config: DataConfig) -> str:
    """Why an utterance is left out; "" if it is not."""
    if config.max_frames is not None and num_frames > config.max_frames:
        return f"more than {config.max_frames} frames"
    if config.max_labels is not None and num_labels > config.max_labels:
        return f"more than {config.max_labels} labels"
    return "" if has_room else "more labels than the frames have room for"


def _num_frames(front_end: FrontEnd, utterance: Utterance, speed: float = 1.0) -> int:
    rate = front_end.config.sample_rate
    return front_end.num_frames(int(utterance.duration / speed * rate), rate)
