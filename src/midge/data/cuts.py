"""Lhotse cuts as utterances, and back.

A cut is read from its JSON, the format of Lhotse's manifests, without importing Lhotse, which takes
seconds and kilobytes per cut. Only a cut that is more than a stretch of one file (a mixture, a
transform, a remote recording) is given to Lhotse. What is written here Lhotse reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midge.data.utterances import Recording, TarMember, Utterance, WordTime, lhotse_cut, look_at

_TOLERANCE = 0.001
"""Seconds by which a cut may miss the end of its recording and still be all of it."""


def located(path: str, folder: Path) -> str:
    """An absolute path for one that a manifest gives.

    A relative one is looked for beside the manifest first, then, as Lhotse does, from the working
    directory.
    """
    if os.path.isabs(path):
        return path
    beside = os.path.abspath(folder / path)
    return os.path.abspath(path) if not os.path.exists(beside) and os.path.exists(path) else beside


def from_cut(
    cut: Mapping[str, Any], folder: Path, member: tuple[str, TarMember] | None = None
) -> list[Utterance]:
    """The utterances of a cut: one, or one for each of several supervisions.

    Args:
        cut: the JSON object.
        folder: where its manifest lies.
        member: archive and place of its audio, in the Shar format.

    Raises:
        ValueError: for a cut without audio or of another form.
    """
    supervisions = cut.get("supervisions") or [{}]
    if not isinstance(supervisions, list) or not all(isinstance(x, dict) for x in supervisions):
        raise ValueError(f"supervisions should be a list of objects, got {supervisions!r:.60}")
    if not _is_plain(cut, has_member=member is not None):
        return [_from_lhotse(cut)]
    recording, channel, path = _recording(cut)
    if member is None and "member" in (cut.get("custom") or {}):
        member = path, TarMember(*cut["custom"]["member"])
    shared: dict[str, Any] = {"recording": recording, "channel": channel}
    shared["audio"] = located(member[0] if member else path, folder)
    shared["member"] = member[1] if member else None
    if len(supervisions) == 1:
        return [_segment(cut["id"], cut["start"], cut["duration"], supervisions[0], shared)]
    return [
        _segment(each["id"], cut["start"] + each["start"], each["duration"], each, shared)
        for each in supervisions
    ]


def to_cut(utterance: Utterance) -> dict[str, Any]:
    """The cut of an utterance.

    Raises:
        AudioError: if its recording is not known and cannot be read.
    """
    if utterance.cut:
        found: dict[str, Any] = json.loads(utterance.cut)
        return found
    recording = utterance.recording or look_at(utterance.audio)
    is_mixed = utterance.channel is None and recording.num_channels > 1
    channels = list(range(recording.num_channels))
    channel = channels if is_mixed else utterance.channel or 0
    duration = recording.duration if utterance.is_whole else utterance.duration
    source = {"type": "file", "channels": channels, "source": utterance.audio}
    cut: dict[str, Any] = {
        "id": utterance.id,
        "start": utterance.start,
        "duration": duration,
        "channel": channel,
        "supervisions": [_supervision(utterance, duration, channel)],
        "recording": {
            "id": utterance.id,
            "sources": [source],
            "sampling_rate": recording.sample_rate,
            "num_samples": recording.num_samples,
            "duration": recording.duration,
            "channel_ids": channels,
        },
        "type": "MultiCut" if is_mixed else "MonoCut",
    }
    if utterance.member is not None:  # Lhotse reads such a cut, but has no name for this audio
        source["type"] = "shar"
        cut["custom"] = {"member": list(utterance.member)}
    return cut


def _is_plain(cut: Mapping[str, Any], has_member: bool) -> bool:
    """Whether a cut is a stretch of one audio file, as it is."""
    recording = cut.get("recording")
    if cut.get("type") not in ("MonoCut", "MultiCut") or not recording:
        return False
    has_member = has_member or "member" in (cut.get("custom") or {})
    types = {"shar"} if has_member else {"file"}
    wanted = cut["channel"] if isinstance(cut["channel"], list) else [cut["channel"]]
    sources = [s for s in recording["sources"] if set(s["channels"]) & set(wanted)]
    return (
        not recording.get("transforms")
        and len(sources) == 1
        and sources[0]["type"] in types
        and (len(wanted) == 1 or set(wanted) == set(sources[0]["channels"]))
    )


def _recording(cut: Mapping[str, Any]) -> tuple[Recording, int | None, str]:
    """The recording of a plain cut, the channel in its file, and that file."""
    recording = cut["recording"]
    wanted = cut["channel"] if isinstance(cut["channel"], list) else [cut["channel"]]
    (source,) = (s for s in recording["sources"] if set(s["channels"]) & set(wanted))
    num_channels = len(source["channels"])
    is_all = len(wanted) == num_channels  # also a mono file: there is nothing to choose
    channel = None if is_all else source["channels"].index(wanted[0])
    known = Recording(recording["sampling_rate"], recording["num_samples"], num_channels)
    return known, channel, source["source"]


def _segment(
    name: str,
    start: float,
    duration: float,
    supervision: Mapping[str, Any],
    shared: Mapping[str, Any],
) -> Utterance:
    is_whole = start == 0 and duration >= shared["recording"].duration - _TOLERANCE
    alignment = supervision.get("alignment") or {}
    return Utterance(
        id=name,
        start=start,
        duration=duration,
        text=supervision.get("text") or "",
        speaker=supervision.get("speaker"),
        group=_group(supervision),
        words=_times(alignment.get("word", ()), start),
        phones=_times(alignment.get("phone", ()), start),
        is_whole=is_whole,
        **shared,
    )


def _times(items: Any, origin: float) -> tuple[WordTime, ...]:
    """Lhotse counts a supervision from the start of the cut, but its words from the recording's."""
    return tuple(
        WordTime(symbol, round(start - origin, 6), round(start - origin + duration, 6))
        for symbol, start, duration, *_ in items
    )


