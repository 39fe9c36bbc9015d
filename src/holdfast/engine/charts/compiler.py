"""Compiles a chart document: every fault is found and named by its path before anything is published.

Two passes: the first makes the nodes, so that the second can find every target.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from holdfast.engine.charts import document as doc
from holdfast.engine.charts.document import BadChart, Problem, escaped, found
from holdfast.engine.charts.expressions import BadExpression, compile_expression, returns
from holdfast.engine.charts.nodes import (
    Action,
    All,
    AnyOf,
    Assign,
    Cancel,
    Chart,
    Choose,
    Computed,
    ComputedForTask,
    Constant,
    Deed,
    Delay,
    ExpressionGuard,
    Guard,
    Invoke,
    ListOf,
    Named,
    NamedGuard,
    Node,
    Not,
    ObjectOf,
    Raise,
    StateIn,
    Transition,
    Value,
)  # fmt: skip
from holdfast.engine.charts.task_params import check_task
from holdfast.engine.spans import span

STATES_LIMIT = 2_000
DEPTH_LIMIT = 20
TRANSITIONS_LIMIT = 20_000
EXPRESSIONS_LIMIT = 5_000
WEIGHT_LIMIT = 1_000  # conditions one guard, or actions one list, may come to when all names are followed
NAME = re.compile(r"[^\x00-\x1f\x7f.#*/\\]{1,100}\Z")
EVENT = re.compile(r"[^\x00-\x1f\x7f]{1,200}\Z")
_INTEGER_LIKE = re.compile(r"\d+\Z")
ROOT_KEYS = frozenset((
    "$schema", "id", "context", "guards", "actions", "delays", "@exprLang", "inputSchema", "initial", "states", "type",
    "on", "always", "after", "entry", "exit", "invoke", "tags", "description", "meta", "output",
))  # fmt: skip
STATE_KEYS = frozenset((
    "id", "initial", "states", "type", "on", "always", "after", "entry", "exit", "invoke", "onDone", "tags",
    "description", "meta", "output",
))  # fmt: skip
HISTORY_KEYS = frozenset(("id", "type", "history", "target", "description", "meta"))
FINAL_KEYS = frozenset(("id", "type", "entry", "exit", "output", "tags", "description", "meta"))
TRANSITION_KEYS = frozenset(("target", "guard", "actions", "reenter", "description", "meta"))
DEEDS = ("createTask", "cancelTask", "emit", "send", "log")
# Of a task: never worked out from data.
LITERAL = frozenset(("schema", "policy", "outcomes", "prompt", "redact"))
BUILT_IN = ("assign", "raise", "cancel", "choose", *DEEDS)


class _Compiler:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.nodes: list[Node] = []
        self.by_id: dict[str, Node] = {}
        self.configs: dict[int, dict[str, Any]] = {}
        self.guards: dict[str, Any] = {}
        self.actions: dict[str, Any] = {}
        self.delays: dict[str, Value] = {}
        self.transitions = 0
        self.expressions = 0
        self.building: list[str] = []  # named guards and actions being looked into
        self.made: dict[str, Any] = {}
        self.in_task = False
        self.chart: Chart

    def problem(self, path: str, message: str) -> None:
        if len(self.problems) < doc.ERRORS_MAX:
            self.problems.append(Problem(path, message))

    # -- the first pass: nodes

    def compile(self) -> Chart:
        document = self.document
        self._keys(document, ROOT_KEYS, "")
        id_ = document.get("id", "chart")
        if not isinstance(id_, str) or not NAME.match(id_):
            self.problem("/id", f"expected a name of 1 to 100 characters without . # * / or \\, found {found(id_)}")
            id_ = "chart"
        language = document.get("@exprLang", "cel")
        if language != "cel":
            self.problem("/@exprLang", f'expected "cel", found {found(language)}: no other language is known')
        root = self._node(id_, document, None, "", id_)
        if root is None:
            raise BadChart(self.problems)
        self.chart = Chart(id_, root, self.nodes)
        self.chart.by_id = self.by_id
        self.guards = self._map("guards")
        self.actions = self._map("actions")
        for name, value in self._map("delays").items():
            self.delays[name] = self._span(value, f"/delays/{escaped(name)}")
        self.chart.delays = self.delays
        self._context()
        for name in self.guards:
            self._guard_by_name(name, None, f"/guards/{escaped(name)}")
        for name in self.actions:
            self._action_by_name(name, None, f"/actions/{escaped(name)}")
        for node in self.nodes:
            self._behaviour(node)
        self._one_child_at_a_time()
        if self.transitions > TRANSITIONS_LIMIT:
            self.problem("", f"the chart has {self.transitions:,} transitions, the limit is {TRANSITIONS_LIMIT:,}")
        if self.problems:
            raise BadChart(self.problems)
        self.chart.has_history = any(node.type == "history" for node in self.nodes)
        self.chart.has_always = any(node.always for node in self.nodes)
        self.chart.expressions = self.expressions
        self.chart.timer_ids = frozenset(delay.event for node in self.nodes for delay in node.after)
        self.chart.invoke_ids = frozenset(invoke.id for node in self.nodes for invoke in node.invokes)
        return self.chart

    def _map(self, name: str) -> dict[str, Any]:
        given = self.document.get(name, {})
        if not isinstance(given, dict):
            self.problem(f"/{name}", f"expected an object of names, found {found(given)}")
            return {}
        for key in given:
            if name == "actions" and key in BUILT_IN:
                self.problem(f"/{name}/{escaped(key)}", f"{key!r} is built in: choose another name")
        return given

    def _keys(self, given: dict[str, Any], known: frozenset[str], path: str) -> None:
        for key in given:
            if key not in known:
                near = [k for k in sorted(known) if k.lower() == key.lower() or k.startswith(key[:4])][:3]
                hint = f" (did you mean {' or '.join(near)}?)" if near else ""
                self.problem(f"{path}/{escaped(key)}", f"{key!r} is not known here{hint}")

    def _node(self, key: str, config: Any, parent: Node | None, path: str, id_: str) -> Node | None:
        if not isinstance(config, dict):
            self.problem(path, f"expected a state (an object), found {found(config)}")
            return None
        if len(self.nodes) >= STATES_LIMIT:
            if len(self.nodes) == STATES_LIMIT:
                self.nodes.append(self.nodes[0])  # said once
                self.problem("", f"the chart has more than {STATES_LIMIT:,} states, which is the limit")
            return None
        type_ = self._type(config, path)
        own = config.get("id") if parent is not None else None
        if own is not None:
            if not isinstance(own, str) or not re.match(r"[^\x00-\x1f\x7f#*/\\]{1,200}\Z", own) or "." in own:
                self.problem(f"{path}/id", f"expected a name without . # * / or \\, found {found(own)}")
            else:
                id_ = own
        node = Node(len(self.nodes), key, id_, type_, parent, path)
        if node.depth > DEPTH_LIMIT:
            self.problem(path, f"states are nested deeper than {DEPTH_LIMIT} levels")
            return None
        if id_ in self.by_id:
            self.problem(f"{path}/id" if own else path, f"the id {id_!r} is taken by {self.by_id[id_].path or '/'}")
        self.by_id[id_] = node
        self.nodes.append(node)
        self.configs[node.index] = config
        if parent is not None:
            keys = {"history": HISTORY_KEYS, "final": FINAL_KEYS}.get(type_, STATE_KEYS)
            self._keys(config, keys, path)
        states = config.get("states", {})
        if not isinstance(states, dict):
            self.problem(f"{path}/states", f"expected an object of states, found {found(states)}")
            states = {}
        for child_key, child in states.items():
            place = f"{path}/states/{escaped(child_key)}"
            if not NAME.match(child_key) or _INTEGER_LIKE.match(child_key):
                self.problem(
                    place,
                    "a state's name has 1 to 100 characters, is not a number (those would be sorted first), "
                    "and holds no . # * / or \\",
                )
            made = self._node(
                child_key, child, node, place, f"{node.id if parent is None else _full(node)}.{child_key}"
            )
            if made is not None:
                node.states[child_key] = made
                (node.history_nodes if made.type == "history" else node.children).append(made)
        node.last = len(self.nodes) - 1
        if type_ in ("compound", "parallel") and not node.children:
            self.problem(path, f"a {type_} state needs at least one state inside that is not a history state")
        if parent is None and type_ in ("final", "history", "atomic"):
            self.problem(path, "the chart itself needs states: give it `initial` and `states`")
        return node

    def _type(self, config: dict[str, Any], path: str) -> str:
        given = config.get("type")
        states = config.get("states")
        compound = isinstance(states, dict) and bool(states)
        if given is None:
            return "compound" if compound else "history" if config.get("history") else "atomic"
        if given not in ("atomic", "compound", "parallel", "final", "history"):
            self.problem(f"{path}/type", f"expected parallel, final or history, found {found(given)}")
            return "atomic"
        if given in ("atomic", "final", "history") and compound:
            self.problem(f"{path}/states", f"a {given} state has no states inside")
        return str(given)

    # -- the second pass: what nodes do

    def _behaviour(self, node: Node) -> None:
        config, path = self.configs.get(node.index, {}), node.path
        if node.type == "history":
            self._history(node, config)
            return
        node.entry = self._actions(config.get("entry", []), f"{path}/entry")
        node.exit = self._actions(config.get("exit", []), f"{path}/exit")
        node.tags = self._tags(config.get("tags", []), f"{path}/tags")
        node.description = self._text(config.get("description", ""), f"{path}/description")
        node.meta = config.get("meta")
        if "output" in config:
            if node.type != "final" and node.parent is not None:
                self.problem(f"{path}/output", "only a final state and the chart itself have an output")
            else:
                node.output = self._value(config["output"], f"{path}/output")
        self._initial(node, config)
        on = config.get("on", {})
        if not isinstance(on, dict):
            self.problem(f"{path}/on", f"expected an object of events, found {found(on)}")
            on = {}
        for event, given in on.items():
            place = f"{path}/on/{escaped(event)}"
            self._event_name(event, place)
            node.on[event] = self._transitions(node, event, given, place)
        if "onDone" in config:
            if node.parent is not None and node.type not in ("compound", "parallel"):
                self.problem(f"{path}/onDone", "only a state with states inside is ever done")
            event = f"xstate.done.state.{node.id}"
            self._not_twice(node, event, f"{path}/onDone")
            node.on[event] = self._transitions(node, event, config["onDone"], f"{path}/onDone")
        self._invokes(node, config)
        self._after(node, config)
        if "always" in config:
            node.always = self._transitions(node, "", config["always"], f"{path}/always")

    def _history(self, node: Node, config: dict[str, Any]) -> None:
        kind = config.get("history", "shallow")
        if kind is True:
            kind = "shallow"
        if kind not in ("shallow", "deep"):
            self.problem(f"{node.path}/history", f"expected shallow or deep, found {found(kind)}")
        node.history = str(kind)
        assert node.parent is not None
        if "target" not in config:
            return
        given = config["target"]
        targets = given if isinstance(given, list) else [given]
        made = []
        for n, word in enumerate(targets):
            place = f"{node.path}/target" + (f"/{n}" if isinstance(given, list) else "")
            target = self._find(node.parent, word, place, below=True)
            if target is not None:
                if target.type == "history":
                    self.problem(place, "a history state's default cannot be a history state")
                elif not node.parent.holds(target):
                    self.problem(place, f"a history state's default lies inside {node.parent!r}")
                made.append(target)
        node.history_targets = tuple(made)

    def _initial(self, node: Node, config: dict[str, Any]) -> None:
        path = f"{node.path}/initial"
        given = config.get("initial")
        if node.type != "compound":
            if given is not None:
                self.problem(path, f"a state of type {node.type} has no initial state")
            return
        if given is None:
            names = ", ".join(list(node.states)[:5])
            self.problem(node.path, f"a state with states inside needs `initial`: one of {names}")
            return
        if isinstance(given, dict):
            self._keys(given, frozenset(("target", "actions", "description", "meta")), path)
            node.initial_actions = self._actions(given.get("actions", []), f"{path}/actions")
            given, path = given.get("target"), f"{path}/target"
        if not isinstance(given, str) or given not in node.states:
            names = ", ".join(list(node.states)[:5])
            self.problem(path, f"expected the name of a state inside ({names}), found {found(given)}")
            return
        node.initial = node.states[given]

    def _after(self, node: Node, config: dict[str, Any]) -> None:
        after = config.get("after", {})
        path = f"{node.path}/after"
        if not isinstance(after, dict):
            self.problem(path, f"expected an object of delays, found {found(after)}")
            return
        for word, given in after.items():
            place = f"{path}/{escaped(word)}"
            if word in self.delays:
                value = self.delays[word]
            elif word.isascii() and word.isdigit():
                if len(word) > 15:
                    self.problem(place, "that many milliseconds is longer than a thousand years")
                    continue
                word = str(int(word))
                value = self._span(int(word), place)
            else:
                micros = span(word)
                if isinstance(micros, str):
                    self.problem(place, f"expected milliseconds, an ISO 8601 duration or a name of `delays`: {micros}")
                    continue
                value = Constant(word)
            event = f"xstate.after.{word}.{node.id}"
            if any(delay.event == event for delay in node.after):
                self.problem(place, f"the delay {word} stands twice in this state")
                continue
            node.after.append(Delay(event, value, place))
            node.on.setdefault(event, []).extend(self._transitions(node, event, given, place))

    def _invokes(self, node: Node, config: dict[str, Any]) -> None:
        given = config.get("invoke", [])
        several = isinstance(given, list)
        for n, one in enumerate(given if isinstance(given, list) else [given]):
            path = f"{node.path}/invoke" + (f"/{n}" if several else "")
            if not isinstance(one, dict):
                self.problem(path, f"expected an object with `src`, found {found(one)}")
                continue
            self._keys(one, frozenset(("id", "src", "input", "onDone", "onError", "description", "meta")), path)
            id_ = one.get("id", f"{n}.{node.id}")
            if not isinstance(id_, str) or not EVENT.match(id_) or "*" in id_:
                self.problem(f"{path}/id", f"expected a name without *, found {found(id_)}")
                continue
            if any(other.id == id_ for other in node.invokes):
                self.problem(f"{path}/id", f"the id {id_!r} is taken by another invoke of this state")
            src = self._source(one.get("src"), f"{path}/src")
            node.invokes.append(Invoke(id_, src, self._value(one.get("input"), f"{path}/input"), path))
            for key, event in (("onDone", f"xstate.done.actor.{id_}"), ("onError", f"xstate.error.actor.{id_}")):
                if key in one:
                    self._not_twice(node, event, f"{path}/{key}")
                    node.on[event] = self._transitions(node, event, one[key], f"{path}/{key}")

    def _not_twice(self, node: Node, event: str, path: str) -> None:
        if event in node.on:
            self.problem(path, f"this state's `on` has {event!r} already: say it in one place")

    def _one_child_at_a_time(self) -> None:
        """Two invokes with one id, in states that may be active together, would answer for each other."""
        by_id: dict[str, list[tuple[Node, str]]] = {}
        for node in self.nodes:
            for invoke in node.invokes:
                for other, path in by_id.get(invoke.id, []):
                    if other.holds(node) or _in_regions(other, node):
                        self.problem(
                            f"{invoke.path}/id", f"{path} has the id {invoke.id!r} too, and both may run at once"
                        )
                        break
                by_id.setdefault(invoke.id, []).append((node, invoke.path))

    def _source(self, given: Any, path: str) -> Any:
        if isinstance(given, str) and EVENT.match(given):
            given = {"task": {"type": "SYSTEM", "name": given}}
        if not isinstance(given, dict) or len(given.keys() & {"task", "workflow"}) != 1:
            self.problem(
                path,
                'expected the name of a SYSTEM handler, {"task": {"type": …}} or {"workflow": "key"}, '
                f"found {found(given)}",
            )
            return {}
        if "task" in given:
            self._keys(given, frozenset(("task",)), path)
            return {"task": self._task(given["task"], f"{path}/task", invoked=True)}
        self._keys(given, frozenset(("workflow", "version")), path)
        key, version = given["workflow"], given.get("version")
        if not isinstance(key, str) or not EVENT.match(key):
            self.problem(f"{path}/workflow", f"expected the key of a workflow, found {found(key)}")
            key = ""
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
            self.problem(f"{path}/version", f"expected a whole number from 1 on, found {found(version)}")
        self.chart.workflows.append((path, key))
        return {"workflow": key, "version": version}

    # -- transitions

    def _transitions(self, node: Node, event: str, given: Any, path: str) -> list[Transition]:
        several = isinstance(given, list)
        made = []
        for n, one in enumerate(given if isinstance(given, list) else [given]):
            made.append(self._transition(node, event, one, f"{path}/{n}" if several else path))
        return [transition for transition in made if transition is not None]

    def _transition(self, node: Node, event: str, given: Any, path: str) -> Transition | None:
        self.transitions += 1
        if given is None:
            given = {}
        if isinstance(given, str):
            given, place = {"target": given}, path
        elif isinstance(given, dict):
            place = f"{path}/target"
            self._keys(given, TRANSITION_KEYS, path)
        else:
            self.problem(path, f"expected a target, a transition (an object) or a list of these, found {found(given)}")
            return None
        words = given.get("target")
        targets = []
        if words is not None:
            if isinstance(words, list) and not words:
                self.problem(place, "the list of targets is empty: leave `target` out to stay")
            for n, word in enumerate(words if isinstance(words, list) else [words]):
                target = self._find(node, word, f"{place}/{n}" if isinstance(words, list) else place)
                if target is not None:
                    targets.append(target)
            self._together(targets, place)
        reenter = given.get("reenter", False)
        if not isinstance(reenter, bool):
            self.problem(f"{path}/reenter", f"expected true or false, found {found(reenter)}")
        guard = self._guard(given["guard"], f"{path}/guard") if given.get("guard") is not None else None
        actions = self._actions(given.get("actions", []), f"{path}/actions")
        description = self._text(given.get("description", ""), f"{path}/description")
        return Transition(node, event, tuple(targets), guard, actions, bool(reenter), path, description)

    def _together(self, targets: list[Node], path: str) -> None:
        """Several targets can only be entered together if each pair lies in different regions of a parallel state."""
        for n, one in enumerate(targets):
            for other in targets[n + 1 :]:
                if one is other or one.holds(other) or other.holds(one):
                    self.problem(path, f"{one!r} and {other!r} are both targets, and one holds the other")
                    continue
                common: Node | None = one.parent
                while common is not None and not common.holds(other):
                    common = common.parent
                if common is None or common.type != "parallel":
                    self.problem(
                        path, f"{one!r} and {other!r} cannot be active together: they are not in regions of one "
                        "parallel state"
                    )  # fmt: skip

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

    def _event_name(self, event: str, path: str) -> None:
        if not EVENT.match(event):
            self.problem(path, "an event's name has 1 to 200 characters and no control characters")
        elif "*" in event and event != "*" and (not event.endswith(".*") or event.count("*") > 1):
            self.problem(path, "a wildcard stands alone (*) or at the end after a dot (order.*)")

    # -- guards

    def _named(self, word: str, path: str, build: Callable[[], Any]) -> Any:
        """What stands under a name, built once. `path` is where it is asked for."""
        if word in self.building:
            self.problem(path, f"{word} leads back to itself: {' → '.join([*self.building, word])}")
            return None
        if word not in self.made:
            self.building.append(word)
            self.made[word] = build()
            self.building.pop()
        return self.made[word]

    def _guard(self, given: Any, path: str, *, named: bool = False) -> Guard | None:
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
            names = ", ".join(list(self.guards)[:8]) or "none"
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

    # -- actions

    def _actions(self, given: Any, path: str, *, named: bool = False) -> list[Action]:
        several = isinstance(given, list)
        made: list[Action] = []
        for n, one in enumerate(given if isinstance(given, list) else [given]):
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
            names = ", ".join([*list(self.actions)[:8], *BUILT_IN])
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

    # -- values

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

    def _context(self) -> None:
        given = self.document.get("context", {})
        if not isinstance(given, dict):
            self.problem("/context", f"expected an object, found {found(given)}")
            return
        self.chart.context = self._value(given, "/context")
        schema = self.document.get("inputSchema")
        if schema is not None and not isinstance(schema, dict):
            self.problem("/inputSchema", f"expected a JSON Schema (an object), found {found(schema)}")
        self.chart.input_schema = schema

    def _tags(self, given: Any, path: str) -> list[str]:
        tags = given if isinstance(given, list) else [given]
        if not all(isinstance(tag, str) for tag in tags):
            self.problem(path, f"expected a text or a list of texts, found {found(given)}")
            return []
        return list(tags)

    def _text(self, given: Any, path: str) -> str:
        if not isinstance(given, str):
            self.problem(path, f"expected a text, found {found(given)}")
            return ""
        return given


def _in_regions(one: Node, other: Node) -> bool:
    """Whether they lie in different regions of a parallel state."""
    common = one.parent
    while common is not None and not common.holds(other):
        common = common.parent
    return common is not None and common.type == "parallel"


def _full(node: Node) -> str:
    """A node's place by keys, which is what generated ids are made of even under a node with an id of its own."""
    keys = []
    at: Node | None = node
    while at is not None and at.parent is not None:
        keys.append(at.key)
        at = at.parent
    assert at is not None
    return ".".join([at.id, *reversed(keys)])


def compile_chart(document: dict[str, Any], *, version: int = 0) -> Chart:
    """The chart, or `BadChart` with every problem found. `document` comes from `document.read`."""
    chart = _Compiler(document).compile()
    chart.version = version
    chart.hash = sha256(doc.written(document).encode()).hexdigest()
    return chart


_compiled: dict[tuple[str, int], Chart] = {}
CACHED_MAX = 500


def chart_from(text: str | bytes, *, version: int = 0) -> Chart:
    """The chart of a stored text, compiled once per content and version."""
    raw = text.encode() if isinstance(text, str) else text
    key = (sha256(raw).hexdigest(), version)
    chart = _compiled.get(key)
    if chart is None:
        if len(_compiled) >= CACHED_MAX:
            _compiled.pop(next(iter(_compiled)))
        chart = _compiled[key] = compile_chart(doc.read(raw), version=version)
    return chart
