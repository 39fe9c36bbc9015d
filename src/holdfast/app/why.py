"""Gathers what is known about an instance that does not move; `engine/why.py` says it in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.app.control import retry_id
from holdfast.app.definitions import CHILD
from holdfast.app.instances import ENDED, InstanceView, history_page, read
from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.journal import HOLE, LOST, PARKED, UNDO, Recorded, is_paused
from holdfast.engine.journal import read as read_journal
from holdfast.engine.moments import micros
from holdfast.engine.stacks import place_of, summary
from holdfast.engine.why import AHEAD_MAX, Attempt, Child, Facts, LateWord, Person, Retried, Signal, Timer, Unknown
from holdfast.engine.why import why as in_words

if TYPE_CHECKING:
    from holdfast.app.service import Service

LOOKED_AT = 20_000  # entries of a history
# Whose payloads are read: what is waited for, and until when. Of others it is enough that they are there.
LOOKED_INTO = (
    h.STEP_RETRIED, h.TRANSACTION_RETRIED, h.EFFECT_RETRIED, h.EFFECT_UNKNOWN, h.TIMER_STARTED, h.WAIT_STARTED,
    h.COMPENSATION_RETRIED, h.COMPENSATION_UNKNOWN, h.INSTANCE_RETRIED, h.INSTANCE_PARKED,
)  # fmt: skip

WORKERS_MAX = 1000
TASKS_MAX = 1000
HANDLER = "handler "  # before the name of a SYSTEM handler, among what a worker says it has


async def why(service: Service, tenant_id: str, id_: bytes) -> str:
    """One sentence: why this instance is not moving, and what would move it."""
    return in_words(await facts(service, tenant_id, id_))


async def facts(service: Service, tenant_id: str, id_: bytes) -> Facts:
    view = await read(service, tenant_id, id_, steps=False)
    found: dict[str, Any] = {
        "status": view.status, "kind": view.kind, "now": service.store.now(), "waiting_on": view.waiting_on or "",
        "state": view.state or "", "run_at": None if view.run_at is None else micros(view.run_at), "queue": view.queue,
        "error": _named(view.error), "undone": view.compensation == "complete",
    }  # fmt: skip
    if view.status in ENDED:
        if view.compensation == "partial":
            undone = await history_page(service, tenant_id, id_, types=(h.COMPENSATION_COMPLETED,), limit=1, most=1)
            found["undone_in_part"] = bool(undone.entries)
        return Facts(
            **found, retried=await _retried(service, tenant_id, id_), late=await _late(service, tenant_id, id_)
        )
    rows = await service.store.fetch("quarantined_since", tenant_id=tenant_id)
    found["quarantined_at"] = rows[0][0] if rows else None
    found |= await _holder(service, tenant_id, id_)
    if (view.waiting_on or "").startswith(HOLE):
        hole = str(view.waiting_on).removeprefix(PARKED)
        return Facts(**found, hole=hole, lost_its_end=hole.endswith(LOST))
    gather = _chart if view.kind == "chart" else _code
    found |= await gather(service, tenant_id, id_, view)
    if found["run_at"] is not None and found["run_at"] <= found["now"]:
        found |= await _claimants(service, tenant_id, view)
    return Facts(**found)


async def _retried(service: Service, tenant_id: str, id_: bytes) -> Retried | None:
    new = retry_id(tenant_id, id_)
    rows = await service.store.fetch("read_ending", tenant_id=tenant_id, id=new)
    return Retried(ids.instance_word(new), rows[0][0]) if rows else None


async def _late(service: Service, tenant_id: str, id_: bytes) -> list[LateWord]:
    rows = await service.store.fetch("words_not_taken", tenant_id=tenant_id, instance_id=id_)
    return [LateWord(kind, str(codec.decode(words).get("actor") or ""), at) for kind, words, at in rows]


async def _holder(service: Service, tenant_id: str, id_: bytes) -> dict[str, Any]:
    rows = await service.store.fetch("read_holder", tenant_id=tenant_id, id=id_)
    if not rows:
        return {}
    worker, at, host = rows[0]
    where = f" on {host}" if host else ""
    return {
        "held_by": ids.worker_word(worker) + where, "held_at": at,
        "short_of_threads": next(filter(None, (here.short_of_threads(id_) for here in service.workers)), ""),
        "holder_gone": await service.store.worker_gone(worker),
    }  # fmt: skip


async def _in_line(service: Service, name: str, tenant_id: str, id_: bytes) -> bool:
    [(count,)] = await service.store.fetch(name, tenant_id=tenant_id, instance_id=id_)
    return bool(count)


async def _pause(service: Service, tenant_id: str, id_: bytes, view: InstanceView) -> dict[str, Any]:
    if not is_paused(view.waiting_on):
        return {}
    # One that was paused while a cancel waits in line stands still, and nobody will look at that before another word.
    if view.run_at is not None and await _in_line(service, "count_unpausing_events", tenant_id, id_):
        return {}
    return {"paused": view.waiting_on}


# -- what it waits for


async def _unknown(service: Service, tenant_id: str, id_: bytes, steps: set[str]) -> list[Unknown]:
    since = dict(await service.store.fetch("unknown_since", tenant_id=tenant_id, instance_id=id_)) if steps else {}
    return [Unknown(step, since[step]) for step in sorted(steps) if step in since]


async def _child(service: Service, tenant_id: str, step: str, child: bytes) -> Child | None:
    rows = await service.store.fetch("read_ending", tenant_id=tenant_id, id=child)
    return Child(step, ids.instance_word(child), rows[0][0]) if rows else None


async def _code(service: Service, tenant_id: str, id_: bytes, view: InstanceView) -> dict[str, Any]:
    [(epoch, epoch_seq)] = await service.store.fetch("read_epoch", tenant_id=tenant_id, id=id_)
    if view.moved - epoch_seq > LOOKED_AT:  # its own word is shorter than its past
        return await _pause(service, tenant_id, id_, view)
    rows = await service.store.fetch(
        "history_in_short", tenant_id=tenant_id, instance_id=id_, since=epoch_seq, limit=LOOKED_AT,
        types=f" {' '.join(LOOKED_INTO)} ", instead=b"{}",
    )  # fmt: skip
    past = [(seq, type_, name, bytes(payload), digest, at) for seq, type_, name, at, digest, _, payload in rows
            if payload is not None]  # fmt: skip
    journal = read_journal(past)
    found: dict[str, Any] = await _pause(service, tenant_id, id_, view)
    parked = bool(past) and past[-1][1] == h.INSTANCE_PARKED
    # A cancel that it cannot take stays in line, and nobody will look at it before another word comes.
    stands = view.run_at is None or not await _in_line(service, "count_lifting_events", tenant_id, id_)
    if parked and stands:
        words = codec.decode(past[-1][3])
        place = place_of(words.get("error"))
        found["contradiction"] = str(words.get("difference", ""))[:400] + (f" (at {place})" if place else "")
    ending = bool(journal.ending_type)
    attempts: list[Attempt] = []
    children: list[Child | None] = []
    timers, signals, running, asked = [], [], [], set()
    for (_, name), call in journal.calls.items():
        opened = call.opened
        if call.answer_seq or opened is None:
            continue
        if call.kind == "sleep" and not ending:
            timers.append(Timer(name, opened.due))
        elif call.kind == "signal" and not ending:
            signals.append(Signal(name.partition("#")[0], opened.deadline))
        elif call.kind == "child":
            children.append(await _child(service, tenant_id, name, ids.child_id(tenant_id, id_, name, epoch)))
        elif call.opened_type == h.EFFECT_UNKNOWN and not opened.retry_at:
            asked.add(name)
        elif opened.retry_at:
            attempts.append(_attempt(name, call))
        elif call.kind in ("step", "effect"):
            running.append(f"{call.kind} {name!r}")
    for key, undone in journal.undone.items():
        words = undone.opened
        if undone.answer_seq or words is None:
            continue
        if words.retry_at:
            error = _named(words.error.words()) if words.error else ""
            by_retry = not words.unknown and undone.opened_type != h.EFFECT_UNKNOWN
            of = f"the compensation of {key!r}"
            attempts.append(Attempt(of, words.attempt + 1, 0, words.retry_at, error, by_retry))
        elif undone.opened_type == h.EFFECT_UNKNOWN:
            asked.add(UNDO + key)
    return found | {
        "timers": timers, "signals": signals, "children": [c for c in children if c], "attempts": attempts,
        "running": running, "answered_at": past[-1][5] if past else None,
        "unknown": await _unknown(service, tenant_id, id_, asked),
    }  # fmt: skip


def _named(error: Any) -> str:
    """What it is, and the author's line where it was raised. The line stands last and must not be cut off."""
    place = place_of(error)
    return summary(error) if not place else f"{summary(error)[:300]}, at {place}"


