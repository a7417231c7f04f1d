"""A voice: espeak-ng, which speaks words and says when each of them and each phoneme sounds.

The library comes from the package espeakng-loader and is called through ctypes. A process has one
of it, and what it says depends on what it said before: flutter, breath and echo run on from one
utterance to the next, and some voices draw random numbers seeded by the clock. It is therefore
loaded anew for each utterance, which takes half a millisecond. Then the same words in the same
voice are the same samples, in any order and in any process.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import string
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from midge.data.utterances import WordTime

ACCENTS = (
    "en",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-gb-x-rp",
    "en-us",
    "en-us-nyc",
)
"""The English accents: Great Britain, the Caribbean, Scotland, Lancaster, the West Midlands,
Received Pronunciation, America, New York City. The ninth, en-shaw, reads another alphabet."""

UNUSABLE = {
    "Demonic": "breath and a strong echo over little voice",
    "caleb": "breath alone, without pitch",
    "fast": "the same samples as no variant at all",
    "whisper": "breath alone, without pitch",
    "whisperf": "breath alone, without pitch",
}
"""Variants that are left out, and why. All others can be understood: when the ten digits of each
are matched with those of all other variants, none has more than one error in ten."""

RATES = (80, 450)
"""The slowest and the fastest rate of espeak-ng, in words per minute."""

_VOLUME = 25  # of 100; from 50 on some variants clip
_SEED = 1  # any number but that of the clock
_PAUSE = "_"  # the names of pauses begin with it
_STRESS = "',%="  # marks in front of a phoneme's name
_HOW_TO_GET_IT = "the spoken corpus needs espeak-ng: pip install 'midge[spoken]'"

# From espeak-ng's speak_lib.h.
_SYNCHRONOUS = 2
_PHONEME_EVENTS, _DO_NOT_EXIT = 0x0001, 0x8000
_TEXT_IS_UTF8, _TEXT_HAS_PHONEMES = 0x0001, 0x0100
_POSITION_IN_CHARACTERS = 1
_RATE, _LOUDNESS, _PITCH, _PITCH_RANGE, _WORD_GAP = 1, 2, 3, 4, 7
_LIST_TERMINATED, _WORD, _END, _PHONEME = 0, 1, 5, 7


class _Identifier(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Identifier),
    ]


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)
_lock = threading.Lock()  # there is one espeak-ng in a process


@dataclass(frozen=True, kw_only=True)
class Voice:
    """Who speaks, and how.

    Example:
        >>> Voice(accent="en-us", variant="f2").name
        'en-us+f2'
    """

    accent: str = "en"
    """One of `ACCENTS`."""
    variant: str = ""
    """One of `variants()`; "" is the accent's own voice."""
    rate: int = 175
    """Words per minute."""
    pitch: int = 50
    """From 0 to 100; 50 is the variant's own."""
    pitch_range: int = 50
    """From 0, monotone, to 100; 50 is the variant's own."""

    def __post_init__(self) -> None:
        if self.accent not in ACCENTS:
            raise ValueError(f"accent should be one of {', '.join(ACCENTS)}, got {self.accent!r}")
        if not RATES[0] <= self.rate <= RATES[1]:
            raise ValueError(f"rate should be between {RATES[0]} and {RATES[1]}, got {self.rate}")
        for name in ("pitch", "pitch_range"):
            if not 0 <= getattr(self, name) <= 100:
                raise ValueError(f"{name} should be between 0 and 100, got {getattr(self, name)}")

    @property
    def name(self) -> str:
        """The name of the speaker, as espeak-ng writes it."""
        return f"{self.accent}+{self.variant}" if self.variant else self.accent


@dataclass(frozen=True, eq=False)
class Speech:
    """Words as they were spoken."""

    samples: np.ndarray
    """[num_samples] float32, full scale is [-1, 1]."""
    sample_rate: int
    """Samples per second."""
    words: tuple[WordTime, ...]
    """Every word, from the start of its first to the end of its last phoneme."""
    phones: tuple[WordTime, ...]
    """Every phoneme by espeak-ng's name for it; pauses are left out."""


def speak(words: Sequence[str], voice: Voice) -> Speech:
    """Speaks words, as one phrase.

    Args:
        words: at least one. A word of one letter is spoken as the name of the letter.
        voice: who speaks.

    Returns:
        The samples, always the same for the same arguments, with the time of every word.

    Raises:
        ValueError: if espeak-ng is missing, does not know the voice, or does not speak the words
            one by one (it runs some together, as IN THE).
    """
    if not words:
        raise ValueError("words should be at least one word, got none")
    if voice.variant and voice.variant not in variants():
        raise ValueError(f"variant should be one of midge.data.spoken.variants(), got {voice.name}")
    text = " ".join(_pronounced(word) for word in words)
    with _lock:
        speaker = _Speaker()
        try:
            speaker.speak(text, voice)
        finally:
            speaker.close()
    return _timed(words, voice, speaker)


