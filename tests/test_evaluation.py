import dataclasses
import json
import math

import numpy as np
import pytest
import soundfile

from midge.audio import Audio
from midge.data import read_manifest
from midge.decoding import (
    ErrorCounts,
    Evaluation,
    TextErrors,
    UtteranceResult,
    compare,
    cut_at_pauses,
    evaluate,
    files,
    formats,
    reports,
    text_errors,
    transcribe_files,
)
from recognizers import RATE, TEXTS, noise, tiny_recognizer, write_recordings


@pytest.fixture(scope="module")
def recognizer():
    return tiny_recognizer()


@pytest.fixture
def utterances(tmp_path):
    return read_manifest(write_recordings(tmp_path / "data"))


def result(name, reference, hypothesis, speaker=None, groups=()):
    return UtteranceResult(
        id=name,
        reference=reference,
        hypothesis=hypothesis,
        seconds=1.0,
        speaker=speaker,
        groups=groups,
    )


def evaluation(*results):
    return Evaluation(results=results, decode_seconds=0.5)


def test_every_utterance_is_decoded_as_it_is_alone(recognizer, utterances):
    found = evaluate(recognizer, utterances, batch_seconds=2.5)
    assert [each.id for each in found.results] == list(TEXTS)
    assert [each.reference for each in found.results] == list(TEXTS.values())
    for each, utterance in zip(found.results, utterances, strict=True):
        audio = utterance.load()
        alone = recognizer.transcribe(audio.samples, audio.sample_rate)
        assert each.hypothesis == alone.text and each.words == alone.words
        assert each.seconds == utterance.duration
    assert len({each.hypothesis for each in found.results}) > 1, "the model hears nothing"
    assert found.decode_seconds > 0
    assert found.audio_seconds == pytest.approx(sum(each.duration for each in utterances))


@pytest.mark.parametrize("batch_seconds", [0.01, 1.7, 1000.0])
def test_batches_do_not_change_the_result(recognizer, utterances, batch_seconds):
    expected = evaluate(recognizer, utterances, batch_seconds=3.0)
    steps = []
    found = evaluate(recognizer, utterances, batch_seconds=batch_seconds, progress=steps.append)
    assert found.results == expected.results
    assert sum(steps) == len(utterances)


def test_rates_are_sums_over_utterances(recognizer, utterances):
    found = evaluate(recognizer, utterances, group_fields=["kind"], id_groups={"mine": {"u2"}})
    assert [rates.name for rates in found.rates] == ["all", "kind=long", "kind=short", "mine"]
    members = {"all": "1234", "kind=long": "13", "kind=short": "24", "mine": "2"}
    for rates in found.rates:
        chosen = [each for each in found.results if each.id[1] in members[rates.name]]
        total = sum((text_errors(x.reference, x.hypothesis) for x in chosen), TextErrors())
        assert rates.errors == total and rates.num_utterances == len(chosen)
        assert rates.words.estimate == total.words.rate
        assert rates.characters.estimate == total.characters.rate
        assert rates.sentences.estimate == total.sentences.rate
        assert rates.words.low <= rates.words.estimate <= rates.words.high
    assert found.rates[0].units == "2 speakers"
    assert found.rates[-1].units == "1 utterance of one speaker"


def test_what_cannot_be_read_is_deleted_and_named(recognizer, utterances, tmp_path):
    data = tmp_path / "data"
    (data / "u1.wav").unlink()
    (data / "u3.wav").write_text("no audio")
    found = evaluate(recognizer, utterances)
    failed = {each.id: each.failure for each in found.failed}
    assert failed.keys() == {"u1", "u3"}
    assert all(f"{name}.wav" in reason for name, reason in failed.items())
    for each in found.failed:
        length = len(each.reference.split())
        assert each.errors.words == ErrorCounts(num_deletions=length)
    assert found.rates[0].num_failed == 2 and found.rates[0].num_utterances == 4
    assert found.audio_seconds == pytest.approx(0.7 + 1.1)
    assert "2 could not be read" in reports.table(found)
    assert "FAILED" in reports.alignment_text(found.results[0])


def test_an_evaluation_of_nothing_but_failures_has_no_speed(recognizer, utterances, tmp_path):
    for path in (tmp_path / "data").glob("*.wav"):
        path.unlink()
    found = evaluate(recognizer, utterances)
    assert len(found.failed) == 4 and math.isnan(found.real_time_factor)
    assert found.rates[0].words.estimate == 1.0
    assert reports.to_json(found)["real_time_factor"] is None
    assert "Real-time factor" not in reports.table(found)


def test_an_unknown_character_of_a_reference_is_an_error_of_the_model_alone(recognizer, utterances):
    strange = [dataclasses.replace(utterances[0], text="zwölf")]
    (found,) = evaluate(recognizer, strange).results
    assert found.reference == "ZWÖLF" and found.errors.words.num_correct == 0


