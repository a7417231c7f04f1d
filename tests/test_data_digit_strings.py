"""Strings of digits, joined from recordings with known spans."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.data.digit_strings import LEAST_GAP, energies, join_digits, speech_span
from midge.data.manifests import read_manifest, write_manifest
from midge.data.spoken.recordings import Part
from midge.data.spoken.texts import DIGITS
from midge.data.utterances import Utterance

RATE = 8000
NOISE = 0.002
SPEECH_SECONDS = 0.2
# What is recorded for a split sounds at a frequency of its own: so it can be heard in a string.
FREQUENCIES = {"train": 500.0, "test": 1500.0}


def tone(frequency: float, seconds: float, rate: int = RATE) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)


def recording(frequency: float, lead: float, generator: np.random.Generator) -> np.ndarray:
    """A tone between two stretches of background noise."""
    samples = NOISE * generator.standard_normal(round((lead + SPEECH_SECONDS + 0.1) * RATE))
    start = round(lead * RATE)
    samples[start : start + round(SPEECH_SECONDS * RATE)] += tone(frequency, SPEECH_SECONDS)
    return samples


def make_source(folder: Path, speakers: tuple[str, ...] = ("ann", "bob")) -> Path:
    """A set with our own manifest: every digit twice for each split and speaker."""
    generator = np.random.default_rng(1)
    lines = []
    for speaker in speakers:
        for split, frequency in FREQUENCIES.items():
            for number, word in enumerate(DIGITS * 2):
                name = f"{speaker}_{split}_{number}"
                samples = recording(frequency, generator.uniform(0.05, 0.15), generator)
                folder.mkdir(parents=True, exist_ok=True)
                soundfile.write(folder / f"{name}.flac", samples, RATE)
                entry = {"id": name, "audio": f"{name}.flac", "text": word, "speaker": speaker}
                entry |= {"duration": len(samples) / RATE, "split": split}
                lines.append(json.dumps(entry))
    (folder / "manifest.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def joined(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joined")
    sizes = {"num_strings": 12, "num_held_out_strings": 5}
    parts = join_digits(folder, [source], seed=2, **sizes, is_quiet=True)
    seconds = {split: sum(x.duration for x in strings(folder, split)) for split in FREQUENCIES}
    assert parts == (
        Part("train", "digit-strings", 24, seconds["train"]),
        Part("test", "digit-strings", 10, seconds["test"]),
    )
    return folder


def strings(folder: Path, split: str) -> list[Utterance]:
    return read_manifest(folder / f"{split}.jsonl.gz")


def rewritten(source: Path, folder: Path, **changes: object) -> Path:
    """A manifest of the source's first recording of train, with some fields changed."""
    entry = json.loads((source / "manifest.jsonl").read_text().splitlines()[0])
    entry["audio"] = str(source / entry["audio"])
    entry |= changes
    path = folder / "changed.jsonl"
    path.write_text(json.dumps({key: x for key, x in entry.items() if x is not None}))
    return path


# The strings.


@pytest.mark.parametrize("split", ["train", "test"])
def test_word_times_are_those_of_the_tones(joined: Path, split: str) -> None:
    for string in strings(joined, split):
        audio = string.load()
        assert audio.sample_rate == RATE
        heard = np.zeros(len(audio.samples), bool)
        for word in string.words:
            assert word.end - word.start == pytest.approx(SPEECH_SECONDS, abs=0.02)
            inside = audio.samples[
                round((word.start + 0.01) * RATE) : round((word.end - 0.01) * RATE)
            ]
            assert np.square(inside).mean() == pytest.approx(0.045, rel=0.05)
            heard[round(word.start * RATE) : round(word.end * RATE)] = True
        outside = audio.samples[~heard]
        # No tone is left there, and the noise is as loud as that of the recordings.
        assert np.sqrt(np.square(outside).mean()) == pytest.approx(NOISE, rel=0.4)


