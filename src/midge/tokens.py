"""Tokens: from text to labels 1..vocab_size and back.

Text is normalized by explicit rules first. Graphemes, the paper's labels, are the characters of the
training text; sentencepiece learns larger pieces from it. Either way the set is found once and
stored with the model, and a character that it does not cover is an error, never a silent gap.
"""

from __future__ import annotations

import abc
import base64
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import sentencepiece

from midge.configuration import from_table, to_table

_WORD_START = "\u2581"  # what sentencepiece writes for the space before a word
_LONGEST_TEXT = 1 << 30  # bytes; sentencepiece's own default silently skips longer texts than 4192


class TokenError(ValueError):
    """A character that the tokens do not cover; the message names the utterance and the set."""


@dataclass(frozen=True, kw_only=True)
class TokensConfig:
    """What the labels are, and how text is normalized before it becomes labels."""

    kind: Literal["graphemes", "sentencepiece"] = "graphemes"
    """Characters, or pieces learned from the training text."""

    vocab_size: int | None = None
    """Number of sentencepiece's pieces; graphemes are counted in the training text."""

    model_type: Literal["unigram", "bpe"] = "unigram"
    """How sentencepiece finds its pieces."""

    case: Literal["upper", "lower", "keep"] = "upper"
    """Letter case of the labels."""

    unicode_form: Literal["NFC", "NFKC"] = "NFC"
    """Unicode normal form; NFKC also turns ligatures and full-width letters into plain ones."""

    remove: str = ""
    """Characters that are left out, such as punctuation; in their normal form and case."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.kind == "graphemes" and self.vocab_size is not None:
            raise ValueError(
                f"vocab_size should be left out for graphemes, got {self.vocab_size}; "
                "they are counted in the training text"
            )
        if self.kind == "sentencepiece" and (self.vocab_size is None or self.vocab_size < 1):
            raise ValueError(
                f"vocab_size should be a positive number for sentencepiece, got {self.vocab_size}"
            )

    def normalize(self, text: str) -> str:
        """Text in the form that becomes labels: normal form, case, removals, single spaces.

        Example:
            >>> TokensConfig(remove=".,!").normalize(" Hello,  world! ")
            'HELLO WORLD'
        """
        text = unicodedata.normalize(self.unicode_form, text)
        if self.case != "keep":
            text = text.upper() if self.case == "upper" else text.lower()
            text = unicodedata.normalize(self.unicode_form, text)  # a case may be written apart
        if self.remove:
            text = text.translate({ord(character): None for character in self.remove})
        return " ".join(text.split())


@dataclass(frozen=True)
class Word:
    """A word, and which of the labels spell it."""

    text: str
    """The word."""

    first: int
    """Index of its first label, from 0; a space before the word is not part of it."""

    last: int
    """Index of its last label."""


class Tokens(abc.ABC):
    """Labels 1..vocab_size for text.

    For every text that `encode` takes, `decode(encode(text)) == normalize(text)`. `decode` takes
    any labels, as a recognizer may give any.
    """

    def __init__(self, config: TokensConfig, symbols: Sequence[str]) -> None:
        self.config = config
        self.symbols = tuple(symbols)
        """Names of labels 1..vocab_size, for pictures."""

    @property
    def vocab_size(self) -> int:
        """Number of labels, blank not counted."""
        return len(self.symbols)

    @property
    def num_characters(self) -> int:
        """How many different characters the labels spell, the space counted."""
        return len(self._characters)

    def normalize(self, text: str) -> str:
        """Text in the form that becomes labels; see `TokensConfig.normalize`."""
        return self.config.normalize(text)

    def encode(self, text: str, utterance_id: str = "") -> list[int]:
        """The labels of a text, normalized first.

        Args:
            text: any text.
            utterance_id: whose text it is, for the message.

        Raises:
            TokenError: if a character is not covered.
        """
        normalized = self.normalize(text)
        for character in normalized:
            if character not in self._characters:
                raise TokenError(self._not_covered(character, normalized, utterance_id))
        return self._encoded(normalized)

    def uncovered(self, text: str) -> str:
        """The characters of a text, normalized, that no label spells; "" if there are none.

        Example:
            >>> build_tokens(TokensConfig(), [("a", "one two")]).uncovered("two fish")
            'FHIS'
        """
        return "".join(sorted(set(self.normalize(text)) - self._characters))

    def decode(self, labels: Iterable[int]) -> str:
        """The text of labels: their words with single spaces between them."""
        return " ".join(word.text for word in self.words(labels))

    def words(self, labels: Iterable[int]) -> list[Word]:
        """The words of labels, with the index range of each.

        Args:
            labels: in 1..vocab_size.

        Raises:
            ValueError: if a label is out of range.
        """
        words: list[Word] = []
        text, first, last = "", 0, 0
        for index, (is_start, spelled) in enumerate(self._spelled(labels)):
            if is_start and text:
                words.append(Word(text, first, last))
                text = ""
            if spelled:
                first, last = (first if text else index), index
                text += spelled
        return [*words, Word(text, first, last)] if text else words

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything that `from_json` needs, as JSON values."""

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> Tokens:
        """The tokens that `to_json` stored.

        Raises:
            ValueError: if something is missing or wrong.
        """
        try:
            config = from_table(TokensConfig, stored["config"], "tokens")
            if config.kind == "graphemes":
                return Graphemes(config, stored["symbols"])
            return SentencePieces(config, base64.b64decode(stored["model"], validate=True))
        except (KeyError, TypeError) as error:
            raise ValueError(f"stored tokens should be those of to_json, got {error!r}") from error

    def _spelled(self, labels: Iterable[int]) -> Iterator[tuple[bool, str]]:
        """What `_spelling` says of each; asked once, since live streams spell all the time."""
        spellings = self._spellings
        for label in labels:
            if not 1 <= label <= len(spellings):
                raise ValueError(f"labels should be in 1..{self.vocab_size}, got {label}")
            yield spellings[int(label) - 1]

    @cached_property
    def _spellings(self) -> tuple[tuple[bool, str], ...]:
        return tuple(self._spelling(symbol) for symbol in self.symbols)

    def _not_covered(self, character: str, text: str, utterance_id: str) -> str:
        where = f"utterance {utterance_id}: " if utterance_id else ""
        name = f"{character!r} (U+{ord(character):04X})"
        known = "".join(sorted(self._characters - {" "}))
        space = " and the space" if " " in self._characters else ""
        return (
            f"{where}character {name} of {text!r} should be one of the training text's "
            f"{len(self._characters)}: {known}{space}; remove it from the text, or add it to "
            "the tokens' `remove`"
        )

    @property
    @abc.abstractmethod
    def _characters(self) -> frozenset[str]:
        """The characters that normalized text may have."""

    @abc.abstractmethod
    def _encoded(self, normalized: str) -> list[int]:
        """The labels of normalized text that is covered."""

    @abc.abstractmethod
    def _spelling(self, symbol: str) -> tuple[bool, str]:
        """Whether a symbol ends the word before it, and what it spells."""


