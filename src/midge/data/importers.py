"""Importers: corpora in other people's layouts as utterances, before anything is checked.

Each takes a path and yields what it finds in a stable order, with the split that the source names
("" if it names none). What is no utterance comes as a `Rejection` with the reason, and the import
goes on. Durations that the source does not give are 0 until `preparation` measures them.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import soundfile  # type: ignore[import-untyped]

from midge.data.cuts import located
from midge.data.manifests import manifest_entries
from midge.data.utterances import Utterance


class Rejection(NamedTuple):
    """Something in a corpus that cannot be used."""

    id: str
    """Which utterance, or which line of a file."""
    audio: str
    """Its audio file; "" if there is none."""
    reason: str
    """What is wrong."""


class Found(NamedTuple):
    """Something found in a corpus."""

    split: str
    """train, dev, test or whatever the source calls it; "" if it does not."""
    item: Utterance | Rejection
    """The utterance, or why it is none."""


Importer = Callable[[Path], Iterator[Found]]

_COLUMNS = {
    "audio": ("audio", "path", "file", "filename", "wav", "audio_filepath"),
    "text": ("text", "sentence", "transcript", "transcription"),
    "speaker": ("speaker", "client_id", "speaker_id"),
    "id": ("id", "utterance_id"),
    "split": ("split",),
}
"""What the columns of a table may be called; CommonVoice has path, sentence and client_id."""

_SPARE_SUFFIXES = frozenset((".aif", ".oga", ".opus", ".sph"))
"""Names of audio files beside those that libsndfile calls its formats."""


def import_librispeech(source: Path) -> Iterator[Found]:
    """LibriSpeech's layout: `<part>/<speaker>/<chapter>/`, with FLAC files and one `.trans.txt`.

    Args:
        source: a folder above, with one or more parts; a part is a split.
    """
    transcripts = sorted(source.rglob("*.trans.txt"))
    if not transcripts:
        raise ValueError(f"{source} should hold LibriSpeech's *.trans.txt files, there is none")
    for transcript in transcripts:
        chapter = transcript.absolute().parent
        part, speaker = chapter.parent.parent.name, chapter.parent.name
        problems: list[Rejection] = []
        texts = _keyed_lines(transcript, problems)
        yield from (Found(part, problem) for problem in problems)
        for path in sorted(chapter.glob("*.flac")):
            if path.stem not in texts:
                reason = f"{transcript.name} has no line for it"
                yield Found(part, Rejection(path.stem, str(path), reason))
        for name, text in texts.items():
            path = chapter / f"{name}.flac"
            yield Found(
                part, Utterance(id=name, audio=str(path), duration=0, text=text, speaker=speaker)
            )


def import_kaldi(source: Path) -> Iterator[Found]:
    """A Kaldi data directory: wav.scp, text and, if there are, utt2spk and segments.

    Args:
        source: the directory; or a folder of such directories, each of which is a split.
    """
    if (source / "wav.scp").exists():
        yield from _import_kaldi_directory(source, "")
        return
    folders = sorted(path.parent for path in source.glob("*/wav.scp"))
    if not folders:
        raise ValueError(f"{source} should hold wav.scp, or folders that do; there is none")
    for folder in folders:
        yield from _import_kaldi_directory(folder, folder.name)


def import_manifest(source: Path) -> Iterator[Found]:
    """Lhotse's cuts, a folder in its Shar format, or our or NeMo's JSON lines.

    Args:
        source: the file, or Shar's folder. A field `split` is the split.
    """
    is_empty = True
    for where, found in manifest_entries(source):
        is_empty = False
        if isinstance(found, ValueError):
            yield Found("", Rejection(where, "", str(found)))
            continue
        for utterance in found:
            group = dict(utterance.group)
            split = group.pop("split", "")
            yield Found(split, dataclasses.replace(utterance, group=group))
    if is_empty:
        raise ValueError(f"{source} should hold utterances, it is empty")


def import_table(source: Path) -> Iterator[Found]:
    """A table with a header: audio and text, and perhaps speaker, id and split.

    CommonVoice's columns are known too, and its audio is found in `clips`. Other columns are kept
    as groups.

    Args:
        source: a file of tab-separated values if it ends in `.tsv`, else of comma-separated ones.
    """
    with source.open(encoding="utf-8-sig", newline="") as file:
        is_tabbed = source.suffix == ".tsv"
        rows = csv.DictReader(
            file,
            delimiter="\t" if is_tabbed else ",",
            quoting=csv.QUOTE_NONE if is_tabbed else csv.QUOTE_MINIMAL,
            strict=True,  # else a quote that nobody ends takes the rest of the table for a text
        )
        try:
            yield from _from_rows(source, rows)
        except csv.Error as error:
            raise ValueError(
                f"{source}, line {rows.reader.line_num} is no row of a table: {error}; every quote "
                'needs a second one, and inside quotes a quote is written as ""'
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{source} is no UTF-8 text: {error}") from error


def import_folder(source: Path) -> Iterator[Found]:
    """Audio files, each with a text file of the same name beside it, in a folder and below it.

    The id of an utterance is its path below the folder.

    Args:
        source: the folder.
    """
    if not source.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(source))
    files = sorted(path for path in source.absolute().rglob("*") if path.is_file())
    suffixes = _audio_suffixes()
    texts = {path.with_suffix(""): path for path in files if path.suffix == ".txt"}
    for path in files:
        if path.suffix.lower() not in suffixes:
            continue
        name = "-".join(path.relative_to(source.absolute()).with_suffix("").parts)
        text = texts.pop(path.with_suffix(""), None)
        if text is None:
            yield Found("", Rejection(name, str(path), f"there is no {path.stem}.txt beside it"))
            continue
        try:
            said = " ".join(text.read_text(encoding="utf-8-sig").split())
        except UnicodeDecodeError:
            yield Found("", Rejection(name, str(path), f"{text} is no UTF-8 text"))
            continue
        yield Found("", Utterance(id=name, audio=str(path), duration=0, text=said))
    for text in texts.values():
        yield Found("", Rejection(str(text), "", "there is no audio file of its name beside it"))


IMPORTERS: Mapping[str, Importer] = {
    "librispeech": import_librispeech,
    "kaldi": import_kaldi,
    "manifest": import_manifest,
    "table": import_table,
    "folder": import_folder,
}
"""By the name that the command line has for them."""


def _import_kaldi_directory(folder: Path, split: str) -> Iterator[Found]:
    problems: list[Rejection] = []
    recordings = _keyed_lines(folder / "wav.scp", problems)
    texts = _keyed_lines(folder / "text", problems)
    speakers, segments = (
        _keyed_lines(folder / name, problems) if (folder / name).exists() else {}
        for name in ("utt2spk", "segments")
    )
    yield from (Found(split, problem) for problem in problems)
    names: Iterable[str] = segments if segments else recordings
    for name in names:
        place = segments.get(name, name)
        found = _kaldi_utterance(name, place, recordings, texts, folder)
        if isinstance(found, Utterance):
            found = dataclasses.replace(found, speaker=speakers.get(name))
        yield Found(split, found)
    for name in texts:
        if name not in names:
            reason = f"{folder / ('segments' if segments else 'wav.scp')} has no line for it"
            yield Found(split, Rejection(name, "", reason))


def _kaldi_utterance(
    name: str, place: str, recordings: Mapping[str, str], texts: Mapping[str, str], folder: Path
) -> Utterance | Rejection:
    recording, *times = place.split()
    audio = recordings.get(recording, "")
    reason = _wav_scp_problem(recording, audio)
    if not reason and name not in texts:
        reason = f"{folder / 'text'} has no line for it"
    try:
        start, end = (float(time) for time in times[:2]) if times else (0.0, -1.0)
    except ValueError:
        start, end = 0.0, 0.0
    if not reason and (start < 0 or (end != -1 and end <= start)):
        reason = f"segments should give a recording, start and end, got {place!r}"
    if reason:
        return Rejection(name, audio, reason)
    return Utterance(
        id=name,
        audio=located(audio, folder),
        start=start,
        duration=0.0 if end == -1 else end - start,
        text=texts[name],
        is_whole=not times,
    )


def _wav_scp_problem(recording: str, audio: str) -> str:
    """Why an entry of wav.scp is no file; "" if it is one."""
    if not audio:
        return f"wav.scp has no line for the recording {recording}"
    if audio.endswith("|"):
        return f"wav.scp has a command, which we do not run: {audio!r}; write its output to a file"
    if audio.rpartition(":")[2].isdigit() and ".ark:" in audio:
        return f"wav.scp points into an archive: {audio!r}; extract it to a file"
    return ""


def _keyed_lines(path: Path, problems: list[Rejection]) -> dict[str, str]:
    """Lines of a key, white space, and the rest; a key that is there again is a problem."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        key, *rest = line.split(maxsplit=1)
        if key in found:
            problems.append(Rejection(f"{path}, line {number}", "", f"{key} is there twice"))
        else:
            found[key] = rest[0].strip() if rest else ""
    return found