def _attempt(name: str, call: Recorded) -> Attempt:
    opened = call.opened
    assert opened is not None
    error = _named(opened.error.words()) if opened.error else ""
    if call.opened_type == h.EFFECT_UNKNOWN:
        return _lookup(name, opened.retry_at, error)
    by_retry = not opened.unknown
    return Attempt(f"{call.kind} {name!r}", opened.attempt + 1, opened.max_attempts, opened.retry_at, error, by_retry)


def _lookup(effect: str, at: int, error: str) -> Attempt:
    return Attempt(f"a lookup of effect {effect!r}", 0, 0, at, error)


async def _chart(service: Service, tenant_id: str, id_: bytes, view: InstanceView) -> dict[str, Any]:
    [(raw, _, _, _)] = await service.store.fetch("read_snapshot", tenant_id=tenant_id, id=id_)
    snapshot: dict[str, Any] = {} if raw is None else codec.decode(raw)
    found: dict[str, Any] = await _pause(service, tenant_id, id_, view)
    if snapshot.get("incident") and not await _in_line(service, "count_lifting_events", tenant_id, id_):
        found["incident"] = str(snapshot["incident"].get("message", ""))
    elif (view.waiting_on or "").startswith(PARKED) and view.run_at is None:
        found["contradiction"] = str(view.waiting_on).removeprefix(PARKED)[:400]
    ending = (snapshot.get("ending") or {}).get("status", "")
    timers, steps = _started(snapshot, ending)
    children = [
        await _child(service, tenant_id, step.rpartition("@")[0], ids.child_id(tenant_id, id_, step)) for step in steps
    ]
    people, attempts, running = [], [], []
    rows = await service.store.fetch(
        "open_tasks_in_short", tenant_id=tenant_id, instance_id=id_, limit=TASKS_MAX
    )  # fmt: skip
    in_doubt = dict(await service.store.fetch("effects_in_doubt", tenant_id=tenant_id, instance_id=id_))
    for key, type_, name, title, run_at, tried, tries_max, raw_error, assignee, groups, since, status, standing in rows:
        if type_ == "HUMAN":
            whose = [] if groups is None else codec.decode(groups.encode())
            people.append(Person(title or name, since, assignee, whose))
        elif status == "running":
            running.append(f"{type_} task {name!r}")
        elif run_at is not None and tried:
            error = "" if raw_error is None else _named(codec.decode(raw_error))
            next_one = Attempt(f"{type_} task {name!r}", tried + 1, tries_max, run_at, error, key not in in_doubt)
            attempts.append(_lookup(key, run_at, error) if standing == h.EFFECT_UNKNOWN else next_one)
        elif run_at is not None:
            timers.append(Timer(name, run_at))
    asked = {step for step, is_asked in in_doubt.items() if is_asked}
    return found | {
        "timers": timers, "children": [c for c in children if c], "people": people, "attempts": attempts,
        "running": running, "answered_at": micros(view.updated_at), "ending": ending,
        "unknown": await _unknown(service, tenant_id, id_, asked),
    }  # fmt: skip


