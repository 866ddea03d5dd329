"""A layered layout of nested directed graphs, top to bottom.

A `Box` is a vertex with a size, or a group of boxes, which is laid out first and then stands in the outer group like a
vertex. Within a group: boxes get ranks (longest path), edges that skip ranks get bends in the ranks between, orders are
improved by barycentres, and positions come from least squares with fixed distances (isotonic regression), so chains
are straight. A value that enters or leaves a group does so at a port on its border, which the layout inside sets: no
edge crosses a box.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

GAP_X, GAP_Y = 28.0, 34.0  # between boxes of a rank, and between ranks
MARGIN, TITLE = 16.0, 22.0  # inside a group: around its boxes, and for its title above
BEND = 10.0  # width of the place of an edge that passes a rank
ORDER_SWEEPS, POSITION_SWEEPS = 12, 80  # passes over all ranks: for their order, and for positions
Point = tuple[float, float]


@dataclass(eq=False)
class Box:
    """A vertex of a given size, or a group with `boxes` inside, whose size the layout finds. `x` and `y` are the upper
    left corner in the picture."""

    name: str
    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    outer: Box | None = None
    x: float = 0.0
    y: float = 0.0
    entries: dict[Box, float] = field(default_factory=dict)  # of a group: where values of outer vertices come in
    exits: dict[Box, float] = field(default_factory=dict)  # where values of inner vertices go out

    def add(self, box: Box) -> Box:
        """Put a box inside this group."""
        box.outer = self
        self.boxes.append(box)
        return box

    def is_inside(self, group: Box) -> bool:
        box: Box | None = self
        while box is not None:
            if box is group:
                return True
            box = box.outer
        return False

    def child_towards(self, box: Box) -> Box:
        """The box right inside this group that is, or contains, `box`."""
        while box.outer is not self:
            assert box.outer is not None
            box = box.outer
        return box


@dataclass
class Line:
    """A piece of an edge inside one group: points to pass, from top to bottom; the last piece ends at a vertex."""

    points: list[Point]
    is_last: bool


@dataclass(eq=False)
class _Item:
    """An item of a rank: a box, a port, or the bend of an edge."""

    width: float
    height: float
    box: Box | None = None
    is_bend: bool = False
    rank: int = 0
    x: float = 0.0  # of the centre
    above: list[tuple[_Item, float, float]] = field(default_factory=list)  # (item, where it is left, where this is met)
    below: list[tuple[_Item, float, float]] = field(default_factory=list)


def arrange(root: Box, edges: Iterable[tuple[Box, Box]]) -> list[Line]:
    """Give every box in `root` its position, and return the lines of the edges between vertices (source, target)."""
    pairs = list(dict.fromkeys(edges))
    lines: dict[Box, list[Line]] = {}
    for group in _groups_inside_out(root):
        lines[group] = _Level(group, pairs).run()
    root.x = root.y = 0.0
    found: list[Line] = []
    stack = [root]
    while stack:
        group = stack.pop()
        for line in lines[group]:
            found.append(Line([(x + group.x, y + group.y) for x, y in line.points], line.is_last))
        for box in group.boxes:
            box.x += group.x
            box.y += group.y
            if box.boxes:
                stack.append(box)
    return found


def _groups_inside_out(root: Box) -> list[Box]:
    found, stack = [], [root]
    while stack:
        group = stack.pop()
        found.append(group)
        stack.extend([box for box in group.boxes if box.boxes])
    return found[::-1]


class _Level:
    """The layout of one group."""

    def __init__(self, group: Box, edges: Sequence[tuple[Box, Box]]):
        self.group = group
        self.items = {box: _Item(box.width, box.height, box) for box in group.boxes}
        self.entries: dict[Box, _Item] = {}
        self.exits: dict[Box, _Item] = {}
        self.links: dict[tuple[_Item, _Item], tuple[Box, bool]] = {}  # (from, to): the value, whether it ends there
        for source, target in edges:
            starts, ends = source.is_inside(group), target.is_inside(group)
            if starts and ends:
                first, last = group.child_towards(source), group.child_towards(target)
                if first is not last:
                    self._link(self.items[first], self.items[last], source, not last.boxes)
            elif ends:
                box = group.child_towards(target)
                self._link(self.entries.setdefault(source, _Item(BEND, 0)), self.items[box], source, not box.boxes)
            elif starts:
                box = group.child_towards(source)
                self._link(self.items[box], self.exits.setdefault(source, _Item(BEND, 0)), source, False)

    def _link(self, first: _Item, last: _Item, value: Box, is_last: bool) -> None:
        self.links.setdefault((first, last), (value, is_last))

    def run(self) -> list[Line]:
        every = [*self.entries.values(), *self.items.values(), *self.exits.values()]
        self._rank(every)
        chains = self._bend(every)
        ranks: dict[int, list[_Item]] = defaultdict(list)
        for item in every:
            ranks[item.rank].append(item)
        self.ranks = [ranks[number] for number in sorted(ranks)]
        self._order()
        self._assign_positions()
        return self._finish(chains)

    def _rank(self, every: Sequence[_Item]) -> None:
        """Longest paths from the top; what has nothing above it goes right above what it leads to."""
        below: dict[_Item, list[_Item]] = defaultdict(list)
        waiting: dict[_Item, int] = dict.fromkeys(every, 0)
        for first, last in self.links:
            below[first].append(last)
            waiting[last] += 1
        ready = [item for item in every if not waiting[item]]
        order = []
        while ready:
            item = ready.pop()
            order.append(item)
            for other in below[item]:
                other.rank = max(other.rank, item.rank + 1)
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        above = {last for _, last in self.links}
        for item in reversed(order):
            if item not in above and below[item] and item not in self.entries.values():
                item.rank = max(min(other.rank for other in below[item]) - 1, item.rank)
        if self.entries:
            inner = set(self.entries.values())
            if any(item.rank == 0 for item in every if item not in inner):
                for item in every:
                    item.rank += item not in inner
        bottom = max((item.rank for item in every if item not in self.exits.values()), default=0) + 1
        for item in self.exits.values():
            item.rank = bottom

    def _bend(self, every: list[_Item]) -> dict[tuple[_Item, _Item], list[_Item]]:
        """Items for the ranks that edges pass; returns for each edge all items on its way."""
        chains = {}
        for (first, last), (value, _) in self.links.items():
            chain = [first]
            for rank in range(first.rank + 1, last.rank):
                chain.append(_Item(BEND, 0, is_bend=True, rank=rank))
            chain.append(last)
            every.extend(chain[1:-1])
            for one, other in itertools.pairwise(chain):
                leaves = _port(one, value, "exits") if one is first else 0.0
                meets = _port(other, value, "entries") if other is last else 0.0
                one.below.append((other, leaves, meets))
                other.above.append((one, leaves, meets))
            chains[first, last] = chain
        return chains

    def _order(self) -> None:
        """Fewer crossings: ranks are sorted by the positions of their neighbours, downwards and upwards alternately."""
        for rank in self.ranks:
            self._spread(rank)
        best, fewest = [list(rank) for rank in self.ranks], self._crossings()
        for sweep in range(ORDER_SWEEPS):
            down = sweep % 2 == 0
            for rank in self.ranks[1:] if down else self.ranks[-2::-1]:
                keys = {item: _mean_neighbour(item, down) for item in rank}
                rank.sort(key=lambda item: keys[item])
                self._spread(rank)
            count = self._crossings()
            if count < fewest:
                best, fewest = [list(rank) for rank in self.ranks], count
        self.ranks = best
        for rank in self.ranks:
            self._spread(rank)

    def _spread(self, rank: Sequence[_Item]) -> None:
        """Next to each other, centred at 0."""
        x = -(sum(item.width for item in rank) + GAP_X * (len(rank) - 1)) / 2
        for item in rank:
            item.x = x + item.width / 2
            x += item.width + GAP_X

    def _crossings(self) -> int:
        count = 0
        for rank in self.ranks:
            ends = [(item.x + a, other.x + b) for item in rank for other, a, b in item.below]
            for number, (a, b) in enumerate(ends):
                count += sum((a - c) * (b - d) < 0 for c, d in ends[number + 1 :])
        return count

    def _assign_positions(self) -> None:
        """Positions near the neighbours' means, without overlaps: straight chains, long edges most of all."""
        for sweep in range(POSITION_SWEEPS):
            ranks = self.ranks if sweep % 2 == 0 else self.ranks[::-1]
            for rank in ranks:
                wanted, weights = [], []
                for item in rank:
                    neighbours = [(other.x + a - b, _weight(item, other)) for other, a, b in item.above]
                    neighbours += [(other.x + b - a, _weight(item, other)) for other, a, b in item.below]
                    total = sum(weight for _, weight in neighbours)
                    wanted.append(sum(x * weight for x, weight in neighbours) / total if total else item.x)
                    weights.append(total or 0.1)
                for item, x in zip(rank, _separate(rank, wanted, weights), strict=True):
                    item.x = x

    def _finish(self, chains: dict[tuple[_Item, _Item], list[_Item]]) -> list[Line]:
        """Coordinates inside the group, its size and ports, and its lines."""
        group = self.group
        every = [item for rank in self.ranks for item in rank]
        left = min((item.x - item.width / 2 for item in every), default=0.0)
        right = max((item.x + item.width / 2 for item in every), default=0.0)
        top = MARGIN + (TITLE if group.name else 0)
        titled = max(right - left, group.width - 2 * MARGIN)  # `width` so far: that of the title
        shift = MARGIN - left + (titled - (right - left)) / 2
        bands: list[tuple[float, float]] = []
        y = 0.0 if self.entries else top
        for number, rank in enumerate(self.ranks):
            height = max(item.height for item in rank)
            bands.append((y, y + height))
            y += height + (max(GAP_Y, top) if number == 0 and self.entries else GAP_Y)
        has_exits = bool(self.exits)
        bottom = bands[-1][1] if has_exits else bands[-1][1] + MARGIN
        group.width, group.height = titled + 2 * MARGIN, bottom
        for item in every:
            item.x += shift
            if item.box is not None:
                high, low = bands[item.rank - self.ranks[0][0].rank]
                item.box.x = item.x - item.width / 2
                item.box.y = (high + low - item.height) / 2
        group.entries = {value: item.x for value, item in self.entries.items()}
        group.exits = {value: item.x for value, item in self.exits.items()}
        first_rank = self.ranks[0][0].rank
        lines = []
        for (first, last), chain in chains.items():
            value, is_last = self.links[first, last]
            points = [_bottom_of(first, value, bands[first.rank - first_rank])]
            for item in chain[1:-1]:
                high, low = bands[item.rank - first_rank]
                points += [(item.x, high), (item.x, low)]
            points.append(_top_of(last, value, bands[last.rank - first_rank]))
            lines.append(Line(points, is_last))
        return lines


