import json
from pathlib import Path

import pytest

from corpora import write_audio
from midge.data import Utterance, read_manifest
from midge.data.importers import (
    Rejection,
    import_folder,
    import_kaldi,
    import_librispeech,
    import_manifest,
    import_table,
)


def used(found):
    return {each.item.id: each.item for each in found if isinstance(each.item, Utterance)}


def rejected(found):
    return {each.item.id: each.item.reason for each in found if isinstance(each.item, Rejection)}


def test_librispeech(tmp_path):
    for part, speaker in (("train-clean-100", "19"), ("dev-clean", "84")):
        chapter = tmp_path / "LibriSpeech" / part / speaker / "198"
        for i in range(2):
            write_audio(chapter / f"{speaker}-198-000{i}.flac")
        lines = [f"{speaker}-198-000{i} WORD NUMBER {i}" for i in (0, 2)]
        (chapter / f"{speaker}-198.trans.txt").write_text("\n".join([*lines, "", lines[0]]))
    found = list(import_librispeech(tmp_path))
    assert {each.split for each in found} == {"train-clean-100", "dev-clean"}
    first = used(found)["19-198-0000"]
    assert (first.text, first.speaker) == ("WORD NUMBER 0", "19")
    assert Path(first.audio).exists()
    assert not Path(used(found)["84-198-0002"].audio).exists()  # the check will tell
    assert "has no line" in rejected(found)["19-198-0001"]
    assert [reason for reason in rejected(found).values() if "twice" in reason] == [
        "84-198-0000 is there twice",
        "19-198-0000 is there twice",
    ]
    assert found == list(import_librispeech(tmp_path / "LibriSpeech"))
    with pytest.raises(ValueError, match=r"trans\.txt"):
        list(import_librispeech(chapter.parent.parent.parent / "nothing"))


def kaldi(folder, **files):
    folder.mkdir(parents=True)
    for name, lines in files.items():
        (folder / name.replace("_", ".")).write_text("\n".join(lines) + "\n")


def test_kaldi_with_segments(tmp_path):
    audio = write_audio(tmp_path / "long.wav")
    kaldi(
        tmp_path / "train",
        wav_scp=[f"r1 {audio}", "r2 sph2pipe -f wav x.sph |", "r3 data/raw.ark:73"],
        segments=[
            "a r1 0.1 0.3",
            "b r1 0.2 -1",
            "c r1 0.3 0.1",
            "d r2 0 1",
            "e r3 0 1",
            "f r9 0 1",
            "g r1 0 x",
            "h r1 0 0.1",
        ],
        text=["a HELLO WORLD", "b", *(f"{name} X" for name in "cdefg"), "z NOWHERE"],
        utt2spk=["a speaker1"],
    )
    found = list(import_kaldi(tmp_path / "train"))
    assert used(found).keys() == {"a", "b"}
    a, b = used(found).values()
    assert (a.start, a.duration, a.text, a.speaker) == (
        0.1,
        pytest.approx(0.2),
        "HELLO WORLD",
        "speaker1",
    )
    assert (b.start, b.duration, b.text, b.is_whole) == (0.2, 0.0, "", False)
    reasons = rejected(found)
    assert "a command, which we do not run" in reasons["d"]
    assert "into an archive" in reasons["e"]
    assert "no line for the recording r9" in reasons["f"]
    assert "segments should give" in reasons["c"] and "segments should give" in reasons["g"]
    assert "text has no line" in reasons["h"] and "segments has no line" in reasons["z"]


def test_kaldi_directories_are_splits(tmp_path):
    audio = write_audio(tmp_path / "audio" / "a.wav")
    for split in ("train", "test"):
        kaldi(tmp_path / "data" / split, wav_scp=[f"{split}1 {audio}"], text=[f"{split}1 HI"])
    found = list(import_kaldi(tmp_path / "data"))
    assert [(each.split, each.item.id) for each in found] == [
        ("test", "test1"),
        ("train", "train1"),
    ]
    assert all(each.item.is_whole for each in found)
    with pytest.raises(ValueError, match="wav.scp"):
        list(import_kaldi(tmp_path / "audio"))


def test_manifest(tmp_path):
    lines = [
        json.dumps(
            {"id": "a", "audio": "a.wav", "duration": 1, "text": "A", "split": "dev", "x": 1}
        ),
        "{",
        json.dumps({"audio_filepath": "b.wav", "duration": 1, "text": "B"}),
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(lines))
    found = list(import_manifest(tmp_path / "m.jsonl"))
    assert [each.split for each in found] == ["dev", "", ""]
    assert used(found)["a"].group == {"x": "1"} and used(found)["b"].text == "B"
    assert list(rejected(found)) == [f"{tmp_path / 'm.jsonl'}, line 2"]


