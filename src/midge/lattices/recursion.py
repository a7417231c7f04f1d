"""Shortest distances over steps: the forward pass, the backward pass, and their gradients.

The readable engine. `LogDistance` is the sum over all paths, with the forward-backward algorithm
as its gradient; `SemiringDistance` works for every semiring, and takes its gradient by running
each piece again under autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from midge.alignments import AlignmentLattice
from midge.contexts.spaces import Arcs, LabelSpace
from midge.lattices.pieces import ArcSource, GradientSums
from midge.semirings import Log, MaxTropical, Semiring


@dataclass(frozen=True)
class Recursion:
    """A lattice ready to be summed: L over a label space, with arcs."""

    alignment: AlignmentLattice
    """When labels may come."""
    space: LabelSpace
    """What they do."""
    source: ArcSource
    """What they weigh."""
    num_steps: Tensor
    """[B] number of steps of each utterance."""

    def distance(self, semiring: Semiring) -> Tensor:
        """[B] float64 (composite semirings: [components, B]) sum over all paths."""
        total: Tensor
        if semiring is Log:
            total = LogDistance.apply(self, *self.source.inputs)
        else:
            total = SemiringDistance.apply(self, semiring, *self.source.inputs)
        return total

    @property
    def num_state_dims(self) -> int:
        """How many trailing dims of forward weights are states."""
        return len(self.alignment.extended_shape(self.space))

    def start(self, like: Tensor) -> Tensor:
        """[B, *extended] log weights of beginning."""
        return self._expand(self.alignment.start(self.space, like))

    def final(self, like: Tensor) -> Tensor:
        """[B, *extended] log weights of ending."""
        return self._expand(self.alignment.final(self.space, like))

    def _expand(self, weights: Tensor) -> Tensor:
        shape = self.alignment.extended_shape(self.space)
        return weights.expand(len(self.num_steps), *shape)

    def is_live(self, step: int) -> Tensor | None:
        """[B, 1, ...] bool: which utterances have this step; None if all have."""
        live = step < self.num_steps
        if bool(live.all()):
            return None
        return live.view(-1, *[1] * self.num_state_dims)

    def total(self, alpha: Tensor, semiring: Semiring) -> Tensor:
        """[B] sum over the states after the last step, ends included."""
        final = semiring.from_log(self.final(like=alpha[-1] if semiring.num_components else alpha))
        ended = semiring.times(alpha, final)
        return semiring.sum(ended.flatten(-self.num_state_dims), dim=-1)

    def forward(
        self, inputs: tuple[Tensor, ...], semiring: Semiring
    ) -> Iterator[tuple[int, Arcs, Tensor, Tensor]]:
        """Yields (step, its arcs, alpha before it, offset before it), and last the end.

        alpha is [B, *extended], recentred: the true forward weights are times(offset, alpha), with
        offset [B] float64. The last item has step N and no arcs of its own.
        """
        alpha, offset = self.begin(semiring)
        for steps in self.source.pieces():
            arcs = self.source.arcs(inputs, steps)
            for step in steps:
                here = at_step(arcs, step - steps.start)
                yield step, here, alpha, offset
                alpha, offset = self.advance(alpha, offset, here, step, semiring)
        yield self.source.num_steps, self._no_arcs(), alpha, offset

    def _no_arcs(self) -> Arcs:
        return Arcs(blank=self.source.like, lexical=self.source.like)

    def _no_offset(self) -> Tensor:
        return torch.zeros(len(self.num_steps), dtype=torch.float64, device=self.num_steps.device)

    def begin(self, semiring: Semiring) -> tuple[Tensor, Tensor]:
        """Forward weights before the first step, and their offset."""
        return semiring.from_log(self.start(self.source.like)), self._no_offset()

    def advance(
        self, alpha: Tensor, offset: Tensor, arcs: Arcs, step: int, semiring: Semiring
    ) -> tuple[Tensor, Tensor]:
        """Forward weights after a step, and their offset."""
        after = self.alignment.forward(self.space, alpha, arcs.map(semiring.from_log), semiring)
        after, shift = semiring.recentre(after, self.num_state_dims)
        live = self.is_live(step)
        if live is not None:
            after = torch.where(live, after, alpha)
            shift = shift * live.view(-1)
        return after, offset + shift

    def backward(
        self, inputs: tuple[Tensor, ...], arcs_of: Callable[[range], Arcs] | None = None
    ) -> Iterator[tuple[int, Arcs, Tensor, Tensor]]:
        """Yields (step, its arcs, beta after it, offset after it), last step first.

        beta is [B, *extended] log weights, recentred as in `forward`. The last item has step -1,
        and beta before the first step.
        """
        beta, offset = self.final(self.source.like), self._no_offset()
        for steps in reversed(self.source.pieces()):
            arcs = arcs_of(steps) if arcs_of else self.source.arcs(inputs, steps)
            for step in reversed(steps):
                here = at_step(arcs, step - steps.start).map(Tensor.detach)
                yield step, here, beta, offset
                beta, offset = self.retreat(beta, offset, here, step)
        yield -1, self._no_arcs(), beta, offset

    def retreat(self, beta: Tensor, offset: Tensor, arcs: Arcs, step: int) -> tuple[Tensor, Tensor]:
        """Backward weights before a step, and their offset."""
        before = self.alignment.backward(self.space, beta, arcs, Log)
        before, shift = Log.recentre(before, self.num_state_dims)
        live = self.is_live(step)
        if live is not None:
            before = torch.where(live, before, beta)
            shift = shift * live.view(-1)
        return before, offset + shift

    def marginals(self, alpha: Tensor, arcs: Arcs, beta: Tensor, shift: Tensor, step: int) -> Arcs:
        """Posterior probability of every arc of a step; 0 for utterances that have ended.

        Args:
            alpha: [B, *extended] forward weights before the step.
            arcs: its arcs.
            beta: [B, *extended] backward weights after it.
            shift: [B] float64, the offsets of both less log Z; -inf where there is no path.
            step: the step.
        """
        live = step < self.num_steps
        shift = shift.masked_fill(~live, -torch.inf).to(alpha)
        through = self.alignment.marginals(self.space, alpha, arcs, beta)
        return through.map(lambda x: (x + shift.view(-1, *[1] * (x.dim() - 1))).exp())


def at_step(arcs: Arcs, index: int) -> Arcs:
    """The arcs [B, ...] of one step of a piece [B, n, ...]."""
    return arcs.map(lambda x: x[:, index])


def with_offset(total: Tensor, offset: Tensor, semiring: Semiring) -> Tensor:
    """A sum in float64, with the offset that `recentre` took off."""
    total = total.double()
    if semiring.num_components:
        return torch.cat([(total[:1] + offset), total[1:]])
    return total if semiring.one == 1.0 else total + offset


@dataclass(frozen=True)
class Trail:
    """The forward weights of all steps."""

    alphas: Tensor
    """[N, B, *extended] before each step, recentred."""
    offsets: Tensor
    """[N, B] float64."""
    log_z: Tensor
    """[B] float64."""

    def shift(self, step: int, offset: Tensor) -> Tensor:
        """[B] what turns alpha + arc + beta into a log posterior; -inf where there is no path."""
        no_path = self.log_z == -torch.inf
        return (self.offsets[step] + offset - self.log_z).masked_fill(no_path, -torch.inf)


def forward_trail(recursion: Recursion, inputs: tuple[Tensor, ...]) -> Trail:
    """Runs over the steps under the log semiring and keeps the forward weights."""
    # One tensor for all: small ones, kept between the large ones that come and go with each
    # piece, would leave holes in memory that nothing fits.
    alpha, offset = recursion.begin(Log)
    num_steps = recursion.source.num_steps
    alphas = alpha.new_empty(num_steps, *alpha.shape)
    offsets = offset.new_empty(num_steps, *offset.shape)
    for step, _, alpha, offset in recursion.forward(inputs, Log):  # noqa: B007
        if step < num_steps:
            alphas[step], offsets[step] = alpha, offset
    return Trail(alphas, offsets, with_offset(recursion.total(alpha, Log), offset, Log))


class LogDistance(torch.autograd.Function):
    """[B] float64 log-sum over all paths; its gradient is the arc posteriors.

    Keeps the forward weights [N, B, *extended], not the arcs: these are computed again, a piece at
    a time, while the backward weights run over the steps from the end.
    """

    @staticmethod
    def forward(ctx: Any, recursion: Recursion, *inputs: Tensor) -> Tensor:
        """Runs over the steps and keeps the forward weights."""
        trail = forward_trail(recursion, inputs)
        ctx.recursion = recursion
        ctx.save_for_backward(trail.log_z, trail.offsets, trail.alphas, *inputs)
        return trail.log_z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The forward-backward algorithm."""
        recursion: Recursion = ctx.recursion
        log_z, offsets, alphas, *inputs = ctx.saved_tensors
        trail = Trail(alphas, offsets, log_z)
        with torch.no_grad():
            gradients = _log_gradients(
                recursion, tuple(inputs), ctx.needs_input_grad[1:], trail, grad
            )
        return (None, *refuse_second_derivative(gradients, grad, *inputs))


