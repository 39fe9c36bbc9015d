"""Where everything in the picture of a chart lies: boxes sized from the inside out, placed from the outside in.

The layout is our own. States with states inside are boxes around a layered drawing of what is inside: rows from top to
bottom, the initial state first. A transition runs down (or back up) from row to row; where it passes a row, or where
its label stands, it has a place of its own in that row, so that labels and boxes do not lie on one another. Where it
crosses the border of a box it goes through a port at the top or bottom. What would only clutter the picture (a
transition that stays, one to another region) is a line of text in its state's box.
"""

from __future__ import annotations

from holdfast.engine.charts.mermaid import clip
from holdfast.engine.charts.nodes import Chart, Node, Transition
from holdfast.engine.charts.plain import place
from holdfast.engine.charts.svg_parts import (
    LINE_HEIGHT,
    LINE_MAX,
    NAME_MAX,
    NAME_SIZE,
    PADDING,
    REGION_GAP,
    TEXT_SIZE,
    Box,
    Edge,
    Part,
    Place,
    doings,
    label_of,
    shown,
    width_of,
    within,
)  # fmt: skip
from holdfast.engine.charts.svg_ranks import ranked
from holdfast.engine.charts.svg_rows import Rows
from holdfast.engine.charts.walking import common, transitions_of
from holdfast.engine.errors import HoldfastError

EDGES_LIMIT = 2_000
ROW_PLACES_LIMIT = 2_500  # in one box: what is longer becomes a line of text
PORT = 1_000_000  # the row of ports, before the rows are counted


class DrawingTooLarge(HoldfastError):
    """A chart with more in it than a picture can show."""

    code = "drawing_too_large"

    def __init__(self, what: str, count: int, limit: int) -> None:
        super().__init__(
            f"the chart has {count:,} {what}, and a drawing of more than {limit:,} shows nothing: "
            "use the Mermaid text, or draw a part of it"
        )


