"""Weight pushing: a global lattice as a locally normalized one with the same path posteriors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from midge.alignments import Level
from midge.contexts.spaces import LabelSpace
from midge.lattices.recursion import Recursion


@dataclass(frozen=True)
class PushedArcs:
    """Arc weights that are log probabilities: those that leave a state sum to 1.

    pushed(arc from p to q) = weight + beta(q) - beta(p), with beta the log-sum of all paths to the
    end. A path's pushed weight is then its weight less log Z: its log posterior. *states is
    [num_states]; before it comes [1 + k] for the number of labels so far in a frame on a label and
    frame dependent lattice; after it [1 + E] with deduplication (state (q, blank) first).
    """

    blank: Tensor
    """[*batch, num_steps, *states]; -inf where nothing can follow, and on padding."""
    lexical: Tensor
    """[*batch, num_steps, *states, vocab_size]."""
    log_z: Tensor
    """[*batch] what was pushed out at the start."""

    def as_frames(self) -> Tensor:
        """[*batch, num_steps, num_states * (1 + vocab_size)] frames for `TableWeights`.

        For a frame-dependent lattice without deduplication, where a frame and a context state are
        all that a weight depends on.
        """
        if self.blank.dim() - self.log_z.dim() != 2:
            raise ValueError(
                "as_frames needs a frame-dependent lattice without deduplication: other pushed "
                "weights depend on more than the frame and the context state"
            )
        return torch.cat([self.blank[..., None], self.lexical], dim=-1).flatten(-2)


def pushed_arcs(
    recursion: Recursion, vocab_size: int, num_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The pushed arcs of a batch.

    Returns:
        [B, num_steps, L, *states] blank and [B, num_steps, L, *states, V] label weights for the L
        states of L_T in a step, and [B] float64 log Z.
    """
    steps = []
    with torch.no_grad():
        for step, arcs, beta, offset in recursion.backward(recursion.source.inputs):
            if step < 0:
                total = recursion.start(beta) + beta
                log_z = total.flatten(1).logsumexp(-1).double() + offset
                break
            levels = recursion.alignment.backward_levels(recursion.space, beta, arcs)
            live = (step < recursion.num_steps)[:, None, None]
            pushed = [_pushed_level(level, recursion.space, vocab_size) for level in levels]
            blank = torch.stack([blank for blank, _ in pushed], dim=1)
            lexical = torch.stack([lexical for _, lexical in pushed], dim=1)
            steps.append(
                (
                    blank.masked_fill(~live, -torch.inf),
                    lexical.masked_fill(~live[..., None], -torch.inf),
                )
            )
    shape = recursion.space.state_shape
    size = (len(log_z), num_steps, recursion.alignment.num_levels, math.prod(shape))
    blank = beta.new_full(size, -torch.inf)
    lexical = beta.new_full((*size, vocab_size), -torch.inf)
    for step, (step_blank, step_lexical) in enumerate(reversed(steps)):
        blank[:, step], lexical[:, step] = step_blank, step_lexical
    return blank.unflatten(-1, shape), lexical.unflatten(-2, shape), log_z


def _pushed_level(level: Level, space: LabelSpace, vocab_size: int) -> tuple[Tensor, Tensor]:
    """[B, F] blank and [B, F, V] labels that leave one state of L_T."""
    num_dims = len(space.state_shape)
    beta = level.beta.flatten(-num_dims)
    state = torch.arange(beta.shape[-1], device=beta.device).expand(beta.shape)
    arcs = level.arcs.map(lambda x: x[:, None].expand(-1, beta.shape[-1], *x.shape[1:]))
    dead = beta == -torch.inf
    if space.is_state is not None:
        dead = dead | ~space.is_state.to(dead.device).flatten(-num_dims)
    before = beta.masked_fill(dead, 0.0)
    blank = torch.full_like(beta, -torch.inf)
    lexical = beta.new_full((*beta.shape, vocab_size), -torch.inf)
    if level.after_blank is not None:
        weight, destination = space.blank_choice(state, arcs)
        after = level.after_blank.flatten(-num_dims).gather(-1, destination)
        blank = (weight + after - before).masked_fill(dead, -torch.inf)
    if level.after_label is not None:
        weight, label, destination = space.label_choices(state, arcs)
        after = level.after_label.flatten(-num_dims)[:, None].expand(*beta.shape, -1)
        after = after.gather(-1, destination.clamp(min=0))
        pushed = (weight + after - before[..., None]).masked_fill(dead[..., None], -torch.inf)
        # A label is new or repeated, never both: the other one weighs -inf.
        index = (label - 1).clamp(min=0)
        pushed = pushed.masked_fill(label == 0, -torch.inf)
        lexical = lexical.scatter_reduce(-1, index, pushed, "amax")
    return blank, lexical
