"""Where nodes and edges of a layered drawing go: few crossings, and no edge under a node.

The method of Sugiyama, Tagawa and Toda (1981): an edge that spans several rows gets a waypoint in
every row between; rows are ordered by the barycentres of their neighbours, sweeping up and down,
and the order with the fewest crossings is kept; then x is the least-squares compromise between
neighbours that keeps that order and the distances (an isotonic regression for each row). Row 0 and
the last row are bars as wide as the drawing: an edge leaves or enters a bar straight above or below
its other end, so bars pull at nothing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

ORDER_SWEEPS = 24
POSITION_SWEEPS = 200
STRAIGHT = 8.0
"""How much harder two waypoints of one edge pull at each other than a node does."""


@dataclass(frozen=True)
class Link:
    """An edge to lay out.

    Attributes:
        source, target: node numbers, or None for the bar at the bottom or the top.
        source_port, target_port: x of the end, relative to the middle of its node.
        width: of the line.
    """

    source: int | None
    target: int | None
    source_port: float
    target_port: float
    width: float


@dataclass(frozen=True)
class Placement:
    """Middles of the nodes, and for every link its x at the source, in each row between, at the
    target.
    """

    node_x: list[float]
    link_x: list[list[float]]
    width: float


@dataclass(frozen=True)
class _Segment:
    """A piece of a link between two items of adjacent rows."""

    lower: int
    upper: int
    lower_port: float
    upper_port: float
    weight: float


class _Pulls(NamedTuple):
    """Segments seen from a row: own place, the item at the other end, how far beside, how hard."""

    mine: np.ndarray
    other: np.ndarray
    shift: np.ndarray
    weight: np.ndarray


class _Grid:
    """Items (nodes first, then waypoints) in rows, and the segments between them."""

    def __init__(
        self, rows: Sequence[int], widths: Sequence[float], links: Sequence[Link], n_rows: int
    ) -> None:
        self.row, self.width = list(rows), list(widths)
        self.is_node = [True] * len(self.row)
        self.segments: list[_Segment] = []
        self.chains: list[list[int]] = []
        self.n_rows = n_rows
        for link in links:
            self._route(link)
        self.below: list[list[_Segment]] = [[] for _ in range(n_rows)]
        for segment in self.segments:
            self.below[self.row[segment.upper]].append(segment)
        self.order: list[list[int]] = [[] for _ in range(n_rows)]
        for item, row in enumerate(self.row):
            self.order[row].append(item)

    def _route(self, link: Link) -> None:
        first = 0 if link.source is None else self.row[link.source]
        last = self.n_rows - 1 if link.target is None else self.row[link.target]
        begin = len(self.row)
        self.row += range(first + 1, last)
        chain = list(range(begin, len(self.row)))
        self.width += [link.width] * len(chain)
        self.is_node += [False] * len(chain)
        self.chains.append(chain)
        source, target = (link.source, link.source_port), (link.target, link.target_port)
        ends = [source, *((item, 0.0) for item in chain), target]
        for (lower, lower_port), (upper, upper_port) in pairwise(ends):
            if lower is not None and upper is not None:
                pull = STRAIGHT if lower >= begin and upper >= begin else 1.0
                self.segments.append(_Segment(lower, upper, lower_port, upper_port, pull))

    # Order

    def reduce_crossings(self) -> None:
        """Sort the rows upwards and downwards in turn; keep the order of fewest crossings."""
        best, fewest = self.order, self.crossings()
        for sweep in range(ORDER_SWEEPS):
            if fewest == 0:
                break
            upward = sweep % 2 == 0
            for row in range(1, self.n_rows) if upward else range(self.n_rows - 2, -1, -1):
                self._sort_row(row, upward)
            crossings = self.crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.order], crossings
        self.order = [list(row) for row in best]

    def _sort_row(self, row: int, upward: bool) -> None:
        other = self.order[row - 1 if upward else row + 1]
        place = {item: number for number, item in enumerate(other)}
        pulls: dict[int, list[float]] = {}
        for segment in self.below[row if upward else row + 1]:
            ends = (segment.upper, segment.lower, segment.lower_port)
            if not upward:
                ends = (segment.lower, segment.upper, segment.upper_port)
            mine, theirs, port = ends
            pulls.setdefault(mine, []).append(self._end(place, theirs, port))
        # An item that only a bar pulls at stays at its share of the row.
        share = max(1, len(other)) / max(1, len(self.order[row]))
        key = {item: number * share for number, item in enumerate(self.order[row])}
        key |= {item: sum(places) / len(places) for item, places in pulls.items()}
        self.order[row].sort(key=key.__getitem__)

    def _end(self, place: dict[int, int], item: int, port: float) -> float:
        """Where in its row a segment ends: the item's number, and a fraction for the port."""
        return place[item] + port / (1 + self.width[item])

    def crossings(self) -> int:
        """Pairs of segments that cross, over all gaps between rows."""
        place = {item: number for row in self.order for number, item in enumerate(row)}
        total = 0
        for segments in self.below:
            ends = sorted(
                (self._end(place, s.lower, s.lower_port), self._end(place, s.upper, s.upper_port))
                for s in segments
            )
            seen: list[float] = []
            for _, upper in ends:
                total += len(seen) - bisect_right(seen, upper)
                insort(seen, upper)
        return total

    # Positions

    def place(self, gap: float) -> np.ndarray:
        """x of every item: near its neighbours, in order, at least `gap` apart (nodes: more)."""
        offsets = [self._offsets(row, gap) for row in self.order]
        x = np.zeros(len(self.row))
        for row, offset in zip(self.order, offsets, strict=True):
            if row:
                x[row] = offset - offset[-1] / 2
        pulls = [self._pulls(row) for row in range(self.n_rows)]
        for sweep in range(POSITION_SWEEPS):
            for row in range(self.n_rows) if sweep % 2 == 0 else reversed(range(self.n_rows)):
                items = self.order[row]
                if items:
                    x[items] = _settle(x, items, pulls[row], offsets[row])
        return x

    def _offsets(self, items: list[int], gap: float) -> np.ndarray:
        """Least distance of every item of a row from its first."""
        steps = [0.0]
        for left, right in pairwise(items):
            nodes = self.is_node[left] + self.is_node[right]
            steps.append((self.width[left] + self.width[right]) / 2 + gap * (1 + nodes))
        return np.cumsum(steps)

    def _pulls(self, row: int) -> _Pulls:
        """What a row's segments on both sides pull at."""
        place = {item: number for number, item in enumerate(self.order[row])}
        below = self.below[row]
        above = self.below[row + 1] if row + 1 < self.n_rows else []
        pulls = [(place[s.upper], s.lower, s.lower_port - s.upper_port, s.weight) for s in below]
        pulls += [(place[s.lower], s.upper, s.upper_port - s.lower_port, s.weight) for s in above]
        table = np.array(pulls, dtype=float).reshape(-1, 4)
        return _Pulls(table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2], table[:, 3])


