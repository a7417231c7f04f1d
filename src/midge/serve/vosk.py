"""The protocol of the Vosk server, so that its clients work unchanged.

A client sends an optional config, sound, and `{"eof": 1}`, in lock step: exactly one answer comes
to each message of sound and to eof, none to a config. The answer is what is known at that moment: a
segment that is over ("text", "result"), one for each answer, or else the present "partial". It does
not wait for the sound just sent to be decoded. All that is left comes with the answer to eof. A
segment whose alternatives are still looked for is a "partial" until they are found.

What a Vosk server would die of is answered with the present partial and, beside it, an "error".
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from starlette.websockets import WebSocket

from midge.decoding.events import Segment
from midge.models import TimedWord
from midge.serve.access import Refusal
from midge.serve.connections import BadMessage, Connection, Stop, parsed, serve_websocket
from midge.serve.sessions import Session
from midge.serve.settings import MAX_NUM_BEST, StreamSettings, whole_rate
from midge.serve.writing import written

PROTOCOL = "vosk"
DEFAULT_RATE = 8000
"""Hertz. What the Vosk server takes sound for if no config says otherwise."""

UNKNOWN = "[unk]"
"""In a list of phrases: all that is not listed. It is always allowed here."""
PARTIAL_SECONDS = 0.25
"""Least time between two partial results with words: their confidences are costly, and not told."""


async def vosk_endpoint(websocket: WebSocket) -> None:
    """`WS /` and `WS /vosk`."""
    service = websocket.app.state.service
    await serve_websocket(websocket, service, _talk, _refusal_event)


def _refusal_event(refusal: Refusal) -> dict[str, Any]:
    return {"error": str(refusal), "code": refusal.code}


async def _talk(connection: Connection) -> None:
    await _VoskStream(connection).run()


class VoskConfig:
    """What the config messages of a client have asked for so far.

    Args:
        check: raises a ValueError for settings that no stream can have.
    """

    def __init__(self, check: Callable[[StreamSettings], None]) -> None:
        self._check = check
        self.has_words = True
        """Whether results list their words with times."""
        self.max_alternatives = 0
        """How many alternatives a result has; 0 is another form of result."""
        self._sample_rate = DEFAULT_RATE
        self._phrases: tuple[str, ...] = ()

    def update(self, config: Any) -> None:
        """Takes a config message's object.

        Raises:
            BadMessage: names the value that is wrong; those before it are taken.
        """
        if not isinstance(config, Mapping):
            raise BadMessage("bad_config", f"config should be an object, got {config!r:.100}")
        if "sample_rate" in config:
            sample_rate = _number("sample_rate", whole_rate(config["sample_rate"]))
            self._sample_rate = self._checked(sample_rate, self._phrases).sample_rate
        if "words" in config:
            self.has_words = bool(config["words"])
        if "max_alternatives" in config:
            wanted = _number("max_alternatives", config["max_alternatives"])
            self.max_alternatives = max(0, min(wanted, MAX_NUM_BEST))
        if "phrase_list" in config:
            phrases = _phrases(config["phrase_list"])
            self._phrases = self._checked(self._sample_rate, phrases).phrases

    def settings(self) -> StreamSettings:
        """The settings of the stream."""
        return self._checked(self._sample_rate, self._phrases)

    def _checked(self, sample_rate: int, phrases: tuple[str, ...]) -> StreamSettings:
        """Settings with a rate and phrases that may be new.

        Raises:
            BadMessage: if the sample rate is out of range, or the model cannot spell a phrase.
        """
        try:
            settings = StreamSettings(
                sample_rate=sample_rate,
                has_confidence=self.has_words,
                num_best=self.max_alternatives,
                phrases=phrases,
                partial_seconds=PARTIAL_SECONDS if self.has_words else 0.0,
            )
            self._check(settings)
        except ValueError as error:
            raise BadMessage("bad_config", str(error)) from None
        return settings


def _phrases(value: Any) -> tuple[str, ...]:
    """A list of phrases, also as a JSON text, without the word that stands for all others."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list) or not all(isinstance(phrase, str) for phrase in value):
        raise BadMessage("bad_config", "phrase_list should be a list of strings")
    return tuple(phrase for phrase in value if phrase != UNKNOWN)


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadMessage("bad_config", f"{name} should be a number, got {value!r:.100}")
    return value


