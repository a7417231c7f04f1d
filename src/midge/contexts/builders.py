"""Contexts that the paper suggests and does not study: variable length, and clustered histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from midge.contexts.ngram import FullNGram
from midge.contexts.table import NextStateTable


def variable_length_context(
    texts: Iterable[Sequence[int]],
    vocab_size: int,
    max_context_size: int,
    *,
    min_count: int = 1,
    max_num_states: int | None = None,
) -> NextStateTable:
    """A context that keeps the histories a training text needs, and backs off to shorter ones.

    The states are the empty history and the label strings that occur at least `min_count` times
    in the texts, the most frequent `max_num_states` of them. The state after labels y_1..y_u is
    their longest suffix that is kept. A string occurs at least as often as any longer one around
    it, so the prefixes of a kept history are kept too, and the next state depends on the state and
    the label alone. States are ordered by length, then lexicographically.

    Args:
        texts: label sequences, each of integers in 1..vocab_size.
        vocab_size: number of lexical labels.
        max_context_size: length of the longest history.
        min_count: how often a history must occur.
        max_num_states: how many states at most, the empty history included; None is no limit.

    Returns:
        The context, with an arc for every label at every state.

    Raises:
        ValueError: if a label or an argument is out of range.

    Example:
        >>> context = variable_length_context([[1, 2, 1, 2, 1]], 2, 2, min_count=2)
        >>> [context.state_labels(state) for state in range(context.num_states)]
        [[], [1], [2], [1, 2], [2, 1]]
    """
    _check_at_least("vocab_size", vocab_size, 1)
    _check_at_least("max_context_size", max_context_size, 0)
    _check_at_least("min_count", min_count, 1)
    counts = _count_histories(texts, vocab_size, max_context_size)
    kept = sorted(
        (history for history, count in counts.items() if count >= min_count),
        key=lambda history: (-counts[history], len(history), history),
    )
    if max_num_states is not None:
        _check_at_least("max_num_states", max_num_states, 1)
        kept = kept[: max_num_states - 1]
    histories = [(), *sorted(kept, key=lambda history: (len(history), history))]
    state_of = {history: state for state, history in enumerate(histories)}
    table = [
        [_longest_suffix(history + (label,), state_of) for label in range(1, vocab_size + 1)]
        for history in histories
    ]
    return NextStateTable(torch.tensor(table))


def clustered_context(classes: Sequence[int], context_size: int) -> NextStateTable:
    """An n-gram context over classes of labels: the state is the classes of the last labels.

    Args:
        classes: class of each label, label 1 first; any integers, renumbered in sorted order.
        context_size: number of classes remembered.

    Returns:
        The context, numbered as `FullNGram(number of classes, context_size)`.

    Raises:
        ValueError: if there is no label, or the context size is negative.

    Example:
        >>> vowels = clustered_context([0, 1, 1, 1, 0], context_size=1)  # a b c d e
        >>> vowels.num_states
        3
        >>> vowels.walk_states(torch.tensor([1, 2, 5])).tolist()
        [0, 1, 2, 1]
    """
    if not classes:
        raise ValueError("classes should name the class of each label, got none")
    names = {name: index + 1 for index, name in enumerate(sorted(set(classes)))}
    over_classes = FullNGram(len(names), context_size)
    class_of_label = torch.tensor([names[name] for name in classes])
    states = torch.arange(over_classes.num_states)[:, None]
    return NextStateTable(over_classes.next_state(states, class_of_label[None, :]))


def _count_histories(
    texts: Iterable[Sequence[int]], vocab_size: int, max_context_size: int
) -> Counter[tuple[int, ...]]:
    """How often each label string of length 1..max_context_size occurs."""
    counts: Counter[tuple[int, ...]] = Counter()
    for number, text in enumerate(texts):
        labels = tuple(int(label) for label in text)
        if bad := [label for label in labels if not 1 <= label <= vocab_size]:
            raise ValueError(f"texts[{number}] should hold labels 1..{vocab_size}, got {bad[0]}")
        for size in range(1, max_context_size + 1):
            counts.update(labels[at : at + size] for at in range(len(labels) - size + 1))
    return counts


def _longest_suffix(history: tuple[int, ...], state_of: dict[tuple[int, ...], int]) -> int:
    while history not in state_of:
        history = history[1:]
    return state_of[history]


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} should be at least {least}, got {value}")