def _settle(x: np.ndarray, items: list[int], pulls: _Pulls, offsets: np.ndarray) -> np.ndarray:
    """New x of a row's items: the weighted mean of what neighbours want, in order and apart."""
    n = len(items)
    total = np.bincount(pulls.mine, weights=pulls.weight, minlength=n)
    wanted = np.bincount(
        pulls.mine, weights=pulls.weight * (x[pulls.other] + pulls.shift), minlength=n
    )
    # Items without neighbours hold their place weakly.
    goal = np.where(total > 0, wanted / np.maximum(total, 1e-9), x[items])
    fitted = isotonic_regression(goal - offsets, weights=np.maximum(total, 1e-3)).x
    return np.asarray(fitted) + offsets


def lay_out(
    node_row: Sequence[int],
    node_width: Sequence[float],
    links: Sequence[Link],
    n_rows: int,
    gap: float,
) -> Placement:
    """Place nodes and links.

    Args:
        node_row: row of every node, from 1 to n_rows - 2; the bars are rows 0 and n_rows - 1.
        gap: least distance between two lines; nodes keep more.
    """
    grid = _Grid(node_row, node_width, links, n_rows)
    grid.reduce_crossings()
    x = grid.place(gap)
    if len(x) == 0:  # nothing between the bars: at most the edge input->logits
        return Placement([], [[0.0, 0.0] for _ in links], 0.0)
    half = np.array(grid.width) / 2
    x = x - (x - half).min()
    routes = [
        _route(link, [float(x[item]) for item in chain], x)
        for link, chain in zip(links, grid.chains, strict=True)
    ]
    return Placement(
        [float(value) for value in x[: len(node_row)]], routes, float((x + half).max())
    )


def _route(link: Link, middle: list[float], x: np.ndarray) -> list[float]:
    """x of a link from end to end; at a bar the line goes straight up or down to its next point."""
    start = [] if link.source is None else [float(x[link.source]) + link.source_port]
    end = [] if link.target is None else [float(x[link.target]) + link.target_port]
    inner = start + middle + end
    return [*(start or inner[:1]), *middle, *(end or inner[-1:])]
