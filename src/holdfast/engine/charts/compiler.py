"""Compiles a chart document: every fault is found and named by its path before anything is published.

Two passes: the first makes the nodes, so that the second can find every target. What stands in a node is
compiled in layers, each built on the one before: values, guards, actions, transitions.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compile_actions import BUILT_IN
from holdfast.engine.charts.compile_transitions import TransitionCompiler
from holdfast.engine.charts.document import BadChart, escaped, found
from holdfast.engine.charts.nodes import Chart, Node
from holdfast.engine.schemas import check_schema

STATES_LIMIT = 2_000
DEPTH_LIMIT = 20
TRANSITIONS_LIMIT = 20_000
NAME = re.compile(r"[^\x00-\x1f\x7f.#*/\\]{1,100}\Z")
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


class _Compiler(TransitionCompiler):
    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.configs: dict[int, dict[str, Any]] = {}

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

    def _context(self) -> None:
        given = self.document.get("context", {})
        if not isinstance(given, dict):
            self.problem("/context", f"expected an object, found {found(given)}")
            return
        self.chart.context = self._value(given, "/context")
        schema = self.document.get("inputSchema")
        if schema is not None and not isinstance(schema, dict):
            self.problem("/inputSchema", f"expected a JSON Schema (an object), found {found(schema)}")
        elif schema is not None and (wrong := check_schema(schema)) is not None:
            self.problem("/inputSchema", wrong)
        self.chart.input_schema = schema

    # -- the first pass: nodes

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

    def _tags(self, given: Any, path: str) -> list[str]:
        tags = given if isinstance(given, list) else [given]
        if not all(isinstance(tag, str) for tag in tags):
            self.problem(path, f"expected a text or a list of texts, found {found(given)}")
            return []
        return list(tags)


def _full(node: Node) -> str:
    """A node's place by keys, which is what generated ids are made of even under a node with an id of its own."""
    at = node
    while at.parent is not None:
        at = at.parent
    return ".".join([at.id, *node.keys()])


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