def _started(snapshot: dict[str, Any], ending: str) -> tuple[list[Timer], list[str]]:
    """The timers, and the steps of the children, that a chart waits for. One that is ending fires no timer. If it has
    failed or was cancelled, it waits for the children that it has told to end."""
    if ending:
        return [], [] if ending == "completed" else list(snapshot.get("told") or ())
    timers = [Timer(name, timer["due"]) for name, timer in (snapshot.get("timers") or {}).items()]
    children = (snapshot.get("children") or {}).items()
    awaited = [(name, child) for name, child in children if child.get("workflow") and not child.get("answered")]
    return timers, [f"{name}@{child['visit']}" for name, child in awaited]


# -- who could claim it


async def _claimants(service: Service, tenant_id: str, view: InstanceView) -> dict[str, Any]:
    assert view.run_at is not None
    [(ahead,)] = await service.store.fetch(
        "count_ahead", tenant_id=tenant_id, queue=view.queue, key=view.workflow, version=view.version,
        run_at=micros(view.run_at), limit=AHEAD_MAX + 1,
    )  # fmt: skip
    said = [
        set(definitions.split(", "))
        for worker, definitions in await service.store.fetch("working_workers", tenant_id=tenant_id, limit=WORKERS_MAX)
        if not await service.store.worker_gone(worker)
    ]
    needs = await _needs(service, tenant_id, view)
    if service.workers and _has(service, tenant_id, view):
        missing: list[list[str]] = [[]]  # a worker of this process may have been told since it registered
    else:
        missing = [[need for need in needs if not _told(need, words)] for words in said]
    least = min(missing, key=len, default=[])
    return {
        "ahead": ahead, "workers": max(len(said), len(service.workers)), "missing": least or None,
    }  # fmt: skip


def _has(service: Service, tenant_id: str, view: InstanceView) -> bool:
    if view.kind == "code":
        return service.registry.knows(view.workflow, view.version)
    return service.charts.can_run(tenant_id, view.workflow, view.version)


async def _needs(service: Service, tenant_id: str, view: InstanceView) -> list[str]:
    """What a worker must have, in words."""
    if view.kind == "code":
        return [f"workflow {view.workflow!r} version {view.version}"]
    rows = await service.store.fetch(
        "read_definition", tenant_id=tenant_id, key=view.workflow, version=view.version
    )  # fmt: skip
    if not rows:
        return [f"chart {view.workflow!r} version {view.version}"]
    needs = []
    for need in codec.decode(rows[0][6].encode()):
        if not need.startswith(CHILD):
            needs.append(f"handler {need!r}")
            continue
        child = need.removeprefix(CHILD)
        [(published,)] = await service.store.fetch("newest_active_version", tenant_id=tenant_id, key=child)
        if published is None:
            needs.append(f"child workflow {child!r}")
    return needs


def _told(need: str, words: set[str]) -> bool:
    """Whether a worker that registered with these words has it."""
    kind, _, rest = need.partition("'")
    name, _, version = rest.rpartition("'")
    if kind == HANDLER:
        return HANDLER + name in words
    if kind == "workflow ":
        return f"{name} v{version.removeprefix(' version ')}" in words
    return any(word.rpartition(" v")[0] == name for word in words)