def _group(supervision: Mapping[str, Any]) -> dict[str, str]:
    """Fields of a supervision that are words or numbers."""
    custom = supervision.get("custom") or {}
    named = {name: supervision.get(name) for name in ("language", "gender")}
    both = {**custom, **named}
    return {name: str(x) for name, x in both.items() if isinstance(x, str | int | float)}


def _supervision(utterance: Utterance, duration: float, channel: int | list[int]) -> dict[str, Any]:
    supervision: dict[str, Any] = {
        "id": utterance.id,
        "recording_id": utterance.id,
        "start": 0.0,
        "duration": duration,
        "channel": channel,
        "text": utterance.text,
    }
    if utterance.speaker is not None:
        supervision["speaker"] = utterance.speaker
    if utterance.group:
        supervision["custom"] = dict(utterance.group)
    times = {"word": utterance.words, "phone": utterance.phones}
    alignment = {
        kind: [
            [word, round(utterance.start + start, 6), round(end - start, 6), None]
            for word, start, end in items
        ]
        for kind, items in times.items()
        if items
    }
    if alignment:
        supervision["alignment"] = alignment
    return supervision


def _from_lhotse(cut: Mapping[str, Any]) -> Utterance:
    """An utterance whose audio Lhotse has to make."""
    made = lhotse_cut(cut)
    if not made.has_recording:
        raise ValueError(f"cut {made.id} has no recording")
    supervisions = sorted(made.supervisions, key=lambda each: each.start)
    speakers = {each.speaker for each in supervisions}
    return Utterance(
        id=made.id,
        audio="",
        duration=made.duration,
        text=" ".join(each.text for each in supervisions if each.text),
        speaker=speakers.pop() if len(speakers) == 1 else None,
        cut=json.dumps(cut),
    )