def test_wrong_arguments_are_refused(recognizer, utterances):
    with pytest.raises(ValueError, match="at least one, got none"):
        evaluate(recognizer, [])
    with pytest.raises(ValueError, match="u1 comes twice"):
        evaluate(recognizer, [utterances[0], utterances[0]])
    with pytest.raises(ValueError, match="the field 'sex'; fields: kind"):
        evaluate(recognizer, utterances, group_fields=["sex"])
    with pytest.raises(ValueError, match="group g: 1 of 2 ids are not in the manifest, such as x"):
        evaluate(recognizer, utterances, id_groups={"g": {"u1", "x"}})


def test_saved_and_loaded_is_the_same(recognizer, utterances, tmp_path):
    found = evaluate(recognizer, utterances, group_fields=["kind"], seed=4)
    folder = tmp_path / "new" / "results"
    written = reports.save(found, folder, description={"model": "tiny"})
    assert sorted(path.name for path in written) == sorted(x.name for x in folder.iterdir())
    assert reports.load(folder) == found
    summary = json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)
    assert summary["description"] == {"model": "tiny"}
    assert summary["groups"]["all"]["words"]["rate"]["estimate"] == found.rates[0].words.estimate
    assert formats.read_trn((folder / "references.trn").read_text()) == TEXTS
    heard = {each.id: each.hypothesis for each in found.results}
    assert formats.read_trn((folder / "hypotheses.trn").read_text()) == heard


