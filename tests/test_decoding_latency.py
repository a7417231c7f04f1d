import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.audio import Audio, end_of_speech
from midge.cli import main
from midge.data import WordTime, read_manifest, write_manifest
from midge.decoding import evaluate, latency, streaming_evaluation
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.latency import Percentiles, Shown, revisions, simulate, word_delays
from midge.decoding.live import decode_offline
from midge.decoding.streaming_evaluation import evaluate_streaming, without_silence
from midge.decoding.streams import StreamingDecoder
from recognizers import RATE, noise, tiny_recognizer, write_recordings

torch.set_num_threads(1)
QUICK = EndpointConfig(pause=0.12, silence=0.4, max_segment=1.0)


@pytest.fixture(scope="module")
def decoder():
    return StreamingDecoder(tiny_recognizer())


@pytest.fixture
def utterances(tmp_path, decoder):
    """Recordings whose texts are what the model hears; the words of the first two have times."""
    found = []
    for number, each in enumerate(read_manifest(write_recordings(tmp_path / "data"))):
        audio = each.load()
        heard = decoder.recognizer.transcribe(audio.samples, audio.sample_rate)
        words = [WordTime(word.text.lower(), word.start, word.end) for word in heard.words]
        timed = tuple(words) if number < 2 else ()
        found.append(dataclasses.replace(each, text=heard.text, words=timed))
    assert all(each.words for each in found[:2])
    return found


def looks(*texts: str, committed: int = 0) -> list[Shown]:
    """What is shown after 1, 2, ... seconds."""
    return [Shown(1.0 + n, tuple(text.split()), committed) for n, text in enumerate(texts)]


def delays(reference: str, shown: list[Shown]) -> dict[str, tuple[float, float]]:
    """First shown and last changed, if the n-th word of the reference ends at n / 10."""
    words = [WordTime(word, 0.0, n / 10) for n, word in enumerate(reference.split())]
    return {
        each.word: (round(each.first_shown, 6), round(each.last_changed, 6))
        for each in word_delays(words, shown)
    }


def test_a_word_that_stays_is_shown_once():
    assert delays("A B", looks("A", "A B", "A B")) == {"A": (1.0, 1.0), "B": (1.9, 1.9)}


def test_a_word_that_comes_and_goes_is_late_by_its_last_change():
    assert delays("A B", looks("A", "X", "A B", "A", "A B")) == {"A": (1.0, 3.0), "B": (2.9, 4.9)}


def test_words_before_it_do_not_change_a_word():
    """A late insertion in front moves the others, which stay the same words."""
    found = delays("A B C", looks("B", "B C", "A B C"))
    assert found == {"A": (3.0, 3.0), "B": (0.9, 0.9), "C": (1.8, 1.8)}


def test_of_equal_words_the_first_is_shown_first():
    words = [WordTime("ONE", 0.0, 0.5), WordTime("ONE", 0.5, 1.0)]
    found = word_delays(words, looks("ONE", "ONE ONE"))
    assert [each.first_shown for each in found] == [0.5, 1.0]


def test_words_that_are_wrong_in_the_end_are_not_measured():
    assert delays("A B C", looks("A B C", "A X C")) == {"A": (1.0, 1.0), "C": (0.8, 0.8)}
    assert delays("A B", looks("", "")) == {}
    assert delays("", looks("A")) == {}


def test_a_guess_before_the_end_of_the_word_is_early():
    (found,) = word_delays([WordTime("A", 0.0, 2.5)], looks("A", "A"))
    assert found.first_shown == -1.5


def test_a_word_is_committed_when_it_is_said_to_be():
    shown = [Shown(1.0, ("A",), 0), Shown(2.0, ("A", "B"), 1), Shown(3.0, ("A", "B"), 2)]
    found = word_delays([WordTime("A", 0.0, 0.5), WordTime("B", 0.5, 1.0)], shown)
    assert [each.committed for each in found] == [1.5, 2.0]


@settings(deadline=None)
@given(data=st.data())
def test_delays_of_words_that_keep_their_places(data):
    """Where no word moves, the place of a word says whether it is shown."""
    final = [f"w{place}" for place in range(data.draw(st.integers(1, 5)))]
    rows = data.draw(
        st.lists(st.lists(st.booleans(), min_size=0, max_size=len(final)), min_size=0, max_size=6)
    )
    texts = [
        " ".join(final[place] if is_right else f"x{n}" for place, is_right in enumerate(row))
        for n, row in enumerate(rows)
    ]
    shown = looks(*texts, " ".join(final))
    reference = [WordTime(word, 0.0, 0.25) for word in final]
    for place, found in enumerate(word_delays(reference, shown)):
        times = [look.seconds for look in shown if final[place] in look.words]
        absent = [look.seconds for look in shown if final[place] not in look.words]
        assert found.first_shown == min(times) - 0.25
        assert found.last_changed == min(t for t in times if t > max(absent, default=0.0)) - 0.25


