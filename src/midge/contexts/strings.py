"""C intersected with a label string: the context of the numerator."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from midge.contexts.base import Transitions
from midge.semirings import Semiring


@final
class LabelString(Transitions):
    """The chain of positions 0..U of a label string; its one arc slot is the next label.

    Since (L ∩ C) ∩ y = L ∩ (C ∩ y), this stands wherever a context does (paper, appendix D). The
    labels themselves, and the context state at each position, are the caller's.
    """

    def forward_reduce(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """Shifts by one: result[u + 1] = weights[u, 0]."""
        batch = tuple(weights.shape[1 if semiring.num_components else 0 : -2])
        nothing = semiring.zeros((*batch, 1), like=weights)
        return torch.cat([nothing, weights[..., :-1, 0]], dim=-1)

    def backward_broadcast(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """Shifts by one: result[u, 0] = weights[u + 1]."""
        batch = tuple(weights.shape[1 if semiring.num_components else 0 : -1])
        nothing = semiring.zeros((*batch, 1), like=weights)
        return torch.cat([weights[..., 1:], nothing], dim=-1)[..., None]

    def forward_best(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The arc into u leaves u - 1."""
        nothing = torch.full_like(weights[..., :1, 0], -torch.inf)
        best = torch.cat([nothing, weights[..., :-1, 0]], dim=-1)
        arc = torch.arange(best.shape[-1], device=best.device) - 1
        return best, arc.clamp(min=0).expand(best.shape)
