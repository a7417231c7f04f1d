"""Where states stand and how arrows bend, in the manner of the paper's figures."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from midge.automata import Automaton
from midge.drawing.curves import Curve, Point, bent, direction, loop
from midge.drawing.edges import Edge

SPACING = 64.0
"""Distance of neighbours, in points."""
MIDDLE_BEND = 9.0
"""Keeps an arrow apart from the one that leads back."""


def positions(automaton: Automaton, radius: float, label_width: float) -> list[Point]:
    """The centre of each state, in points, y upwards.

    Args:
        automaton: the automaton.
        radius: of the circles.
        label_width: of the widest label of an arrow.
    """
    grid = automaton.grid or _layers(automaton)
    spacing = SPACING + 2 * (radius - 13.0)
    if automaton.kind == "deduplication":
        return _polygon(automaton, 1.1 * spacing)
    if automaton.kind == "context" and _depth(grid) <= 1:
        return _polygon(automaton, 0.75 * spacing)
    if automaton.kind == "context":
        return _columns_on_curves(grid, spacing)
    if automaton.kind == "staircase":
        apart = max(2, max(row for _, row in grid))
        return [(0.8 * spacing * (apart * t + n), 0.8 * spacing * n) for t, n in grid]
    if automaton.kind == "lattice":
        rows = {row: place for place, row in enumerate(sorted({row for _, row in grid}))}
        width = max(1.6 * spacing, 2 * radius + 1.7 * label_width + 20)
        height = (1.15 if label_width < 30 else 1.5) * spacing
        return [(width * column, -height * rows[row]) for column, row in grid]
    return [(1.1 * spacing * column, -spacing * row) for column, row in grid]


def _depth(grid: Sequence[tuple[int, int]]) -> int:
    return max(column for column, _ in grid)


def _layers(automaton: Automaton) -> list[tuple[int, int]]:
    """Distance from the start, and the how-manieth at that distance."""
    depth = {automaton.start: 0}
    queue = [automaton.start]
    for state in queue:
        for arc in automaton.arcs:
            if arc.source == state and arc.destination not in depth:
                depth[arc.destination] = depth[state] + 1
                queue.append(arc.destination)
    seen: Counter[int] = Counter()
    grid = []
    for state in range(automaton.num_states):
        column = depth.get(state, 0)
        grid.append((column, seen[column]))
        seen[column] += 1
    return grid


def _polygon(automaton: Automaton, side: float) -> list[Point]:
    """The start on top, the others around: a triangle for two labels."""
    count = automaton.num_states
    radius = side * max(1.0, count / 3)
    order = [automaton.start, *(q for q in range(count) if q != automaton.start)]
    place = {state: number for number, state in enumerate(order)}
    points = []
    for state in range(count):
        x, y = direction(math.pi / 2 + 2 * math.pi * place[state] / count)
        points.append((1.35 * radius * x, radius * y))
    return points


def _columns_on_curves(grid: Sequence[tuple[int, int]], spacing: float) -> list[Point]:
    """A column for each history length. The last bends away from the others at both ends.

    Arrows between states of that column then run on its hollow side, through no other state.
    """
    sizes = Counter(column for column, _ in grid)
    last, height = max(sizes), 0.95 * spacing * max(sizes.values())
    points = []
    for column, row in grid:
        # The share of the height at which a state stands, from -1 to 1.
        share = 1 - (2 * row + 1) / sizes[column]
        x = 1.25 * spacing * column
        if column == last and sizes[column] > 2:
            outermost = 1 - 1 / sizes[column]
            x += 0.8 * spacing * math.log2(sizes[column]) * ((share / outermost) ** 2 - 1 / 9)
        points.append((x, 0.5 * height * share))
    return points


def route(
    automaton: Automaton, edges: Sequence[Edge], centres: Sequence[Point], radius: float
) -> list[Curve]:
    """The arrow of each edge."""
    together = Counter((edge.source, edge.destination) for edge in edges)
    seen: Counter[tuple[int, int]] = Counter()
    curves: list[Curve | None] = []
    for edge in edges:
        pair = (edge.source, edge.destination)
        if edge.source == edge.destination:
            curves.append(None)
            continue
        bend = _bend(automaton, edge, centres, (edge.destination, edge.source) in together)
        if automaton.kind not in ("chain", "label chain") and together[pair] > 1:
            spread = 36 if together[pair] == 2 else 28 * (together[pair] - 1)
            bend += spread * (0.5 - seen[pair] / (together[pair] - 1))
        seen[pair] += 1
        curves.append(_around(edge, centres, radius, bend))
    return _with_loops(automaton, edges, curves, centres, radius)


def _bend(automaton: Automaton, edge: Edge, centres: Sequence[Point], is_answered: bool) -> float:
    """How far an arrow bends to the left, in degrees, if nothing is in its way.

    Args:
        automaton: the automaton.
        edge: the edge.
        centres: of the states.
        is_answered: whether an edge leads back.
    """
    if automaton.kind == "chain":
        loops = any(arc.source == arc.destination for arc in automaton.arcs)
        both = not loops and any(arc.input_label == 0 for arc in automaton.arcs)
        return (30 if edge.is_blank else -30) if both else 0
    if automaton.kind == "label chain":
        return -(18 + 12 * (edge.destination - edge.source)) if edge.is_blank else 0
    if automaton.kind in ("deduplication", "context") and edge.source == automaton.start:
        return _outward(centres, edge) if _is_round(automaton) else 0
    if automaton.kind == "deduplication" and edge.destination == automaton.start:
        return MIDDLE_BEND if _outward(centres, edge) == MIDDLE_BEND else 0
    if automaton.kind == "lattice":
        return 0
    if is_answered:
        return 22
    return _hollow_bend(automaton, edge) if automaton.kind == "context" else 0


def _hollow_bend(automaton: Automaton, edge: Edge) -> float:
    """A bend to the hollow side of the last column, for arrows that pass a state of it."""
    assert automaton.grid is not None
    (column, row), (last, other) = automaton.grid[edge.source], automaton.grid[edge.destination]
    if column != last or abs(row - other) < 2:
        return 0
    return 18 if other > row else -18


def _is_round(automaton: Automaton) -> bool:
    """Whether the states stand around a circle."""
    return (
        automaton.kind == "deduplication" or automaton.grid is None or _depth(automaton.grid) == 1
    )


def _outward(centres: Sequence[Point], edge: Edge) -> float:
    """A bend away from the middle; next to none for an arrow that runs through it."""
    middle = np.mean(np.array(centres), axis=0)
    source, destination = np.array(centres[edge.source]), np.array(centres[edge.destination])
    across = destination - source
    to_middle = middle - source
    turn = across[0] * to_middle[1] - across[1] * to_middle[0]
    if abs(turn) < 1e-6 * float(across @ across):
        return MIDDLE_BEND
    return -25 if turn > 0 else 25


def _around(edge: Edge, centres: Sequence[Point], radius: float, bend: float) -> Curve:
    """The arrow with the bend nearest to the wanted one that runs through no other state."""
    others = np.array(
        [c for state, c in enumerate(centres) if state not in (edge.source, edge.destination)]
    ).reshape(-1, 2)
    source, destination = centres[edge.source], centres[edge.destination]
    wanted = bent(source, destination, radius, bend)
    for more in (0, 12, -12, 20, -20, 28, -28, 36, -36, 44, -44, 55, -55):
        curve = bent(source, destination, radius, bend + more)
        gaps = np.linalg.norm(curve.samples[:, None] - others[None], axis=-1)
        if not len(others) or gaps.min() > radius + 5:
            return curve
    return wanted


def _with_loops(
    automaton: Automaton,
    edges: Sequence[Edge],
    curves: Sequence[Curve | None],
    centres: Sequence[Point],
    radius: float,
) -> list[Curve]:
    """Adds the arrows from a state to itself, each on the side that is most free."""
    taken: dict[int, list[float]] = defaultdict(list)
    taken[automaton.start].append(math.pi)  # the arrow that shows the start
    for edge, curve in zip(edges, curves, strict=True):
        if curve is not None:
            taken[edge.source].append(_angle(centres[edge.source], curve.points[0]))
            taken[edge.destination].append(_angle(centres[edge.destination], curve.tip))
    routed = []
    for edge, curve in zip(edges, curves, strict=True):
        if curve is None:
            angle = _free_side(taken[edge.source])
            taken[edge.source].append(angle)
            curve = loop(centres[edge.source], radius, angle)
        routed.append(curve)
    return routed


def _angle(centre: Point, point: Point) -> float:
    return math.atan2(point[1] - centre[1], point[0] - centre[0])


def _free_side(taken: Sequence[float]) -> float:
    """Above, below, left or right, if one of them is free enough; else the freest of eight."""

    def room(angle: float) -> float:
        turns = (abs((angle - other + math.pi) % (2 * math.pi) - math.pi) for other in taken)
        return min(turns, default=math.pi)

    straight = [math.pi / 2, -math.pi / 2, math.pi, 0.0]
    best = max(straight, key=lambda angle: round(room(angle), 6))
    if room(best) > math.radians(55):
        return best
    return max((k * math.pi / 4 for k in range(8)), key=lambda angle: round(room(angle), 6))
