"""`Holdfast`: the library's front door. A thin layer of names over the use cases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet

import apsw
from uuid_utils import uuid7

from holdfast import logs, settings, tracing
from holdfast.app import bulk, control, definitions, effects, instances, tasks, tenants
from holdfast.app.dead_letters import DeadLetterView, list_dead_letters
from holdfast.app.definitions import DefinitionView, MigrationView
from holdfast.app.effects import EffectView
from holdfast.app.instances import HistoryEntry, InstanceView
from holdfast.app.joining import start_on
from holdfast.app.registry import Definition, Registry, TaskHandler
from holdfast.app.service import Service
from holdfast.app.tasks import TaskView
from holdfast.app.verify import Verdict, verify
from holdfast.app.why import why
from holdfast.app.workers import WorkerView, list_workers
from holdfast.engine import codec, ids
from holdfast.engine.builder import Workflow
from holdfast.engine.effects import LEASE
from holdfast.engine.errors import BadDefinition, BadInput, HoldfastError, InstanceNotFound
from holdfast.engine.events import OUR_EVENT_IDS, OUR_EVENTS
from holdfast.engine.retry import SECOND, storable
from holdfast.engine.signatures import signature_of
from holdfast.engine.steps import Mode
from holdfast.engine.tenants import TenantPolicy
from holdfast.metrics import Metrics
from holdfast.outside import Outside, handlers
from holdfast.store import inherited
from holdfast.store.sqlite import SqliteStore, connect
from holdfast.sync import Sync
from holdfast.worker.kept import KEPT_MAX

if TYPE_CHECKING:
    from holdfast.store.doors import DoorStore
    from holdfast.store.postgres import PostgresStore
    from holdfast.worker.worker import Worker

F = TypeVar("F", bound=Callable[..., Any])
LEASE_SECONDS = LEASE / SECOND
DEFAULT_URL = "sqlite:///.holdfast/holdfast.db"
POSTGRES_URLS = ("postgresql://", "postgres://")
OPEN: WeakSet[Holdfast] = WeakSet()


class Handle:
    """One instance, from outside."""

    def __init__(self, service: Service, tenant_id: str, raw: bytes) -> None:
        self._service = service
        self._raw = raw
        self.tenant_id = tenant_id
        self.id = ids.instance_word(raw)

    def __repr__(self) -> str:
        return f"<Handle {self.id} of tenant {self.tenant_id!r}>"

    async def status(self) -> InstanceView:
        return await instances.read(self._service, self.tenant_id, self._raw)

    async def snapshot(self) -> dict[str, Any] | None:
        """Where an instance of a chart stands: its state value, context, timers and children. None: not begun."""
        return await instances.snapshot(self._service, self.tenant_id, self._raw)

    async def history(self, *, after: int = 0) -> list[HistoryEntry]:
        return await instances.history(self._service, self.tenant_id, self._raw, after=after)

    async def result(self, timeout: float | None = None) -> Any:
        """The workflow's result; raises InstanceFailed if it failed or was cancelled, ResultNotReady on time-out."""
        __tracebackhide__ = True
        return await instances.result(self._service, self.tenant_id, self._raw, timeout)

    async def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> bool:
        """Send a signal. The same id twice is one signal; False says it was there already."""
        ids.check_name("signal name", name)
        if name.startswith(OUR_EVENTS):
            raise BadInput(f"event {name!r}: names that begin with {', '.join(OUR_EVENTS)} are the engine's own")
        raw = codec.encode(payload, f"the payload of signal {name!r}", self._service.payload_limit)
        event_id = _event_id(id)
        return await instances.send(
            self._service, self.tenant_id, self._raw, "signal", name, raw, event_id, f"take {name!r}"
        )  # fmt: skip

    async def send(
        self, event: str, payload: Any = None, *, id: str | None = None, strict: bool = False, timeout: float = 10.0
    ) -> bool:
        """Send an event. `strict`: wait for its turn, and raise EventNotTaken if no state takes it."""
        event_id = _event_id(id)
        new = await self.signal(event, payload, id=event_id)
        if strict:
            await instances.taken(self._service, self.tenant_id, self._raw, event, event_id, timeout)
        return new

    async def migrate(
        self, version: int, states: dict[str, str] | None = None, *, actor: str, reason: str = "",
        dry_run: bool = False, timeout: float = 10.0, **options: Any,
    ) -> MigrationView:  # fmt: skip
        """Move an instance of a chart to another version of its definition, by a map of old states to new ones.

        States that both versions have map to themselves. `context={…}` sets fields; `stop=`, `start=` and `enter=` say
        what becomes of invokes and states that only one version has. `dry_run=True` says what would happen."""
        given = (self._service, self.tenant_id, self._raw, version, states or {}, options)
        if dry_run:
            return await definitions.try_migration(*given)
        return await definitions.migrate(*given, actor=actor, reason=reason, timeout=timeout)

    async def cancel(self, reason: str = "", *, actor: str = "") -> None:
        """Ask it to end: what is under way is settled, owed compensations run, then it is cancelled."""
        raw = codec.encode({"reason": reason, "actor": actor})
        await instances.send(
            self._service, self.tenant_id, self._raw, "cancel", "", raw, _event_id(None), "be cancelled"
        )  # fmt: skip

    async def resume(self, reason: str = "", *, actor: str = "", drop_event: bool = False) -> None:
        """Lift a pause; or have a parked instance looked at again, after what stopped it was mended.

        `drop_event`: of a chart, put the event aside that it could not work off; of one that is ending, wait no longer
        for children that were told to end."""
        raw = codec.encode({"reason": reason, "actor": actor} | ({"drop_event": True} if drop_event else {}))
        await instances.send(
            self._service, self.tenant_id, self._raw, "resume", "", raw, _event_id(None), "be resumed"
        )  # fmt: skip

    async def pause(self, reason: str = "", *, actor: str = "") -> None:
        """Have it stand still: what is under way is settled, nothing new begins, and what arrives is kept in line until
        `resume`. A cancel ends it all the same."""
        await control.pause(self._service, self.tenant_id, self._raw, reason=reason, actor=actor)

    async def retry(self, reason: str = "", *, actor: str = "") -> Handle:
        """Have it try again now: what waits for its next attempt begins it at once, a parked one is looked at again.

        One that failed or was cancelled is forked from the step that failed; the handle is the new instance's. Asked
        again, it is the same one."""
        raw = await control.retry(self._service, self.tenant_id, self._raw, reason=reason, actor=actor)
        return Handle(self._service, self.tenant_id, raw)

    async def fork(
        self, step: str | None = None, *, reason: str = "", actor: str = "", business_key: str | None = None,
        id: str | None = None,
    ) -> Handle:  # fmt: skip
        """Start a new instance that goes on from before `step` of this one, which has ended: what was done before
        answers from the copied history, the rest runs afresh. Default: the step that failed, else where it ended.

        `id`: names the fork; the same one again gives the same instance. Of code workflows only."""
        raw = await control.fork(
            self._service, self.tenant_id, self._raw, step, reason=reason, actor=actor, business_key=business_key,
            name=id,
        )  # fmt: skip
        return Handle(self._service, self.tenant_id, raw)

    async def why(self) -> str:
        """One sentence for a person: why it is not moving, and what would move it."""
        return await why(self._service, self.tenant_id, self._raw)