@pytest.mark.parametrize(
    "name, text",
    [
        ("results.json", "{"),
        ("results.json", '{"format_version": 99}'),
        ("results.json", "{}"),
        ("hypotheses.jsonl", '{"id": "a"}\n'),
        ("hypotheses.jsonl", "[]\n"),
    ],
)
def test_a_damaged_folder_is_named(tmp_path, name, text):
    reports.save(evaluation(result("a", "A", "A")), tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        reports.load(tmp_path)


def test_alignments_can_be_read():
    shown = reports.alignment_text(result("u", "THE CAT SAT ON", "A CAT ON IT", "ann"))
    assert shown.splitlines() == [
        "u (ann): 4 words, 2 correct, 1 substituted, 1 deleted, 1 inserted",
        "REF THE CAT SAT ON **",
        "HYP A   CAT *** ON IT",
        "OPS S       D      I",
    ]


def test_long_alignments_are_broken_into_lines():
    words = [f"WORD{number}" for number in range(60)]
    lines = reports.alignment_text(result("u", " ".join(words), " ".join(words[1:]))).splitlines()
    assert max(map(len, lines)) <= 100
    for name in ("REF", "HYP"):
        shown = [word for line in lines if line.startswith(name) for word in line.split()[1:]]
        assert [word for word in shown if "*" not in word] == words[name == "HYP" :]


def test_tables_show_what_was_found():
    found = evaluation(
        result("a", "A B C D", "A B C X", "ann", ("easy",)), result("b", "A B", "", "ben")
    )
    heading, rule, *rows = reports.table(found).splitlines()
    assert heading.split()[:5] == ["utterances", "words", "sub", "del", "ins"]
    assert set(rule) == {"-"}
    assert rows[0].split()[:7] == ["all", "2", "6", "1", "2", "0", "50.00"]
    assert rows[1].split()[:7] == ["easy", "1", "4", "1", "0", "0", "25.00"]
    assert rows[0].endswith("2 speakers")


def better(share):
    """Ten speakers of ten words, each with as many wrong as this."""
    wrong = ["A"] * (10 - share) + ["X"] * share
    return evaluation(*(result(f"u{n}", "A " * 10, " ".join(wrong), f"s{n}") for n in range(10)))


def test_a_comparison_is_paired():
    (found,) = compare(better(4), better(3))
    assert (found.first, found.second) == (0.4, 0.3)
    assert found.difference.estimate == pytest.approx(-0.1)
    assert found.difference.low == found.difference.high == pytest.approx(-0.1)
    assert found.relative.estimate == pytest.approx(-0.25)
    assert found.share_better == 1.0 and found.units == "10 speakers"
    (same,) = compare(better(4), better(4))
    assert same.difference.estimate == 0.0 and same.share_better == 0.5
    assert "-10.00" in reports.comparison_table([found])


def test_a_comparison_of_groups():
    first = evaluation(result("a", "A", "A", groups=("x",)), result("b", "B", "B"))
    second = evaluation(result("b", "B", "C"), result("a", "A", "A", groups=("x",)))
    assert [each.name for each in compare(first, second)] == ["all", "x"]
    assert [each.difference.estimate for each in compare(first, second)] == [0.5, 0.0]


def test_what_is_not_the_same_is_not_compared():
    with pytest.raises(ValueError, match="1 are in one of them alone, such as b"):
        compare(
            evaluation(result("a", "A", "A")),
            evaluation(result("a", "A", "A"), result("b", "B", "B")),
        )
    with pytest.raises(ValueError, match="a has 'A' and 'B'"):
        compare(evaluation(result("a", "A", "A")), evaluation(result("a", "B", "A")))
    compare(evaluation(result("a", "A", "A")), evaluation(result("a", "a", "a")))


def blocks(samples, size):
    return [Audio(samples[at : at + size], RATE) for at in range(0, len(samples), size)]


@pytest.mark.parametrize("block_size", [777, 8000, 1 << 20])
def test_a_long_recording_is_cut_where_it_is_quiet(block_size):
    samples = noise(9.0, seed=3) + 0.05
    samples[int(1.4 * RATE) : int(1.7 * RATE)] = 0.0
    samples[int(3.0 * RATE) : int(3.2 * RATE)] = 0.0
    pieces = list(cut_at_pauses(blocks(samples, block_size), max_seconds=2.0))
    assert np.array_equal(np.concatenate([piece.audio.samples for piece in pieces]), samples)
    assert all(piece.audio.duration <= 2.0 for piece in pieces)
    assert 1.4 <= pieces[1].start <= 1.7 and 3.0 <= pieces[2].start <= 3.2
    starts = np.cumsum([0.0, *(piece.audio.duration for piece in pieces)])
    assert [piece.start for piece in pieces] == pytest.approx(starts[:-1])


def test_what_is_short_is_not_cut():
    (piece,) = cut_at_pauses(blocks(noise(2.0, seed=1), 500), max_seconds=2.0)
    assert piece.start == 0.0 and piece.audio.duration == 2.0
    (silent,) = cut_at_pauses([Audio(np.zeros(0, np.float32), RATE)])
    assert len(silent.audio.samples) == 0


def test_files_are_transcribed_as_they_are_alone(recognizer, tmp_path):
    write_recordings(tmp_path)
    paths = [tmp_path / f"{name}.wav" for name in TEXTS]
    for batch_seconds in (0.01, 2.0, 100.0):
        heard = []
        found = transcribe_files(
            recognizer, paths, batch_seconds=batch_seconds, progress=heard.append
        )
        for path, (name, transcript) in zip(paths, found, strict=True):
            samples, rate = soundfile.read(path, dtype="float32")
            alone = recognizer.transcribe(samples, rate)
            assert name == path
            assert dataclasses.replace(transcript, score=0) == dataclasses.replace(alone, score=0)
            assert transcript.score == pytest.approx(alone.score, rel=1e-4)
        assert sum(heard) == pytest.approx(0.5 + 0.7 + 0.9 + 1.1)


def test_a_file_in_pieces_has_times_of_the_whole(recognizer, tmp_path):
    samples = noise(6.0, seed=5)
    soundfile.write(tmp_path / "long.wav", samples, RATE, subtype="FLOAT")
    ((_, found),) = transcribe_files(recognizer, [tmp_path / "long.wav"], max_seconds=2.0)
    pieces = list(cut_at_pauses(blocks(samples, RATE), max_seconds=2.0))
    assert len(pieces) >= 3
    apart = [recognizer.transcribe(piece.audio.samples, RATE) for piece in pieces]
    assert found.text == " ".join(each.text for each in apart if each.text)
    shifted = [
        (word.text, word.start + piece.start)
        for piece, each in zip(pieces, apart, strict=True)
        for word in each.words
    ]
    assert [word.text for word in found.words] == [text for text, _ in shifted]
    assert [word.start for word in found.words] == pytest.approx([start for _, start in shifted])
    assert found.seconds == pytest.approx(6.0)
    assert found.labels == tuple(label for each in apart for label in each.labels)
    before = [round(piece.start / recognizer.front_end.frame_seconds) for piece in pieces]
    assert found.frames == tuple(
        first + frame for first, each in zip(before, apart, strict=True) for frame in each.frames
    )


def test_never_more_than_a_batch_is_held(recognizer, tmp_path, monkeypatch):
    soundfile.write(tmp_path / "long.wav", noise(30.0, seed=6), RATE)
    sizes = []
    whole = files.transcribe_batch

    def watched(recognizer, audio):
        sizes.append(sum(each.duration for each in audio))
        return whole(recognizer, audio)

    monkeypatch.setattr(files, "transcribe_batch", watched)
    path = tmp_path / "long.wav"
    list(transcribe_files(recognizer, [path], max_seconds=2.0, batch_seconds=4.0))
    assert sum(sizes) == pytest.approx(30.0) and max(sizes) <= 4.0


def test_a_broken_file_does_not_stop_the_others(recognizer, tmp_path):
    write_recordings(tmp_path)
    (tmp_path / "u2.wav").write_bytes(b"no audio")
    names = ["u1", "u2", "missing", "u3"]
    paths = [tmp_path / f"{name}.wav" for name in names]
    for batch_seconds in (0.01, 100.0):
        found = list(transcribe_files(recognizer, paths, batch_seconds=batch_seconds))
        assert [path for path, _ in found] == paths
        failed = [isinstance(each, Exception) for _, each in found]
        assert failed == [False, True, True, False]
        assert "u2.wav" in str(found[1][1]) and isinstance(found[2][1], FileNotFoundError)


def test_the_longest_piece_is_at_least_a_second(recognizer):
    with pytest.raises(ValueError, match="max_seconds should be at least 1, got 0"):
        list(transcribe_files(recognizer, [], max_seconds=0))
    with pytest.raises(ValueError, match="max_seconds should be at least 1"):
        list(cut_at_pauses([], max_seconds=float("nan")))
