"""A worker: claims due instances, keeps their executions moving, hands them back, and steps aside when fenced."""

from __future__ import annotations

import asyncio
import heapq
import os
import random
import socket
import traceback
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from uuid_utils import uuid4

from holdfast.app.dead_letters import just_written
from holdfast.app.definitions import Charts
from holdfast.app.quarantine import Quarantine
from holdfast.app.registry import OURS, Definition, TaskHandler
from holdfast.engine import codec, ids
from holdfast.engine.effects import LEASE, LEASE_MARGIN
from holdfast.engine.errors import DefinitionNotFound
from holdfast.engine.interrupts import is_interrupt
from holdfast.engine.journal import HOLE
from holdfast.engine.replay import Call
from holdfast.engine.retry import storable
from holdfast.engine.scope import Whose, fields_of
from holdfast.engine.signatures import signature_of
from holdfast.engine.stacks import error_payload, message_of, spelled, traceback_text, type_of
from holdfast.engine.turnloop import hold_generators
from holdfast.engine.turns import Change, DeadLetter, NewInstance, Outcome, Turn
from holdfast.handlers.calls import Threads, call_in_thread
from holdfast.store.committer import Committer, Watch
from holdfast.store.port import (
    Claimed,
    PendingEvent,
    Place,
    claimed_at_birth,
    lost_words,
    missing,
    since_bytes,
    without_values,
)  # fmt: skip
from holdfast.store.tended import OwnTask, Tended, own_task
from holdfast.worker import running, step_tasks, world
from holdfast.worker.acknowledged import Acknowledged, Row
from holdfast.worker.charts import ChartExecution
from holdfast.worker.evidence import Evidence, shown
from holdfast.worker.execution import Execution
from holdfast.worker.kept import KEPT_MAX, Kept
from holdfast.worker.running import Tracing
from holdfast.worker.standing import Phase
from holdfast.worker.troubles import Troubles
from holdfast.worker.turns import UnderClaim, source_line

if TYPE_CHECKING:
    from holdfast.app.registry import Registry
    from holdfast.store.port import Store
    from holdfast.worker.liveness import Liveness

log = structlog.get_logger("holdfast.worker")
CLAIM_MAX = 500
HEAR_SECONDS = 0.2  # how often a worker asks whether charts were published elsewhere
POLL_FIRST = 0.05  # the pause before polling again grows from here to poll_seconds while nothing happens
AFTER_ONE = 20_000  # microseconds until we look again after a single instance was claimed
UNREADABLE = 60_000_000  # microseconds until an instance whose history cannot be read is tried again
RECORD_SECONDS = 2.0  # beyond the grace of a stop, to put on record what is under way
ATTEMPTS_LIMIT = 5  # claims in a row whose worker died before it had committed a turn; the last three of them alone
ALONE_SECONDS = 30.0  # from then on a claim without a committed turn is no reason to hold others back


def _migrations(events: Sequence[PendingEvent]) -> list[int]:
    """The versions that these events want an instance moved to."""
    return [codec.decode(event.payload)["version"] for event in events if event.kind == "migrate"]


def salts() -> Callable[[], bytes]:
    """Sixteen random bytes at a time, fetched from the system in larger pieces. Any thread may ask: on SQLite a
    transaction step's turn is sealed in the writer's, while others are sealed here."""
    pieces: list[bytes] = []

    def salt() -> bytes:
        try:
            return pieces.pop()
        except IndexError:
            piece = os.urandom(4096)
            pieces.extend([piece[at : at + 16] for at in range(16, 4096, 16)])
            return piece[:16]

    return salt


