"""Manifests: lists of utterances in files.

Read are Lhotse's cuts (`.jsonl`, `.jsonl.gz`, or a folder in the Shar format), our JSON lines
(`id`, `audio`, `text`, `speaker`, `duration`, `start`, anything else) and NeMo's
(`audio_filepath`, `duration`, `text`, `offset`). Written are Lhotse's cuts.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import Any

from midge.data.cuts import from_cut, located, to_cut
from midge.data.shar import is_shar, members, shards
from midge.data.utterances import TarMember, Utterance, WordTime, look_at
from midge.data.writing import replacing

_GZIP = b"\x1f\x8b"
_KNOWN = frozenset(
    ("id", "audio", "audio_filepath", "text", "speaker", "channel")
    + ("duration", "start", "offset", "words", "phones")
)
"""Fields of a JSON line that have a meaning; all others are groups."""
_MALFORMED = (ValueError, TypeError, AttributeError, OverflowError, OSError)
"""What an entry of another form raises; OSError: an audio file to look at."""


class ManifestError(ValueError):
    """A line of a manifest that is no utterance; it names the file and the line."""


def read_manifest(path: str | Path) -> list[Utterance]:
    """Reads the utterances of a manifest, in its order.

    Args:
        path: a file of Lhotse's cuts or of our or NeMo's JSON lines, plain or gzipped, or a
            folder in Lhotse's Shar format. Relative paths in it are looked for beside it, then
            from the working directory.

    Raises:
        ManifestError: for the first line that is no utterance, or an id given twice.
        OSError: if it cannot be read.
    """
    utterances: list[Utterance] = []
    seen: set[str] = set()
    for where, found in manifest_entries(path):
        if isinstance(found, ValueError):
            raise ManifestError(f"{where}: {found}") from found
        for utterance in found:
            if utterance.id in seen:
                raise ManifestError(f"{where}: the id {utterance.id!r} is there twice")
            seen.add(utterance.id)
            utterances.append(utterance)
    return utterances


def manifest_entries(path: str | Path) -> Iterator[tuple[str, list[Utterance] | ValueError]]:
    """Reads a manifest line by line, and goes on after a bad one.

    Yields:
        Where the line is, and its utterances or what is wrong with it.

    Raises:
        ManifestError: if it is no manifest at all.
        OSError: if it cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        yield from _file_entries(path, None)
        return
    if not is_shar(path):
        raise ManifestError(f"{path} is a folder without Shar's cuts.*.jsonl.gz; give a file in it")
    for cuts, archive in shards(path):
        yield from _file_entries(cuts, archive)


def write_manifest(path: str | Path, utterances: Iterable[Utterance]) -> None:
    """Writes utterances as Lhotse's cuts, with absolute paths.

    The same utterances give the same bytes. The file is replaced at once, so that it is never
    seen half-written.

    Args:
        path: where; gzipped if it ends in `.gz`.
        utterances: in this order. The file of one whose `recording` is not known is looked at.

    Raises:
        ValueError: if an audio file is none.
        OSError: if an audio file cannot be read, or the manifest not written.
    """
    path = Path(path)
    with ExitStack() as stack:
        file = stack.enter_context(replacing(path))
        write: Callable[[bytes], int] = file.write
        if path.suffix == ".gz":
            # No name and no time inside, so that the same utterances give the same bytes.
            write = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)).write
        for utterance in utterances:
            write(json.dumps(to_cut(utterance), ensure_ascii=False).encode() + b"\n")


def _file_entries(
    path: Path, archive: Path | None
) -> Iterator[tuple[str, list[Utterance] | ValueError]]:
    audio = {} if archive is None else members(archive)
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ManifestError(f"should be a JSON object, got {line.strip()[:40]!r}")
            member = None
            if archive is not None and entry.get("id") in audio:
                member = str(archive), audio[entry["id"]]
            yield where, _utterances(entry, path.parent, member)
        except KeyError as error:
            yield where, ManifestError(f"there is no {error.args[0]!r}")
        except _MALFORMED as error:
            yield where, error if isinstance(error, ValueError) else ManifestError(str(error))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open(path, "rb") as start:
        is_gzip = start.read(2) == _GZIP
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if is_gzip
            else path.open(encoding="utf-8") as file
        ):
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (EOFError, UnicodeDecodeError, zlib.error, gzip.BadGzipFile) as error:
        raise ManifestError(f"{path} is damaged, or no text: {error}") from error


def _utterances(
    entry: Mapping[str, Any], folder: Path, member: tuple[str, TarMember] | None
) -> list[Utterance]:
    if "supervisions" in entry or "tracks" in entry or "recording" in entry:
        return from_cut(entry, folder, member)
    if "audio" in entry or "audio_filepath" in entry:
        return [_from_line(entry, folder)]
    raise ManifestError(
        f"should be a Lhotse cut, or have 'audio' or 'audio_filepath'; it has {list(entry)}"
    )


def _from_line(entry: Mapping[str, Any], folder: Path) -> Utterance:
    """An utterance from our JSON, or NeMo's, which calls some things otherwise."""
    path = str(entry["audio"] if "audio" in entry else entry["audio_filepath"])
    start = entry.get("start", entry.get("offset"))
    audio = located(path, folder)
    recording = None if "duration" in entry else look_at(audio)
    duration = recording.duration - (start or 0.0) if recording else entry["duration"]
    speaker, channel = entry.get("speaker"), entry.get("channel")
    return Utterance(
        id=str(entry.get("id") or _name(path, start)),
        audio=audio,
        start=float(start or 0.0),
        duration=float(duration),
        text=str(entry.get("text") or ""),
        speaker=None if speaker is None else str(speaker),
        channel=None if channel is None else int(channel),
        group={k: str(x) for k, x in entry.items() if k not in _KNOWN and x is not None},
        words=tuple(WordTime(*each) for each in entry.get("words", ())),
        phones=tuple(WordTime(*each) for each in entry.get("phones", ())),
        is_whole=start is None,
        recording=recording,
    )


def _name(path: str, start: float | None) -> str:
    """An id for an utterance without one, the same on every machine with the same manifest."""
    parts = PurePath(path).with_suffix("").parts
    name = "-".join(part for part in parts if part not in ("/", ".", ".."))
    return name if start is None else f"{name}-{round(1000 * start):07}"
