"""Curves between circles: cubic Bezier curves, in points, y upwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Point = tuple[float, float]

RADIUS = 13.0
"""Of a state's circle, unless its name needs more."""
HEAD = 6.5
"""Length of an arrow head."""


@dataclass(frozen=True)
class Curve:
    """An arrow: a cubic Bezier curve up to the base of its head, and the tip of the head."""

    points: tuple[Point, Point, Point, Point]
    """Two ends with two control points between them."""
    tip: Point
    """The end of the arrow."""

    @cached_property
    def samples(self) -> np.ndarray:
        """[33, 2] points along the curve."""
        return np.array([self.at(step / 32) for step in range(33)])

    def at(self, t: float) -> Point:
        """The point at 0 <= t <= 1."""
        shares = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
        return _blend(shares, self.points)

    def normal(self, t: float) -> Point:
        """The unit vector to the left of the direction at t."""
        shares = (
            -((1 - t) ** 2),
            (1 - t) ** 2 - 2 * t * (1 - t),
            2 * t * (1 - t) - t * t,
            t * t,
        )
        x, y = _blend(shares, self.points)
        length = math.hypot(x, y) or 1.0
        return -y / length, x / length


def bent(source: Point, destination: Point, radius: float, bend: float) -> Curve:
    """An arrow between two circles that leaves `bend` degrees to the left of the straight line."""
    heading = math.atan2(destination[1] - source[1], destination[0] - source[0])
    angle = math.radians(bend)
    leave, arrive = direction(heading + angle), direction(heading + math.pi - angle)
    begin = _moved(source, leave, radius)
    tip = _moved(destination, arrive, radius)
    reach = 0.4 * math.dist(begin, tip)
    end = _moved(tip, arrive, 0.75 * HEAD)
    controls = (_moved(begin, leave, reach), _moved(end, arrive, max(reach - HEAD, 1.0)))
    return Curve((begin, *controls, end), tip)


def loop(state: Point, radius: float, angle: float) -> Curve:
    """An arrow from a circle to itself, on the side of an angle in radians."""
    spread, lean = math.radians(22), math.radians(34)
    begin = _moved(state, direction(angle + spread), radius)
    tip = _moved(state, direction(angle - spread), radius)
    end = _moved(tip, direction(angle - lean), 0.75 * HEAD)
    reach = 16.0 + 1.2 * radius
    controls = (
        _moved(begin, direction(angle + lean), reach),
        _moved(end, direction(angle - lean), reach - 0.75 * HEAD),
    )
    return Curve((begin, *controls, end), tip)


def straight(begin: Point, tip: Point) -> Curve:
    """A straight arrow."""
    heading = direction(math.atan2(begin[1] - tip[1], begin[0] - tip[0]))
    end = _moved(tip, heading, 0.75 * HEAD)
    thirds = [_blend((1 - share, share), (begin, end)) for share in (1 / 3, 2 / 3)]
    return Curve((begin, thirds[0], thirds[1], end), tip)


def arrow_head(curve: Curve) -> list[Point]:
    """The four corners of an arrow's head."""
    (x, y), (end_x, end_y) = curve.tip, curve.points[3]
    length = math.hypot(x - end_x, y - end_y)
    back = (end_x - x) / length, (end_y - y) / length
    side = -back[1], back[0]
    base = _moved(curve.tip, back, HEAD)
    width = 0.36 * HEAD
    return [curve.tip, _moved(base, side, width), curve.points[3], _moved(base, side, -width)]


def direction(angle: float) -> Point:
    """The unit vector at an angle in radians."""
    return math.cos(angle), math.sin(angle)


def _moved(point: Point, heading: Point, distance: float) -> Point:
    return point[0] + distance * heading[0], point[1] + distance * heading[1]


def _blend(shares: tuple[float, ...], points: tuple[Point, ...]) -> Point:
    return (
        sum(share * point[0] for share, point in zip(shares, points, strict=True)),
        sum(share * point[1] for share, point in zip(shares, points, strict=True)),
    )