def _event_id(given: str | None) -> str:
    if given is None:
        return uuid7().hex  # in the order of sending, also within one moment of the clock
    if not isinstance(given, str) or not 1 <= len(given) <= 200 or storable(given) != given:
        raise BadInput(f"event id is {given!r}: expected a text of 1 to 200 characters")
    if given.startswith(OUR_EVENT_IDS):
        raise BadInput(f"event id is {given!r}: ids that begin so are the engine's own; put a word of yours before it")
    return given


class Tenant:
    """Everything Holdfast offers, bound to one tenant."""

    def __init__(self, holdfast: Holdfast, tenant_id: str) -> None:
        self._holdfast = holdfast
        self.id = ids.check_tenant(tenant_id)

    async def start(
        self, workflow: str, input: Any = None, *, business_key: str | None = None, version: int | None = None,
        start_at: datetime | None = None, trace_id: str | None = None, connection: Any = None,
    ) -> Handle:  # fmt: skip
        """Start an instance. The same business key again gives the same instance.

        `connection=`: start inside the caller's own transaction; the instance exists only if that commits."""
        service = self._holdfast.service
        definition = await definitions.resolve(service, self.id, workflow, version)
        await service.store.look_at_clock()
        raw = definition.encode_input(input, service.payload_limit)
        if start_at is not None and start_at.tzinfo is None:
            raise BadInput("start_at must carry a time zone: without one nobody can say which moment is meant")
        born = instances.new_instance(
            definition, raw, tenant_id=self.id, now=service.store.now(), business_key=business_key,
            run_at=None if start_at is None else round(start_at.timestamp() * 1_000_000),
            trace_id=trace_id if trace_id is not None else tracing.current_traceparent(),
        )  # fmt: skip
        await service.check_backlog(definition.queue, 1)
        if connection is not None:
            return Handle(service, self.id, await start_on(service, born, connection))
        [raw_id] = await instances.start(service, [born])
        return Handle(service, self.id, raw_id)

    async def start_many(
        self, workflow: str, inputs: Iterable[Any], *, business_keys: Iterable[str] | None = None,
        version: int | None = None,
    ) -> list[Handle]:  # fmt: skip
        """Start many at once; they share commits."""
        service = self._holdfast.service
        definition = await definitions.resolve(service, self.id, workflow, version)
        await service.store.look_at_clock()
        given = list(inputs)
        keys = [None] * len(given) if business_keys is None else list(business_keys)
        if len(keys) != len(given):
            raise BadInput(f"{len(given)} inputs but {len(keys)} business keys: expected one key per input")
        now, trace_id = service.store.now(), tracing.current_traceparent()
        born = [
            instances.new_instance(
                definition,
                definition.encode_input(one, service.payload_limit),
                tenant_id=self.id,
                now=now,
                business_key=key,
                run_at=None,
                trace_id=trace_id,
            )
            for one, key in zip(given, keys, strict=True)
        ]
        await service.check_backlog(definition.queue, len(born))
        return [Handle(service, self.id, raw) for raw in await instances.start(service, born)]

    async def send(
        self, instance: str, event: str, payload: Any = None, *, id: str | None = None, strict: bool = False,
        timeout: float = 10.0,
    ) -> bool:  # fmt: skip
        """Send an event to an instance. The same id twice is one event; False says it was there already.

        `strict`: wait until the instance has taken it, and raise EventNotTaken if no state of it does."""
        handle = self.instance(instance)
        return await handle.send(event, payload, id=id, strict=strict, timeout=timeout)

    @property
    def definitions(self) -> Definitions:
        return Definitions(self._holdfast, self.id)

    @property
    def tasks(self) -> Tasks:
        return Tasks(self._holdfast, self.id)

    async def policy(self) -> TenantPolicy:
        """What this tenant's tasks may reach."""
        return await tenants.read(self._holdfast.service.store, self.id)

    async def set_policy(
        self, *, http_hosts: list[str] | None = None, ai_enabled: bool | None = None, actor: str = "holdfast"
    ) -> TenantPolicy:
        """Say which hosts its HTTP tasks may call, and whether its AI tasks may call a model."""
        return await tenants.change(
            self._holdfast.service, self.id, http_hosts=http_hosts, ai_enabled=ai_enabled, actor=actor
        )

    def instance(self, id: str) -> Handle:
        """One instance. Nothing is read yet; a text that cannot be the id of one raises InstanceNotFound at once."""
        try:
            raw = ids.parse("ins", id)
        except BadInput as error:
            if not isinstance(id, str):
                raise
            raise InstanceNotFound(id, self.id, str(error)) from None
        return Handle(self._holdfast.service, self.id, raw)

    async def instances(
        self, *, status: str | Sequence[str] | None = None, key: str | None = None, business_key: str | None = None,
        limit: int = 50, before: str | None = None,
    ) -> list[InstanceView]:  # fmt: skip
        """A page, newest first; `before` is the last id of the page before. `key`: of this workflow only."""
        service = self._holdfast.service
        edge = instances.FAR_AHEAD if before is None else await instances.edge_of(service, self.id, before)
        return await instances.list_instances(
            service, self.id, status=status, key=key, business_key=business_key, limit=limit, before=edge
        )

    @property
    def effects(self) -> Effects:
        return Effects(self._holdfast, self.id)

    async def dead_letters(self, *, limit: int = 100) -> list[DeadLetterView]:
        """Work out of attempts, newest first."""
        return await list_dead_letters(self._holdfast.service, self.id, limit)


