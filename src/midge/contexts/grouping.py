"""Sums of arcs into their destinations, for automata without a regular structure."""

from __future__ import annotations

import torch
from torch import Tensor

from midge.semirings import Semiring


class ArcGroups:
    """The arcs that enter each destination, as index tables for gathering and summing.

    A destination may be entered by one arc and its neighbour by thousands (a variable-length
    context backs off to the empty history from everywhere), so a plain padded table could be far
    larger than the arcs. Long lists are summed in groups, then the groups' sums in groups, and so
    on: O(number of arcs) memory, logarithmic depth. Groups keep the order of the arcs, so the
    first winner of a tie stays the first.

    Args:
        destination: [num_arcs] int64; negative for an arc that is not there.
        order: [num_arcs] int64 sort key of the arcs within a destination; keys are distinct.
        num_destinations: number of destinations; one that nothing enters sums to zero.
    """

    def __init__(self, destination: Tensor, order: Tensor, num_destinations: int) -> None:
        """Sorts the arcs and builds the tables."""
        present = destination >= 0
        arc = torch.arange(destination.numel())[present]
        by_order = order[present].argsort()
        by_destination = destination[present][by_order].argsort(stable=True)
        member = arc[by_order][by_destination]
        group = destination[present][by_order][by_destination]
        self._levels: list[Tensor] = []
        padding = destination.numel()
        while True:
            index, member, group = self._level(member, group, num_destinations, padding)
            self._levels.append(index)
            padding = index.shape[0]
            if padding == num_destinations:
                break

    @staticmethod
    def _level(
        member: Tensor, group: Tensor, num_destinations: int, padding: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One table [num_groups, width] over sorted members, and the next level's members."""
        count = torch.bincount(group, minlength=num_destinations)
        width = max(8, 2 * -(-int(member.numel()) // max(1, num_destinations)))
        width = max(1, min(width, int(count.max()) if count.numel() else 1))
        num_groups = torch.clamp(-(-count // width), min=1)
        first_group = num_groups.cumsum(0) - num_groups
        first_member = count.cumsum(0) - count
        rank = torch.arange(member.numel()) - first_member[group]
        row = first_group[group] + rank // width
        index = torch.full((int(num_groups.sum()), width), padding)
        index[row, rank % width] = member
        next_group = torch.repeat_interleave(torch.arange(num_destinations), num_groups)
        return index, torch.arange(index.shape[0]), next_group

    def reduce(self, weights: Tensor, semiring: Semiring) -> Tensor:
        """[*batch, num_arcs] semiring values -> [*batch, num_destinations] their plus-sums."""
        for index in self._levels:
            weights = append_zero(weights, semiring)[..., index.to(weights.device)]
            weights = semiring.sum(weights, dim=-1)
        return weights

    def best(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """[*batch, num_arcs] log weights -> the largest of each destination, and its arc."""
        arc = torch.arange(weights.shape[-1], device=weights.device).expand(weights.shape)
        for table in self._levels:
            index = table.to(weights.device)
            padded = torch.cat([weights, torch.full_like(weights[..., :1], -torch.inf)], dim=-1)
            weights, winner = padded[..., index].max(dim=-1)
            members = torch.cat([arc, torch.zeros_like(arc[..., :1])], dim=-1)[..., index]
            arc = members.gather(-1, winner[..., None]).squeeze(-1)
        return weights, arc


def append_zero(weights: Tensor, semiring: Semiring) -> Tensor:
    """[*batch, N] semiring values -> [*batch, N + 1], the last one zero."""
    batch = tuple(weights.shape[1 if semiring.num_components else 0 : -1])
    return torch.cat([weights, semiring.zeros((*batch, 1), like=weights)], dim=-1)