@final
class Graphemes(Tokens):
    """A label for each character; the space is one.

    Args:
        config: how text is normalized.
        symbols: the characters; label 1 is the first.

    Example:
        >>> tokens = build_tokens(TokensConfig(), [("a", "one two"), ("b", "three")])
        >>> "".join(tokens.symbols)
        ' EHNORTW'
        >>> tokens.encode("Tenth")
        [7, 2, 4, 7, 3]
        >>> tokens.words(tokens.encode("one two"))
        [Word(text='ONE', first=0, last=2), Word(text='TWO', first=4, last=6)]
    """

    def __init__(self, config: TokensConfig, symbols: Sequence[str]) -> None:
        if any(len(symbol) != 1 for symbol in symbols) or len(set(symbols)) != len(symbols):
            raise ValueError(f"symbols should be different single characters, got {symbols!r}")
        super().__init__(config, symbols)
        self._labels = {symbol: label for label, symbol in enumerate(symbols, start=1)}
        self._known = frozenset(symbols)

    def to_json(self) -> dict[str, Any]:
        return {"config": to_table(self.config), "symbols": list(self.symbols)}

    @property
    def _characters(self) -> frozenset[str]:
        return self._known

    def _encoded(self, normalized: str) -> list[int]:
        return [self._labels[character] for character in normalized]

    def _spelling(self, symbol: str) -> tuple[bool, str]:
        return (True, "") if symbol == " " else (False, symbol)


@final
class SentencePieces(Tokens):
    """A label for each piece of a sentencepiece model.

    Piece 0 of the model is its unknown piece, which never occurs here: a character that no piece
    spells is an error. So the piece's number is the label, and 0 is left for blank.

    Args:
        config: how text is normalized.
        model: the bytes of the trained model.
    """

    def __init__(self, config: TokensConfig, model: bytes) -> None:
        self._model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(f"model should be a sentencepiece model: {error}") from error
        num_pieces = self._processor.get_piece_size()
        super().__init__(config, [self._processor.id_to_piece(i) for i in range(1, num_pieces)])
        spelled = frozenset("".join(self.symbols).replace(_WORD_START, ""))
        self._known = spelled | {" "}

    def to_json(self) -> dict[str, Any]:
        model = base64.b64encode(self._model).decode("ascii")
        return {"config": to_table(self.config), "model": model}

    @property
    def _characters(self) -> frozenset[str]:
        return self._known

    def _encoded(self, normalized: str) -> list[int]:
        return list(self._processor.encode(normalized))

    def _spelling(self, symbol: str) -> tuple[bool, str]:
        return symbol.startswith(_WORD_START), symbol.removeprefix(_WORD_START)


def build_tokens(config: TokensConfig, texts: Iterable[tuple[str, str]]) -> Tokens:
    """Finds the labels in training text.

    Args:
        config: what labels.
        texts: utterance id and text of each utterance.

    Raises:
        ValueError: if there is no text, or too little for the number of pieces.
    """
    normalized = [(utterance_id, config.normalize(text)) for utterance_id, text in texts]
    characters = frozenset[str]().union(*(text for _, text in normalized))
    if not characters - {" "}:
        raise ValueError(f"texts should hold at least one character, got {len(normalized)} texts")
    if config.kind == "graphemes":
        return Graphemes(config, sorted(characters))
    for utterance_id, text in normalized:
        if _WORD_START in text:
            raise TokenError(
                f"utterance {utterance_id}: character {_WORD_START!r} of {text!r} is "
                "sentencepiece's own sign; add it to the tokens' `remove`"
            )
    return SentencePieces(config, _trained(config, [text for _, text in normalized]))


def _trained(config: TokensConfig, texts: Sequence[str]) -> bytes:
    """A sentencepiece model, trained in memory, the same for the same texts."""
    assert config.vocab_size is not None
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=config.model_type,
            vocab_size=config.vocab_size + 1,  # it counts the unknown piece
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            character_coverage=1.0,
            normalization_rule_name="identity",  # ours is done
            max_sentence_length=_LONGEST_TEXT,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        limit = re.search(r"value <= (\d+)", str(error))
        want = f"at most {int(limit[1]) - 1}" if limit else f"another ({error})"
        raise ValueError(
            f"vocab_size should be {want} for this training text, got {config.vocab_size}"
        ) from error
    return model.getvalue()
