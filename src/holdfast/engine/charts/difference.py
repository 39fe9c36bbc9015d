"""What changed between two versions of a chart: states, transitions, and what they name, as values and as lines.

Both are compared as they were compiled, so a target written `#id` and one written `sibling` are the same target, and
key order counts only where it is meaning: transitions of one event, actions of one list, regions of a parallel state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.engine import codec
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.nodes import (
    Action,
    All,
    AnyOf,
    Assign,
    Cancel,
    Chart,
    Choose,
    Computed,
    Constant,
    Deed,
    ExpressionGuard,
    Guard,
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

LINE_MAX = 200
_MARK = {"added": "+", "removed": "-", "changed": "~", "moved": ">", "reordered": "~"}


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is not as it was. `path` points into the new document, or into the old one if it was removed."""

    kind: str  # added | removed | changed | moved | reordered
    what: str  # state | transition | context | guard | action | delay | task | entry | exit | invoke | …
    name: str
    path: str
    before: Any = None
    after: Any = None

    def text(self) -> str:
        line = f"{_MARK[self.kind]} {self.what} {self.name}"
        if self.kind == "moved":
            line = f"> {self.what} {self.before} is now {self.after}"
        elif self.kind == "reordered":
            line += f": the order changed from {_short(self.before)} to {_short(self.after)}"
        elif self.kind == "changed":
            line += f": {_short(self.before)} → {_short(self.after)}"
        elif self.kind == "added" and self.after is not None:
            line += f": {_short(self.after)}"
        elif self.kind == "removed" and self.before is not None:
            line += f": {_short(self.before)}"
        return line


class Difference(msgspec.Struct, frozen=True):
    """Every change from one version to the other, states first."""

    changes: tuple[Change, ...]

    def of(self, what: str, kind: str | None = None) -> list[Change]:
        return [change for change in self.changes if change.what == what and kind in (None, change.kind)]

    def text(self) -> str:
        """A line for each change; nothing if there is none."""
        return "\n".join(change.text() for change in self.changes)


def difference(old: Chart | dict[str, Any], new: Chart | dict[str, Any]) -> Difference:
    """What changed. A document that is no chart is refused as publishing would refuse it."""
    compared = _Comparison(_compiled(old), _compiled(new))
    return Difference(tuple(compared.changes()))


def _compiled(given: Chart | dict[str, Any]) -> Chart:
    return given if isinstance(given, Chart) else compile_chart(doc.reread(given))


def _short(value: Any) -> str:
    if value in (None, "", []):
        text = "(nothing)"
    elif isinstance(value, str):
        text = value
    elif isinstance(value, dict) and value.keys() == {"@expr"}:
        text = str(value["@expr"])
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        text = ", ".join(value)
    else:
        text = codec.encode(value).decode()
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 1] + "…"


# -- compiled parts as JSON again


def plain(value: Value | None) -> Any:
    """A value as the document writes it."""
    match value:
        case Constant():
            return value.value
        case Computed():
            return {"@expr": value.program.text}
        case ListOf():
            return [plain(item) for item in value.items]
        case ObjectOf():
            return {key: plain(item) for key, item in value.items.items()}
    return None


def guard_name(guard: NamedGuard) -> str | None:
    """The name under which a guard stands in `guards`. It follows from the paths of the expressions inside."""
    for value in _computed(guard.guard):
        head, _, rest = value.path.removeprefix("/").partition("/")
        if head == "guards":
            return _unescaped(rest.partition("/")[0])
    return None


def _computed(guard: Guard) -> Iterator[Computed]:
    """The expressions that stand in the guard itself, not those of guards it names."""
    match guard:
        case ExpressionGuard():
            yield guard.value
        case Not():
            yield from _computed(guard.guard)
        case All() | AnyOf():
            for inner in guard.guards:
                yield from _computed(inner)


def action_name(action: Named) -> str | None:
    """The name under which it stands in `actions`."""
    for inner in action.actions:
        head, _, rest = inner.path.removeprefix("/").partition("/")
        if head == "actions":
            return _unescaped(rest.partition("/")[0])
    return None


def _unescaped(piece: str) -> str:
    return piece.replace("~1", "/").replace("~0", "~")