class Effects:
    """The effect desk of one tenant."""

    def __init__(self, holdfast: Holdfast, tenant_id: str) -> None:
        self._holdfast = holdfast
        self._tenant_id = tenant_id

    async def list(
        self, *, state: str | None = "outcome_unknown", instance: str | None = None, limit: int = 100
    ) -> list[EffectView]:
        """Effects, by default those whose outcome nobody knows, oldest first."""
        service = self._holdfast.service
        return await effects.list_effects(service, self._tenant_id, state=state, instance=instance, limit=limit)

    async def show(self, effect: str) -> EffectView:
        return await effects.read_effect(self._holdfast.service, self._tenant_id, effect)

    async def resolve(
        self, effect: str, resolution: str, *, actor: str, reason: str, result: Any = None,
        accept_double: bool = False, second_person: str | None = None,
    ) -> None:  # fmt: skip
        """Say what became of it: "happened" (with its result), "did_not_happen" (it is started again with the same
        key), or "abort" (the workflow fails there and compensates). Kept in the history with actor and reason."""
        await effects.resolve(
            self._holdfast.service, self._tenant_id, effect, resolution, actor=actor, reason=reason, result=result,
            accept_double=accept_double, second_person=second_person,
        )  # fmt: skip


class Definitions:
    """The published definitions of one tenant."""

    def __init__(self, holdfast: Holdfast, tenant_id: str) -> None:
        self._holdfast = holdfast
        self._tenant_id = tenant_id

    async def publish(self, spec: Any, *, key: str | None = None, actor: str = "holdfast") -> DefinitionView:
        """Publish a chart (a dict or JSON text) as the next version of its key. The same content again is no new
        version: the one that has it is returned."""
        done = await definitions.publish(self._holdfast.service, self._tenant_id, spec, key=key, actor=actor)
        return done.view

    async def list(self, *, key: str | None = None, limit: int = 100) -> list[DefinitionView]:
        return await definitions.list_definitions(self._holdfast.service, self._tenant_id, key=key, limit=limit)

    async def show(self, key: str, version: int | None = None) -> DefinitionView:
        """One definition with its document; the newest version unless one is named."""
        return await definitions.read(self._holdfast.service, self._tenant_id, key, version)

    async def set_status(self, key: str, version: int, status: str, *, actor: str = "holdfast") -> DefinitionView:
        """ "active", "inactive" or "archived": whether new instances may start. Running ones go on."""
        return await definitions.set_status(self._holdfast.service, self._tenant_id, key, version, status, actor=actor)


