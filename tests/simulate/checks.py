"""The judgement, from outside: the provider's ledger against the database, and the auditor over all of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import apsw

from holdfast.engine import ids
from tests.simulate.provider import Call, Ledger
from tests.support.auditor import Database, Entry, Place, Violation, _read, audit

if TYPE_CHECKING:
    from tests.simulate.machine import Clock
    from tests.simulate.simulation import Facts

CLAIMS_MAX = 5  # deaths that make an instance poison


def all_of(url: str, facts: Facts, ledger: Ledger, clock: Clock, features: frozenset[str]) -> list[str]:
    """Every problem, its kind before the colon."""
    database = Database(_read(url))
    keys = [call.key for call in ledger.calls]
    violations = audit(url, provider_calls=keys, acknowledged=facts.acknowledged)
    found = [
        f"audit {violation}" for violation in violations
        if not excused(database, violation) and not (clock.went_back and _ran_while_it_went_back(violation))
    ]  # fmt: skip
    found += [f"verify: {fault}" for fault in facts.verify]
    found += [f"unrest: {text}" for text in facts.unrest]
    found += [f"process ended: {text}" for text in facts.exits]
    found += [f"worker stopped: {text}" for text in facts.stopped_tasks]
    if not clock.went_back:
        found += early(database, ledger)
    for check in (calls, undone, forgotten, signals, endings):
        found += check(database, facts, ledger)
    if "late_signals" in features:
        found += late_signals(database)
    found += requests(url, ledger)
    found += bookings(url)
    return found


def _word(place: Place) -> str:
    return ids.instance_word(place[1])


def _is_parked(database: Database, place: Place) -> bool:
    past = database.past(place)
    return bool(past) and past[-1].type == "INSTANCE_PARKED"


def excused(database: Database, found: Violation) -> bool:
    """A parked instance stands still with all that it has, also amid its undoing and with words in line: a person or a
    deploy mends it. And what was started in one turn has no order that the history tells; `undone` looks closer."""
    if found.instance == "-":
        return False
    place = (found.tenant_id, ids.parse("ins", found.instance))
    if found.invariant == "I12" and "which was started before it" in found.text:
        return True
    return found.invariant in ("I3", "I4", "I6") and _is_parked(database, place)


def _ran_while_it_went_back(found: Violation) -> bool:
    """A retry is dated by its result, and a timer that fired alone by that of the step behind it, with which it is
    written: both came in time, and the clock was set back while the handler ran."""
    return found.invariant == "I8" and found.text.startswith(("retry of", "timer"))


def _is_fork(database: Database, place: Place) -> bool:
    past = database.past(place)
    return bool(past) and "forked_from" in past[0].words


def early(database: Database, ledger: Ledger) -> Iterator[str]:
    """A body that was woken before its sleep was over. A fork has slept in its original's past."""
    forks = {_word(place) for place in database.instances if _is_fork(database, place)}
    for instance, name in ledger.early:
        if instance not in forks:
            yield f"early: {instance[-6:]} was woken before sleep {name} was over"


# -- calls


def calls(database: Database, facts: Facts, ledger: Ledger) -> Iterator[str]:
    """A call that follows another under the same key needs a reason."""
    for key, made in ledger.by_key().items():
        for before, after in pairwise(made):
            if before.not_applied or _person_between(ledger, key, before, after):
                continue
            where = f"{before.step} of {before.instance[-6:]} ({before.behaviour}, then {after.behaviour})"
            if before.mode == "manual":
                yield f"called twice: manual effect {where}"
            elif before.mode == "keyed" and after.mode != "keyed":
                yield f"called twice: keyed effect {where}, started again as {after.mode}"
            elif before.mode == "lookup" and before.booked_at is not None and after.mode != "keyed":
                yield f"called twice: look-up effect {where}, booked at {before.booked_at:.1f}, again at {after.at:.1f}"


def _person_between(ledger: Ledger, key: str, before: Call, after: Call) -> bool:
    return any(
        word.key == key and word.choice == "did_not_happen" and before.number < word.number < after.number
        for word in ledger.words
    )


def requests(url: str, ledger: Ledger) -> Iterator[str]:
    """What was sent is what is on record."""
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    rows = connection.execute("select idempotency_key, request from holdfast_effects").fetchall()
    connection.close()
    recorded = {key: json.loads(request) for key, request in rows if request is not None}
    for call in ledger.calls:
        if isinstance(call.request, dict) and recorded.get(call.key) not in (None, [call.request]):
            yield f"sent otherwise: {call.step} sent {call.request}, on record is {recorded[call.key]}"


def bookings(url: str) -> Iterator[str]:
    """What a transaction step wrote is there once."""
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        rows = connection.execute("select place, count(*) from bookings group by place having count(*) > 1").fetchall()
    except apsw.SQLError:
        rows = []
    connection.close()
    for place, count in rows:
        yield f"booked twice: transaction {place} was committed {count} times"


# -- undoing


