"""Lint of names: entries that nobody uses, fields of the context that nobody sets, words that differ only in case."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.engine.charts.document import Problem, escaped
from holdfast.engine.charts.lint_survey import Survey, bare, constant_fields, type_of, warning
from holdfast.engine.charts.nodes import (
    Assign,
    Chart,
    Computed,
    Deed,
    ExpressionGuard,
    ListOf,
    Named,
    NamedGuard,
    ObjectOf,
    Raise,
    Value,
)  # fmt: skip
from holdfast.engine.charts.walking import all_actions, all_guards

_FIELD = re.compile(r"(?<![\w.])context\s*\.\s*([A-Za-z_]\w*)")
_ASKED = re.compile(r"\bhas\s*\(\s*context\s*\.\s*([A-Za-z_]\w*)")
_INDEXED = re.compile(r"""(?<![\w.])context\s*\[\s*(["'])([A-Za-z_]\w*)\1\s*\]""")


class Names:
    def __init__(self, survey: Survey) -> None:
        self.chart = survey.chart
        self.document = survey.document
        self.actions = survey.actions

    def warnings(self) -> Iterator[Problem]:
        for rule in (self._unused, self._context, self._case):
            yield from rule()

    def _unused(self) -> Iterator[Problem]:
        used = _Used(self.document)
        for what in ("guards", "actions", "delays"):
            for name in self.document.get(what, {}):
                if (what, name) not in used.names:
                    yield warning(f"/{what}/{escaped(name)}", f"{name!r} is used nowhere: use it, or remove it")

    def _context(self) -> Iterator[Problem]:
        for value in _computed(self.chart.context):
            if _reads(value.program.text):
                yield warning(value.path, "there is no context yet when it is made: read event.input instead")
        given = self.chart.context
        if isinstance(given, Computed):
            return  # its fields are known when it runs
        there = set(given.items if isinstance(given, ObjectOf) else constant_fields(given))
        there |= {key for action in self.actions if isinstance(action, Assign) for key in action.values}
        for value in _expressions(self.chart):
            for name in _reads(value.program.text):
                if name not in there:
                    yield warning(
                        value.path,
                        f"nothing sets context.{name}: put {name!r} into the initial context, or assign it",
                    )

    def _case(self) -> Iterator[Problem]:
        yield from _alike("events", self._event_names())
        yield from _alike("fields of the context", self._field_names())
        for what in ("guards", "actions", "delays"):
            yield from _alike(what, [(name, f"/{what}/{escaped(name)}") for name in self.document.get(what, {})])
        for node in self.chart.nodes:
            yield from _alike("states", [(key, child.path) for key, child in node.states.items()])

    def _event_names(self) -> Iterator[tuple[str, str]]:
        for node in self.chart.nodes:
            for event, transitions in node.on.items():
                if not event.startswith("xstate.") and transitions:
                    yield event, f"{node.path}/on/{escaped(event)}"
        for action in self.actions:
            if isinstance(action, Raise) and (raised := type_of(action.event)) is not None:
                yield raised, f"{action.path}/event"
        for path, params in self.chart.tasks:
            for key in ("completion_event", "failure_event"):
                if isinstance(params.get(key), str):
                    yield params[key], f"{path}/{key}"

    def _field_names(self) -> Iterator[tuple[str, str]]:
        given = self.chart.context
        for key in given.items if isinstance(given, ObjectOf) else constant_fields(given):
            yield key, f"/context/{escaped(key)}"
        for action in self.actions:
            if isinstance(action, Assign):
                for key in action.values:
                    yield key, f"{action.path}/assign/{escaped(key)}"


def _alike(what: str, names: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    said: set[str] = set()
    for name, path in names:
        known = first.setdefault(name.casefold(), name)
        if known != name and name not in said:
            said.add(name)
            yield warning(path, f"the {what} {known!r} and {name!r} differ only in case: write them the same way")


def _reads(text: str) -> list[str]:
    """The fields of the context that an expression reads without asking first whether they are there."""
    code = bare(text)
    asked = set(_ASKED.findall(code))
    names = [*_FIELD.findall(code), *(name for _, name in _INDEXED.findall(text))]
    return [name for name in dict.fromkeys(names) if name not in asked]


def _computed(value: Value | None) -> Iterator[Computed]:
    if isinstance(value, Computed):
        yield value
    elif isinstance(value, ListOf):
        for item in value.items:
            yield from _computed(item)
    elif isinstance(value, ObjectOf):
        for item in value.items.values():
            yield from _computed(item)


def _expressions(chart: Chart) -> Iterator[Computed]:
    """Every expression outside the initial context."""
    values: list[Value | None] = [*chart.delays.values()]
    for node in chart.nodes:
        values.append(node.output)
        for invoke in node.invokes:
            task = invoke.src.get("task")
            values += [invoke.input, task]
    for guard in all_guards(chart):
        if isinstance(guard, ExpressionGuard):
            values.append(guard.value)
        elif isinstance(guard, NamedGuard):
            values.append(guard.params)
    for action in all_actions(chart):
        if isinstance(action, Assign):
            values += action.values.values()
        elif isinstance(action, Raise):
            values += [action.event, action.delay]
        elif isinstance(action, (Named, Deed)):
            values.append(action.params)
    for value in values:
        yield from _computed(value)


class _Used:
    """Which entries of `guards`, `actions` and `delays` the states use, directly or through one another."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.names: set[tuple[str, str]] = set()
        self._state(document)

    def _use(self, what: str, name: Any) -> None:
        if not isinstance(name, str) or (what, name) in self.names or name not in self.document.get(what, {}):
            return
        self.names.add((what, name))
        if what == "guards":
            self._guard(self.document[what][name])
        elif what == "actions":
            self._actions(self.document[what][name])

    def _state(self, config: dict[str, Any]) -> None:
        for key in ("entry", "exit"):
            self._actions(config.get(key, []))
        if isinstance(config.get("initial"), dict):
            self._actions(config["initial"].get("actions", []))
        for transitions in [*config.get("on", {}).values(), config.get("always"), config.get("onDone")]:
            self._transitions(transitions)
        for name, transitions in config.get("after", {}).items():
            self._use("delays", name)
            self._transitions(transitions)
        for invoke in _listed(config.get("invoke", [])):
            self._transitions(invoke.get("onDone"))
            self._transitions(invoke.get("onError"))
        for inner in config.get("states", {}).values():
            self._state(inner)

    def _transitions(self, given: Any) -> None:
        for one in _listed(given):
            if isinstance(one, dict):
                self._guard(one.get("guard"))
                self._actions(one.get("actions", []))

    def _guard(self, given: Any) -> None:
        if isinstance(given, str):
            self._use("guards", given)
        elif isinstance(given, dict) and "@expr" not in given:
            self._use("guards", given.get("type"))
            for inner in [*given.get("and", []), *given.get("or", []), given.get("not")]:
                self._guard(inner)

    def _actions(self, given: Any) -> None:
        for one in _listed(given):
            if isinstance(one, str):
                self._use("actions", one)
            elif one["type"] == "choose":
                for choice in one["conds"]:
                    self._guard(choice.get("guard"))
                    self._actions(choice.get("actions", []))
            elif one["type"] == "raise":
                self._use("delays", one.get("delay"))
            else:
                self._use("actions", one["type"])


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]