class Drawing:
    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.boxes = {node.index: Box(node) for node in chart.nodes}
        self.edges: list[Edge] = []
        self._collect()
        for node in chart.nodes:
            if node.children and node.type == "compound":
                box = self.boxes[node.index]
                box.rank = ranked(node, box.main)
                self._shorten(box)
        for node in chart.nodes:
            if node.children and node.type == "compound":
                self._thread(self.boxes[node.index])
        self._size(chart.root)
        self._place(chart.root, PADDING, PADDING)

    # -- gathering

    def _collect(self) -> None:
        joined: dict[tuple[int, int], Edge] = {}
        for node in self.chart.nodes:
            box = self.boxes[node.index]
            box.lines += doings(node)
            for target in node.history_targets:
                self._join(joined, Edge(node, target, [], dashed=True))
            for transition in transitions_of(node):
                self._transition(joined, box, transition)
        self.edges = list(joined.values())
        if len(self.edges) > EDGES_LIMIT:
            raise DrawingTooLarge("arrows", len(self.edges), EDGES_LIMIT)
        for edge in self.edges:
            around = common(edge.source, edge.target)
            if around is edge.source:
                self.boxes[around.index].pills.append(edge)
            else:
                self.boxes[around.index].main.append(edge)

    def _transition(self, joined: dict[tuple[int, int], Edge], box: Box, transition: Transition) -> None:
        source, words = transition.source, label_of(transition)
        stays = [t for t in transition.targets if t is source or t.holds(source)]
        if not transition.targets:
            box.lines += words
        elif stays:
            sign = "↻" if stays[0] is source else f"↑ {stays[0].key}"
            box.lines += [f"{sign} {words[0]}", *words[1:]]
        else:
            for n, target in enumerate(transition.targets):
                if common(source, target).type == "parallel":
                    box.lines += [*words[:-1], clip(f"{words[-1]} → {place(target)}", LINE_MAX)]
                else:
                    self._join(joined, Edge(source, target, words if n == 0 else []))

    @staticmethod
    def _join(joined: dict[tuple[int, int], Edge], edge: Edge) -> None:
        """Arrows between the same two states are one, with a label of several lines."""
        known = joined.setdefault((edge.source.index, edge.target.index), edge)
        if known is not edge:
            known.lines += edge.lines
            known.dashed = known.dashed and edge.dashed

    # -- rows

    def _shorten(self, box: Box) -> None:
        """Arrows so long that they would fill the rows become lines of text."""
        spans = sorted(box.main, key=lambda edge: abs(self._span(box, edge)))
        room = ROW_PLACES_LIMIT
        for edge in spans:
            room -= 2 * abs(self._span(box, edge))
            if room < 0:
                box.main.remove(edge)
                self.edges.remove(edge)
                self.boxes[edge.source.index].lines += [
                    *edge.lines[:-1], clip(f"{(edge.lines or [''])[-1]} → {place(edge.target)}", LINE_MAX)
                ]  # fmt: skip

    @staticmethod
    def _span(box: Box, edge: Edge) -> int:
        one, other = within(box.node, edge.source), within(box.node, edge.target)
        return box.rank[other.index] - box.rank[one.index]

    # -- arrows through the rows

    def _thread(self, box: Box) -> None:
        """Every arrow of this box as places in its rows, and ports in the boxes that it leads out of or into."""
        node = box.node
        for index, rank in box.rank.items():
            self._add(box, Place("state", 2 * rank, 0, 0, self.chart.nodes[index]))
        if node.initial is not None:
            self._start(box, Edge(node, node.initial, []), "dot")
        for edge in box.pills:
            self._start(box, edge, "pill")
        for edge in box.main:
            one, other = within(node, edge.source), within(node, edge.target)
            first, last = box.places[one.index], box.places[other.index]
            down = first.row < last.row
            label = None
            if edge.lines:
                label = Place("label", first.row + (1 if down else -1), 0, 0)
                label.lines = shown(edge.lines)
            self._part(box, edge, first, last, label)
            self._through(one, edge, edge.source, "bottom" if down else "top", leaving=True)
            self._through(other, edge, edge.target, "top" if down else "bottom", leaving=False)

    def _start(self, box: Box, edge: Edge, kind: str) -> None:
        """An arrow that begins inside the box itself: the initial one, or one from anywhere inside."""
        target = within(box.node, edge.target)
        last = box.places[target.index]
        first = Place(kind, last.row - 1, 0, 0)
        first.lines = shown(edge.lines)
        if kind == "dot":
            self.edges.append(edge)
        self._add(box, first)
        self._part(box, edge, first, last, None)
        self._through(target, edge, edge.target, "top", leaving=False)

    def _through(self, node: Node, edge: Edge, end: Node, side: str, *, leaving: bool) -> None:
        """From the border of `node` to the state inside it where the arrow really begins or ends."""
        while node is not end:
            inner = within(node, end)
            box = self.boxes[node.index]
            if node.type == "compound":
                port = Place(side, -PORT if side == "top" else PORT, 0, 0)
                self._add(box, port)
                state = box.places.get(inner.index)
                if state is None:  # its rows come later
                    state = Place("state", 2 * box.rank[inner.index], 0, 0, inner)
                    self._add(box, state)
                if leaving:
                    part = Part(edge, node, [state, port])
                    edge.parts.insert(0, part)
                else:
                    part = Part(edge, node, [port, state])
                    edge.parts.append(part)
                box.parts.append(part)
            else:
                part = Part(edge, node, [])
                edge.parts.insert(0, part) if leaving else edge.parts.append(part)
            node = inner

    def _part(self, box: Box, edge: Edge, first: Place, last: Place, label: Place | None) -> None:
        part = Part(edge, box.node, [first, last] if label is None else [first, label, last])
        if label is not None:
            self._add(box, label)
        edge.parts.append(part)
        box.parts.append(part)

    def _add(self, box: Box, new: Place) -> None:
        if new.kind == "state":
            assert new.node is not None
            if new.node.index in box.places:
                return
            box.places[new.node.index] = new
        box.rows.setdefault(new.row, []).append(new)

    # -- sizes, from the inside out

    def _size(self, node: Node) -> None:
        box = self.boxes[node.index]
        box.lines = shown(box.lines)
        for child in node.states.values():
            self._size(child)
        if node.type == "history":
            box.w = box.h = 28.0
            return
        words = [width_of(clip(node.key, NAME_MAX), NAME_SIZE), *(width_of(line, TEXT_SIZE) for line in box.lines)]
        if not node.children:
            box.w = max(84.0, max(words) + 24)
            box.h = 36.0 if not box.lines else 34.0 + LINE_HEIGHT * len(box.lines)
            if node.type == "final":
                box.w, box.h = box.w + 8, box.h + 6
            return
        box.head = 30.0 + LINE_HEIGHT * len(box.lines) + (4 if box.lines else 0)
        if node.type == "parallel":
            self._size_regions(box)
        else:
            Rows(self.boxes, box).lay_out()
        box.w = max(box.w, max(words) + 28)

    def _size_regions(self, box: Box) -> None:
        x, tallest = PADDING, 0.0
        inside = [*box.node.children, *box.node.history_nodes]
        for region in inside:
            inner = self.boxes[region.index]
            box.offsets[region.index] = x
            x += inner.w + REGION_GAP
            tallest = max(tallest, inner.h)
        for region in box.node.children:
            inner = self.boxes[region.index]
            inner.h = max(inner.h, tallest) if inner.drawn_round else inner.h
        box.w = x - REGION_GAP + PADDING
        box.h = box.head + tallest + (4 if any(r.children for r in box.node.children) else 2 * PADDING)

    # -- places, from the outside in

    def _place(self, node: Node, x: float, y: float) -> None:
        box = self.boxes[node.index]
        box.x, box.y = x, y
        if node.type == "parallel":
            for child in node.states.values():
                inner = self.boxes[child.index]
                down = 0.0 if inner.drawn_round else PADDING
                self._place(child, x + box.offsets[child.index], y + box.head + down)
            return
        for index, one in box.places.items():
            inner = self.boxes[index]
            top, bottom = box.row_y[one.row]
            self._place(inner.node, x + one.x - inner.w / 2, y + (top + bottom - inner.h) / 2)
