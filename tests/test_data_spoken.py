"""The spoken corpus: espeak-ng, what it says, and that its times and its homophones are true."""

import hashlib
import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from midge.data.manifests import read_manifest
from midge.data.spoken import (
    ACCENTS,
    HOMOPHONES,
    Homophone,
    Part,
    Speech,
    Voice,
    speak,
    speak_corpus,
    variants,
)
from midge.data.spoken import voice as voice_module
from midge.data.spoken.corpus import (
    DEV_VARIANTS,
    FORESEEING,
    SAMPLE_RATE,
    TEST_VARIANTS,
    variants_of,
)
from midge.data.spoken.texts import (
    COMMANDS,
    DIGITS,
    LETTERS,
    MAX_NUM_DIGITS,
    SINGLE_TEXTS,
    SPELLED,
)
from midge.data.utterances import Utterance

# One voice of every synthesizer: with breath, with an echo, and Klatt's in three forms.
SYNTHESIZERS = ("", "f2", "robosoft4", "klatt", "klatt4", "klatt6")
WORDS = ("ROAD", "SIGNS", "SEVEN")


def digest(speech: Speech) -> str:
    return hashlib.sha256(speech.samples.tobytes()).hexdigest()


def zero_crossings(speech: Speech, phone: str) -> float:
    """How often the signal changes its sign during the phonemes of a name, per second."""
    rate = speech.sample_rate
    spans = [(x.start, x.end) for x in speech.phones if x.word == phone]
    parts = [speech.samples[round(start * rate) : round(end * rate)] for start, end in spans]
    changes = sum(int((np.diff(np.sign(part)) != 0).sum()) for part in parts)
    return changes / sum(end - start for start, end in spans)


def periodicity(speech: Speech) -> float:
    """How alike the signal is to itself a period later: the median over its loud moments."""
    size, lags = speech.sample_rate // 50, range(speech.sample_rate // 450, 340)
    starts = range(0, len(speech.samples) - size - lags[-1], size)
    moments = [speech.samples[start : start + size + lags[-1]] for start in starts]
    loudest = max(float(np.square(x[:size]).mean()) for x in moments)
    found = []
    for moment in moments:
        if np.square(moment[:size]).mean() > 0.01 * loudest:
            shifted = np.stack([moment[lag : lag + size] for lag in (0, *lags)])
            found.append(np.corrcoef(shifted)[0, 1:].max())
    return float(np.median(found))


# The voice.


@pytest.mark.parametrize("variant", SYNTHESIZERS)
def test_speech_does_not_depend_on_what_was_said_before(variant: str) -> None:
    voice = Voice(accent="en-us", variant=variant)
    first = digest(speak(WORDS, voice))
    for other in SYNTHESIZERS:
        speak(["NINE", "ZEBRA"], Voice(variant=other, rate=300, pitch=80))
        assert digest(speak(WORDS, voice)) == first


