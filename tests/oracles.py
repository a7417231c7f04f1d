"""Oracles: slow, plain and obviously right. Every path is listed, in Python floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

NEG_INF = -math.inf


def log_sum(weights: list[float]) -> float:
    """The log of the summed exponentials."""
    largest = max(weights, default=NEG_INF)
    if largest == NEG_INF:
        return NEG_INF
    return largest + math.log(sum(math.exp(w - largest) for w in weights))


@dataclass(frozen=True)
class ListedPath:
    """A successful path: what it emits, what it spells, what it weighs."""

    symbols: tuple[int, ...]
    labels: tuple[int, ...]
    weight: float
    arcs: tuple[tuple[int, int, int], ...]
    """(step, context state, symbol) of each arc."""


@dataclass
class Enumeration:
    """All paths of a small lattice.

    Args:
        table: [num_steps, num_states, 1 + vocab_size] raw scores of one utterance.
        next_state: [num_states][vocab_size] next states, -1 for none.
        kind: "frame", "frame-no-blank", "label-frame" or "label".
        limit: k for "label-frame".
        normalization: "global", "softmax" or "hat".
    """

    table: Tensor
    next_state: list[list[int]]
    kind: str
    limit: int = 0
    normalization: str = "global"
    deduplicate: bool = False
    start: int = 0
    final_weights: list[float] | None = None
    label_weights: list[list[float]] | None = None
    paths: list[ListedPath] = field(init=False)

    def __post_init__(self) -> None:
        self._scores = self.table.tolist()
        self._num_steps = len(self._scores)
        self.paths = list(self._walk(0, 0, self.start, 0, (), (), 0.0, ()))

    def leaving(self, step: int, count: int, state: int, read: int) -> dict[int, float]:
        """The normalized weights of the arcs that leave a state, by symbol."""
        row = self._scores[step][state]
        labels = [
            label
            for label in range(1, len(row))
            if self.next_state[state][label - 1] >= 0 or (self.deduplicate and label == read)
        ]
        at_limit = self.kind == "label-frame" and count == self.limit
        if at_limit:
            labels = []
        has_blank = self.kind != "frame-no-blank"
        raw = {label: row[label] for label in labels}
        if has_blank:
            raw[0] = row[0]
        if self.normalization == "global":
            return raw
        if at_limit:
            return {0: 0.0}
        if self.normalization == "softmax":
            total = log_sum(list(raw.values()))
            return {y: w - total if w > NEG_INF else NEG_INF for y, w in raw.items()}
        if not labels:
            return {0: 0.0}
        total = log_sum([raw[y] for y in labels])
        log_not_blank = -math.log1p(math.exp(row[0]))
        arcs = {y: log_not_blank + raw[y] - total for y in labels}
        arcs[0] = -math.log1p(math.exp(-row[0]))
        return arcs

    def _walk(
        self,
        step: int,
        count: int,
        state: int,
        read: int,
        symbols: tuple[int, ...],
        labels: tuple[int, ...],
        weight: float,
        arcs: tuple[tuple[int, int, int], ...],
    ) -> Iterator[ListedPath]:
        if step == self._num_steps:
            yield from self._end(state, symbols, labels, weight, arcs)
            return
        for symbol, arc_weight in sorted(self.leaving(step, count, state, read).items()):
            repeats = self.deduplicate and symbol == read and symbol != 0
            after = state
            spelled = labels
            if symbol != 0 and not repeats:
                after = self.next_state[state][symbol - 1]
                spelled = (*labels, symbol)
                if self.label_weights is not None:
                    arc_weight += self.label_weights[state][symbol - 1]
            reached = (
                (*symbols, symbol),
                spelled,
                weight + arc_weight,
                (*arcs, (step, state, symbol)),
            )
            if self.kind == "label" and symbol == 0:
                yield from self._end(after, *reached)
            elif self.kind == "label-frame" and symbol != 0:
                yield from self._walk(step, count + 1, after, symbol, *reached)
            else:
                yield from self._walk(step + 1, 0, after, symbol, *reached)

    def _end(self, state: int, symbols, labels, weight, arcs) -> Iterator[ListedPath]:
        final = 0.0 if self.final_weights is None else self.final_weights[state]
        if weight + final > NEG_INF:
            yield ListedPath(symbols, labels, weight + final, arcs)

    def spelling(self, labels: tuple[int, ...] | None) -> list[ListedPath]:
        """The paths that spell some labels; all for None."""
        return [path for path in self.paths if labels is None or path.labels == labels]

    def log_z(self, labels: tuple[int, ...] | None = None) -> float:
        """The log-sum over the paths."""
        return log_sum([path.weight for path in self.spelling(labels)])

    def best(self, labels: tuple[int, ...] | None = None) -> ListedPath | None:
        """A path of the largest weight."""
        return max(self.spelling(labels), key=lambda path: path.weight, default=None)

    def entropy(self, labels: tuple[int, ...] | None = None) -> float:
        """The entropy of the paths' distribution, in nats."""
        log_z = self.log_z(labels)
        shares = [path.weight - log_z for path in self.spelling(labels)]
        return -sum(math.exp(share) * share for share in shares)

    def marginals(self, labels: tuple[int, ...] | None = None) -> Tensor:
        """[num_steps, num_states, 1 + vocab_size] posterior of every arc."""
        total = torch.zeros(self.table.shape, dtype=torch.float64)
        log_z = self.log_z(labels)
        for path in self.spelling(labels):
            for step, state, symbol in path.arcs:
                total[step, state, symbol] += math.exp(path.weight - log_z)
        return total

    def spelled(self) -> list[tuple[int, ...]]:
        """The distinct label sequences, in order."""
        return sorted({path.labels for path in self.paths})


def all_label_sequences(vocab_size: int, max_num_labels: int) -> Iterator[tuple[int, ...]]:
    """Every label sequence up to a length."""
    for length in range(max_num_labels + 1):
        yield from itertools.product(range(1, vocab_size + 1), repeat=length)
