"""A compiled chart as values: nodes numbered in document order, transitions with their targets found, actions ready.

Descent is an interval test: a node's descendants are those numbered after it up to `last`.
"""

from __future__ import annotations

from typing import Any

from holdfast.engine.charts.expressions import Program, Scope


class Value:
    """A JSON value of a chart; anything inside it may be an expression."""

    __slots__ = ()
    constant = False

    def of(self, scope: Scope) -> Any:
        raise NotImplementedError


class Constant(Value):
    __slots__ = ("value",)
    constant = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def of(self, scope: Scope) -> Any:
        return self.value


class Computed(Value):
    __slots__ = ("path", "program")

    def __init__(self, program: Program, path: str) -> None:
        self.program = program
        self.path = path

    def of(self, scope: Scope) -> Any:
        try:
            return self.program.run(scope)
        except Exception as error:
            raise StepFault(self.path, f"`{self.program.text}` failed: {error}") from None


class ComputedForTask(Computed):
    """A value of a task's parameters. Secrets are named by the chart alone: data that looks like such a reference would
    have a stranger's choice of secret sent out."""

    __slots__ = ()

    def of(self, scope: Scope) -> Any:
        value = super().of(scope)
        if type(value) in (dict, list) and _names_a_secret(value):
            words = "gave data with an @secret in it: only a chart names secrets"
            raise StepFault(self.path, f"`{self.program.text}` {words}")
        return value


def _names_a_secret(value: Any) -> bool:
    if type(value) is dict:
        return "@secret" in value or any(map(_names_a_secret, value.values()))
    return type(value) is list and any(map(_names_a_secret, value))


class ListOf(Value):
    __slots__ = ("items",)

    def __init__(self, items: list[Value]) -> None:
        self.items = items

    def of(self, scope: Scope) -> Any:
        return [item.of(scope) for item in self.items]


class ObjectOf(Value):
    __slots__ = ("items",)

    def __init__(self, items: dict[str, Value]) -> None:
        self.items = items

    def of(self, scope: Scope) -> Any:
        return {key: item.of(scope) for key, item in self.items.items()}


class StepFault(Exception):
    """A guard, assign or parameter that failed, or a loop without end: the whole step is refused, the event kept."""

    def __init__(self, path: str, message: str, cycle: list[str] | None = None) -> None:
        self.path = path
        self.cycle = cycle or []
        super().__init__(message)


# -- guards


class Guard:
    __slots__ = ("weight",)  # how many conditions asking it may ask

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight

    def holds(self, scope: Scope, active: frozenset[int]) -> bool:
        raise NotImplementedError


class ExpressionGuard(Guard):
    __slots__ = ("value",)

    def __init__(self, value: Computed) -> None:
        super().__init__()
        self.value = value

    def holds(self, scope: Scope, active: frozenset[int]) -> bool:
        answer = self.value.of(scope)
        if type(answer) is not bool:
            raise StepFault(
                self.value.path, f"the guard `{self.value.program.text}` gave {answer!r}: expected true or false"
            )
        return answer


class NamedGuard(Guard):
    """`{"type": name, "params": …}`: the guard of that name, which sees its params."""

    __slots__ = ("guard", "name", "params")

    def __init__(self, name: str, guard: Guard, params: Value | None) -> None:
        super().__init__(guard.weight)
        self.name = name
        self.guard = guard
        self.params = params

    def holds(self, scope: Scope, active: frozenset[int]) -> bool:
        before, scope.params = scope.params, None if self.params is None else self.params.of(scope)
        try:
            return self.guard.holds(scope, active)
        finally:
            scope.params = before


class All(Guard):
    __slots__ = ("guards",)

    def __init__(self, guards: list[Guard]) -> None:
        super().__init__(sum(guard.weight for guard in guards))
        self.guards = guards

    def holds(self, scope: Scope, active: frozenset[int]) -> bool:
        return all(guard.holds(scope, active) for guard in self.guards)


class AnyOf(Guard):
    __slots__ = ("guards",)

    def __init__(self, guards: list[Guard]) -> None:
        super().__init__(sum(guard.weight for guard in guards))
        self.guards = guards

    def holds(self, scope: Scope, active: frozenset[int]) -> bool:
        return any(guard.holds(scope, active) for guard in self.guards)


class Not(Guard):
    __slots__ = ("guard",)

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard.weight)
        self.guard = guard

    def holds(self, scope: Scope, active: frozenset[int]) -> bool:
        return not self.guard.holds(scope, active)


class StateIn(Guard):
    __slots__ = ("nodes",)

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__()
        self.nodes = nodes

    def holds(self, scope: Scope, active: frozenset[int]) -> bool:
        return all(node.index in active for node in self.nodes)


# -- actions


class Action:
    __slots__ = ("path", "weight")

    def __init__(self, path: str, weight: int = 1) -> None:
        self.path = path
        self.weight = weight  # how many actions running it may run


class Assign(Action):
    __slots__ = ("values",)

    def __init__(self, path: str, values: dict[str, Value]) -> None:
        super().__init__(path)
        self.values = values


class Raise(Action):
    __slots__ = ("delay", "event", "id")

    def __init__(self, path: str, event: Value, delay: Value | None, id_: str | None) -> None:
        super().__init__(path)
        self.event = event
        self.delay = delay
        self.id = id_


