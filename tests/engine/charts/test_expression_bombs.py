"""Whatever an expression is given, it ends soon and builds little: what could not is refused before it is evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.charts import expressions
from holdfast.engine.charts.expressions import BadExpression, Cel, ExpressionFailed, Scope, compile_expression

MANY = [1] * 9_900
TEXT = "a" * 500_000
LINE = {"kind": "x", "price": 12, "name": "something"}
BOMBS: list[tuple[str, dict[str, Any]]] = [
    ("context.xs.map(x, context.xs)", {"xs": MANY}),
    ("size(context.xs.map(x, context.xs)) > 0", {"xs": MANY}),
    ("context.xs.map(x, x)", {"xs": MANY}),
    ("context.xs.filter(x, x > 0)", {"xs": MANY}),
    ("context.xs.map(context, context)", {"xs": MANY}),
    ("context.xs.map(x, .context.xs)", {"xs": MANY}),
    ("context['xs'].map(x, context['xs'])", {"xs": MANY}),
    ("context.xs.map(x, true ? context.xs : [])", {"xs": MANY}),
    ("context.xs.map(x, dyn(context).xs)", {"xs": MANY}),
    ("(context.xs + context.xs).map(x, x)", {"xs": MANY[:900]}),
    ("context.a.b.map(x, x.map(y, x))", {"a": {"b": [MANY[:900]]}}),
    ("context.xs.map(x, context.xs.filter(y, x == y))", {"xs": MANY[:200]}),
    ("context.xs.filter(x, x > 0).map(x, context.ys)", {"xs": MANY[:500], "ys": MANY}),
    ("context.xs.all(x, !(x in context.ys))", {"xs": MANY, "ys": MANY}),
    ("context.xs.exists(x, context.ys == context.zs)", {"xs": MANY, "ys": MANY, "zs": MANY}),
    ("context.xs.exists_one(x, context.s == context.t)", {"xs": MANY, "s": TEXT, "t": TEXT}),
    ("context.xs.all(x, size(context) > 0)", {"xs": MANY}),
    ("context.xs.all(x, x.matches('^(a|b){50}$'))", {"xs": ["ab"] * 9_900}),
    ("context.xs.all(x, " + " && ".join(["x == 1"] * 400) + ")", {"xs": MANY}),
    ("context.s.matches('a(a|b){200}c')", {"s": TEXT}),
    ("context.s.contains(context.t)", {"s": TEXT, "t": TEXT + "b"}),
    (" + ".join(["context.xs"] * 15), {"xs": [1] * 100_000}),
    (" + ".join(["context.s"] * 15), {"s": TEXT}),
    ("[" + ", ".join(["context.xs"] * 60) + "]", {"xs": MANY}),
    ("{'a': context}", {"xs": [1] * 400_000}),
]  # fmt: skip


@pytest.fixture
def never_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        @staticmethod
        def Activation(_: Any) -> Any:
            raise AssertionError("it was evaluated")

        compile = staticmethod(expressions._environment.compile)

    monkeypatch.setattr(expressions, "_environment", Nothing)


@pytest.mark.usefixtures("never_evaluated")
@pytest.mark.parametrize(("text", "context"), BOMBS, ids=[text[:60] for text, _ in BOMBS])
def test_a_bomb_is_refused_before_it_is_evaluated(text: str, context: dict[str, Any]) -> None:
    with pytest.raises(ExpressionFailed, match=r"more than 2,000,000 steps.* is .* bytes"):
        compile_expression(text).run(Scope(context, {}, {}))


@pytest.mark.usefixtures("never_evaluated")
@pytest.mark.parametrize("root", ["context", "event", "state", "params"])
def test_every_variable_is_weighed(root: str) -> None:
    scope = Scope({}, {}, {})
    setattr(scope, root, {"xs": [1] * 200_000})
    with pytest.raises(ExpressionFailed, match=rf"{root}.xs is 200,000 items in 400,001 bytes"):
        compile_expression(f"{root}.xs.exists(x, x == 2)", named=True).run(scope)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("context.s.matches(context.p)", "as one constant text"),
        ("context.xs.all(x, 'a'.matches(x))", "as one constant text"),
        (r"context.s.matches(r'(\pL?){30}')", "repetitions written out"),
        (r"context.s.matches(r'[\pL]{2}')", "repetitions written out"),
        ("context.s.matches('((a?){40}b){60}')", "repetitions written out"),
        (r"context.s.matches(r'(\Q)\E(a{30}){30}){2}')", "repetitions written out"),
    ],
)
def test_a_pattern_that_could_take_long_is_refused_before_it_runs(text: str, words: str) -> None:
    with pytest.raises(BadExpression, match=words):
        compile_expression(text)


@pytest.mark.parametrize(
    ("text", "context", "expected"),
    [
        ("size(context.xs.filter(i, i.price > context.limit))", {"xs": [LINE] * 900, "limit": 11}, 900),
        ("context.xs.all(i, i.kind in context.kinds)", {"xs": [LINE] * 5_000, "kinds": ["w", "x"]}, True),
        ("context.xs.map(i, i.price)[899]", {"xs": [LINE] * 900}, 12),
        ("context.xs.all(i, i > context.low)", {"xs": MANY, "low": 0}, True),
        (
            "context.orders.all(o, o.lines.all(l, l.price <= o.limit))",
            {"orders": [{"limit": 20, "lines": [LINE] * 10}] * 100},
            True,
        ),
        ("context.xs.all(x, x.matches('^[^@]+@[^@]+$'))", {"xs": ["ada@example.com"] * 500}, True),
        ("size(context.s + context.s)", {"s": TEXT}, 1_000_000),
        ("size(context.xs)", {"xs": [LINE] * 10_000}, 10_000),
        ("context.n > 0 && has(context.xs)", {"xs": [1] * 500_000, "n": 1}, True),
    ],
)
def test_ordinary_expressions_are_not_in_the_way(text: str, context: dict[str, Any], expected: Any) -> None:
    assert compile_expression(text).run(Scope(context, {}, {})) == expected


def test_only_what_is_named_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[Any] = []
    real = expressions._environment

    class Watched:
        @staticmethod
        def Activation(data: Any) -> Any:
            handed.append(data)
            return real.Activation(data)

        compile = staticmethod(real.compile)

    monkeypatch.setattr(expressions, "_environment", Watched)
    program = compile_expression("context.a.b > 1 && has(event.rows) && has(event.o) && event.o.ok && !has(context.no)")
    assert isinstance(program, Cel)
    context = {"a": {"b": 2, "c": TEXT}, "xs": MANY}
    assert program.run(Scope(context, {"rows": MANY, "o": {"ok": True, "s": TEXT}}, {})) is True
    assert handed == [{"context": {"a": {"b": 2}}, "event": {"rows": [], "o": {"ok": True}}}]
