"""The group committer: takes whatever turns are pending, commits them in one transaction, tells each its outcome.

There is no artificial delay: while one batch is on its way to disk the next one gathers. A lost reply is never
guessed at: the turn's own row is looked for, and what is not there is committed again under the same identity.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from holdfast.engine import ids
from holdfast.engine.interrupts import is_interrupt
from holdfast.engine.turns import Outcome, Turn
from holdfast.store.port import Store, without_values
from holdfast.store.tended import Tended

log = structlog.get_logger("holdfast.committer")
Done = Callable[[Outcome | BaseException], None]
# Beyond this a caller is better served by an error that says "not known yet" than by silence. A worker's turns have no
# caller: they wait for a database that is away, with the results that they hold.
GIVE_UP_SECONDS = 30.0


class Watch(Protocol):
    """Who counts what was committed."""

    def committed(self, batch: Sequence[tuple[Turn, Done]], seconds: float | None) -> None:
        """Turns that are on disk, each with the one who is told. `seconds`: None where it was no batch."""
        ...

    def waited(self, queue: str, seconds: Sequence[float], at_once: int = 0) -> None:
        """How long those were due who were claimed together; and how many were claimed as they were started."""
        ...


class Committer:
    def __init__(self, store: Store, worker_id: bytes | None = None, watch: Watch | None = None) -> None:
        self.store = store
        self.worker_id = worker_id
        self.watch = watch
        self._pending: deque[tuple[Turn, Done]] = deque()
        self._lines: dict[bytes, deque[tuple[Turn, Done]]] = {}  # turns that wait, by instance; none is empty
        self._waiting = 0  # turns in them, each counted once
        self._free: deque[bytes] = deque()  # instances that no batch under way touches any more, and that have a line
        self._under_way = 0  # batches
        self._moved: set[bytes] = set()  # instances that they move
        self._woken: set[bytes] = set()  # instances that they wake
        self._more = asyncio.Event()
        self._tended: list[Tended] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_batch: Callable[[list[Turn]], None] | None = None
        self.batches = 0
        self.turns = 0
        self.hurry = False  # the worker ends: what the database does not take now, it never will

    def start(self) -> None:
        self._tended = [Tended("committer", self._run) for _ in range(self.store.writers)]
        for tended in self._tended:
            tended.start()

    @property
    def is_down(self) -> bool:
        return any(tended.is_down for tended in self._tended)

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return [tended.task for tended in self._tended if tended.task is not None]

    async def close(self) -> None:
        await self._idle.wait()
        await self.stop()

    async def stop(self) -> None:
        """At once: what is pending is dropped, and what is on its way may or may not arrive."""
        for tended in self._tended:
            tended.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def submit(self, turn: Turn, done: Done) -> None:
        self._pending.append((turn, done))
        self._idle.clear()
        self._more.set()

    async def commit(self, turn: Turn, told: Done | None = None) -> Outcome:
        """`told` hears of the outcome first, and also when nobody waits for this any more."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome | BaseException) -> None:
            try:
                if told is not None:
                    told(outcome)
            finally:
                if future.done():
                    pass
                elif isinstance(outcome, BaseException):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

        self.submit(turn, done)
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._more.wait()
            batch, moved, woken = self._take()
            if not batch:
                # Everything pending touches an instance of a batch under way: its end will wake us.
                self._more.clear()
                continue
            if not self._pending and not self._free:
                self._more.clear()
            self._under_way += 1
            self._moved |= moved
            self._woken |= woken
            began = loop.time()
            try:
                try:
                    outcomes = await self._settle([turn for turn, _ in batch])
                finally:
                    self._under_way -= 1
                    self._set_free(moved, woken)
                    if self._pending or self._free:
                        self._more.set()
            except BaseException as error:  # cancelled in the middle: nobody must wait for an answer that never comes
                cut_off = error if isinstance(error, Exception) else RuntimeError("the commit was cut off")
                self._tell(batch, [cut_off] * len(batch))
                self._rest()
                raise
            self.batches += 1
            self.turns += len(batch)
            if self.watch is not None:
                self._count(self.watch, batch, outcomes, loop.time() - began)
            self._tell(batch, outcomes)
            del batch, outcomes, moved, woken  # idle, this task must not keep the instances of its last batch in memory
            self._rest()

    def _rest(self) -> None:
        if not self._pending and not self._under_way and not self._waiting:
            self._idle.set()

    @staticmethod
    def _count(
        watch: Watch, batch: list[tuple[Turn, Done]], outcomes: list[Outcome | BaseException], seconds: float
    ) -> None:
        written = _written(batch, outcomes)
        if not written:
            return
        try:
            watch.committed(written, seconds)
        except Exception as error:  # whoever counts must not cost anybody a turn
            log.warning("commit_not_counted", error=repr(error))

    def _tell(self, batch: list[tuple[Turn, Done]], outcomes: list[Outcome | BaseException]) -> None:
        if self.on_batch is not None:
            try:
                self.on_batch([turn for turn, _ in _written(batch, outcomes)])
            except Exception:  # whoever is told must not cost anybody a turn
                log.exception("batch_not_told")
        for (turn, done), outcome in zip(batch, outcomes, strict=True):
            try:
                done(outcome)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                log.exception(
                    "turn_callback_failed", tenant_id=turn.tenant_id, instance_id=ids.instance_word(turn.instance_id)
                )

    def _set_free(self, moved: set[bytes], woken: set[bytes]) -> None:
        """A batch that moved and woke these is over."""
        self._moved -= moved
        self._woken -= woken
        if self._lines:
            self._free.extend(self._lines.keys() & (moved | woken))

    def _take(self) -> tuple[list[tuple[Turn, Done]], set[bytes], set[bytes]]:
        """The next batch, and which instances it moves and wakes: no instance row may be both moved and woken in one
        statement, nor in two at once. A turn that has to wait joins the line of every instance it touches: none
        overtakes it there, and it is looked at again only when one of those instances is free."""
        taken: list[tuple[Turn, Done]] = []
        moved: set[bytes] = set()
        woken: set[bytes] = set()
        busy_moved, busy_woken, lines = self._moved, self._woken, self._lines
        pending, limit = self._pending, self.store.batch_limit
        if self._free:
            # Half a batch at most while others wait: a long line for one instance must not keep its neighbours out.
            self._take_from_lines(taken, moved, woken, (limit + 1) // 2 if pending else limit)
        while pending and len(taken) < limit:
            item = pending.popleft()
            turn = item[0]
            if len(turn.starts) == 1 and not turn.events and not turn.history:  # a start: what doors write most
                born = turn.starts[0].id
                if not (born in moved or born in busy_moved or born in lines):
                    moved.add(born)
                    taken.append(item)
                    continue
                touched = {born}
            elif turn.events or turn.starts or not turn.history:
                touched = _touched(turn)
                if lines.keys().isdisjoint(touched) and self._admits(turn, moved, woken):
                    _add(turn, moved, woken)
                    taken.append(item)
                    continue
            else:
                mine = turn.instance_id
                if not (
                    mine in moved or mine in busy_moved or mine in woken or mine in busy_woken or mine in lines
                ):  # fmt: skip
                    moved.add(mine)
                    taken.append(item)
                    continue
                touched = {mine}
            for id_ in touched:
                lines.setdefault(id_, deque()).append(item)
            self._waiting += 1
        return taken, moved, woken

    def _take_from_lines(
        self, taken: list[tuple[Turn, Done]], moved: set[bytes], woken: set[bytes], limit: int
    ) -> None:
        """Turns that stand first in all their lines, from the instance that was freed first on. One that must wait
        longer is looked at again when the instance it waits for is freed: no need to remember it here."""
        lines = self._lines
        while self._free:
            id_ = self._free[0]
            while (line := lines.get(id_)) is not None:
                if len(taken) >= limit:
                    return
                item = line[0]
                touched = _touched(item[0])
                if any(lines[other][0] is not item for other in touched) or not self._admits(item[0], moved, woken):
                    break
                _add(item[0], moved, woken)
                taken.append(item)
                self._waiting -= 1
                for other in touched:
                    lines[other].popleft()
                    if not lines[other]:
                        del lines[other]
            self._free.popleft()

    def _admits(self, turn: Turn, moved: set[bytes], woken: set[bytes]) -> bool:
        """Whether a batch that moves and wakes these may hold this turn, too, beside those under way."""
        if turn.history:
            mine = turn.instance_id
            if mine in moved or mine in self._moved or mine in woken or mine in self._woken:
                return False
        for event in turn.events:
            to = event.instance_id
            if to in moved or to in self._moved or to in self._woken:
                return False
        return not any(born.id in moved or born.id in self._moved for born in turn.starts)

    async def _settle(self, turns: list[Turn]) -> list[Outcome | BaseException]:
        """Commit, whatever it takes: after an error, look for each turn before trying it again."""
        outcomes: dict[int, Outcome | BaseException] = {}
        left = list(range(len(turns)))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GIVE_UP_SECONDS
        pause = 0.02
        while left:
            try:
                found = await self.store.commit(self.worker_id, [turns[n] for n in left])
                outcomes.update(zip(left, found, strict=True))
                break
            except Exception as error:
                log.warning("commit_failed", turns=len(left), error=without_values(error))
                if self.store.blames_the_data(error):
                    outcomes.update(await self._one_by_one(turns, left, error))
                    break
                if self.hurry or (loop.time() > deadline and not self._waits_out(error)):
                    outcomes.update((n, error) for n in left)
                    break
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
            try:
                there = await self.store.look_up(self.worker_id, [turns[n] for n in left])
            except Exception as error:
                log.warning("look_up_failed", turns=len(left), error=repr(error))
                continue
            outcomes.update((n, outcome) for n, outcome in zip(left, there, strict=True) if outcome is not None)
            left = [n for n, outcome in zip(left, there, strict=True) if outcome is None]
        return [outcomes[n] for n in range(len(turns))]

    def _waits_out(self, error: Exception) -> bool:
        return self.worker_id is not None and self.store.is_away(error)

    async def _one_by_one(
        self, turns: list[Turn], left: list[int], error: Exception
    ) -> dict[int, Outcome | BaseException]:
        """The database refused what one of them holds: that one alone fails, its neighbours are committed."""
        if len(left) == 1:
            return {left[0]: error}
        outcomes: dict[int, Outcome | BaseException] = {}
        for n in left:
            [outcomes[n]] = await self._settle([turns[n]])
        return outcomes


def _touched(turn: Turn) -> set[bytes]:
    """The instances whose rows a turn writes."""
    touched = {event.instance_id for event in turn.events}
    touched.update(born.id for born in turn.starts)
    if turn.history:
        touched.add(turn.instance_id)
    return touched


def _add(turn: Turn, moved: set[bytes], woken: set[bytes]) -> None:
    woken.update(event.instance_id for event in turn.events)
    moved.update(born.id for born in turn.starts)
    if turn.history:
        moved.add(turn.instance_id)


def _written(batch: list[tuple[Turn, Done]], outcomes: list[Outcome | BaseException]) -> list[tuple[Turn, Done]]:
    committed, woken, claimed = Outcome.COMMITTED, Outcome.WOKEN, Outcome.CLAIMED
    return [
        item
        for item, outcome in zip(batch, outcomes, strict=True)
        if outcome is committed or outcome is woken or outcome is claimed
    ]
