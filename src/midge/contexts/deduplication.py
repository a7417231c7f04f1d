"""CTC-style label deduplication: the product of the deduplication transducer D with a context.

D merges a run of one label into a single one; blank separates runs (paper, appendix B.4). A state
of D∘C is (q, blank), or (q, y) where y, the label just read, entered q: 2 Q - 1 states for n-grams
with n >= 1, 1 + V for the 0-gram, instead of Q (1 + V). From (q, d) with d != y the label y is new
and moves the context to next(q, y); from (q, y) it is a repeat and leaves q as it is. Both weigh
omega(t, q, y). Blank leads to (q, blank).

Forward weights are [*batch, S, 1 + E]: slot 0 is blank, slot e the e-th label that enters the state
(E is the largest number of distinct ones; empty slots are never reached).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from midge.contexts.base import FiniteContext, Transitions
from midge.contexts.grouping import ArcGroups, append_zero
from midge.contexts.spaces import Arcs, LabelSpace, pick, pick_flat
from midge.semirings import Log, MaxTropical, Semiring


@final
class DeduplicatedSpace(LabelSpace):
    """D∘C as a label space.

    Args:
        pairs: the arcs as seen from their destinations (q, y).
        arc_label: [..., S, A] label of each arc.
        entered_label: [..., S, E] the labels that enter each state, 0 for an empty slot.
        start: [..., S] log weights of beginning at a context state.
        final: [..., S] log weights of ending in a context state.
    """

    def __init__(
        self,
        pairs: PairTransitions,
        arc_label: Tensor,
        entered_label: Tensor,
        start: Tensor,
        final: Tensor,
    ) -> None:
        """Keeps the parts, and finds from where each arc would be a repeat."""
        num_states, num_entering = entered_label.shape[-2:]
        self._num_slots = 1 + int(num_entering)
        self.state_shape = (int(num_states), self._num_slots)
        self._pairs = pairs
        self._arc_label = arc_label
        self._entered_label = entered_label
        self.is_state = torch.nn.functional.pad(entered_label > 0, (1, 0), value=True)
        self._repeat_slot = _repeat_slots(arc_label, entered_label)
        self._start = start
        self._final = final

    def start(self, like: Tensor) -> Tensor:
        start = self._start.to(like)[..., None]
        return self._with_labels(start, self._zeros(start, self._num_slots - 1, Log))

    def final(self, like: Tensor) -> Tensor:
        final = self._final.to(like)
        return final[..., None].expand(*final.shape, self._num_slots)

    def blank(self, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        left = semiring.sum(semiring.times(alpha, _blank_per_slot(arcs)), dim=-1)[..., None]
        return self._with_labels(left, self._zeros(alpha, self._num_slots - 1, semiring))

    def labels(self, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        leaving = _scaled(alpha, arcs, semiring)
        moved = semiring.times(self._sources(leaving, semiring), arcs.lexical)
        stayed = semiring.times(leaving[..., 1:], _repeat(arcs))
        entered = semiring.plus(self._pairs.reduce(moved, semiring), stayed)
        return self._with_labels(self._zeros(alpha, 1, semiring), entered)

    def blank_backward(self, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        return semiring.times(_blank_per_slot(arcs), beta[..., :1]).expand(beta.shape)

    def labels_backward(self, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        return _scaled(self._labels_backward_unscaled(beta, arcs, semiring), arcs, semiring)

    def blank_marginal(self, alpha: Tensor, arcs: Arcs, beta: Tensor) -> Tensor:
        through = alpha + _blank_per_slot(arcs) + beta[..., :1]
        return Log.sum(through, dim=-1) if arcs.label_scale is None else through

    def label_marginals(self, alpha: Tensor, arcs: Arcs, beta: Tensor) -> dict[str, Tensor]:
        leaving = _scaled(alpha, arcs, Log)
        reached = self._pairs.broadcast(beta[..., 1:], Log)
        marginals = {
            "lexical": self._sources(leaving, Log) + arcs.lexical + reached,
            "repeat": leaving[..., 1:] + _repeat(arcs) + beta[..., 1:],
        }
        if arcs.label_scale is not None:
            marginals["label_scale"] = leaving + self._labels_backward_unscaled(beta, arcs, Log)
        return marginals

    def best_blank(self, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        best, slot = (alpha + _blank_per_slot(arcs)).max(dim=-1, keepdim=True)
        state = torch.arange(best.shape[-2], device=best.device)[:, None]
        source = (state * self._num_slots + slot).expand(*slot.shape[:-1], self._num_slots)
        nothing = self._zeros(alpha, self._num_slots - 1, MaxTropical)
        return self._with_labels(best, nothing), source.flatten(-2)

    def best_labels(self, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor, Tensor]:
        leaving = _scaled(alpha, arcs, MaxTropical)
        weight, from_slot = self._best_sources(leaving)
        moved, arc = self._pairs.best(weight + arcs.lexical)  # [*batch, S, E]
        from_state = torch.div(arc, arcs.lexical.shape[-1], rounding_mode="floor")
        source = from_state * self._num_slots + pick_flat(from_slot, arc.flatten(-2)).view_as(arc)
        stayed = leaving[..., 1:] + _repeat(arcs)
        own = torch.arange(moved.shape[-2] * self._num_slots, device=moved.device)
        own = own.view(moved.shape[-2], self._num_slots)[:, 1:]
        stays = (stayed > moved) | ((stayed == moved) & (own < source))
        best = self._with_labels(
            self._zeros(alpha, 1, MaxTropical), torch.where(stays, stayed, moved)
        )
        # New or repeated, what leads to (q, y) is the label y.
        label = self._entered_label.to(moved.device).expand(moved.shape)
        source = torch.where(stays, own, source)
        return best, self._pad_blank(label), self._pad_blank(source)

    def label_choices(self, state: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor, Tensor]:
        """The new labels, and last the repeat of what the state has read."""
        context_state = torch.div(state, self._num_slots, rounding_mode="floor")
        slot = (state % self._num_slots)[..., None]
        read = (slot - 1).clamp(min=0)
        label = pick(self._arc_label, context_state)
        new = pick(arcs.lexical, context_state)
        is_repeat = (pick(self._repeat_slot, context_state) == slot) & (slot > 0)
        new = new.masked_fill(is_repeat, -torch.inf)
        repeat = pick(_repeat(arcs), context_state).gather(-1, read)
        weight = torch.cat([new, repeat.masked_fill(slot == 0, -torch.inf)], dim=-1)
        if arcs.label_scale is not None:
            weight = weight + pick(arcs.label_scale, context_state).gather(-1, slot)
        repeated = pick(self._entered_label, context_state).gather(-1, read)
        destination = pick(self._pairs.destination, context_state)
        return (
            weight,
            torch.cat([label, repeated], dim=-1),
            torch.cat([destination, state[..., None]], dim=-1),
        )

    def blank_choice(self, state: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        context_state = torch.div(state, self._num_slots, rounding_mode="floor")
        blank = pick(_blank_per_slot(arcs), context_state)
        slot = state % self._num_slots if blank.shape[-1] > 1 else torch.zeros_like(state)
        weight = blank.gather(-1, slot[..., None]).squeeze(-1)
        return weight, context_state * self._num_slots

    def _labels_backward_unscaled(self, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """Backward weights before one label, without `label_scale`."""
        out = semiring.times(arcs.lexical, self._pairs.broadcast(beta[..., 1:], semiring))
        new = self._sum_without_repeats(out, semiring)
        stay = semiring.times(_repeat(arcs), beta[..., 1:])
        return self._with_labels(semiring.sum(out, dim=-1)[..., None], semiring.plus(new, stay))

    def _sources(self, leaving: Tensor, semiring: Semiring) -> Tensor:
        """[*batch, S, A] weight of the states from which an arc's label is new."""
        total = semiring.sum(leaving, dim=-1)[..., None]
        others = torch.cat([total, exclusive_sum(leaving, semiring)[..., 1:]], dim=-1)
        slot = self._repeat_slot.to(leaving.device)
        return others.gather(-1, slot.expand(*others.shape[:-1], slot.shape[-1]))

    def _best_sources(self, leaving: Tensor) -> tuple[Tensor, Tensor]:
        """`_sources` under MaxTropical, and the winning slot."""
        first, first_slot = leaving.max(dim=-1, keepdim=True)
        rest = leaving.scatter(-1, first_slot, -torch.inf)
        second, second_slot = rest.max(dim=-1, keepdim=True)
        slot = self._repeat_slot.to(leaving.device)
        taken = (slot == first_slot) & (slot > 0)
        return torch.where(taken, second, first), torch.where(taken, second_slot, first_slot)

    def _sum_without_repeats(self, out: Tensor, semiring: Semiring) -> Tensor:
        """[*batch, S, A] arcs -> [*batch, S, E] sums over the labels that are new at each slot."""
        slot = self._repeat_slot.to(out.device)
        if self._num_slots == 2:
            zeros = self._zeros(out, out.shape[-1], semiring)
            return semiring.sum(torch.where(slot == 1, zeros, out), dim=-1)[..., None]
        # With several slots the arcs are all labels, in order.
        others = exclusive_sum(out, semiring)
        arc = (self._entered_label.to(out.device) - 1).clamp(min=0)
        return others.gather(-1, arc.expand(*others.shape[:-1], arc.shape[-1]))

    @staticmethod
    def _zeros(like: Tensor, size: int, semiring: Semiring) -> Tensor:
        """Zeros of `size` slots for the states of `like`, [*batch, S, any]."""
        batch = tuple(like.shape[1 if semiring.num_components else 0 : -1])
        return semiring.zeros((*batch, size), like=like)

    @staticmethod
    def _with_labels(blank: Tensor, labels: Tensor) -> Tensor:
        return torch.cat([blank, labels], dim=-1)

    @staticmethod
    def _pad_blank(pointer: Tensor) -> Tensor:
        """[*batch, S, E] -> [*batch, S (1 + E)]; no label leads to slot 0."""
        return torch.cat([torch.zeros_like(pointer[..., :1]), pointer], dim=-1).flatten(-2)


