"""What is said to an instance over HTTP: events, and to stop, to go on, to begin anew."""

from __future__ import annotations

from typing import Any

import msgspec
from uuid_utils import uuid7

from holdfast.api.endpoints import Answer, Call, Endpoints, Reply
from holdfast.api.instances import INS, ONE, as_it_stands, waited
from holdfast.api.models import (
    Accepted,
    EventOut,
    Fork,
    InstanceOut,
    Migrate,
    MigrationOut,
    Reasoning,
    Resume,
    SendEvent,
)
from holdfast.api.problems import Fault, Problem
from holdfast.app import control, definitions, instances
from holdfast.app.instances import InstanceView
from holdfast.engine import codec, ids
from holdfast.engine.errors import EventNotTakenYet, VersionMoved
from holdfast.engine.events import OUR_EVENT_IDS, OUR_EVENTS

STRICT_SECONDS = 10.0


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
                taken = await waited(call, wait)
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
    return Reply(201, *await as_it_stands(call, found), {"Location": f"/workflow/instances/{ids.instance_word(found)}"})


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
    return Reply(201, *await as_it_stands(call, found), {"Location": f"/workflow/instances/{ids.instance_word(found)}"})


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


def declare(endpoints: Endpoints) -> None:
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
