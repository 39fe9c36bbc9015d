"""A chart as Mermaid text and as SVG: everything is in it, nothing lies on anything else, no name can break out."""

import random
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.configurations import SnapshotMismatch
from holdfast.engine.charts.mermaid import escaped, mermaid
from holdfast.engine.charts.nodes import Chart
from holdfast.engine.charts.planning import initial_plan
from holdfast.engine.charts.svg import STATES_LIMIT, DrawingTooLarge, svg
from holdfast.engine.charts.svg_layout import EDGES_LIMIT, Drawing
from holdfast.engine.charts.svg_parts import Box
from holdfast.engine.charts.svg_routes import stretches
from tests.engine.charts.test_lint import BOOKING, EDITOR, EXPENSE, ORDER, REALISTIC


def chart(document: dict[str, Any], version: int = 0) -> Chart:
    return compile_chart(doc.reread(document), version=version)


def small(**states: Any) -> dict[str, Any]:
    return {"id": "c", "initial": next(iter(states)), "states": states}


# -- Mermaid

NODE = r"(?:s\d+|\[\*\])"
TEXT = r"(?:[^\W]|[ _.,/()+=!?]|#\d+;)+"
GRAMMAR = re.compile(
    rf'\s*(?:stateDiagram-v2|state "{TEXT}" as s\d+|state s\d+ \{{|\}}|--|{NODE} --> {NODE}(?: : {TEXT})?'
    r"|classDef (?:active|history) [a-z0-9#:, -]+|class s\d+(?:,s\d+)* (?:active|history))\Z"
)


def readable(text: str) -> str:
    return re.sub(r"#(\d+);", lambda code: chr(int(code[1])), text)


@pytest.mark.parametrize("name", REALISTIC)
def test_a_diagram_is_made_of_nothing_but_our_own_words(name: str) -> None:
    made = chart(REALISTIC[name])
    for line in mermaid(made, initial_plan(made).after.raw).splitlines():
        assert GRAMMAR.match(line), line


def test_states_transitions_guards_and_actions_are_in_the_diagram() -> None:
    text = readable(mermaid(chart(EXPENSE)))
    for line in (
        'state "review" as s2', "state s2 {", "[*] --> s3", 'state "H*" as s6', "s10 --> [*]",
        "s4 --> s5 : after patience [tooManyReminders]", "s3 --> s4 : SUGGESTED", "s7 --> s6 : RESUME",
        "s0 --> s8 : task.done.decide [event.output.approved == true] / remember", 'state "(anywhere)" as s0',
        "s8 --> s10 : done payout / mailClaimant",
    ):  # fmt: skip
        assert re.search(rf"^\s*{re.escape(line)}$", text, re.M), line
    assert "classDef active" not in text


def test_named_guards_and_actions_are_drawn_by_their_names_whatever_they_hold() -> None:
    document = small(a={"on": {"GO": {"target": "b", "guard": "there", "actions": ["quiet"]}}}, b={}) | {
        "guards": {"there": {"stateIn": "a"}}, "actions": {"quiet": []},
    }  # fmt: skip
    assert "s1 --> s2 : GO [there] / quiet" in readable(mermaid(chart(document)))
    assert "GO [there] / quiet" in " ".join(words(only_shapes(svg(chart(document)))))


def test_regions_are_separated_and_a_parallel_chart_has_a_box_of_its_own() -> None:
    text = mermaid(chart(BOOKING))
    assert text.count("        --\n") == 2
    lines = mermaid(chart(EDITOR)).splitlines()
    assert lines[1:3] == ['    state "editor" as s0', "    state s0 {"]
    assert lines.count("        --") == 1


def test_the_states_an_instance_stands_in_are_marked() -> None:
    active = b'{"booking":{"flight":"booked","hotel":"asking","clock":"late"}}'
    text = mermaid(chart(BOOKING), active)
    [marked] = re.findall(r"class (\S+) active", text)
    names = dict(re.findall(r'state "([^"]+)" as (s\d+)', text)[::-1])
    assert len(marked.split(",")) == 3
    assert names["late"] in marked.split(",")


def test_a_value_that_the_chart_does_not_have_is_refused() -> None:
    for draw in (mermaid, svg):
        with pytest.raises(SnapshotMismatch):
            draw(chart(ORDER), b'"nowhere"')


HOSTILE = [
    '"] --> x', "</text><script>alert(1)</script>", "%%{init: {'theme':'dark'}}%%", 'x" as s1 {', "}", "--", "[*]",
    "click s1 href 'javascript:alert(1)'", ":::active", "note right of s1: hi", "<<fork>>", "direction LR",
    "DIRECTION\tRL", "classDef active fill:red;", "&lt;b&gt;", "`**x**`", "a\u2028b\u202ec", "\ufffe\uffff", "]]>",
    "<!--", "ﬂ°°35¶ß", "日本", "🙂",
]  # fmt: skip


