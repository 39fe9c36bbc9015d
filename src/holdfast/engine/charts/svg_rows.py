"""The rows inside one box: who stands where in a row, and how far from the left.

The order in a row is what crosses least; the distance is what keeps arrows straight, long ones first.
"""

from __future__ import annotations

from holdfast.engine.charts.nodes import Node
from holdfast.engine.charts.svg_parts import LINE_HEIGHT, PADDING, TEXT_SIZE, Box, Part, Place, width_of, within
from holdfast.engine.charts.svg_routes import Boxes, crossing

PATIENCE = 40_000  # how often places are looked at while they are put in order
SIDE_GAP = 22.0  # between neighbours in a row
DUMMY_GAP = 12.0


class Rows:
    def __init__(self, boxes: Boxes, box: Box) -> None:
        self.boxes = boxes
        self.box = box
        self.rows: list[list[Place]] = []

    def lay_out(self) -> None:
        self._number()
        self._measure()
        self._link()
        self._order()
        self._spread()
        self._finish()

    def _number(self) -> None:
        """Rows are counted from 0 without gaps; arrows get a place in every row that they pass."""
        numbers = {row: n for n, row in enumerate(sorted(self.box.rows))}
        self.rows = [self.box.rows[row] for row in sorted(self.box.rows)]
        for row in self.rows:
            for one in row:
                one.row = numbers[one.row]
        for part in self.box.parts:
            whole = [part.places[0]]
            for one in part.places[1:]:
                before = whole[-1]
                step = 1 if one.row > before.row else -1
                for n in range(before.row + step, one.row, step):
                    passing = Place("pass", n, 2, 0)
                    self.rows[n].append(passing)
                    whole.append(passing)
                whole.append(one)
            part.places = whole

    def _measure(self) -> None:
        for row in self.rows:
            for one in row:
                if one.kind == "state":
                    assert one.node is not None
                    inner = self.boxes[one.node.index]
                    one.w, one.h = inner.w, inner.h
                elif one.kind in ("label", "pill"):
                    wide = max((width_of(line, TEXT_SIZE) for line in one.lines), default=0)
                    one.w, one.h = wide + (20 if one.kind == "pill" else 10), LINE_HEIGHT * len(one.lines) + 6
                elif one.kind == "dot":
                    one.w = one.h = 12.0

    def _link(self) -> None:
        for part in self.box.parts:
            for one, other in zip(part.places, part.places[1:], strict=False):
                one.links.append((other, part))
                other.links.append((one, part))

    # who stands where

    def _order(self) -> None:
        first = {child.index: n for n, child in enumerate(self._breadth_first())}
        for row in self.rows:
            row.sort(key=lambda one: first.get(one.node.index, 0) if one.node is not None else len(first))
            renumber(row)
        best, kept = self._crossings(), [row[:] for row in self.rows]
        for sweep in range(self._rounds(12)):
            order = range(1, len(self.rows)) if sweep % 2 == 0 else range(len(self.rows) - 2, -1, -1)
            for n in order:
                self._sort(self.rows[n], -1 if sweep % 2 == 0 else 1)
            now = self._crossings()
            if now < best:
                best, kept = now, [row[:] for row in self.rows]
        self.rows = kept
        for row in self.rows:
            renumber(row)

    def _rounds(self, most: int) -> int:
        return max(4, min(most, PATIENCE // sum(map(len, self.rows))))

    def _breadth_first(self) -> list[Node]:
        node = self.box.node
        found: list[Node] = [] if node.initial is None else [node.initial]
        for child in found:
            for edge in self.box.main:
                if within(node, edge.source) is child and (other := within(node, edge.target)) not in found:
                    found.append(other)
        return [*found, *(child for child in node.states.values() if child not in found)]

    def _sort(self, row: list[Place], towards: int) -> None:
        wanted: dict[int, float] = {}
        for one in row:
            there = [self._position(other, part) for other, part in one.links if other.row == one.row + towards]
            wanted[id(one)] = sum(there) / len(there) if there else float(one.order)
        row.sort(key=lambda one: wanted[id(one)])
        renumber(row)

    def _position(self, one: Place, part: Part) -> float:
        """Its number in the row; of an arrow through a box, also on which side of that."""
        at = None if one.node is None else crossing(self.boxes, one.node, part.edge)
        return one.order + (0.0 if at is None else 0.8 * (at / max(one.w, 1.0) - 0.5))

    def _crossings(self) -> int:
        total = 0
        for row in self.rows[:-1]:
            links = sorted(
                (self._position(one, part), self._position(other, part))
                for one in row
                for other, part in one.links
                if other.row == one.row + 1
            )
            total += inversions([other for _, other in links])
        return total

    # how far from the left

    def _spread(self) -> None:
        for row in self.rows:
            settle(row, [0.0] * len(row), [1.0] * len(row))
        rounds = self._rounds(24)
        for sweep in range(rounds):
            rows = self.rows if sweep % 2 == 0 else self.rows[::-1]
            both = sweep >= rounds * 2 // 3
            for row in rows:
                towards = (-1, 1) if both else (-1,) if sweep % 2 == 0 else (1,)
                wanted, weights = [], []
                for one in row:
                    pulls = [
                        (self._line(other, part) - self._offset(one, part), _strength(one, other))
                        for other, part in one.links
                        if other.row - one.row in towards
                    ]
                    weight = sum(strength for _, strength in pulls)
                    wanted.append(sum(x * strength for x, strength in pulls) / weight if weight else one.x)
                    weights.append(weight or 0.2)
                settle(row, wanted, weights)

    def _offset(self, one: Place, part: Part) -> float:
        at = None if one.node is None else crossing(self.boxes, one.node, part.edge)
        return 0.0 if at is None else at - one.w / 2

    def _line(self, one: Place, part: Part) -> float:
        return one.x + self._offset(one, part)

    # the end

    def _finish(self) -> None:
        box = self.box
        left = min(one.x - one.w / 2 for row in self.rows for one in row)
        for row in self.rows:
            for one in row:
                one.x += PADDING - left
        right = max(one.x + one.w / 2 for row in self.rows for one in row)
        self._attach()
        y = box.head + 6
        for n, row in enumerate(self.rows):
            height = max(one.h for one in row)
            box.row_y[n] = (y, y + height)
            y += height + (self._gap(n) if n + 1 < len(self.rows) else 0)
        box.rows = dict(enumerate(self.rows))
        box.w, box.h = right + PADDING, y + PADDING

    def _gap(self, n: int) -> float:
        """Wider where arrows go far to the side, so that they do not lie flat on one another."""
        far = max(
            (abs(self._line(one, part) - self._line(other, part))
             for one in self.rows[n] for other, part in one.links if other.row == n + 1),
            default=0.0,
        )  # fmt: skip
        return 16.0 + min(34.0, far * 0.09)

    def _attach(self) -> None:
        """Arrows that end at a state's border do so side by side, each as near as can be to where it comes from."""
        ends: dict[tuple[int, bool], list[tuple[float, Part, bool]]] = {}
        for part in self.box.parts:
            for first in (True, False):
                one, next_ = (part.places[0], part.places[1]) if first else (part.places[-1], part.places[-2])
                if one.kind != "state":
                    continue
                assert one.node is not None
                at = crossing(self.boxes, one.node, part.edge)
                if at is not None:
                    _attach_at(part, first, one.x - one.w / 2 + at)
                else:
                    key = (one.node.index, next_.row > one.row)
                    ends.setdefault(key, []).append((self._line(next_, part), part, first))
        for (index, _), found in ends.items():
            state = self.box.places[index]
            found.sort(key=lambda end: end[0])
            room = max(state.w - 24, 0.0)
            gap = min(18.0, room / max(len(found) - 1, 1))
            low, high = state.x - room / 2, state.x + room / 2
            xs = isotonic([x - n * gap for n, (x, _, _) in enumerate(found)], [1.0] * len(found))
            for n, (x, (_, part, first)) in enumerate(zip(xs, found, strict=True)):
                _attach_at(part, first, min(max(x, low), high - (len(found) - 1) * gap) + n * gap)


def _attach_at(part: Part, first: bool, x: float) -> None:
    if first:
        part.x_first = x
    else:
        part.x_last = x


def renumber(row: list[Place]) -> None:
    for n, one in enumerate(row):
        one.order = n


def _strength(one: Place, other: Place) -> float:
    """Long arrows are kept straight first."""
    passing = ("pass", "label", "top", "bottom")
    return (1.0, 2.0, 6.0)[(one.kind in passing) + (other.kind in passing)]


def settle(row: list[Place], wanted: list[float], weights: list[float]) -> None:
    """As near as can be to where each wants to be, in their order, without touching."""
    shift, shifts = 0.0, []
    for n, one in enumerate(row):
        if n:
            before = row[n - 1]
            slim = one.kind == "pass" or before.kind == "pass"
            shift += (before.w + one.w) / 2 + (DUMMY_GAP if slim else SIDE_GAP)
        shifts.append(shift)
    settled = isotonic([x - s for x, s in zip(wanted, shifts, strict=True)], weights)
    for one, x, s in zip(row, settled, shifts, strict=True):
        one.x = x + s


def isotonic(wanted: list[float], weights: list[float]) -> list[float]:
    """The values nearest to these (by squares) that do not fall: neighbours that would are pooled."""
    pools: list[tuple[float, float, int]] = []  # sum, weight, how many
    for x, w in zip(wanted, weights, strict=True):
        pool = (x * w, w, 1)
        while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    return [total / weight for total, weight, count in pools for _ in range(count)]


def inversions(values: list[float]) -> int:
    """How many pairs stand in the wrong order."""
    if len(values) < 2:
        return 0
    middle = len(values) // 2
    left, right = values[:middle], values[middle:]
    count = inversions(left) + inversions(right)
    left.sort()
    right.sort()
    n = 0
    for x in right:
        while n < len(left) and left[n] <= x:
            n += 1
        count += len(left) - n
    return count
