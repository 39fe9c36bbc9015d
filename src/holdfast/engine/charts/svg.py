"""A chart as a picture: one self-contained SVG, without scripts, links, fonts or styles from elsewhere.

Where everything lies is said by the layout; here it is written down. Names come from authors and may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.engine.charts.configurations import configuration_of
from holdfast.engine.charts.mermaid import clip
from holdfast.engine.charts.nodes import Chart, Node
from holdfast.engine.charts.plain import place
from holdfast.engine.charts.svg_layout import Drawing, DrawingTooLarge
from holdfast.engine.charts.svg_parts import (
    LINE_HEIGHT,
    NAME_MAX,
    NAME_SIZE,
    PADDING,
    REGION_GAP,
    TEXT_SIZE,
    Box,
    Place,
    Stretch,
)  # fmt: skip
from holdfast.engine.charts.svg_routes import stretches

STATES_LIMIT = 300
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
INK, SOFT, LINE = "#1f2933", "#52606d", "#616e7c"
ACTIVE_INK, ACTIVE_FILL = "#b45309", "#fde9a9"


def svg(chart: Chart, active: bytes | None = None) -> str:
    """The chart as SVG. `active`: the value of a snapshot, whose states are marked."""
    if len(chart.nodes) > STATES_LIMIT:
        raise DrawingTooLarge("states", len(chart.nodes), STATES_LIMIT)
    marked = frozenset() if active is None else configuration_of(chart, active).active
    drawing = Drawing(chart)
    return _written(drawing, marked)


def _written(drawing: Drawing, marked: frozenset[int]) -> str:
    root = drawing.boxes[0]
    width, height = root.w + 2 * PADDING, root.h + 2 * PADDING
    name = _escaped(clip(drawing.chart.id, 100))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
        f'viewBox="0 0 {_n(width)} {_n(height)}" role="img" font-family="{FONT}" fill="{INK}">',
        f"<title>{name}</title>",
        f'<rect width="{_n(width)}" height="{_n(height)}" fill="#ffffff"/>',
    ]
    for node in drawing.chart.nodes:
        out += _box(drawing, drawing.boxes[node.index], marked)
    out.append(f'<g fill="none" stroke="{LINE}" stroke-width="1.3">')
    heads = []
    for edge in drawing.edges:
        path, head = _arrow(stretches(drawing.boxes, edge))
        dash = ' stroke-dasharray="4 3"' if edge.dashed else ""
        out.append(f'<path d="{path}"{dash}/>')
        heads.append(f'<path d="{head}"/>')
    out += ["</g>", f'<g fill="{LINE}">', *heads, "</g>"]
    for node in drawing.chart.nodes:
        out += _texts(drawing, drawing.boxes[node.index], marked)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _box(drawing: Drawing, box: Box, marked: frozenset[int]) -> Iterator[str]:
    node = box.node
    on = node.index in marked and node.parent is not None
    stroke, wide = (ACTIVE_INK, 2.4) if on else (LINE, 1.2)
    if node.type == "history":
        yield (
            f'<circle cx="{_n(box.x + box.w / 2)}" cy="{_n(box.y + box.h / 2)}" r="{_n(box.w / 2)}" fill="#ffffff" '
            f'stroke="{LINE}" stroke-width="1.2"/>'
        )
        return
    region = node.parent is not None and node.parent.type == "parallel"
    if region and box.drawn_round:
        yield from _separator(drawing, box)
        return
    if box.drawn_round:
        fill = _ground(node)
    else:
        fill = ACTIVE_FILL if on else "#ffffff"
    yield _rect(box.x, box.y, box.w, box.h, 10, fill, stroke, wide if not box.drawn_round or on else 1.2)
    if node.type == "final":
        yield _rect(box.x + 4, box.y + 4, box.w - 8, box.h - 8, 7, "none", stroke, 1.2)


def _ground(node: Node) -> str:
    """What the inside of a box is painted with; a region shows what it lies on."""
    while node.parent is not None and node.parent.type == "parallel":
        node = node.parent
    return ("#f7f9fb", "#eef2f6", "#e4eaf0")[node.depth % 3]


def _separator(drawing: Drawing, box: Box) -> Iterator[str]:
    """Regions have no border of their own, but a dashed line between them."""
    assert box.node.parent is not None
    outer = drawing.boxes[box.node.parent.index]
    if box.node is not box.node.parent.children[0]:
        x = box.x - REGION_GAP / 2
        yield (
            f'<path d="M{_n(x)} {_n(outer.y + outer.head)}V{_n(outer.y + outer.h - 6)}" fill="none" stroke="{LINE}" '
            'stroke-width="1.2" stroke-dasharray="6 4"/>'
        )


def _rect(x: float, y: float, w: float, h: float, r: float, fill: str, stroke: str, wide: float) -> str:
    return (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}" rx="{_n(r)}" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="{_n(wide)}"/>'
    )


def _arrow(pieces: list[Stretch]) -> tuple[str, str]:
    """A path through these vertical pieces, and the arrow's head at its end."""
    first, last = pieces[0], pieces[-1]
    way = 1 if last.y2 >= first.y1 else -1
    pieces = [*pieces[:-1], Stretch(last.x, last.y1, last.y2 - way * 6)]
    made = [f"M{_n(first.x)} {_n(first.y1)}"]
    x, y = first.x, first.y1
    for one in pieces:
        if abs(one.x - x) < 0.6:
            made.append(f"L{_n(one.x)} {_n(one.y2)}")
        else:
            middle = (y + one.y1) / 2
            made.append(
                f"C{_n(x)} {_n(middle)} {_n(one.x)} {_n(middle)} {_n(one.x)} {_n(one.y1)}L{_n(one.x)} {_n(one.y2)}"
            )
        x, y = one.x, one.y2
    tip = last.y2
    head = f"M{_n(last.x)} {_n(tip)}L{_n(last.x - 4.5)} {_n(tip - way * 9)}L{_n(last.x + 4.5)} {_n(tip - way * 9)}Z"
    return "".join(made), head