def _port(item: _Item, value: Box, side: str) -> float:
    """Where a value enters or leaves an item, from its centre."""
    if item.box is None or not item.box.boxes:
        return 0.0
    return getattr(item.box, side)[value] - item.width / 2


def _bottom_of(item: _Item, value: Box, band: tuple[float, float]) -> Point:
    if item.box is None:
        return item.x, band[1]
    return item.x + _port(item, value, "exits"), item.box.y + item.height


def _top_of(item: _Item, value: Box, band: tuple[float, float]) -> Point:
    if item.box is None:
        return item.x, band[0]
    return item.x + _port(item, value, "entries"), item.box.y


def _mean_neighbour(item: _Item, down: bool) -> float:
    centers = [other.x + (a if down else b) for other, a, b in (item.above if down else item.below)]
    return sum(centers) / len(centers) if centers else item.x


def _weight(one: _Item, other: _Item) -> float:
    return 4.0 if one.is_bend and other.is_bend else 2.0 if one.is_bend or other.is_bend else 1.0


def _separate(rank: Sequence[_Item], wanted: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The positions closest to those wanted (least squares) that keep order and distance: pool adjacent violators."""
    offsets = [0.0]
    for one, other in itertools.pairwise(rank):
        offsets.append(
            offsets[-1] + (one.width + other.width) / 2 + GAP_X * (0.6 if one.is_bend or other.is_bend else 1)
        )
    blocks: list[tuple[float, float, int]] = []  # (mean, weight, count)
    for place, offset, weight in zip(wanted, offsets, weights, strict=True):
        mean, total, count = place - offset, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, weight, many = blocks.pop()
            mean = (before * weight + mean * total) / (weight + total)
            total, count = total + weight, count + many
        blocks.append((mean, total, count))
    flat = [mean for mean, _, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]
