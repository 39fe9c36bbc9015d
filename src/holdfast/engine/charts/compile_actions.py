"""Compiles actions: what changes the context, raises events or comes back as an effect, and the tasks they create."""

from __future__ import annotations

from itertools import islice
from typing import Any

from holdfast.engine.charts.compile_guards import WEIGHT_LIMIT, GuardCompiler
from holdfast.engine.charts.compile_values import EVENT
from holdfast.engine.charts.document import escaped, found
from holdfast.engine.charts.nodes import (
    Action,
    Assign,
    Cancel,
    Chart,
    Choose,
    Computed,
    Constant,
    Deed,
    Guard,
    Named,
    ObjectOf,
    Raise,
    Value,
)  # fmt: skip
from holdfast.engine.charts.task_params import check_task

DEEDS = ("createTask", "cancelTask", "emit", "send", "log")
# Of a task: never worked out from data.
LITERAL = frozenset(("schema", "policy", "outcomes", "prompt", "redact"))
BUILT_IN = ("assign", "raise", "cancel", "choose", *DEEDS)


class ActionCompiler(GuardCompiler):
    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.actions: dict[str, Any] = {}
        self.chart: Chart

    def _actions(self, given: Any, path: str, *, named: bool = False) -> list[Action]:
        several = isinstance(given, list)
        made: list[Action] = []
        with self._level(path) as room:
            for n, one in enumerate((given if isinstance(given, list) else [given]) if room else []):
                action = self._action(one, f"{path}/{n}" if several else path, named=named)
                if action is not None:
                    made.append(action)
        if sum(action.weight for action in made) > WEIGHT_LIMIT:
            self.problem(path, f"the actions come to more than {WEIGHT_LIMIT:,}, which is the limit")
            return []
        return made

    def _action(self, given: Any, path: str, *, named: bool) -> Action | None:
        if isinstance(given, str):
            return self._action_by_name(given, None, path)
        if not isinstance(given, dict) or not isinstance(given.get("type"), str):
            self.problem(path, f"expected a name of `actions` or an action with a `type`, found {found(given)}")
            return None
        type_ = given["type"]
        if type_ == "assign":
            return self._assign(given, path, named)
        if type_ == "raise":
            return self._raise(given, path, named)
        if type_ == "cancel":
            self._keys(given, frozenset(("type", "id")), path)
            id_ = given.get("id")
            if not isinstance(id_, str) or not id_:
                self.problem(f"{path}/id", f"expected the id of a delayed raise, found {found(id_)}")
                return None
            return Cancel(path, id_)
        if type_ == "choose":
            return self._choose(given, path, named)
        if type_ in DEEDS:
            return self._deed(type_, given, path, named)
        self._keys(given, frozenset(("type", "params")), path)
        params = self._value(given["params"], f"{path}/params", named=named) if "params" in given else None
        return self._action_by_name(type_, params, f"{path}/type")

    def _action_by_name(self, name: str, params: Value | None, path: str) -> Action | None:
        if name not in self.actions:
            names = ", ".join([*islice(self.actions, 8), *BUILT_IN])
            self.problem(path, f"{name!r} is neither built in nor in the chart's `actions` (known: {names})")
            return None
        actions: list[Action] | None = self._named(
            f"action {name}", path, lambda: self._actions(self.actions[name], f"/actions/{escaped(name)}", named=True)
        )
        return None if actions is None else Named(path, name, actions, params)

    def _assign(self, given: dict[str, Any], path: str, named: bool) -> Action | None:
        self._keys(given, frozenset(("type", "assign")), path)
        values = given.get("assign")
        if not isinstance(values, dict) or not values or "@expr" in values:
            self.problem(f"{path}/assign", f"expected an object of context fields, found {found(values)}")
            return None
        return Assign(
            path, {k: self._value(v, f"{path}/assign/{escaped(k)}", named=named) for k, v in values.items()}
        )  # fmt: skip

    def _raise(self, given: dict[str, Any], path: str, named: bool) -> Action | None:
        self._keys(given, frozenset(("type", "event", "delay", "id")), path)
        event = self._event(given.get("event"), f"{path}/event", named)
        delay = self._delay(given["delay"], f"{path}/delay", named) if "delay" in given else None
        id_ = given.get("id")
        if id_ is not None and (not isinstance(id_, str) or not id_ or id_.startswith("xstate.")):
            self.problem(f"{path}/id", f"expected a name that does not begin with xstate., found {found(id_)}")
        return None if event is None else Raise(path, event, delay, id_)

    def _event(self, given: Any, path: str, named: bool) -> Value | None:
        if isinstance(given, str):
            given = {"type": given}
        type_ = given.get("type") if isinstance(given, dict) else None
        if not isinstance(type_, str) or not EVENT.match(type_) or type_ == "*" or type_.startswith("xstate."):
            self.problem(
                path, "expected an event: a name, or an object whose `type` is a name of its own (no xstate.…)"
            )
            return None
        return self._value(given, path, named=named)

    def _choose(self, given: dict[str, Any], path: str, named: bool) -> Action | None:
        self._keys(given, frozenset(("type", "conds")), path)
        conds = given.get("conds")
        if not isinstance(conds, list) or not conds:
            self.problem(f"{path}/conds", f"expected a list of choices, found {found(conds)}")
            return None
        choices: list[tuple[Guard | None, list[Action]]] = []
        for n, one in enumerate(conds):
            place = f"{path}/conds/{n}"
            if not isinstance(one, dict):
                self.problem(place, f"expected an object with `guard` and `actions`, found {found(one)}")
                continue
            self._keys(one, frozenset(("guard", "actions")), place)
            guard = self._guard(one["guard"], f"{place}/guard", named=named) if "guard" in one else None
            choices.append((guard, self._actions(one.get("actions", []), f"{place}/actions", named=named)))
        return Choose(path, choices)

    def _deed(self, type_: str, given: dict[str, Any], path: str, named: bool) -> Action | None:
        if type_ == "createTask":
            self._keys(given, frozenset(("type", "params")), path)
            params = self._task(given.get("params"), f"{path}/params", named=named)
            return None if params is None else Deed(path, type_, params)
        if type_ == "emit":
            self._keys(given, frozenset(("type", "event")), path)
            event = self._event(given.get("event"), f"{path}/event", named)
            return None if event is None else Deed(path, type_, event)
        if type_ == "send":
            self._keys(given, frozenset(("type", "to", "event")), path)
            event = self._event(given.get("event"), f"{path}/event", named)
            to = self._value(given.get("to"), f"{path}/to", named=named)
            if not isinstance(to, Computed) and not (isinstance(to, Constant) and isinstance(to.value, str)):
                self.problem(f"{path}/to", f"expected an instance's id, found {found(given.get('to'))}")
            return None if event is None else Deed(path, type_, ObjectOf({"to": to, "event": event}))
        self._keys(given, frozenset(("type", "params")), path)
        if type_ == "cancelTask":
            params = given.get("params")
            if not isinstance(params, dict) or not isinstance(params.get("name"), str) or len(params) != 1:
                self.problem(f"{path}/params", 'expected {"name": "…"}: which of the open tasks to cancel')
                return None
        return Deed(path, type_, self._value(given.get("params"), f"{path}/params", named=named))

    def _task(self, given: Any, path: str, *, invoked: bool = False, named: bool = False) -> Value | None:
        if not isinstance(given, dict):
            self.problem(path, f"expected a task (an object with `type`), found {found(given)}")
            return None
        if "@expr" in given:
            self.problem(path, "a task's parameters are an object whose values may be expressions, not one expression")
            return None
        for place, message in check_task(given, invoked=invoked):
            self.problem(path + place, message)
        self.chart.tasks.append((path, given))
        literal = LITERAL | {"form"} if given.get("type") == "HUMAN" else LITERAL
        self.in_task = True
        made = self._value(given, path, named=named, literal=literal)
        self.in_task = False
        return made
