"""Scores of label histories that grow one label at a time, for searches over label prefixes.

A weight function scores context states or, with unbounded history, all positions of given strings.
A search meets its histories one by one. With a finite context a history is a state, and each state
is prepared once. With unbounded history the recurrent state of a history is that of the one before
it and one label: no string is run twice.

Shapes: P histories, V vocab_size. Column 0 of a score is blank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from midge.contexts import FiniteContext
from midge.lattices import RecognitionLattice
from midge.weights import AttentionWeights, Scorer, SharedRNNWeights, WeightFn

Rows = tuple[Tensor, ...]
"""Tensors with one row for each history."""


class Histories(ABC):
    """The histories of one utterance.

    A set of histories is a tuple of tensors with one row for each, so that rows are picked and
    joined as for any tensor.
    """

    @abstractmethod
    def start(self) -> Rows:
        """One row: the empty history."""

    @abstractmethod
    def extend(self, rows: Rows, labels: Tensor) -> Rows:
        """Histories with one label more.

        Args:
            rows: P of them.
            labels: [P] in 1..vocab_size, for which the context has an arc.
        """

    @abstractmethod
    def scores(self, rows: Rows, step: int) -> Tensor:
        """[P, 1 + V] raw scores at a step (a frame, or a label position)."""

    @abstractmethod
    def scores_without_sound(self, rows: Rows) -> Tensor:
        """[P, 1 + V] raw scores where the frame is zero: what the history alone makes likely."""


def histories(lattice: RecognitionLattice, frames: Tensor) -> Histories:
    """The histories of an utterance.

    Args:
        lattice: any.
        frames: [num_frames, input_size], of the type of the parameters.
    """
    weights = lattice.weights
    if isinstance(lattice.context, FiniteContext):
        return StateHistories(lattice.context, weights, frames)
    if isinstance(weights, SharedRNNWeights):
        return RecurrentHistories(weights, frames)
    if isinstance(weights, AttentionWeights):
        return AttentionHistories(weights, frames)
    raise ValueError(
        f"lattice should have SharedRNNWeights or AttentionWeights for unbounded history, "
        f"got {type(weights).__name__}"
    )


@final
class StateHistories(Histories):
    """With a finite context: a row is a context state."""

    def __init__(self, context: FiniteContext, weights: WeightFn, frames: Tensor) -> None:
        self._context = context
        self._weights = weights
        none = torch.tensor([context.start], device=frames.device)
        self._scorer = weights.scorer(frames[None], _count(frames), none)
        self._no_frames = frames[None, :0]
        zero = torch.zeros_like(frames[:1])
        self._silence = weights.scorer(zero[None], _count(zero), none)
        self._place: dict[int, int] = {context.start: 0}
        self._prepared = self._scorer.state

    def start(self) -> Rows:
        return (torch.tensor([self._context.start], device=self._no_frames.device),)

    def extend(self, rows: Rows, labels: Tensor) -> Rows:
        return (self._context.next_state(rows[0], labels),)

    def scores(self, rows: Rows, step: int) -> Tensor:
        return _scored(self._scorer, self._states(rows), step)

    def scores_without_sound(self, rows: Rows) -> Tensor:
        return _scored(self._silence, self._states(rows), 0)

    def _states(self, rows: Rows) -> Rows:
        """What the weight function made of the states, each computed when it is first met."""
        states = rows[0].tolist()
        if new := sorted(set(states) - self._place.keys()):
            # Without frames, so that only the states are prepared.
            wanted = torch.tensor(new, device=self._no_frames.device)
            made = self._weights.scorer(self._no_frames, _count(self._no_frames[0]), wanted)
            first = len(self._place)
            self._place.update((state, first + at) for at, state in enumerate(new))
            self._prepared = tuple(
                torch.cat(pair) for pair in zip(self._prepared, made.state, strict=True)
            )
        index = torch.tensor([self._place[state] for state in states], dtype=torch.int64)
        return tuple(x[index] for x in self._prepared)


@final
class RecurrentHistories(Histories):
    """With `SharedRNNWeights` and unbounded history: a row is an LSTM's state and its embedding."""

    def __init__(self, weights: SharedRNNWeights, frames: Tensor) -> None:
        self._weights = weights
        self._no_frames = frames[None, :0]
        empty = frames.new_zeros(0, weights.rnn.hidden_size)
        linear = torch.nn.functional.linear
        self._scorer = weights.joint.scorer(frames[None], empty, linear)
        self._silence = weights.joint.scorer(torch.zeros_like(frames[None, :1]), empty, linear)

    def start(self) -> Rows:
        zero = self._no_frames.new_zeros(1, self._weights.rnn.hidden_size)
        return self._read((zero, zero), _start_symbol(zero))

    def extend(self, rows: Rows, labels: Tensor) -> Rows:
        return self._read((rows[0], rows[1]), labels)

    def _read(self, state: tuple[Tensor, Tensor], labels: Tensor) -> Rows:
        weights = self._weights
        hidden, cell = (x[None] for x in state)
        output, (hidden, cell) = weights.rnn(weights.embedding(labels)[:, None], (hidden, cell))
        made = weights.joint.scorer(self._no_frames, output[:, 0], torch.nn.functional.linear)
        return hidden[0], cell[0], *made.state

    def scores(self, rows: Rows, step: int) -> Tensor:
        return _scored(self._scorer, rows[2:], step)

    def scores_without_sound(self, rows: Rows) -> Tensor:
        return _scored(self._silence, rows[2:], 0)