def hostile_chart(words: list[str]) -> dict[str, Any]:
    clean = [re.sub(r"[\x00-\x1f\x7f.#*/\\]", "", word)[:90] or "x" for word in words]
    names = list(dict.fromkeys(word if not word.isdigit() else f"n{word}" for word in clean))
    events = [re.sub(r"[\x00-\x1f\x7f*]", "", word)[:150].removeprefix("xstate.") or "e" for word in words]
    states = {
        name: {
            "description": words[n],
            "on": {events[n]: {
                "target": names[(n + 1) % len(names)],
                "guard": {"@expr": "event.x == " + repr(words[n].replace("\\", ""))} if words[n].isascii() else None,
                "actions": {"type": "raise", "event": events[n]},
            }},
        }
        for n, name in enumerate(names)
    }  # fmt: skip
    return {"id": "h", "initial": names[0], "states": states}


def test_hostile_names_break_neither_drawing() -> None:
    made = chart(hostile_chart(HOSTILE))
    for line in mermaid(made).splitlines():
        assert GRAMMAR.match(line), line
    assert not re.search(r"direction", mermaid(made), re.I)
    only_shapes(svg(made))


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30),
        min_size=1,
        max_size=5,
    )
)
def test_no_name_breaks_a_drawing(words: list[str]) -> None:
    made = chart(hostile_chart(words))
    for line in mermaid(made).splitlines():
        assert GRAMMAR.match(line), line
    only_shapes(svg(made))


@given(st.text())
def test_an_escaped_text_can_be_read_back(text: str) -> None:
    assert readable(escaped(text)) == (text or " ")


# -- SVG

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = {"svg", "title", "rect", "circle", "path", "g", "text"}


def only_shapes(text: str) -> ElementTree.Element:
    """It is XML, and holds nothing that runs, loads or links."""
    root = ElementTree.fromstring(text)
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in SHAPES
        for key, value in element.attrib.items():
            assert not key.startswith("on") and "href" not in key and key != "style"
            assert key == "data-state" or "url" not in value
    return root


