"""Preparation: a corpus as found becomes checked manifests, one for each split, and a report."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from midge.data.checks import Checked, Place, check_recordings, check_utterance, place_of
from midge.data.importers import Found, Rejection
from midge.data.manifests import read_manifest, write_manifest
from midge.data.report import Report, describe, write_report
from midge.data.utterances import Utterance

Splits = dict[str, list[Utterance]]
"""Utterances by the name of their split."""


def num_recordings(found: Sequence[Found]) -> int:
    """How many audio files there are to check."""
    return len({place_of(each.item) for each in found if isinstance(each.item, Utterance)})


def prepare(
    found: Sequence[Found],
    out_dir: Path,
    *,
    split: str = "train",
    dev_speakers: Iterable[str] = (),
    num_folds: int = 0,
    seed: int = 0,
    num_workers: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Report:
    """Checks what an importer has found, and writes manifests and a report.

    Written are `<split>.jsonl.gz` (Lhotse's cuts), report.txt and report.json; with folds also
    `fold-<i>.train.jsonl.gz` and `fold-<i>.dev.jsonl.gz` for each i from 1.

    Args:
        found: utterances, and what the importer rejected.
        out_dir: where to write; it is made.
        split: the split of utterances whose source names none.
        dev_speakers: speakers whose training utterances go to the split `dev` instead.
        num_folds: into how many parts of similar length the speakers of the training data are
            dealt; 0 is none.
        seed: deals the speakers.
        num_workers: processes that decode the audio.
        advance: called after each of `num_recordings` recordings.

    Returns:
        The report. Without any usable utterance nothing but the report is written.

    Raises:
        ValueError: if speakers are asked for that the corpus does not have.
        OSError: if something cannot be written.
    """
    if num_folds < 0 or num_folds == 1:
        raise ValueError(f"num_folds should be 0 or at least 2, got {num_folds}")
    speakers = list(dev_speakers)
    utterances = [each.item for each in found if isinstance(each.item, Utterance)]
    if utterances:  # a mistake about speakers is told now, not after an hour of decoding
        _check_options(found, split, speakers, num_folds)
    out_dir.mkdir(parents=True, exist_ok=True)
    checked = check_recordings(utterances, num_workers, advance)
    splits, rejections = _sorted_out(found, split, checked)
    notes: list[str] = []
    manifests: Splits = {}
    if splits:
        if missing := _hold_out(splits, speakers):
            notes.append(f"not in the training data, so not in dev: speakers {missing}")
        manifests = {name: splits[name] for name in sorted(splits)}
        try:
            manifests.update(_folds(splits, num_folds, seed))
        except ValueError as error:  # so much was rejected
            notes.append(f"there are no folds: {error}")
    for name, members in manifests.items():
        write_manifest(out_dir / f"{name}.jsonl.gz", members)
    used = [each for name in sorted(splits) for each in splits[name]]
    report = Report(
        splits={name: describe(splits[name]) for name in sorted(splits)},
        manifests=list(manifests),
        rejections=rejections,
        clipped=[each.id for each in used if checked[place_of(each)].is_clipped],
        mixed=[each.id for each in used if _is_mixed(each)],
        notes=notes,
    )
    write_report(report, out_dir)
    return report


def report_made(folder: Path, splits: Iterable[str], notes: Sequence[str] = ()) -> Report:
    """Reports on a corpus that midge has made itself, and writes report.txt and report.json.

    Args:
        folder: holds a manifest `<split>.jsonl.gz` of each split.
        splits: their names; one without utterances is left out.
        notes: what else the user should know.

    Raises:
        OSError: if something cannot be read or written.
    """
    found = {name: read_manifest(folder / f"{name}.jsonl.gz") for name in splits}
    report = Report(
        splits={name: describe(found[name]) for name in sorted(found) if found[name]},
        manifests=sorted(found),
        rejections=(),
        clipped=(),
        mixed=(),
        notes=notes,
    )
    write_report(report, folder)
    return report


def read_speakers(path: Path) -> list[str]:
    """A file of speakers, one in a line; empty lines and those that start with # are not.

    Raises:
        ValueError: if there is none.
        OSError: if it cannot be read.
    """
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    speakers = [line for line in lines if line and not line.startswith("#")]
    if not speakers:
        raise ValueError(f"{path} should have a speaker in each line, it has none")
    return speakers


def _sorted_out(
    found: Iterable[Found], default_split: str, checked: Mapping[Place, Checked] | None
) -> tuple[Splits, list[Rejection]]:
    """Utterances by split, and the rest; None checks nothing but their ids."""
    splits: Splits = collections.defaultdict(list)
    rejections: list[Rejection] = []
    seen: set[str] = set()
    for split, item in found:
        if isinstance(item, Utterance):
            if item.id in seen:
                item = Rejection(item.id, item.audio, "another utterance has the same id")
            else:
                seen.add(item.id)
                if checked is not None:
                    item = check_utterance(item, checked[place_of(item)])
        if isinstance(item, Rejection):
            rejections.append(item)
        else:
            splits[split or default_split].append(item)
    return splits, rejections


def _is_training(split: str) -> bool:
    return split == "train" or split.startswith("train-")  # as LibriSpeech's train-clean-100


def _check_options(
    found: Iterable[Found], split: str, speakers: Sequence[str], num_folds: int
) -> None:
    """Refuses what the corpus does not have, whatever the state of its audio."""
    splits, _ = _sorted_out(found, split, None)
    for name in splits:
        if Path(name).name != name:
            raise ValueError(f"a split should be a plain name for a file, got {name!r}")
    missing = _hold_out(splits, speakers)
    if speakers and len(missing) == len(set(speakers)):
        raise ValueError(f"none of the speakers for dev is in the training data: {missing}")
    _folds(splits, num_folds, seed=0)


def _hold_out(splits: Splits, speakers: Sequence[str]) -> list[str]:
    """Moves speakers from training to development; returns those that are not there."""
    wanted = set(speakers)
    held_out: list[Utterance] = []
    for name in filter(_is_training, list(splits)):
        held_out += [each for each in splits[name] if each.speaker in wanted]
        splits[name] = [each for each in splits[name] if each.speaker not in wanted]
        if not splits[name]:
            del splits[name]
    if held_out:
        splits["dev"] = [*splits.get("dev", ()), *held_out]
    return sorted(wanted - {str(each.speaker) for each in held_out})


def _folds(splits: Splits, num_folds: int, seed: int) -> Splits:
    """Manifests for cross-validation: each fold is the dev of one pair."""
    if not num_folds:
        return {}
    training = [each for name in sorted(splits) if _is_training(name) for each in splits[name]]
    fold_of = deal_speakers(training, num_folds, seed)
    manifests: Splits = {}
    for fold in range(num_folds):
        for part in ("train", "dev"):
            manifests[f"fold-{fold + 1}.{part}"] = [
                each for each in training if (fold_of[str(each.speaker)] == fold) == (part == "dev")
            ]
    return manifests


def deal_speakers(utterances: Sequence[Utterance], num_folds: int, seed: int) -> dict[str, int]:
    """Deals speakers into folds of similar length.

    The speakers come in random order, and each goes to the fold that has least speech.

    Args:
        utterances: all of known speakers.
        num_folds: how many.
        seed: of the random order.

    Returns:
        The fold of each speaker, from 0.

    Raises:
        ValueError: if a speaker is not known, or there are fewer than folds.
    """
    seconds: dict[str, float] = collections.defaultdict(float)
    for utterance in utterances:
        if utterance.speaker is None:
            raise ValueError(f"folds need the speaker of every utterance, {utterance.id} has none")
        seconds[utterance.speaker] += utterance.duration
    if len(seconds) < num_folds:
        raise ValueError(
            f"num_folds should be at most the number of training speakers, "
            f"got {num_folds} for {len(seconds)}"
        )
    speakers = sorted(seconds)
    totals = np.zeros(num_folds)
    folds = {}
    for number in np.random.default_rng(seed).permutation(len(speakers)):
        speaker = speakers[number]
        # An empty fold first, even before one whose speech is short: no fold stays empty.
        folds[speaker] = int(np.argmin(totals))
        totals[folds[speaker]] += max(seconds[speaker], 1e-9)
    return folds


def _is_mixed(utterance: Utterance) -> bool:
    recording = utterance.recording
    return utterance.channel is None and recording is not None and recording.num_channels > 1