@final
class AttentionHistories(Histories):
    """With `AttentionWeights` and unbounded history: a row is an LSTM's state and its scores.

    The attended mean of the frames is fed back, so a row knows the sound; its scores are made when
    it is.
    """

    def __init__(self, weights: AttentionWeights, frames: Tensor) -> None:
        self._weights = weights
        self._frames = frames
        self._keys = weights.key(frames)

    def start(self) -> Rows:
        zero = self._frames.new_zeros(1, self._weights.rnn.hidden_size)
        attended = self._frames.new_zeros(1, self._weights.input_size)
        return self._read((zero, zero), attended, _start_symbol(zero))

    def extend(self, rows: Rows, labels: Tensor) -> Rows:
        return self._read((rows[0], rows[1]), rows[2], labels)

    def _read(self, state: tuple[Tensor, Tensor], attended: Tensor, labels: Tensor) -> Rows:
        weights = self._weights
        fed = torch.cat([weights.embedding(labels), attended], dim=-1)
        hidden, cell = (x[None] for x in state)
        output, (hidden, cell) = weights.rnn(fed[:, None], (hidden, cell))
        output = output[:, 0]
        agreement = weights.query(output) @ self._keys.T * self._keys.shape[-1] ** -0.5
        attended = agreement.softmax(-1) @ self._frames  # without any frame: zeros
        made = torch.tanh(weights.history(output) + weights.attended(attended))
        return hidden[0], cell[0], attended, weights.output(made)

    def scores(self, rows: Rows, step: int) -> Tensor:
        return rows[3]

    def scores_without_sound(self, rows: Rows) -> Tensor:
        weights = self._weights
        return torch.as_tensor(weights.output(torch.tanh(weights.history(rows[0]))))


def _scored(scorer: Scorer, states: Rows, step: int) -> Tensor:
    """[P, 1 + V] scores of prepared states at one step."""
    scores = scorer.score(
        tuple(x[:, step : step + 1] for x in scorer.step),
        scorer.batch,
        tuple(x[None] for x in states),  # of this utterance: any states, in any order
        scorer.shared,
        range(step, step + 1),
    )
    return scores[0, 0]


def _count(frames: Tensor) -> Tensor:
    """[1] the number of frames [num_frames, input_size]."""
    return torch.tensor([len(frames)], device=frames.device)


def _start_symbol(like: Tensor) -> Tensor:
    """[1] embedding row 0, from which the recurrence starts."""
    return torch.zeros(1, dtype=torch.int64, device=like.device)
