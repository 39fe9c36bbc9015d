"""The tree of a compiled expression, with macros written out as loops, and which parts of its variables it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

VARIABLES = ("context", "event", "state", "params")


class Node(NamedTuple):
    kind: str  # constant, name, field, asked (has), call, made (a list or map), loop
    name: str = ""  # of the variable, field or function; of a constant its text
    parts: tuple[Node, ...] = ()  # of a loop: what it loops over, the start, the condition, each round, the result
    result: str = ""  # of a loop: the name under which it gathers


def tree_of(compiled: Any) -> Node:
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


def nodes_of(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from nodes_of(part)


# -- what it names


def place_of(node: Node, bound: frozenset[str]) -> tuple[str, ...] | None:
    """`context.a["b"]` as ("context", "a", "b"); None if it is not a path from a variable."""
    if node.kind == "name":
        name = node.name.removeprefix(".")
        return (name,) if name in VARIABLES and (name not in bound or name != node.name) else None
    if node.kind == "field":
        before = place_of(node.parts[0], bound)
        return None if before is None else (*before, node.name)
    if node.kind == "call" and node.name == "_[_]" and node.parts[1].kind == "constant" and node.parts[1].name:
        before = place_of(node.parts[0], bound)
        return None if before is None else (*before, node.parts[1].name)
    return None


def named_paths(node: Node, bound: frozenset[str]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Every path from a variable, and whether its value is wanted or only (`has`) that it is there."""
    place = place_of(node, bound)
    if place is not None:
        yield place, True
        return
    if node.kind == "asked":
        before = place_of(node.parts[0], bound)
        if before is not None:
            yield (*before, node.name), False
            return
    inner = bound | {node.name, node.result} if node.kind == "loop" else bound
    for n, part in enumerate(node.parts):
        yield from named_paths(part, bound if n == 0 else inner)


_ALL: dict[str, Any] = {"": ...}  # a mark, compared by identity: all of it is wanted
_THERE: dict[str, Any] = {}  # likewise: it is only asked whether it is there


def wanted_parts(named: frozenset[tuple[tuple[str, ...], bool]]) -> dict[str, Any]:
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


def cut(value: Any, wanted: dict[str, Any]) -> Any:
    """Of a value what is wanted of it. Of what has no fields the kind is left, so that it fails as before."""
    if wanted is _ALL:
        return value
    if type(value) is dict:
        return {key: cut(value[key], inner) for key, inner in wanted.items() if key in value}
    return value[:0] if isinstance(value, (str, list)) else value
