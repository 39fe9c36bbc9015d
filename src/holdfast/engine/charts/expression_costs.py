"""Weighs what an evaluation takes at most, in steps of about 20 ns, from the sizes of the values it names."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from holdfast.engine.charts.expression_patterns import written_out
from holdfast.engine.charts.expression_trees import Node, place_of
from holdfast.engine.charts.expression_words import ExpressionFailed

ROUNDS_LIMIT = 10_000  # of all its loops together; the evaluator stops there by itself
STEPS_LIMIT = 2_000_000  # of about 20 ns each: what one evaluation may take, estimated before it starts
LIGHT = 256  # weights up to this cannot come near the limit without a loop: at most 64 names, and calls for each
_SCALAR = frozenset((
    "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_&&_", "_||_", "!_", "-_", "_-_", "_*_", "_/_", "_%_", "@in",
    "size", "matches", "contains", "startsWith", "endsWith", "int", "uint", "double", "bool", "timestamp", "duration",
    "@not_strictly_false", "type",
))  # fmt: skip
_encode = msgspec.json.Encoder().encode


class _Bulk(NamedTuple):
    """How large a value may be. A number weighs 1, a text 1 and 1 more per 16 bytes, a list what its items weigh."""

    most: float  # one such value
    items: float  # when it is looped over
    total: float  # all of them, over all rounds of the loops around it


class Scales:
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
        place = place_of(node, frozenset(bound))
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
                if place_of(node.parts[0], frozenset(bound)) is None:
                    self.bulk(node.parts[0], rounds, bound)
                return _Bulk(1, 0, rounds)
            case "field":
                found = self.bulk(node.parts[0], rounds, bound)
                return found._replace(items=found.most)
        parts = [self.bulk(part, rounds, bound) for part in node.parts]
        self.spend(sum(part.total for part in parts))
        if node.name == "matches":
            self.spend(written_out(node.parts[1].name) * (40 * rounds + 16 * parts[0].total))
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
        place = place_of(over, frozenset(bound))
        if place is None:
            return range_.most
        if place not in self.largest:
            value = self.named[place]
            few = isinstance(value, (list, dict)) and len(value) <= ROUNDS_LIMIT
            self.largest[place] = max(map(_weight, value), default=0) if few else range_.most
        return self.largest[place]


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
