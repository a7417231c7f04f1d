"""What a server allows, and what a stream may ask of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from midge.configuration import from_table
from midge.decoding.endpointing import EndpointConfig

Encoding = Literal["pcm16", "float32"]
"""How samples are written: 16-bit integers or floats in [-1, 1], little endian."""
SAMPLE_SIZES: Mapping[str, int] = {"pcm16": 2, "float32": 4}
"""Bytes of a sample."""
MAX_NUM_BEST = 10
MAX_PHRASES, MAX_PHRASE_SIZE = 500, 100
"""How many, and characters of each: what takes a few milliseconds to be made ready."""
MAX_BLANK_PENALTY = 20.0
"""Nats. More only means: all blank, or none."""
LOWEST_RATE, HIGHEST_RATE = 1000, 384000
"""Hertz. Nobody records speech outside; a rate of 1 Hz would turn bytes into hours."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server gives its clients at most."""

    max_streams: int = 32
    """Streams at once; `midge serve` measures how many the machine carries."""
    confident_places: int = 1
    """How many of them a stream with confidences counts as; `midge serve` measures that too."""
    max_streams_per_client: int = 16
    """Streams at once from one address."""
    max_message_bytes: int = 8 << 20
    """Size of a message: four minutes of 16-bit sound at 16 kHz."""
    max_upload_bytes: int = 512 << 20
    """Size of a whole file."""
    max_stream_seconds: float = 4 * 3600.0
    """Length of a stream."""
    max_idle_seconds: float = 60.0
    """How long a client may send nothing, or take nothing."""
    max_backlog_seconds: float = 30.0
    """Sound of a stream that may wait for the worker; beyond it nothing more is read."""
    behind_seconds: float = 2.0
    """A stream with more sound waiting is told that it is behind."""
    max_errors: int = 100
    """Messages of a stream that may be wrong before it is closed."""

    def __post_init__(self) -> None:
        """Checks the values."""
        for name, value in dataclasses.asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name} should be more than 0, got {value}")


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """What a client asks of its stream."""

    sample_rate: int = 16000
    """Of the samples to come, in hertz."""
    encoding: Encoding = "pcm16"
    """Of the samples to come."""
    endpointing: EndpointConfig | None = EndpointConfig()
    """Where it is cut into segments; None leaves it whole."""
    has_confidence: bool = False
    """Whether words carry their confidence."""
    num_best: int = 0
    """Alternatives of each segment."""
    blank_penalty: float = 0.0
    """Nats taken off blank."""
    phrases: tuple[str, ...] = ()
    """Phrases to expect."""
    has_progress: bool = False
    """Whether a partial result is told for each message, also if no word has changed."""
    partial_seconds: float = 0.0
    """Least time between two partial results; those with confidences are costly."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if not LOWEST_RATE <= self.sample_rate <= HIGHEST_RATE:
            raise ValueError(
                f"sample_rate should be in {LOWEST_RATE}..{HIGHEST_RATE}, got {self.sample_rate}"
            )
        if self.encoding not in SAMPLE_SIZES:
            raise ValueError(f"encoding should be one of {list(SAMPLE_SIZES)}, got {self.encoding}")
        if not 0 <= self.num_best <= MAX_NUM_BEST:
            raise ValueError(f"num_best should be in 0..{MAX_NUM_BEST}, got {self.num_best}")
        if not abs(self.blank_penalty) <= MAX_BLANK_PENALTY:
            raise ValueError(
                f"blank_penalty should be within {MAX_BLANK_PENALTY:g} nats, "
                f"got {self.blank_penalty}"
            )
        if len(self.phrases) > MAX_PHRASES:
            raise ValueError(f"phrases should be at most {MAX_PHRASES}, got {len(self.phrases)}")
        for phrase in self.phrases:
            if len(phrase) > MAX_PHRASE_SIZE:
                raise ValueError(
                    f"phrases should have at most {MAX_PHRASE_SIZE} characters each, "
                    f"got {len(phrase)} in {phrase[:MAX_PHRASE_SIZE]!r}"
                )

    @property
    def sample_size(self) -> int:
        """Bytes of a sample."""
        return SAMPLE_SIZES[self.encoding]

    def stream_options(self) -> dict[str, Any]:
        """The options of `StreamingDecoder.stream`, but for the sample rate."""
        return {
            "endpointing": self.endpointing,
            "blank_penalty": self.blank_penalty,
            "has_confidence": self.has_confidence,
            "num_best": self.num_best,
            "has_late_alternatives": True,
            "phrases": self.phrases,
        }


PAGE_SETTINGS = StreamSettings(has_confidence=True, num_best=3, has_progress=True)
"""What the page asks for unless its visitor chooses otherwise; see `static/settings.js`."""


@dataclass(frozen=True, kw_only=True)
class _StartMessage:
    """The keys of a start message, but for `endpointing`; see docs/serving.md."""

    sample_rate: int = 16000
    encoding: Encoding = "pcm16"
    confidence: bool = False
    num_best: int = 0
    blank_penalty: float = 0.0
    phrases: tuple[str, ...] = ()
    progress: bool = False


def settings_from(message: Mapping[str, Any]) -> StreamSettings:
    """The settings that a start message asks for.

    Args:
        message: its keys but for `command`: sample_rate, encoding, endpointing (true, false or
            an object of rules), confidence, num_best, blank_penalty, phrases, progress. All are
            optional.

    Raises:
        ValueError: for an unknown key, a wrong type or a value out of range; it names the key.

    Example:
        >>> settings_from({"sample_rate": 8000.0, "endpointing": False}).endpointing is None
        True
        >>> settings_from({"sample_rat": 8000})
        Traceback (most recent call last):
        ValueError: [start] has no key 'sample_rat'; did you mean 'sample_rate'? ...
    """
    table = dict(message)
    endpointing = table.pop("endpointing", True)
    if "sample_rate" in table:
        table["sample_rate"] = whole_rate(table["sample_rate"])
    asked = from_table(_StartMessage, table, "start")
    return StreamSettings(
        sample_rate=asked.sample_rate,
        encoding=asked.encoding,
        endpointing=endpointing_from(endpointing),
        has_confidence=asked.confidence,
        num_best=asked.num_best,
        blank_penalty=asked.blank_penalty,
        phrases=asked.phrases,
        has_progress=asked.progress,
    )


def endpointing_from(value: Any) -> EndpointConfig | None:
    """The rules of `true`, `false` or an object of rules.

    Raises:
        ValueError: if it is none of them.
    """
    if value is True:
        return EndpointConfig()
    if value is False:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"endpointing should be true, false or an object of rules, got {value!r}")
    return from_table(EndpointConfig, value, "endpointing")


def whole_rate(value: Any) -> Any:
    """A sample rate as a whole number of hertz; clients write 16000.0 too.

    What is no number is returned as it is, for a check that names it.
    """
    if isinstance(value, float) and math.isfinite(value):
        return round(value)
    return value
