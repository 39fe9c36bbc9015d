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
from holdfast.engine.turns import Outcome, Turn
from holdfast.store.port import Store

log = structlog.get_logger("holdfast.committer")
Done = Callable[[Outcome | BaseException], None]
# Beyond this a caller is better served by an error that says "not known yet" than by silence.
GIVE_UP_SECONDS = 30.0


class Watch(Protocol):
    """Who counts what was committed."""

    def committed(self, batch: Sequence[tuple[Turn, Done]], seconds: float | None) -> None:
        """Turns that are on disk, each with the one who is told. `seconds`: None where it was no batch."""
        ...


class Committer:
    def __init__(self, store: Store, worker_id: bytes | None = None, watch: Watch | None = None) -> None:
        self.store = store
        self.worker_id = worker_id
        self.watch = watch
        self._pending: deque[tuple[Turn, Done]] = deque()
        self._under_way = 0  # batches
        self._moved: set[bytes] = set()  # instances that they move
        self._woken: set[bytes] = set()  # instances that they wake
        self._more = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_batch: Callable[[list[Turn]], None] | None = None
        self.batches = 0
        self.turns = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self.store.writers)]

    async def close(self) -> None:
        await self._idle.wait()
        for task in self._tasks:
            task.cancel()
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
            if not self._pending:
                self._more.clear()
            self._under_way += 1
            self._moved |= moved
            self._woken |= woken
            began = loop.time()
            try:
                outcomes = await self._settle([turn for turn, _ in batch])
            finally:
                self._under_way -= 1
                self._moved -= moved
                self._woken -= woken
                if self._pending:
                    self._more.set()
            self.batches += 1
            self.turns += len(batch)
            if self.watch is not None:
                self._count(self.watch, batch, outcomes, loop.time() - began)
            self._tell(batch, outcomes)
            del batch, outcomes, moved, woken  # idle, this task must not keep the instances of its last batch in memory
            if not self._pending and not self._under_way:
                self._idle.set()

    @staticmethod
    def _count(
        watch: Watch, batch: list[tuple[Turn, Done]], outcomes: list[Outcome | BaseException], seconds: float
    ) -> None:
        committed, woken, claimed = Outcome.COMMITTED, Outcome.WOKEN, Outcome.CLAIMED
        written = [
            item
            for item, outcome in zip(batch, outcomes, strict=True)
            if outcome is committed or outcome is woken or outcome is claimed
        ]
        if not written:
            return
        try:
            watch.committed(written, seconds)
        except Exception as error:  # whoever counts must not cost anybody a turn
            log.warning("commit_not_counted", error=repr(error))

    def _tell(self, batch: list[tuple[Turn, Done]], outcomes: list[Outcome | BaseException]) -> None:
        if self.on_batch is not None:
            self.on_batch([turn for (turn, _), o in zip(batch, outcomes, strict=True) if isinstance(o, Outcome)])
        for (turn, done), outcome in zip(batch, outcomes, strict=True):
            try:
                done(outcome)
            except Exception:
                log.exception(
                    "turn_callback_failed", tenant_id=turn.tenant_id, instance_id=ids.instance_word(turn.instance_id)
                )

    def _take(self) -> tuple[list[tuple[Turn, Done]], set[bytes], set[bytes]]:
        """The next batch, and which instances it moves and wakes: no instance row may be both moved and woken in one
        statement, nor in two at once."""
        taken: list[tuple[Turn, Done]] = []
        put_off: list[tuple[Turn, Done]] = []
        moved: set[bytes] = set()
        woken: set[bytes] = set()
        held: set[bytes] = set()  # those put off: their next turns must not overtake them
        busy_moved, busy_woken = self._moved, self._woken
        pending, limit = self._pending, self.store.batch_limit
        while pending and len(taken) < limit:
            item = pending.popleft()
            turn = item[0]
            mine = turn.instance_id
            if turn.history and (
                mine in moved or mine in busy_moved or mine in woken or mine in busy_woken or mine in held
            ):
                put_off.append(item)
                held.add(mine)
                continue
            if turn.events or turn.starts:
                to_wake = {e.instance_id for e in turn.events}
                born = {s.id for s in turn.starts}
                if (
                    not to_wake.isdisjoint(moved)
                    or not to_wake.isdisjoint(busy_moved)
                    or not to_wake.isdisjoint(busy_woken)
                    or not to_wake.isdisjoint(held)
                    or not born.isdisjoint(moved)
                    or not born.isdisjoint(busy_moved)
                ):
                    put_off.append(item)
                    if turn.history:
                        held.add(mine)
                    continue
                moved |= born
                woken |= to_wake
            if turn.history:
                moved.add(mine)
            taken.append(item)
        pending.extendleft(reversed(put_off))
        return taken, moved, woken

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
                log.warning("commit_failed", turns=len(left), error=repr(error))
                if self.store.blames_the_data(error):
                    outcomes.update(await self._one_by_one(turns, left, error))
                    break
                if loop.time() > deadline:
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