def _log_gradients(
    recursion: Recursion,
    inputs: tuple[Tensor, ...],
    needed: tuple[bool, ...],
    trail: Trail,
    grad: Tensor,
) -> list[Tensor | None]:
    """Gradients of the log-sum by the inputs: posteriors of arcs times what made the arcs."""
    source = recursion.source
    sums = GradientSums(source, inputs, needed)
    graph: dict[str, Any] = {}

    def arcs_of(steps: range) -> Arcs:
        with torch.enable_grad():
            leaves = source.leaves(inputs, steps)
            arcs = source.function(leaves, steps)
        graph.update(leaves=leaves, arcs=arcs, steps=steps, posteriors=[])
        return arcs

    for step, arcs, beta, offset in recursion.backward(inputs, arcs_of):
        if step < 0:
            break
        shift = trail.shift(step, offset)
        posterior = recursion.marginals(trail.alphas[step], arcs, beta, shift, step)
        graph["posteriors"].append(posterior.map(lambda x: _scale(x, grad)))
        if step == graph["steps"].start:
            _add_piece(sums, **graph)
    return sums.result()


def _scale(posterior: Tensor, grad: Tensor) -> Tensor:
    return posterior * grad.to(posterior).view(-1, *[1] * (posterior.dim() - 1))


def _add_piece(
    sums: GradientSums, leaves: tuple[Tensor, ...], arcs: Arcs, steps: range, posteriors: list[Arcs]
) -> None:
    """One piece's posteriors, last step first, through what made its arcs."""
    made = arcs.tensors()
    through = [posterior.tensors() for posterior in reversed(posteriors)]
    names = [name for name in made if name in through[0]]
    cotangents = [torch.stack([step[name] for step in through], dim=1) for name in names]
    sums.add([made[name] for name in names], cotangents, leaves, steps)