class PairTransitions(ABC):
    """The new-label arcs as seen from their destinations (q, y)."""

    destination: Tensor
    """[..., S, A] flat destination q (1 + E) + slot of each arc; -1 where there is none."""

    @abstractmethod
    def reduce(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """[*batch, S, A] arcs -> [*batch, S, E] their sums by destination."""

    @abstractmethod
    def broadcast(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """[*batch, S, E] destinations -> [*batch, S, A] over their arcs."""

    @abstractmethod
    def best(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """`reduce` under MaxTropical, and the winning arcs [*batch, S, E] as s A + a."""


@final
class UniquePairs(PairTransitions):
    """Where one label alone enters each state, as in n-grams and strings: (q, y) is q itself.

    Args:
        transitions: the arcs.
        next_state: [..., S, A] destinations as states; -1 where there is none.
    """

    def __init__(self, transitions: Transitions, next_state: Tensor) -> None:
        """Keeps the arcs."""
        self._transitions = transitions
        self.destination = torch.where(next_state < 0, -1, 2 * next_state + 1)

    def reduce(self, weights: Tensor, semiring: Semiring) -> Tensor:
        return self._transitions.forward_reduce(weights, semiring)[..., None]

    def broadcast(self, weights: Tensor, semiring: Semiring) -> Tensor:
        return self._transitions.backward_broadcast(weights[..., 0], semiring)

    def best(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        best, arc = self._transitions.forward_best(weights)
        return best[..., None], arc[..., None]


@final
class GroupedPairs(PairTransitions):
    """Any automaton: several labels may enter a state.

    Args:
        next_state: [S, V] next states, -1 where there is no arc.
        entered_slot: [S, V] which slot 1..E of state q label column y is, 0 if it does not enter.
    """

    def __init__(self, next_state: Tensor, entered_slot: Tensor) -> None:
        """Sorts the arcs by destination."""
        num_states, vocab_size = next_state.shape
        self._num_entering = int(entered_slot.max())
        column = torch.arange(vocab_size).expand(num_states, vocab_size)
        slot = entered_slot[next_state.clamp(min=0), column]
        pair = next_state * self._num_entering + slot - 1
        self._pair = torch.where(next_state < 0, -1, pair)
        flat = next_state * (1 + self._num_entering) + slot
        self.destination = torch.where(next_state < 0, -1, flat)
        order = torch.arange(next_state.numel()).view(vocab_size, num_states).T.flatten()
        self._groups = ArcGroups(self._pair.flatten(), order, num_states * self._num_entering)

    def reduce(self, weights: Tensor, semiring: Semiring) -> Tensor:
        sums = self._groups.reduce(weights.flatten(-2), semiring)
        return sums.unflatten(-1, (-1, self._num_entering))

    def broadcast(self, weights: Tensor, semiring: Semiring) -> Tensor:
        return append_zero(weights.flatten(-2), semiring)[..., self._pair.to(weights.device)]

    def best(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        best, arc = self._groups.best(weights.flatten(-2))
        size = (-1, self._num_entering)
        return best.unflatten(-1, size), arc.unflatten(-1, size)


def entering_labels(context: FiniteContext) -> tuple[Tensor, Tensor]:
    """The distinct labels that enter each state.

    Returns:
        [S, E] the labels in order, 0 for an empty slot (E is at least 1), and [S, V] which slot
        1..E each label column is, 0 if it does not enter.
    """
    table = context.next_state_table()
    num_states, vocab_size = table.shape
    enters = torch.zeros(num_states + 1, vocab_size, dtype=torch.bool)
    enters[table, torch.arange(vocab_size).expand_as(table)] = True  # -1 marks the extra row
    enters = enters[:num_states]
    slot = torch.where(enters, enters.long().cumsum(-1), 0)
    labels = torch.zeros(num_states, 1 + max(1, int(slot.max())), dtype=torch.int64)
    labels.scatter_(-1, slot, torch.arange(1, vocab_size + 1).expand_as(slot))
    return labels[:, 1:], slot


def exclusive_sum(x: Tensor, semiring: Semiring) -> Tensor:
    """[*batch, N] -> [*batch, N]: the sum of all entries but one, in O(N log N) without a minus."""
    batch = tuple(x.shape[1 if semiring.num_components else 0 : -1])
    nothing = semiring.zeros((*batch, 1), like=x)
    if x.shape[-1] == 1:
        return nothing
    before = torch.cat([nothing, _inclusive_scan(x, semiring)[..., :-1]], dim=-1)
    after = torch.cat([nothing, _inclusive_scan(x.flip(-1), semiring)[..., :-1]], dim=-1).flip(-1)
    return semiring.plus(before, after)


def _inclusive_scan(x: Tensor, semiring: Semiring) -> Tensor:
    """Sums of all prefixes, by doubling the reach."""
    reach = 1
    while reach < x.shape[-1]:
        x = torch.cat([x[..., :reach], semiring.plus(x[..., reach:], x[..., :-reach])], dim=-1)
        reach *= 2
    return x


def _repeat_slots(arc_label: Tensor, entered_label: Tensor) -> Tensor:
    """[..., S, A] which slot 1..E of its source has read an arc's label, 0 if none has."""
    if entered_label.shape[-1] == 1:
        return (arc_label == entered_label).long()
    # Several labels enter: then the arcs are all labels in order, and a scatter finds them.
    slots = torch.arange(1, 1 + entered_label.shape[-1]).expand_as(entered_label)
    shape = (*entered_label.shape[:-1], 1 + arc_label.shape[-1])
    found = torch.zeros(shape, dtype=torch.int64).scatter(-1, entered_label, slots)
    return found[..., 1:]


def _blank_per_slot(arcs: Arcs) -> Tensor:
    """[*batch, S, 1 or 1 + E] blank weights."""
    return arcs.blank[..., None] if arcs.label_scale is None else arcs.blank


def _repeat(arcs: Arcs) -> Tensor:
    assert arcs.repeat is not None, "a deduplicated space needs the weights of repeats"
    return arcs.repeat


def _scaled(weights: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
    if arcs.label_scale is None:
        return weights
    return semiring.times(weights, arcs.label_scale)
