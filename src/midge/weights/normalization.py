"""From raw scores to the weights of the arcs that leave each state.

Local normalization runs over the arcs that leave a state, so that their probabilities sum to 1:
the labels for which the context has an arc, blank where the lattice has one, and with
deduplication the repeat of the label just read, even where the context has no arc for it.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from midge.contexts.spaces import Arcs
from midge.semirings import Log

Normalization = Literal["global", "softmax", "hat"]
NORMALIZATIONS: tuple[str, ...] = get_args(Normalization)


def arc_weights(
    scores: Tensor,
    normalization: Normalization,
    *,
    has_blank: bool,
    arc_mask: Tensor | None,
    entered_label: Tensor | None,
) -> Arcs:
    """Normalizes raw scores.

    Args:
        scores: [B, n, S, 1 + V], column 0 blank.
        normalization: "global" leaves them as they are; "softmax" normalizes over all arcs; "hat"
            makes blank a sigmoid, b = sigmoid(score), and labels (1 - b) times a softmax.
        has_blank: whether the lattice has blank arcs; without, column 0 is ignored.
        arc_mask: [S, V] or [B, 1, S, V] bool, False where the context has no arc; None if all are.
        entered_label: [S, E] or [B, 1, S, E] labels that enter a state, 0 for an empty slot, with
            deduplication; None without.

    Returns:
        The arcs, with `lexical` [B, n, S, V].
    """
    blank, lexical = scores[..., 0], scores[..., 1:]
    if not has_blank:
        blank = torch.full_like(blank, -torch.inf)
    allowed = lexical if arc_mask is None else torch.where(arc_mask, lexical, -torch.inf)
    repeat = None if entered_label is None else _repeats(lexical, entered_label)
    if normalization == "global":
        return Arcs(blank=blank, lexical=allowed, repeat=repeat)
    labels_sum = Log.sum(allowed, dim=-1)
    if repeat is None or entered_label is None or arc_mask is None:
        blank, scale = _normalize(blank, labels_sum, normalization)
        repeat = None if repeat is None else repeat + scale[..., None]
        return Arcs(blank=blank, lexical=allowed + scale[..., None], repeat=repeat)
    # States (q, y) differ from (q, blank) where only the repeat of y is there.
    lacking = ~_columns(arc_mask.expand(lexical.shape), entered_label)
    extra = repeat.masked_fill(~lacking, -torch.inf)
    sums = torch.cat([labels_sum[..., None], Log.plus(labels_sum[..., None], extra)], dim=-1)
    blank, scale = _normalize(blank[..., None].expand(sums.shape), sums, normalization)
    return Arcs(blank=blank, lexical=allowed, repeat=repeat, label_scale=scale)


def _normalize(
    blank: Tensor, labels_sum: Tensor, normalization: Normalization
) -> tuple[Tensor, Tensor]:
    """The weight of blank, and what to add to the label scores, given the log-sum of the latter."""
    no_labels = labels_sum == -torch.inf
    if normalization == "softmax":
        total = Log.plus(blank, labels_sum)
        scale = -total.masked_fill(total == -torch.inf, 0.0)
        return blank + scale, scale
    # log b = -softplus(-x) and log(1 - b) = -softplus(x), without overflow for large x. Where only
    # blank leaves it is certain.
    scale = logsigmoid(-blank) - labels_sum.masked_fill(no_labels, 0.0)
    return logsigmoid(blank).masked_fill(no_labels, 0.0), scale


def _repeats(lexical: Tensor, entered_label: Tensor) -> Tensor:
    """[B, n, S, E] scores of the labels that enter each state; -inf for an empty slot."""
    return _columns(lexical, entered_label).masked_fill(entered_label == 0, -torch.inf)


def _columns(x: Tensor, label: Tensor) -> Tensor:
    """The columns [B, n, S, E] of x [B, n, S, V] at labels, any for label 0."""
    return x.gather(-1, (label - 1).clamp(min=0).expand(*x.shape[:-1], label.shape[-1]))