@pytest.mark.parametrize(
    "texts, expected",
    [
        (["A", "A B", "A B C"], (3, 0)),
        (["O", "ON", "ONE"], (1, 0)),  # still being spelled
        (["ON", "OF"], (2, 1)),
        (["ONE", "ON"], (2, 1)),  # taken back
        (["A B", "A", "A B"], (3, 1)),
        (["O TWO", "ONE TWO"], (3, 1)),  # only the last word may grow
        (["B C", "A B C"], (3, 0)),
        ([""], (0, 0)),
        (["A", ""], (1, 1)),
    ],
)
def test_revisions(texts, expected):
    assert revisions(looks(*texts)) == expected


def test_percentiles():
    found = Percentiles.of(range(101))
    assert (found.p50, found.p90, found.p99, found.count) == (50.0, 90.0, 99.0, 101)
    nothing = Percentiles.of([])
    assert math.isnan(nothing.p50) and nothing.count == 0


@pytest.mark.parametrize("chunk_seconds", [0.02, 0.1, 100.0])
def test_a_simulated_stream_ends_with_the_offline_result(decoder, chunk_seconds):
    audio = Audio(noise(1.5, seed=1), RATE)
    found = simulate(decoder, audio, chunk_seconds=chunk_seconds)
    assert found.transcript == decode_offline(decoder, audio.samples, RATE)
    assert found.shown[-1].words == tuple(word.text for word in found.transcript.words)
    assert found.shown[-1].num_committed == len(found.transcript.words)
    times = [look.seconds for look in found.shown]
    assert times == sorted(times) and times[-1] == 1.5
    assert all(
        seconds == 1.5 or seconds / chunk_seconds == pytest.approx(round(seconds / chunk_seconds))
        for seconds in times
    )
    assert found.final_latency > 0 and found.real_time_factor > 0
    if chunk_seconds < 1:
        assert len(found.shown) > 5, "nothing is shown before the end"
        # What can be known at a time is shown no later than the next chunk and block.
        wait = chunk_seconds + decoder.block_size * decoder.recognizer.front_end.frame_seconds
        word = found.transcript.words[0]
        first = next(look.seconds for look in found.shown if look.words)
        assert first <= word.start + wait + 0.1


def test_a_chunk_has_samples(decoder):
    for wrong in (0.0, -1.0):
        with pytest.raises(ValueError, match="chunk_seconds should be at least one sample"):
            simulate(decoder, Audio(noise(0.1, seed=0), RATE), chunk_seconds=wrong)


def test_silence_is_removed_after_the_true_end(utterances):
    samples = np.concatenate((noise(0.5, seed=1), np.zeros(RATE, np.float32)))
    audio = Audio(samples, RATE)
    timed = dataclasses.replace(utterances[0], words=(WordTime("A", 0.1, 0.3),))
    assert len(without_silence(timed, audio).samples) == round(0.3 * RATE)
    untimed = dataclasses.replace(utterances[0], words=())
    cut = without_silence(untimed, audio).samples
    assert len(cut) == end_of_speech(samples, RATE) <= round(0.5 * RATE)
    assert np.array_equal(cut, samples[: len(cut)])


def test_streams_are_evaluated_beside_the_offline_result(decoder, utterances):
    offline = evaluate(decoder.recognizer, utterances)
    steps = []
    found = evaluate_streaming(
        decoder, utterances, offline, endpointing=QUICK, progress=steps.append, seed=3
    )
    assert sum(steps) == streaming_evaluation.NUM_PASSES * len(utterances)
    assert found.num_different == 0
    assert [each.hypothesis for each in found.streaming.results] == [
        each.hypothesis for each in offline.results
    ]
    assert found.streaming.rates[0].words.estimate == 0.0
    for each, utterance in zip(found.endpointed.results, utterances, strict=True):
        samples = utterance.load().samples
        alone = decode_offline(decoder, samples, RATE, endpointing=QUICK)
        assert each.hypothesis == alone.text
    for each, utterance in zip(found.tight.results, utterances, strict=True):
        cut = without_silence(utterance, utterance.load())
        assert each.hypothesis == decode_offline(decoder, cut.samples, RATE).text
        assert each.seconds == cut.duration
    by_id = {each.id: each for each in found.latencies}
    assert by_id.keys() == {each.id for each in utterances}
    for utterance in utterances:
        measured = by_id[utterance.id]
        # Every word is right, as the text is what was heard.
        assert len(measured.delays) == measured.num_timed_words == len(utterance.words)
        assert (measured.first_partial is None) == (not utterance.words)
        assert measured.num_shown - measured.num_changed >= len(utterance.words)
        for delay in measured.delays:
            assert delay.first_shown <= delay.last_changed
            assert delay.first_shown <= delay.committed
    counts = {name: each.count for name, each in found.percentiles.items()}
    num_words = sum(len(each.words) for each in utterances)
    assert counts == {
        "first_shown": num_words,
        "last_changed": num_words,
        "committed": num_words,
        "first_partial": 2,
        "final_latency": 4,
        "real_time_factor": 4,
    }
    factors = sorted(each.real_time_factor for each in found.latencies)
    factor = found.percentiles["real_time_factor"]
    assert 0 < factors[0] < factor.p50 <= factor.p90 <= factor.p99 <= factors[-1]
    assert factor.p50 == pytest.approx((factors[1] + factors[2]) / 2)
    # What is busy is part of the time that passes.
    assert factors[0] <= found.streaming.real_time_factor
    assert 0.0 <= found.revision_rate < 1.0


