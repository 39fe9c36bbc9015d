"""Compiles values: JSON in which expressions may stand, and spans of time. Every fault is kept with its path.

It must not know what values are for; guards and actions are built on it.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.engine.charts import document as doc
from holdfast.engine.charts.document import Problem, escaped, found
from holdfast.engine.charts.expressions import BadExpression, compile_expression
from holdfast.engine.charts.nodes import Computed, ComputedForTask, Constant, ListOf, ObjectOf, Value
from holdfast.engine.spans import span

EXPRESSIONS_LIMIT = 5_000
EVENT = re.compile(r"[^\x00-\x1f\x7f]{1,200}\Z")


class ValueCompiler:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.delays: dict[str, Value] = {}
        self.expressions = 0
        self.in_task = False

    def problem(self, path: str, message: str) -> None:
        if len(self.problems) < doc.ERRORS_MAX:
            self.problems.append(Problem(path, message))

    def _keys(self, given: dict[str, Any], known: frozenset[str], path: str) -> None:
        for key in given:
            if key not in known:
                near = [k for k in sorted(known) if k.lower() == key.lower() or k.startswith(key[:4])][:3]
                hint = f" (did you mean {' or '.join(near)}?)" if near else ""
                self.problem(f"{path}/{escaped(key)}", f"{key!r} is not known here{hint}")

    def _value(self, given: Any, path: str, *, named: bool = False, literal: frozenset[str] = frozenset()) -> Value:
        if isinstance(given, dict):
            if "@expr" in given:
                return self._expression(given, path, named)
            if "@lang" in given:
                self.problem(f"{path}/@lang", "@lang goes with @expr")
            items = {
                key: Constant(item) if key in literal else self._value(item, f"{path}/{escaped(key)}", named=named)
                for key, item in given.items()
            }
            if all(item.constant for item in items.values()):
                return Constant(given)
            return ObjectOf(items)
        if isinstance(given, list):
            parts = [self._value(item, f"{path}/{n}", named=named) for n, item in enumerate(given)]
            if all(item.constant for item in parts):
                return Constant(given)
            return ListOf(parts)
        return Constant(given)

    def _expression(self, given: dict[str, Any], path: str, named: bool) -> Value:
        self._keys(given, frozenset(("@expr", "@lang")), path)
        if given.get("@lang", "cel") != "cel":
            self.problem(f"{path}/@lang", f'expected "cel", found {found(given["@lang"])}')
        self.expressions += 1
        if self.expressions == EXPRESSIONS_LIMIT + 1:
            self.problem("", f"the chart has more than {EXPRESSIONS_LIMIT:,} expressions, which is the limit")
        if self.expressions > EXPRESSIONS_LIMIT:
            return Constant(None)
        try:
            kind = ComputedForTask if self.in_task else Computed
            return kind(compile_expression(given["@expr"], named=named), path)
        except BadExpression as error:
            self.problem(f"{path}/@expr", str(error))
            return Constant(None)

    def _span(self, given: Any, path: str, named: bool = False) -> Value:
        if isinstance(given, dict) and "@expr" in given:
            return self._value(given, path, named=named)
        micros = span(given)
        if isinstance(micros, str):
            self.problem(path, micros)
        return Constant(given)

    def _delay(self, given: Any, path: str, named: bool) -> Value:
        if isinstance(given, str) and given in self.delays:
            return self.delays[given]
        return self._span(given, path, named)

    def _text(self, given: Any, path: str) -> str:
        if not isinstance(given, str):
            self.problem(path, f"expected a text, found {found(given)}")
            return ""
        return given