@pytest.mark.slow  # the other process imports torch
def test_speech_is_the_same_in_another_process() -> None:
    program = (
        "import hashlib, sys\n"
        "from midge.data.spoken import Voice, speak\n"
        f"for variant in reversed({SYNTHESIZERS!r}):\n"
        f"    speech = speak({WORDS!r}, Voice(variant=variant))\n"
        "    print(hashlib.sha256(speech.samples.tobytes()).hexdigest())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    here = [digest(speak(WORDS, Voice(variant=variant))) for variant in reversed(SYNTHESIZERS)]
    assert run.stdout.split() == here


def test_rate_pitch_and_accent_matter() -> None:
    plain = Voice(accent="en-us")
    others = (
        Voice(accent="en-us", rate=300),
        Voice(accent="en-us", pitch=90),
        Voice(accent="en-us", pitch_range=0),
        Voice(accent="en-gb-scotland"),
        Voice(accent="en-us", variant="f1"),
    )
    assert len({digest(speak(WORDS, voice)) for voice in (plain, *others)}) == 6
    assert len(speak(WORDS, others[0]).samples) < 0.7 * len(speak(WORDS, plain).samples)


@pytest.mark.parametrize("accent", ACCENTS)
def test_words_and_phonemes_have_their_times(accent: str) -> None:
    speech = speak(["SIX", "FIVE", "SIX", "EIGHT"], Voice(accent=accent))
    assert [word.word for word in speech.words] == ["SIX", "FIVE", "SIX", "EIGHT"]
    ends = [(x.start, x.end) for x in speech.phones]
    assert all(start < end for start, end in ends)
    assert all(end <= after for (_, end), (after, _) in itertools.pairwise(ends))
    assert {word.start for word in speech.words} <= {start for start, _ in ends}
    assert {word.end for word in speech.words} <= {end for _, end in ends}
    assert ends[0][0] < 0.02 and ends[-1][1] <= len(speech.samples) / speech.sample_rate


def test_the_times_are_true() -> None:
    # A hiss changes its sign more often than a vowel; only at the right times is that seen.
    speech = speak(["SIX", "FIVE", "SIX"], Voice(accent="en-us"))
    assert zero_crossings(speech, "s") > 3 * zero_crossings(speech, "aI")


def test_a_letter_is_spoken_by_its_name() -> None:
    phones = [x.word for x in speak(["A", "B", "I"], Voice(accent="en-us")).phones]
    assert phones[0] == "eI" and phones[-1] == "aI"


def test_usable_variants_have_a_pitch_and_the_whispering_ones_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("ONE", "FOUR", "NINE")
    kept = [periodicity(speak(words, Voice(variant=name))) for name in variants()[::11]]
    monkeypatch.setattr(voice_module, "variants", lambda: voice_module.UNUSABLE)
    whispered = ("caleb", "whisper", "whisperf")
    left_out = [periodicity(speak(words, Voice(variant=name))) for name in whispered]
    assert max(left_out) < 0.5 < min(kept)


def test_the_variant_fast_is_no_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_module, "variants", lambda: voice_module.UNUSABLE)
    assert digest(speak(WORDS, Voice(variant="fast"))) == digest(speak(WORDS, Voice()))


