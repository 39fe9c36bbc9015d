"""Instances that wait, and were busy lately: their bodies stay in memory, so that the next wake need not replay them.

A body may go on only where nothing was written since: the claim is the very next one, by the same incarnation of the
worker, and the head of the history is the one it left. Anything else, and the body is unwound and replayed as ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.store.port import Head

if TYPE_CHECKING:
    from holdfast.worker.execution import Execution

KEPT_MAX = 100  # by default
BYTES_MAX = 32 << 20  # of all that is kept, estimated
IDLE_SECONDS = 60.0  # how long one that nobody wakes is kept, and how soon a second wake counts as busy
REMEMBERED = 10_000  # instances of which we know when they were last handed back


class Kept:
    def __init__(self, most: int, time: Callable[[], float]) -> None:
        self._most = most
        self._time = time
        self._bodies: OrderedDict[bytes, tuple[Execution, int, float]] = OrderedDict()  # with size and since when
        self._bytes = 0
        self._seen: OrderedDict[bytes, float] = OrderedDict()  # handed back here, the longest ago first
        self._offered = False  # a claim is on its way that counts on what is here

    def __len__(self) -> int:
        return len(self._bodies)

    def keep(self, execution: Execution) -> bool:
        """Whether this body stays: it waits for nothing but time, signals and children, and was handed back lately."""
        if not self._most:
            return False
        now, id_ = self._time(), execution.id
        busy = now - self._seen.pop(id_, float("-inf")) < IDLE_SECONDS
        self._seen[id_] = now
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        size = execution.weight()
        if not busy or size > BYTES_MAX or not execution.rests():
            return False
        self.drop(id_)  # of an earlier claim, whose hand-back is answered only now
        self._bodies[id_] = (execution, size, now)
        self._bytes += size
        self._trim()
        return id_ in self._bodies

    def offer(self) -> dict[bytes, Head]:
        """What a claim may count on, by instance; it stays here until the claim is `settled`."""
        self._drop_idle()
        self._offered = True
        return {
            id_: Head(execution.tenant_id, execution.fence, execution.seq, execution.hash)
            for id_, (execution, _, _) in self._bodies.items()
            if execution.is_current()
        }

    def settled(self) -> None:
        self._offered = False
        self._trim()

    def take(self, tenant_id: str, id_: bytes) -> Execution | None:
        found = self._bodies.get(id_)
        if found is None or found[0].tenant_id != tenant_id:
            return None
        del self._bodies[id_]
        self._bytes -= found[1]
        return found[0]

    def drop(self, id_: bytes) -> None:
        found = self._bodies.pop(id_, None)
        if found is not None:
            self._bytes -= found[1]
            found[0].close()

    def drop_all(self) -> None:
        for id_ in list(self._bodies):
            self.drop(id_)

    def _drop_idle(self) -> None:
        while self._bodies:
            id_, (_, _, since) = next(iter(self._bodies.items()))
            if self._time() - since < IDLE_SECONDS:
                return
            self.drop(id_)

    def _trim(self) -> None:
        while not self._offered and (len(self._bodies) > self._most or self._bytes > BYTES_MAX):
            self.drop(next(iter(self._bodies)))