def plain_guard(guard: Guard | None, *, open_: bool = False) -> Any:
    """A guard as the document writes it; a named one by its name, or `open_` as what stands under that name."""
    match guard:
        case ExpressionGuard():
            return plain(guard.value)
        case NamedGuard():
            name = None if open_ else guard_name(guard)
            if name is None:
                return plain_guard(guard.guard)
            return name if guard.params is None else {"type": name, "params": plain(guard.params)}
        case All():
            return {"and": [plain_guard(inner) for inner in guard.guards]}
        case AnyOf():
            return {"or": [plain_guard(inner) for inner in guard.guards]}
        case Not():
            return {"not": plain_guard(guard.guard)}
        case StateIn():
            return {"stateIn": [place(node) for node in guard.nodes]}
    return None


def plain_action(action: Action) -> Any:
    """An action as the document writes it; a named one by its name, a task by its type and name."""
    match action:
        case Assign():
            return {"type": "assign", "assign": {key: plain(value) for key, value in action.values.items()}}
        case Raise():
            made = {"type": "raise", "event": plain(action.event)}
            made |= {} if action.delay is None else {"delay": plain(action.delay)}
            return made | ({} if action.id is None else {"id": action.id})
        case Cancel():
            return {"type": "cancel", "id": action.id}
        case Choose():
            conds = [{"guard": plain_guard(guard), "actions": plain_actions(inner)} for guard, inner in action.choices]
            return {"type": "choose", "conds": conds}
        case Named():
            name = action_name(action) or "(nothing)"
            return name if action.params is None else {"type": name, "params": plain(action.params)}
        case Deed():
            params = plain(action.params)
            if action.type == "createTask":
                return f"createTask {params.get('name')} ({params.get('type')})"
            return {"type": action.type, "event" if action.type == "emit" else "params": params}
    return None


def plain_actions(actions: Iterable[Action]) -> list[Any]:
    return [plain_action(action) for action in actions]


def place(node: Node) -> str:
    """A state's place by keys: review.waiting. The chart itself is (chart)."""
    keys = []
    at: Node | None = node
    while at is not None and at.parent is not None:
        keys.append(at.key)
        at = at.parent
    return ".".join(reversed(keys)) or "(chart)"


def event_words(node: Node, event: str) -> str:
    """An event as people say it: `after P3D`, `done`, `done pay`, `error pay`; others by their name."""
    if event == "":
        return "always"
    if event == f"xstate.done.state.{node.id}":
        return "done"
    if event.startswith("xstate.after.") and event.endswith(f".{node.id}"):
        word = event[len("xstate.after.") : -len(node.id) - 1]
        return f"after {word} ms" if word.isdigit() else f"after {word}"
    for n, invoke in enumerate(node.invokes):
        # A generated id says nothing; the number tells several apart.
        named = f" {n + 1}" if len(node.invokes) > 1 else ""
        name = named if invoke.id == f"{n}.{node.id}" else f" {invoke.id}"
        if event == f"xstate.done.actor.{invoke.id}":
            return f"done{name or ' invoke'}"
        if event == f"xstate.error.actor.{invoke.id}":
            return f"error{name or ' invoke'}"
    return event


# -- the comparison


