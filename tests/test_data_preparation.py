import dataclasses
import json
import tracemalloc

import numpy as np
import pytest
import soundfile

from corpora import RATE, tone, tones, write_audio
from midge.audio import FrontEnd, FrontEndConfig, read_audio
from midge.data import Utterance, WordTime, read_manifest
from midge.data.checks import Checked, check_recordings, check_utterance, place_of
from midge.data.importers import Found, Rejection
from midge.data.preparation import deal_speakers, num_recordings, prepare, read_speakers
from midge.data.report import describe
from midge.data.utterances import Recording


def all_found(utterances, split=""):
    return [Found(split, utterance) for utterance in utterances]


@pytest.fixture
def broken(tmp_path):
    """A corpus of one good utterance of each sort, and one of each sort of broken ones."""
    whole = write_audio(tmp_path / "good.flac", tone(0.6))
    loud = write_audio(tmp_path / "loud.wav", np.clip(tone(0.5, level=3.0), -1, 1))
    stereo = write_audio(tmp_path / "stereo.wav", np.stack([tone(), tone()], 1), 8000)
    (tmp_path / "text.wav").write_text("this is no audio")
    (tmp_path / "cut.flac").write_bytes(whole.read_bytes()[:3000])
    write_audio(tmp_path / "empty.wav", np.zeros(0))
    write_audio(tmp_path / "zero.wav", np.zeros(RATE))
    soundfile.write(tmp_path / "nan.wav", np.full(800, np.nan, np.float32), RATE, subtype="FLOAT")

    def utterance(name, path, **more):
        given = {"duration": 0.0, "text": "GO", "speaker": name} | more
        return Utterance(id=name, audio=str(tmp_path / path), **given)

    good = [
        utterance("good", whole, duration=0.63),
        utterance("loud", loud),
        utterance("mixed", stereo),
        utterance("part", whole, start=0.1, duration=0.2, is_whole=False),
        utterance("rest", whole, start=0.2, is_whole=False),
        utterance("over", whole, start=0.2, duration=0.45, is_whole=False),
    ]
    bad = {
        "No such file": utterance("missing", "nowhere.wav"),
        "holds no audio": utterance("text", "text.wav"),
        "cut.flac": utterance("cut", "cut.flac"),
        "empty": utterance("empty", "empty.wav"),
        "silent": utterance("zero", "zero.wav"),
        "nan.wav has samples that are not finite numbers": utterance("nan", "nan.wav"),
        "no text": utterance("untold", whole, text="  "),
        "should take 3.00 s": utterance("long", whole, duration=3.0),
        "should end at 1.10 s": utterance("after", whole, start=0.1, duration=1.0, is_whole=False),
        "starts at 2.00 s": utterance("late", whole, start=2.0, duration=1.0, is_whole=False),
        "channel 3 of 2": utterance("channel", stereo, channel=3),
        "last word should end at 4.00 s": utterance(
            "words", whole, words=(WordTime("GO", 0.1, 4.0),)
        ),
        "same id": utterance("good", whole),
    }
    return good, bad


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_broken_is_rejected_with_the_reason(broken, tmp_path, num_workers):
    good, bad = broken
    steps = []
    report = prepare(
        [*all_found(good), *all_found(bad.values()), Found("", Rejection("x", "", "found so"))],
        tmp_path / "out",
        num_workers=num_workers,
        advance=lambda: steps.append(1),
    )
    assert len(steps) == num_recordings(all_found([*good, *bad.values()])) == 9
    reasons = [each.reason for each in report.rejections]
    assert len(reasons) == len(bad) + 1
    for (part, utterance), rejection in zip(bad.items(), report.rejections, strict=False):
        assert part in rejection.reason and rejection.id == utterance.id
    assert reasons[-1] == "found so"
    assert report.clipped == ["loud"] and report.mixed == ["mixed"]
    read = {each.id: each for each in read_manifest(tmp_path / "out" / "train.jsonl.gz")}
    assert list(read) == [each.id for each in good]
    durations = {"good": 0.6, "loud": 0.5, "mixed": 1.0, "part": 0.2, "rest": 0.4, "over": 0.4}
    for name, seconds in durations.items():
        audio = read[name].load()
        assert read[name].duration == pytest.approx(seconds)
        assert len(audio.samples) == round(seconds * audio.sample_rate)


