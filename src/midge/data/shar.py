"""Lhotse's Shar format: cuts in JSON lines beside tar archives of their audio.

Lhotse reads a shard from its start to its end. Our batches ask for utterances in any order, so we
look once where in its archive each audio file lies, and read it from there.

Times of words are right only if a cut was a whole recording when it was written to Shar: its audio
then starts anew, while Lhotse leaves the times of words as they were in the recording.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from midge.data.utterances import TarMember

_CUTS = "cuts.*.jsonl*"


def is_shar(folder: Path) -> bool:
    """Whether a folder holds shards of cuts."""
    return any(folder.glob(_CUTS))


def shards(folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """The shards of a folder: the file of cuts, and the archive of audio if there is one."""
    for cuts in sorted(folder.glob(_CUTS)):
        number = cuts.name.split(".")[1]
        archive = folder / f"recording.{number}.tar"
        yield cuts, archive if archive.exists() else None


def members(archive: Path) -> dict[str, TarMember]:
    """Where the audio of each cut lies in an archive, by the cut's id.

    Only the headers are read.

    Raises:
        ValueError: if it is no tar archive, or ends early.
    """
    found = {}
    try:
        with tarfile.open(archive, "r:") as tar:
            for info in tar:
                name = PurePosixPath(info.name)
                if name.suffix not in (".json", ".nodata", ".nometa"):
                    found[str(name.with_suffix(""))] = TarMember(info.offset_data, info.size)
    except tarfile.TarError as error:
        raise ValueError(f"{archive} is no tar archive that we can read: {error}") from error
    return found