class _Comparison:
    def __init__(self, old: Chart, new: Chart) -> None:
        self.old = old
        self.new = new
        self.twins: dict[int, Node] = {}  # by the old state's number, the new state that it is
        self.moves: list[tuple[Node, Node]] = []
        self._match(old.root, new.root)
        self._find_moves()
        self.matched = {node.index for node in self.twins.values()}

    def _match(self, old: Node, new: Node) -> None:
        self.twins[old.index] = new
        for key, child in old.states.items():
            twin = new.states.get(key)
            if twin is not None:
                self._match(child, twin)

    def _find_moves(self) -> None:
        """A state that is gone here and came there is one that moved, if it is clear which."""
        found = True
        while found:
            found = False
            here = {node.index for node in self.twins.values()}
            gone = [node for node in self.old.nodes if node.index not in self.twins and self._top(node)]
            came = [node for node in self.new.nodes if node.index not in here and (self._known(node, here))]
            for node, twin in _pairs(gone, came):
                self.moves.append((node, twin))
                self._match(node, twin)
                found = True

    def _top(self, node: Node) -> bool:
        return node.parent is None or node.parent.index in self.twins

    def _known(self, node: Node, here: set[int]) -> bool:
        return node.parent is None or node.parent.index in here

    def changes(self) -> Iterator[Change]:
        yield from self._states()
        for node in self.old.nodes:
            if node.index in self.twins:
                yield from self._inside(node, self.twins[node.index])
        yield from self._named_things()

    # states

    def _states(self) -> Iterator[Change]:
        for node, twin in self.moves:
            yield Change("moved", "state", place(twin), twin.path, place(node), place(twin))
        for node in self.old.nodes:
            if node.index not in self.twins:
                yield Change("removed", "state", place(node), node.path, node.type)
        for node in self.new.nodes:
            if node.index not in self.matched:
                yield Change("added", "state", place(node), node.path, None, node.type)
        for node in self.old.nodes:
            if node.index not in self.twins:
                continue
            twin = self.twins[node.index]
            if node.type != twin.type:
                yield Change("changed", "state", place(twin), twin.path, node.type, twin.type)
            if node.type == twin.type == "parallel":
                before = [self.twins[n.index].key for n in node.children if self._stays(n, twin)]
                kept = set(before)
                after = [n.key for n in twin.children if n.key in kept]
                if before != after:
                    yield Change("reordered", "regions of", place(twin), twin.path, before, after)

    def _stays(self, child: Node, parent: Node) -> bool:
        twin = self.twins.get(child.index)
        return twin is not None and twin.parent is parent

    # what a state does

    def _inside(self, old: Node, new: Node) -> Iterator[Change]:
        for what, path, before, after in self._parts(old, new):
            if _same(before, after):
                continue
            kind = "added" if before in (None, [], "") else "removed" if after in (None, [], "") else "changed"
            yield Change(kind, f"{what} of", place(new), f"{new.path}/{path}", before, after)
        yield from self._transitions(old, new)

    def _parts(self, old: Node, new: Node) -> Iterator[tuple[str, str, Any, Any]]:
        yield "initial", "initial", self._target_of(old.initial), None if new.initial is None else place(new.initial)
        yield "initial actions", "initial", plain_actions(old.initial_actions), plain_actions(new.initial_actions)
        yield "entry", "entry", plain_actions(old.entry), plain_actions(new.entry)
        yield "exit", "exit", plain_actions(old.exit), plain_actions(new.exit)
        yield "output", "output", plain(old.output), plain(new.output)
        yield "invokes", "invoke", self._invokes(old), self._invokes(new)
        yield "history", "history", old.history or None, new.history or None
        default = [self._target_of(node) for node in old.history_targets]
        yield "default", "target", default, [place(node) for node in new.history_targets]
        yield "tags", "tags", sorted(old.tags), sorted(new.tags)
        yield "description", "description", old.description, new.description
        yield "meta", "meta", old.meta, new.meta
        if old.parent is None:
            return
        yield "id", "id", _own_id(old), _own_id(new)

    def _target_of(self, node: Node | None) -> str | None:
        if node is None:
            return None
        twin = self.twins.get(node.index)
        return f"{place(node)} (removed)" if twin is None else place(twin)

    @staticmethod
    def _invokes(node: Node) -> list[Any]:
        made = []
        for n, invoke in enumerate(node.invokes):
            src = invoke.src
            if "task" in src:
                params = plain(src["task"])
                src = f"task {params.get('name')} ({params.get('type')})"
            id_ = None if invoke.id == f"{n}.{node.id}" else invoke.id
            made.append({"id": id_, "src": src, "input": plain(invoke.input)})
        return made

    # transitions

    def _transitions(self, old: Node, new: Node) -> Iterator[Change]:
        before, after = _lists(old), _lists(new)
        for key in dict.fromkeys([*before, *after]):
            was, is_ = before.get(key, []), after.get(key, [])
            first = is_[0] if is_ else was[0]
            name = f"{place(new)} on {event_words(first.source, first.event)}"
            yield from self._listed(name, was, is_)

    def _listed(self, name: str, old: list[Transition], new: list[Transition]) -> Iterator[Change]:
        """The transitions of one event: asked in order, so their order is meaning."""
        before = [self._shape(t, old=True) for t in old]
        after = [self._shape(t, old=False) for t in new]
        pairs, gone, came = _matched(before, after)
        for n in gone:
            yield Change("removed", "transition", name, old[n].path, _arrow(before[n]))
        for n in came:
            yield Change("added", "transition", name, new[n].path, None, _arrow(after[n]))
        for n, m in pairs:
            for part, value in before[n].items():
                if not _same(value, after[m][part]):
                    what = "transition" if part == "targets" else f"{part} of transition"
                    yield Change("changed", what, name, new[m].path, value, after[m][part])
        kept = sorted(m for _, m in pairs)
        if [m for _, m in pairs] != kept:
            yield Change(
                "reordered", "transitions of", name, new[0].path.rpartition("/")[0],
                [_arrow(before[n]) for n, _ in pairs], [_arrow(after[m]) for m in kept],
            )  # fmt: skip

    def _shape(self, transition: Transition, *, old: bool) -> dict[str, Any]:
        targets = [self._target_of(node) if old else place(node) for node in transition.targets]
        return {
            "guard": plain_guard(transition.guard),
            "targets": targets,
            "actions": plain_actions(transition.actions),
            "reenter": transition.reenter,
            "description": transition.description,
        }

    # what the chart names

    def _named_things(self) -> Iterator[Change]:
        tables = (
            ("context", "/context", _fields(self.old.context), _fields(self.new.context)),
            ("delay", "/delays", _plain_table(self.old.delays), _plain_table(self.new.delays)),
            ("guard", "/guards", _guards(self.old), _guards(self.new)),
            ("action", "/actions", _actions(self.old), _actions(self.new)),
        )
        for what, path, before, after in tables:
            for name in dict.fromkeys([*before, *after]):
                place_ = f"{path}/{doc.escaped(name)}" if name else path
                yield from _entry(
                    what, name or "(whole)", place_, name in before, name in after, before.get(name), after.get(name)
                )
        tasks, tasks_now = _tasks(self.old), _tasks(self.new)
        for name in dict.fromkeys([*tasks, *tasks_now]):
            was, is_ = tasks.get(name), tasks_now.get(name)
            path = (is_ or was or ("", None))[0]
            yield from _task_changes(name, path, was and was[1], is_ and is_[1])
        if not _same(self.old.input_schema, self.new.input_schema):
            yield Change("changed", "inputSchema", "", "/inputSchema", self.old.input_schema, self.new.input_schema)
        if self.old.id != self.new.id:
            yield Change("changed", "id", "", "/id", self.old.id, self.new.id)


