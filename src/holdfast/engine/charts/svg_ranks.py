"""Which row each state of a box is drawn in: below everything that leads to it, circles aside."""

from __future__ import annotations

from holdfast.engine.charts.nodes import Node
from holdfast.engine.charts.svg_parts import Edge, within


def ranked(node: Node, edges: list[Edge]) -> dict[int, int]:
    """By the number of each state inside `node`; `edges` are the arrows between those."""
    inside = [*node.children, *node.history_nodes]
    leads: dict[int, list[int]] = {child.index: [] for child in inside}
    for edge in edges:
        one, other = within(node, edge.source).index, within(node, edge.target).index
        if other not in leads[one]:
            leads[one].append(other)
    forward, found = without_circles(leads, [node.initial.index] if node.initial is not None else [])
    rank = dict.fromkeys(found, 0)
    for index in topological(forward, found):
        for other in forward[index]:
            rank[other] = max(rank[other], rank[index] + 1)
    lowest = max(rank.values())
    reached = {other for others in forward.values() for other in others}
    for child in inside:
        if child.type == "final" and child.index not in reached and child is not node.initial:
            rank[child.index] = lowest
        elif child.type == "history" and child.index not in reached and forward[child.index]:
            rank[child.index] = max(0, min(rank[other] for other in forward[child.index]) - 1)
    return {index: rank[index] for index in found}


def without_circles(leads: dict[int, list[int]], first: list[int]) -> tuple[dict[int, list[int]], list[int]]:
    """The same without the arrows that lead back to where one came from; and everything, as it is found."""
    forward: dict[int, list[int]] = {index: [] for index in leads}
    state: dict[int, int] = {}  # 1: on the way, 2: done
    found: list[int] = []
    for start in [*first, *leads]:
        if start in state:
            continue
        state[start] = 1
        found.append(start)
        way = [(start, iter(leads[start]))]
        while way:
            index, rest = way[-1]
            other = next(rest, None)
            if other is None:
                state[index] = 2
                way.pop()
            elif state.get(other) != 1 and other != index:
                forward[index].append(other)
                if other not in state:
                    state[other] = 1
                    found.append(other)
                    way.append((other, iter(leads[other])))
            elif other != index:
                forward[other].append(index)  # drawn upwards, but it keeps the two in different rows
    return forward, found


def topological(forward: dict[int, list[int]], found: list[int]) -> list[int]:
    waiting = dict.fromkeys(found, 0)
    for others in forward.values():
        for other in others:
            waiting[other] += 1
    ready = [index for index in found if waiting[index] == 0]
    for index in ready:
        for other in forward[index]:
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    assert len(ready) == len(found)
    return ready
