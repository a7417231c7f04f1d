"""What the embedded corpus says: digits, letters, numbers, commands, and pairs of homophones.

The homophones are the point of it. A streaming model hears the first word of WRITE LETTERS or of
RIGHT TURN, and nothing yet tells which; the next word does. A locally normalized model that writes
as it hears must guess W or R, and cannot take it back. A globally normalized one may weigh both
until the next word is heard, if its context carries the choice that far. Therefore

- both words of a pair sound alike in every accent; `corpus` speaks both to the same recording and
  compares the samples;
- what may follow one word differs from what may follow the other from the first sound on;
- the two words end in different letters, so that a context of two labels, the last letter and the
  space, still knows which it was when the next word begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
"""The digits as words."""
MAX_NUM_DIGITS = 7
"""The longest string of digits."""


class Homophone(NamedTuple):
    """A word, and the words that may follow it."""

    word: str
    """How it is written."""
    next_words: tuple[str, ...]
    """One of them follows, and tells that it was this word."""

    def phrases(self) -> tuple[tuple[str, str], ...]:
        """The word with each of the words that may follow it."""
        return tuple((self.word, following) for following in self.next_words)


def _pair(first: str, second: str) -> tuple[Homophone, Homophone]:
    one, *after_one = first.split()
    other, *after_other = second.split()
    return Homophone(one, tuple(after_one)), Homophone(other, tuple(after_other))


HOMOPHONES = (
    # These differ from the first letter on ...
    _pair("WRITE LETTERS MUSIC POEMS BOOKS", "RIGHT TURN NOW SIDE WAY"),
    _pair("CITE PAPERS BOOKS LAWS WITNESSES", "SIGHT READING TEST DISTANCE GAGS"),
    _pair("WRAPPED PRESENTS GIFTS BOXES TIGHT", "RAPT LISTENERS SILENCE FACES READERS"),
    _pair("CEDE LAND GROUND TERRITORY POWER", "SEED CORN BANKS MERCHANTS DRILLS"),
    # ... and these from the third or fourth.
    _pair("ROAD SIGNS MAPS TRIPS WORKS", "RODE DONKEYS BIKES PONIES CAMELS"),
    _pair("GREAT BRITAIN DANES NEWS LAKES", "GRATE CHEESE GARLIC CARROTS SOAP"),
    _pair("BREAK RECORDS DISHES WINDOWS SOMETHING", "BRAKE PEDAL FLUID LIGHTS CABLES"),
    _pair("PAST TENSE MISTAKES LIVES WEEKS", "PASSED JUDGMENT NOTES BUTTER SALT"),
    _pair("WASTE PAPER TIME MONEY BASKETS", "WAIST LINE COAT DEEP SIZE"),
    _pair("TIDE TABLES POOLS MARKS LEVELS", "TIED KNOTS SHOES GAMES RIBBONS"),
)
"""Pairs of homophones, each decided by the next word."""

SPELLED = (
    "APPLE BREEZE CASTLE DRAGON ENGINE FLAVOR GARDEN HARBOR ISLAND JACKET KETTLE LEMON MIRROR "
    "NEEDLE ORANGE PENCIL QUARTZ RABBIT SILVER TICKET UMBRELLA VIOLET WINTER XENON YELLOW ZEBRA "
    "BOX CAB DUCK FOX GYM HAT INK JAM KEY LAMP MUG NET OWL PAN QUIZ RUG SKY TUB VAN WAX YAK ZOO"
).split()
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""The letters, whose names are spoken."""
_UNITS = DIGITS[1:]
_TEENS = ("TEN ELEVEN TWELVE THIRTEEN FOURTEEN FIFTEEN SIXTEEN SEVENTEEN EIGHTEEN NINETEEN").split()
_TENS = "TWENTY THIRTY FORTY FIFTY SIXTY SEVENTY EIGHTY NINETY".split()
_ORDINALS = (
    "FIRST SECOND THIRD FOURTH FIFTH SIXTH SEVENTH EIGHTH NINTH TENTH ELEVENTH TWELFTH THIRTEENTH "
    "FOURTEENTH FIFTEENTH SIXTEENTH SEVENTEENTH EIGHTEENTH NINETEENTH TWENTIETH THIRTIETH"
).split()
_MONTHS = (
    "JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER"
).split()
_ROOMS = ("KITCHEN", "BEDROOM", "GARAGE", "OFFICE", "HALLWAY")
_DEVICES = ("LIGHTS", "HEATER", "RADIO", "FAN", "ALARM")
_NAMES = ("ALICE", "DAVID", "MARIA", "PETER", "SUSAN")
_AMOUNTS = ("TEN", "TWENTY", "THIRTY", "FORTY", "FIFTY")
COMMANDS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("TURN ON", "TURN OFF", "SWITCH ON", "SWITCH OFF"), _ROOMS, _DEVICES),
    (("OPEN", "CLOSE", "LOCK", "UNLOCK"), ("FRONT", "BACK", "GARAGE"), ("DOOR", "WINDOW", "GATE")),
    (("CALL", "MESSAGE", "REMIND"), _NAMES, ("TODAY", "TOMORROW", "TONIGHT")),
    (("SET", "CANCEL"), ("TIMER", "ALARM"), ("AFTER",), _AMOUNTS, ("MINUTES", "SECONDS")),
    (("PLAY", "PAUSE", "SKIP", "REPEAT"), ("THIS", "THAT"), ("SONG", "ALBUM", "STATION")),
    (("VOLUME", "BRIGHTNESS"), ("UP", "DOWN")),
)