def _entry(what: str, name: str, path: str, was: bool, is_: bool, before: Any, after: Any) -> Iterator[Change]:
    if was and is_:
        if not _same(before, after):
            yield Change("changed", what, name, path, before, after)
    elif was:
        yield Change("removed", what, name, path, before)
    else:
        yield Change("added", what, name, path, None, after)


def _task_changes(name: str, path: str, before: Any, after: Any) -> Iterator[Change]:
    if before is None or after is None:
        yield from _entry("task", name, path, before is not None, after is not None, before, after)
        return
    for key in dict.fromkeys([*before, *after]):
        if not _same(before.get(key), after.get(key)):
            yield from _entry(
                "task", f"{name} {key}", f"{path}/{doc.escaped(key)}", key in before, key in after, before.get(key),
                after.get(key),
            )  # fmt: skip


def _same(one: Any, other: Any) -> bool:
    """As JSON: true is not 1, and the order of keys in an object of values is nothing."""
    return codec.encode_sorted(one) == codec.encode_sorted(other)


def _own_id(node: Node) -> str | None:
    return None if node.id.endswith(f".{node.key}") else node.id


def _arrow(shape: dict[str, Any]) -> str:
    guard = "" if shape["guard"] is None else f"[{_short(shape['guard'])}] "
    return f"{guard}→ {', '.join(shape['targets']) or '(stays)'}"


def _pairs(gone: list[Node], came: list[Node]) -> Iterator[tuple[Node, Node]]:
    """Which of the states that are gone is which of those that came: by id, by name and kind, by what it does."""
    for key in (_own_id, lambda node: f"{node.type} {node.key}", _doing):
        before, after = _unique(gone, key), _unique(came, key)
        for word, node in before.items():
            if word in after:
                yield node, after[word]
        if any(word in after for word in before):
            return


def _unique(nodes: list[Node], key: Any) -> dict[str, Node]:
    found: dict[str, list[Node]] = {}
    for node in nodes:
        word = key(node)
        if word is not None:
            found.setdefault(word, []).append(node)
    return {word: same[0] for word, same in found.items() if len(same) == 1}


