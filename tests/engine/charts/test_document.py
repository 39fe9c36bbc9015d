"""A chart's text: strict JSON, key order kept as JavaScript keeps it, faults named by their place, sizes bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.engine.charts import document
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.document import BadChart


def test_integer_like_keys_come_first_in_ascending_order_as_in_javascript() -> None:
    found = document.read('{"b": 1, "10": 2, "a": {"x": 1, "3": 1, "1": 1}, "9": 3, "01": 4}')
    assert list(found) == ["9", "10", "b", "a", "01"]
    assert list(found["a"]) == ["1", "3", "x"]
    assert document.written(found) == '{"9":3,"10":2,"b":1,"a":{"1":1,"3":1,"x":1},"01":4}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[]", "expected an object"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ('{"a": {"b": 1, "b": 1}}', "stands twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1e999}', "too large"),
        ('{"a": 9007199254740993}', "2\\^53"),
        ('{"a": "\\u0000"}', "U\\+0000"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"\\u0000": 1}', "cannot keep"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "nested deeper"),
        ('{"a": "' + "x" * (1 << 20) + '"}', "the limit is 1,048,576"),
    ],
)
def test_text_that_two_readers_might_read_differently_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadChart, match=words):
        document.read(text)


def chart(**more: Any) -> dict[str, Any]:
    return {"id": "c", "initial": "a", "states": {"a": {}}, **more}


def test_the_same_content_has_the_same_hash_however_it_is_laid_out() -> None:
    one = compile_chart(document.read(json.dumps(chart(), indent=4)))
    two = compile_chart(document.reread(chart()))
    other = compile_chart(document.reread({"id": "c", "states": {"a": {}}, "initial": "a"}))
    assert one.hash == two.hash != other.hash


def doubling(kind: str, depth: int) -> dict[str, Any]:
    if kind == "guards":
        named: dict[str, Any] = {f"g{n}": {"and": [f"g{n + 1}", f"g{n + 1}"]} for n in range(depth)}
        named[f"g{depth}"] = {"@expr": "true"}
        return chart(guards=named)
    named = {f"g{n}": [f"g{n + 1}", f"g{n + 1}"] for n in range(depth)}
    named[f"g{depth}"] = {"type": "log", "params": 1}
    return chart(actions=named)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (chart(states={f"s{n}": {} for n in range(10_000)}, initial="s0"), "more than 2,000 states"),
        (doubling("guards", 40), "more than 1,000 conditions"),
        (doubling("actions", 40), "more than 1,000"),
        (chart(guards={"a": "b", "b": {"not": "a"}}), "leads back to itself"),
        (chart(actions={"a": ["b"], "b": "a"}), "leads back to itself"),
        (chart(guards={f"g{n}": {"@expr": f"context.x > {n}"} for n in range(5_100)}), "more than 5,000 expressions"),
        (chart(on={f"e{n}": ".a" for n in range(20_100)}), "20,100 transitions"),
    ],
    ids=["states", "guards", "actions", "guard circle", "action circle", "expressions", "transitions"],
)
def test_bombs_are_refused_with_a_clear_error(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(BadChart) as refused:
        compile_chart(document.reread(spec))
    assert words in str(refused.value)


def test_deep_nesting_is_refused() -> None:
    inner: dict[str, Any] = {}
    for _ in range(25):
        inner = {"initial": "s", "states": {"s": inner}}
    with pytest.raises(BadChart, match="deeper than 20 levels"):
        compile_chart(document.reread({"id": "c", **inner}))


def test_data_cannot_name_a_secret() -> None:
    from holdfast.engine.charts.interpreter import start
    from holdfast.engine.charts.nodes import StepFault

    task = {"type": "HTTP", "name": "call", "url": "https://example.org", "json": {"@expr": "event.input"}}
    spec = chart(entry={"type": "createTask", "params": task})
    compiled = compile_chart(document.reread(spec))
    assert start(compiled, {"a": 1}, 0).effects[0].body["params"]["json"] == {"a": 1}
    with pytest.raises(StepFault, match="only a chart names secrets"):
        start(compiled, {"a": [{"@secret": "other"}]}, 0)