def _texts(drawing: Drawing, box: Box, marked: frozenset[int]) -> Iterator[str]:
    node = box.node
    if node.type == "history":
        word = "H*" if node.history == "deep" else "H"
        yield _line(box.x + box.w / 2, box.y + box.h / 2 + 4.5, word, NAME_SIZE, anchor="middle")
        return
    name = clip(node.key, NAME_MAX)
    if node.parent is None and drawing.chart.version:
        name += f" · version {drawing.chart.version}"
    ink = ACTIVE_INK if node.index in marked and box.drawn_round and node.parent is not None else INK
    described = f"<title>{_escaped(clip(node.description, 300))}</title>" if node.description else ""
    yield f'<g data-state="{_escaped(place(node))}">{described}'
    if box.drawn_round:
        yield _line(box.x + 14, box.y + 21, name, NAME_SIZE, bold=True, ink=ink, halo=True)
        for n, text in enumerate(box.lines):
            yield _line(box.x + 14, box.y + 38 + n * LINE_HEIGHT, text, TEXT_SIZE, ink=SOFT, halo=True)
        for row in box.rows.values():
            for one in row:
                yield from _marks(box, one)
    else:
        middle, top = box.x + box.w / 2, box.y + (3 if node.type == "final" else 0)
        yield _line(middle, top + 22.5, name, NAME_SIZE, bold=True, anchor="middle")
        for n, text in enumerate(box.lines):
            yield _line(middle, top + 39 + n * LINE_HEIGHT, text, TEXT_SIZE, ink=SOFT, anchor="middle")
    yield "</g>"


def _marks(box: Box, one: Place) -> Iterator[str]:
    """Labels, the dot of the initial state, and what may happen anywhere inside."""
    if one.kind not in ("label", "pill", "dot"):
        return
    top, bottom = box.row_y[one.row]
    x, middle = box.x + one.x, box.y + (top + bottom) / 2
    if one.kind == "dot":
        yield f'<circle cx="{_n(x)}" cy="{_n(middle)}" r="5.5" fill="{INK}"/>'
        return
    y = middle - one.h / 2
    if one.kind == "pill":
        yield _rect(x - one.w / 2, y, one.w, one.h, 9, "#ffffff", LINE, 1.0).replace("/>", ' stroke-dasharray="3 3"/>')
    else:
        fill = _ground(box.node)
        yield f'<rect x="{_n(x - one.w / 2)}" y="{_n(y)}" width="{_n(one.w)}" height="{_n(one.h)}" fill="{fill}"/>'
    for n, text in enumerate(one.lines):
        yield _line(x, y + 13.5 + n * LINE_HEIGHT, text, TEXT_SIZE, anchor="middle")


def _line(
    x: float, y: float, text: str, size: float, *, bold: bool = False, ink: str = "", anchor: str = "",
    halo: bool = False,
) -> str:  # fmt: skip
    more = ' font-weight="bold"' if bold else ""
    more += f' fill="{ink}"' if ink else ""
    more += f' text-anchor="{anchor}"' if anchor else ""
    more += ' paint-order="stroke" stroke="#ffffff" stroke-width="3" stroke-linejoin="round"' if halo else ""
    return f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"{more}>{_escaped(text)}</text>'


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


_CODES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


def _escaped(text: str) -> str:
    """As XML keeps it: what XML has no way to say becomes a replacement character."""
    return "".join(_CODES.get(c, c) if _sayable(c) else "\ufffd" for c in text)


def _sayable(c: str) -> bool:
    code = ord(c)
    return c in "\t\n\r" or 0x20 <= code < 0x7F or 0xA0 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or code > 0xFFFF
