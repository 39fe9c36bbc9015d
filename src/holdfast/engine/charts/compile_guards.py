"""Compiles guards, and finds the states and the named things that a chart speaks of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from holdfast.engine.charts.compile_values import ValueCompiler
from holdfast.engine.charts.document import escaped, found
from holdfast.engine.charts.expressions import returns
from holdfast.engine.charts.nodes import (
    All,
    AnyOf,
    Computed,
    ExpressionGuard,
    Guard,
    NamedGuard,
    Node,
    Not,
    StateIn,
    Value,
)

WEIGHT_LIMIT = 1_000  # conditions one guard, or actions one list, may come to when all names are followed
LEVELS_LIMIT = 120  # of guards within guards, or actions within actions, when all names are followed


class GuardCompiler(ValueCompiler):
    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.nodes: list[Node] = []
        self.by_id: dict[str, Node] = {}
        self.guards: dict[str, Any] = {}
        self.building: list[str] = []  # named guards and actions being looked into
        self.made: dict[str, Any] = {}
        self.heights: dict[str, int] = {}  # how many levels what stands under a name comes to
        self.level = 0
        self.height = 0  # of what was compiled so far on this level

    def _find(self, node: Node, word: Any, path: str, *, below: bool = False) -> Node | None:
        """`below`: the word is looked up inside `node`, as a history state's default is."""
        if not isinstance(word, str) or not word:
            self.problem(path, f"expected the name of a state, found {found(word)}")
            return None
        if word.startswith("#"):
            id_, _, rest = word[1:].partition(".")
            start = self.by_id.get(id_)
            if start is None:
                # Generated ids hold dots themselves.
                start, rest = self.by_id.get(word[1:]), ""
            if start is None:
                self.problem(path, f"no state has the id {id_!r}")
                return None
        elif word.startswith("."):
            start, rest = node, word[1:]
        elif below:
            start, rest = node, word
        elif node.parent is None:
            self.problem(path, f"from the chart itself write .{word} or #id, not {word!r}")
            return None
        else:
            start, rest = node.parent, word
        for key in rest.split(".") if rest else []:
            inner = start.states.get(key)
            if inner is None:
                names = ", ".join(list(start.states)[:8]) or "none"
                self.problem(path, f"{start!r} has no state {key!r} inside (it has: {names})")
                return None
            start = inner
        return start

    def _named(self, word: str, path: str, build: Callable[[], Any]) -> Any:
        """What stands under a name, built once. `path` is where it is asked for."""
        if word in self.building:
            self.problem(path, f"{word} leads back to itself: {' → '.join([*self.building, word])}")
            return None
        if word not in self.made:
            self.building.append(word)
            outer, self.height = self.height, 0
            self.made[word] = build()
            self.heights[word], self.height = self.height, outer
            self.building.pop()
        self.height = max(self.height, self.heights[word])
        if self.level + self.heights[word] > LEVELS_LIMIT:
            self._too_deep(path)
            return None
        return self.made[word]

    @contextmanager
    def _level(self, path: str) -> Iterator[bool]:
        """One level further in; whether there is room for it. Whoever follows it later does so by recursion too."""
        self.level += 1
        outer, self.height = self.height, 0
        if self.level > LEVELS_LIMIT:
            self._too_deep(path)
        yield self.level <= LEVELS_LIMIT
        self.height = max(outer, self.height + 1)
        self.level -= 1

    def _too_deep(self, path: str) -> None:
        self.problem(path, f"this leads deeper than {LEVELS_LIMIT} levels when all names are followed")

    # -- guards

    def _guard(self, given: Any, path: str, *, named: bool = False) -> Guard | None:
        with self._level(path) as room:
            return self._guard_inside(given, path, named) if room else None

    def _guard_inside(self, given: Any, path: str, named: bool) -> Guard | None:
        if isinstance(given, str):
            return self._guard_by_name(given, None, path)
        if not isinstance(given, dict):
            self.problem(path, f"expected a name of `guards` or a guard (an object), found {found(given)}")
            return None
        if "@expr" in given:
            value = self._value(given, path, named=named)
            if not isinstance(value, Computed):
                return None
            kind = returns(value.program.text)
            if kind not in ("BOOL", "DYN"):
                self.problem(path, f"the guard `{value.program.text}` gives {kind.lower()}: expected true or false")
            return ExpressionGuard(value)
        if "type" in given:
            self._keys(given, frozenset(("type", "params")), path)
            params = self._value(given["params"], f"{path}/params", named=named) if "params" in given else None
            return self._guard_by_name(given["type"], params, f"{path}/type")
        if len(given) != 1 or next(iter(given)) not in ("and", "or", "not", "stateIn"):
            self.problem(path, 'expected {"@expr": …}, {"type": …} or one of and, or, not, stateIn')
            return None
        [(word, inner)] = given.items()
        if word == "not":
            guard = self._guard(inner, f"{path}/not", named=named)
            return None if guard is None else Not(guard)
        if word == "stateIn":
            nodes = self._state_in(inner, f"{path}/stateIn")
            return StateIn(nodes)
        if not isinstance(inner, list) or not inner:
            self.problem(f"{path}/{word}", f"expected a list of guards, found {found(inner)}")
            return None
        guards = [self._guard(one, f"{path}/{word}/{n}", named=named) for n, one in enumerate(inner)]
        parts = [guard for guard in guards if guard is not None]
        if sum(guard.weight for guard in parts) > WEIGHT_LIMIT:
            self.problem(path, f"the guard comes to more than {WEIGHT_LIMIT:,} conditions, which is the limit")
            return None
        return All(parts) if word == "and" else AnyOf(parts)

    def _guard_by_name(self, name: Any, params: Value | None, path: str) -> Guard | None:
        if not isinstance(name, str) or name not in self.guards:
            names = ", ".join(islice(self.guards, 8)) or "none"
            self.problem(path, f"{name!r} is not in the chart's `guards` (it has: {names})")
            return None
        guard: Guard | None = self._named(
            f"guard {name}", path, lambda: self._guard(self.guards[name], f"/guards/{escaped(name)}", named=True)
        )
        return None if guard is None else NamedGuard(name, guard, params)

    def _state_in(self, given: Any, path: str) -> list[Node]:
        if isinstance(given, str):
            node = self._find(self.nodes[0], given, path, below=True)
            return [node] if node is not None else []
        if not isinstance(given, dict) or not given:
            self.problem(path, f"expected a state's path, #id or an object of these, found {found(given)}")
            return []
        return self._state_in_object(self.nodes[0], given, path)

    def _state_in_object(self, node: Node, given: dict[str, Any], path: str) -> list[Node]:
        made: list[Node] = []
        for key, inner in given.items():
            place = f"{path}/{escaped(key)}"
            child = self._find(node, key, place, below=True)
            if child is None:
                continue
            if isinstance(inner, str):
                leaf = self._find(child, inner, place, below=True)
                made += [leaf] if leaf is not None else []
            elif isinstance(inner, dict):
                made += [child, *self._state_in_object(child, inner, place)]
            else:
                self.problem(place, f"expected a state's name or an object, found {found(inner)}")
        return made
