"""Expressions in charts: CEL, behind one small interface. No clock, no I/O, no way to run Python.

An expression sees `context`, `event` and `state`; inside a guard or action that is called by name with params, it
sees `params` too. Values go in as JSON and come out as JSON; what JSON cannot carry is an error, and an error is
never taken for false.

Whatever it is given, an expression ends soon and builds little: what the evaluator itself does not bound is refused
when a chart is published (`expression_bounds.py`, `expression_patterns.py`), or weighed against what it names just
before it runs (`expression_costs.py`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Protocol

from cel_expr_python import cel

from holdfast.engine.charts.expression_bounds import check_bounds
from holdfast.engine.charts.expression_costs import LIGHT, Scales
from holdfast.engine.charts.expression_patterns import check_patterns
from holdfast.engine.charts.expression_trees import Node, cut, named_paths, nodes_of, tree_of, wanted_parts
from holdfast.engine.charts.expression_words import BadExpression, ExpressionFailed, explained, kind_of

__all__ = [
    "BadExpression", "Cel", "ExpressionFailed", "Path", "Program", "Scope", "Simple", "compile_expression", "returns",
]  # fmt: skip


class Scope:
    """What an expression sees. `context` moves on with every assign; the rest stays for one microstep."""

    __slots__ = ("context", "event", "params", "state")

    def __init__(self, context: dict[str, Any], event: dict[str, Any], state: dict[str, Any]) -> None:
        self.context = context
        self.event = event
        self.state = state
        self.params: Any = None


class Program(Protocol):
    text: str

    def run(self, scope: Scope) -> Any: ...


_values = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
_environment = cel.NewEnv(variables={"context": _values, "event": _values, "state": _values, "params": cel.Type.DYN})
_ERROR = cel.Type.ERROR
_PATH = re.compile(r"(context|event)((?:\.[A-Za-z_][A-Za-z0-9_]*)+)\Z")
_RESERVED = frozenset((
    "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop", "null",
    "namespace", "package", "return", "true", "var", "void", "while",
))  # fmt: skip


class Cel:
    """One compiled expression."""

    __slots__ = ("_compiled", "_heavy", "_named", "_tree", "_wanted", "text")

    def __init__(self, text: str, compiled: Any, tree: Node | None = None) -> None:
        self.text = text
        self._compiled = compiled
        self._tree = tree_of(compiled) if tree is None else tree
        self._named = frozenset(named_paths(self._tree, frozenset()))
        self._wanted = wanted_parts(self._named)
        self._heavy = any(node.kind == "loop" or node.name == "matches" for node in nodes_of(self._tree))

    def run(self, scope: Scope) -> Any:
        scales = Scales({path: _resolved(scope, path) for path, whole in self._named if whole})
        if self._heavy or scales.handed > LIGHT:
            scales.weigh(self._tree)
        # Only what it names is handed over: the library converts all it is given, a large context in 100 ms.
        data = {name: cut(getattr(scope, name), wanted) for name, wanted in self._wanted.items()}
        try:
            value = self._compiled.eval(_environment.Activation(data))
        except Exception as error:
            raise ExpressionFailed(explained(str(error))) from None
        if value.type() == _ERROR:
            raise ExpressionFailed(explained(str(value.plain_value())))
        return _json(value.plain_value())


class Path:
    """`context.a.b`: what most values are, looked up without a detour."""

    __slots__ = ("_first", "_keys", "text")

    def __init__(self, text: str, first: str, keys: tuple[str, ...]) -> None:
        self.text = text
        self._first = first
        self._keys = keys

    @property
    def place(self) -> tuple[str, tuple[str, ...]]:
        return self._first, self._keys

    def run(self, scope: Scope) -> Any:
        value: Any = scope.context if self._first == "context" else scope.event
        for key in self._keys:
            if type(value) is not dict:
                raise ExpressionFailed(f"{key!r} is asked of {kind_of(value)}, which has no fields")
            if key not in value:
                raise ExpressionFailed(f"there is no {key!r} there (has(…) tells beforehand)")
            value = value[key]
        return value


class Simple:
    """`context.n >= 10`, `event.kind == "x"`, `context.n + 1`: worked out here where both sides are whole numbers or
    both are texts, which Python and CEL read alike; anything else goes to CEL."""

    __slots__ = ("_apply", "_first", "_keys", "_literal", "_whole", "text")

    def __init__(self, text: str, path: Path, sign: str, literal: int | str, whole: Cel) -> None:
        self.text = text
        self._first, self._keys = path.place
        self._apply = _OPERATORS[sign]
        self._literal = literal
        self._whole = whole

    def run(self, scope: Scope) -> Any:
        value: Any = scope.context if self._first == "context" else scope.event
        for key in self._keys:
            if type(value) is not dict or key not in value:
                return self._whole.run(scope)
            value = value[key]
        literal = self._literal
        if type(value) is not type(literal) or (type(value) is int and not -_SAFE < value < _SAFE):
            return self._whole.run(scope)
        return self._apply(value, literal)


_SAFE = 1 << 62  # no sum of two of these leaves CEL's 64 bits
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "+": operator.add, "-": operator.sub,
}  # fmt: skip
_SIMPLE = re.compile(
    r"((?:context|event)(?:\.[A-Za-z_][A-Za-z0-9_]*)+)\s*(==|!=|<=|>=|<|>|\+|-)\s*(?:(\d{1,15})|'([^'\\\n]*)'|\"([^\"\\\n]*)\")\Z"
)


def _simple(text: str, whole: Cel) -> Simple | None:
    found = _SIMPLE.match(text.strip())
    if found is None:
        return None
    path = _path(found[1])
    literal: int | str = int(found[3]) if found[3] is not None else found[4] if found[4] is not None else found[5]
    order = found[2] in ("<", "<=", ">", ">=", "-")
    if path is None or (isinstance(literal, str) and order):  # CEL and Python order texts differently
        return None
    return Simple(text, path, found[2], literal, whole)


def _path(text: str) -> Path | None:
    found = _PATH.match(text.strip())
    if found is None:
        return None
    keys = tuple(found[2][1:].split("."))
    return None if _RESERVED.intersection(keys) else Path(text, found[1], keys)


def compile_expression(text: Any, *, named: bool = False) -> Program:
    """`named`: inside a named guard or action, where `params` is visible."""
    if not isinstance(text, str) or not text.strip():
        raise BadExpression(f"expected a CEL expression as text, found {kind_of(text)}")
    check_bounds(text, named)
    try:
        compiled = _environment.compile(text)
    except Exception as error:
        raise BadExpression(explained(str(error))) from None
    path = _path(text)
    if path is not None:
        return path
    tree = tree_of(compiled)
    check_patterns(tree)
    whole = Cel(text, compiled, tree)
    return _simple(text, whole) or whole


def returns(text: str) -> str:
    """What the checker says it evaluates to: BOOL, INT, DYN (not known before it is run) …"""
    return str(_environment.compile(text).return_type().name())


def _resolved(scope: Scope, path: tuple[str, ...]) -> Any:
    value = getattr(scope, path[0])
    for key in path[1:]:
        if type(value) is not dict or key not in value:
            return None  # it fails there, at once
        value = value[key]
    return value


def _json(value: Any) -> Any:
    """A result as JSON carries it."""
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is str:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ExpressionFailed(f"the result is {value}, which JSON cannot carry")
        return value
    if kind is list:
        return [_json(item) for item in value]
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise ExpressionFailed(f"the result has the key {key!r}: JSON has texts as keys only")
        return {key: _json(item) for key, item in value.items()}
    raise ExpressionFailed(f"the result is a {kind.__name__}, which JSON cannot carry: make it a text with string(…)")
