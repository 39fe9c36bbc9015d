"""Random charts with inputs and events, for comparing our interpreter with XState. One seed, one machine, always.

Every expression is written twice (twins.py), so that the machine can run on both sides.

Machines should live: events are mostly ones that somebody handles, root finals are rare, and what could run for ever
(immediate raises, eventless transitions) mostly spends from `context.fuel` or points forward. A few do loop.
`python -m tests.charts.xstate.coverage` tells how well that works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.charts.twins import PARAMS, ExpressionWriter, Scope, either, has, joined, same, value

WORDS = (
    "idle", "busy", "open", "closed", "draft", "review", "paid", "sent", "ready", "held", "north", "south", "red",
    "green", "up", "down", "first", "second", "left", "right", "asked", "told", "cold", "warm",
)  # fmt: skip
HISTORY_WORDS = ("memory", "last", "before")
FINAL_WORDS = ("done", "ended", "over")
EVENTS = ("A", "B", "C", "go", "back", "a.b", "a.b.c", "a.x", "order.paid", "order.refused", "a")
RAISED = ("i.one", "i.two", "i.three")  # a handler of one raises only later ones, unless it pays with fuel
WILDCARDS = ("*", "a.*", "a.b.*", "order.*", "i.*", "xstate.done.*", "xstate.after.*", "xstate.error.actor.*")
DELAYS = ("10", "50", "100", "900", "1000", "2000", "10000", "0")
DURATIONS = ("PT2S", "P3D", "PT1M", "PT1H30M", "P1DT12H", "PT0.5S", "P1W")
TASKS: dict[str, dict[str, Any]] = {
    "HUMAN": {"groups": ["office"]},
    "EMAIL": {"to": "ann@example.com", "subject": "News", "text": "Hello"},
}
DEPTH_MAX = 5


class Machine(NamedTuple):
    spec: dict[str, Any]  # Holdfast's JSON; the order of keys is meaning
    js: dict[str, Any]  # the same, every {"@expr"} with its twin in "@js"
    input: dict[str, Any]
    events: list[dict[str, Any]]  # also {"$timer": n}, {"$done": n, "output": v}, {"$error": n, "error": v}


@dataclass(eq=False)
class Node:
    key: str
    parent: Node | None
    kind: str = "atomic"
    children: list[Node] = field(default_factory=list)
    id: str | None = None
    ends: bool = False  # of a parallel state: all its regions can be done, and are steered there
    default: Node | None = None  # of a history state
    path: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.path = [] if self.parent is None else [*self.parent.path, self.key]

    @property
    def real_children(self) -> list[Node]:
        return [child for child in self.children if child.kind != "history"]

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()

    def ancestors(self) -> Iterator[Node]:
        if self.parent is not None:
            yield self.parent
            yield from self.parent.ancestors()

    def holds(self, other: Node) -> bool:
        return len(other.path) > len(self.path) and other.path[: len(self.path)] == self.path


def breaks_xstate(source: Node, history: Node) -> bool:
    """Transitions after which XState may be in no legal configuration, and in another one once that was stored.

    All go from inside a state to that state's history.
    - A parallel state's history without a default, still empty: the exit fills it, enterStates looks for the domain
      again and finds the parallel state itself, which was left and is not entered.
    - A default behind a parallel state: addProperAncestorStatesToEnter enters all its regions, though nobody left them.
    - It may lead back to an atomic source: then the transition exits nothing, removeConflictingTransitions lets it pass
      beside one from another region that exits the source, and the source is entered without its parents.
    """
    parent = history.parent
    if parent is None or not parent.holds(source):
        return False
    if history.default is None:
        cannot_start = parent.kind == "parallel"
    else:
        between = [node for node in history.default.ancestors() if parent.holds(node)]
        cannot_start = any(node.kind == "parallel" for node in between)
    return cannot_start or (not source.children and any(node.kind == "parallel" for node in source.ancestors()))


def random_machine(seed: int) -> Machine:
    return _Author(Random(seed)).machine()


def without_js(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_js(item) for key, item in value.items() if key != "@js"}
    if isinstance(value, list):
        return [without_js(item) for item in value]
    return value


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


FUEL_LEFT = value(same("context.fuel > 0"))
REFUEL = {
    "type": "assign",
    "assign": {"fuel": value(either(has("event.refill"), same("event.refill"), same("context.fuel")))},
}
BURN = {"type": "assign", "assign": {"fuel": value(same("context.fuel - 1"))}}


class _Author(ExpressionWriter):
    """Writes one machine: first the tree, then what hangs on it, then the events."""

    def __init__(self, random: Random) -> None:
        super().__init__(random, random.sample(EVENTS, random.randint(4, 7)))
        self.wild = random.random() < 0.006  # raises and eventless transitions without a brake
        self.labels = 0
        self.invokes = 0
        self.uses_input = random.random() < 0.4
        self.plain_guards: list[str] = []  # names that may be mentioned so far: entries mention only earlier ones
        self.guards_with: dict[str, tuple[str, ...]] = {}
        self.plain_actions: list[str] = []
        self.actions_with: dict[str, tuple[str, ...]] = {}
        self.delay_names = random.sample(("short", "long", "grace"), random.randint(1, 3))
        self.send_ids = ("reminder", "deadline")
        self.has_timers = False
        self.root = self.tree()
        self.top_states = [child.key for child in self.root.real_children]
        self.nodes = [node for node in self.root.walk() if node is not self.root]
        self.histories = [node for node in self.nodes if node.kind == "history"]
        self.parallels = [node for node in self.root.walk() if node.kind == "parallel"]

    # --- The tree ---------------------------------------------------------------------------------------------------

    def tree(self) -> Node:
        root = Node("m", None)
        wanted = min(self.random.randint(3, 40), self.random.randint(3, 40))
        grown = self.split(root, "parallel" if self.chance(0.15) else "compound")
        while grown < wanted:
            leaves = [node for node in root.walk() if node.kind == "atomic" and len(node.path) < DEPTH_MAX]
            if not leaves:
                break
            # Later leaves are deeper ones, more or less: take them more often, for towers rather than lawns.
            leaf = max(self.random.choice(leaves), self.random.choice(leaves), key=lambda node: len(node.path))
            grown += self.split(leaf, "parallel" if self.chance(0.3) else "compound")
        for node in list(root.walk()):
            self.finish(node)
        for node in root.walk():
            if node.kind == "history" and node.parent and self.chance(0.5):
                below = [one for one in node.parent.walk() if one is not node.parent and one.kind != "history"]
                node.default = self.random.choice(node.parent.real_children if self.chance(0.6) else below)
        return root

    def split(self, node: Node, kind: str) -> int:
        node.kind = kind
        count = self.random.choice((2, 2, 3) if kind == "parallel" else (1, 2, 2, 3, 3, 4))
        if node.parent is None:
            count = max(count, 2)
        node.children = [Node(key, node) for key in self.random.sample(WORDS, count)]
        return count

    def finish(self, node: Node) -> None:
        """Final and history children, and ids."""
        if node.parent is not None and self.chance(0.15):
            node.id = f"{node.key}-{len(node.path)}{self.random.randint(0, 10**6)}"
        if node.kind == "compound":
            region_that_ends = node.parent is not None and node.parent.ends
            if region_that_ends or self.chance(0.4):
                place = self.random.randint(0, len(node.children))
                node.children.insert(place, Node(self.random.choice(FINAL_WORDS), node, "final"))
        elif node.kind == "parallel":
            can_wait = any(child.kind != "atomic" for child in node.children)
            node.ends = can_wait and ((node.parent is not None and node.parent.ends) or self.chance(0.4))
            for child in node.children:
                if child.kind == "atomic" and (node.ends or self.chance(0.04)):
                    child.kind = "final"
        else:
            return
        for word in self.random.sample(HISTORY_WORDS, self.random.choice((0, 0, 0, 1, 1, 2))):
            node.children.insert(self.random.randint(0, len(node.children)), Node(word, node, "history"))

    # --- Guards -----------------------------------------------------------------------------------------------------

    def guard(self, scope: Scope, depth: int = 1) -> Any:
        kinds = ["expr"] * 5 + ["stateIn"] * 2
        if self.plain_guards:
            kinds += ["named"] * 2
        if self.guards_with:
            kinds += ["with params"] * 2
        if depth:
            kinds += ["and", "or", "or", "not"]
        match self.random.choice(kinds):
            case "expr":
                return value(self.truth(scope))
            case "stateIn":
                return {"stateIn": self.state_in()}
            case "named":
                name = self.random.choice(self.plain_guards)
                return name if self.chance(0.7) else {"type": name}
            case "with params":
                name = self.random.choice(list(self.guards_with))
                return {"type": name, "params": self.arguments(self.guards_with[name], scope)}
            case "not":
                return {"not": self.guard(scope, depth - 1)}
            case kind:
                return {kind: [self.guard(scope, depth - 1) for _ in range(self.random.choice((1, 2, 2, 3)))]}

    def state_in(self) -> Any:
        node = self.random.choice([node for node in self.nodes if node.kind != "history"])
        spelling = self.random.choice(("path", "path", "object", "id"))
        if spelling == "id":
            return self.random.choice(self.addresses(node))
        if spelling == "path" or len(node.path) == 1:
            return ".".join(node.path)
        nested: Any = node.path[-1]
        for key in reversed(node.path[:-1]):
            nested = {key: nested}
        return nested

    def arguments(self, names: tuple[str, ...], scope: Scope) -> dict[str, Any]:
        return {name: self.some(PARAMS[name], scope) for name in names}

    # --- Actions ----------------------------------------------------------------------------------------------------

    def actions(self, scope: Scope, raising: tuple[str, ...] = (), count: int | None = None) -> Any:
        """One action or several; `raising` are the events that may be raised here without paying."""
        several = [self.action(scope, raising) for _ in range(count or self.random.choices((1, 2, 3), (6, 3, 1))[0])]
        if not count and self.chance(0.1):  # params are resolved between assigns, not after them
            several += [self.assign(scope), self.log(scope), self.assign(scope), self.log(scope)]
        return several[0] if len(several) == 1 and self.chance(0.5) else several

    def action(self, scope: Scope, raising: tuple[str, ...], depth: int = 2) -> Any:
        kinds = ["assign"] * 4 + ["log"] * 3 + ["task", "later", "cancel", "fuelled raise"]
        if self.plain_actions:
            kinds += ["named"] * 2
        if self.actions_with:
            kinds += ["with params"] * 2
        if raising or self.wild:
            kinds += ["raise"] * 2
        if depth:
            kinds += ["choose"]
        match self.random.choice(kinds):
            case "assign":
                return self.assign(scope)
            case "log":
                return self.log(scope)
            case "task":
                kind = self.random.choice(list(TASKS))
                params = {"type": kind, "name": self.random.choice(WORDS), **TASKS[kind]}
                return {"type": "createTask", "params": params | {"input": self.anything(scope)}}
            case "later":
                self.has_timers = True
                delay = self.random.choice((0, 5, 250, 1000, *self.delay_names))
                sent = {"type": "raise", "event": self.event(scope, (*self.events, *RAISED)), "delay": delay}
                return sent | ({"id": self.random.choice(self.send_ids)} if self.chance(0.8) else {})
            case "cancel":
                return {"type": "cancel", "id": self.random.choice(self.send_ids)}
            case "raise":
                return {"type": "raise", "event": self.event(scope, raising or (*RAISED, *self.events))}
            case "fuelled raise":
                sent = {"type": "raise", "event": self.event(scope, (*RAISED, *RAISED, *self.events))}
                return {"type": "choose", "conds": [{"guard": FUEL_LEFT, "actions": [BURN, sent]}]}
            case "named":
                name = self.random.choice(self.plain_actions)
                return name if self.chance(0.7) else {"type": name}
            case "with params":
                name = self.random.choice(list(self.actions_with))
                return {"type": name, "params": self.arguments(self.actions_with[name], scope)}
            case _:
                return {"type": "choose", "conds": self.conds(scope, raising, depth - 1)}

    def conds(self, scope: Scope, raising: tuple[str, ...], depth: int) -> list[dict[str, Any]]:
        conds: list[dict[str, Any]] = []
        for _ in range(self.random.randint(1, 2)):
            inner = [self.action(scope, raising, depth) for _ in range(self.random.randint(1, 2))]
            conds.append({"guard": self.guard(scope), "actions": inner[0] if len(inner) == 1 else inner})
        if self.chance(0.5):
            conds.append({"actions": self.action(scope, raising, depth)})
        return conds

    def assign(self, scope: Scope) -> dict[str, Any]:
        assigned: dict[str, Any] = {}
        for key in self.random.sample(("n", "k", "f", "s", "o"), self.random.choice((1, 1, 2, 3))):
            match key:
                case "n" | "k":
                    step = joined(joined(same(f"context.{key}"), "+", self.integer(scope, 0)), "%", same("7"))
                    assigned[key] = value(step) if self.chance(0.6) else self.some("int", scope)
                case "f":
                    assigned[key] = self.some("bool", scope)
                case "s":
                    assigned[key] = self.some("text", scope)
                case _:
                    assigned[key] = self.anything(scope)
        return {"type": "assign", "assign": assigned}

    def log(self, scope: Scope) -> dict[str, Any]:
        self.labels += 1
        params = {"label": f"L{self.labels}", "n": value(same("context.n")), "x": self.anything(scope)}
        return {"type": "log", "params": params}

    def event(self, scope: Scope, types: tuple[str, ...]) -> dict[str, Any]:
        event: dict[str, Any] = {"type": self.random.choice(types)}
        for name, kind in (("v", "int"), ("flag", "bool"), ("name", "text")):
            if self.chance(0.35):
                event[name] = self.some(kind, scope)
        return event

    # --- Transitions ------------------------------------------------------------------------------------------------

    def addresses(self, node: Node) -> list[str]:
        """Every "#…" that means this node."""
        path = node.path
        found = [".".join(["#m", *path])]
        if node.id:
            found += [f"#{node.id}"] * 2
        for above in node.ancestors():
            if above.id:
                found.append(".".join([f"#{above.id}", *path[len(above.path) :]]))
        return found

    def spelled(self, source: Node, target: Node) -> str:
        spellings = self.addresses(target)
        if source.holds(target):
            spellings += ["." + ".".join(target.path[len(source.path) :])] * 3
        if source.parent is not None and source.parent.holds(target):
            spellings += [".".join(target.path[len(source.parent.path) :])] * 4
        return self.random.choice(spellings)

    def sound(self, source: Node, nodes: list[Node]) -> list[Node]:
        return [node for node in nodes if node.kind != "history" or not breaks_xstate(source, node)]

    def target(self, source: Node, leaving: bool = False) -> Any:
        """Where to; `leaving` keeps clear of the source: a done state that is entered anew is done anew, for ever."""
        if leaving and self.chance(0.9):
            outside = [node for node in self.sound(source, self.nodes) if node is not source and not source.holds(node)]
            if outside:
                return self.spelled(source, self.random.choice(outside))
        if self.parallels and self.chance(0.08):
            regions = self.random.choice(self.parallels).real_children
            if len(regions) > 1:
                chosen = self.random.sample(regions, self.random.randint(2, len(regions)))
                choices = [self.sound(source, list(region.walk())) for region in chosen]
                finals = [[node for node in choice if node.kind == "final"] for choice in choices]
                if all(finals) and self.chance(0.4):
                    choices = finals
                return [self.spelled(source, self.random.choice(choice)) for choice in choices]
        if self.chance(0.22) and (histories := self.sound(source, self.histories)):
            return self.spelled(source, self.random.choice(histories))
        if self.chance(0.012):
            return self.random.choice(("#m", ["#m"]))
        above = source.parent
        if above and above.kind == "compound" and above.parent and above.parent.ends and self.chance(0.4):
            return self.spelled(source, self.random.choice([one for one in above.children if one.kind == "final"]))
        within = source.parent.children if source.parent and self.chance(0.65) else self.nodes
        if self.chance(0.12) and source.children:
            within = [node for node in self.nodes if source.holds(node)]
        targets = [node for node in within if node.kind != "history" and (node is not source or self.chance(0.3))]
        targets = targets or self.root.real_children
        # The end of the whole machine is one transition away too often: most of those look again.
        target = self.random.choice(targets)
        if target.kind == "final" and target.parent is self.root and self.chance(0.4):
            target = self.random.choice(targets)
        return self.spelled(source, target)

    def transition(self, source: Node, raising: tuple[str, ...], guarded: float = 0.35, leaving: bool = False) -> Any:
        if self.chance(0.04):
            return {}  # forbidden: taken, and nothing happens
        made: dict[str, Any] = {}
        if self.chance(0.8):
            made["target"] = self.target(source, leaving)
        if self.chance(guarded):
            made["guard"] = self.guard(Scope())
        if self.chance(0.4 if "target" in made else 0.95):
            made["actions"] = self.actions(Scope(), raising)
        if "target" in made and self.chance(0.2):
            made["reenter"] = self.chance(0.85)
        if list(made) == ["target"] and isinstance(made["target"], str) and self.chance(0.6):
            return made["target"]
        return made

    def transitions(self, source: Node, raising: tuple[str, ...] = (), leaving: bool = False) -> Any:
        if self.chance(0.75):
            return self.transition(source, raising, leaving=leaving)
        count = self.random.randint(1, 3)
        guarded = [0.8] * (count - 1) + [0.3]
        return [self.transition(source, raising, chance, leaving) for chance in guarded]

    def always(self, source: Node) -> Any:
        """Eventless transitions that end: they point forward, pay, switch themselves off, or change nothing."""
        later: list[Node] = []
        if source.parent is not None and source.parent.kind == "compound":
            siblings = source.parent.children
            later = [node for node in siblings[siblings.index(source) + 1 :] if node.kind != "history"]
        kinds = ["pay", "pay", "pay", "off", "raise", "log", "log"] + (["forward"] * 3 if later else [])
        made: list[Any] = []
        for _ in range(self.random.choice((1, 1, 2))):
            one: dict[str, Any] = {}
            match "wild" if self.wild and self.chance(0.4) else self.random.choice(kinds):
                case "wild":
                    one = {"target": self.target(source), "guard": self.guard(Scope())}
                case "forward":
                    one["target"] = self.spelled(source, self.random.choice(later))
                    if self.chance(0.75):
                        one["guard"] = self.guard(Scope())
                    if self.chance(0.5):
                        one["actions"] = self.actions(Scope())
                case "pay":
                    one["target"] = self.target(source)
                    one["guard"] = {"and": [FUEL_LEFT, self.guard(Scope())]}
                    one["actions"] = [BURN, self.action(Scope(), ())]
                    if self.chance(0.3):
                        one["reenter"] = True
                case "off":
                    off = {"type": "assign", "assign": {"f": False}}
                    raised = {"type": "raise", "event": self.event(Scope(), RAISED)}
                    one = {"guard": value(same("context.f")), "actions": [off, raised, self.log(Scope())]}
                case "raise":  # only while the event at hand is an outer one, so that its own raise does not renew it
                    outer = joined(same("event.type"), "==", same(f'"{self.random.choice(self.events)}"'))
                    raised = {"type": "raise", "event": self.event(Scope(), RAISED)}
                    one = {"guard": value(outer), "actions": raised}
                case _:
                    one = {"actions": self.log(Scope())}
                    if self.chance(0.7):
                        one["guard"] = self.guard(Scope())
            made.append(one)
        return made[0] if len(made) == 1 and self.chance(0.6) else made

    def after(self, source: Node) -> dict[str, Any]:
        self.has_timers = True
        keys = [*self.random.sample(DELAYS, self.random.choice((0, 1, 1, 2, 3)))]
        if not keys or self.chance(0.35):
            keys += self.random.sample(DURATIONS, 1)
        if self.chance(0.35):
            keys += self.random.sample(self.delay_names, 1)
        self.random.shuffle(keys)
        return {key: self.transitions(source) for key in keys}

    def invoke(self, source: Node) -> dict[str, Any]:
        self.invokes += 1
        made: dict[str, Any] = {"src": self.random.choice(("worker", "charge", "ask.person"))}
        if self.chance(0.5):
            made["id"] = f"{self.random.choice(('job', 'call.out'))}{self.invokes}"
        if self.chance(0.6):
            made["input"] = self.anything(Scope(state=False))
        if self.chance(0.8):
            made["onDone"] = self.transitions(source)
        if self.chance(0.8):
            made["onError"] = self.transitions(source)
        return made

    # --- States -----------------------------------------------------------------------------------------------------

    def state(self, node: Node) -> dict[str, Any]:
        if node.kind == "history":
            return self.history(node)
        made: dict[str, Any] = {"id": node.id} if node.id else {}
        if node.kind in ("parallel", "final"):
            made["type"] = node.kind
        if node.kind == "compound":
            made["initial"] = self.initial(node)
        if self.chance(0.2):
            made["tags"] = self.random.choice((["slow"], ["slow", "urgent"], "urgent", ["paid"]))
        for when in ("entry", "exit"):
            if self.chance(0.35):
                made[when] = self.actions(Scope())
        if node.kind == "final":
            if self.chance(0.6):
                made["output"] = self.anything(Scope(state=False))
            return made
        if handlers := self.handlers(node):
            made["on"] = handlers
        if self.chance(0.14):
            made["always"] = self.always(node)
        if self.chance(0.2):
            made["after"] = self.after(node)
        if self.chance(0.13):
            several = [self.invoke(node) for _ in range(self.random.choice((1, 1, 1, 2)))]
            made["invoke"] = several[0] if len(several) == 1 and self.chance(0.7) else several
        if node.children:
            if node is not self.root and self.chance(0.7):
                made["onDone"] = self.transitions(node, leaving=True)
            made["states"] = {child.key: self.state(child) for child in node.children}
        return made

    def history(self, node: Node) -> dict[str, Any]:
        made: dict[str, Any] = {"id": node.id} if node.id else {}
        made["type"] = "history"
        if self.chance(0.8):
            made["history"] = self.random.choice(("shallow", "deep"))
        if node.default and node.parent:
            made["target"] = ".".join(node.default.path[len(node.parent.path) :])
        return made

    def initial(self, node: Node) -> Any:
        choice = [child for child in node.real_children if child.kind != "final"]
        if not choice or (node is not self.root and self.chance(0.03)):
            choice = node.real_children
        key = choice[0].key if self.chance(0.6) else self.random.choice(choice).key
        return {"target": key, "actions": self.actions(Scope())} if self.chance(0.25) else key

    def handlers(self, node: Node) -> dict[str, Any]:
        count = self.random.choice((0, 1, 1, 2) if node.children else (1, 2, 2, 3, 4))
        made: dict[str, Any] = {}
        for event in self.random.sample(self.events, min(count, len(self.events))):
            made[event] = self.transitions(node, RAISED)
            if self.chance(0.25) and isinstance(made[event], dict):  # nowhere else: eventless steps see the event again
                made[event]["actions"] = [REFUEL, *listed(made[event].get("actions", []))]
        for place, event in enumerate(RAISED):
            if self.chance(0.15):
                made[event] = self.transitions(node, RAISED[place + 1 :])
        if self.chance(0.14):
            for wildcard in self.random.sample(WILDCARDS, self.random.choice((1, 1, 2, 3))):
                made[wildcard] = self.transitions(node)
        order = list(made)
        self.random.shuffle(order)
        return {event: made[event] for event in order}

    # --- The whole --------------------------------------------------------------------------------------------------

    def machine(self) -> Machine:
        guards = self.named_guards()
        actions = self.named_actions()
        delays: dict[str, Any] = {name: self.random.choice((20, 3000)) for name in self.delay_names}
        if self.chance(0.6):
            computed = joined(same("10"), "*", joined(self.integer(Scope(state=False)), "+", same("1")))
            delays[self.delay_names[0]] = value(computed)
        given = {"n": self.random.randint(0, 6), "s": self.random.choice(("", "in", "x"))}
        context: dict[str, Any] = {
            "n": value(same("event.input.n")) if self.uses_input else self.random.randint(0, 6),
            "k": self.random.randint(0, 6),
            "f": self.chance(0.5),
            "s": value(same("event.input.s")) if self.uses_input else "",
            "o": 0,
            "fuel": self.random.randint(2, 8),
        }
        root = {"id": "m", "context": context, **self.state(self.root)}
        root.pop("tags", None)
        if self.chance(0.7):
            root["output"] = self.anything(Scope(state=False))
        js = root | {"guards": guards, "actions": actions, "delays": delays}
        return Machine(without_js(js), js, given, self.sent())

    def named_guards(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name in self.random.sample(("isOpen", "isLate", "mayPass"), self.random.randint(1, 3)):
            made[name] = self.guard(Scope())
            self.plain_guards.append(name)
        for name in self.random.sample(("atLeast", "matches"), self.random.randint(0, 2)):
            names = tuple(self.random.sample(list(PARAMS), self.random.randint(1, 3)))
            made[name] = self.guard(Scope(names))
            self.guards_with[name] = names
        return made

    def named_actions(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name in self.random.sample(("notify", "count", "stamp"), self.random.randint(1, 3)):
            made[name] = self.actions(Scope())
            self.plain_actions.append(name)
        for name in self.random.sample(("tell", "add"), self.random.randint(0, 2)):
            names = tuple(self.random.sample(list(PARAMS), self.random.randint(1, 3)))
            made[name] = self.actions(Scope(names))
            self.actions_with[name] = names
        return made

    def sent(self) -> list[dict[str, Any]]:
        kinds = ["event"] * 14 + ["stranger"]
        if self.has_timers:
            kinds += ["timer"] * 4
        if self.invokes:
            kinds += ["done"] * 2 + ["error"]
        events: list[dict[str, Any]] = []
        for _ in range(self.random.randint(5, 25)):
            match self.random.choice(kinds):
                case "timer":
                    events.append({"$timer": self.random.randrange(12)})
                case "done":
                    output = self.random.choice((0, 3, "x", {"r": 2}, True))
                    events.append({"$done": self.random.randrange(4), "output": output})
                case "error":
                    error = self.random.choice(("refused", {"code": 7}))
                    events.append({"$error": self.random.randrange(4), "error": error})
                case "stranger":
                    events.append({"type": self.random.choice(("nobody.knows", "a.b.zz", "i.one", "order.x"))})
                case _:
                    event: dict[str, Any] = {"type": self.random.choice(self.events)}
                    if self.chance(0.5):
                        event["v"] = self.random.randint(0, 6)
                    if self.chance(0.4):
                        event["flag"] = self.chance(0.6)
                    if self.chance(0.2):
                        event["name"] = self.random.choice(("x", "yes", "ann"))
                    if self.chance(0.2):
                        event["refill"] = self.random.randint(2, 5)
                    events.append(event)
        return events
