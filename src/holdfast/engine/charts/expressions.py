"""Expressions in charts: CEL, behind one small interface. No clock, no I/O, no way to run Python.

An expression sees `context`, `event` and `state`; inside a guard or action that is called by name with params, it
sees `params` too. Values go in as JSON and come out as JSON; what JSON cannot carry is an error, and an error is
never taken for false.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Protocol

from cel_expr_python import cel

from holdfast.engine import codec

TEXT_LIMIT = 4096  # characters of one expression
USES_LIMIT = 64  # how often one expression may name a variable: bounds what `+` can build
LOOP_DEPTH = 2
LOOP_DATA_LIMIT = 64 * 1024  # bytes of JSON that an expression with a loop may look at
VARIABLES = ("context", "event", "state", "params")
LOOPS = frozenset(("all", "exists", "exists_one", "map", "filter"))


class BadExpression(Exception):
    """An expression that cannot be compiled; its text says where and why."""


class ExpressionFailed(Exception):
    """An expression that could not be evaluated on the values it met."""


class Scope:
    """What an expression sees. `context` moves on with every assign; the rest stays for one microstep."""

    __slots__ = ("_activations", "_for", "context", "event", "params", "state")

    def __init__(self, context: dict[str, Any], event: dict[str, Any], state: dict[str, Any]) -> None:
        self.context = context
        self.event = event
        self.state = state
        self.params: Any = None
        self._for: tuple[Any, ...] = ()
        self._activations: Any = None

    def activation(self) -> Any:
        """The values as the evaluator wants them, converted once for all expressions that see the same."""
        seen = (self.context, self.event, self.state, self.params)
        if len(self._for) != 4 or any(a is not b for a, b in zip(seen, self._for, strict=True)):
            self._activations = _environment.Activation(
                {"context": self.context, "event": self.event, "state": self.state, "params": self.params}
            )
            self._for = seen
        return self._activations


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
_TOKEN = re.compile(
    r"""(?P<text>[bBrR]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>\d[\w.]*)|(?P<space>\s+|//[^\n]*)|(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


class Cel:
    """One compiled expression."""

    __slots__ = ("_compiled", "loops", "text")

    def __init__(self, text: str, compiled: Any, loops: bool) -> None:
        self.text = text
        self.loops = loops
        self._compiled = compiled

    def run(self, scope: Scope) -> Any:
        if self.loops:
            _check_size(scope)
        try:
            value = self._compiled.eval(scope.activation())
        except Exception as error:
            raise ExpressionFailed(_explained(str(error))) from None
        if value.type() == _ERROR:
            raise ExpressionFailed(_explained(str(value.plain_value())))
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
                raise ExpressionFailed(f"{key!r} is asked of {_kind(value)}, which has no fields")
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
        raise BadExpression(f"expected a CEL expression as text, found {_kind(text)}")
    if len(text) > TEXT_LIMIT:
        raise BadExpression(f"it has {len(text):,} characters, the limit is {TEXT_LIMIT:,}: split it up")
    loops = _check_bounds(text, named)
    try:
        compiled = _environment.compile(text)
    except Exception as error:
        raise BadExpression(_explained(str(error))) from None
    path = _path(text)
    if path is not None:
        return path
    whole = Cel(text, compiled, loops)
    return _simple(text, whole) or whole


def returns(text: str) -> str:
    """What the checker says it evaluates to: BOOL, INT, DYN (not known before it is run) …"""
    return str(_environment.compile(text).return_type().name())


# -- bounds: what the evaluator itself does not limit


def _check_bounds(text: str, named: bool) -> bool:
    """Refuse what could build more than it is given. True if it loops."""
    tokens = [(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(text) if m.lastgroup != "space"]
    uses = sum(
        1 for n, (kind, word) in enumerate(tokens)
        if kind == "name" and word in VARIABLES and (n == 0 or tokens[n - 1][1] != ".")
    )  # fmt: skip
    if uses > USES_LIMIT:
        raise BadExpression(f"it names variables {uses} times, the limit is {USES_LIMIT}: split it up with assign")
    if not named and any(
        kind == "name" and word == "params" and (n == 0 or tokens[n - 1][1] != ".")
        for n, (kind, word) in enumerate(tokens)
    ):
        raise BadExpression("`params` is only there inside a named guard or action that is called with params")
    open_: list[tuple[str, bool]] = []  # every bracket that is open: "loop" | "literal" | "other"; seen its comma
    loops = False
    for n, (kind, word) in enumerate(tokens):
        before = tokens[n - 1] if n else ("mark", "")
        inside = any(what == "loop" and comma for what, comma in open_)
        if kind == "name":
            if any(what == "literal" for what, _ in open_) and inside and word not in ("true", "false", "null"):
                raise BadExpression("a list or map made inside a loop may hold constants only")
            if inside and word in ("bytes", "string") and n + 1 < len(tokens) and tokens[n + 1][1] == "(":
                raise BadExpression(f"{word}(…) inside a loop could build too much: do it outside")
        if kind != "mark":
            continue
        if word == "+" and inside:
            raise BadExpression("`+` inside a loop could build too much: use -, or add outside the loop")
        if word in "([{":
            what = "other"
            if word == "(" and before[1] in LOOPS and n >= 2 and tokens[n - 2][1] == ".":
                what, loops = "loop", True
                if sum(1 for w, _ in open_ if w == "loop") >= LOOP_DEPTH:
                    raise BadExpression(f"loops stand inside each other more than {LOOP_DEPTH} deep")
            elif word == "{" or (
                word == "[" and before[0] not in ("name", "text") and before[1] not in (")", "]", "}")
            ):
                what = "literal"
            open_.append((what, False))
        elif word in ")]}" and open_:
            open_.pop()
        elif word == "," and open_ and open_[-1][0] == "loop":
            open_[-1] = ("loop", True)
    return loops


def _check_size(scope: Scope) -> None:
    size = len(codec.encode(scope.context)) + len(codec.encode(scope.event))
    if size > LOOP_DATA_LIMIT:
        raise ExpressionFailed(
            f"it loops, and the context and event it sees hold {size:,} bytes: the limit is {LOOP_DATA_LIMIT:,}"
        )


# -- words


def _explained(text: str) -> str:
    text = re.sub(r"\s+", " ", text.replace("INVALID_ARGUMENT: ", "").replace("[INVALID_ARGUMENT]", "")).strip()
    text = re.sub(r"^(?:UNKNOWN|NOT_FOUND|INTERNAL|CANCELLED|OUT_OF_RANGE): ", "", text)
    if "overload" in text and ("double" in text and "int" in text):
        text += " (CEL does not mix int and double: write 1.0 for a double, or double(…))"
    elif "overload" in text and "null" in text:
        text += " (CEL does not compare null with < or >: ask `x != null` first)"
    elif "Key not found" in text:
        text += " (has(…) tells beforehand)"
    return text[:500]


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "a bool", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}.get(
        type(value), type(value).__name__
    )


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
