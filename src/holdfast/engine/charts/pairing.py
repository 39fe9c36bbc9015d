"""Which state of one version is which of the other, and which transition of a list is which.

A state is found by its place; one that is gone here and came there is one that moved, if it is clear which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from holdfast.engine import codec
from holdfast.engine.charts.nodes import Chart, Node
from holdfast.engine.charts.plain import event_words, plain_actions, plain_guard


class Twins:
    """The states of the old version and what they are in the new one."""

    def __init__(self, old: Chart, new: Chart) -> None:
        self.old = old
        self.new = new
        self.of: dict[int, Node] = {}  # by the old state's number, the new state that it is
        self.moves: list[tuple[Node, Node]] = []
        self._match(old.root, new.root)
        self._find_moves()
        self.matched = {node.index for node in self.of.values()}

    def _match(self, old: Node, new: Node) -> None:
        self.of[old.index] = new
        for key, child in old.states.items():
            twin = new.states.get(key)
            if twin is not None:
                self._match(child, twin)

    def _find_moves(self) -> None:
        found = True
        while found:
            found = False
            here = {node.index for node in self.of.values()}
            gone = [node for node in self.old.nodes if node.index not in self.of and self._top(node)]
            came = [node for node in self.new.nodes if node.index not in here and self._known(node, here)]
            for node, twin in _pairs(gone, came):
                self.moves.append((node, twin))
                self._match(node, twin)
                found = True

    def _top(self, node: Node) -> bool:
        return node.parent is None or node.parent.index in self.of

    def _known(self, node: Node, here: set[int]) -> bool:
        return node.parent is None or node.parent.index in here


def own_id(node: Node) -> str | None:
    return None if node.id.endswith(f".{node.key}") else node.id


def _pairs(gone: list[Node], came: list[Node]) -> Iterator[tuple[Node, Node]]:
    """Which of the states that are gone is which of those that came: by id, by name and kind, by what it does."""
    for key in (own_id, lambda node: f"{node.type} {node.key}", _doing):
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


def matched_lists(
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