def digits(generator: np.random.Generator) -> list[str]:
    """A string of one to seven digits."""
    length = generator.integers(1, MAX_NUM_DIGITS + 1)
    return [str(word) for word in generator.choice(DIGITS, length)]


def spelled(generator: np.random.Generator) -> list[str]:
    """The letters of a word, half the time after the word itself."""
    word = str(generator.choice(SPELLED))
    return [word, *word] if generator.integers(2) else list(word)


def command(generator: np.random.Generator) -> list[str]:
    """A short command."""
    pattern = COMMANDS[generator.integers(len(COMMANDS))]
    return " ".join(str(generator.choice(choices)) for choices in pattern).split()


def letters(generator: np.random.Generator) -> list[str]:
    """One to eight letters at random, and now and then a digit among them."""
    length = generator.integers(1, 9)
    among = (*LETTERS, *DIGITS)
    shares = np.repeat((0.9 / len(LETTERS), 0.1 / len(DIGITS)), (len(LETTERS), len(DIGITS)))
    return [str(word) for word in generator.choice(among, length, p=shares)]


def numbers(generator: np.random.Generator) -> list[str]:
    """Numbers up to the thousands, or a date."""
    if generator.integers(3):
        return [word for _ in range(generator.integers(1, 4)) for word in _number(generator)]
    day = str(generator.choice(_ORDINALS))
    year = [*_below_hundred(generator), *_below_hundred(generator)]
    return [str(generator.choice(_MONTHS)), day, *(year if generator.integers(2) else ())]


def _number(generator: np.random.Generator) -> list[str]:
    if generator.random() < 0.7:
        return _below_hundred(generator)
    scale = str(generator.choice(("HUNDRED", "THOUSAND")))
    return [str(generator.choice(_UNITS)), scale, *_below_hundred(generator)]


def _below_hundred(generator: np.random.Generator) -> list[str]:
    if not generator.integers(3):
        return [str(generator.choice((*_UNITS, *_TEENS)))]
    tens = str(generator.choice(_TENS))
    return [tens, str(generator.choice(_UNITS))] if generator.integers(3) else [tens]


SINGLE_TEXTS: dict[str, Callable[[np.random.Generator], list[str]]] = {
    "digits": digits,
    "spelled": spelled,
    "commands": command,
    "letters": letters,
    "numbers": numbers,
}
"""The kinds of utterances that stand alone, and how the words of one are drawn."""


def homophones(
    pair: tuple[Homophone, Homophone], generator: np.random.Generator
) -> tuple[list[str], list[str]]:
    """One phrase for each word of a pair."""
    one, other = ([member.word, str(generator.choice(member.next_words))] for member in pair)
    return one, other
