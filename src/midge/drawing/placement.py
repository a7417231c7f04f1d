"""Where labels stand: beside their arrows, on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from midge.drawing.curves import Curve, Point

GAP = 3.0
"""Between an arrow and its label, in points."""
PLACES = (0.5, 0.44, 0.56, 0.38, 0.62, 0.31, 0.69, 0.25, 0.75, 0.19, 0.81)
"""Along an arrow."""


@dataclass(frozen=True)
class Box:
    """A rectangle by its centre and half its size."""

    centre: Point
    half: Point

    def is_near(self, other: Box) -> bool:
        """Whether two boxes overlap, or could be read as one word."""
        apart = np.abs(np.subtract(self.centre, other.centre))
        return bool((apart < np.add(self.half, other.half) + GAP).all())

    def distances(self, points: np.ndarray) -> np.ndarray:
        """Of points [N, 2] from the box, 0 inside."""
        apart = np.abs(points - np.array(self.centre)) - np.array(self.half)
        return np.linalg.norm(np.maximum(apart, 0.0), axis=-1)


def place_labels(
    curves: Sequence[Curve],
    sizes: Sequence[Point],
    loops: Sequence[bool],
    centres: Sequence[Point],
    radius: float,
    favourite: float = 0.5,
) -> list[Box]:
    """A box for the label of each arrow.

    One after the other takes the best place that is left, those with the fewest places first:
    the short arrows.

    Args:
        curves: the arrows.
        sizes: width and height of their labels.
        loops: which arrows lead from a state to itself.
        centres: of the states.
        radius: of the states.
        favourite: where along an arrow a label stands best.
    """
    nodes = np.array(centres)
    placed: dict[int, Box] = {}
    lengths = [np.linalg.norm(np.diff(curve.samples, axis=0), axis=-1).sum() for curve in curves]
    for number in sorted(range(len(curves)), key=lambda each: (not loops[each], lengths[each])):
        lines = np.concatenate([curve.samples for curve in curves])
        boxes = list(placed.values())
        candidates = _candidates(curves[number], sizes[number], 0.5 if loops[number] else favourite)
        costs = [dislike + _cost(box, lines, boxes, nodes, radius) for dislike, box in candidates]
        placed[number] = candidates[int(np.argmin(costs))][1]
    return [placed[number] for number in range(len(curves))]


def _candidates(curve: Curve, size: Point, favourite: float) -> list[tuple[float, Box]]:
    """Places for a label, each with how little it is liked."""
    half = size[0] / 2, size[1] / 2
    middle = curve.at(0.5)
    chord = (
        (curve.points[0][0] + curve.points[3][0]) / 2,
        (curve.points[0][1] + curve.points[3][1]) / 2,
    )
    bulge = np.array(middle) - np.array(chord)
    found = []
    for t in PLACES:
        x, y = curve.at(t)
        normal = curve.normal(t)
        for side in (1, -1):
            nx, ny = side * normal[0], side * normal[1]
            hollow = float(bulge @ np.array([nx, ny])) < -1.0
            # Left and above are where a reader looks first.
            awkward = 0.3 if (ny, -nx) < (-1e-9, 0.0) else 0.0
            away = GAP + abs(nx) * half[0] + abs(ny) * half[1]
            box = Box((x + nx * away, y + ny * away), half)
            found.append((4 * abs(t - favourite) + (0.8 if hollow else awkward), box))
    return found


def _cost(
    box: Box, lines: np.ndarray, boxes: Sequence[Box], nodes: np.ndarray, radius: float
) -> float:
    """How much a box covers: labels and states are worst, then arrows."""
    labels = sum(box.is_near(other) for other in boxes)
    states = int((box.distances(nodes) < radius + 1.5).sum())
    near = box.distances(lines)
    return 100 * (labels + states) + 3 * int((near < 0.5).sum()) + 0.4 * int((near < 2.0).sum())
