"""Which states of a chart are active together, and everything that follows from that alone."""

from __future__ import annotations

from typing import Any

from holdfast.engine import codec
from holdfast.engine.charts.nodes import Chart, Node
from holdfast.engine.errors import HoldfastError

MEMO_MAX = 5_000


class SnapshotMismatch(HoldfastError):
    """A snapshot that names something its definition version does not have."""

    code = "snapshot_mismatch"


class Configuration:
    """Which states are active, and everything that follows from it."""

    __slots__ = ("active", "atomic", "inner", "nodes", "raw", "reacts", "state", "text", "value")

    def __init__(self, chart: Chart, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes
        self.active = frozenset(node.index for node in nodes)
        self.atomic = [node for node in nodes if node.type in ("atomic", "final")]
        self.inner: dict[int, list[Node]] = {}
        for node in nodes:
            if node.parent is not None:
                self.inner.setdefault(node.parent.index, []).append(node)
        self.value = self._value(chart.root)
        self.raw = codec.encode(self.value)
        tags = list(dict.fromkeys(tag for node in nodes for tag in node.tags))
        self.state = {"value": self.value, "tags": tags}
        self.text = ", ".join(_words(self.value))
        self.reacts: dict[str, bool] = {}  # whether any active state has a transition for that event

    def _value(self, node: Node) -> Any:
        children = self.inner.get(node.index, [])
        if node.type == "compound" and children and children[0].atomic:
            return children[0].key
        return {child.key: self._value(child) for child in children}


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [f"{key}.{word}" if word else key for key, inner in value.items() for word in _words(inner) or [""]]


def configuration(chart: Chart, nodes: tuple[Node, ...]) -> Configuration:
    key = tuple(node.index for node in nodes)
    found: Configuration | None = chart.configurations.get(key)
    if found is None:
        if len(chart.configurations) > MEMO_MAX:
            chart.configurations.clear()
        found = chart.configurations[key] = Configuration(chart, nodes)
        chart.configurations[found.raw] = found
    return found


def configuration_of(chart: Chart, raw: bytes) -> Configuration:
    """From a stored value. Refuses one that this version of the chart does not have."""
    found: Configuration | None = chart.configurations.get(raw)
    if found is not None:
        return found
    nodes = [chart.root]
    try:
        _collect(chart.root, codec.decode(raw), nodes)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SnapshotMismatch(
            f"the snapshot stands in {raw.decode(errors='replace')[:200]}, which version {chart.version} of "
            f"{chart.id!r} does not have ({error}): migrate it with a state map"
        ) from None
    return configuration(chart, tuple(sorted(nodes, key=by_order)))


def _collect(node: Node, value: Any, nodes: list[Node]) -> None:
    if isinstance(value, str):
        value = {value: None}
    if node.type == "parallel":
        if value.keys() != {child.key for child in node.children}:
            raise ValueError(f"{node!r} has other regions")
    elif node.type == "compound":
        if len(value) != 1:
            raise ValueError(f"{node!r} is in one state at a time")
    elif value:
        raise ValueError(f"{node!r} has no states inside")
    for key, inner in value.items():
        child = node.states[key]
        if child.type == "history":
            raise ValueError(f"{child!r} is a history state")
        nodes.append(child)
        if inner is None:
            if not child.atomic:
                raise ValueError(f"{child!r} has states inside")
        else:
            _collect(child, inner, nodes)


def is_done(active: frozenset[int], node: Node) -> bool:
    """Whether a state has come to its end: a final one inside it, or in each of its regions."""
    if node.type == "compound":
        return any(child.type == "final" and child.index in active for child in node.children)
    if node.type == "parallel":
        return all(is_done(active, child) for child in node.children)
    return node.type == "final"


def by_order(node: Node) -> int:
    return node.index