def test_the_real_time_factor_is_what_the_decoder_takes(decoder, monkeypatch):
    """A clock that each look at it moves by a second: one at the start of a chunk, one at its end.

    Without sound there is no factor, and JSON has none.
    """
    clock = itertools.count()
    monkeypatch.setattr(latency.time, "perf_counter", lambda: float(next(clock)))
    found = simulate(decoder, Audio(noise(1.0, seed=1), RATE), chunk_seconds=0.25)
    assert found.real_time_factor == 5.0, "four chunks and the end, a second each"
    nothing = simulate(decoder, Audio(np.zeros(0, np.float32), RATE))
    assert math.isnan(nothing.real_time_factor)


def test_an_evaluation_without_times_or_audio_is_told_as_it_is(decoder, utterances, tmp_path):
    (tmp_path / "data" / "u3.wav").unlink()
    untimed = [dataclasses.replace(each, words=()) for each in utterances]
    offline = evaluate(decoder.recognizer, untimed)
    found = evaluate_streaming(decoder, untimed, offline)
    assert [each.id for each in found.streaming.failed] == ["u3"]
    assert {each.id for each in found.latencies} == {"u1", "u2", "u4"}
    plain = json.loads(json.dumps(streaming_evaluation.to_json(found)), parse_constant=pytest.fail)
    assert plain["percentiles"]["first_shown"] == {
        "p50": None,
        "p90": None,
        "p99": None,
        "count": 0,
    }
    shown = streaming_evaluation.table(found).splitlines()
    (line,) = [line for line in shown if line.startswith("word's true end to first shown")]
    assert line.split()[-4:] == ["-", "-", "-", "0"]


def test_the_command_shows_and_writes_what_was_measured(decoder, utterances, tmp_path, capsys):
    decoder.recognizer.save(tmp_path / "model")
    write_manifest(tmp_path / "timed.jsonl.gz", utterances)
    results = tmp_path / "results"
    arguments = [str(tmp_path / "model"), str(tmp_path / "timed.jsonl.gz"), "--streaming"]
    options = ["--output", str(results), "--chunk-seconds", "0.2", "--block-size", "2"]
    assert main(["evaluate", *arguments, *options]) == 0
    captured = capsys.readouterr()
    rows = [line.split("  ")[0] for line in captured.out.splitlines()]
    for row in (
        "offline",
        "streaming",
        "streaming, trailing silence removed",
        "streaming, endpoints (pause 0.8 s)",
        "word's true end to last changed",
        "end of the recording to final result",
        "seconds of decoding per second of sound",
    ):
        assert row in rows
    assert "Texts that differ between streaming and offline: 0 of 4." in captured.out
    assert "streaming: 12/12 utterances" in captured.err
    found = json.loads((results / "streaming.json").read_text(), parse_constant=pytest.fail)
    assert found["chunk_seconds"] == 0.2
    assert found["percentiles"]["first_shown"]["count"] == sum(len(x.words) for x in utterances)
    assert found["evaluations"]["streaming"]["groups"]["all"]["words"]["rate"]["estimate"] == 0.0
    assert main(["evaluate", *arguments, *options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["streaming"]["percentiles"].keys() == found["percentiles"].keys()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--chunk-seconds", "0"], "chunk_seconds should be at least one sample"),
        (["--block-size", "0"], "block_size should be at least 1"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(options, message, tmp_path, capsys):
    tiny_recognizer().save(tmp_path / "model")
    manifest = write_recordings(tmp_path / "data")
    arguments = ["evaluate", str(tmp_path / "model"), str(manifest), "--streaming", *options]
    assert main([*arguments, "--output", str(tmp_path / "results")]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_cannot_stream_is_refused_before_the_work(tmp_path, capsys):
    tiny_recognizer(is_streaming=False).save(tmp_path / "model")
    manifest = write_recordings(tmp_path / "data")
    arguments = ["evaluate", str(tmp_path / "model"), str(manifest), "--streaming"]
    assert main([*arguments, "--output", str(tmp_path / "results")]) == 2
    captured = capsys.readouterr()
    assert "streaming encoder" in captured.err and "decoding" not in captured.err
