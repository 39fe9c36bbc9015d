"""Where an instance of one version stands in another: the map that a person wrote, and what follows from it.

It must not guess: a state without a clear place in the new version is a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.engine.charts.configurations import (
    Configuration,
    SnapshotMismatch,
    by_order,
    configuration,
    configuration_of,
    is_done,
)
from holdfast.engine.charts.document import Problem, escaped
from holdfast.engine.charts.nodes import Chart, Node
from holdfast.engine.charts.plain import place
from holdfast.engine.charts.snapshots import Snapshot
from holdfast.engine.charts.walking import upwards


class Impossible(Exception):
    """Problems that leave nothing to go on with."""


class Placing:
    def __init__(self, old: Chart, new: Chart, snapshot: Snapshot) -> None:
        self.old = old
        self.new = new
        self.snapshot = snapshot
        self.problems: list[Problem] = []
        self.map: dict[int, Node | None] = {}  # as written, by the old state's number; None: gone for good
        self.given: dict[str, str] = {}
        self.enter: list[tuple[str, Node]] = []
        self.before: Configuration
        self.after: Configuration
        self.leaves: list[tuple[Node, Node]] = []

    def problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    # -- the request

    def read(self, states: Mapping[str, str], enter: Iterable[str]) -> None:
        pin = self.snapshot.definition
        if (pin.hash, pin.version) != (self.old.hash, self.old.version):
            self.problem("", f"the instance is of version {pin.version}, not of version {self.old.version}")
            raise Impossible
        if self.snapshot.status != "active":
            self.problem("", f"the instance has ended ({self.snapshot.status}): there is nothing to migrate")
            raise Impossible
        if self.snapshot.ending is not None:
            self.problem("", "the instance is ending: it only waits for what is under way")
            raise Impossible
        try:
            self.before = configuration_of(self.old, bytes(self.snapshot.value))
        except SnapshotMismatch as error:
            self.problem("", str(error))
            raise Impossible from None
        for key, word in states.items():
            path = f"/states/{escaped(key)}"
            source, target = _find(self.old, key), _find(self.new, word) if word else None
            if source is None:
                self.problem(path, f"version {self.old.version} has no state {key!r}")
            elif word == "":
                if source.parent is None or source.parent.type != "parallel":
                    self.problem(path, f"{place(source)} is no region of a parallel state: say where it goes")
                self.map[source.index] = None
                self.given[key] = word
            elif target is None:
                self.problem(path, f"version {self.new.version} has no state {word!r}")
            elif (source.type == "history") != (target.type == "history"):
                self.problem(path, "a history state is mapped to a history state, and no other is")
            elif source.parent is None or target.parent is None:
                self.problem(path, "the chart itself is not mapped: map the states inside it")
            elif source.index in self.map:
                self.problem(path, f"{place(source)} is mapped twice")
            else:
                self.map[source.index] = target
                self.given[key] = word
        for n, word in enumerate(enter):
            target = _find(self.new, word)
            if target is None or not target.atomic:
                self.problem(f"/enter/{n}", f"version {self.new.version} has no atomic state {word!r}")
            else:
                self.enter.append((f"/enter/{n}", target))

    # -- what a state is now

    def twin(self, node: Node) -> Node | None:
        """The state that `node` is in the new version: as mapped, else inside what its parent is now."""
        if node.index in self.map:
            return self.map[node.index]
        if node.parent is None:
            return self.new.root
        above = self.twin(node.parent)
        found = None if above is None else above.states.get(node.key)
        return found if found is not None and found.type == node.type else None

    def active_twin(self, node: Node) -> Node | None:
        """What `node` is now, if the instance stands in it."""
        landed = next((leaf for source, leaf in self.leaves if source is node), None)
        twin = landed or self.twin(node)
        return twin if twin is not None and twin.index in self.after.active else None

    def recalled(self, node: Node) -> Node | None:
        """What a remembered state is now."""
        return self.twin(node) or self._collapsed(node)

    def _collapsed(self, node: Node) -> Node | None:
        """A state with states inside may have become one without: then all of them are that one."""
        for at in upwards(node):
            found = self.map.get(at.index)
            if found is not None:
                return found if found.type == "atomic" else None
        return None

    # -- where it stands

    def stand(self) -> None:
        for node in self.before.atomic:
            twin = None if self._gone(node) else self._landing(node)
            if twin is not None:
                self.leaves.append((node, twin))
        if not self.leaves and not self.problems:
            self.problem("/states", "nothing is left to stand in: map one of the regions")
        if self.problems:
            raise Impossible
        active = {node.index: node for _, leaf in self.leaves for node in upwards(leaf)}
        for path, target in self.enter:
            if target.index in active:
                self.problem(path, f"the instance stands in {place(target)} anyway: leave it out")
            active |= {node.index: node for node in upwards(target)}
        nodes = tuple(sorted(active.values(), key=by_order))
        self._check_legal(nodes, active)
        if self.problems:
            raise Impossible
        self.after = configuration(self.new, nodes)
        self._check_done()

    def _gone(self, node: Node) -> bool:
        nearest = next((at for at in upwards(node) if at.index in self.map), None)
        return nearest is not None and self.map[nearest.index] is None

    def _landing(self, node: Node) -> Node | None:
        path = f"/states/{escaped(place(node))}"
        twin = self.twin(node)
        if twin is None:
            twin = self._collapsed(node)
        if twin is None:
            self.problem(path, f"{self._why(node)}: say where it goes")
            return None
        if not twin.atomic:
            names = ", ".join(f"{place(twin)}.{key}" for key in list(twin.states)[:5])
            self.problem(path, f"{place(twin)} has states inside: name one of those ({names})")
            return None
        if twin.type == "final" and node.type != "final":
            self.problem(
                path, f"{place(twin)} is final, and being done is not something a migration can say: map {place(node)} "
                "to a state before it and send the event that ends it"
            )  # fmt: skip
            return None
        return twin

    def _why(self, node: Node) -> str:
        there = _find(self.new, place(node))
        if there is not None and not any(at.index in self.map for at in upwards(node)):
            return f"{place(node)} was {node.type} and is {there.type} in version {self.new.version}"
        for at in upwards(node):
            mapped = self.map.get(at.index)
            if mapped is not None:
                return f"{place(at)} is mapped to {place(mapped)}, which has no {node.type} state {node.key!r}"
        return f"the instance stands in {place(node)}, which version {self.new.version} does not have"

    def _check_legal(self, nodes: Iterable[Node], active: dict[int, Node]) -> None:
        for node in nodes:
            inside = [child for child in node.children if child.index in active]
            if node.type == "compound" and len(inside) > 1:
                names = " and ".join(place(child) for child in inside)
                self.problem("/states", f"the map leads to {names}, which cannot be active together")
            elif node.type == "parallel":
                for child in node.children:
                    if child.index not in active:
                        self.problem(
                            "/enter",
                            f"{place(node)} has a region {child.key!r} that no active state is mapped to: name in "
                            f"`enter` the state of {place(child)} to stand in",
                        )

    def _check_done(self) -> None:
        """A parallel state that would be done only because a region is gone: nobody would hear of it."""
        for node in self.after.nodes:
            if node.type != "parallel" or not is_done(self.after.active, node):
                continue
            sources = [source for source, leaf in self.leaves if node.holds(leaf)]
            around = [at for at in upwards(sources[0]) if at.type == "parallel"] if sources else []
            if not any(is_done(self.before.active, at) and all(at.holds(s) for s in sources) for at in around):
                self.problem(
                    "/states",
                    f"{place(node)} would be done by the migration, and nobody would hear of it: map one of its states "
                    "to one that is not final",
                )


def _find(chart: Chart, word: str) -> Node | None:
    if word.startswith("#"):
        id_, _, rest = word[1:].partition(".")
        at = chart.by_id.get(id_)
        if at is None:
            return chart.by_id.get(word[1:])
        keys = rest.split(".") if rest else []
    else:
        at, keys = chart.root, word.split(".")
    for key in keys:
        at = None if at is None else at.states.get(key)
    return at