class Tasks:
    """The tasks of one tenant."""

    def __init__(self, holdfast: Holdfast, tenant_id: str) -> None:
        self._holdfast = holdfast
        self._tenant_id = tenant_id

    async def list(self, **wanted: Any) -> list[TaskView]:
        """Tasks, by default the open ones; `status=`, `type=`, `assignee=`, `group=`, `instance=`, `limit=`."""
        return await tasks.list_tasks(self._holdfast.service, self._tenant_id, **wanted)

    async def show(self, task: str) -> TaskView:
        return await tasks.read(self._holdfast.service, self._tenant_id, task)

    async def claim(self, task: str, *, actor: str) -> TaskView:
        """Take an unclaimed HUMAN task. Of two people at once, one gets it."""
        return await tasks.claim(self._holdfast.service, self._tenant_id, task, actor)

    async def unclaim(self, task: str, *, actor: str) -> TaskView:
        return await tasks.unclaim(self._holdfast.service, self._tenant_id, task, actor)

    async def complete(self, task: str, output: Any = None, *, actor: str, reason: str = "") -> TaskView:
        """Hand in the result of a HUMAN task; its form is checked, the first word counts."""
        return await tasks.complete(self._holdfast.service, self._tenant_id, task, output, actor=actor, reason=reason)

    async def fail(self, task: str, *, actor: str, reason: str) -> TaskView:
        """Say that a HUMAN task cannot be done, and why."""
        return await tasks.fail(self._holdfast.service, self._tenant_id, task, actor=actor, reason=reason)