class SemiringDistance(torch.autograd.Function):
    """[B] (or [components, B]) float64 sum over all paths under any semiring.

    Keeps the forward weights at the piece boundaries; the gradient runs each piece again.
    """

    @staticmethod
    def forward(ctx: Any, recursion: Recursion, semiring: Semiring, *inputs: Tensor) -> Tensor:
        """Runs over the steps and keeps the forward weights where pieces begin."""
        starts = {steps.start for steps in recursion.source.pieces()}
        kept = []
        last, offset = recursion.begin(semiring)
        for step, _, alpha, offset in recursion.forward(inputs, semiring):  # noqa: B007
            last = alpha
            if step in starts:
                kept.append(alpha)
        ctx.recursion, ctx.semiring, ctx.num_inputs = recursion, semiring, len(inputs)
        ctx.save_for_backward(*kept, last, offset, *inputs)
        return with_offset(recursion.total(last, semiring), offset, semiring)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Runs the pieces again, last one first, each under autograd."""
        recursion: Recursion = ctx.recursion
        semiring: Semiring = ctx.semiring
        saved = ctx.saved_tensors
        inputs = tuple(saved[len(saved) - ctx.num_inputs :])
        *kept, last, offset = saved[: len(saved) - ctx.num_inputs]
        source = recursion.source
        sums = GradientSums(source, inputs, ctx.needs_input_grad[2:])
        with torch.enable_grad():
            alpha = last.detach().requires_grad_()
            total = recursion.total(alpha, semiring)
            (cotangent,) = torch.autograd.grad(total, alpha, grad.to(total))
        for steps, start in zip(reversed(source.pieces()), reversed(kept), strict=True):
            with torch.enable_grad():
                leaves = source.leaves(inputs, steps)
                arcs = source.function(leaves, steps)
                first = alpha = start.detach().requires_grad_()
                for step in steps:
                    here = at_step(arcs, step - steps.start)
                    alpha, _ = recursion.advance(alpha, offset, here, step, semiring)
            (before,) = sums.add([alpha], [cotangent], leaves, steps, others=[first])
            cotangent = torch.zeros_like(first) if before is None else before
        gradients = sums.result()
        return (None, None, *refuse_second_derivative(gradients, grad, *inputs))


class _RefuseSecondDerivative(torch.autograd.Function):
    """Passes gradients on, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, num_gradients: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the gradients, which come first; the rest is what they depend on."""
        return tuple(x.clone() for x in tensors[:num_gradients])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Says what cannot be done."""
        raise RuntimeError(
            "a lattice has no second derivative: its gradient is the forward-backward algorithm, "
            "which is not differentiable again. Call backward() without create_graph=True, or "
            "take the derivative of lattice.entropy(), which has a gradient of its own."
        )