def test_about_a_hundred_variants_are_usable() -> None:
    assert len(variants()) > 90
    assert not set(variants()) & set(voice_module.UNUSABLE)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"accent": "fr"}, "accent should be one of en, "),
        ({"rate": 1000}, "rate should be between 80 and 450, got 1000"),
        ({"pitch": -1}, "pitch should be between 0 and 100, got -1"),
        ({"pitch_range": 101}, "pitch_range should be between 0 and 100"),
    ],
)
def test_a_voice_refuses(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Voice(**fields)


@pytest.mark.parametrize(
    "words, variant, message",
    [
        (["ZERO"], "nobody", "variant should be one of .*got en.nobody"),
        (["7"], "", "a word should be letters, got '7'"),
        ([""], "", "a word should be letters, got ''"),
        ([], "", "words should be at least one"),
        (["IN", "THE", "HOUSE"], "", "the words of 'IN THE HOUSE' one by one"),
    ],
)
def test_speak_refuses(words: list[str], variant: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        speak(words, Voice(variant=variant))


def test_without_espeak_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ValueError, match=r"pip install 'midge\[spoken\]'"):
        speak(["ZERO"], Voice())


# What it says.


def test_every_command_and_every_spelled_word_can_be_spoken() -> None:
    phrases = [" ".join(p).split() for pattern in COMMANDS for p in itertools.product(*pattern)]
    phrases += [[word, *word] for word in SPELLED]
    for phrase, accent in zip(phrases, itertools.cycle(ACCENTS), strict=False):
        spoken = speak(phrase, Voice(accent=accent, rate=300))
        assert [word.word for word in spoken.words] == phrase


def test_drawn_texts_are_upper_case_words() -> None:
    generator = np.random.default_rng(0)
    for draw in SINGLE_TEXTS.values():
        drawn = [draw(generator) for _ in range(300)]
        assert all(word.isalpha() and word.isupper() for words in drawn for word in words)
        assert len({" ".join(words) for words in drawn}) > 50
    lengths = Counter(len(SINGLE_TEXTS["digits"](generator)) for _ in range(700))
    assert set(lengths) == set(range(1, MAX_NUM_DIGITS + 1))


def test_letters_and_numbers_are_various_and_can_be_spoken() -> None:
    generator = np.random.default_rng(0)
    letters = Counter(word for _ in range(400) for word in SINGLE_TEXTS["letters"](generator))
    assert {*LETTERS, *DIGITS} == letters.keys()
    share = sum(letters[digit] for digit in DIGITS) / letters.total()
    assert 0.05 < share < 0.15
    texts = [SINGLE_TEXTS["numbers"](generator) for _ in range(400)]
    words = {word for text in texts for word in text}
    assert {"HUNDRED", "NINETEEN", "FORTY", "SEPTEMBER", "TWELFTH"} <= words
    assert len({" ".join(text) for text in texts}) > 200
    for word in sorted(words)[::7]:
        assert speak([word], Voice()).words[0].word == word


@pytest.mark.parametrize("pair", HOMOPHONES, ids=lambda pair: pair[0].word)
def test_a_context_of_two_labels_carries_the_choice(pair: tuple[Homophone, Homophone]) -> None:
    assert pair[0].word[-1] != pair[1].word[-1]
    assert len(pair[0].next_words) == len(pair[1].next_words)
    assert not set(pair[0].next_words) & set(pair[1].next_words)


def first_word(speech: Speech) -> np.ndarray:
    return speech.samples[: round(speech.words[1].start * speech.sample_rate)]


@pytest.mark.parametrize("accent", ACCENTS)
def test_homophones_are_decided_by_the_next_word_and_by_nothing_before(accent: str) -> None:
    names = [name for name in variants_of("train") if name not in FORESEEING]
    for index, pair in enumerate(HOMOPHONES):
        variant = names[(11 * index + 5 * ACCENTS.index(accent)) % len(names)]
        voice = Voice(accent=accent, variant=variant, rate=320)
        spoken = [[speak(phrase, voice) for phrase in member.phrases()] for member in pair]
        onsets = [
            {next(x.word for x in s.phones if x.start >= s.words[1].start) for s in member}
            for member in spoken
        ]
        assert not onsets[0] & onsets[1], pair
        shortest = min((first_word(s) for member in spoken for s in member), key=len)
        for speech in itertools.chain(*spoken):
            same = first_word(speech)[: len(shortest)]
            assert np.array_equal(same, shortest), (pair, voice)


# The corpus.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spoken")
    parts = speak_corpus(folder, seed=3, minutes=0.5, num_dev=20, num_test=30, is_quiet=True)
    assert sum(part.seconds for part in parts if part.split == "train") >= 30
    return folder


def utterances_of(folder: Path, split: str) -> list[Utterance]:
    return read_manifest(folder / f"{split}.jsonl.gz")


def test_sizes_are_as_asked(corpus: Path) -> None:
    assert len(utterances_of(corpus, "dev")) == 20
    kinds = Counter(x.group["kind"] for x in utterances_of(corpus, "test"))
    assert kinds == {"digits": 13, "homophones": 14, "commands": 1, "spelled": 2}
    seconds = [x.duration for x in utterances_of(corpus, "train")]
    assert 30 <= sum(seconds) < 30 + max(seconds)


def test_parts_count_what_the_manifests_hold(tmp_path: Path) -> None:
    sizes = {"minutes": 0.0, "num_dev": 0, "num_test": 4}
    parts = speak_corpus(tmp_path, **sizes, shares={"digits": 1}, is_quiet=True)
    spoken = utterances_of(tmp_path, "test")
    seconds = sum(x.duration for x in spoken)
    assert parts[-1] == Part("test", "digits", 4, seconds) and len(spoken) == 4
    assert utterances_of(tmp_path, "train") == []


def test_the_speakers_of_the_splits_are_disjoint(corpus: Path) -> None:
    heard = [
        {x.speaker.partition("+")[2] for x in utterances_of(corpus, split)}
        for split in ("train", "dev", "test")
    ]
    assert not any(one & other for one, other in itertools.combinations(heard, 2))
    allowed = [set(variants_of(split)) for split in ("train", "dev", "test")]
    assert set().union(*allowed) == set(variants())
    assert not any(one & other for one, other in itertools.combinations(allowed, 2))
    assert {*DEV_VARIANTS, *TEST_VARIANTS} <= set(variants())
    assert len(variants_of("train")) > 70


def test_the_corpus_depends_on_the_seed_alone(corpus: Path, tmp_path: Path) -> None:
    sizes = {"minutes": 0.0, "num_dev": 20, "num_test": 0, "is_quiet": True}
    for seed in (3, 4):
        speak_corpus(tmp_path / str(seed), seed=seed, **sizes)
    same, other = (utterances_of(tmp_path / str(seed), "dev") for seed in (3, 4))
    for one, again in zip(utterances_of(corpus, "dev"), same, strict=True):
        assert (one.id, one.text, one.words, one.phones) == (
            *(again.id, again.text, again.words),
            again.phones,
        )
        assert Path(one.audio).read_bytes() == Path(again.audio).read_bytes()
    assert {x.text for x in same} != {x.text for x in other}
    assert not {x.id for x in same} & {x.id for x in other}  # so that both can be trained on


def test_a_larger_corpus_begins_with_the_smaller(tmp_path: Path, corpus: Path) -> None:
    shares = {"homophones": 1.0}
    speak_corpus(tmp_path, seed=3, minutes=0, num_dev=4, num_test=0, shares=shares, is_quiet=True)
    larger = {x.id: x.text for x in utterances_of(corpus, "dev")}
    assert all(larger[x.id] == x.text for x in utterances_of(tmp_path, "dev"))


def test_recordings_hold_what_their_manifest_says(corpus: Path) -> None:
    for utterance in utterances_of(corpus, "train"):
        audio = utterance.load()
        assert audio.sample_rate == SAMPLE_RATE
        assert audio.duration == pytest.approx(utterance.duration)
        assert utterance.text == " ".join(word.word for word in utterance.words)
        assert utterance.group["synthetic"] == "espeak-ng"
        lead = audio.samples[: int((utterance.words[0].start - 0.005) * SAMPLE_RATE)]
        said = audio.samples[int(utterance.words[0].start * SAMPLE_RATE) :]
        assert 0 < np.square(lead).mean() < 0.01 * np.square(said).mean()
        trail = utterance.duration - utterance.words[-1].end
        is_pair = utterance.group["kind"] == "homophones"
        assert trail == pytest.approx(0.03, abs=1e-3) if is_pair else 0.05 <= trail <= 0.301


def test_pairs_are_balanced_and_alike_until_the_next_word(corpus: Path) -> None:
    spoken = [x for x in utterances_of(corpus, "train") if x.group["kind"] == "homophones"]
    partners = list(zip(spoken[::2], spoken[1::2], strict=True))
    assert len(partners) > 8
    for one, other in partners:
        assert one.group["pair"] == f"{one.words[0].word}/{other.words[0].word}"
        assert (one.speaker, one.words[0].start) == (other.speaker, other.words[0].start)
        # The filter of the resampling hears a few milliseconds ahead.
        until = min(one.words[1].start, other.words[1].start) - 0.005
        samples = [x.load().samples[: int(until * SAMPLE_RATE)] for x in (one, other)]
        assert np.array_equal(*samples)
        assert not np.array_equal(one.load().samples, other.load().samples)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"seed": -1}, "seed should be at least 0, got -1"),
        ({"minutes": -1}, "minutes should be at least 0"),
        ({"minutes": float("nan")}, "minutes should be at least 0"),
        ({"num_dev": -1}, "num_dev should be at least 0"),
        ({"num_test": -1}, "num_test should be at least 0"),
        ({"shares": {"songs": 1.0}}, "shares should be of .*digits.*, got 'songs'"),
        ({"shares": {"digits": -1.0}}, "the share of digits should be at least 0"),
        ({"shares": {}}, "shares should name at least one kind"),
    ],
)
def test_speak_corpus_refuses(arguments: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        speak_corpus(tmp_path, **arguments)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "audio").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="audio"):
        speak_corpus(tmp_path, minutes=0.01, is_quiet=True)


def test_progress_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speak_corpus(tmp_path, minutes=0, num_dev=2, num_test=0)
    assert "speaking dev: 2/2 utterances" in capsys.readouterr().err
