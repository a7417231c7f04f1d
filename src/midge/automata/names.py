"""What labels and states are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

EPSILON = "ε"
"""The symbol of blank, and the name of the empty history."""


def label_symbols(symbols: Sequence[str] | None, vocab_size: int) -> tuple[str, ...]:
    """The symbols of labels 0..vocab_size."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size should be at least 1, got {vocab_size}")
    if symbols is None:
        letters = "abcdefghijklmnopqrstuvwxyz"
        few = vocab_size <= len(letters)
        symbols = letters[:vocab_size] if few else [str(y + 1) for y in range(vocab_size)]
    if len(symbols) != vocab_size or len({EPSILON, *symbols}) != 1 + vocab_size:
        raise ValueError(
            f"symbols should be {vocab_size} different strings other than {EPSILON}, "
            f"got {symbols!r}"
        )
    return (EPSILON, *symbols)


def spell(labels: Sequence[int], symbols: tuple[str, ...]) -> str:
    """A label history as one word; with dots between symbols that are longer than a character."""
    if not labels:
        return EPSILON
    dot = "." if any(len(symbol) > 1 for symbol in symbols) else ""
    return dot.join(symbols[label] for label in labels)


def tuple_name(parts: Iterable[str]) -> str:
    """A tuple as the paper writes it; a single part without parentheses."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
