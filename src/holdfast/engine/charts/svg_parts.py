"""The parts of a drawing: boxes of states, arrows between them, and the places that both have in rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.engine.charts.mermaid import action_words, clip, label_lines
from holdfast.engine.charts.nodes import Node, Transition
from holdfast.engine.charts.plain import plain

NAME_MAX, LINE_MAX, LABEL_MAX = 40, 44, 38
LINES_MAX = 7  # of text in one box, and of one label
NAME_SIZE, TEXT_SIZE = 13.0, 11.0
LINE_HEIGHT = 14.0
PADDING = 16.0
REGION_GAP = 28.0


class Edge:
    """An arrow from one state to another, with everything that leads from the one to the other."""

    __slots__ = ("dashed", "lines", "parts", "source", "target")

    def __init__(self, source: Node, target: Node, lines: list[str], *, dashed: bool = False) -> None:
        self.source = source
        self.target = target
        self.lines = lines
        self.dashed = dashed
        self.parts: list[Part] = []  # from source to target


class Place:
    """Something that has a place in a row: a state, a label, a passing arrow, a port."""

    __slots__ = ("h", "kind", "lines", "links", "node", "order", "row", "w", "x")

    def __init__(self, kind: str, row: int, w: float, h: float, node: Node | None = None) -> None:
        self.kind = kind  # state | label | pill | dot | pass; top | bottom: a port there
        self.row = row
        self.w = w
        self.h = h
        self.node = node
        self.lines: list[str] = []
        self.x = 0.0  # its middle
        self.order = 0
        self.links: list[tuple[Place, Part]] = []  # to places in the rows next to it


class Part:
    """The part of an arrow that lies in one box: the places it passes, in the arrow's direction."""

    __slots__ = ("box", "edge", "places", "x_first", "x_last")

    def __init__(self, edge: Edge, box: Node, places: list[Place]) -> None:
        self.edge = edge
        self.box = box
        self.places = places
        self.x_first: float | None = None  # where it leaves its first place, if not in the middle
        self.x_last: float | None = None


class Stretch(NamedTuple):
    """A straight vertical piece of an arrow."""

    x: float
    y1: float
    y2: float


class Box:
    """A state's rectangle, and the rows inside."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.lines: list[str] = []
        self.w = self.h = 0.0
        self.x = self.y = 0.0
        self.head = 0.0
        self.rank: dict[int, int] = {}
        self.places: dict[int, Place] = {}  # of the states inside
        self.rows: dict[int, list[Place]] = {}
        self.row_y: dict[int, tuple[float, float]] = {}
        self.parts: list[Part] = []
        self.main: list[Edge] = []
        self.pills: list[Edge] = []
        self.offsets: dict[int, float] = {}  # of regions

    @property
    def drawn_round(self) -> bool:
        """Whether it is drawn as a box around others."""
        return bool(self.node.children)


def within(node: Node, inner: Node) -> Node:
    """The state directly inside `node` that holds `inner` or is it."""
    at = inner
    while at.parent is not node:
        assert at.parent is not None
        at = at.parent
    return at


# -- words


def label_of(transition: Transition) -> list[str]:
    """Its event, guard and actions, on as few lines as they fit."""
    lines: list[str] = []
    for part in label_lines(transition):
        if lines and len(lines[-1]) + len(part) < LABEL_MAX:
            lines[-1] += f" {part}"
        else:
            lines.append(clip(part, LINE_MAX))
    return lines


def doings(node: Node) -> Iterator[str]:
    for word, actions in (("entry", node.entry), ("exit", node.exit)):
        for action in actions:
            yield clip(f"{word} / {action_words(action)}", LINE_MAX)
    for invoke in node.invokes:
        if "workflow" in invoke.src:
            yield clip(f"do / workflow {invoke.src['workflow']}", LINE_MAX)
        else:
            task = plain(invoke.src["task"])
            yield clip(f"do / {task.get('type')} {task.get('name')}", LINE_MAX)


def shown(lines: list[str]) -> list[str]:
    if len(lines) <= LINES_MAX:
        return lines
    return [*lines[: LINES_MAX - 1], f"… and {len(lines) - LINES_MAX + 1} more lines"]


_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[]{}/ \"-"), frozenset("mwMW@%…→")


def width_of(text: str, size: float) -> float:
    """About as wide as such a font draws it; rather too wide than too narrow."""
    total = 0.0
    for c in text:
        if c in _NARROW:
            total += 0.36
        elif c in _WIDE or ord(c) > 0x1100:
            total += 1.0
        elif c.isupper() or ord(c) > 0x300:
            total += 0.74
        else:
            total += 0.58
    return total * size