def test_the_report_is_written(broken, tmp_path):
    good, bad = broken
    report = prepare(all_found([*good, *bad.values()]), tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "report.json").read_text())
    assert stored == json.loads(json.dumps(report.to_json()))
    assert stored["rejections"][0]["id"] == "missing"
    text = (tmp_path / "out" / "report.txt").read_text()
    assert all(each.reason in text for each in report.rejections)
    assert "utterances 6, speakers 6" in text and "8000 Hz: 1, 16000 Hz: 5" in text
    assert "... and 3 more" in report.summary() and "clipped" in report.summary()


def test_nothing_usable(tmp_path):
    missing = Utterance(id="a", audio="nowhere.wav", duration=1.0, text="A", speaker="s")
    found = all_found([missing])
    report = prepare(found, tmp_path, dev_speakers=["s"], num_folds=0)
    assert report.num_utterances == 0 and len(report.rejections) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"report.txt", "report.json"}
    assert prepare([], tmp_path).num_utterances == 0


def test_splits_dev_speakers_and_folds(tmp_path):
    utterances = tones(tmp_path, [0.3] * 9)
    found = [*all_found(utterances[:6]), *all_found(utterances[6:], "test")]
    report = prepare(found, tmp_path / "out", dev_speakers=["s1", "s9"], num_folds=2, seed=1)
    names = ["dev", "test", "train", "fold-1.train", "fold-1.dev", "fold-2.train", "fold-2.dev"]
    assert report.manifests == names
    ids = {
        name: [each.id for each in read_manifest(tmp_path / "out" / f"{name}.jsonl.gz")]
        for name in names
    }
    assert ids["dev"] == ["u1", "u4"] and ids["train"] == ["u0", "u2", "u3", "u5"]
    assert ids["test"] == ["u6", "u7", "u8"]  # also of speaker s1
    assert sorted(ids["fold-1.dev"] + ids["fold-2.dev"]) == ids["train"]
    assert ids["fold-1.dev"] == ids["fold-2.train"]
    assert any("s9" in note for note in report.notes)