def refuse_second_derivative(
    gradients: list[Tensor | None], *dependencies: Tensor
) -> list[Tensor | None]:
    """Gradients that raise a clear error when they are differentiated, instead of being wrong."""
    if not torch.is_grad_enabled():
        return gradients
    there = [gradient for gradient in gradients if gradient is not None]
    guarded = iter(_RefuseSecondDerivative.apply(len(there), *there, *dependencies))
    return [None if gradient is None else next(guarded) for gradient in gradients]


def best_pointers(recursion: Recursion, max_label: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The best path's end.

    Args:
        recursion: the lattice.
        max_label: the largest label, for the width of the pointers.

    Returns:
        [B] float64 weight, [B] flat extended state, and per step the pointers for
        `AlignmentLattice.trace`, in 32 bits where they fit.
    """
    inputs = recursion.source.inputs
    alpha, offset = recursion.begin(MaxTropical)
    pointers: Tensor | None = None
    for steps in recursion.source.pieces():
        arcs = recursion.source.arcs(inputs, steps)
        for step in steps:
            here = at_step(arcs, step - steps.start)
            after, pointer = recursion.alignment.best(recursion.space, alpha, here)
            after, shift = MaxTropical.recentre(after, recursion.num_state_dims)
            live = recursion.is_live(step)
            alpha = after if live is None else torch.where(live, after, alpha)
            offset = offset + shift * (step < recursion.num_steps)
            if pointers is None:
                fits = pointer.shape[-1] * (1 + max(max_label, pointer.shape[0])) < 2**31
                kept = torch.int32 if fits else torch.int64
                pointers = pointer.new_empty(recursion.source.num_steps, *pointer.shape, dtype=kept)
            pointers[step] = pointer
    ended = (alpha + recursion.final(alpha)).flatten(1)
    best, state = ended.max(dim=-1)
    return best.double() + offset, state, [] if pointers is None else list(pointers)