class _VoskStream:
    """One stream. Its session begins with the first sound, as in a Vosk server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._config = VoskConfig(connection.service.check)
        self._session: Session | None = None
        self._places = ExitStack()
        self._error = ""

    async def run(self) -> None:
        """Answers until the end."""
        with self._places:
            await self._run()

    async def _run(self) -> None:
        stop = await self._listen()
        session = self._session
        if session is not None:
            session.close()
            await session.ended()
            self._connection.service.log_end(session, stop.reason)
        # In another thread: of a whole file that came at once it may be much.
        await self._connection.send_text(await asyncio.to_thread(self._last_text, stop))
        await self._connection.close(stop.reason)

    def _last_text(self, stop: Stop) -> str:
        """The last answer: what was not told, and what is wrong if anything is."""
        session = self._session
        answer = {} if session is None and str(stop) else self._rest()
        errors = [str(stop) or answer.get("error", "")]
        if session is not None and session.backlog_seconds:
            errors.append(f"the last {session.backlog_seconds:.3f} seconds were not heard")
        error = "; ".join(filter(None, errors))
        return written(answer | ({"error": error} if error else {}))

    async def _listen(self) -> Stop:
        try:
            while self._session is None or not self._session.is_over:
                message = await self._connection.receive()
                try:
                    has_answer = await self._take(message)
                except BadMessage as error:
                    self._error, has_answer = str(error), error.code != "bad_config"
                    self._connection.count_error(error.code)
                if has_answer:
                    await self._connection.send(self._answer())
        except Stop as stop:
            return stop
        return Stop("internal", "the server could not go on with this stream")

    async def _take(self, message: str | bytes) -> bool:
        """Takes a message; whether it is to be answered now."""
        if isinstance(message, bytes):
            await self._connection.hear(self._started(), message)
            return True
        found = parsed(message)
        if "config" in found:
            self._config.update(found["config"])
            return False
        if found.get("eof"):
            raise Stop("end")
        raise BadMessage("bad_message", "a text message should be a config or eof")

    def _started(self) -> Session:
        if self._session is None:
            service, settings = self._connection.service, self._config.settings()
            self._places.enter_context(service.admission.costly(settings.has_confidence))
            self._session = service.open(settings, PROTOCOL, self._connection.client)
        return self._session

    def _answer(self) -> dict[str, Any]:
        """What is known now: a segment that was not told, or the present partial result."""
        session = self._session
        answer: dict[str, Any] = {"partial": ""}
        if session is not None and session.segments:
            first = session.segments[0]
            is_whole = first.number not in session.awaited
            answer = self._result(1) if is_whole else {"partial": first.transcript.text}
        elif session is not None and session.partial is not None:
            answer = {"partial": session.partial.text}
        error, self._error = self._error, ""
        return answer | ({"error": error} if error else {})

    def _rest(self) -> dict[str, Any]:
        """All that was not told, as one result."""
        session = self._session
        if session is None:
            return self._result(0)
        failure = {} if session.failure is None else {"error": session.failure}
        return self._result(len(session.segments)) | failure

    def _result(self, count: int) -> dict[str, Any]:
        """The first segments that were not told, as one result."""
        config = self._config
        segments = [_taken(self._session) for _ in range(count) if self._session is not None]
        if config.max_alternatives:
            return alternatives_result(segments, has_words=config.has_words)
        return plain_result(segments, has_words=config.has_words)


def _taken(session: Session) -> Segment:
    """The first segment that was not told, with its alternatives."""
    segment = session.segments.popleft()
    alternatives = session.alternatives.pop(segment.number, segment.alternatives)
    return dataclasses.replace(segment, alternatives=alternatives)


def plain_result(segments: Sequence[Segment], *, has_words: bool) -> dict[str, Any]:
    """Segments as one result of Vosk: "text", and "result" with words if there are any.

    Args:
        segments: one after the other.
        has_words: whether the words are listed.
    """
    text = " ".join(each.transcript.text for each in segments if each.transcript.text)
    words = [word for each in segments for word in each.transcript.words]
    if not has_words or not words:
        return {"text": text}
    return {"result": [_timed(word) | _confidence(word) for word in words], "text": text}


def alternatives_result(segments: Sequence[Segment], *, has_words: bool) -> dict[str, Any]:
    """Segments as one result of Vosk with alternatives, each with "text" and "confidence".

    The first is the text of the stream. Only it has times, so only it lists its words; its
    confidence is left out if the search for alternatives did not meet it. Several segments, at
    the end of a stream, are joined to one alternative.

    Args:
        segments: one after the other.
        has_words: whether the words of the first are listed.
    """
    best = plain_result(segments, has_words=False)
    words = [_timed(word) for each in segments for word in each.transcript.words]
    if has_words and words:
        best["result"] = words
    known = [_probability_of(each.transcript.text, each) for each in segments]
    if None not in known:
        best["confidence"] = math.prod(filter(None, known))
    others = segments[0].alternatives if len(segments) == 1 else ()
    listed = [
        {"confidence": math.exp(each.log_probability), "text": each.text}
        for each in others
        if each.text != best["text"]
    ]
    return {"alternatives": [best, *listed]}


def _probability_of(text: str, segment: Segment) -> float | None:
    found = (each for each in segment.alternatives if each.text == text)
    return next((math.exp(each.log_probability) for each in found), None)


def _timed(word: TimedWord) -> dict[str, Any]:
    return {"end": round(word.end, 6), "start": round(word.start, 6), "word": word.text}


def _confidence(word: TimedWord) -> dict[str, Any]:
    return {} if word.confidence is None else {"conf": round(word.confidence, 6)}
