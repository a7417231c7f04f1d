"""Alignment lattices: when a frame may emit a blank or a label.

L_T is acyclic and depends on the number of frames T alone. Each class takes one *step* (a frame, or
for the label-dependent lattice a label position) at a time, over a label space of `contexts`: the
forward weights after the step, the backward weights before it, and the weight of the paths through
each of its arcs. Whole sums are loops over steps, in `lattices`.

Shapes: *batch any leading dims; *extended the trailing dims of forward weights here (the space's
state dims, after one more dim for the label-dependent lattice); F states of the space flattened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from midge.contexts.base import BLANK
from midge.contexts.spaces import Arcs, LabelSpace
from midge.semirings import Log, Semiring

NO_SYMBOL = -1
"""Fills the places of a step at which nothing was emitted."""

Draw = Callable[[Tensor], Tensor]
"""Picks an index per row of [*batch, num_choices] log weights."""


class AlignmentLattice(ABC):
    """The automaton L_T over frames and labels (paper, section 4.2)."""

    has_blank: bool = True
    """Whether there are blank arcs."""

    @property
    def num_levels(self) -> int:
        """Number of states of L_T in a step."""
        return 1

    @abstractmethod
    def num_steps(self, num_frames: Tensor) -> Tensor:
        """[*batch] number of steps for so many frames."""

    def extended_shape(self, space: LabelSpace) -> tuple[int, ...]:
        """The trailing dims of forward and backward weights over a space."""
        return space.state_shape

    def start(self, space: LabelSpace, like: Tensor) -> Tensor:
        """[*batch, *extended] log weights of beginning."""
        return space.start(like)

    def final(self, space: LabelSpace, like: Tensor) -> Tensor:
        """[*batch, *extended] log weights of ending after the last step."""
        return space.final(like)

    @abstractmethod
    def forward(self, space: LabelSpace, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """Forward weights [*batch, *extended] after a step, from those before it."""

    @abstractmethod
    def backward(self, space: LabelSpace, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """Backward weights [*batch, *extended] before a step, from those after it."""

    @abstractmethod
    def marginals(self, space: LabelSpace, alpha: Tensor, arcs: Arcs, beta: Tensor) -> Arcs:
        """Log weight of all paths through each arc of a step: alpha before, beta after it."""

    @abstractmethod
    def best(self, space: LabelSpace, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        """`forward` under MaxTropical, with pointers [num_pointers, *batch, F] for `trace`.

        Ties: blank first, then the smallest label, then the smallest source state.
        """

    @abstractmethod
    def trace(self, pointers: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Follows one step back.

        Args:
            pointers: [num_pointers, *batch, F] of this step.
            state: [*batch] flat extended state after the step.

        Returns:
            [*batch, max symbols] what the step emitted, in order, NO_SYMBOL for nothing, and
            [*batch] the state before the step.
        """

    @abstractmethod
    def sample(
        self, space: LabelSpace, state: Tensor, arcs: Arcs, beta: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Takes one step at random, each way by its weight.

        Args:
            space: the label space.
            state: [*batch] flat extended state before the step.
            arcs: fields broadcastable to [*batch, ...].
            beta: [*batch, *extended] backward weights after the step.
            draw: how to choose.

        Returns:
            [*batch, max symbols] as `trace`, [*batch] the state after the step, and [*batch] the
            log weight of the arcs taken.
        """

    @abstractmethod
    def backward_levels(self, space: LabelSpace, beta: Tensor, arcs: Arcs) -> list[Level]:
        """The states of L_T inside one step, each with what its arcs lead to.

        Args:
            space: the label space.
            beta: [*batch, *extended] backward log weights after the step.
            arcs: the arcs of the step.
        """


@dataclass(frozen=True)
class Level:
    """A state of L_T with backward weights: its own, and behind its blank and its label arcs."""

    beta: Tensor
    """[*batch, *state_shape] before any arc."""
    after_blank: Tensor | None
    """[*batch, *state_shape] after a blank; None where no blank leaves."""
    after_label: Tensor | None
    """[*batch, *state_shape] after a label; None where no label leaves."""
    arcs: Arcs
    """The arcs that leave."""


@final
@dataclass(frozen=True)
class FrameDependent(AlignmentLattice):
    """Each frame emits at most one label, as in CTC.

    Q_T = {0..T}; arcs (t, y, t + 1) for every label y and, with `allow_blank`, for blank.

    Args:
        allow_blank: False is the cross-entropy model's lattice: every frame emits one label.
    """

    allow_blank: bool = True

    @property
    def has_blank(self) -> bool:  # type: ignore[override]
        """Whether there are blank arcs."""
        return self.allow_blank

    def num_steps(self, num_frames: Tensor) -> Tensor:
        """One step per frame."""
        return num_frames

    def forward(self, space: LabelSpace, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """alpha'[q] = alpha[q] blank[q] + the sum over p-y->q of alpha[p] lexical[p, y]."""
        moved = space.labels(alpha, arcs, semiring)
        if not self.allow_blank:
            return moved
        return semiring.plus(space.blank(alpha, arcs, semiring), moved)

    def backward(self, space: LabelSpace, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        moved = space.labels_backward(beta, arcs, semiring)
        if not self.allow_blank:
            return moved
        return semiring.plus(space.blank_backward(beta, arcs, semiring), moved)

    def marginals(self, space: LabelSpace, alpha: Tensor, arcs: Arcs, beta: Tensor) -> Arcs:
        if self.allow_blank:
            blank = space.blank_marginal(alpha, arcs, beta)
        else:
            blank = torch.full_like(arcs.blank, -torch.inf)
        return Arcs(blank=blank, **space.label_marginals(alpha, arcs, beta))

    def best(self, space: LabelSpace, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        """One pointer, label * F + source."""
        weight, label, source = space.best_labels(alpha, arcs)
        pointer = label * source.shape[-1] + source
        if self.allow_blank:
            stayed, stayed_source = space.best_blank(alpha, arcs)
            stays = stayed >= weight
            weight = torch.where(stays, stayed, weight)
            pointer = torch.where(stays.view_as(pointer), stayed_source, pointer)
        return weight, pointer[None]

    def trace(self, pointers: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        label, source = _follow(pointers[0], state)
        return label[..., None], source

    def sample(
        self, space: LabelSpace, state: Tensor, arcs: Arcs, beta: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor]:
        after = beta.flatten(-len(space.state_shape))
        label, state, weight = _choose(
            space, state, arcs, after if self.allow_blank else None, after, draw
        )
        return label[..., None], state, weight

    def backward_levels(self, space: LabelSpace, beta: Tensor, arcs: Arcs) -> list[Level]:
        """One level."""
        before = self.backward(space, beta, arcs, Log)
        return [Level(before, beta if self.allow_blank else None, beta, arcs)]


@final
@dataclass(frozen=True)
class LabelFrameDependent(AlignmentLattice):
    """Each frame emits up to k labels and then a blank, as in RNN-T.

    Q_T = {(t, n) : 0 <= t < T, 0 <= n <= k} and (T, 0); arcs ((t, n), y, (t, n + 1)) for n < k and
    ((t, n), blank, (t + 1, 0)) for every n. The bound on the labels of a frame makes it acyclic.

    Args:
        max_labels_per_frame: k, at least 1; None is unbounded (along a label string only).
    """

    max_labels_per_frame: int | None

    def __post_init__(self) -> None:
        if self.max_labels_per_frame is not None and self.max_labels_per_frame < 1:
            raise ValueError(
                "max_labels_per_frame should be at least 1 or None, "
                f"got {self.max_labels_per_frame}"
            )

    @property
    def _limit(self) -> int:
        assert self.max_labels_per_frame is not None, "unbounded k has no step of its own"
        return self.max_labels_per_frame

    @property
    def num_levels(self) -> int:
        """One for each n = 0..k."""
        return self._limit + 1

    def num_steps(self, num_frames: Tensor) -> Tensor:
        """One step per frame."""
        return num_frames

    def forward(self, space: LabelSpace, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        """O(k) times one label."""
        left = space.blank(alpha, arcs, semiring)
        for count in range(1, self._limit + 1):
            alpha = space.labels(alpha, arcs, semiring)
            leaving = arcs.at_limit() if count == self._limit else arcs
            left = semiring.plus(left, space.blank(alpha, leaving, semiring))
        return left

    def backward(self, space: LabelSpace, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        return self._betas(space, beta, arcs, semiring)[0]

    def _betas(
        self, space: LabelSpace, beta: Tensor, arcs: Arcs, semiring: Semiring
    ) -> list[Tensor]:
        """Backward weights at n = 0..k."""
        leave = space.blank_backward(beta, arcs, semiring)
        betas = [space.blank_backward(beta, arcs.at_limit(), semiring)]
        for _ in range(self._limit):
            moved = space.labels_backward(betas[-1], arcs, semiring)
            betas.append(semiring.plus(leave, moved))
        return betas[::-1]

    def marginals(self, space: LabelSpace, alpha: Tensor, arcs: Arcs, beta: Tensor) -> Arcs:
        """Summed over n, but for blank at n = k where it weighs otherwise."""
        betas = self._betas(space, beta, arcs, Log)
        blank = space.blank_marginal(alpha, arcs, beta)
        labels: dict[str, Tensor] = {}
        closing = None
        for count in range(self._limit):
            step = space.label_marginals(alpha, arcs, betas[count + 1])
            labels = {
                name: Log.plus(labels[name], value) if labels else value
                for name, value in step.items()
            }
            alpha = space.labels(alpha, arcs, Log)
            if count + 1 < self._limit or arcs.closing is None:
                blank = Log.plus(blank, space.blank_marginal(alpha, arcs, beta))
            else:
                closing = space.blank_marginal(alpha, arcs.at_limit(), beta)
        return Arcs(blank=blank, closing=closing, **labels)

    def best(self, space: LabelSpace, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        """K pointers label * F + source, then one n * F + source."""
        left, source = space.best_blank(alpha, arcs)
        exit_pointer = source
        pointers = []
        for count in range(1, self._limit + 1):
            alpha, label, source = space.best_labels(alpha, arcs)
            pointers.append(label * source.shape[-1] + source)
            leaving = arcs.at_limit() if count == self._limit else arcs
            weight, source = space.best_blank(alpha, leaving)
            wins = weight > left
            left = torch.where(wins, weight, left)
            pointer = count * source.shape[-1] + source
            exit_pointer = torch.where(wins.view_as(source), pointer, exit_pointer)
        return left, torch.stack([*pointers, exit_pointer])

    def trace(self, pointers: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Up to k labels, then blank."""
        num_labels, state = _follow(pointers[-1], state)
        symbols = [torch.full_like(state, BLANK)]
        for count in range(self._limit, 0, -1):
            label, source = _follow(pointers[count - 1], state)
            emitted = num_labels >= count
            symbols.append(torch.where(emitted, label, NO_SYMBOL))
            state = torch.where(emitted, source, state)
        return torch.stack(symbols[::-1], dim=-1), state

    def sample(
        self, space: LabelSpace, state: Tensor, arcs: Arcs, beta: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor]:
        betas = self._betas(space, beta, arcs, Log)
        num_dims = len(space.state_shape)
        after_blank = beta.flatten(-num_dims)
        symbols = []
        total = torch.zeros_like(after_blank[..., 0])
        left = torch.zeros_like(state, dtype=torch.bool)
        for count in range(self._limit):
            after_label = betas[count + 1].flatten(-num_dims)
            label, moved, weight = _choose(space, state, arcs, after_blank, after_label, draw)
            total = torch.where(left, total, total + weight)
            left = left | (label == BLANK)
            symbols.append(torch.where(left, NO_SYMBOL, label))
            state = torch.where(left, state, moved)
        weight, state = space.blank_choice(state, arcs.at_limit())
        symbols.append(torch.full_like(state, BLANK))
        return torch.stack(symbols, dim=-1), state, torch.where(left, total, total + weight)

    def backward_levels(self, space: LabelSpace, beta: Tensor, arcs: Arcs) -> list[Level]:
        """One level for each n = 0..k."""
        betas = self._betas(space, beta, arcs, Log)
        levels = [Level(betas[count], beta, betas[count + 1], arcs) for count in range(self._limit)]
        return [*levels, Level(betas[-1], beta, None, arcs.at_limit())]


@final
@dataclass(frozen=True)
class LabelDependent(AlignmentLattice):
    """Label after label, each aligned to all frames; blank ends, as in LAS.

    Q_T = {0..l(T)}; arcs (u, y, u + 1) for u < l(T), and (u, blank, l(T)). Exactly l(T) labels end
    without blank. A step is a label position. Forward weights are [*batch, 2, *state_shape]: still
    at a label position, and ended.

    Args:
        max_num_labels: l(T): a number, or a function of the number of frames.
    """

    max_num_labels: int | Callable[[int], int]

    def __post_init__(self) -> None:
        if isinstance(self.max_num_labels, int) and self.max_num_labels < 0:
            raise ValueError(f"max_num_labels should be at least 0, got {self.max_num_labels}")

    def num_steps(self, num_frames: Tensor) -> Tensor:
        """[*batch] l(T)."""
        if isinstance(self.max_num_labels, int):
            return torch.full_like(num_frames, self.max_num_labels)
        limits = [int(self.max_num_labels(int(count))) for count in num_frames.flatten()]
        if limits and min(limits) < 0:
            raise ValueError(f"max_num_labels should give at least 0, got {min(limits)}")
        return torch.tensor(limits, device=num_frames.device).view(num_frames.shape)

    def extended_shape(self, space: LabelSpace) -> tuple[int, ...]:
        return (2, *space.state_shape)

    def start(self, space: LabelSpace, like: Tensor) -> Tensor:
        start = space.start(like)
        return torch.stack([start, torch.full_like(start, -torch.inf)], dim=-2)

    def final(self, space: LabelSpace, like: Tensor) -> Tensor:
        final = space.final(like)
        return torch.stack([final, final], dim=-2)

    def forward(self, space: LabelSpace, alpha: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        active, ended = alpha.unbind(-2)
        ended = semiring.plus(ended, space.blank(active, arcs, semiring))
        return torch.stack([space.labels(active, arcs, semiring), ended], dim=-2)

    def backward(self, space: LabelSpace, beta: Tensor, arcs: Arcs, semiring: Semiring) -> Tensor:
        active, ended = beta.unbind(-2)
        before = semiring.plus(
            space.blank_backward(ended, arcs, semiring),
            space.labels_backward(active, arcs, semiring),
        )
        return torch.stack([before, ended], dim=-2)

    def marginals(self, space: LabelSpace, alpha: Tensor, arcs: Arcs, beta: Tensor) -> Arcs:
        active = alpha[..., 0, :]
        blank = space.blank_marginal(active, arcs, beta[..., 1, :])
        return Arcs(blank=blank, **space.label_marginals(active, arcs, beta[..., 0, :]))

    def best(self, space: LabelSpace, alpha: Tensor, arcs: Arcs) -> tuple[Tensor, Tensor]:
        """A pointer label * F + source, and one that says "ended here"."""
        active, ended = alpha.unbind(-2)
        moved, label, source = space.best_labels(active, arcs)
        stopped, _ = space.best_blank(active, arcs)
        ends_here = stopped > ended  # among equals the earliest end, the smallest source
        ended = torch.where(ends_here, stopped, ended)
        pointer = label * source.shape[-1] + source
        return torch.stack([moved, ended], dim=-2), torch.stack([pointer, ends_here.long()])

    def trace(self, pointers: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        num_states = pointers.shape[-1]
        ended, at = state >= num_states, state % num_states
        label, source = _follow(pointers[0], at)
        ends_here = pointers[1].gather(-1, at[..., None]).squeeze(-1).bool()
        symbol = torch.where(ended, torch.where(ends_here, BLANK, NO_SYMBOL), label)
        before = torch.where(ended, torch.where(ends_here, at, state), source)
        return symbol[..., None], before

    def sample(
        self, space: LabelSpace, state: Tensor, arcs: Arcs, beta: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_states = beta.shape[-1]
        ended, at = state >= num_states, state % num_states
        label, moved, weight = _choose(space, at, arcs, beta[..., 1, :], beta[..., 0, :], draw)
        moved = torch.where(label == BLANK, moved + num_states, moved)
        symbol = torch.where(ended, NO_SYMBOL, label)
        state = torch.where(ended, state, moved)
        return symbol[..., None], state, weight.masked_fill(ended, 0.0)

    def backward_levels(self, space: LabelSpace, beta: Tensor, arcs: Arcs) -> list[Level]:
        """One level."""
        active, ended = beta.unbind(-2)
        before = self.backward(space, beta, arcs, Log)
        return [Level(before[..., 0, :], ended, active, arcs)]


def _follow(pointer: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Splits pointers [*batch, F] at [*batch] states into what stands over F, and the source."""
    at = pointer.gather(-1, state[..., None]).squeeze(-1)
    num_states = pointer.shape[-1]
    return torch.div(at, num_states, rounding_mode="floor"), at % num_states


def _choose(
    space: LabelSpace,
    state: Tensor,
    arcs: Arcs,
    after_blank: Tensor | None,
    after_label: Tensor,
    draw: Draw,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws one arc per row by its weight times the backward weight behind it.

    Args:
        space: the label space.
        state: [*batch] flat states.
        arcs: their arcs.
        after_blank: [*batch, F] backward weights after a blank; None if there is none.
        after_label: [*batch, F] backward weights after a label.
        draw: how to choose.

    Returns:
        [*batch] the label, 0 for blank, the state it leads to, and the log weight of the arc.
    """
    weight, label, destination = space.label_choices(state, arcs)
    through = weight + _behind(after_label, destination)
    if after_blank is not None:
        stayed, stayed_state = (x[..., None] for x in space.blank_choice(state, arcs))
        weight = torch.cat([stayed, weight], dim=-1)
        through = torch.cat([stayed + _behind(after_blank, stayed_state), through], dim=-1)
        label = torch.cat([torch.full_like(label[..., :1], BLANK), label], dim=-1)
        destination = torch.cat([stayed_state, destination], dim=-1)
    choice = draw(through)[..., None]
    label, destination, weight = (
        x.gather(-1, choice).squeeze(-1) for x in (label, destination, weight)
    )
    return label, destination, weight


def _behind(beta: Tensor, destination: Tensor) -> Tensor:
    """Backward weights at destinations; an arc that is not there weighs -inf already."""
    beta = beta.expand(*destination.shape[:-1], beta.shape[-1])
    return beta.gather(-1, destination.clamp(min=0))
