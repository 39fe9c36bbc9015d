"""The way of an arrow through a laid out drawing: where it crosses borders, and the pieces that it is made of."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.engine.charts.nodes import Node
from holdfast.engine.charts.svg_parts import Box, Edge, Part, Stretch, within

Boxes = dict[int, Box]  # by the number of the state


def crossing(boxes: Boxes, node: Node, edge: Edge) -> float | None:
    """Where an arrow crosses the border of this box, from its left; None if it ends at the border."""
    if node in (edge.source, edge.target):
        return None
    box = boxes[node.index]
    if node.type == "parallel":
        end = edge.source if node.holds(edge.source) else edge.target
        region = within(node, end)
        inner = crossing(boxes, region, edge)
        return box.offsets[region.index] + (boxes[region.index].w / 2 if inner is None else inner)
    part = next(part for part in edge.parts if part.box is node)
    port = next(one for one in part.places if one.kind in ("top", "bottom"))
    return port.x


def stretches(boxes: Boxes, edge: Edge) -> list[Stretch]:
    """The whole way of an arrow, as vertical pieces; curves join them."""
    found: list[Stretch] = []
    for part in edge.parts:
        found += _of_part(boxes, part)
    return found


def _of_part(boxes: Boxes, part: Part) -> Iterator[Stretch]:
    box = boxes[part.box.index]
    if not part.places:
        yield from _of_region(boxes, part, box)
        return
    rows = [one.row for one in part.places]
    down = rows[0] < rows[-1]
    for n, one in enumerate(part.places):
        top, bottom = (box.y + value for value in box.row_y[one.row])
        x = one.x
        if n == 0 and part.x_first is not None:
            x = part.x_first
        if n == len(part.places) - 1 and part.x_last is not None:
            x = part.x_last
        start, end = (top, bottom) if down else (bottom, top)
        if one.kind in ("top", "bottom"):
            border = box.y if one.kind == "top" else box.y + box.h
            start, end = (start, border) if n else (border, end)
        elif one.kind in ("state", "dot", "pill"):
            height = boxes[one.node.index].h if one.node is not None else one.h
            middle = (top + bottom) / 2
            near = middle + height / 2 if down == (n == 0) else middle - height / 2
            start, end = (near, end) if n == 0 else (start, near)
        yield Stretch(box.x + x, start, end)


def _of_region(boxes: Boxes, part: Part, box: Box) -> Iterator[Stretch]:
    """Between the border of a parallel state and that of one of its regions."""
    edge = part.edge
    leaving = box.node.holds(edge.source)
    region = within(box.node, edge.source if leaving else edge.target)
    inner = boxes[region.index]
    x = crossing(boxes, box.node, edge)
    assert x is not None
    outer = next(other for other in edge.parts if other.places and other.box.holds(box.node))
    downwards = outer.places[0].row < outer.places[-1].row
    ends = (inner.y + inner.h, box.y + box.h) if downwards == leaving else (inner.y, box.y)
    yield Stretch(box.x + x, *(ends if leaving else reversed(ends)))