def undone(database: Database, facts: Facts, ledger: Ledger) -> Iterator[str]:
    """Undone is what happened, in the reverse order of starts, and nothing of what completed."""
    booked = {(c.instance, c.step) for c in ledger.calls if c.booked_at is not None}
    doubtful = {(word.instance, word.step) for word in ledger.words}  # also of a call that never came so far
    order: dict[str, list[str]] = defaultdict(list)
    for instance, step in ledger.refunds:
        if step not in order[instance]:
            order[instance].append(step)
    for place, row in database.instances.items():
        word = _word(place)
        past, fork = database.past(place), _is_fork(database, place)
        steps = order.get(word, [])
        if row["status"] == "completed" and steps:
            yield f"undone: {word[-6:]} completed, and {steps} was undone"
        for step in steps:
            if (word, step) not in booked | doubtful | set(ledger.did) and not fork:
                yield f"undone: {step} of {word[-6:]} never happened, and was undone"
        starts = {e.step: e for e in reversed(past) if e.type in ("STEP_STARTED", "EFFECT_STARTED")}
        known = [starts[step] for step in steps if step in starts]
        for before, after in pairwise(known):
            if after.seq > before.seq and not _one_turn(past, before, after):
                yield f"undone: {word[-6:]} undid {steps}, but {after.step} was started after {before.step}"


def _one_turn(past: list[Entry], first: Entry, second: Entry) -> bool:
    """Whether both may have been asked for at once: a turn writes down its steps first, then its effects."""
    rows = past[first.seq - 1 : second.seq]
    return first.type == "STEP_STARTED" and second.type == "EFFECT_STARTED" and {row.at for row in rows} == {first.at}


def forgotten(database: Database, facts: Facts, ledger: Ledger) -> Iterator[str]:
    """What an instance that failed or was cancelled had done, and named an undo for, is undone."""
    refunds = set(ledger.refunds)
    denied = {word.key for word in ledger.words if word.choice == "did_not_happen" and word.accept_double}
    owed: dict[str, set[str]] = defaultdict(set)
    for instance, step in ledger.did:
        owed[instance].add(step)
    for call in ledger.calls:
        if call.booked_at is not None and call.undo and call.key not in denied:
            owed[call.instance].add(call.step)
    for place, row in database.instances.items():
        word = _word(place)
        if row["status"] not in ("failed", "cancelled") or place in database.buried or row["compensation"] == "partial":
            continue
        for step in sorted(owed[word]):
            if (word, step) not in refunds:
                yield f"forgotten: {word[-6:]} is {row['status']}, and {step}, which happened, was not undone"


# -- signals


def signals(database: Database, facts: Facts, ledger: Ledger) -> Iterator[str]:
    there = {(_word(place), event["id"]) for place, events in database.events.items() for event in events}
    for instance, id_ in facts.signals:
        if (instance, id_) not in there:
            yield f"signal lost: {id_} to {instance[-6:]} was acknowledged and is not there"
    for place, row in database.instances.items():
        if row["kind"] != "code":
            continue
        for entry in database.own(place):
            if entry.type == "SIGNAL_RECEIVED" and (_word(place), entry.words["event_id"]) not in ledger.heard:
                id_ = entry.words["event_id"]
                yield f"signal swallowed: {id_} was taken by {entry.name} of {_word(place)[-6:]}, nobody heard it"


def late_signals(database: Database) -> Iterator[str]:
    """A wait takes no signal that was sent after its deadline."""
    for place in database.history:
        sent = {event["id"]: event["sent_at"] for event in database.events.get(place, ())}
        deadlines: dict[str, int] = {}
        for entry in database.own(place):
            if entry.type == "WAIT_STARTED":
                deadlines[entry.name] = entry.words.get("deadline") or 0
            elif entry.type == "SIGNAL_RECEIVED" and deadlines.get(entry.name):
                late = sent.get(entry.words["event_id"], 0) - deadlines[entry.name]
                if late > 0:
                    yield f"late signal: {entry.words['event_id']} came {late} µs after {entry.name}, which took it"


# -- endings


def endings(database: Database, facts: Facts, ledger: Ledger) -> Iterator[str]:
    for place, row in database.instances.items():
        word = _word(place)
        ended = row["completed_at"] is not None
        if word in facts.healthy and row["status"] != "completed":
            yield f"neighbour: {word[-6:]} is healthy, and it is {row['status']}: {_error(row)}"
        for step, effect in database.effects.get(place, {}).items():
            if ended and place not in database.buried and effect["state"] in ("started", "outcome_unknown"):
                yield f"left open: {word[-6:]} is {row['status']}, and effect {step} is {effect['state']}"
        if place in database.buried:
            yield from _buried(database, facts, place)
        past = database.past(place)
        if not facts.deployed and past and past[-1].type == "INSTANCE_PARKED":
            yield f"parked: {word[-6:]} without any deploy: {past[-1].words.get('difference')}"


def _buried(database: Database, facts: Facts, place: Place) -> Iterator[str]:
    if facts.deaths < CLAIMS_MAX:
        yield f"poison: {_word(place)[-6:]} was buried, and only {facts.deaths} workers ever died"


def _error(row: dict[str, Any]) -> str:
    return "" if row["last_error"] is None else str(json.loads(row["last_error"]).get("message"))[:200]


def kinds(problems: list[str]) -> Counter[str]:
    return Counter(
        problem.partition(":")[0] if not problem.startswith("audit") else problem[:9] for problem in problems
    )