class WorkerScope:
    """`async with hf.worker():` runs a worker for as long as the block lasts."""

    def __init__(self, holdfast: Holdfast, lease: float, options: dict[str, Any]) -> None:
        self._holdfast = holdfast
        self._lease = lease
        self._options = options
        self.worker: Worker | None = None

    async def __aenter__(self) -> Worker:
        from holdfast.worker.liveness import liveness_for  # only a process that runs workflows waits for them
        from holdfast.worker.worker import Worker

        service = self._holdfast.service
        self.worker = Worker(
            service.store, service.registry, liveness_for(service.store, self._lease),
            payload_limit=service.payload_limit, on_ended=service.waiters.ended, on_committed=service.stirred,
            charts=service.charts, handlers=self._holdfast.built_in_handlers(), watch=self._holdfast.metrics,
            tracing=tracing.tracing_by(self._holdfast.tracer_provider), **self._options,
        )  # fmt: skip
        await self.worker.start()
        service.workers.append(self.worker)
        return self.worker

    async def __aexit__(self, *_: object) -> None:
        assert self.worker is not None
        self._holdfast.service.workers.remove(self.worker)
        await self.worker.stop()


class Holdfast:
    """Workflows, their store and their workers.

    What is not given as an argument is taken from HOLDFAST_* in the environment, else from holdfast.toml in the working
    directory (or the file that HOLDFAST_CONFIG names), as the command line takes it. Without any of these the database
    is `.holdfast/holdfast.db`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        payload_limit: int = codec.PAYLOAD_LIMIT,
        backlog_limit: int | None = None,
        registry: Registry | None = None,
        outside: Outside | None = None,
    ) -> None:
        found = settings.for_the_library()
        self.url = url or found.database_url or DEFAULT_URL
        self.url_is_given = bool(url)  # as an argument: then no setting counts
        self.registry = registry or Registry()
        self.payload_limit = payload_limit
        self.backlog_limit = found.backlog_limit if backlog_limit is None else backlog_limit
        self.outside = outside or Outside()
        self.metrics = Metrics()
        self.tracer_provider: Any = None  # OpenTelemetry's, for the workers; None: the process's own, if one is set
        self._service: Service | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that the store was opened on
        self._forked = False
        bulk.register(self.registry, lambda: self.service)
        self._default = Tenant(self, "default")
        self.sync = Sync(self)

    # -- declaring

    def workflow(self, name: str, *, version: int = 1, queue: str = "default") -> Callable[[F], F]:
        """Declare an `async def` as a workflow."""
        if callable(name):
            function = getattr(name, "__name__", "charge")
            raise BadDefinition(
                f'@hf.workflow needs a name: write @hf.workflow("{function}"). Instances are kept under it, so it is '
                "not taken from the function, which may be renamed"
            )

        def declare(function: F) -> F:
            self.registry.add_code(name, version, queue, function)
            return function

        return declare

    def task_handler(
        self, type: str, name: str, *, kind: str = "step", mode: Mode = "manual", window: timedelta | None = None,
        lookup: Callable[..., Any] | None = None, timeout: float | None = None, thread: bool = True,
        settle_after: timedelta | None = None,
    ) -> Callable[[F], F]:  # fmt: skip
        """Declare a function as the handler of a chart's tasks of this type and name.

        `kind`: "step" (safe to repeat), "transaction" (gets the open transaction) or "effect" (touches the world;
        `mode`, `window`, `lookup` and `settle_after` as for effects in code). It gets the task's input, and a
        `TaskInfo` where it asks for one by annotation."""

        def declare(function: F) -> F:
            signature = signature_of(function)
            self.registry.add_handler(TaskHandler(
                type, name, function, signature, kind, mode, window, lookup, timeout, thread, settle_after
            ))  # fmt: skip
            return function

        return declare

    def on_dead_letter(self, function: F) -> F:
        """Declare a function that is told of each dead letter (a `DeadLetterView`) by the worker that wrote it. At most
        once: after the commit, and not again if the process ends meanwhile or the function raises, which is logged."""
        if signature_of(function).positional not in (1, -1):
            raise BadDefinition(f"on_dead_letter: {function!r} should take one argument, the dead letter")
        self.registry.dead_letter_hooks.append(function)
        return function

    def register(self, workflow: Workflow, *, version: int = 1, queue: str = "default") -> Workflow:
        """Declare a built workflow."""
        self.registry.add(Definition("code", workflow.name, version, queue, workflow.__call__, built=workflow))
        return workflow

    # -- opening

    @property
    def service(self) -> Service:
        if self._service is None:
            if self._forked:
                raise HoldfastError(
                    "the store was opened before this process was forked: open it anew here, `async with hf:`, or use "
                    "hf.sync, which does that by itself"
                )
            raise HoldfastError("the store is not open: use `async with hf:` (or hf.sync) around this call")
        return self._service

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that the store was opened on; None: it is not open."""
        return self._loop

    def _make_store(self) -> Any:
        return make_store(self.url)

    async def open(self, *, migrate: bool = True) -> None:
        await self._open(self._make_store(), migrate)

    async def open_door(self) -> None:
        """For a process that only serves. On PostgreSQL it acts as `holdfast_door`: each of its transactions sees one
        tenant, no worker runs in it, and its login need not be able to become one."""
        await self._open(make_doors(self.url), migrate=False)

    async def _open(self, store: Any, migrate: bool) -> None:
        if self._loop is not None:
            raise HoldfastError("this Holdfast is open already in this process: close it first, or use the open one")
        logs.as_library()
        self._loop = asyncio.get_running_loop()
        OPEN.add(self)
        try:
            await store.open(migrate=migrate)
        except BaseException:
            self._loop = None
            OPEN.discard(self)
            raise
        self._service = Service(store, self.registry, self.payload_limit, self.backlog_limit, self.metrics)
        self._service.committer.start()
        store.on_hint(self._service)

    def built_in_handlers(self) -> dict[str, TaskHandler]:
        """What runs HTTP, EMAIL and AI tasks that have no handler of their own."""
        return handlers(self.outside, settings.for_the_library(), self.service.policies, self.service.store.now)

    async def close(self) -> None:
        service, self._service = self._service, None
        if service is None:
            return
        service.closed = True
        try:
            await service.committer.close()
            await service.store.close()
        finally:
            self._loop = None
            OPEN.discard(self)

    def left_behind(self) -> None:
        """In a forked child: what the parent opened is the parent's. Its counters are too, and another thread of the
        parent may have held their locks."""
        assert self._loop is not None
        # Freed, the tasks would run their `finally` here.
        inherited.keep_for_ever(self._loop, self._service, *asyncio.all_tasks(self._loop))
        if self._service is not None:
            inherited.leave_behind(self._service.store)
        self._service = self._loop = None
        self._forked = True
        self.metrics = Metrics()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def worker(
        self, *, concurrency: int = 200, queue: str = "default", poll_seconds: float | None = None, threads: int = 32,
        verbose: bool = False, lease: float = LEASE_SECONDS, kept: int = KEPT_MAX,
    ) -> WorkerScope:  # fmt: skip
        """A worker for the length of an `async with` block.

        `poll_seconds`: how long an idle one waits at most before it looks again; by default a quarter of a second on
        SQLite and one second on PostgreSQL, where a hint usually comes first.
        `kept`: how many busy instances' bodies stay in memory while they wait, so that a wake need not replay them; 0:
        none. `lease`: on PostgreSQL, for how many seconds one that does not answer keeps its instances."""
        if poll_seconds is None:
            poll_seconds = 0.25 if self.url.startswith("sqlite") else 1.0
        return WorkerScope(self, lease, {
            "concurrency": concurrency, "queue": queue, "poll_seconds": poll_seconds, "threads": threads,
            "verbose": verbose, "kept": kept,
        })  # fmt: skip

    @contextmanager
    def connection(self) -> Iterator[apsw.Connection]:
        """A SQLite connection to the store's own file, for your tables and for `start(connection=…)`."""
        if not self.url.startswith("sqlite:///"):
            raise HoldfastError(
                "hf.connection() is for SQLite: on PostgreSQL use your own asyncpg or psycopg connection"
            )
        connection = connect(self.url.removeprefix("sqlite:///"))
        try:
            yield connection
        finally:
            connection.close()

    # -- using

    def tenant(self, tenant_id: str) -> Tenant:
        return Tenant(self, tenant_id)

    async def start(self, workflow: str, input: Any = None, *, tenant: str | None = None, **options: Any) -> Handle:
        return await self._tenant(tenant).start(workflow, input, **options)

    async def start_many(
        self, workflow: str, inputs: Iterable[Any], *, tenant: str | None = None, **options: Any
    ) -> list[Handle]:
        return await self._tenant(tenant).start_many(workflow, inputs, **options)

    def instance(self, id: str, *, tenant: str | None = None) -> Handle:
        return self._tenant(tenant).instance(id)

    async def instances(self, *, tenant: str | None = None, **options: Any) -> list[InstanceView]:
        return await self._tenant(tenant).instances(**options)

    @property
    def effects(self) -> Effects:
        """The effect desk of tenant "default"; `hf.tenant("acme").effects` is another's."""
        return self._default.effects

    @property
    def definitions(self) -> Definitions:
        """The published definitions of tenant "default"."""
        return self._default.definitions

    @property
    def tasks(self) -> Tasks:
        """The tasks of tenant "default"."""
        return self._default.tasks

    async def publish(self, spec: Any, *, tenant: str | None = None, **options: Any) -> DefinitionView:
        return await self._tenant(tenant).definitions.publish(spec, **options)

    async def send(
        self, instance: str, event: str, payload: Any = None, *, tenant: str | None = None, **options: Any
    ) -> bool:
        return await self._tenant(tenant).send(instance, event, payload, **options)

    async def dead_letters(self, *, tenant: str | None = None, limit: int = 100) -> list[DeadLetterView]:
        return await self._tenant(tenant).dead_letters(limit=limit)

    async def workers(self, limit: int = 100) -> list[WorkerView]:
        return await list_workers(self.service, limit)

    async def verify(self, *, progress: Callable[[int, int], None] | None = None) -> Verdict:
        """Check every history's chain; names the first bad row of each instance that has one."""
        return await verify(self.service, progress=progress)

    def _tenant(self, tenant: str | None) -> Tenant:
        return self._default if tenant is None else Tenant(self, tenant)


def make_store(url: str) -> SqliteStore | PostgresStore:
    if url.startswith("sqlite:///"):
        return SqliteStore(url)
    if url.startswith(POSTGRES_URLS):
        from holdfast.store.postgres import PostgresStore  # only where it is in use

        return PostgresStore(url, **_postgres_switches())
    raise BadInput(f"database URL {url!r}: expected sqlite:///path/to/file.db or postgresql://user@host/database")


def make_doors(url: str) -> SqliteStore | DoorStore:
    """The store of a server: on PostgreSQL it keeps every statement to its tenant, whatever the statement says."""
    if url.startswith(POSTGRES_URLS):
        from holdfast.store.doors import DoorStore

        return DoorStore(url, **_postgres_switches())
    store = make_store(url)
    assert isinstance(store, SqliteStore)
    return store


def _postgres_switches() -> dict[str, bool]:
    """For a database that has no NOTIFY or no advisory locks, or hides them behind a pooler."""
    found = settings.for_the_library()
    return {"hints": found.postgres_hints, "session_locks": found.postgres_session_locks}


def _forked() -> None:
    for holdfast in list(OPEN):
        holdfast.left_behind()
    OPEN.clear()


inherited.in_child(_forked)