def words(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", REALISTIC)
def test_a_picture_shows_every_state_and_every_event(name: str) -> None:
    made = chart(REALISTIC[name], version=7)
    shown = words(only_shapes(svg(made)))
    assert f"{made.id} · version 7" in shown
    for node in made.nodes[1:]:
        assert (("H*" if node.history == "deep" else "H") if node.type == "history" else node.key) in shown
        for event in node.on:
            if not event.startswith("xstate."):
                assert any(event in line for line in shown), event


def test_a_picture_is_the_same_every_time() -> None:
    assert svg(chart(EXPENSE)) == svg(chart(EXPENSE))


def test_where_an_instance_stands_is_highlighted() -> None:
    plain, marked = svg(chart(ORDER)), svg(chart(ORDER), b'"packing"')
    assert (plain.count("#fde9a9"), marked.count("#fde9a9")) == (0, 1)
    nested = svg(chart(EXPENSE), b'{"review":"waiting"}')
    assert nested.count("#fde9a9") == 1
    assert nested.count('stroke="#b45309"') == 2  # the state, and the one around it


def test_final_states_have_two_borders_and_regions_a_dashed_line_between_them() -> None:
    final = only_shapes(svg(chart(small(a={"on": {"GO": "b"}}, b={"type": "final"}))))
    assert len(list(final.iter(f"{SVG}rect"))) == 6  # the sheet, the chart, a, b twice, the label's ground
    dashed = [p for p in only_shapes(svg(chart(BOOKING))).iter(f"{SVG}path") if p.get("stroke-dasharray") == "6 4"]
    assert len(dashed) == 2


def test_what_stays_or_goes_to_another_region_is_a_line_of_text() -> None:
    document = small(
        a={
            "type": "parallel",
            "states": {
                "l": {"initial": "l1", "states": {"l1": {"on": {"X": "#c.a.r.r2", "S": {"actions": {"type": "log"}}}}}},
                "r": {"initial": "r1", "states": {"r1": {}, "r2": {"on": {"UP": "#c.a", "AGAIN": "r2"}}}},
            },
        }
    )
    shown = words(only_shapes(svg(chart(document))))
    assert {"X → a.r.r2", "S / log", "↑ a UP", "↻ AGAIN"} <= set(shown)


def test_a_chart_that_is_too_large_is_refused() -> None:
    many = {f"n{n}": {} for n in range(STATES_LIMIT)}
    with pytest.raises(DrawingTooLarge, match="301 states") as refused:
        svg(chart(small(**many)))
    assert refused.value.code == "drawing_too_large"
    assert mermaid(chart(small(**many)))
    names = [f"n{n}" for n in range(60)]
    every = {name: {"on": {f"to {other}": other for other in names if other != name}} for name in names}
    with pytest.raises(DrawingTooLarge, match=rf"arrows, .* {EDGES_LIMIT:,}"):
        svg(chart(small(**every)))


def test_names_and_labels_without_end_are_cut() -> None:
    document = small(**{"a" * 100: {"on": {"E" * 200: {"target": "b", "actions": [{"type": "log"}] * 500}}}, "b": {}})
    text = svg(chart(document))
    assert len(text) < 20_000
    assert max(map(len, words(only_shapes(text)))) <= 60


# -- geometry


def sample(seed: int, states: int) -> dict[str, Any]:
    """A random chart: nested, parallel, with history and arrows from anywhere to anywhere."""
    rnd = random.Random(seed)
    made: list[tuple[str, dict[str, Any] | None]] = []

    def state(depth: int) -> tuple[str, dict[str, Any]]:
        name = f"n{len(made)}"
        config: dict[str, Any] = {"id": name}
        made.append((name, config))
        kind = rnd.random()
        if depth < 4 and kind < 0.35:
            config["states"] = dict(state(depth + 1) for _ in range(rnd.randint(1, 4)))
            if kind < 0.1:
                config["type"] = "parallel"
            else:
                config["initial"] = rnd.choice(list(config["states"]))
                if rnd.random() < 0.3:
                    past = f"n{len(made)}"
                    made.append((past, None))
                    config["states"][past] = {"id": past, "type": "history", "target": config["initial"]}
        elif kind > 0.9:
            config["type"] = "final"
        return name, config

    root: dict[str, Any] = {"id": "root", "states": {}}
    while len(made) < states:
        root["states"].update([state(1)])
    root["initial"] = next(iter(root["states"]))
    sources = [config for _, config in made if config is not None and config.get("type") != "final"]
    for n in range(rnd.randint(states // 2, 2 * states)):
        on = rnd.choice([*sources, root]).setdefault("on", {})
        on.setdefault(f"event {n}", []).append(f"#{rnd.choice(made)[0]}")
    return root


Rect = tuple[float, float, float, float]


def rectangles(drawing: Drawing, box: Box) -> list[Rect]:
    found = []
    for child in box.node.states.values():
        inner = drawing.boxes[child.index]
        found.append((inner.x, inner.y, inner.x + inner.w, inner.y + inner.h))
    for row in box.rows.values():
        for one in row:
            if one.kind in ("label", "pill", "dot"):
                top, bottom = box.row_y[one.row]
                middle = box.y + (top + bottom) / 2
                x = box.x + one.x
                found.append((x - one.w / 2, middle - one.h / 2, x + one.w / 2, middle + one.h / 2))
    return found


def apart(one: Rect, other: Rect) -> bool:
    return one[2] <= other[0] + 0.1 or other[2] <= one[0] + 0.1 or one[3] <= other[1] + 0.1 or other[3] <= one[1] + 0.1


@pytest.mark.parametrize(
    "document",
    [*REALISTIC.values(), *(sample(seed, 8 + 3 * seed) for seed in range(12))],
    ids=[*REALISTIC, *(f"random {n}" for n in range(12))],
)
def test_nothing_lies_on_anything_else_and_every_arrow_arrives(document: dict[str, Any]) -> None:
    made = chart(document)
    only_shapes(svg(made))
    drawing = Drawing(made)
    for box in drawing.boxes.values():
        inside = rectangles(drawing, box)
        for n, one in enumerate(inside):
            assert one[0] >= box.x and one[1] >= box.y and one[2] <= box.x + box.w and one[3] <= box.y + box.h
            assert all(apart(one, other) for other in inside[n + 1 :])
    for edge in drawing.edges:
        way = stretches(drawing.boxes, edge)
        heights = [y for stretch in way for y in (stretch.y1, stretch.y2)]
        up = heights[-1] < heights[0]
        assert all(a >= b - 0.2 if up else a <= b + 0.2 for a, b in pairwise(heights))
        target = drawing.boxes[edge.target.index]
        assert target.x <= way[-1].x <= target.x + target.w
        assert abs(way[-1].y2 - (target.y + target.h if up else target.y)) < 0.2


def test_no_arrow_runs_through_a_state_it_does_not_belong_to() -> None:
    drawing = Drawing(chart(EXPENSE))
    for edge in drawing.edges:
        for stretch in stretches(drawing.boxes, edge):
            for box in drawing.boxes.values():
                if box.node.children or box.node in (edge.source, edge.target):
                    continue
                low, high = sorted((stretch.y1, stretch.y2))
                inside = box.x < stretch.x < box.x + box.w and low < box.y + box.h - 0.2 and high > box.y + 0.2
                assert not inside, (edge.source, edge.target, box.node)
