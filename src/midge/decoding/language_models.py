"""N-gram language models on labels, read from ARPA files.

The model is a deterministic automaton. A state is a label history that the file knows. A label that
the file does not list after it is scored by backing off: the history's back-off weight, and the
label after the history without its oldest label. Scores are natural logarithms.

The words of the file are the model's labels: characters for a model of graphemes, with the space
written as <space>, since spaces separate words in the file.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np

from midge.decoding.fusion import Array, LabelScorer
from midge.tokens import Tokens

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPACE = "<space>"
"""How a file writes the space, which it cannot hold as it is."""
_LOG_10 = math.log(10.0)
_BEGIN_LABEL, _END_LABEL = 0, -1  # beside labels 1..vocab_size
History = tuple[int, ...]


@dataclass(frozen=True)
class _Entry:
    """An n-gram: the log probability of its last label after the others, and its back-off."""

    log_probability: float
    back_off: float = 0.0


@final
class NgramModel(LabelScorer):
    """An n-gram model with back-off, as an automaton.

    Args:
        entries: the n-grams: labels, with 0 first for the beginning and -1 last for the end, to log
            probability and log back-off weight.
        vocab_size: number of labels; each needs an entry of its own.
        num_ignored: how many n-grams of the file hold words that are no labels.

    Raises:
        ValueError: if a label has no probability.
    """

    def __init__(
        self, entries: Mapping[History, tuple[float, float]], vocab_size: int, num_ignored: int = 0
    ) -> None:
        self.vocab_size = vocab_size
        self.num_ignored = num_ignored
        self._entries = {history: _Entry(*values) for history, values in entries.items()}
        if missing := [y for y in range(1, vocab_size + 1) if (y,) not in self._entries]:
            raise ValueError(f"entries should hold every label, but {missing[0]} has none")
        self.order = max(map(len, self._entries))
        """Number of labels of the longest n-gram: all but one are history."""
        self._histories: list[History] = []
        self._states: dict[History, int] = {}
        self._rows: dict[int, tuple[Array, Array]] = {}
        self.start = self._state((_BEGIN_LABEL,))

    def arcs(self, state: int) -> tuple[Array, Array]:
        """[vocab_size] log probability of each label, and the state after it."""
        if state not in self._rows:
            history = self._histories[state]
            labels = range(1, self.vocab_size + 1)
            after = [self._state((*history, label)) for label in labels]
            self._rows[state] = self._log_probabilities(history), np.array(after)
        return self._rows[state]

    def final(self, state: int) -> float:
        """The log probability of the end; 0 if the file has none."""
        if (_END_LABEL,) not in self._entries:
            return 0.0
        return self._backed_off(self._histories[state], _END_LABEL)

    def history(self, state: int) -> History:
        """The labels that a state remembers; 0 is the beginning."""
        return self._histories[state]

    @cached_property
    def _remembered(self) -> frozenset[History]:
        """Beginnings of n-grams; other histories tell no more than shorter ones."""
        return frozenset(gram[:size] for gram in self._entries for size in range(len(gram)))

    def _state(self, history: History) -> int:
        """The state of the longest end of a history that the model remembers."""
        while history and history not in self._remembered and not self._has_back_off(history):
            history = history[1:]
        if history not in self._states:
            self._states[history] = len(self._histories)
            self._histories.append(history)
        return self._states[history]

    def _has_back_off(self, history: History) -> bool:
        return history in self._entries and self._entries[history].back_off != 0.0

    def _log_probabilities(self, history: History) -> Array:
        """[vocab_size] of each label: what shorter histories say, then what longer ones know."""
        if not history:
            known = (self._entries[(label,)] for label in range(1, self.vocab_size + 1))
            return np.array([entry.log_probability for entry in known])
        back_off = self._entries[history].back_off if history in self._entries else 0.0
        row = back_off + self._log_probabilities(history[1:])
        for label in self._followers.get(history, ()):
            row[label - 1] = self._entries[(*history, label)].log_probability
        return row

    @cached_property
    def _followers(self) -> dict[History, list[int]]:
        """The labels that are listed after each history."""
        found: dict[History, list[int]] = {}
        for gram in self._entries:
            if gram[-1] > 0:
                found.setdefault(gram[:-1], []).append(gram[-1])
        return found

    def _backed_off(self, history: History, label: int) -> float:
        if (*history, label) in self._entries:
            return self._entries[(*history, label)].log_probability
        back_off = self._entries[history].back_off if history in self._entries else 0.0
        return back_off + self._backed_off(history[1:], label)


def label_words(tokens: Tokens) -> dict[str, int]:
    """How a file writes the labels of a model: as its symbols, the space as <space>.

    Example:
        >>> from midge.tokens import TokensConfig, build_tokens
        >>> label_words(build_tokens(TokensConfig(), [("a", "on no")]))
        {'<space>': 1, 'N': 2, 'O': 3}
    """
    return {
        SPACE if symbol == " " else symbol: label
        for label, symbol in enumerate(tokens.symbols, start=1)
    }


def read_arpa(path: str | Path, labels: Mapping[str, int]) -> NgramModel:
    """Reads an n-gram model.

    A word of the file that is no label is left out, with all its n-grams. A label that is no word
    of the file has the probability of <unk>.

    Args:
        path: an ARPA file, perhaps compressed (.gz).
        labels: the label 1..vocab_size of each word; see `label_words`.

    Raises:
        ValueError: if the file is not well formed, or lacks a label and <unk>; names the line.
        OSError: if it cannot be read.
    """
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            grams, num_ignored = _collected(_ngrams(file), labels)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} should be text in UTF-8: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return NgramModel(grams, len(labels), num_ignored)


def _collected(
    ngrams: Iterable[tuple[tuple[str, ...], float, float]], labels: Mapping[str, int]
) -> tuple[dict[History, tuple[float, float]], int]:
    """The n-grams by label, and how many there are of other words."""
    numbers = {**labels, BEGIN: _BEGIN_LABEL, END: _END_LABEL}
    found: dict[History, tuple[float, float]] = {}
    unknown: tuple[float, float] | None = None
    num_ignored = 0
    for words, log_probability, back_off in ngrams:
        if words == (UNKNOWN,):
            unknown = (log_probability, 0.0)
        if all(word in numbers for word in words):
            found[tuple(numbers[word] for word in words)] = (log_probability, back_off)
        else:
            num_ignored += 1
    lacking = [word for word, label in labels.items() if (label,) not in found]
    if lacking and (unknown is None or len(lacking) == len(labels)):
        raise ValueError(
            f"{len(lacking)} of {len(labels)} labels are no words of the model, such as "
            f"{lacking[0]!r}; is it a model of the same labels? The space is written {SPACE}"
        )
    if unknown is not None:
        found.update({(labels[word],): unknown for word in lacking})
    return found, num_ignored


def _ngrams(lines: Iterable[str]) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """Words, log probability and log back-off weight of each n-gram, by natural logarithms."""
    counts: dict[int, int] = {}
    seen: dict[int, int] = {}
    order, is_begun, is_ended = 0, False, False
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not is_begun:
            is_begun = line == "\\data\\"
        elif line == "\\end\\":
            is_ended = True
            break
        elif line.startswith("\\") and line.endswith("-grams:"):
            order = _whole(line[1 : -len("-grams:")], number)
        elif order == 0 and line.startswith("ngram "):
            size, _, count = line.removeprefix("ngram ").partition("=")
            counts[_whole(size, number)] = _whole(count, number)
        elif line and order:
            yield _parsed(line, order, is_last=order == max(counts, default=0), number=number)
            seen[order] = seen.get(order, 0) + 1
    _check_counts(counts, seen, is_ended)


def _check_counts(counts: Mapping[int, int], seen: Mapping[int, int], is_ended: bool) -> None:
    if not counts or not is_ended:
        raise ValueError("is no whole ARPA file: it should begin by \\data\\ and end by \\end\\")
    for size, count in counts.items():
        if seen.get(size, 0) != count:
            raise ValueError(f"should hold {count} {size}-grams, got {seen.get(size, 0)}")


def _parsed(
    line: str, order: int, is_last: bool, number: int
) -> tuple[tuple[str, ...], float, float]:
    fields = line.split()
    if len(fields) not in ((order + 1,) if is_last else (order + 1, order + 2)):
        raise ValueError(f"line {number} should hold a {order}-gram, got {line!r}")
    try:
        numbers = [float(fields[0]), *map(float, fields[order + 1 :])]
    except ValueError as error:
        raise ValueError(f"line {number} should begin and end by a number: {line!r}") from error
    if any(math.isnan(x) or x == math.inf for x in numbers):
        raise ValueError(f"line {number} should hold finite numbers, got {line!r}")
    log_probability, back_off = [*numbers, 0.0][:2]
    return tuple(fields[1 : order + 1]), log_probability * _LOG_10, back_off * _LOG_10


def _whole(text: str, number: int) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"line {number} should hold a whole number, got {text!r}")
    return int(text)
