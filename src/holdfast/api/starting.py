"""Starting instances over HTTP: one, and many."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.api import shown
from holdfast.api.definitions import find as find_definition
from holdfast.api.endpoints import Answer, Call, Endpoints, Reply, not_found
from holdfast.api.instances import INS, ONE, as_it_stands, waited
from holdfast.api.models import BatchOut, InstanceOut, Start, StartBatch, Started
from holdfast.api.problems import Fault, Problem, problem_of
from holdfast.app import definitions, instances
from holdfast.app.instances import InstanceView
from holdfast.app.registry import Definition
from holdfast.engine import codec, ids
from holdfast.engine.errors import BusinessKeyTaken, HoldfastError, InstanceFailed, Misplaced, ResultNotReady
from holdfast.engine.moments import micros, when
from holdfast.engine.turns import NewInstance


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
    call: Call, definition: Definition, given: Any, business_key: str | None, start_at: datetime | None,
    *parts: str, place: str = "/input",
) -> NewInstance:  # fmt: skip
    raw = definition.encode_input(given, call.service.payload_limit, place)
    return instances.new_instance(
        definition, raw, tenant_id=call.tenant_id, now=call.service.store.now(), business_key=business_key,
        run_at=None if start_at is None else micros(start_at), trace_id=call.traceparent,
        id_=call.derived("instance", *parts), created_by=call.actor,
    )  # fmt: skip


async def start_instance(call: Call, body: Start) -> Reply:
    """Start an instance. The same `business_key` again gives the instance that has it (200), unless its input differs
    (409, with the difference). With `Prefer: wait=N` the answer waits up to N seconds for the end: 201 and the result,
    or 202 if it is still under way."""
    given, place = body.input, "/input"
    if body.context is not msgspec.UNSET:
        if given is not msgspec.UNSET:
            words = "input and context are two words for one thing: send one of them"
            raise Problem("validation-failed", words, errors=[Fault(words, "/context")])
        given, place = body.context, "/context"
    definition = await _definition(call, body)
    given = None if given is msgspec.UNSET else given
    born = _born(call, definition, given, body.business_key, body.start_at, place=place)
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
        if not await _ended(call, id_, call.wait_seconds) and is_new:
            status = 202
        return Reply(status, *await _seen(call, id_, is_new), location)
    if is_new and body.start_at is None:
        return Reply(status, shown.instance(_as_born(born)), "0", location)
    return Reply(202 if is_new else status, *await _seen(call, id_, is_new), location)


async def _seen(call: Call, id_: bytes, is_new: bool) -> tuple[InstanceOut, str]:
    """One's own is shown as it stands. What came of another's is for those who may read it."""
    out, etag = await as_it_stands(call, id_)
    if not is_new and not call.caller.may("instances:read"):
        hidden = dict.fromkeys(
            ("result", "last_error", "compensation", "created_by", "current_state", "current_step", "waiting_on")
        )
        out = msgspec.structs.replace(out, **hidden, left_out=[*out.left_out, *hidden])
    return out, etag


def _as_born(born: NewInstance) -> InstanceView:
    """An instance as it stands when it is started: nothing has happened to it, so it need not be read."""
    return InstanceView(
        id=ids.instance_word(born.id), tenant_id=born.tenant_id, kind=born.kind, workflow=born.definition_key,
        version=born.definition_version, status="pending", waiting_on=None, business_key=born.business_key,
        queue=born.queue, input=codec.decode(born.input), result=None, error=None, compensation=None, parent_id=None,
        created_at=when(born.created_at), updated_at=when(born.created_at), started_at=None, completed_at=None,
        run_at=when(born.run_at), trace_id=born.trace_id, created_by=born.created_by,
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
            return await waited(call, instances.result(call.service, call.tenant_id, id_, allowed))
        except ResultNotReady:
            return False
        except InstanceFailed:
            return True


async def start_batch(call: Call, body: StartBatch) -> Reply:
    """Start up to 1,000 instances of one definition. Each item has its own answer, in order: one that is refused keeps
    no other from starting."""
    definition = await _definition(call, body)
    await call.service.check_backlog(definition.queue, len(body.items))
    answers: list[Started | None] = [None] * len(body.items)
    born: list[tuple[int, NewInstance]] = []
    for number, item in enumerate(body.items):
        try:
            one = _born(
                call, definition, item.input, item.business_key, None, str(number), place=f"/items/{number}/input"
            )
            born.append((number, one))
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
    places = [Misplaced(one.pointer, one.detail) for one in problem.errors]
    return Started(status=problem.status, code=problem.slug, detail=problem.detail, errors=places)


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
            "started": 1, "existing": 0, "refused": 0,
            "items": [{"status": 201, "id": INS, "code": None, "detail": None, "errors": []}],
        })},
        problems=("not-found", "definition-not-active", "quota-exceeded"),
    )(start_batch)  # fmt: skip