def _doing(node: Node) -> str | None:
    """What a state does, in words that do not name itself: for one that was only given another name."""
    events = [
        [event_words(node, event), [[plain_guard(t.guard), [n.key for n in t.targets if n is not node]] for t in ts]]
        for event, ts in node.on.items()
    ]
    tasks = plain_actions(node.entry)
    if not events and not tasks and not node.invokes and not node.states:
        return None
    return codec.encode([node.type, list(node.states), events, tasks, len(node.always), len(node.invokes)]).decode()


def _lists(node: Node) -> dict[str, list[Transition]]:
    """The transitions of each event, under a word that does not change when the state is moved."""
    found = {_event_key(node, event): transitions for event, transitions in node.on.items()}
    return found | ({"": node.always} if node.always else {})


def _event_key(node: Node, event: str) -> str:
    if event.startswith("xstate.") and event.endswith(node.id):
        return event[: -len(node.id)] + "*"
    return event


def _matched(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Which of the transitions of one event is which: the same ones first, then those that differ least."""
    left, right = list(range(len(before))), list(range(len(after)))
    pairs: list[tuple[int, int]] = []
    for parts in ((), ("guard", "targets"), ("targets",), ("guard",)):
        waiting: dict[bytes, deque[int]] = {}
        for m in right:
            waiting.setdefault(_key(after[m], parts), deque()).append(m)
        for n in left:
            found = waiting.get(_key(before[n], parts))
            if found:
                pairs.append((n, found.popleft()))
        taken, taken_there = {n for n, _ in pairs}, {m for _, m in pairs}
        left, right = [n for n in left if n not in taken], [m for m in right if m not in taken_there]
    return sorted(pairs), left, right


def _key(shape: dict[str, Any], parts: tuple[str, ...]) -> bytes:
    return codec.encode_sorted([shape[part] for part in parts or shape])


def _fields(context: Value) -> dict[str, Any]:
    given = plain(context)
    return given if isinstance(given, dict) and "@expr" not in given else {"": given}


def _plain_table(table: dict[str, Value]) -> dict[str, Any]:
    return {name: plain(value) for name, value in table.items()}


def _tasks(chart: Chart) -> dict[str, tuple[str, Any]]:
    """By name; several of one name are told apart by a number."""
    found: dict[str, tuple[str, Any]] = {}
    for path, params in chart.tasks:
        name = str(params.get("name"))
        n = 1
        while (key := name if n == 1 else f"{name} ({n})") in found:
            n += 1
        found[key] = (path, params)
    return found


def all_transitions(chart: Chart) -> Iterator[Transition]:
    for node in chart.nodes:
        for transitions in node.on.values():
            yield from transitions
        yield from node.always


def all_actions(chart: Chart) -> Iterator[Action]:
    """Every action that a state or transition may run, the inner ones too, each once."""
    seen: set[int] = set()

    def walk(actions: Iterable[Action]) -> Iterator[Action]:
        for action in actions:
            if id(action) in seen:
                continue
            seen.add(id(action))
            yield action
            if isinstance(action, Choose):
                for _, inner in action.choices:
                    yield from walk(inner)
            elif isinstance(action, Named):
                yield from walk(action.actions)

    for node in chart.nodes:
        yield from walk([*node.entry, *node.exit, *node.initial_actions])
    for transition in all_transitions(chart):
        yield from walk(transition.actions)


def all_guards(chart: Chart) -> Iterator[Guard]:
    """Every guard that is asked somewhere, the inner ones too, each once."""
    seen: set[int] = set()

    def walk(guard: Guard | None) -> Iterator[Guard]:
        if guard is None or id(guard) in seen:
            return
        seen.add(id(guard))
        yield guard
        if isinstance(guard, (NamedGuard, Not)):
            yield from walk(guard.guard)
        elif isinstance(guard, (All, AnyOf)):
            for inner in guard.guards:
                yield from walk(inner)

    for transition in all_transitions(chart):
        yield from walk(transition.guard)
    for action in all_actions(chart):
        if isinstance(action, Choose):
            for guard, _ in action.choices:
                yield from walk(guard)


def _guards(chart: Chart) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for guard in all_guards(chart):
        if isinstance(guard, NamedGuard) and (name := guard_name(guard)) is not None:
            found[name] = plain_guard(guard, open_=True)
    return found


def _actions(chart: Chart) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for action in all_actions(chart):
        if isinstance(action, Named) and (name := action_name(action)) is not None:
            found[name] = plain_actions(action.actions)
    return found