@pytest.mark.parametrize("split", ["train", "test"])
def test_no_recording_is_heard_in_another_split(joined: Path, split: str) -> None:
    for string in strings(joined, split):
        samples = string.load().samples
        powers = np.abs(np.fft.rfft(samples)) ** 2
        frequencies = np.fft.rfftfreq(len(samples), 1 / RATE)
        near = {name: powers[abs(frequencies - f) < 50].sum() for name, f in FREQUENCIES.items()}
        (other,) = set(near) - {split}
        assert near[other] < 1e-3 * near[split]


def test_texts_words_speakers_and_lengths(joined: Path) -> None:
    train = strings(joined, "train")
    assert {string.speaker for string in train} == {"ann", "bob"}
    assert {len(string.words) for string in train} <= set(range(1, 8))
    assert len({len(string.words) for string in train}) > 3
    for string in train:
        assert string.text == " ".join(word.word for word in string.words)
        assert set(string.text.split()) <= set(DIGITS)
        assert string.group == {"kind": "digit-strings"}
        assert string.duration == len(string.load().samples) / RATE


def test_gaps_are_as_asked(source: Path, tmp_path: Path) -> None:
    shape = {"min_length": 3, "max_length": 3, "min_gap": 0.1, "max_gap": 0.12}
    join_digits(tmp_path, [source], num_strings=4, **shape, is_quiet=True)
    for string in strings(tmp_path, "train"):
        edges = [0.0, *(t for word in string.words for t in (word.start, word.end))]
        edges.append(string.duration)
        gaps = np.diff(edges)[::2]
        assert len(gaps) == 4
        assert gaps.min() > 0.0995 and gaps.max() < 0.1205


def test_nothing_clicks(joined: Path) -> None:
    # A tone of 500 Hz and 0.3 moves by 0.12 from sample to sample at most; a cut would be more.
    for string in strings(joined, "train"):
        samples = string.load().samples
        assert abs(np.diff(samples)).max() < 0.3 * 2 * np.pi * 500 / RATE + 12 * NOISE


def test_the_same_seed_gives_the_same_bytes(source: Path, joined: Path, tmp_path: Path) -> None:
    sizes = {"num_strings": 3, "num_held_out_strings": 1, "is_quiet": True}
    for seed in (2, 5):
        join_digits(tmp_path / str(seed), [source], seed=seed, **sizes)
    known = {string.id: string for string in strings(joined, "train")}
    for string in strings(tmp_path / "2", "train"):  # fewer strings are the first of more
        assert Path(string.audio).read_bytes() == Path(known[string.id].audio).read_bytes()
        assert string.words == known[string.id].words
    other = strings(tmp_path / "5", "train")
    assert [string.words for string in other] != [known[string.id].words for string in other]


def test_speakers_can_be_held_out(source: Path, tmp_path: Path) -> None:
    sizes = {"num_strings": 3, "num_held_out_strings": 2, "is_quiet": True}
    parts = join_digits(tmp_path, [source], dev_speakers=["bob"], **sizes)
    assert [(part.split, part.num_utterances) for part in parts] == [
        ("train", 3),
        ("dev", 2),
        ("test", 2),
    ]
    assert {string.speaker for string in strings(tmp_path, "dev")} == {"bob"}
    for split in ("train", "test"):
        assert {string.speaker for string in strings(tmp_path, split)} == {"ann"}


def test_a_manifest_of_cuts_is_a_source_and_names_the_split(source: Path, tmp_path: Path) -> None:
    recordings = read_manifest(source / "manifest.jsonl")[:20]
    bare = [
        Utterance(id=x.id, audio=x.audio, duration=x.duration, text=str(n % 10), speaker="ann")
        for n, x in enumerate(recordings)
    ]
    write_manifest(tmp_path / "dev.jsonl.gz", bare)
    (part,) = join_digits(
        tmp_path / "out", [tmp_path / "dev.jsonl.gz"], num_held_out_strings=2, is_quiet=True
    )
    assert (part.split, part.num_utterances) == ("dev", 2)
    assert strings(tmp_path / "out", "dev")[0].words[0].word in DIGITS


