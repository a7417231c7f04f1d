import dataclasses
import gzip
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from corpora import RATE, tone, tones, write_audio
from midge.audio import AudioError
from midge.data import ManifestError, Utterance, WordTime, read_manifest, write_manifest
from midge.data.manifests import manifest_entries


def write_lines(path, *entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


@pytest.fixture
def stereo(tmp_path):
    """Two seconds: a tone on the left, another on the right."""
    both = np.stack([tone(2.0), tone(2.0, frequency=1000.0, level=0.1)], axis=1)
    return write_audio(tmp_path / "stereo.wav", both)


@pytest.fixture
def varied(tmp_path, stereo):
    """Utterances that use every field."""
    mono = write_audio(tmp_path / "mono.flac", tone(1.0, rate=8000), rate=8000)
    return [
        Utterance(id="whole", audio=str(mono), duration=1.0, text="Ünder", speaker="s1"),
        Utterance(
            id="part",
            audio=str(stereo),
            start=0.25,
            duration=0.5,
            text="ONE TWO",
            channel=1,
            group={"kind": "digits"},
            words=(WordTime("ONE", 0.0, 0.2), WordTime("TWO", 0.25, 0.45)),
            phones=(WordTime("w", 0.0, 0.05),),
            is_whole=False,
        ),
        Utterance(id="mixed", audio=str(stereo), duration=2.0, text="BOTH"),
    ]


def same_but_recording(a, b):
    return dataclasses.replace(a, recording=None) == dataclasses.replace(b, recording=None)


@pytest.mark.parametrize("name", ["cuts.jsonl.gz", "cuts.jsonl"])
def test_round_trip(varied, tmp_path, name):
    write_manifest(tmp_path / "new" / name, varied)
    read = read_manifest(tmp_path / "new" / name)
    assert all(map(same_but_recording, read, varied)) and len(read) == 3
    assert read[0].recording.sample_rate == 8000 and read[2].recording.num_channels == 2
    for a, b in zip(read, varied, strict=True):
        assert np.array_equal(a.load().samples, b.load().samples)
    assert [len(each.load().samples) for each in read] == [8000, RATE // 2, 2 * RATE]
    write_manifest(tmp_path / "again.jsonl.gz", read)
    if name.endswith(".gz"):
        again = (tmp_path / "again.jsonl.gz").read_bytes()
        assert again == (tmp_path / "new" / name).read_bytes()
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / name]


def test_lhotse_reads_what_we_write(varied, tmp_path):
    from lhotse import CutSet

    write_manifest(tmp_path / "cuts.jsonl.gz", varied)
    cuts = list(CutSet.from_file(tmp_path / "cuts.jsonl.gz"))
    assert [cut.id for cut in cuts] == ["whole", "part", "mixed"]
    for cut, utterance in zip(cuts, varied, strict=True):
        (supervision,) = cut.supervisions
        assert (supervision.text, supervision.speaker) == (utterance.text, utterance.speaker)
        np.testing.assert_allclose(cut.load_audio().mean(0), utterance.load().samples, atol=1e-7)
    assert cuts[1].supervisions[0].custom == {"kind": "digits"}
    assert [item.symbol for item in cuts[1].supervisions[0].alignment["word"]] == ["ONE", "TWO"]
    assert cuts[1].supervisions[0].alignment["phone"][0].end == 0.25 + 0.05


def test_we_read_what_lhotse_writes(stereo, tmp_path):
    from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
    from lhotse.supervision import AlignmentItem

    recording = Recording.from_file(stereo, recording_id="r")
    supervisions = [
        SupervisionSegment(
            id=f"s{i}",
            recording_id="r",
            start=start,
            duration=0.4,
            channel=1,
            text=f"TEXT {i}",
            speaker="x",
            language="en",
            alignment={"word": [AlignmentItem("TEXT", start + 0.1, 0.2)]},
        )
        for i, start in enumerate((0.5, 1.25))
    ]
    cut = MonoCut("r", 0.0, 2.0, channel=1, supervisions=supervisions, recording=recording)
    one = cut.truncate(offset=1.0, duration=1.0)
    CutSet.from_cuts([cut.with_id("two"), one.with_id("one")]).to_file(tmp_path / "cuts.jsonl.gz")
    read = read_manifest(tmp_path / "cuts.jsonl.gz")
    assert [each.id for each in read[:2]] == ["s0", "s1"]  # one for each supervision
    assert [(each.start, each.duration) for each in read] == [(0.5, 0.4), (1.25, 0.4), (1.0, 1.0)]
    assert [each.words[0][1:] for each in read] == [(0.1, 0.3), (0.1, 0.3), (0.35, 0.55)]
    assert {each.channel for each in read} == {1}
    assert read[0].group == {"language": "en"} and read[2].text == "TEXT 1"


def test_a_mixture_is_left_to_lhotse(tmp_path):
    from lhotse import CutSet

    write_manifest(tmp_path / "parts.jsonl.gz", tones(tmp_path, [0.5, 0.25], ["A", "B"]))
    first, second = CutSet.from_file(tmp_path / "parts.jsonl.gz")
    joined = first.append(second).with_id("both")
    CutSet.from_cuts([joined]).to_file(tmp_path / "joined.jsonl")
    (read,) = read_manifest(tmp_path / "joined.jsonl")
    assert (read.id, read.text, read.duration) == ("both", "A B", 0.75)
    expected = np.concatenate([first.load_audio()[0], second.load_audio()[0]])
    np.testing.assert_allclose(read.load().samples, expected, atol=1e-6)
    write_manifest(tmp_path / "again.jsonl", [read])
    assert read_manifest(tmp_path / "again.jsonl") == [read]
    (tmp_path / "u1.wav").unlink()
    with pytest.raises(AudioError, match="both: Lhotse cannot load"):
        read.load()


@pytest.mark.parametrize("audio_format", ["flac", "wav", "original"])
def test_shar(varied, tmp_path, audio_format):
    from lhotse import CutSet
    from lhotse.shar import SharWriter

    write_manifest(tmp_path / "cuts.jsonl.gz", varied[:2])
    folder = tmp_path / "shar"
    folder.mkdir()
    with SharWriter(folder, fields={"recording": audio_format}, shard_size=1) as writer:
        for cut in CutSet.from_file(tmp_path / "cuts.jsonl.gz"):
            writer.write(cut)
    read = read_manifest(folder)
    assert [each.id for each in read] == ["whole", "part"]
    assert (read[0].text, read[0].speaker, read[0].is_whole) == ("Ünder", "s1", True)
    assert read[1].group == {"kind": "digits"} and read[1].duration == 0.5
    for each, original in zip(read, varied, strict=False):
        np.testing.assert_allclose(each.load().samples, original.load().samples, atol=1e-4)
    write_manifest(tmp_path / "again.jsonl", read)
    again = read_manifest(tmp_path / "again.jsonl")
    assert again == read
    assert np.array_equal(again[1].load().samples, read[1].load().samples)


def test_our_lines_and_those_of_nemo(stereo, tmp_path):
    path = write_lines(
        tmp_path / "manifest.jsonl",
        {
            "id": "a",
            "audio": "stereo.wav",
            "text": "X",
            "speaker": 7,
            "duration": 2,
            "split": "dev",
        },
        {"audio_filepath": str(stereo), "duration": 0.5, "text": "Y", "offset": 0},
        {"audio_filepath": "stereo.wav", "offset": 1.5, "text": "Z", "words": [["Z", 0.1, 0.2]]},
    )
    ours, first, second = read_manifest(path)
    assert ours.is_whole and ours.speaker == "7" and ours.group == {"split": "dev"}
    assert len(ours.load().samples) == 2 * RATE
    assert len(first.load().samples) == RATE // 2 and first.text == "Y"
    assert (second.id, second.start, second.duration) == ("stereo-0001500", 1.5, 0.5)
    assert second.words == (WordTime("Z", 0.1, 0.2),)


def test_a_relative_path_may_be_relative_to_the_working_directory(stereo, tmp_path, monkeypatch):
    path = write_lines(
        tmp_path / "elsewhere.jsonl", {"id": "a", "audio": "stereo.wav", "duration": 2.0}
    )
    folder = tmp_path / "manifests"
    folder.mkdir()
    path = path.rename(folder / path.name)
    monkeypatch.chdir(tmp_path)
    assert read_manifest(path)[0].audio == str(stereo)
    monkeypatch.chdir("/")
    assert read_manifest(path)[0].audio == str(folder / "stereo.wav")  # named, though not there


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2: "),
        ("[1]", "line 2: should be a JSON object"),
        ('{"id": "b"}', "line 2: should be a Lhotse cut, or have 'audio'"),
        ('{"id": "b", "audio": "b.wav", "duration": -1}', "line 2: b: start and duration"),
        ('{"id": "b", "audio": "b.wav", "duration": [1]}', "line 2: "),
        ('{"id": "b", "audio": "nowhere.wav"}', "line 2: .*No such file"),
        ('{"id": "a", "audio": "b.wav", "duration": 1}', "line 2: the id 'a' is there twice"),
        ('{"id": "b", "supervisions": [], "type": "MonoCut"}', "line 2: "),
        ('{"type": "MonoCut", "recording": {"sources": []}}', "line 2: there is no 'channel'"),
    ],
)
def test_a_bad_line_is_named(line, message, tmp_path):
    path = write_lines(tmp_path / "bad.jsonl", {"id": "a", "audio": "a.wav", "duration": 1.0})
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ManifestError, match=message) as error:
        read_manifest(path)
    assert str(path) in str(error.value)


