"""The Vosk protocol on a real server: lock step, its forms of answers, and the text of a stream."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from midge.decoding.decoded import Alternative
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.events import Segment
from midge.decoding.live import decode_offline
from midge.decoding.live_alternatives import LiveAlternatives
from midge.decoding.streams import StreamingDecoder
from midge.models import TimedWord, Transcript
from midge.serve.vosk import alternatives_result, plain_result
from recognizers import RATE, noise, tiny_recognizer
from servers import (
    DECODER,
    PAUSING,
    chunks,
    heard_pcm16,
    pcm16,
    running,
    vosk_streamed,
    with_pauses,
)

SAMPLES = noise(1.6, seed=2)
LONG = with_pauses()
PAUSING_DECODER = StreamingDecoder(tiny_recognizer(PAUSING))


@pytest.fixture(scope="module")
def server():
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def pausing():
    with running(PAUSING_DECODER) as found:
        yield found


def told(samples: np.ndarray, rate: int = RATE, decoder: StreamingDecoder = DECODER) -> Transcript:
    return decode_offline(decoder, heard_pcm16(samples), rate, endpointing=EndpointConfig())


def joined_text(answers: list[dict]) -> str:
    return " ".join(answer["text"] for answer in answers if answer.get("text"))


@pytest.mark.parametrize("size", [34, 4000, 1 << 20])
@pytest.mark.parametrize("rate", [8000, 16000.0])
def test_the_text_is_that_of_a_stream(server, size, rate):
    answers = vosk_streamed(server, chunks(pcm16(SAMPLES), size), sample_rate=rate)
    expected = told(SAMPLES, int(rate))
    assert joined_text(answers) == expected.text and expected.text
    assert all(("partial" in answer) != ("text" in answer) for answer in answers)
    assert "text" in answers[-1]


def test_segments_come_one_by_one_with_their_words(pausing):
    answers = vosk_streamed(pausing, chunks(pcm16(LONG), 160), sample_rate=float(RATE))
    expected = told(LONG, decoder=PAUSING_DECODER)
    assert joined_text(answers) == expected.text
    words = [word for answer in answers for word in answer.get("result", ())]
    assert [word["word"] for word in words] == [word.text for word in expected.words]
    assert [word["start"] for word in words] == pytest.approx(
        [word.start for word in expected.words], abs=1e-5
    )
    assert all(set(word) == {"word", "start", "end", "conf"} for word in words)
    assert all(0 <= word["conf"] <= 1 for word in words)


def test_partials_are_those_of_the_moment(server):
    """An answer does not wait for its own sound; what was decoded by then is in it."""
    with server.connect("/vosk") as connection:
        connection.send(json.dumps({"config": {"sample_rate": RATE, "words": 0}}))
        connection.send(pcm16(SAMPLES))
        assert json.loads(connection.recv()) == {"partial": ""}

        def has_words() -> bool:
            connection.send(bytes(2))
            return json.loads(connection.recv())["partial"] != ""

        server.wait_for(has_words)
        connection.send('{"eof": 1}')
        assert set(json.loads(connection.recv())) == {"text"}, "words were not asked for"


def test_a_config_is_not_answered_and_may_come_in_parts(server):
    with server.connect("/") as connection:
        connection.send('{"config": {"sample_rate": 16000.000000}}')
        connection.send('{"config": {"words": false, "phrase_list": []}}')
        connection.send('{ "config" : { "sample_rate" : 8000 } }')
        connection.send(pcm16(SAMPLES))
        assert "partial" in json.loads(connection.recv())
        connection.send('{"eof" : 1}')
        assert json.loads(connection.recv()) == {"text": told(SAMPLES).text}


def test_alternatives(server):
    config = {"sample_rate": RATE, "max_alternatives": 20, "words": True}
    answers = vosk_streamed(server, chunks(pcm16(SAMPLES), 4000), **config)
    results = [answer["alternatives"] for answer in answers if "alternatives" in answer]
    assert " ".join(each[0]["text"] for each in results if each[0]["text"]) == told(SAMPLES).text
    assert max(map(len, results)) > 1
    assert all(len({other["text"] for other in each}) == len(each) for each in results)


def test_a_segment_is_told_with_its_alternatives(pausing, monkeypatch):
    """Until they are found it is a partial result, and answers come at once all the same."""
    may_search = threading.Event()
    search = LiveAlternatives.listed

    def waiting(*arguments: object) -> object:
        may_search.wait(60)
        return search(*arguments)

    monkeypatch.setattr(LiveAlternatives, "listed", waiting)
    stream = PAUSING_DECODER.stream(RATE, endpointing=EndpointConfig())
    stream.accept(heard_pcm16(LONG))
    first = stream.segments[0].transcript.text
    with pausing.connect("/") as connection:

        def answer(data: bytes) -> dict:
            connection.send(data)
            return json.loads(connection.recv())

        config = {"sample_rate": RATE, "words": 0, "max_alternatives": 2}
        connection.send(json.dumps({"config": config}))
        answer(pcm16(LONG))
        pausing.wait_for(lambda: answer(bytes(2)) == {"partial": first})
        assert all(answer(bytes(2)) == {"partial": first} for _ in range(10))
        may_search.set()
        answers: list[dict] = []
        pausing.wait_for(lambda: answers.append(answer(bytes(2))) or "alternatives" in answers[-1])
        found = [each["text"] for each in answers[-1]["alternatives"]]
        assert found[0] == first and 2 <= len(found) <= 3
        connection.send('{"eof" : 1}')
        assert "alternatives" in json.loads(connection.recv())


@pytest.mark.parametrize("is_text", [False, True])
def test_phrases(server, is_text):
    phrases = ["n", "[unk]"]
    config = {"phrase_list": json.dumps(phrases) if is_text else phrases}
    answers = vosk_streamed(
        server, chunks(pcm16(SAMPLES), 4000), sample_rate=RATE, words=0, **config
    )
    expected = decode_offline(
        DECODER, heard_pcm16(SAMPLES), RATE, endpointing=EndpointConfig(), phrases=phrases[:1]
    )
    assert joined_text(answers) == expected.text != told(SAMPLES).text


def test_without_sound_the_end_is_empty(server):
    assert vosk_streamed(server, []) == [{"text": ""}]


@pytest.mark.parametrize(
    "message, error",
    [
        (b"", "should not be empty"),
        (b"abc", "multiple of 2 bytes, got 3"),
        ("{", "should be JSON"),
        ("[1]", "JSON object"),
        ("hello", "should be JSON"),
        ('{"reset": 1}', "config or eof"),
        ("[" * 5000, "should be JSON"),
    ],
)
def test_what_is_wrong_is_answered_once_and_the_stream_goes_on(server, message, error):
    messages = chunks(pcm16(SAMPLES), 4000)
    with server.connect("/") as connection:
        connection.send(json.dumps({"config": {"sample_rate": RATE}}))
        answers = []
        for sent in (messages[0], message, *messages[1:], '{"eof": 1}'):
            connection.send(sent)
            answers.append(json.loads(connection.recv()))
    assert error in answers[1]["error"] and "partial" in answers[1]
    assert all("error" not in answer for answer in answers[2:])
    assert joined_text(answers) == told(SAMPLES).text


@pytest.mark.parametrize(
    "config, error",
    [
        ({"sample_rate": "fast"}, "sample_rate should be a number"),
        ({"sample_rate": 1}, "sample_rate should be in"),
        ({"max_alternatives": [1]}, "max_alternatives should be a number"),
        ({"phrase_list": 5}, "phrase_list should be a list of strings"),
        ({"phrase_list": ["one", 2]}, "phrase_list should be a list of strings"),
        ({"phrase_list": "[one"}, "phrase_list should be a list of strings"),
        ({"phrase_list": ["one", "fish"]}, "got 'fish' with 'FHIS'"),
        ([1], "config should be an object"),
    ],
)
def test_a_wrong_config_is_told_with_the_next_answer(server, config, error):
    with server.connect("/") as connection:
        connection.send(json.dumps({"config": config}))
        connection.send(pcm16(SAMPLES[:800]))
        assert error in json.loads(connection.recv())["error"]
        connection.send('{"eof": 1}')
        assert "error" not in json.loads(connection.recv())


def segment(text: str, *alternatives: tuple[str, float]) -> Segment:
    words = tuple(TimedWord(word, 0.1, 0.2, 0.75) for word in text.split())
    transcript = Transcript(text, words, (), (), -1.0, 1.0)
    found = tuple(Alternative(each, float(np.log(share)), 0.0) for each, share in alternatives)
    return Segment(0, 0.0, 1.0, transcript, "pause", found)


def test_the_forms_of_a_result():
    word = {"word": "ONE", "start": 0.1, "end": 0.2, "conf": 0.75}
    assert plain_result([segment("ONE")], has_words=True) == {"result": [word], "text": "ONE"}
    assert plain_result([segment("ONE"), segment(""), segment("TWO")], has_words=False) == {
        "text": "ONE TWO"
    }
    assert plain_result([segment("")], has_words=True) == {"text": ""}


def test_the_forms_of_alternatives():
    found = alternatives_result([segment("ONE", ("ON", 0.5), ("ONE", 0.25))], has_words=True)
    first, second = found["alternatives"]
    assert first["text"] == "ONE" and first["confidence"] == pytest.approx(0.25)
    assert first["result"] == [{"word": "ONE", "start": 0.1, "end": 0.2}]
    assert second == {"confidence": pytest.approx(0.5), "text": "ON"}
    unmet = alternatives_result([segment("ONE", ("ON", 0.5))], has_words=False)
    assert unmet["alternatives"][0] == {"text": "ONE"}, "its probability is not known"
    two = [segment("ONE", ("ONE", 0.5)), segment("TWO", ("TWO", 0.5), ("TOO", 0.1))]
    assert alternatives_result(two, has_words=False) == {
        "alternatives": [{"text": "ONE TWO", "confidence": pytest.approx(0.25)}]
    }