@functools.cache
def variants() -> tuple[str, ...]:
    """The usable variants of a voice that espeak-ng has, in alphabetical order.

    Raises:
        ValueError: if espeak-ng is missing.
    """
    folder = Path(_paths()[1]) / "voices" / "!v"
    found = sorted(file.name for file in folder.iterdir() if file.is_file())
    return tuple(name for name in found if name not in UNUSABLE)


class _Speaker:
    """A fresh copy of the library, and what it has said."""

    def __init__(self) -> None:
        library, data = _paths()
        self._library = ctypes.CDLL(library)
        self._callback = _CALLBACK(self._hear)  # kept, as C knows it by its address alone
        self.pieces: list[np.ndarray] = []
        self.events: list[tuple[int, int, str]] = []  # type, sample, name of the phoneme
        options = _PHONEME_EVENTS | _DO_NOT_EXIT
        self.sample_rate: int = self._library.espeak_Initialize(
            _SYNCHRONOUS, 0, data.encode(), options
        )
        if self.sample_rate <= 0:
            raise ValueError(f"espeak-ng does not start with its data in {data}")
        self._library.espeak_SetSynthCallback(self._callback)
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(_SEED))
        # One synthesizer draws from the C library, which is found among espeak-ng's dependencies.
        self._library.srand(_SEED)

    def speak(self, text: str, voice: Voice) -> None:
        if self._library.espeak_SetVoiceByName(voice.name.encode()):
            raise ValueError(f"espeak-ng has no voice {voice.name!r}")
        settings = {
            _RATE: voice.rate,
            _LOUDNESS: _VOLUME,
            _PITCH: voice.pitch,
            _PITCH_RANGE: voice.pitch_range,
            _WORD_GAP: 0,
        }
        for parameter, value in settings.items():
            self._library.espeak_SetParameter(parameter, value, 0)
        data = text.encode() + b"\0"
        flags = _TEXT_IS_UTF8 | _TEXT_HAS_PHONEMES
        position = (0, _POSITION_IN_CHARACTERS, 0)
        error = self._library.espeak_Synth(data, len(data), *position, flags, None, None)
        if error:
            raise ValueError(f"espeak-ng cannot speak {text!r} (error {error})")

    def close(self) -> None:
        """Unloads the library, so that the next copy remembers nothing."""
        self._library.espeak_Terminate()
        _ctypes.dlclose(self._library._handle)

    def _hear(self, samples: ctypes._Pointer, num_samples: int, events: ctypes._Pointer) -> int:
        if samples and num_samples > 0:
            self.pieces.append(np.ctypeslib.as_array(samples, (num_samples,)).copy())
        index = 0
        while (event := events[index]).type != _LIST_TERMINATED:
            name = event.id.string.decode() if event.type == _PHONEME else ""
            self.events.append((event.type, event.sample, name))
            index += 1
        return 0  # go on


def _paths() -> tuple[str, str]:
    """Where the library and its data are."""
    try:
        import espeakng_loader  # type: ignore[import-untyped]
    except ImportError as error:
        raise ValueError(_HOW_TO_GET_IT) from error
    return espeakng_loader.get_library_path(), espeakng_loader.get_data_path()


def _pronounced(word: str) -> str:
    """What espeak-ng is to read for a word."""
    if not word or not set(word) <= set(string.ascii_letters):
        raise ValueError(f"a word should be letters, got {word!r}; write numbers as words")
    if word.upper() == "A":
        return "[['eI]]"  # the letter; as a word it would be the article
    return word.lower()


def _timed(words: Sequence[str], voice: Voice, speaker: _Speaker) -> Speech:
    """Joins the phonemes of each word."""
    rate = speaker.sample_rate
    phones_of: list[list[WordTime]] = []
    sounds = [event for event in speaker.events if event[0] in (_WORD, _PHONEME, _END)]
    for index, (kind, sample, name) in enumerate(sounds):
        if kind == _WORD:
            phones_of.append([])
        elif kind == _PHONEME and not name.startswith(_PAUSE):
            following = (s for k, s, _ in sounds[index + 1 :] if k != _WORD)
            phone = WordTime(name.lstrip(_STRESS), sample / rate, next(following) / rate)
            phones_of[-1].append(phone)
    if len(phones_of) != len(words) or not all(phones_of):
        said = " ".join(words)
        raise ValueError(f"espeak-ng does not speak the words of {said!r} one by one as {voice}")
    spans = zip(words, phones_of, strict=True)
    return Speech(
        np.concatenate(speaker.pieces).astype(np.float32) / 32768,
        rate,
        tuple(WordTime(word, phones[0].start, phones[-1].end) for word, phones in spans),
        tuple(phone for phones in phones_of for phone in phones),
    )
