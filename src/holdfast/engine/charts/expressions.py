"""Expressions in charts: CEL, behind one small interface. No clock, no I/O, no way to run Python.

An expression sees `context`, `event` and `state`; inside a guard or action that is called by name with params, it
sees `params` too. Values go in as JSON and come out as JSON; what JSON cannot carry is an error, and an error is
never taken for false.

Whatever it is given, an expression ends soon and builds little: what the evaluator itself does not bound is refused
when a chart is published, or weighed against what it names just before it runs (see `_Scales`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec
from cel_expr_python import cel

TEXT_LIMIT = 4096  # characters of one expression
USES_LIMIT = 64  # how often one expression may name a variable: bounds what `+` can build
LOOP_DEPTH = 2
ROUNDS_LIMIT = 10_000  # of all its loops together; the evaluator stops there by itself
STEPS_LIMIT = 2_000_000  # of about 20 ns each: what one evaluation may take, estimated before it starts
PATTERN_LIMIT = 2_000  # characters of a pattern for matches(), with its repetitions written out
VARIABLES = ("context", "event", "state", "params")
LOOPS = frozenset(("all", "exists", "exists_one", "map", "filter"))


class BadExpression(Exception):
    """An expression that cannot be compiled; its text says where and why."""


class ExpressionFailed(Exception):
    """An expression that could not be evaluated on the values it met."""


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
_TOKEN = re.compile(
    r"""(?P<text>[bBrR]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>\d[\w.]*)|(?P<space>\s+|//[^\n]*)|(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


class Cel:
    """One compiled expression."""

    __slots__ = ("_compiled", "_heavy", "_named", "_tree", "_wanted", "text")

    def __init__(self, text: str, compiled: Any, tree: Node | None = None) -> None:
        self.text = text
        self._compiled = compiled
        self._tree = _tree(compiled) if tree is None else tree
        self._named = frozenset(_named(self._tree, frozenset()))
        self._wanted = _wanted(self._named)
        self._heavy = any(node.kind == "loop" or node.name == "matches" for node in _nodes(self._tree))

    def run(self, scope: Scope) -> Any:
        scales = _Scales({path: _resolved(scope, path) for path, whole in self._named if whole})
        if self._heavy or scales.handed > _LIGHT:
            scales.weigh(self._tree)
        # Only what it names is handed over: the library converts all it is given, a large context in 100 ms.
        data = {name: _cut(getattr(scope, name), wanted) for name, wanted in self._wanted.items()}
        try:
            value = self._compiled.eval(_environment.Activation(data))
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
    _check_bounds(text, named)
    try:
        compiled = _environment.compile(text)
    except Exception as error:
        raise BadExpression(_explained(str(error))) from None
    path = _path(text)
    if path is not None:
        return path
    tree = _tree(compiled)
    _check_patterns(tree)
    whole = Cel(text, compiled, tree)
    return _simple(text, whole) or whole


def returns(text: str) -> str:
    """What the checker says it evaluates to: BOOL, INT, DYN (not known before it is run) …"""
    return str(_environment.compile(text).return_type().name())


# -- bounds: what the evaluator itself does not limit


def _check_bounds(text: str, named: bool) -> None:
    """Refuse what could build more than it is given."""
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
                what = "loop"
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


# -- the tree of a compiled expression, with macros written out as loops


class Node(NamedTuple):
    kind: str  # constant, name, field, asked (has), call, made (a list or map), loop
    name: str = ""  # of the variable, field or function; of a constant its text
    parts: tuple[Node, ...] = ()  # of a loop: what it loops over, the start, the condition, each round, the result
    result: str = ""  # of a loop: the name under which it gathers


def _tree(compiled: Any) -> Node:
    [checked] = [found for tag, found in _fields(compiled.serialize()) if tag == 2]
    [root] = [found for tag, found in _fields(checked) if tag == 4]
    return _node(root)


def _node(raw: bytes) -> Node:
    """One `cel.expr.Expr`, read by the numbers of its fields: the schema is public and frozen."""
    for tag, body in _fields(raw):
        if tag == 3:
            return Node("constant", _text(body, 6))
        if tag == 4:
            return Node("name", _text(body, 1))
        if tag == 5:
            asked = any(number == 3 for number, _ in _fields(body))
            return Node("asked" if asked else "field", _text(body, 2), _parts(body, 1))
        if tag == 6:
            return Node("call", _text(body, 2), _parts(body, 1, 3))
        if tag == 7:
            return Node("made", "", _parts(body, 1))
        if tag == 8:
            entries = [entry for number, entry in _fields(body) if number == 2]
            return Node("made", "", tuple(part for entry in entries for part in _parts(entry, 3, 4)))
        if tag == 9:
            return Node("loop", _text(body, 1), _parts(body, 2, 4, 5, 6, 7), _text(body, 3))
    return Node("constant")  # a null, or the default value of a constant


def _parts(raw: bytes, *numbers: int) -> tuple[Node, ...]:
    return tuple(_node(found) for number, found in _fields(raw) if number in numbers)


def _text(raw: bytes, number: int) -> str:
    return "".join(found.decode() for tag, found in _fields(raw) if tag == number)


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message: (number, content); of numbers only that they are there."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(raw):
        tag = number()
        match tag & 7:
            case 0:
                number()
                yield tag >> 3, b""
            case 2:
                size = number()
                at += size
                yield tag >> 3, raw[at - size : at]
            case wire:
                at += {1: 8, 5: 4}[wire]
                yield tag >> 3, b""


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _nodes(part)


# -- what it names


def _place(node: Node, bound: frozenset[str]) -> tuple[str, ...] | None:
    """`context.a["b"]` as ("context", "a", "b"); None if it is not a path from a variable."""
    if node.kind == "name":
        name = node.name.removeprefix(".")
        return (name,) if name in VARIABLES and (name not in bound or name != node.name) else None
    if node.kind == "field":
        before = _place(node.parts[0], bound)
        return None if before is None else (*before, node.name)
    if node.kind == "call" and node.name == "_[_]" and node.parts[1].kind == "constant" and node.parts[1].name:
        before = _place(node.parts[0], bound)
        return None if before is None else (*before, node.parts[1].name)
    return None


def _named(node: Node, bound: frozenset[str]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Every path from a variable, and whether its value is wanted or only (`has`) that it is there."""
    place = _place(node, bound)
    if place is not None:
        yield place, True
        return
    if node.kind == "asked":
        before = _place(node.parts[0], bound)
        if before is not None:
            yield (*before, node.name), False
            return
    inner = bound | {node.name, node.result} if node.kind == "loop" else bound
    for n, part in enumerate(node.parts):
        yield from _named(part, bound if n == 0 else inner)


_ALL: dict[str, Any] = {"": ...}  # a mark, compared by identity: all of it is wanted
_THERE: dict[str, Any] = {}  # likewise: it is only asked whether it is there


def _wanted(named: frozenset[tuple[tuple[str, ...], bool]]) -> dict[str, Any]:
    """The paths as one tree: {"context": {"a": {"b": _ALL}}}."""
    wanted: dict[str, Any] = {}
    for path, whole in sorted(named):
        at = wanted
        for key in path[:-1]:
            if at.get(key) is None or at[key] is _THERE:
                at[key] = {}
            at = at[key]
            if at is _ALL:
                break
        else:
            if whole:
                at[path[-1]] = _ALL
            else:
                at.setdefault(path[-1], _THERE)
    return wanted


def _cut(value: Any, wanted: dict[str, Any]) -> Any:
    """Of a value what is wanted of it. Of what has no fields the kind is left, so that it fails as before."""
    if wanted is _ALL:
        return value
    if type(value) is dict:
        return {key: _cut(value[key], inner) for key, inner in wanted.items() if key in value}
    return value[:0] if isinstance(value, (str, list)) else value


def _resolved(scope: Scope, path: tuple[str, ...]) -> Any:
    value = getattr(scope, path[0])
    for key in path[1:]:
        if type(value) is not dict or key not in value:
            return None  # it fails there, at once
        value = value[key]
    return value


# -- weighing: what an evaluation takes at most, in steps of about 20 ns, from the sizes of what it names


class _Bulk(NamedTuple):
    """How large a value may be. A number weighs 1, a text 1 and 1 more per 16 bytes, a list what its items weigh."""

    most: float  # one such value
    items: float  # when it is looped over
    total: float  # all of them, over all rounds of the loops around it


class _Scales:
    """Every node costs a step per round, every call what its arguments weigh; handing a value over costs 8 times its
    weight, once each way. `map` and `filter` copy what they gathered in every round: n items cost n * n."""

    def __init__(self, named: dict[tuple[str, ...], Any]) -> None:
        self.named = named
        self.weights: dict[tuple[str, ...], float] = {}
        self.largest: dict[tuple[str, ...], float] = {}  # of their items
        self.handed = 0.0
        self.steps = 0.0
        self.depth = 0  # in how many loops the node stands that is being weighed
        for path, value in named.items():
            self.weights[path] = _weight(value)
            self.handed += self.weights[path]
            self.spend(8 * self.weights[path])

    def weigh(self, tree: Node) -> None:
        self.spend(8 * self.bulk(tree, 1, {}).most)

    def spend(self, steps: float) -> None:
        self.steps += steps
        if self.steps > STEPS_LIMIT:
            raise ExpressionFailed(
                f"it could take more than {STEPS_LIMIT:,} steps, which is the limit: {self._sizes()}; "
                "loop over less, name less inside the loop, or do it in a SYSTEM task"
            )

    def _sizes(self) -> str:
        largest = sorted(self.weights, key=lambda path: self.weights[path], reverse=True)[:3]
        return ", ".join(f"{'.'.join(path)} is {_size(self.named[path])}" for path in largest) or "it names nothing"

    def bulk(self, node: Node, rounds: float, bound: dict[str, tuple[_Bulk, int]]) -> _Bulk:
        """How large its value may be, if it is worked out so many times; what that takes is added to the steps."""
        self.spend(rounds)
        place = _place(node, frozenset(bound))
        if place is not None:
            weight, value = self.weights[place], self.named[place]
            return _Bulk(weight, len(value) if isinstance(value, (list, dict)) else 0, rounds * weight)
        match node.kind:
            case "constant":
                weight = 1 + len(node.name.encode()) / 16
                return _Bulk(weight, 0, rounds * weight)
            case "name":
                found, depth = bound.get(node.name, (_Bulk(1, 0, rounds), self.depth))
                return found if depth == self.depth else found._replace(total=rounds * found.most)
            case "loop":
                return self._loop(node, rounds, bound)
            case "asked":
                if _place(node.parts[0], frozenset(bound)) is None:
                    self.bulk(node.parts[0], rounds, bound)
                return _Bulk(1, 0, rounds)
            case "field":
                found = self.bulk(node.parts[0], rounds, bound)
                return found._replace(items=found.most)
        parts = [self.bulk(part, rounds, bound) for part in node.parts]
        self.spend(sum(part.total for part in parts))
        if node.name == "matches":
            self.spend(_written_out(node.parts[1].name) * (40 * rounds + 16 * parts[0].total))
        elif node.name == "_+_":  # it copies both sides
            self.spend(sum(part.total for part in parts))
        elif node.name == "contains":
            self.spend(parts[0].total * parts[-1].most / 4)
        if node.name in _SCALAR:
            return _Bulk(1, 0, rounds)
        most, items = 1 + sum(part.most for part in parts), sum(part.items for part in parts)
        if node.name == "_[_]":
            items = most
        elif node.kind == "made":
            items = len(parts)
        return _Bulk(most, items, rounds + sum(part.total for part in parts))

    def _loop(self, node: Node, rounds: float, bound: dict[str, tuple[_Bulk, int]]) -> _Bulk:
        over, start, condition, each, result = node.parts
        range_ = self.bulk(over, rounds, bound)
        self.bulk(start, rounds, bound)
        inside = min(ROUNDS_LIMIT, rounds * range_.items, range_.total)
        largest = self._largest(over, range_, bound)
        gathers = start.kind == "made"
        gathered = _Bulk(0, 0, 0) if gathers else _Bulk(1, 0, inside)
        self.depth += 1
        item = _Bulk(largest, largest, range_.total)
        within = bound | {node.name: (item, self.depth), node.result: (gathered, self.depth)}
        self.bulk(condition, inside, within)
        kept = self.bulk(each, inside, within)
        self.depth -= 1
        if gathers:
            items = min(ROUNDS_LIMIT, range_.items)
            self.spend(1.5 * inside * items)
            gathered = _Bulk(min(1 + kept.total, 1 + items * (1 + kept.most)), items, rounds + inside + kept.total)
        return self.bulk(result, rounds, bound | {node.result: (gathered, self.depth)})

    def _largest(self, over: Node, range_: _Bulk, bound: dict[str, tuple[_Bulk, int]]) -> float:
        place = _place(over, frozenset(bound))
        if place is None:
            return range_.most
        if place not in self.largest:
            value = self.named[place]
            few = isinstance(value, (list, dict)) and len(value) <= ROUNDS_LIMIT
            self.largest[place] = max(map(_weight, value), default=0) if few else range_.most
        return self.largest[place]


_LIGHT = 256  # weights up to this cannot come near the limit without a loop: at most 64 names, and calls for each
_SCALAR = frozenset((
    "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_&&_", "_||_", "!_", "-_", "_-_", "_*_", "_/_", "_%_", "@in",
    "size", "matches", "contains", "startsWith", "endsWith", "int", "uint", "double", "bool", "timestamp", "duration",
    "@not_strictly_false", "type",
))  # fmt: skip
_encode = msgspec.json.Encoder().encode


def _weight(value: Any) -> float:
    if value is None or isinstance(value, (bool, int, float)):
        return 1
    try:
        raw = _encode(value)
    except Exception as error:
        raise ExpressionFailed(f"it names what JSON cannot carry: {error}") from None
    if isinstance(value, str):
        return 1 + len(raw) / 16
    return 1 + raw.count(b",") + raw.count(b":") + raw.count(b"[") + raw.count(b"{") + len(raw) / 16


def _size(value: Any) -> str:
    held = f"{len(value):,} items in " if isinstance(value, (list, dict)) else ""
    return f"{held}{len(_encode(value)):,} bytes"


# -- patterns: RE2 takes at most time in proportion to text times pattern


def _check_patterns(tree: Node) -> None:
    for node in _nodes(tree):
        if node.kind == "call" and node.name == "matches":
            if node.parts[-1].kind != "constant":
                raise BadExpression("the pattern of matches(…) stands in the expression, as one constant text")
            size = _written_out(node.parts[-1].name)
            if size > PATTERN_LIMIT:
                raise BadExpression(
                    f"the pattern of matches(…) has {size:,} characters with its repetitions written out, the limit is "
                    f"{PATTERN_LIMIT:,}: repeat less often; \\p… counts as {_UNICODE:,}, [a-z] as five"
                )


_UNICODE = 2_600
_ATOM = re.compile(
    r"(?P<open>\()|(?P<close>\))|\{(?P<low>\d+)(?:,(?P<high>\d*))?\}|(?P<unicode>\\[pP](?:\{[^}]*\}|.))"
    r"|(?P<quote>\\Q)|(?P<class>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\])|(?P<one>\\.|.)",
    re.DOTALL,
)


def _written_out(pattern: str) -> int:
    """How many characters it has when x{3} is written xxx."""
    groups: list[list[int]] = [[]]
    for found in _ATOM.finditer(pattern):
        atoms = groups[-1]
        match found.lastgroup:
            case "open":
                groups.append([1])
            case "close":
                if len(groups) > 1:
                    inner = sum(groups.pop())
                    groups[-1].append(inner + 1)
            case "low" | "high":
                if atoms:
                    atoms[-1] *= max(1, int(found["low"]), int(found["high"] or 0))
            case "quote":
                return PATTERN_LIMIT + len(pattern)  # \Q…\E would hide brackets from us
            case "unicode":
                atoms.append(_UNICODE)
            case _:
                atoms.append(len(found[0]) + _UNICODE * len(re.findall(r"\\[pP]", found[0])))
    return sum(sum(group) for group in groups)


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