def test_entries_of_another_form_are_rejected(tmp_path):
    cut = {"id": "c", "start": 0, "duration": 1, "channel": 0, "type": "MonoCut"}
    cut["recording"] = {"sources": [{"type": "file", "channels": [0], "source": "a.wav"}]}
    cut["recording"] |= {"sampling_rate": 8000, "num_samples": 8000}
    entries = [
        {**cut, "supervisions": ["HELLO"]},
        {**cut, "supervisions": "HELLO"},
        {**cut, "supervisions": [{"text": "HELLO", "alignment": "HELLO"}]},
        {"id": "long", "audio": "a.wav", "duration": float("inf"), "text": "A"},
        {"audio": "a.wav", "duration": 1, "start": float("inf"), "text": "A"},
        {**cut, "supervisions": [{"text": "HELLO"}]},
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join(map(json.dumps, entries)))
    found = list(import_manifest(path))
    assert list(used(found)) == ["c"]
    reasons = rejected(found)
    assert list(reasons) == [f"{path}, line {number}" for number in range(1, 6)]
    assert "supervisions should be a list of objects, got ['HELLO']" in reasons[f"{path}, line 1"]
    assert "long: start and duration should be finite" in reasons[f"{path}, line 4"]
    with pytest.raises(ValueError, match=r"m\.jsonl, line 4: long: .*finite"):
        path.write_text("\n" * 3 + json.dumps(entries[3]))
        read_manifest(path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("m.jsonl", b"\n", "m.jsonl should hold utterances, it is empty"),
        ("t.csv", b"audio,text\n", "t.csv should hold utterances, it has a header alone"),
        ("t.csv", b'audio,text\na.wav,"one\nb.wav,two\n', "t.csv, line 3 is no row of a table"),
        ("t.csv", b"audio,text\na.wav,\xff\n", "t.csv is no UTF-8 text"),
        ("t.tsv", b"\xff\n", "t.tsv is no UTF-8 text"),
    ],
)
def test_a_source_that_is_none_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list((import_manifest if name == "m.jsonl" else import_table)(tmp_path / name))


def test_comma_separated(tmp_path):
    (tmp_path / "t.csv").write_text(
        '\ufeffaudio,text,speaker,split,accent\nx/a.wav,"Hello, you",s,dev,us\nb.wav,too,few\n'
    )
    found = list(import_table(tmp_path / "t.csv"))
    a = used(found)["x-a"]
    assert (a.text, a.speaker, a.group, found[0].split) == (
        "Hello, you",
        "s",
        {"accent": "us"},
        "dev",
    )
    assert a.audio == str(tmp_path / "x" / "a.wav")
    assert rejected(found) == {f"{tmp_path / 't.csv'}, line 3": "should have 5 columns"}


def test_common_voice(tmp_path):
    clip = write_audio(tmp_path / "clips" / "cv_1.wav")
    (tmp_path / "test.tsv").write_text('client_id\tpath\tsentence\nabc\tcv_1.wav\t"Quoted"\n')
    (found,) = import_table(tmp_path / "test.tsv")
    assert found.item.audio == str(clip)
    assert (found.item.text, found.item.speaker) == ('"Quoted"', "abc")


def test_a_table_without_a_column(tmp_path):
    (tmp_path / "t.csv").write_text("file\ttext\na.wav\tA\n")
    with pytest.raises(ValueError, match=r"column audio or path .* should end in \.tsv"):
        list(import_table(tmp_path / "t.csv"))


def test_folder(tmp_path):
    write_audio(tmp_path / "x" / "a.wav")
    (tmp_path / "x" / "a.txt").write_text("hello\n  world\n", encoding="utf-8")
    write_audio(tmp_path / "b.flac")
    write_audio(tmp_path / "c.WAV")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "d.txt").write_text("alone")
    (tmp_path / "picture.png").touch()
    found = list(import_folder(tmp_path))
    assert [(each.id, each.text) for each in used(found).values()] == [("x-a", "hello world")]
    reasons = rejected(found)
    assert "no b.txt" in reasons["b"] and "no UTF-8" in reasons["c"]
    assert "no audio file" in reasons[str(tmp_path / "d.txt")] and len(reasons) == 3
    with pytest.raises(NotADirectoryError):
        list(import_folder(tmp_path / "b.flac"))
