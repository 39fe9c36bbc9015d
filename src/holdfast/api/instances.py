"""Instances over HTTP: start, tell, read, stop and go on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Annotated, Any

import msgspec
from uuid_utils import uuid7

from holdfast.api import shown
from holdfast.api.definitions import find as find_definition
from holdfast.api.endpoints import (
    PAGE,
    Answer,
    Call,
    Cursor,
    Endpoints,
    Limit,
    Reply,
    cursor_of,
    not_found,
    read_cursor,
)
from holdfast.api.models import (
    Accepted,
    BatchOut,
    EffectOut,
    EventOut,
    Fork,
    HistoryOut,
    InstanceDetail,
    InstanceOut,
    InstanceStatus,
    Listing,
    Migrate,
    MigrationOut,
    Moment,
    Reasoning,
    Resume,
    SendEvent,
    Start,
    StartBatch,
    Started,
    TaskOut,
    WhyOut,
    micros,
)
from holdfast.api.problems import Fault, Problem, problem_of
from holdfast.app import control, definitions, effects, instances, tasks
from holdfast.app.instances import InstanceView
from holdfast.app.registry import Definition
from holdfast.app.why import why
from holdfast.engine import codec, ids
from holdfast.engine.errors import (
    BusinessKeyTaken,
    EventNotTakenYet,
    HoldfastError,
    InstanceFailed,
    ResultNotReady,
    VersionMoved,
)
from holdfast.engine.events import OUR_EVENT_IDS, OUR_EVENTS
from holdfast.engine.turns import NewInstance

HISTORY_SHOWN = 100
TASKS_SHOWN = 200
LISTED_BYTES = 16 * 1024  # larger values are left out of lists: read the one to see them
STRICT_SECONDS = 10.0
INS = "ins_0192f0a1b2c37d4e8f90a1b2c3d4e5f6"
ONE: dict[str, Any] = {
    "id": INS, "definition_key": "expense", "definition_version": 1, "kind": "chart", "status": "waiting",
    "waiting_on": "approval", "current_state": "review", "business_key": "claim-1", "queue": "default",
    "input": {"amount_minor": 12500, "currency": "EUR"}, "result": None, "last_error": None, "compensation": None,
    "parent_id": None, "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "created_by": "ann",
    "created_at": "2026-11-16T10:00:00Z", "started_at": "2026-11-16T10:00:00.1Z", "completed_at": None, "run_at": None,
    "left_out": [],
}  # fmt: skip
ENTRY = {
    "seq": 1, "type": "INSTANCE_STARTED", "name": "expense", "at": "2026-11-16T10:00:00.1Z", "payload": {},
    "hash": "9f86d0…",
}  # fmt: skip
DETAIL = {
    **ONE, "version": 7, "context": {"amount_minor": 12500}, "steps": {}, "tasks": [], "history": [ENTRY],
    "history_before": None,
}  # fmt: skip


class InstancesQuery(msgspec.Struct, frozen=True):
    status: list[InstanceStatus] | None = None
    definition_key: str | None = None
    business_key: str | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None
    limit: Limit = PAGE
    cursor: Cursor | None = None


InstancesQuery.LISTS = ("status",)  # type: ignore[attr-defined]


Sequence = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53))]


class HistoryQuery(msgspec.Struct, frozen=True):
    after: Sequence | None = None
    before: Sequence | None = None
    type: list[str] | None = None
    limit: Limit = PAGE


HistoryQuery.LISTS = ("type",)  # type: ignore[attr-defined]


class PageQuery(msgspec.Struct, frozen=True):
    limit: Limit = PAGE
    cursor: Cursor | None = None


# -- starting


async def _definition(call: Call, body: Start | StartBatch) -> Definition:
    if (body.definition_key is None) == (body.definition_id is None):
        words = "expected exactly one of definition_key and definition_id"
        raise Problem("validation-failed", words, errors=[Fault(words, "/definition_key")])
    if body.definition_id is not None:
        if body.version is not None:
            words = "a definition_id names its version already"
            raise Problem("validation-failed", words, errors=[Fault(words, "/version")])
        found = await find_definition(call, body.definition_id)
        return await definitions.resolve(call.service, call.tenant_id, found.key, found.version)
    assert body.definition_key is not None
    if body.definition_key.startswith("holdfast."):
        raise not_found(body.definition_key)
    return await definitions.resolve(call.service, call.tenant_id, body.definition_key, body.version)


def _born(
    call: Call, definition: Definition, given: Any, business_key: str | None, start_at: datetime | None, *parts: str
) -> NewInstance:
    raw = definition.encode_input(given, call.service.payload_limit)
    return instances.new_instance(
        definition, raw, tenant_id=call.tenant_id, now=call.service.store.now(), business_key=business_key,
        run_at=None if start_at is None else micros(start_at), trace_id=call.traceparent,
        id_=call.derived("instance", *parts), created_by=call.actor,
    )  # fmt: skip


async def start_instance(call: Call, body: Start) -> Reply:
    """Start an instance. The same `business_key` again gives the instance that has it (200), unless its input differs
    (409, with the difference). With `Prefer: wait=N` the answer waits up to N seconds for the end: 201 and the result,
    or 202 if it is still under way."""
    given = body.input
    if body.context is not msgspec.UNSET:
        if given is not msgspec.UNSET:
            words = "input and context are two words for one thing: send one of them"
            raise Problem("validation-failed", words, errors=[Fault(words, "/context")])
        given = body.context
    definition = await _definition(call, body)
    born = _born(call, definition, None if given is msgspec.UNSET else given, body.business_key, body.start_at)
    await call.service.check_backlog(definition.queue, 1)
    try:
        [id_] = await instances.start(call.service, [born])
    except BusinessKeyTaken as taken:
        raise _taken(call, taken) from None
    location = {"Location": f"/workflow/instances/{ids.instance_word(id_)}"}
    is_new = id_ == born.id
    status = 201 if is_new else 200
    if call.wait_seconds is not None:
        location["Preference-Applied"] = f"wait={call.wait_seconds:g}"
        if not await _ended(call, id_, call.wait_seconds):
            status = 202
        return Reply(status, *await _shown(call, id_), location)
    if is_new and body.start_at is None:
        return Reply(status, shown.instance(_as_born(born)), "0", location)
    return Reply(202 if is_new else status, *await _shown(call, id_), location)


async def _shown(call: Call, id_: bytes) -> tuple[InstanceOut, str]:
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    return shown.instance(view), str(view.moved)


def _as_born(born: NewInstance) -> InstanceView:
    """An instance as it stands when it is started: nothing has happened to it, so it need not be read."""
    return InstanceView(
        id=ids.instance_word(born.id), tenant_id=born.tenant_id, kind=born.kind, workflow=born.definition_key,
        version=born.definition_version, status="pending", waiting_on=None, business_key=born.business_key,
        queue=born.queue, input=codec.decode(born.input), result=None, error=None, compensation=None, parent_id=None,
        created_at=born.created_at, started_at=None, completed_at=None, run_at=born.run_at, trace_id=born.trace_id,
        created_by=born.created_by,
    )  # fmt: skip


def _taken(call: Call, taken: BusinessKeyTaken) -> Problem:
    """Where the inputs differ; what the other one has is shown to those who may read it anyway."""
    may_read = call.caller.may("instances:read")
    return Problem(
        "business-key-taken", str(taken),
        errors=[
            Fault(f"{taken.instance_id} has {old}, this request {new}" if may_read else "differs", "/input" + pointer)
            for pointer, old, new in taken.places
        ],
    )  # fmt: skip


async def _ended(call: Call, id_: bytes, seconds: float) -> bool:
    with call.doors.held(seconds) as allowed:
        try:
            return await _waited(call, instances.result(call.service, call.tenant_id, id_, allowed))
        except ResultNotReady:
            return False
        except InstanceFailed:
            return True


async def _waited(call: Call, wait: Coroutine[Any, Any, Any]) -> bool:
    """Whether what somebody waits for has come. A server that stops lets nobody wait: they are told how it stands."""
    waiting = asyncio.ensure_future(wait)
    stopping = asyncio.ensure_future(call.doors.stopping.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            return False
        await waiting
        return True
    finally:
        for one in (waiting, stopping):
            one.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)


async def start_batch(call: Call, body: StartBatch) -> Reply:
    """Start up to 1,000 instances of one definition. Each item has its own answer, in order: one that is refused keeps
    no other from starting."""
    definition = await _definition(call, body)
    await call.service.check_backlog(definition.queue, len(body.items))
    answers: list[Started | None] = [None] * len(body.items)
    born: list[tuple[int, NewInstance]] = []
    for number, item in enumerate(body.items):
        try:
            born.append((number, _born(call, definition, item.input, item.business_key, None, str(number))))
        except HoldfastError as error:
            answers[number] = _refused(error)
    for (number, one), outcome in zip(born, await _start_all(call, [one for _, one in born]), strict=True):
        if isinstance(outcome, HoldfastError):
            answers[number] = _refused(outcome)
        else:
            answers[number] = Started(status=201 if outcome == one.id else 200, id=ids.instance_word(outcome))
    items = [answer for answer in answers if answer is not None]
    return Reply(
        200,
        BatchOut(
            started=sum(item.status == 201 for item in items), existing=sum(item.status == 200 for item in items),
            refused=sum(item.status >= 400 for item in items), items=items,
        ),
    )  # fmt: skip


async def _start_all(call: Call, born: list[NewInstance]) -> list[bytes | HoldfastError]:
    """They share commits; then each that was there before is looked at on its own."""
    found: list[bytes | HoldfastError] = []
    for one, outcome in zip(born, await call.service.start(born), strict=True):
        try:
            found.append(await instances.found(call.service, one, outcome))
        except HoldfastError as error:
            found.append(error)
    return found


def _refused(error: HoldfastError) -> Started:
    problem = problem_of(error)
    if problem is None:
        raise error
    return Started(status=problem.status, detail=problem.detail)


# -- reading


async def list_instances(call: Call, query: InstancesQuery) -> Reply:
    """A page, newest first, of those that match every filter. `status` may name several, as a,b."""
    limit = query.limit
    edge = read_cursor(query.cursor, int, bytes)
    before = instances.FAR_AHEAD if edge is None else (edge[0], edge[1])
    if query.created_before is not None:
        before = min(before, (micros(query.created_before), b""))
    since = 0 if query.created_after is None else micros(query.created_after)
    found = await instances.list_instances(
        call.service, call.tenant_id, status=query.status, key=query.definition_key, business_key=query.business_key,
        limit=limit + 1, before=before, since=since, most=LISTED_BYTES,
    )  # fmt: skip
    return _page(found, limit)


def _page(found: list[InstanceView], limit: int) -> Reply:
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else cursor_of(last.created_at, ids.parse("ins", last.id))
    items = [shown.instance(view) for view in found[:limit]]
    return Reply(200, Listing[InstanceOut](items=items, next_cursor=following))


async def read_instance(call: Call) -> Reply:
    """How it stands, with its tasks and the newest part of its history."""
    id_ = call.id("ins")
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    snapshot = await instances.snapshot(call.service, call.tenant_id, id_) if view.kind == "chart" else None
    its_tasks = await tasks.list_tasks(
        call.service, call.tenant_id, status=None, instance=view.id, limit=TASKS_SHOWN, most=LISTED_BYTES
    )
    results = {} if view.kind == "chart" else await instances.step_results(
        call.service, call.tenant_id, id_, HISTORY_SHOWN
    )  # fmt: skip
    past = await instances.history_page(call.service, call.tenant_id, id_, limit=HISTORY_SHOWN)
    detail = InstanceDetail(
        **shown.instance_fields(view), version=view.moved, context=None if snapshot is None else snapshot["context"],
        steps=results, tasks=[shown.task(task) for task in its_tasks],
        history=[shown.history(entry) for entry in past.entries],
        history_before=past.entries[0].seq if past.more else None,
    )  # fmt: skip
    return Reply(200, detail, str(view.moved))


async def instance_history(call: Call, query: HistoryQuery) -> Reply:
    """Its past, in order. From the end, or back from `before`; with `after` forward from there. `type` may name
    several, as a,b."""
    limit = query.limit
    if query.after is not None and query.before is not None:
        words = "after goes forward and before goes back: send one of them"
        raise Problem("validation-failed", words, errors=[Fault(words, "/query/before")])
    page = await instances.history_page(
        call.service, call.tenant_id, call.id("ins"), after=query.after, before=query.before, types=query.type or (),
        limit=limit,
    )  # fmt: skip
    edge = page.entries[-1 if query.after is not None else 0] if page.more else None
    items = [shown.history(entry) for entry in page.entries]
    return Reply(200, Listing[HistoryOut](items=items, next_cursor=None if edge is None else str(edge.seq)))


async def instance_tasks(call: Call, query: PageQuery) -> Reply:
    """All its tasks, open or not, in the order they were made."""
    limit = query.limit
    id_ = call.id("ins")
    await instances.exists(call.service, call.tenant_id, id_)
    edge = read_cursor(query.cursor, int, str, bytes)
    found = await tasks.list_tasks(
        call.service, call.tenant_id, status=None, instance=ids.instance_word(id_), limit=limit + 1, most=LISTED_BYTES,
        after=None if edge is None else (0, edge[0], edge[1], edge[2]),
    )  # fmt: skip
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else cursor_of(last.created_at, last.key, ids.parse("tsk", last.id))
    return Reply(200, Listing[TaskOut](items=[shown.task(view) for view in found[:limit]], next_cursor=following))


async def instance_children(call: Call, query: PageQuery) -> Reply:
    """The instances that this one started, newest first."""
    limit = query.limit
    id_ = call.id("ins")
    await instances.exists(call.service, call.tenant_id, id_)
    edge = read_cursor(query.cursor, int, bytes)
    found = await instances.list_children(
        call.service, call.tenant_id, id_, limit=limit + 1, most=LISTED_BYTES,
        before=instances.FAR_AHEAD if edge is None else (edge[0], edge[1]),
    )  # fmt: skip
    return _page(found, limit)


async def instance_effects(call: Call, query: PageQuery) -> Reply:
    """Its effects, in the order they were started."""
    limit = query.limit
    id_ = call.id("ins")
    await instances.exists(call.service, call.tenant_id, id_)
    edge = read_cursor(query.cursor, int, bytes)
    found = await effects.effects_of(
        call.service, call.tenant_id, id_, after=(0, b"") if edge is None else (edge[0], edge[1]), limit=limit + 1
    )
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else cursor_of(last.started_at, ids.parse("eff", last.id))
    return Reply(200, Listing[EffectOut](items=[shown.effect(view) for view in found[:limit]], next_cursor=following))


async def why_waiting(call: Call) -> Reply:
    """One plain sentence: why it does not move, and what would move it."""
    id_ = call.id("ins")
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    words = await why(call.service, call.tenant_id, id_)
    return Reply(200, WhyOut(instance_id=view.id, status=view.status, why=words), str(view.moved))  # type: ignore[arg-type]


# -- telling


def _event_id(call: Call, given: str | None = None) -> str:
    if given is not None:
        if given.startswith(OUR_EVENT_IDS):
            words = "ids that begin so are the engine's own: put a word of yours before it"
            raise Problem("validation-failed", f"id: {words}", errors=[Fault(words, "/id")])
        return given
    derived = call.derived("event")
    return uuid7().hex if derived is None else derived.hex()


async def send_event(call: Call, body: SendEvent) -> Reply:
    """Send an event. It is recorded, and taken by a turn when its instance comes to it: early is fine, and the same
    `id` twice is one event. With `strict` the answer waits for that turn; 409 if no state takes it."""
    if body.name.startswith(OUR_EVENTS):
        words = f"names that begin with {', '.join(OUR_EVENTS)} are the engine's own"
        raise Problem("validation-failed", f"name: {words}", errors=[Fault(words, "/name")])
    id_, event_id = call.id("ins"), _event_id(call, body.id)
    raw = codec.encode(body.payload, f"the payload of event {body.name!r}", call.service.payload_limit)
    new = await instances.send(
        call.service, call.tenant_id, id_, "signal", body.name, raw, event_id, f"take {body.name!r}",
        moved=call.expected_version(), sent_by=call.actor,
    )  # fmt: skip
    taken = False
    if body.strict:
        seconds = STRICT_SECONDS if call.wait_seconds is None else call.wait_seconds
        with call.doors.held(seconds) as allowed:
            try:
                wait = instances.taken(call.service, call.tenant_id, id_, body.name, event_id, allowed)
                taken = await _waited(call, wait)
            except EventNotTakenYet:
                pass
    out = EventOut(id=event_id, instance_id=ids.instance_word(id_), new=new, taken=taken)
    return Reply(200 if taken else 202, out)


async def signal_instance(call: Call, body: SendEvent) -> Reply:
    """Send a signal: the same as an event, by the name code workflows know it by."""
    return await send_event(call, body)


async def _say(call: Call, kind: str, words: dict[str, Any], asked: str) -> Reply:
    id_ = call.id("ins")
    raw = codec.encode({**words, "actor": call.actor}, "the reason", call.service.payload_limit)
    await instances.send(
        call.service,
        call.tenant_id,
        id_,
        kind,
        "",
        raw,
        _event_id(call),
        asked,
        moved=call.expected_version(),
        sent_by=call.actor,
    )
    return Reply(202, Accepted(instance_id=ids.instance_word(id_), accepted=kind))


async def cancel_instance(call: Call, body: Reasoning) -> Reply:
    """Ask it to end: what is under way is settled, owed compensations run, then it is cancelled."""
    return await _say(call, "cancel", {"reason": body.reason}, "be cancelled")


async def pause_instance(call: Call, body: Reasoning) -> Reply:
    """Have it stand still: what is under way is settled, nothing new begins, what comes meanwhile waits in line."""
    return await _say(call, "pause", {"reason": body.reason}, "be paused")


async def resume_instance(call: Call, body: Resume) -> Reply:
    """Go on, after a pause or after what stopped it was mended."""
    words = {"reason": body.reason} | ({"drop_event": True} if body.drop_event else {})
    return await _say(call, "resume", words, "be resumed")


async def retry_instance(call: Call, body: Reasoning) -> Reply:
    """Of one that lives: begin the next attempts at once. Of one that failed or was cancelled: a new instance goes on
    from the step that failed (201, with its Location)."""
    id_ = call.id("ins")
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    if view.status not in instances.ENDED:
        return await _say(call, "retry", {"reason": body.reason}, "be tried again")
    _check_version(call, view)
    found = await control.retry(call.service, call.tenant_id, id_, reason=body.reason, actor=call.actor)
    return Reply(201, *await _shown(call, found), {"Location": f"/workflow/instances/{ids.instance_word(found)}"})


def _check_version(call: Call, view: InstanceView) -> None:
    """For one that has ended: nothing moves it any more, so that looking is enough."""
    expected = call.expected_version()
    if expected is not None and expected != view.moved:
        raise VersionMoved(f"instance {view.id}", str(expected), str(view.moved))


async def fork_instance(call: Call, body: Fork) -> Reply:
    """A new instance that goes on from before `step` of one that has ended: what was done before answers from the
    past, nothing of it runs again."""
    id_ = call.id("ins")
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    _check_version(call, view)
    name = call.derived("fork")
    found = await control.fork(
        call.service, call.tenant_id, id_, body.step, reason=body.reason, actor=call.actor,
        business_key=body.business_key, name=None if name is None else name.hex(),
    )  # fmt: skip
    return Reply(201, *await _shown(call, found), {"Location": f"/workflow/instances/{ids.instance_word(found)}"})


async def migrate_instance(call: Call, body: Migrate) -> Reply:
    """Move an instance of a chart to another version of its definition. `dry_run` says what would happen."""
    id_ = call.id("ins")
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    _check_version(call, view)
    if view.kind != "chart":
        raise Problem("invalid-transition", "only instances of charts move from one version to another")
    options = {
        name: value for name in ("context", "stop", "start", "enter") if (value := getattr(body, name)) is not None
    }
    given = (call.service, call.tenant_id, id_, body.version, body.states, options)
    if body.dry_run:
        done = await definitions.try_migration(*given)
    else:
        name = call.derived("event")
        done = await definitions.migrate(
            *given, actor=call.actor, reason=body.reason, timeout=STRICT_SECONDS, moved=call.expected_version(),
            name=None if name is None else name.hex(),
        )  # fmt: skip
    if done.outcome == "refused":
        raise Problem(
            "invalid-transition", "the instance stays as it is: " + "; ".join(done.problems[:5]),
            errors=[Fault(problem, "") for problem in done.problems],
        )  # fmt: skip
    fields: dict[str, Any] = msgspec.structs.asdict(done)
    return Reply(200, MigrationOut(**fields))


# -- the table


def declare(endpoints: Endpoints) -> None:
    started = {
        201: Answer("Started.", InstanceOut, {**ONE, "status": "pending"}, location=True),
        200: Answer("An instance with this business key and input was there.", InstanceOut, ONE, location=True),
        202: Answer("Started, and not at its end yet, or due later.", InstanceOut, ONE, location=True),
    }
    endpoints.add(
        "POST /workflow/instances", capability="instances:start", tag="instances", summary="Start an instance",
        body=Start, body_example={
            "definition_key": "expense", "business_key": "claim-1",
            "input": {"claimant": "Ada", "email": "ada@example.org", "amount_minor": 12500, "currency": "EUR",
                      "reason": "train to the customer"},
        },
        keyed="optional", prefer=True, answers=started,
        problems=("not-found", "business-key-taken", "definition-not-active", "quota-exceeded"),
    )(start_instance)  # fmt: skip
    endpoints.add(
        "POST /workflow/instances/batch", capability="instances:start", tag="instances",
        summary="Start many instances", body=StartBatch, body_example={
            "definition_key": "expense", "items": [{"business_key": "claim-2", "input": {"amount_minor": 900}}],
        },
        keyed="required",
        answers={200: Answer("One answer for each item.", BatchOut, {
            "started": 1, "existing": 0, "refused": 0, "items": [{"status": 201, "id": INS, "detail": None}],
        })},
        problems=("not-found", "definition-not-active", "quota-exceeded"),
    )(start_batch)  # fmt: skip
    endpoints.add(
        "GET /workflow/instances", capability="instances:read", tag="instances", summary="List instances",
        query=InstancesQuery,
        answers={200: Answer("A page.", Listing[InstanceOut], {"items": [ONE], "next_cursor": None})},
    )(list_instances)  # fmt: skip
    endpoints.add(
        "GET /workflow/instances/{id}", capability="instances:read", tag="instances", summary="Read an instance",
        answers={200: Answer("How it stands.", InstanceDetail, DETAIL)}, problems=("not-found",),
    )(read_instance)  # fmt: skip
    for word, function, words in (
        ("events", send_event, "Send an event"), ("signal", signal_instance, "Send a signal"),
    ):  # fmt: skip
        sent = {"id": "evt-7", "instance_id": INS, "new": True, "taken": False}
        endpoints.add(
            f"POST /workflow/instances/{{id}}/{word}", capability="instances:send", tag="instances", summary=words,
            body=SendEvent, body_example={"name": "approved", "payload": {"by": "ann"}, "id": "evt-7"},
            keyed="optional", if_match="optional", prefer=True,
            answers={
                202: Answer("Recorded; its turn will come.", EventOut, sent),
                200: Answer("Recorded and taken.", EventOut, {**sent, "taken": True}),
            },
            problems=("not-found", "invalid-transition", "event-in-line", "precondition-failed"),
        )(function)  # fmt: skip
    accepted = {
        202: Answer("Recorded; its worker takes it next.", Accepted, {"instance_id": INS, "accepted": "cancel"})
    }
    says: tuple[tuple[str, Any, Any, str], ...] = (
        ("cancel", cancel_instance, Reasoning, "Cancel an instance"),
        ("pause", pause_instance, Reasoning, "Pause an instance"),
        ("resume", resume_instance, Resume, "Resume an instance"),
    )  # fmt: skip
    for word, function, model, words in says:
        endpoints.add(
            f"POST /workflow/instances/{{id}}/{word}", capability="instances:control", tag="instances", summary=words,
            body=model, body_example={"reason": "the customer withdrew"}, body_optional=True, keyed="optional",
            if_match="optional", answers=accepted,
            problems=("not-found", "invalid-transition", "precondition-failed"),
        )(function)  # fmt: skip
    made = {201: Answer("A new instance goes on.", InstanceOut, ONE, location=True)}
    endpoints.add(
        "POST /workflow/instances/{id}/retry", capability="instances:control", tag="instances",
        summary="Try again", body=Reasoning, body_example={"reason": "the bank is back"}, body_optional=True,
        keyed="optional", if_match="optional", answers=accepted | made,
        problems=("not-found", "invalid-transition", "fork-refused", "precondition-failed", "quota-exceeded"),
    )(retry_instance)  # fmt: skip
    endpoints.add(
        "POST /workflow/instances/{id}/fork", capability="instances:control", tag="instances",
        summary="Go on from a step", body=Fork, body_example={"step": "pay", "reason": "paid to the wrong account"},
        body_optional=True, keyed="optional", if_match="optional", answers=made,
        problems=("not-found", "fork-refused", "business-key-taken", "precondition-failed", "quota-exceeded"),
    )(fork_instance)  # fmt: skip
    endpoints.add(
        "POST /workflow/instances/{id}/migrate", capability="instances:control", tag="instances",
        summary="Move to another version", body=Migrate,
        body_example={"version": 2, "states": {"review": "check"}, "dry_run": True}, keyed="optional",
        if_match="optional",
        answers={200: Answer("Moved, or possible.", MigrationOut, {
            "instance_id": INS, "outcome": "possible", "problems": [], "summary": {},
        })},
        problems=("not-found", "invalid-transition", "precondition-failed", "event-in-line", "unavailable"),
    )(migrate_instance)  # fmt: skip
    endpoints.add(
        "GET /workflow/instances/{id}/history", capability="instances:read", tag="instances",
        summary="Read its history", query=HistoryQuery,
        answers={200: Answer("A page.", Listing[HistoryOut], {"items": [ENTRY], "next_cursor": None})},
        problems=("not-found",),
    )(instance_history)  # fmt: skip
    lists: tuple[tuple[str, Any, Any, Any, str], ...] = (
        ("tasks", instance_tasks, PageQuery, TaskOut, "List its tasks"),
        ("children", instance_children, PageQuery, InstanceOut, "List its children"),
        ("effects", instance_effects, PageQuery, EffectOut, "List its effects"),
    )  # fmt: skip
    for word, function, query, item, words in lists:
        endpoints.add(
            f"GET /workflow/instances/{{id}}/{word}", capability="effects:read" if word == "effects" else
            "tasks:read" if word == "tasks" else "instances:read", tag="instances", summary=words, query=query,
            answers={200: Answer("A page.", Listing[item], {"items": [], "next_cursor": None})},  # type: ignore[valid-type]
            problems=("not-found",),
        )(function)  # fmt: skip
    endpoints.add(
        "GET /workflow/instances/{id}/why", capability="instances:read", tag="instances",
        summary="Why is it waiting?",
        answers={200: Answer("One sentence.", WhyOut, {
            "instance_id": INS, "status": "waiting", "why": "It waits for ann to decide 'Approve the claim'.",
        })},
        problems=("not-found",),
    )(why_waiting)  # fmt: skip
