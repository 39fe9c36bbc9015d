"""The conformance list: what CEL expressions give, whatever library or version evaluates them; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.charts.expressions import BadExpression, ExpressionFailed, Scope, compile_expression

CONTEXT: dict[str, Any] = {
    "amount_minor": 12_500, "rate": 1.5, "name": "Ada", "ok": True, "nothing": None, "tags": ["a", "b", "c"],
    "items": [{"n": 1, "kind": "x"}, {"n": 2, "kind": "y"}, {"n": 3, "kind": "x"}], "nested": {"deep": {"er": [1, 2]}},
    "minus": -7, "big": 9_007_199_254_740_991, "empty": [],
}  # fmt: skip
EVENT = {"type": "decided", "output": {"ok": True, "note": "fine"}, "at": "2026-01-01T09:00:00Z"}
CONFORMANCE: list[tuple[str, Any]] = [
    ("context.amount_minor", 12_500),
    ("context.amount_minor >= 10000", True),
    ("context.amount_minor + 1", 12_501),
    ("context.amount_minor - 13000", -500),
    ("context.amount_minor * 2", 25_000),
    ("context.amount_minor / 1000", 12),
    ("context.minus / 2", -3),
    ("context.minus % 3", -1),
    ("context.rate * 2.0", 3.0),
    ("double(context.amount_minor) * context.rate", 18_750.0),
    ("int(context.rate)", 1),
    ("context.big", 9_007_199_254_740_991),
    ("context.name", "Ada"),
    ("context.name + '!'", "Ada!"),
    ("context.name == \"Ada\"", True),
    ("context.name.startsWith('A') && context.name.endsWith('a')", True),
    ("context.name.contains('d')", True),
    ("size(context.name)", 3),
    ("context.name.matches('^A.a$')", True),
    ("string(context.amount_minor)", "12500"),
    ("int('42')", 42),
    ("!context.ok", False),
    ("context.ok || context.missing", True),
    ("false && context.missing", False),
    ("context.ok ? 'yes' : 'no'", "yes"),
    ("context.nothing", None),
    ("context.nothing == null", True),
    ("context.name != null", True),
    ("has(context.name)", True),
    ("has(context.missing)", False),
    ("has(event.output.note) ? event.output.note : ''", "fine"),
    ("context.tags", ["a", "b", "c"]),
    ("context.tags[1]", "b"),
    ("'b' in context.tags", True),
    ("'name' in context", True),
    ("size(context.tags) == 3", True),
    ("context.tags + ['d']", ["a", "b", "c", "d"]),
    ("context.items.exists(i, i.kind == 'y')", True),
    ("context.items.all(i, i.n > 0)", True),
    ("context.items.exists_one(i, i.n == 2)", True),
    ("context.items.filter(i, i.kind == 'x').size()", 2),
    ("context.items.map(i, i.n * 10)", [10, 20, 30]),
    ("context.empty.all(i, i > 0)", True),
    ("context.nested.deep.er[1]", 2),
    ("event.type == 'decided' && event.output.ok", True),
    ("event.output", {"ok": True, "note": "fine"}),
    ("{'a': context.amount_minor, 'b': [1, context.name]}", {"a": 12_500, "b": [1, "Ada"]}),
    ("state.value == 'review'", True),
    ("timestamp(event.at) < timestamp('2026-06-01T00:00:00Z')", True),
    ("string(timestamp(event.at) + duration('24h'))", "2026-01-02T09:00:00Z"),
    ("dyn(1) == 1.0", True),
]  # fmt: skip


def scope() -> Scope:
    return Scope(CONTEXT, EVENT, {"value": "review", "tags": []})


@pytest.mark.parametrize(("text", "expected"), CONFORMANCE, ids=[text for text, _ in CONFORMANCE])
def test_an_expression_gives(text: str, expected: Any) -> None:
    found = compile_expression(text).run(scope())
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("context.missing", "there is no 'missing'"),
        ("context.name.first", "has no fields"),
        ("context.items[0].missing", "Key not found"),
        ("context.tags[9]", "index"),
        ("context.amount_minor / 0", "divide by zero"),
        ("context.amount_minor * context.rate", "does not mix int and double"),
        ("context.nothing < 3", "null"),
        ("context.name > 3", "overload"),
        ("9223372036854775807 + context.amount_minor", "overflow"),
        ("int('x')", "int"),
        ("duration('3s')", "JSON cannot carry"),
        ("timestamp(event.at)", "JSON cannot carry"),
        ("{1: 2}", "texts as keys"),
        ("b'ab'", "JSON cannot carry"),
    ],
)
def test_a_failure_is_never_taken_for_a_value(text: str, words: str) -> None:
    with pytest.raises(ExpressionFailed, match=words):
        compile_expression(text).run(scope())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "as text"),
        (5, "as text"),
        ("1 +", "mismatched input|Syntax|syntax"),
        ("1 + 'a'", "no matching overload"),
        ("nope.x", "undeclared reference"),
        ("now()", "undeclared reference"),
        ("params.x", "only there inside"),
        ("__import__('os')", "undeclared reference"),
        ("null > 1", "null"),
        ("'" + "a" * 5000 + "'", "characters"),
        ("(" * 40 + "1" + ")" * 40, "recursion"),
        (" + ".join(["context.name"] * 65), "names variables 65 times|recursion"),
        ("context.tags.map(x, x + x)", "inside a loop"),
        ("context.tags.map(x, [x])", "inside a loop|inside a loop may hold constants"),
        ("context.tags.map(x, {'a': x})", "constants only"),
        ("context.tags.map(x, string(x))", "inside a loop"),
        ("context.tags.all(x, bytes(x) != b'')", "inside a loop"),
        ("[1].all(a, [2].all(b, [3].all(c, true)))", "more than 2 deep"),
        ("['a'].map(x, x+x).map(x, x+x)", "inside a loop"),
    ],
)
def test_what_cannot_be_right_or_could_grow_is_refused_before_it_runs(text: Any, words: str) -> None:
    with pytest.raises(BadExpression, match=words):
        compile_expression(text)


def test_long_loops_are_stopped() -> None:
    text = "[0,1,2,3,4,5,6,7,8,9].all(a, context.n.all(b, a >= 0 && b >= 0))"
    with pytest.raises(ExpressionFailed, match="budget"):
        compile_expression(text).run(Scope({"n": list(range(10_000))}, EVENT, {}))


def test_params_are_visible_inside_named_guards_and_actions() -> None:
    seen = scope()
    seen.params = {"limit": 5}
    assert compile_expression("params.limit < context.amount_minor", named=True).run(seen) is True


@pytest.mark.parametrize("text", [
    "context.v >= 10", "context.v == 10", "context.v != 10", "context.v < 10", "context.v + 10", "context.v - 10",
    "context.v == 'a'", "context.v != \"a\"", "context.v + 'é'", "context.v > 'a'", "context.v <= 0",
])  # fmt: skip
def test_the_short_way_gives_what_cel_gives_or_leaves_it_to_cel(text: str) -> None:
    from holdfast.engine.charts.expressions import Cel, _environment

    program, whole = compile_expression(text), Cel(text, _environment.compile(text))
    values = [
        0, 9, 10, 11, -10, 2**53, 2**62, 2**63 - 1, -(2**63), True, False, None, 1.5, 10.0, "", "a", "b", "ä", [], [10],
        {}, {"a": 1},
    ]  # fmt: skip
    for value in values:
        seen = [_outcome(one, value) for one in (program, whole)]
        assert seen[0] == seen[1], value
    assert _outcome(program, ...) == _outcome(whole, ...)


def _outcome(program: Any, value: Any) -> Any:
    context = {} if value is ... else {"v": value}
    try:
        found = program.run(Scope(context, EVENT, {}))
    except ExpressionFailed as failed:
        return "failed", str(failed)
    return type(found), found