def _columns(source: Path, names: Iterable[str]) -> dict[str, str]:
    """What is in which column."""
    given = {name.strip().lower(): name for name in names}
    columns = {
        meaning: next(given[name] for name in options if name in given)
        for meaning, options in _COLUMNS.items()
        if any(name in given for name in options)
    }
    for meaning in ("audio", "text"):
        if meaning not in columns:
            wanted = " or ".join(_COLUMNS[meaning])
            raise ValueError(
                f"{source} should have a column {wanted}, got {list(given.values())}; "
                "the first line should be a header, and a file of tabs should end in .tsv"
            )
    return columns


def _from_rows(source: Path, rows: csv.DictReader[str]) -> Iterator[Found]:
    columns = _columns(source, rows.fieldnames or ())
    is_empty = True
    for row in rows:
        is_empty = False
        if None in row or None in row.values():
            where, count = f"{source}, line {rows.line_num}", len(rows.fieldnames or ())
            yield Found("", Rejection(where, "", f"should have {count} columns"))
        else:
            yield _from_row(row, columns, source.parent)
    if is_empty:
        raise ValueError(f"{source} should hold utterances, it has a header alone")


def _from_row(row: Mapping[str, str], columns: Mapping[str, str], folder: Path) -> Found:
    values = {meaning: row[column].strip() for meaning, column in columns.items()}
    audio = located(values["audio"], folder)
    clips = folder / "clips" / values["audio"]
    if not Path(audio).exists() and clips.exists():
        audio = str(clips.absolute())
    name = values.get("id") or "-".join(Path(values["audio"]).with_suffix("").parts)
    rest = {k: x for k, x in row.items() if k not in columns.values() and x}
    utterance = Utterance(
        id=name,
        audio=audio,
        duration=0,
        text=values["text"],
        speaker=values.get("speaker") or None,
        group=rest,
    )
    return Found(values.get("split", ""), utterance)


@functools.cache
def _audio_suffixes() -> frozenset[str]:
    return _SPARE_SUFFIXES | {f".{name.lower()}" for name in soundfile.available_formats()}