class Worker:
    def __init__(
        self, store: Store, registry: Registry, liveness: Callable[[bytes], Liveness], *, concurrency: int = 200,
        queue: str = "default", poll_seconds: float = 1.0, payload_limit: int = codec.PAYLOAD_LIMIT,
        verbose: bool = False, threads: int = 32, seed: int | None = None,
        on_ended: Callable[[bytes, Change, BaseException | None], None] | None = None,
        on_committed: Callable[[Turn], None] | None = None,
        charts: Charts | None = None, handlers: dict[str, TaskHandler] | None = None, watch: Watch | None = None,
        tracing: Tracing | None = None, kept: int = KEPT_MAX,
    ) -> None:  # fmt: skip
        self.store = store
        self.registry = registry
        self.charts = charts or Charts(store, registry)
        self._handlers = handlers or {}  # the built-in ones, by type of task
        self.concurrency = concurrency
        self.queue = queue
        self.poll_seconds = poll_seconds
        self.payload_limit = payload_limit
        self.verbose = verbose
        self.watch = watch
        self.tracing = tracing
        self.attempts_limit = ATTEMPTS_LIMIT
        self.entropy = random.Random(seed)
        self.pool = Threads(threads)
        self.now = store.now
        self.id = b""
        self.loop = asyncio.get_running_loop()
        self.executions: dict[bytes, UnderClaim] = {}
        self.alone = False
        self.stopping = False
        self.acknowledged = Acknowledged()
        self._gone_rows: list[Row] = []  # whose instances are stopped, while the database is about to be held back
        self.quarantine = Quarantine(store, self._look_back, self._held_back)  # nothing is claimed from a restored one
        self.wakeup = asyncio.Event()
        self._make_liveness = liveness
        self._on_ended = on_ended
        self._on_committed = on_committed
        self._timers: list[tuple[int, bytes]] = []  # when to look at which of our executions
        self.salt = salts()
        self._tasks: set[OwnTask] = set()
        self._hooks: set[step_tasks.HookTask] = set()
        self.kept = Kept(kept, self.loop.time)
        self.evidence = Evidence(store, self.spawn)
        self._reading: dict[UnderClaim, bool] = {}  # whose events are being read, and whether to read them again
        self._claiming = Tended("claiming", self._run)
        self._suspects_at = 0.0
        self.alone_seconds = ALONE_SECONDS
        self.troubles = Troubles()
        self._more_likely = True  # the last claim found something, so room is worth filling at once
        self._pause = POLL_FIRST
        self._claimed_at = 0  # the clock when due work was last asked for
        self._claimed_at_birth = 0  # since the last pass
        self._claims_in_doubt = False
        self._one_pass = asyncio.Lock()
        self._expected: set[bytes] = set()  # being born with a claim of ours, on their way to disk
        self._suspects = False  # instances wait to run alone
        self.kept_raised: dict[bytes, dict[str, BaseException]] | None = None  # see `raised_by`; only tests keep them
        self.claims_starts = False  # whether a start in this process may come with our claim
        self.look_seconds = 0.25  # how often events of other processes for instances running here are looked for
        self._looked_at = 0.0
        self._heard_at = 0.0  # when to ask again which charts were published
        self._again_as = b""  # the incarnation whose successor is on its way
        self._renewal: asyncio.Task[Any] | None = None  # what brings it, or has brought it
        self._outlived: asyncio.Task[None] | None = None  # after the stop, while a thread is in an effect's call
        self._uncancelled: set[asyncio.Task[Any]] = set()  # effects' calls that went on when they were cancelled
        self._held: set[asyncio.Task[None]] = set()  # of fenced incarnations, while a thread is in an effect's call
        self._context: Variables  # the one we were started in
        self.committer: Committer
        self.liveness: Liveness

    # -- life

    async def start(self, *, background: bool = True) -> None:
        self._context = copy_context()
        world.watch()
        if background:
            await self.quarantine.begin()
            try:
                await self.store.warm_up()
            except Exception as error:
                log.warning("not_warmed_up", error=repr(error))  # slower, that is all
        await self._register()
        if background:
            self.claims_starts = True
            self.quarantine.start(lifted=self.wakeup.set)
            self._claiming.start()

    async def _register(self) -> None:
        """A new incarnation: its id is random, so no row of an earlier one can be mistaken for ours."""
        worker_id = uuid4().bytes
        liveness = self._make_liveness(worker_id)
        known = [f"{key} v{version}" for key, version in self.registry.places()]
        known += [f"handler {name}" for name in sorted(self.registry.handler_names())]
        definitions = ", ".join(known)
        await liveness.acquire()
        try:
            await self.store.write(
                "register_worker", id=worker_id, host=socket.gethostname(), pid=os.getpid(), now=self.now(),
                liveness=liveness.word, definitions=definitions,
            )  # fmt: skip
        except BaseException:
            await liveness.forget()
            raise
        # All three at once: what is claimed under the new name must be committed under it.
        self.id, self.liveness, self.committer = worker_id, liveness, Committer(self.store, worker_id, self.watch)
        self.committer.on_batch = self._batch_committed
        self.committer.start()
        self.liveness.start(partial(self.fenced, self.id))
        log.info("worker_started", worker=ids.worker_word(self.id))

    async def stop(self, timeout: float = 30.0) -> None:
        """Claim nothing more, let what runs come to its next turn, hand back the rest."""
        self.stopping = True
        self.wakeup.set()
        deadline = asyncio.get_running_loop().time() + timeout
        if self._renewal is not None:  # what follows would stop the incarnation before, and leave the next one behind
            await asyncio.wait({self._renewal}, timeout=timeout)
        while self.executions and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        await self._cut_off_effects()
        await self._claiming.stop()
        self._abandon_all()
        self.committer.hurry = True
        await self.committer.close()
        await self.evidence.close(max(deadline - self.loop.time(), RECORD_SECONDS))
        await self.quarantine.stop()
        self.pool.shutdown(wait=False)
        outlived = self._under_way()
        await (self.liveness.hold() if outlived else self.liveness.stop())
        try:
            await self.store.release_worker(self.id, self.id, stopped=True, gone=not outlived)
        except Exception as error:  # whoever finds our lock free takes over
            log.warning("worker_not_released", worker=ids.worker_word(self.id), error=without_values(error))
        for task in [*self._tasks, *self._hooks]:
            task.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._hooks:  # an author's function may take no cancel
            await asyncio.wait(self._hooks, timeout=RECORD_SECONDS)
        if outlived:
            self._outlived = self.loop.create_task(self._outlive(outlived))
        else:
            await self.liveness.forget()
        log.info("worker_stopped", worker=ids.worker_word(self.id))

    def outlasts(self, task: asyncio.Task[Any]) -> None:
        """An effect's call goes on though it was cancelled, or may."""
        self._uncancelled.add(task)
        task.add_done_callback(self._uncancelled.discard)

    def _under_way(self) -> list[asyncio.Future[Any]]:
        """Calls of effects that cannot be stopped: in a thread, or in a coroutine that takes no cancel."""
        return [*map(asyncio.wrap_future, self.pool.effects()), *self._uncancelled]

    async def _cut_off_effects(self) -> None:
        """At the end of the grace: what becomes of an effect's call nobody knows, so that is put on record."""
        calls = {
            task: (execution, call)
            for execution in self.executions.values()
            for call in execution.open.values()
            if call.kind == "effect" and call.state.next == "start" and call.state.phase is Phase.RUNNING
            if (task := execution.running.get(call.key)) is not None
        }
        for task in calls:
            task.end()
        if calls:
            _, uncancelled = await asyncio.wait(calls, timeout=RECORD_SECONDS)
            for task in uncancelled:  # an author's code that takes no cancel: what it comes back with is evidence
                execution, call = calls[task]
                running.outlasts(execution, call, task, call.state.attempt)
                self.guard(execution, execution.arrive, call, None, asyncio.CancelledError("it took no cancel"))
            deadline = self.loop.time() + RECORD_SECONDS
            while any(one.committing for one in self.executions.values()) and self.loop.time() < deadline:
                await asyncio.sleep(0.01)

    async def _outlive(self, calls: list[asyncio.Future[Any]]) -> None:
        """Neither a thread nor a coroutine that takes no cancel can be stopped, so while one is in an effect's call
        this worker is not known to be gone. If the loop ends first, the process's end frees its lock."""
        log.warning("calls_outlive_worker", worker=ids.worker_word(self.id), calls=len(calls))
        await asyncio.wait(calls)
        await asyncio.sleep(0.01)  # for who keeps what they came back with
        while self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self.store.write("mark_stopped", now=self.now(), worker_id=self.id)
        except Exception as error:
            log.info("worker_not_marked_stopped", worker=ids.worker_word(self.id), error=repr(error))
        await self.liveness.forget()

    def _is_fenced(self) -> bool:
        """Whether this incarnation is over and the next one not here yet."""
        return self._again_as == self.id

    def fenced(self, worker_id: bytes) -> None:
        """Somebody took our instances over. Stop at once; the next incarnation starts from the rows."""
        if self.stopping or worker_id != self.id or self._again_as == worker_id:
            return  # said of an incarnation that is over, or said twice
        self._again_as = worker_id
        log.error("worker_fenced", worker=ids.worker_word(self.id), instances=len(self.executions))
        self._abandon_all()
        self._renewal = self.spawn(self._again())

    async def _again(self) -> None:
        old_committer, old_liveness = self.committer, self.liveness
        pause = 0.05
        while not self.stopping:
            try:
                await self.quarantine.again(self._again_as)
                await self._register()
                break
            except Exception as error:
                log.warning("worker_not_registered", error=repr(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
        if calls := self._under_way():
            held = self.loop.create_task(self._hold(old_liveness, calls))
            self._held.add(held)
            held.add_done_callback(self._held.discard)
        else:
            await old_liveness.stop()
            await old_liveness.forget()
        await old_committer.close()
        self.wakeup.set()

    async def _hold(self, liveness: Liveness, calls: list[asyncio.Future[Any]]) -> None:
        """Of an incarnation that was fenced while effects' calls of it cannot be stopped: until they are over it is not
        known to be gone."""
        log.warning("calls_outlive_worker", worker=ids.worker_word(self._again_as), calls=len(calls))
        await liveness.hold()
        await asyncio.wait(calls)
        await liveness.stop()
        await liveness.forget()

    def keep(self, execution: UnderClaim) -> bool:
        """Whether the body of an instance that is handed back stays in memory for its next wake."""
        return isinstance(execution, Execution) and not self.stopping and self.kept.keep(execution)

    def _abandon_all(self) -> None:
        self.kept.drop_all()
        for execution in list(self.executions.values()):
            self._abandon(execution)

    def _abandon(self, execution: UnderClaim) -> None:
        self._forget(execution)
        if self.tracing is not None:
            self.tracing.ended(execution, "let_go")
        execution.abandon()
        for key, task in list(execution.running.items()):
            # A thread cannot be stopped: its result is awaited, and kept as evidence.
            if task is not None and key not in execution.threads:
                task.end()
                call = execution.open.get(("effect", key))
                if call is not None and call.state.next == "start":
                    running.outlasts(execution, call, task, call.state.attempt)  # if it takes no cancel

    def _forget(self, execution: UnderClaim) -> None:
        """But not a later claim of the same instance, which may be here before our hand-back was answered."""
        if self.executions.get(execution.id) is execution:
            del self.executions[execution.id]

    def spawn(self, coroutine: Any) -> OwnTask:
        task = own_task(coroutine, "holdfast-work")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- claiming

    async def _run(self) -> None:
        pause = 0.05
        while not self.stopping:
            try:
                claimed, due = await self.run_once()
                pause = 0.05
            except Exception as error:
                log.warning("claim_failed", error=repr(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                continue
            if claimed:
                self._pause = POLL_FIRST
                if claimed == 1:  # all there was, as shares are larger: let it begin before we look again
                    await self._wait(self.now() + AFTER_ONE)
                    continue
                if not self.alone and len(self.executions) < self.concurrency * 3 // 4:
                    continue
            await self._wait(due)

    async def _wait(self, due: int | None) -> None:
        """Until somebody wakes us, the next timer falls due, or it is time to poll: polling is the truth."""
        seconds = self._pause = min(self._pause * 2, self.poll_seconds)
        for at in (due, self._timers[0][0] if self._timers else None):
            if at is None:
                continue
            if at <= self._claimed_at:
                # It was due and was not claimed: another's, or it waits to run alone. Look again, but not at once.
                seconds = min(seconds, POLL_FIRST)
            else:  # it falls due, or just did: another process's clock may be a little ahead of ours
                seconds = min(seconds, max(0.0, (at - self.now()) / 1_000_000) + 0.001)
        if self.wakeup.is_set():
            self.wakeup.clear()
            return
        handle = asyncio.get_running_loop().call_later(seconds, self.wakeup.set)
        await self.wakeup.wait()
        handle.cancel()
        self.wakeup.clear()

    async def run_once(self) -> tuple[int, int | None]:
        """One pass: fire timers in memory, look at what is claimed here, claim what is due. Two at once would both
        fill the same room."""
        hold_generators()
        async with self._one_pass:
            return await self._pass()

    async def _pass(self) -> tuple[int, int | None]:
        try:
            return await self._look_around()
        finally:
            self.kept.settled()

    async def _look_around(self) -> tuple[int, int | None]:
        self._fire_timers()
        await self._look_at_claims()
        await self._hear_of_charts()
        if self.alone:
            if self._unproved():
                return 0, None
            self.alone = False
        room = min(self.concurrency - len(self.executions) - len(self._expected), CLAIM_MAX)
        if room <= 0:
            self._more_likely = True  # for all we know: whoever waits must come before what is started here next
            return 0, None
        if self.stopping or self._is_fenced() or self.quarantine.holds:
            return 0, None
        worker_id = self.id
        self._more_likely = True  # until we know: the room we ask for is not given to a start meanwhile
        self._claimed_at = self.now()
        places = self._places()
        claimed: list[Claimed] = []
        due = None
        if await self._suspects_wait():
            if self._unproved():
                return 0, None  # let the others commit a turn first, so that a crash is laid at the right door
            claimed, _ = await self._claim(worker_id, places, 1, alone=True)
            self.alone = bool(claimed)
        if not claimed:
            claimed, due = await self._claim(worker_id, places, room, alone=False)
        if worker_id != self.id or self._is_fenced():
            return 0, None  # fenced meanwhile: these claims went with the old incarnation
        for row in claimed:
            if row.kind != "code":
                await self._load(row)
        if worker_id != self.id or self._is_fenced():
            return 0, None
        if claimed and await self._doubtful():
            for row in claimed:  # none of it has begun
                await self._give_back(row)
            return 0, None
        self._more_likely = bool(claimed)
        self._count_waits(claimed)
        for row in claimed:
            self.take(row)
        return len(claimed), due

    def _count_waits(self, claimed: list[Claimed]) -> None:
        at_once, self._claimed_at_birth = self._claimed_at_birth, 0
        if self.watch is not None and (claimed or at_once):
            now = self._claimed_at
            waits = [max(0, now - row.due_at) / 1_000_000 for row in claimed if row.due_at is not None]
            self.watch.waited(self.queue, waits, at_once)

    def _places(self) -> list[Place]:
        """What may be claimed here: code that is registered, and charts whose handlers are."""
        return [("", key, version) for key, version in self.registry.places(own=True)] + self.charts.places()

    async def _hear_of_charts(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._heard_at:
            await self.charts.refresh()
            self._heard_at = now + HEAR_SECONDS

    async def _load(self, row: Claimed) -> None:
        if not self.registry.knows(row.definition_key, row.definition_version):
            await self._load_versions(row, _migrations(row.events), row.definition_version)

    async def _load_versions(self, row: Claimed, to: Sequence[int], *own: int) -> None:
        for version in {*own, *to}:
            try:
                if to:  # the new version may start children that were published just before it
                    await self.charts.refresh()
                await self.charts.load(row.tenant_id, row.definition_key, version)
            except Exception as error:  # `take` finds it missing and puts the instance off; a migration is refused
                log.error("definition_unreadable", **about(row), version=version, error=repr(error))

    def task_handler(self, type_: str, name: str) -> TaskHandler | None:
        """The author's own for that name, else the one for all tasks of the type."""
        return self.registry.handler(type_, name) or self._handlers.get(type_)

    def child_definition(self, tenant_id: str, key: str, version: int | None) -> Definition:
        """What a parent names."""
        return self.charts.child(tenant_id, key, version)

    def _unproved(self) -> bool:
        """Whether something was claimed here lately that has not committed a turn yet: it might be what kills us. A
        step may take hours, so what has run for a while without killing us holds nobody back."""
        since = self.loop.time() - self.alone_seconds
        return bool(self._expected) or any(
            not execution.proved and execution.claimed_at > since for execution in self.executions.values()
        )

    async def _claim(
        self, worker_id: bytes, places: list[Place], limit: int, *, alone: bool
    ) -> tuple[list[Claimed], int | None]:
        try:
            kept = {} if alone else self.kept.offer()
            return await self.store.claim(worker_id, places, self.queue, limit, alone=alone, kept=kept)
        except BaseException:
            self._claims_in_doubt = True  # it may have been done all the same
            raise

    async def _doubtful(self) -> bool:
        try:
            return await self.quarantine.doubtful()
        except BaseException:
            self._claims_in_doubt = True  # nobody has looked, so nothing of what was claimed may begin
            raise

    def look_for_suspects(self) -> None:
        """On the next pass, however lately that was done: a test's time stands still while ours goes on."""
        self._suspects_at = 0.0

    async def _suspects_wait(self) -> bool:
        """Whether instances are due that took their worker down twice; asked rarely, they are rare."""
        now = asyncio.get_running_loop().time()
        if now < self._suspects_at:
            return False
        found = await self.store.fetch("suspects", queue=self.queue, now=self.now())
        known = set(self._places())
        self._suspects = any(not known.isdisjoint({(t, k, v), ("", k, v)}) for t, k, v in found)
        if not self._suspects:
            self._suspects_at = now + max(2.0, self.poll_seconds * 4)
        return self._suspects

    # -- claims from birth

    def has_room_for(self, born: NewInstance) -> bool:
        """Whether a start in this process may come with our claim: only where it overtakes nobody."""
        return (
            self.claims_starts
            and asyncio.get_running_loop() is self.loop  # a service may live on another one
            and not self._is_fenced()
            and not self.quarantine.holds
            and not (self.stopping or self.alone or self._suspects or self._more_likely)
            and len(self.executions) + len(self._expected) < self.concurrency
            and born.queue == self.queue
            and born.run_at <= self.now()
            and (
                born.kind != "chart"
                or self.charts.can_run(born.tenant_id, born.definition_key, born.definition_version)
            )
        )

    def expect(self, born: NewInstance) -> None:
        self._expected.add(born.id)

    def born(self, born: NewInstance, outcome: Outcome | BaseException) -> None:
        """What became of a start that was to come with our claim."""
        self._expected.discard(born.id)
        if outcome is Outcome.CLAIMED:
            if born.claimed_by == self.id and not self.stopping and not self._is_fenced():
                self._claimed_at_birth += 1
                self._context.copy().run(self.take, claimed_at_birth(born))  # not in its starter's context
            else:
                self.spawn(self._decline(born))
        elif outcome is not Outcome.MOVED:
            self._claims_in_doubt = True  # the reply was lost: look for the claim, and let it go

    async def _decline(self, born: NewInstance) -> None:
        """We stop, or are not who we were: let others have it now. If this fails, our end or our fencing does it."""
        await self.store.write(
            "release_claim", tenant_id=born.tenant_id, id=born.id, fence=1, worker_id=born.claimed_by,
            run_at=born.run_at,
        )  # fmt: skip
        if self._on_committed is not None:
            self._on_committed(Turn(born.tenant_id, born.id, starts=[born]))

    def runs(self, tenant_id: str, id_: bytes) -> bool:
        execution = self.executions.get(id_)
        return execution is not None and execution.tenant_id == tenant_id

    def short_of_threads(self, id_: bytes) -> str:
        """In words, if an instance that runs here may wait for a thread; empty where it does not."""
        execution, waiting = self.executions.get(id_), self.pool.waiting()
        if execution is None or not execution.threads or not waiting:
            return ""
        return f"all {self.pool.size} threads for sync handlers are busy there, and {waiting} calls wait for one"

    def load(self) -> tuple[int, int, int]:
        """Threads in a call, calls that wait for a thread, and receipts that wait for the database."""
        return self.pool.busy(), self.pool.waiting(), len(self.evidence)

    def more_work(self) -> None:
        """Something may be there to claim."""
        self._more_likely = True
        self.wakeup.set()

    def take(self, claimed: Claimed) -> None:
        try:
            definition = self.charts.loaded(claimed.tenant_id, claimed.definition_key, claimed.definition_version)
            if definition is None or claimed.kind == "code":
                if claimed.kind != "code" and claimed.definition_key.startswith(OURS):  # nobody gets at those by a name
                    raise DefinitionNotFound(claimed.definition_key, claimed.definition_version)
                definition = self.registry.find(claimed.definition_key, claimed.definition_version)
            kind = Execution if definition.chart is None else ChartExecution
            if (left := self.kept.take(claimed.tenant_id, claimed.id)) is not None:
                if claimed.kept and left.definition is definition:
                    self._go_on(left, claimed)
                    return
                left.close()
            if (words := missing(claimed)) is not None:
                log.error("history_has_a_hole", **about(claimed), found=words)
                self.spawn(self._stop_at_hole(claimed.tenant_id, claimed.id, claimed.fence, words))
                return
            if (lost := self.acknowledged.claim_lacks(claimed)) is not None:
                self.spawn(self._claimed_less(lost))
                return
            if claimed.kept:  # its body is gone since the claim was asked for, and its history was not read
                self.spawn(self._put_off(claimed, 0))
                return
        except Exception as error:  # a definition that is not there: its neighbours must not suffer
            log.error("instance_unreadable", **about(claimed), error=repr(error))
            self.spawn(self._put_off(claimed))
            return
        try:
            execution: UnderClaim = (definition.execution or kind)(self, claimed, definition)
        except Exception as error:
            self._unreadable(claimed, error)
            return
        self.executions[claimed.id] = execution
        if self.tracing is not None:
            self.tracing.began(execution)
        if (trouble := self.troubles.to_park(claimed.id)) is not None:
            self.guard(execution, execution.park, trouble.own, trouble.error)
        else:
            self.guard(execution, execution.begin)

    def _unreadable(self, claimed: Claimed, error: Exception) -> None:
        """Its history cannot be read. That may pass: a later Holdfast's rows may be what this one cannot read. Where it
        does not, the instance is parked, or it would stand as running for ever and `why` would not know."""
        log.error("instance_unreadable", **about(claimed), error=repr(error))
        self.troubles.met(claimed.id, repr(error), self.loop.time(), own=True)
        if self.troubles.to_park(claimed.id) is None:
            self.spawn(self._put_off(claimed))
        else:
            words = f"it cannot be read ({storable(spelled(error))[:500]})"
            self.spawn(self._stop_at_hole(claimed.tenant_id, claimed.id, claimed.fence, words))

    def _go_on(self, execution: Execution, claimed: Claimed) -> None:
        self.executions[claimed.id] = execution
        if self.tracing is not None:
            self.tracing.began(execution)
        self.guard(execution, execution.go_on, claimed)

    async def _put_off(self, claimed: Claimed, micros: int = UNREADABLE) -> None:
        try:
            await self.store.write(
                "release_claim", tenant_id=claimed.tenant_id, id=claimed.id, fence=claimed.fence, worker_id=self.id,
                run_at=self.now() + micros,
            )  # fmt: skip
        except Exception as error:
            log.warning("claim_not_released", **about(claimed), error=repr(error))
            self._claims_in_doubt = True  # the next look lets it go

    async def _give_back(self, claimed: Claimed) -> None:
        try:
            await self.store.write(
                "give_back_claim", tenant_id=claimed.tenant_id, id=claimed.id, fence=claimed.fence, worker_id=self.id,
                run_at=self.now() if claimed.due_at is None else claimed.due_at,
            )  # fmt: skip
        except Exception as error:
            log.warning("claim_not_released", **about(claimed), error=repr(error))
            self._claims_in_doubt = True

    async def _stop_at_hole(
        self, tenant_id: str, id_: bytes, fence: int, words: str, *, lost: int | None = None
    ) -> bool:  # fmt: skip
        """Park it without a row that says so. If this fails, whoever claims it next does it. `lost`: the row that was
        there when we were told that it is committed."""
        values = {"tenant_id": tenant_id, "id": id_, "fence": fence, "words": HOLE + words}
        try:
            if lost is None:
                await self.store.write("stop_at_hole", **values)
            else:
                plain = f"{HOLE}row {lost} is missing"
                since = since_bytes(self.now())
                await self.store.write("stop_where_lost", **values, seq=lost, since=since, hole=plain)
        except Exception as error:
            log.warning("claim_not_released", instance_id=ids.instance_word(id_), error=repr(error))
            self._claims_in_doubt = True
            return False
        return True

    async def _look_back(self) -> str | None:
        """What is to be said where the database lost rows that we were told are on disk. The instances that they belong
        to wait for a person, also once the database is not held back any more: they would do again what they did."""
        lost = await self.acknowledged.lost(self.store)
        self._gone_rows = [row for row in lost if await self._lost_rows(row)]
        return self._rows_gone(lost[0], len(lost) - 1) if lost else None

    def _held_back(self) -> None:
        """Those whose instances could not be stopped yet are looked for again."""
        self.acknowledged.forget(self._gone_rows)

    def _rows_gone(self, row: Row, more: int) -> str:
        return (
            f"worker {ids.worker_word(self.id)} was told that row {row.seq} of instance "
            f"{ids.instance_word(row.instance_id)} is committed, and it is gone, with rows of {more} more: a standby "
            "was promoted that had not got everything, or an earlier state was put in place"
        )

    async def _claimed_less(self, row: Row) -> None:
        """A claim came with less than we were told is on disk, before we looked back. If this fails, the next look lets
        the claim go, and the next claim does it."""
        try:
            stopped = await self._lost_rows(row)
            if not await self.quarantine.gone_back():
                await self.quarantine.enter(self._rows_gone(row, 0))
            if stopped:
                self.acknowledged.forget([row])
        except Exception as error:
            log.warning("lost_rows_not_stopped", instance_id=ids.instance_word(row.instance_id), error=repr(error))
        self._claims_in_doubt = True

    async def _lost_rows(self, row: Row) -> bool:
        """Stop its instance; False: that could not be written."""
        execution = self.executions.get(row.instance_id)
        if execution is not None and not execution.abandoned:
            self._abandon(execution)
        self.kept.drop(row.instance_id)
        return await self._stop_at_hole(row.tenant_id, row.instance_id, row.fence, lost_words(row.seq), lost=row.seq)

    async def _gone(self, execution: UnderClaim) -> None:
        """A turn found that what it stands on is not there. Of a row that was there before this claim, this instance
        alone is stopped; one that we were told of, or the claim itself, is gone from all of the database."""
        if await self.quarantine.gone_back():
            return
        [(fence,)] = await self.store.fetch("read_fence", tenant_id=execution.tenant_id, id=execution.id) or [(0,)]
        if fence < execution.fence:
            await self.quarantine.enter(
                f"worker {ids.worker_word(self.id)} holds instance {ids.instance_word(execution.id)} under fence "
                f"{execution.fence}, which the database does not know: an earlier state was put in place"
            )
        words = f"row {execution.claimed.history[-1].seq if execution.claimed.history else 1} is missing"
        await self._stop_at_hole(execution.tenant_id, execution.id, execution.fence, words)

    def guard(self, execution: UnderClaim, work: Callable[..., None], *args: Any) -> None:
        """Every way into an execution is watched like this: whatever goes wrong inside must not leave it claimed and
        idle. (The two ways that every step takes, a result and a commit, have the same lines in place.)"""
        try:
            work(*args)
        except BaseException as error:  # nothing is awaited here, so not even a CancelledError is this task's own
            if is_interrupt(error):
                raise
            self.broken(execution, error)

    def broken(self, execution: UnderClaim, error: BaseException) -> None:
        """A broken promise of our own: record it, drop the execution, let the claim be taken up afresh."""
        # As plain text: a renderer that shows the values of variables may take minutes over a deep one.
        trace = "".join(traceback.format_exception(error))[-4000:]
        log.error("execution_broken", **about(execution.claimed), error=spelled(error), trace=trace)
        self.let_go(execution, self._trouble(execution, f"{type_of(error)}: {message_of(error)}", own=True))

    def _trouble(self, execution: UnderClaim, error: str, *, own: bool) -> int:
        return self.troubles.met(execution.id, error, self.loop.time(), own=own)

    def is_cancelled(self) -> bool:
        """Whether the loop is ending, and with it every task on it."""
        task = self._claiming.task
        return task is not None and task.cancelling() > 0

    def down(self) -> list[str]:
        """Which of our own tasks have ended, and were not begun again yet."""
        claiming, committer, liveness = self._claiming.is_down, self.committer.is_down, self.liveness.is_down
        parts = (claiming, committer, liveness, self.quarantine.is_down)
        names = ("claiming", "committer", "liveness", "quarantine")
        return [name for name, is_down in zip(names, parts, strict=True) if is_down]

    def let_go(self, execution: UnderClaim, pause: int = 0) -> None:
        """Whoever claims it next, perhaps we ourselves, starts from what is on disk. `pause`: in microseconds."""
        self._abandon(execution)
        self.spawn(self._let_go(execution, pause))

    def busy(self) -> bool:
        """Whether anything here moves by itself: a handler runs, a turn is on its way to disk, events are read."""
        return bool(self._tasks or self._hooks) or any(
            ex.committing or ex.arrived or any(t is not None for t in ex.running.values())
            for ex in self.executions.values()
        )

    async def next_due(self) -> int | None:
        """When the next timer falls due, here or in the store."""
        times = [at for at, id_ in self._timers if id_ in self.executions]
        due = await self.store.next_due(self._places(), self.queue)
        if due is not None:
            times.append(due)
        return min(times) if times else None

    # -- what an execution asks of its worker

    def submit(self, turn: Turn, done: Callable[[Outcome | BaseException], None]) -> None:
        self.committer.submit(turn, done)

    def run(self, execution: UnderClaim, call: Call) -> None:
        if self.tracing is None:
            running.start(self, execution, call)
        else:
            with self.tracing.attempt(execution, call):
                running.start(self, execution, call)

    def trace_of(self, execution: UnderClaim) -> str | None:
        """What a handler passes on: the place of its own span, else what its instance was started with."""
        place = self.tracing.traceparent() if self.tracing is not None else None
        return place or execution.claimed.trace_id

    def not_after(self) -> int:
        return min(self.liveness.lease_end(), self.now() + LEASE) - LEASE_MARGIN

    def wake_at(self, execution: UnderClaim, at: int) -> None:
        if len(self._timers) > 4 * self.concurrency + 1000:  # most belong to instances handed back long ago
            self._timers = [timer for timer in self._timers if timer[1] in self.executions]
            heapq.heapify(self._timers)
        heapq.heappush(self._timers, (at, execution.id))
        self.wakeup.set()

    def _fire_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            execution = self.executions.get(heapq.heappop(self._timers)[1])
            if execution is None or execution.abandoned:
                continue
            execution.watched = None  # also where the clock is set back before it is looked at
            if execution.committing or execution.hears_last:
                continue  # the turn decides that is on its way, or the reading that is its last look
            self.fetch_events(execution)  # what was sent before that moment comes before it; then it decides

    async def _look_at_claims(self) -> None:
        """Cancels and signals for what runs here; and claims whose reply was lost: ours on disk, unknown to us."""
        now = asyncio.get_running_loop().time()
        if not self._claims_in_doubt and (not self.executions or now < self._looked_at + self.look_seconds):
            return
        self._looked_at = now
        worker_id = self.id
        # Taken down before we look: a doubt that is raised while we do must be looked at again.
        in_doubt, self._claims_in_doubt = self._claims_in_doubt, False
        try:
            for tenant_id, id_, fence, woken in await self.store.fetch("held_claims", worker_id=worker_id):
                execution = self.executions.get(id_)
                if execution is None:
                    if in_doubt and id_ not in self._expected:
                        await self.store.write(
                            "release_claim", tenant_id=tenant_id, id=id_, fence=fence, worker_id=worker_id,
                            run_at=self.now(),
                        )  # fmt: skip
                elif execution.tenant_id == tenant_id and woken > execution.woken:
                    self.fetch_events(execution)
        except BaseException:
            self._claims_in_doubt |= in_doubt
            raise

    def event_for(self, instance_id: bytes) -> None:
        """An event was committed in this process: if its instance runs here, it need not wait for the next look."""
        execution = self.executions.get(instance_id)
        if execution is not None:
            self.fetch_events(execution)
        else:
            self.more_work()

    def fetch_events(self, execution: UnderClaim) -> None:
        """One reading at a time: whoever asks meanwhile gets another one after it, however many have asked."""
        if execution in self._reading:
            self._reading[execution] = True
            return
        self._reading[execution] = False
        self.spawn(self._fetch_events(execution))

    async def _fetch_events(self, execution: UnderClaim) -> None:
        try:
            while not execution.abandoned:
                self._reading[execution] = False
                asked, fence = execution.asking(), execution.fence
                try:
                    woken, events = await self.store.pending_events(execution.tenant_id, execution.id, **asked)
                    await self._load_versions(execution.claimed, _migrations(events))
                except Exception as error:
                    log.warning("events_not_read", **about(execution.claimed), error=repr(error))
                    await asyncio.sleep(0.1)
                    continue
                if self.executions.get(execution.id) is not execution:
                    self.more_work()  # handed back: a body that is kept moves under its next claim, which reads
                    return
                if execution.fence == fence:  # else an earlier claim may have taken what was read for it
                    self.guard(execution, execution.new_events, woken, events, asked)
                if not self._reading[execution]:
                    return
        finally:
            del self._reading[execution]

    def cancel_handler(self, execution: UnderClaim, call: Call) -> None:
        task = execution.running.get(call.key)
        if task is None or not call.spec.signature.is_async:
            return

        def ended(task: asyncio.Task[Any]) -> None:
            if task.cancelled() and not execution.abandoned:  # before its first line, so it could not report back
                self.guard(execution, execution.arrive, call, None, asyncio.CancelledError("cancelled before it began"))

        task.add_done_callback(ended)
        task.end()

    def lost(self, execution: UnderClaim, outcome: Outcome | BaseException) -> None:
        """The turn is not ours to take, or nobody can say what became of it: write nothing, stop its handlers.

        If the claim is still ours it is let go, and whoever claims next starts from what is on disk."""
        words = without_values(outcome) if isinstance(outcome, BaseException) else str(outcome)
        log.warning("turn_refused", **about(execution.claimed), outcome=words)
        if outcome in (Outcome.FENCED, Outcome.GONE):
            self._abandon(execution)
            if outcome is Outcome.GONE:
                self.spawn(self._gone(execution))
            return
        # A database that is away or full is waited out, however long; what it says of the data is no passing trouble.
        own = isinstance(outcome, BaseException) and self.store.blames_the_data(outcome)
        self.let_go(execution, self._trouble(execution, words, own=own))

    async def _let_go(self, execution: UnderClaim, until_claimed: int) -> None:
        pause = 0.05
        while not self.stopping:
            try:
                await self.store.write(
                    "release_claim", tenant_id=execution.tenant_id, id=execution.id, fence=execution.fence,
                    worker_id=self.id, run_at=self.now() + until_claimed,
                )  # fmt: skip
                self.wakeup.set()
                return
            except Exception as error:
                log.warning("claim_not_released", **about(execution.claimed), error=repr(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)

    def committed_alone(self, turn: Turn) -> None:
        execution = self.executions.get(turn.instance_id)
        if self.watch is not None and execution is not None:
            try:
                self.watch.committed([(turn, execution._committed)], None)
            except Exception as error:
                log.warning("commit_not_counted", **about(execution.claimed), error=repr(error))
        if self.tracing is not None and execution is not None:
            call = execution.open.get(("transaction", turn.history[-1][4]))
            if call is not None:
                self.tracing.returned(execution, call, None, None)
        if self._on_committed is not None:
            self._on_committed(turn)

    def handed_back(self, execution: UnderClaim, ended: Change | None) -> None:
        self._forget(execution)
        self.troubles.over(execution.id)
        if self.tracing is not None:
            self.tracing.ended(execution, "waiting" if ended is None else ended.status)
        if ended is not None and self._on_ended is not None:
            self._on_ended(execution.id, ended, execution.died_of)
        if self._more_likely and len(self.executions) <= self.concurrency * 3 // 4:
            self.wakeup.set()

    def _batch_committed(self, turns: list[Turn]) -> None:
        if self.registry.dead_letter_hooks:
            for letter in [letter for turn in turns for letter in turn.dead_letters]:
                for hook in self.registry.dead_letter_hooks:
                    whose = Whose(letter.tenant_id, letter.instance_id, letter.definition_key, None)
                    task = step_tasks.tell((whose, None, "", 0), self._tell(hook, letter))
                    self._hooks.add(task)
                    task.add_done_callback(self._hooks.discard)
        if self._on_committed is not None:
            for turn in turns:
                if turn.starts or turn.events or (turn.change is not None and turn.change.completed_at is not None):
                    self._on_committed(turn)

    async def _tell(self, hook: Callable[..., Any], written: DeadLetter) -> None:
        """An author's function, whatever it does: the letter is on disk, and nothing waits for this."""
        letter = just_written(written)
        try:
            if signature_of(hook).is_async:
                value = await hook(letter)
            else:
                value = await call_in_thread(self.pool, hook, (letter,), None)
            codec.check_awaited(value)
        except GeneratorExit:  # the loop is gone
            raise
        except BaseException as error:
            log.error(
                "dead_letter_hook_failed", dead_letter_id=letter.id, tenant_id=letter.tenant_id,
                instance_id=letter.instance_id, error=f"{type_of(error)}: {message_of(error)}",
                exception=traceback_text(error, source_line),
            )  # fmt: skip

    async def observe(
        self, execution: UnderClaim, call: Call, attempt: int, value: Any, error: BaseException | None
    ) -> None:
        """What an effect's call came back with after its claim was lost or its time was up: evidence, it moves
        nothing."""
        if error is None:
            try:
                payload, outcome = codec.encode(value), "returned"
            except Exception:
                payload, outcome = codec.encode(shown(value)), "returned"
        else:
            payload, outcome = codec.encode(error_payload(error)), "raised"
        effect_id = ids.effect_id(execution.tenant_id, execution.id, call.key, execution.epoch)
        row = {
            "tenant_id": execution.tenant_id, "id": uuid4().bytes, "instance_id": execution.id,
            "effect_id": effect_id, "fence": execution.fence,
            "worker_id": execution.worker_id, "attempt": attempt, "observed_at": self.now(), "outcome": outcome,
            "payload": payload,
        }  # fmt: skip
        self.evidence.keep(row, self.about(execution, call) | {"attempt": attempt})

    def came_late(self, execution: UnderClaim, call: Call, attempt: int, done: asyncio.Future[Any]) -> None:
        """A sync effect handler came back after its time-out."""
        if not done.cancelled():
            error = done.exception()
            self.keep_evidence(execution, call, attempt, None if error else done.result(), error)

    def keep_evidence(
        self, execution: UnderClaim, call: Call, attempt: int, value: Any, error: BaseException | None
    ) -> None:
        self.spawn(self.observe(execution, call, attempt, value, error))

    def note(self, execution: UnderClaim, event: str, level: str = "info", **fields: Any) -> None:
        step = fields.get("step")
        calls = (execution.open.get((kind, step)) for kind in ("effect", "step", "transaction")) if step else ()
        call = next((call for call in calls if call is not None), None)
        known = self.about(execution, call)
        getattr(log, level)(event, **known | fields)

    def raised_by(self, instance_id: bytes) -> dict[str, BaseException]:
        """What the handlers of an instance raised, by key: as a rule under one claim, where they are kept under all."""
        return {} if self.kept_raised is None else self.kept_raised.setdefault(instance_id, {})

    def attempt_of(self, execution: UnderClaim, call: Call) -> int:
        undo = execution.undo
        attempt: int = undo.attempt if undo is not None and execution.undoing(call) else call.state.attempt
        return attempt

    def about(self, execution: UnderClaim, call: Call | None = None) -> dict[str, Any]:
        """The fields by which log lines about one instance, or one call of it, are found."""
        return execution.whose.fields() if call is None else fields_of(execution.scope(call))


def about(claimed: Claimed) -> dict[str, Any]:
    """The fields by which log lines about one instance are found."""
    return Whose(claimed.tenant_id, claimed.id, claimed.definition_key, claimed.trace_id).fields()