def test_a_silent_recording_is_left_out_and_named(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soundfile.write(tmp_path / "silent.flac", np.zeros(4000), RATE)
    lines = (source / "manifest.jsonl").read_text().splitlines()[:10]
    entries = [json.loads(line) for line in lines]
    for entry in entries:
        entry["audio"] = str(source / entry["audio"])
    entries[4] |= {"id": "hush", "audio": str(tmp_path / "silent.flac"), "duration": 0.5}
    manifest = tmp_path / "train.jsonl"
    manifest.write_text("\n".join(map(json.dumps, entries)))
    join_digits(tmp_path / "out", [manifest], num_strings=30, is_quiet=True)
    assert "hush is left out: it is silent" in caplog.text
    said = {word.word for string in strings(tmp_path / "out", "train") for word in string.words}
    assert said == set(DIGITS) - {entries[4]["text"]}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"text": "TWENTY TWO"}, "ann_train_0 should be a recording of one digit, got 'TWENTY"),
        ({"speaker": None}, "ann_train_0 has no speaker"),
        ({"split": "spare"}, "the split of ann_train_0 should be one of train, dev, test"),
    ],
)
def test_a_wrong_recording_is_named(
    source: Path, tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        join_digits(tmp_path / "out", [rewritten(source, tmp_path, **changes)], is_quiet=True)


def test_an_unreadable_recording_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.flac").write_bytes(b"no audio")
    manifest = rewritten(source, tmp_path, audio=str(tmp_path / "broken.flac"))
    with pytest.raises(ValueError, match="broken.flac"):
        join_digits(tmp_path / "out", [manifest], is_quiet=True)


def test_one_speaker_has_one_sample_rate(source: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "wide.flac", tone(500, 0.5, 16000), 16000)
    manifest = rewritten(source, tmp_path, audio=str(tmp_path / "wide.flac"), id="wide")
    with pytest.raises(ValueError, match="the recordings of ann should have one sample rate"):
        join_digits(tmp_path / "out", [source, manifest], is_quiet=True)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"seed": -1}, "seed should be at least 0, got -1"),
        ({"num_strings": -1}, "num_strings should be at least 0"),
        ({"num_held_out_strings": -1}, "num_held_out_strings should be at least 0"),
        ({"min_length": 0}, "min_length should be from 1 to max_length, got 0 and 7"),
        ({"min_length": 8}, "min_length should be from 1 to max_length, got 8 and 7"),
        ({"min_gap": 0.01}, f"min_gap should be from {LEAST_GAP} seconds to max_gap"),
        ({"min_gap": 0.5}, "min_gap should be .* got 0.5 and 0.4"),
        ({"dev_speakers": ["eve"]}, "no source has a speaker eve"),
        ({"sources": []}, "sources should hold recordings of digits"),
    ],
)
def test_join_digits_refuses(source: Path, tmp_path: Path, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join_digits(tmp_path, **{"sources": [source], **arguments})
    assert not list(tmp_path.iterdir())


# Where speech is.


@given(
    lead=st.floats(0.01, 0.5),
    seconds=st.floats(0.05, 0.5),
    decibels=st.floats(-40, 0),
    rate=st.sampled_from([8000, 11025, 16000, 48000]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_a_tone_is_found_at_any_place_and_level(
    lead: float, seconds: float, decibels: float, rate: int, seed: int
) -> None:
    samples = 0.001 * np.random.default_rng(seed).standard_normal(round((lead + 0.7) * rate))
    samples *= 10 ** (decibels / 20)
    background = energies(samples, rate).mean(1).tolist()
    start, size = round(lead * rate), round(seconds * rate)
    samples[start : start + size] += 10 ** (decibels / 20) * tone(1000, seconds, rate)
    found = speech_span(samples, rate, background)
    assert abs(found[0] - start) <= 0.011 * rate
    assert abs(found[1] - start - size) <= 0.011 * rate


def test_silence_has_no_speech() -> None:
    assert speech_span(np.zeros(8000), 8000) == (0, 0)
    assert speech_span(np.zeros(0), 8000) == (0, 0)


def test_a_recording_shorter_than_a_moment_is_all_speech() -> None:
    assert speech_span(np.ones(30), 8000) == (0, 30)
