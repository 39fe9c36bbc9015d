"""The events of one claimed instance that no turn has taken: all but signals whole, of signals the head of each line.

Signals are read a piece at a time, so a long line costs no more per turn than a short one. This module knows what was
read, what was taken, and whether something that matters was not read yet; reading itself is the worker's business.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.store.port import ALL_NAMES, NAMES_READ, SIGNALS_READ, PendingEvent

ORDERS = frozenset(("pause", "resume", "retry", "cancel"))


class Inbox:
    def __init__(self, events: Sequence[PendingEvent], *, by_name: bool) -> None:
        """`by_name`: a line for each name, as code waits for one. Otherwise one for all, in the order of sending."""
        self._by_name = by_name
        self._read = False  # most instances are never sent anything: what is below is made when something was read
        # Whether an event stands here, and whether one of them is a cancel; plain attributes, because every turn asks
        # several times.
        self.any = self.cancels = False
        if events:
            self.fill(events, {})

    def _begin(self) -> None:
        self._read = True
        self._orders: dict[str, PendingEvent] = {}  # by id, in the order of sending
        self._facts: OrderedDict[str, PendingEvent] = OrderedDict()  # likewise; a dict is slow to give up its front
        self._lines: dict[str, deque[PendingEvent]] = {}  # none is empty
        self._more: set[str] = set()  # lines of which only the head was read
        self._whole = True  # no name was left out when names were last read
        self._asked: set[str] = set()  # names that were read one by one since then
        self._resolutions = 0  # among the facts
        self._taken: set[str] = set()  # ids taken under this claim, perhaps by a turn that is not on disk yet

    def __bool__(self) -> bool:
        return self.any

    def _look(self) -> None:
        self.any = bool(self._orders or self._facts or self._lines)
        self.cancels = any(order.kind == "cancel" for order in self._orders.values())

    @property
    def orders(self) -> list[PendingEvent]:
        """What operators said about the instance as a whole, in the order of sending."""
        return list(self._orders.values()) if self.any and self._orders else []

    @property
    def facts(self) -> Iterable[PendingEvent]:
        """Everything but orders and signals, in the order of sending. Whoever takes one must begin afresh."""
        return self._facts.values() if self.any else ()

    @property
    def resolutions(self) -> list[PendingEvent]:
        """What people said about effects, in the order of sending."""
        if not self.any or not self._resolutions:
            return []
        return [event for event in self._facts.values() if event.kind == "resolution"]

    @property
    def names(self) -> Iterator[str]:
        """The lines in which a signal stands."""
        return iter(self._lines if self.any else ())

    def first(self, name: str = "") -> PendingEvent | None:
        line = self._lines.get(name) if self.any else None
        return None if line is None else line[0]

    def find(self, id_: str | None) -> PendingEvent | None:
        """A signal that was read, by its event id."""
        lines = self._lines.values() if self.any else ()
        return next((e for line in lines for e in line if e.id == id_), None)

    def take(self, event: PendingEvent) -> None:
        """As a rule a signal is the first of its line."""
        self._taken.add(event.id)
        if event.kind != "signal":
            del (self._orders if event.kind in ORDERS else self._facts)[event.id]
            self._resolutions -= event.kind == "resolution"
        else:
            name = event.name if self._by_name else ""
            line = self._lines[name]
            if line[0].id == event.id:
                line.popleft()
            else:
                line.remove(event)
            if not line:
                del self._lines[name]
        self._look()

    def lacks(self, name: str = "") -> bool:
        """Whether a signal may wait in that line which was not read."""
        if not self._read or name in self._lines:
            return False
        return name in self._more or not (self._whole or name in self._asked)

    def asking(self, wanted: Sequence[str] | None = None) -> dict[str, Any]:
        """What to read now: `wanted` lines alone, else the heads of all lines in which nothing stands here."""
        if wanted is not None and self._by_name:
            return {"only": list(wanted)}
        lines = list(self._lines) if self.any else []
        if self._by_name:
            return {"skip": lines}
        return {"names": 0 if lines else ALL_NAMES}

    def fill(self, events: Sequence[PendingEvent], asked: dict[str, Any], *, moved: bool = True) -> None:
        """Take over what was read with these arguments. `moved`: events may have come since the last time."""
        if not self._read:
            self._begin()
        self._fill(events, asked, moved)
        self._look()

    def _fill(self, events: Sequence[PendingEvent], asked: dict[str, Any], moved: bool) -> None:
        taken = self._taken
        self._orders = {e.id: e for e in events if e.kind in ORDERS and e.id not in taken}
        others = (e for e in events if e.kind != "signal" and e.kind not in ORDERS and e.id not in taken)
        self._facts = OrderedDict((e.id, e) for e in others)
        self._resolutions = sum(e.kind == "resolution" for e in self._facts.values())
        read: dict[str, list[PendingEvent]] = {}
        for event in events:
            if event.kind == "signal":
                read.setdefault(event.name, []).append(event)
        full = {name for name, line in read.items() if len(line) >= SIGNALS_READ}
        if not self._by_name:
            self._fill_one_line(read, full, skipped=asked.get("names") == 0)
            return
        if (only := asked.get("only")) is not None:
            if moved:
                self._whole = False
                self._asked.clear()
                self._more |= self._lines.keys()
            self._asked.update(only)
            self._more = self._more.difference(only) | full
        else:
            self._whole, self._more = len(read) < NAMES_READ, full.union(asked.get("skip", ()))
            self._asked.clear()
        for name, line in read.items():
            left = deque(e for e in line if e.id not in taken)
            if left:
                self._lines[name] = left

    def _fill_one_line(self, read: dict[str, list[PendingEvent]], full: set[str], *, skipped: bool) -> None:
        if skipped:
            self._more = {""}
            return
        line = sorted((e for each in read.values() for e in each), key=sent)
        self._more = {""} if full else set()
        if full:  # of these names more may stand before what was read of the others
            last = min(sent(read[name][-1]) for name in full)
            line = [e for e in line if sent(e) <= last]
        left = deque(e for e in line if e.id not in self._taken)
        self._lines = {"": left} if left else {}


def sent(event: PendingEvent) -> tuple[int, str]:
    """The order in which events are taken."""
    return event.sent_at, event.id
