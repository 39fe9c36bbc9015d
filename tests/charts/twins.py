"""Random expressions, each written twice: in CEL for our interpreter, in JavaScript for XState.

None may fail to evaluate, and both must mean the same: fields that may be missing are asked for with has(), integers
stay small and are never divided, and what has no fixed type (outputs, the state's value) is compared or passed whole.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

PARAMS = {"p": "int", "q": "bool", "w": "text"}


class Expr(NamedTuple):
    cel: str
    js: str


class Scope(NamedTuple):
    """What an expression may mention beside context and event."""

    params: tuple[str, ...] = ()
    state: bool = True


def same(text: str) -> Expr:
    return Expr(text, text)


def joined(left: Expr, operator: str, right: Expr) -> Expr:
    in_js = {"==": "===", "!=": "!=="}.get(operator, operator)
    return Expr(f"({left.cel} {operator} {right.cel})", f"({left.js} {in_js} {right.js})")


def either(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return Expr(
        f"({condition.cel} ? {yes.cel} : {no.cel})",
        f"({condition.js} ? {yes.js} : {no.js})",
    )


def has(name: str) -> Expr:
    # Not JavaScript's `in`: XState's done events have an `output` that is there and undefined.
    return Expr(f"has({name})", f"({name} !== undefined)")


def value(expression: Expr) -> dict[str, Any]:
    return {"@expr": expression.cel, "@js": expression.js}


class ExpressionWriter:
    """Knows the variables: integers n and k, flag f, text s, anything o; event fields v, flag, name; params p, q, w."""

    def __init__(self, random: Random, events: list[str]) -> None:
        self.random = random
        self.events = events
        self.top_states: list[str] = []

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def integer(self, scope: Scope, depth: int = 1) -> Expr:
        kinds = ["literal", "context", "context", "event"]
        if "p" in scope.params:
            kinds += ["params"] * 3
        if depth:
            kinds += ["sum", "sum", "either"]
        match self.random.choice(kinds):
            case "literal":
                return same(str(self.random.randint(0, 6)))
            case "context":
                return same(f"context.{self.random.choice('nk')}")
            case "event":
                return either(has("event.v"), same("event.v"), same(str(self.random.randint(0, 3))))
            case "params":
                return same("params.p")
            case "either":
                return either(
                    self.truth(scope, depth - 1), self.integer(scope, depth - 1), self.integer(scope, depth - 1)
                )
            case _:
                return joined(
                    joined(self.integer(scope, depth - 1), "+", self.integer(scope, depth - 1)), "%", same("7")
                )

    def text(self, scope: Scope) -> Expr:
        kinds = ["literal", "context", "grow", "event", "type"]
        if "w" in scope.params:
            kinds += ["params"] * 3
        match self.random.choice(kinds):
            case "literal":
                return same(f'"{self.random.choice(("x", "yes", "no", ""))}"')
            case "context":
                return same("context.s")
            case "grow":
                long = Expr("(size(context.s) > 3)", "(context.s.length > 3)")
                return either(long, same('"x"'), same('(context.s + "y")'))
            case "event":
                return either(has("event.name"), same("event.name"), same("context.s"))
            case "type":
                return same("event.type")
            case _:
                return same("params.w")

    def truth(self, scope: Scope, depth: int = 1) -> Expr:
        kinds = ["flag", "compare", "compare", "text", "event", "type", "has"]
        if scope.state:
            kinds += ["state"]
        if "q" in scope.params:
            kinds += ["params"] * 3
        if depth:
            kinds += ["both", "either", "not"]
        match self.random.choice(kinds):
            case "flag":
                return same("context.f")
            case "compare":
                operator = self.random.choice(("<", "<=", ">", ">=", "==", "!="))
                return joined(self.integer(scope, max(depth - 1, 0)), operator, same(str(self.random.randint(0, 6))))
            case "text":
                return joined(same("context.s"), self.random.choice(("==", "!=")), self.text(scope))
            case "event":
                return joined(has("event.flag"), "&&", same("event.flag"))
            case "type":
                return joined(same("event.type"), "!=", same(f'"{self.random.choice(self.events)}"'))
            case "has":
                return has("event.v")
            case "state":
                key = self.random.choice(self.top_states)
                return joined(same("state.value"), self.random.choice(("==", "!=")), same(f'"{key}"'))
            case "params":
                return same("params.q")
            case "not":
                inner = self.truth(scope, depth - 1)
                return Expr(f"!({inner.cel})", f"!({inner.js})")
            case kind:
                operator = "&&" if kind == "both" else "||"
                return joined(self.truth(scope, depth - 1), operator, self.truth(scope, depth - 1))

    def some(self, kind: str, scope: Scope) -> Any:
        """A literal or an expression of that kind."""
        if self.chance(0.3):
            match kind:
                case "int":
                    return self.random.randint(0, 6)
                case "bool":
                    return self.chance(0.5)
                case _:
                    return self.random.choice(("x", "yes", "no"))
        match kind:
            case "int":
                return value(self.integer(scope))
            case "bool":
                return value(self.truth(scope))
            case _:
                return value(self.text(scope))

    def anything(self, scope: Scope) -> Any:
        """A value for params, input and output: sometimes nested, sometimes falsy."""
        match self.random.randrange(8):
            case 0:
                return {"r": self.some("int", scope), "deep": {"list": [self.some("text", scope), 1, True]}}
            case 1:
                return value(either(has("event.output"), same("event.output"), same("context.o")))
            case 2:
                return self.random.choice((0, False, "", 5, []))
            case 3 if scope.state:
                return value(same("state.value"))
            case 4:
                return self.some("bool", scope)
            case 5:
                return self.some("text", scope)
            case _:
                return self.some("int", scope)
