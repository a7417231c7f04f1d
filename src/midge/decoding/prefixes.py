"""Label prefixes with their exact posterior mass.

A prefix y determines the context state, so all its alignments are a vector over time. Arc weights
are first made probabilities: w(arc) + total(destination), normalized over the arcs that leave a
state (weight pushing). Then the forward weight of y at a place is the posterior probability that a
path is there with exactly y emitted, and

    mass(y a) = sum over places of forward(place) * label arc a

is the posterior probability of all label sequences that begin with y a. Each path counts once, at
the arc that emits a, however long it waits afterwards. With peaks instead of totals behind the arc
the same sum bounds the best *single* sequence that begins with y a, more tightly than the mass.

Everything is a float64 logarithm. Shapes: T steps, V vocab_size. A forward weight is
[1 + N, T + 1]. Row 0 is waiting: after a blank, or wherever it does not matter what was read last.
Row n is the n-th place of a label just read: with deduplication the run of that label, on the
k-constrained lattice n labels into a frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from midge.alignments import LabelDependent, LabelFrameDependent
from midge.contexts.spaces import Arcs
from midge.decoding.completions import Completions, WideLattice
from midge.weights import Scorer

Array = np.ndarray

CACHE_BYTES = 2**28
"""How much memory the arcs of visited states may take. Older ones are computed again."""


@dataclass(frozen=True)
class StateArcs(ABC):
    """The arcs that leave one state of the label space at all steps, as log probabilities."""

    wait: Array
    """[T] the blank of the waiting place."""
    leave: Array
    """[N, T] the blank of each place of a label just read."""
    hold: Array
    """[N, T] a repeat of that label; -inf without deduplication."""
    move: Array
    """[M, T, V] new labels, from the waiting place and then from those of a label just read."""
    reach: Array
    """[M, T, V] the same, with the peak behind the arc instead of its total."""
    destination: Array
    """[V] the flat state after each label, -1 where there is no arc."""

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.wait)

    def begin(self) -> Array:
        """[1 + N, T + 1] forward weights of the empty prefix."""
        forward = self._nothing()
        forward[0] = linear_scan(self.wait, np.full_like(self.wait, -np.inf), first=0.0)
        return forward

    @abstractmethod
    def enter(self, entry: Array) -> Array:
        """[1 + N, T + 1] forward weights of a prefix whose last label leads here.

        Args:
            entry: [..., T] weight of the arcs that emit it, from `entry` of the prefix before.
        """

    @abstractmethod
    def entry(self, forward: Array, label: int) -> Array:
        """[..., T] weight of the arcs that emit one more label after the prefix."""

    def complete(self, forward: Array) -> float:
        """The log posterior probability of the prefix as a whole label sequence."""
        return float(log_sum(forward[:, -1], axis=0))

    def masses(self, forward: Array) -> Array:
        """[V] the log posterior mass of the prefix followed by each label."""
        return self._through(forward, self.move)

    def bounds(self, forward: Array) -> Array:
        """[V] at least the log posterior of every single sequence that so continues."""
        return self._through(forward, self.reach)

    def _through(self, forward: Array, arcs: Array) -> Array:
        return log_sum(forward[: len(arcs), :-1, None] + arcs, axis=(0, 1))

    def _nothing(self) -> Array:
        return np.full((1 + len(self.leave), 1 + self.num_steps), -np.inf)


@final
class FrameStateArcs(StateArcs):
    """On a frame-dependent lattice: every arc leads to the next frame."""

    def enter(self, entry: Array) -> Array:
        forward = self._nothing()
        if len(self.leave):
            forward[1] = linear_scan(self.hold[0], entry)
            entry = forward[1, :-1] + self.leave[0]
        forward[0] = linear_scan(self.wait, entry)
        return forward

    def entry(self, forward: Array, label: int) -> Array:
        return log_sum(forward[:, :-1] + self.move[:, :, label - 1], axis=0)


@final
class LabelFrameStateArcs(StateArcs):
    """On a k-constrained lattice: a label leads one place further within its frame."""

    def enter(self, entry: Array) -> Array:
        forward = self._nothing()
        forward[1, :-1] = entry[0]
        for place in range(2, len(forward)):
            held = forward[place - 1, :-1] + self.hold[place - 2]
            forward[place, :-1] = np.logaddexp(entry[place - 1], held)
        forward[0] = linear_scan(self.wait, log_sum(forward[1:, :-1] + self.leave, axis=0))
        return forward

    def entry(self, forward: Array, label: int) -> Array:
        entry: Array = forward[:-1, :-1] + self.move[:, :, label - 1]
        return entry


@final
class LabelStateArcs(StateArcs):
    """On a label-dependent lattice: nothing waits, and blank ends."""

    def begin(self) -> Array:
        forward = self._nothing()
        forward[0, 0] = 0.0
        return forward

    def enter(self, entry: Array) -> Array:
        forward = self._nothing()
        forward[0, 1:] = entry
        return forward

    def entry(self, forward: Array, label: int) -> Array:
        entry: Array = forward[0, :-1] + self.move[0, :, label - 1]
        return entry

    def complete(self, forward: Array) -> float:
        ended = np.append(forward[0, :-1] + self.wait, forward[0, -1])
        return float(log_sum(ended, axis=0))


class PrefixArcs:
    """The arcs of the states that prefixes visit, computed when needed.

    Args:
        lattice: the lattice.
        scorer: its scores for the utterance.
        after: the utterance's backward weights.
    """

    def __init__(self, lattice: WideLattice, scorer: Scorer, after: Completions) -> None:
        """Starts with no state at all."""
        self._lattice = lattice
        self._scorer = scorer
        self._after = after
        self._num_steps = len(after.after_blank)
        num_states, *copies = lattice.space.state_shape
        self._num_states = num_states
        self._num_copies = copies[0] if copies else 1
        self._cache: OrderedDict[int, StateArcs] = OrderedDict()
        self._num_bytes = 0
        self._class: type[StateArcs] = FrameStateArcs
        if isinstance(lattice.alignment, LabelFrameDependent):
            self._class = LabelFrameStateArcs
        elif isinstance(lattice.alignment, LabelDependent):
            self._class = LabelStateArcs

    @property
    def start(self) -> int:
        """The flat state of the empty prefix."""
        return self._lattice.whole.context.start * self._num_copies

    def __getitem__(self, state: int) -> StateArcs:
        """The arcs that leave a flat state."""
        if state in self._cache:
            self._cache.move_to_end(state)
            return self._cache[state]
        arcs = self._computed(state)
        self._cache[state] = arcs
        self._num_bytes += _num_bytes(arcs)
        while self._num_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._num_bytes -= _num_bytes(oldest)
        return arcs

    def _computed(self, state: int) -> StateArcs:
        context_state = state // self._num_copies
        waiting = context_state * self._num_copies
        raw = self._lattice.arcs_of_state(self._scorer, context_state, self._num_steps)
        # The space picks rows by state; here all rows are the same one, which costs no memory.
        arcs = raw.map(lambda x: x.expand(-1, self._num_states, *x.shape[2:]))
        places = [self._place(waiting, 0, arcs)]
        if self._class is LabelFrameStateArcs:
            num_levels = self._after.after_label.shape[1]
            places += [self._place(state, level, arcs) for level in range(1, num_levels)]
            read = [*places[1:], _certain_blank(places[0])]
        else:
            places += [self._place(state, 0, arcs)] if state != waiting else []
            read = places[1:]
        no_place = places[0].blank.new_empty(0, self._num_steps)
        return self._class(
            wait=places[0].blank.numpy(),
            leave=torch.cat([no_place, *(place.blank[None] for place in read)]).numpy(),
            hold=torch.cat([no_place, *(place.repeat[None] for place in read)]).numpy(),
            move=torch.stack([place.move for place in places]).numpy(),
            reach=torch.stack([place.reach for place in places]).numpy(),
            destination=self._destinations(waiting, arcs),
        )

    def _place(self, state: int, level: int, arcs: Arcs) -> _Place:
        """The arcs that leave one state of the lattice at every step."""
        space, vocab_size = self._lattice.space, self._lattice.vocab_size
        at = torch.full((self._num_steps,), state)
        weight, _, destination = space.label_choices(at, arcs)
        blank, stayed = space.blank_choice(at, arcs)
        target = destination.clamp(min=0)
        total = weight + self._after.after_label[:, level].gather(-1, target)
        waited = blank + self._after.after_blank.gather(-1, stayed[:, None]).squeeze(-1)
        through = torch.cat([waited[:, None], total], dim=-1)
        before = through.logsumexp(-1, keepdim=True)
        before = before.masked_fill(before == -torch.inf, 0.0)  # a dead end has no arcs at all
        through = through - before
        peak = weight + self._after.peak[:, level].gather(-1, target) - before
        repeat = torch.full_like(blank, -torch.inf)
        if through.shape[-1] > 1 + vocab_size:
            repeat = through[:, -1]
        return _Place(through[:, 0], repeat, through[:, 1 : 1 + vocab_size], peak[:, :vocab_size])

    def _destinations(self, state: int, arcs: Arcs) -> Array:
        """[V] where the labels that leave a context state lead, whatever the step."""
        space = self._lattice.space
        one = arcs.map(lambda x: x[:1])
        if self._num_steps == 0:
            return np.full(self._lattice.vocab_size, -1)
        _, _, destination = space.label_choices(torch.tensor([state]), one)
        return destination[0, : self._lattice.vocab_size].numpy()


@dataclass(frozen=True)
class _Place:
    """What leaves one place: [T] blank and repeat, [T, V] labels with totals and with peaks."""

    blank: Tensor
    repeat: Tensor
    move: Tensor
    reach: Tensor


def _certain_blank(like: _Place) -> _Place:
    """The place after k labels of a frame, from where nothing but blank leads on."""
    nothing = torch.full_like(like.move, -torch.inf)
    return _Place(
        torch.zeros_like(like.blank), torch.full_like(like.blank, -torch.inf), nothing, nothing
    )


def _num_bytes(arcs: StateArcs) -> int:
    return int(arcs.move.nbytes + arcs.reach.nbytes)


def log_sum(x: Array, axis: int | tuple[int, ...]) -> Array:
    """The log of the summed exponentials; -inf where every operand is."""
    largest = x.max(axis=axis, keepdims=True, initial=-np.inf)
    largest = np.where(largest == -np.inf, 0.0, largest)
    with np.errstate(divide="ignore"):  # log 0 is meant
        total: Array = np.log(np.exp(x - largest).sum(axis=axis))
    return total + largest.reshape(total.shape)


def linear_scan(stay: Array, entry: Array, first: float = -np.inf) -> Array:
    """The recurrence out[t + 1] = stay[t] out[t] + entry[t] in logarithms, by doubling.

    A closed form with cumulative sums of `stay` would be shorter, but knows no -inf.

    Args:
        stay: [T] log factors.
        entry: [T] log terms.
        first: out[0].

    Returns:
        [T + 1].

    Example:
        >>> halves = np.log(np.full(3, 0.5))
        >>> np.exp(linear_scan(halves, np.full(3, -np.inf), first=0.0)).round(9).tolist()
        [1.0, 0.5, 0.25, 0.125]
    """
    factor = np.concatenate([[-np.inf], stay])
    out = np.concatenate([[first], entry])
    distance = 1
    while distance < len(out):
        out[distance:] = np.logaddexp(out[distance:], out[:-distance] + factor[distance:])
        factor[distance:] = factor[distance:] + factor[:-distance]
        distance *= 2
    return out