class Cancel(Action):
    __slots__ = ("id",)

    def __init__(self, path: str, id_: str) -> None:
        super().__init__(path)
        self.id = id_


class Choose(Action):
    __slots__ = ("choices",)

    def __init__(self, path: str, choices: list[tuple[Guard | None, list[Action]]]) -> None:
        super().__init__(path, 1 + sum(action.weight for _, actions in choices for action in actions))
        self.choices = choices


class Named(Action):
    """A named action called with params."""

    __slots__ = ("actions", "name", "params")

    def __init__(self, path: str, name: str, actions: list[Action], params: Value | None) -> None:
        super().__init__(path, 1 + sum(action.weight for action in actions))
        self.name = name
        self.actions = actions
        self.params = params


class Deed(Action):
    """What comes back as an effect: createTask, cancelTask, emit, send, log."""

    __slots__ = ("params", "type")

    def __init__(self, path: str, type_: str, params: Value | None) -> None:
        super().__init__(path)
        self.type = type_
        self.params = params


class Delay:
    """An `after` of a state: the timer it starts on entry and cancels on exit."""

    __slots__ = ("event", "path", "value")

    def __init__(self, event: str, value: Value, path: str) -> None:
        self.event = event
        self.value = value  # milliseconds or an ISO 8601 duration
        self.path = path


class Invoke:
    __slots__ = ("id", "input", "path", "src")

    def __init__(self, id_: str, src: Any, input_: Value, path: str) -> None:
        self.id = id_
        self.src = src
        self.input = input_
        self.path = path


class Transition:
    __slots__ = ("actions", "description", "event", "guard", "path", "reenter", "source", "targets")

    def __init__(
        self, source: Node, event: str, targets: tuple[Node, ...], guard: Guard | None, actions: list[Action],
        reenter: bool, path: str, description: str = "",
    ) -> None:  # fmt: skip
        self.source = source
        self.event = event  # "" for an eventless one
        self.targets = targets
        self.guard = guard
        self.actions = actions
        self.reenter = reenter
        self.path = path
        self.description = description

    def __repr__(self) -> str:
        targets = ", ".join(f"#{node.id}" for node in self.targets)
        return f"#{self.source.id} --{self.event or 'always'}--> {targets or '(stays)'}"


class Node:
    __slots__ = (
        "after", "always", "candidates", "children", "depth", "description", "entry", "exit", "history",
        "history_nodes", "history_targets", "id", "index", "initial", "initial_actions", "invokes", "key", "last",
        "meta", "on", "output", "parent", "path", "states", "tags", "type",
    )  # fmt: skip

    def __init__(self, index: int, key: str, id_: str, type_: str, parent: Node | None, path: str) -> None:
        self.index = index
        self.last = index
        self.key = key
        self.id = id_
        self.type = type_  # atomic | compound | parallel | final | history
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.path = path
        self.states: dict[str, Node] = {}
        self.children: list[Node] = []  # without history nodes
        self.history_nodes: list[Node] = []
        self.history = ""  # shallow | deep
        self.history_targets: tuple[Node, ...] = ()  # of a history node: its default; none: the parent's initial
        self.initial: Node | None = None
        self.initial_actions: list[Action] = []
        self.entry: list[Action] = []
        self.exit: list[Action] = []
        self.after: list[Delay] = []
        self.invokes: list[Invoke] = []
        self.on: dict[str, list[Transition]] = {}
        self.always: list[Transition] = []
        self.output: Value | None = None
        self.tags: list[str] = []
        self.description = ""
        self.meta: Any = None
        self.candidates: dict[str, list[Transition]] = {}  # by event type, filled as events come

    @property
    def atomic(self) -> bool:
        return self.type in ("atomic", "final")

    def keys(self) -> list[str]:
        """Its place by keys, from the chart down; the chart itself has none."""
        found: list[str] = []
        at: Node | None = self
        while at is not None and at.parent is not None:
            found.append(at.key)
            at = at.parent
        return found[::-1]

    def holds(self, other: Node) -> bool:
        """Whether `other` is a proper descendant."""
        return self.index < other.index <= self.last

    def __repr__(self) -> str:
        return f"#{self.id}"


class Chart:
    """A compiled definition. It never changes; what it memoises follows from the definition alone."""

    def __init__(self, id_: str, root: Node, nodes: list[Node]) -> None:
        self.id = id_
        self.root = root
        self.nodes = nodes
        self.by_id: dict[str, Node] = {}
        self.context: Value = Constant({})
        self.input_schema: Any = None
        self.delays: dict[str, Value] = {}
        self.version = 0
        self.hash = ""
        self.has_history = False
        self.has_always = False
        self.tasks: list[tuple[str, dict[str, Any]]] = []  # (path, params) of every task it may create
        self.workflows: list[tuple[str, str]] = []  # (path, key) of every child it may start
        self.expressions = 0
        self.timer_ids: frozenset[str] = frozenset()
        self.invoke_ids: frozenset[str] = frozenset()
        self.configurations: dict[Any, Any] = {}
        self.plans: dict[Any, Any] = {}

    def handlers(self) -> set[str]:
        """The SYSTEM handlers a worker must have registered to move an instance of this chart."""
        return {params.get("handler", params["name"]) for _, params in self.tasks if params.get("type") == "SYSTEM"}