def test_reading_goes_on_after_a_bad_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{\n\n{"id": "a", "audio": "a.wav", "duration": 1.0}\n')
    (_, bad), (where, good) = manifest_entries(path)
    assert isinstance(bad, ValueError)
    assert where.endswith("line 3") and good[0].id == "a"


def test_a_damaged_archive_or_folder_is_named(tmp_path):
    path = tmp_path / "cuts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a", "audio": "a.wav", "duration": 1.0}\n' * 99)[:60])
    with pytest.raises(ManifestError, match="damaged"):
        read_manifest(path)
    whole = gzip.compress(b'{"id": "a", "audio": "a.wav", "duration": 1.0}\n' * 99)
    path.write_bytes(whole[:20] + b"\x00\xff" * 5 + whole[30:])
    with pytest.raises(ManifestError, match="damaged"):
        read_manifest(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ManifestError, match="without Shar"):
        read_manifest(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path / "nowhere.jsonl")


def test_writing_fails_without_a_trace(tmp_path):
    path = tmp_path / "cuts.jsonl.gz"
    path.write_bytes(b"before")
    missing = Utterance(id="a", audio=str(tmp_path / "nowhere.wav"), duration=1.0)
    with pytest.raises(FileNotFoundError):
        write_manifest(path, [missing])
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"duration": float("nan")}, "a: start and duration should be finite and at least 0"),
        ({"duration": float("inf")}, "a: start and duration should be finite and at least 0"),
        ({"start": -1.0, "is_whole": False}, "should be finite and at least 0"),
        ({"start": 1.0}, "is_whole should be False"),
    ],
)
def test_an_impossible_utterance(changes, message):
    with pytest.raises(ValueError, match=message):
        Utterance(**({"id": "a", "audio": "a.wav", "duration": 1.0} | changes))


def test_an_utterance_is_small(tmp_path):
    entry = {"audio": "/corpus/part/speaker/a.flac", "text": "SOME WORDS", "speaker": "s"}
    entries = ({**entry, "id": f"u{i}", "duration": 1.0} for i in range(2000))
    path = write_lines(tmp_path / "many.jsonl", *entries)
    read_manifest(path)
    tracemalloc.start()
    read = read_manifest(path)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / len(read) < 1000  # a million in less than a gigabyte


@pytest.mark.slow
def test_plain_cuts_do_not_import_lhotse(varied, tmp_path):
    path = tmp_path / "cuts.jsonl.gz"
    write_manifest(path, varied)
    code = (
        "import sys; from midge.data import read_manifest;"
        f"[each.load() for each in read_manifest({str(path)!r})];"
        "assert 'lhotse' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
