"""What changed between two versions of a chart: states, transitions, and what they name, as values and as lines.

Both are compared as they were compiled, so a target written `#id` and one written `sibling` are the same target, and
key order counts only where it is meaning: transitions of one event, actions of one list, regions of a parallel state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.engine import codec
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.changes import Change, Difference, short
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.nodes import Chart, Named, NamedGuard, Node, Transition, Value
from holdfast.engine.charts.pairing import Twins, matched_lists, own_id
from holdfast.engine.charts.plain import event_words, place, plain, plain_actions, plain_guard
from holdfast.engine.charts.walking import all_actions, all_guards


def difference(old: Chart | dict[str, Any], new: Chart | dict[str, Any]) -> Difference:
    """What changed. A document that is no chart is refused as publishing would refuse it."""
    compared = _Comparison(_compiled(old), _compiled(new))
    return Difference(tuple(compared.changes()))


def _compiled(given: Chart | dict[str, Any]) -> Chart:
    return given if isinstance(given, Chart) else compile_chart(doc.reread(given))


class _Comparison:
    def __init__(self, old: Chart, new: Chart) -> None:
        self.old = old
        self.new = new
        self.twins = Twins(old, new)

    def changes(self) -> Iterator[Change]:
        yield from self._states()
        for node in self.old.nodes:
            if node.index in self.twins.of:
                yield from self._inside(node, self.twins.of[node.index])
        yield from self._named_things()

    # states

    def _states(self) -> Iterator[Change]:
        for node, twin in self.twins.moves:
            yield Change("moved", "state", place(twin), twin.path, place(node), place(twin))
        for node in self.old.nodes:
            if node.index not in self.twins.of:
                yield Change("removed", "state", place(node), node.path, node.type)
        for node in self.new.nodes:
            if node.index not in self.twins.matched:
                yield Change("added", "state", place(node), node.path, None, node.type)
        for node in self.old.nodes:
            if node.index not in self.twins.of:
                continue
            twin = self.twins.of[node.index]
            if node.type != twin.type:
                yield Change("changed", "state", place(twin), twin.path, node.type, twin.type)
            if node.type == twin.type == "parallel":
                before = [self.twins.of[n.index].key for n in node.children if self._stays(n, twin)]
                kept = set(before)
                after = [n.key for n in twin.children if n.key in kept]
                if before != after:
                    yield Change("reordered", "regions of", place(twin), twin.path, before, after)

    def _stays(self, child: Node, parent: Node) -> bool:
        twin = self.twins.of.get(child.index)
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
        yield "id", "id", own_id(old), own_id(new)

    def _target_of(self, node: Node | None) -> str | None:
        if node is None:
            return None
        twin = self.twins.of.get(node.index)
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
            if not was and not is_:
                continue  # an event with an empty list is one that is not there
            first = is_[0] if is_ else was[0]
            name = f"{place(new)} on {event_words(first.source, first.event)}"
            yield from self._listed(name, was, is_)

    def _listed(self, name: str, old: list[Transition], new: list[Transition]) -> Iterator[Change]:
        """The transitions of one event: asked in order, so their order is meaning."""
        before = [self._shape(t, old=True) for t in old]
        after = [self._shape(t, old=False) for t in new]
        pairs, gone, came = matched_lists(before, after)
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


def _arrow(shape: dict[str, Any]) -> str:
    guard = "" if shape["guard"] is None else f"[{short(shape['guard'])}] "
    return f"{guard}→ {', '.join(shape['targets']) or '(stays)'}"


def _lists(node: Node) -> dict[str, list[Transition]]:
    """The transitions of each event, under a word that does not change when the state is moved."""
    found = {_event_key(node, event): transitions for event, transitions in node.on.items()}
    return found | ({"": node.always} if node.always else {})


def _event_key(node: Node, event: str) -> str:
    if event.startswith("xstate.") and event.endswith(node.id):
        return event[: -len(node.id)] + "*"
    return event


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


def _guards(chart: Chart) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for guard in all_guards(chart):
        if isinstance(guard, NamedGuard):
            found[guard.name] = plain_guard(guard, open_=True)
    return found


def _actions(chart: Chart) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for action in all_actions(chart):
        if isinstance(action, Named):
            found[action.name] = plain_actions(action.actions)
    return found