def test_options_are_checked_before_the_audio(tmp_path, monkeypatch):
    monkeypatch.setattr("midge.data.preparation.check_recordings", lambda *_: pytest.fail("read"))
    found = all_found(tones(tmp_path, [0.3] * 3))
    nameless = dataclasses.replace(found[0].item, id="x", speaker=None)
    for given, options, message in (
        (found, {"dev_speakers": ["s7"]}, "none of the speakers"),
        (found, {"num_folds": 1}, "num_folds should be 0 or at least 2"),
        (found, {"num_folds": 4}, "at most the number of training speakers"),
        ([*found, Found("", nameless)], {"num_folds": 2}, "x has none"),
        ([Found("a/b", nameless)], {}, "a split should be a plain name"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare(given, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_folds_are_of_similar_length():
    generator = np.random.default_rng(0)
    utterances = [
        Utterance(
            id=str(i), audio="", duration=float(generator.uniform(1, 5)), speaker=f"s{i % 40}"
        )
        for i in range(800)
    ]
    folds = deal_speakers(utterances, 5, seed=0)
    assert folds == deal_speakers(utterances[::-1], 5, seed=0) != deal_speakers(utterances, 5, 1)
    seconds = np.bincount(
        [folds[each.speaker] for each in utterances], [each.duration for each in utterances]
    )
    assert seconds.max() < 1.15 * seconds.min()


def test_speakers_of_a_file(tmp_path):
    path = tmp_path / "speakers.txt"
    path.write_text("# for dev\nfash\n\n  fbbh \n")
    assert read_speakers(path) == ["fash", "fbbh"]
    path.write_text("\n")
    with pytest.raises(ValueError, match="a speaker in each line"):
        read_speakers(path)


def described(seconds, text, rate=RATE):
    recording = Recording(rate, round(seconds * rate))
    utterance = Utterance(id="a", audio="", duration=seconds, text=text, recording=recording)
    return describe([utterance])


def test_frames_enough_for_the_labels():
    # At speed 1.1 one second is 0.909 s, and 1.209 s with the tail padding: 61, 41, 31, 21 frames.
    split = described(1.0, "a" * 41)
    assert [each.milliseconds for each in split.frame_rates] == [20, 30, 40, 60]
    assert [each.num_impossible for each in split.frame_rates] == [0, 0, 1, 1]
    assert [each.num_impossible_deduplicated for each in split.frame_rates] == [1, 1, 1, 1]
    assert [each.num_impossible_unpadded for each in split.frame_rates] == [0, 1, 1, 1]
    assert split.frame_rates[1].frames_per_label == 1.0
    assert [each.num_impossible for each in described(1.0, "ab" * 21).frame_rates] == [0, 1, 1, 1]
    assert [each.num_impossible for each in described(1.0, "ab" * 31).frame_rates] == [1, 1, 1, 1]


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_frames_are_those_of_training(rate):
    from midge.audio import Augmentation, AugmentationConfig

    config = AugmentationConfig(speeds=(1.1,), silence_cut_probability=0.0)
    samples = tone(0.737, rate)
    faster = Augmentation(config, 0).waveform(samples, rate, epoch=0, utterance_id="a")
    num_frames = len(FrontEnd(FrontEndConfig()).features(faster, rate))
    exact = described(len(samples) / rate, "A", rate).frame_rates[1]
    assert exact.milliseconds == 30 and exact.frames_per_label == num_frames


def test_rare_characters_are_shown_with_an_utterance(tmp_path):
    recording = Recording(RATE, RATE)
    texts = ["ABBA"] * 4 + ["AB\u00c7"]
    split = describe(
        [
            Utterance(id=f"u{i}", audio="", duration=1.0, text=text, recording=recording)
            for i, text in enumerate(texts)
        ]
    )
    assert split.characters == {"A": 9, "B": 9, "\u00c7": 1}
    assert split.rare_characters == {"\u00c7": "u4"}


def test_a_long_file_is_never_held_whole(tmp_path):
    """Two hours would be 460 MB of samples; the first 20 minutes of such a file show it."""
    path = tmp_path / "long.flac"
    block = tone(60.0)
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for _ in range(20):
            file.write(block)
    utterance = Utterance(id="long", audio=str(path), duration=0.0, text="A")
    tracemalloc.start()
    (checked,) = check_recordings([utterance], 0, lambda: None).values()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert checked.recording.num_samples == 20 * 60 * RATE
    assert peak < 10e6  # a block of 10 s is 0.64 MB


def test_a_recording_is_decoded_once(tmp_path):
    path = str(write_audio(tmp_path / "a.wav", tone(1.0)))
    segments = [
        Utterance(id=f"{i}", audio=path, start=i / 10, duration=0.1, text="A", is_whole=False)
        for i in range(5)
    ]
    steps = []
    found = check_recordings(segments, 0, lambda: steps.append(1))
    assert len(steps) == 1 and list(found) == [place_of(segments[0])]
    checked = check_utterance(segments[4], found[place_of(segments[4])])
    assert checked.recording == Recording(RATE, RATE) and checked.start == 0.4
    assert isinstance(check_utterance(segments[0], Checked(None, "why")), Rejection)


def test_notices_of_others_are_left_alone(tmp_path, caplog):
    """Checking is silent about channels; what is read afterwards is not."""
    stereo = np.stack([tone(), tone()], 1)
    checked = write_audio(tmp_path / "checked.wav", stereo)
    read = write_audio(tmp_path / "read.wav", stereo)
    utterance = Utterance(id="a", audio=str(checked), text="GO", speaker="a", duration=0.0)
    with caplog.at_level("WARNING"):
        check_recordings([utterance], num_workers=0, advance=lambda: None)
        assert caplog.records == []
        read_audio(read)
    assert "read.wav has 2 channels" in caplog.text
