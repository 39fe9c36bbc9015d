"""The auditor: reads a whole database, without the engine, and names every broken invariant of RELIABILITY.md.

It believes only the rows. `audit(url)` gives the violations, each with the invariant's number, the instance and
what is wrong; `assert_sound(url)` fails a test that left any. `finished=True` says that nothing should be under way
any more: then everything that still lives must wait for something that exists.

Not covered, because the tables do not exist yet: I10, I16, I20. I17-I19 are about more than one database.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import apsw
import asyncpg

from holdfast.engine import ids
from holdfast.engine.history import first_bad_row
from holdfast.engine.journal import HOLE, LOST

TERMINAL = {
    "INSTANCE_COMPLETED": "completed",
    "INSTANCE_FAILED": "failed",
    "INSTANCE_CANCELLED": "cancelled",
}
ENDINGS = ("INSTANCE_FAILING", "INSTANCE_CANCELLING")
UNDONE = ("COMPENSATION_COMPLETED", "COMPENSATION_FAILED")
ANSWERS = (
    "STEP_COMPLETED", "STEP_FAILED", "TRANSACTION_COMMITTED", "TRANSACTION_FAILED", "EFFECT_SUCCEEDED",
    "EFFECT_FAILED", "TIMER_FIRED", "SIGNAL_RECEIVED", "WAIT_TIMED_OUT", "CHILD_COMPLETED", "CHILD_FAILED",
    "VALUE_RECORDED",
)  # fmt: skip
OPENINGS = ("STEP_STARTED", "EFFECT_STARTED", "CHILD_STARTED")
TAKEN_BY = {
    "signal": ("SIGNAL_RECEIVED", "EVENT_RECEIVED", "EVENT_IGNORED", "EVENT_DROPPED"),
    "task": ("TASK_COMPLETED", "TASK_FAILED", "TASK_LATE"),
    "migrate": ("INSTANCE_MIGRATED", "EVENT_IGNORED"),
    "child": ("CHILD_COMPLETED", "CHILD_FAILED"),
    "cancel": ("INSTANCE_CANCELLING", "INSTANCE_RESUMED"),
    "resume": ("INSTANCE_RESUMED",),
    "pause": ("INSTANCE_PAUSED",),
    "retry": ("INSTANCE_RETRIED",),
    "fork": ("INSTANCE_STARTED",),
    "resolution": ("EFFECT_RESOLVED", "COMPENSATION_RESOLVED", "INSTANCE_RESUMED"),
}
AS_EFFECT = {  # a compensation that is an effect, in the words of one
    "COMPENSATION_STARTED": "EFFECT_STARTED", "COMPENSATION_RETRIED": "EFFECT_RETRIED",
    "COMPENSATION_UNKNOWN": "EFFECT_UNKNOWN", "COMPENSATION_RESOLVED": "EFFECT_RESOLVED",
    "COMPENSATION_COMPLETED": "EFFECT_SUCCEEDED", "COMPENSATION_FAILED": "EFFECT_FAILED",
}  # fmt: skip
NOTED = "resolution of "  # a word that decided nothing: the effect had gone on, or was another epoch's
EFFECT_STATES = {  # what the last entry of an effect says about the state of its row
    "EFFECT_STARTED": ("started",),
    "EFFECT_SUCCEEDED": ("succeeded", "resolved"),
    "EFFECT_FAILED": ("failed", "resolved"),
    "EFFECT_RETRIED": ("failed", "outcome_unknown"),
    "EFFECT_UNKNOWN": ("outcome_unknown",),
    "EFFECT_RESOLVED": ("resolved",),
}
TABLES = {
    "instances": "tenant_id, id, kind, definition_key, definition_version, status, waiting_on, run_at, locked_by, "
    "fence, attempts, woken, input, result, last_error, compensation, parent_id, parent_step, seq, hash, completed_at, "
    "snapshot, current_state, epoch, epoch_seq",
    "history": "tenant_id, instance_id, seq, type, name, fence, at, payload, salt, hash, payload_hash",
    "events": "tenant_id, instance_id, id, kind, name, payload, sent_at, consumed_seq",
    "effects": "tenant_id, id, instance_id, step, mode, state, attempt, idempotency_key, fence, worker_id, resolution",
    "effect_observations": "tenant_id, id, effect_id, instance_id, worker_id, fence, attempt, outcome, payload",
    "tasks": "tenant_id, id, instance_id, key, type, name, status, run_at, attempts, locked_by, fence, output, error, "
    "completed_at, completed_by, closed_at, idempotency_key, invoke_id",
    "dead_letters": "tenant_id, id, source, instance_id, reason",
    "workers": "tenant_id, id, host, pid, stopped_at, fenced_at",
}
ORDER = {"history": " order by tenant_id, instance_id, seq", "events": " order by tenant_id, instance_id, sent_at, id"}

Place = tuple[str, bytes]  # tenant and instance
Row = dict[str, Any]


class Violation(NamedTuple):
    invariant: str
    tenant_id: str
    instance: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.tenant_id}/{self.instance}: {self.text}"


class Entry(NamedTuple):
    """One history row, its payload parsed. Names of a later epoch end in its number: they name other deeds."""

    seq: int
    type: str
    name: str
    fence: int
    at: int
    words: Row
    epoch: int = 0
    step: str = ""  # the name itself


def _as_effects(past: Iterable[Entry]) -> list[Entry]:
    """With every compensation that is an effect under the name and in the words of one: its start says its mode."""
    found, undoing = [], set()
    for entry in past:
        if entry.type in AS_EFFECT and (entry.words.get("mode") or entry.name in undoing):
            undoing.add(entry.name)
            step = "undo:" + entry.step
            entry = entry._replace(type=AS_EFFECT[entry.type], step=step, name=_in_epoch(step, entry.epoch))
        found.append(entry)
    return found


class Database:
    """Every row, in memory, from one consistent look."""

    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self.rows = rows
        self.instances: dict[Place, Row] = {(r["tenant_id"], r["id"]): r for r in rows["instances"]}
        self.sealed: dict[Place, list[Row]] = defaultdict(list)
        for row in rows["history"]:
            self.sealed[row["tenant_id"], row["instance_id"]].append(row)
        self.history = {place: _entries(rows_there) for place, rows_there in self.sealed.items()}
        self.events: dict[Place, list[Row]] = defaultdict(list)
        for row in rows["events"]:
            self.events[row["tenant_id"], row["instance_id"]].append(row)
        self.effects: dict[Place, dict[str, Row]] = defaultdict(dict)
        for row in rows["effects"]:
            place = (row["tenant_id"], row["instance_id"])
            epochs = range(self.instances[place]["epoch"] + 1 if place in self.instances else 1)
            epoch = next((n for n in epochs if ids.effect_id(*place, row["step"], n) == row["id"]), 0)
            self.effects[place][_in_epoch(row["step"], epoch)] = row
        self.tasks: dict[Place, dict[str, Row]] = defaultdict(dict)
        for row in rows["tasks"]:
            self.tasks[row["tenant_id"], row["instance_id"]][row["key"]] = row
        self.buried = {(r["tenant_id"], r["instance_id"]) for r in rows["dead_letters"]}
        self.workers = {r["id"]: r for r in rows["workers"]}

    def past(self, place: Place) -> list[Entry]:
        return self.history.get(place, [])

    def copied(self, place: Place) -> int:
        """The last row that a fork took over from another's past; 1 or less: none."""
        past = self.past(place)
        return 1 + past[0].words.get("copied", 0) if past else 0

    def own(self, place: Place) -> list[Entry]:
        """What happened in this instance itself."""
        last = self.copied(place)
        return [e for e in self.past(place) if e.seq == 1 or e.seq > last]


def _in_epoch(name: str, epoch: int) -> str:
    return f"{name} ~{epoch}" if epoch and name else name


def _out_of_epoch(name: str) -> tuple[str, int]:
    step, _, epoch = name.rpartition(" ~")
    return (step, int(epoch)) if step and epoch.isdecimal() else (name, 0)


def _entries(rows: list[Row]) -> list[Entry]:
    found, epoch = [], 0
    for r in rows:
        if r["type"] == "INSTANCE_RESTARTED":
            epoch += 1
        named = r["name"] if r["type"].startswith("INSTANCE_") else _in_epoch(r["name"], epoch)
        words = _words(r["payload"])
        if r["type"] == "INSTANCE_RETRIED":
            words = words | {"due": [_in_epoch(name, epoch) for name in words.get("due", ())]}
        found.append(Entry(r["seq"], r["type"], named, r["fence"], r["at"], words, epoch, r["name"]))
    return found


def assert_sound(url: str, *, finished: bool = True, **given: Any) -> None:
    found = audit(url, finished=finished, **given)
    assert not found, f"{len(found)} violations:\n" + "\n".join(str(v) for v in found[:40])


def audit(
    url: str, *, finished: bool = True, provider_calls: Iterable[str] | None = None,
    acknowledged: Iterable[str] = (),
) -> list[Violation]:  # fmt: skip
    """All violations in the database at `url`.

    `provider_calls`: the idempotency keys an outside provider saw, one per call. `acknowledged`: ids of instances
    whose start was acknowledged to somebody.
    """
    database = Database(_read(url))
    found: list[Violation] = []
    for check in CHECKS:
        for invariant, place, text in check(database, finished):
            found.append(Violation(invariant, place[0], _shown(place[1]), text))
    for invariant, place, text in (*_provider(database, provider_calls), *_acknowledged(database, acknowledged)):
        found.append(Violation(invariant, place[0], _shown(place[1]), text))
    return found


Found = Iterator[tuple[str, Place, str]]


# -- I2, I3: effects


def _effects(database: Database, finished: bool) -> Found:
    for place, instance in database.instances.items():
        entries: dict[str, list[Entry]] = defaultdict(list)
        for entry in _as_effects(database.own(place)):
            if entry.type in EFFECT_STATES:
                entries[entry.name].append(entry)
        rows = database.effects.get(place, {})
        for step, row in rows.items():
            expected = ids.effect_id(place[0], place[1], *_out_of_epoch(step))
            if row["id"] != expected or row["idempotency_key"] != ids.idempotency_key(expected):
                yield "I2", place, f"effect {step!r}: its key does not follow from where it was born"
            if not any(e.type == "EFFECT_STARTED" for e in entries.get(step, ())):
                yield "I3", place, f"effect {step!r} has a row but its start is not in the history"
        for step, past in entries.items():
            yield from _one_effect(place, step, past)
            found = rows.get(step)
            if found is None:
                yield "I3", place, f"effect {step!r} is in the history but has no row"
                continue
            if found["state"] not in EFFECT_STATES[past[-1].type]:
                yield "I3", place, f"effect {step!r} is {found['state']}, its history ends with {past[-1].type}"
            attempt = past[-1].words.get("attempt", 1)
            if found["attempt"] != attempt:
                yield "I3", place, f"effect {step!r} is at attempt {found['attempt']}, its history at {attempt}"
            ended = instance["completed_at"] is not None and place not in database.buried
            abandoned = finished and instance["locked_by"] is None and instance["run_at"] is None
            if found["state"] == "started" and (ended or abandoned):
                yield "I3", place, f"effect {step!r} was started and never ended"


def _one_effect(place: Place, step: str, past: list[Entry]) -> Found:
    allowed, attempt, asked = True, 0, False
    for entry in past:
        if asked and entry.type != "EFFECT_RESOLVED":
            yield "I13", place, f"effect {step!r} waited for a person and was left by {entry.type} at {entry.seq}"
        asked = entry.type == "EFFECT_UNKNOWN" and not entry.words.get("retry_at")
        if entry.type == "EFFECT_STARTED":
            if entry.words.get("mode") == "manual" and not allowed:
                yield "I2", place, f"manual effect {step!r} was started again at {entry.seq} though nobody allowed it"
            if entry.words.get("attempt", 1) <= attempt:
                yield "I2", place, f"effect {step!r}: attempt {entry.words.get('attempt')} was started twice"
            attempt = entry.words.get("attempt", 1)
            allowed = False
        elif entry.type == "EFFECT_RESOLVED":
            allowed = entry.words.get("resolution") == "did_not_happen"
        elif entry.type == "EFFECT_RETRIED":
            allowed = not entry.words.get("unknown")
            if entry.words.get("mode") == "manual" and not allowed:
                yield "I2", place, f"manual effect {step!r}, its outcome unknown, is to be started again by itself"


def _provider(database: Database, calls: Iterable[str] | None) -> Found:
    """What the provider saw against what we wrote down before calling it."""
    if calls is None:
        return
    seen = Counter(calls)
    known: set[str] = set()
    for place, rows in database.effects.items():
        for step, row in rows.items():
            past = [e for e in _as_effects(database.past(place)) if e.name == step]
            starts = sum(e.type == "EFFECT_STARTED" for e in past)
            count = seen[row["idempotency_key"]]
            known.add(row["idempotency_key"])
            if count > starts:
                yield "I2", place, f"{row['mode']} effect {step!r}: {count} calls at the provider, {starts} on record"
            succeeded = any(e.type == "EFFECT_SUCCEEDED" and e.words.get("via") == "call" for e in past)
            if succeeded and not count:
                yield "I2", place, f"effect {step!r} succeeded, and the provider never saw it"
    for key in seen.keys() - known:
        yield "I2", ("", b""), f"the provider was called with the key {key}, of which no effect is on record"


def _acknowledged(database: Database, acknowledged: Iterable[str]) -> Found:
    there = {ids.instance_word(id_) for _, id_ in database.instances}
    for word in acknowledged:
        if word not in there:
            yield "I1", ("", ids.parse("ins", word)), "its start was acknowledged, and it is not there"


# -- I4: everything that lives waits for something that exists, or is claimed by a live worker


def _alive(database: Database, finished: bool) -> Found:
    for place, instance in database.instances.items():
        status, owner = instance["status"], instance["locked_by"]
        if instance["completed_at"] is not None:
            continue
        if owner is not None:
            worker = database.workers.get(owner)
            if worker is None or worker["fenced_at"] is not None:
                yield "I4", place, "it is claimed by a worker that was fenced or never registered"
            elif finished and not _runs(worker):
                yield "I4", place, f"it is claimed by worker {owner.hex()}, whose process is gone"
            if status not in ("running", "compensating"):
                yield "I4", place, f"it is claimed, and its status is {status}"
            continue
        if status == "pending" and database.past(place):
            yield "I4", place, "it is pending, and it has a history"
        if instance["run_at"] is None and (instance["waiting_on"] or "").startswith(HOLE):
            continue  # a person; its history is not written on, so only its row says so
        if instance["kind"] == "chart":
            yield from _chart_lives(database, place, instance)
            continue
        if instance["run_at"] is not None:
            due = _next_due(database, place)
            if status == "waiting" and due is not None and instance["run_at"] > due:
                yield "I4", place, f"it has work due at {due}, and nobody looks before {instance['run_at']}"
        elif _paused(database.past(place)):
            if event := next((e for e in database.events.get(place, ()) if _lifts(e)), None):
                yield "I4", place, f"{event['kind']} arrived for it while it was paused, and nobody will look"
        elif instance["kind"] == "code" and not _waits(database, place, instance):
            yield "I4", place, f"it is {status}, unclaimed, without a time, and waits for nothing that exists"
        elif event := _unseen(database, place):
            yield "I4", place, f"{event['kind']} {event['name']!r} arrived for it, and nobody will look"


def _runs(worker: Row) -> bool:
    if worker["host"] != socket.gethostname():
        return True
    try:
        os.kill(worker["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _open(past: list[Entry]) -> dict[tuple[str, str], Entry]:
    """The latest opening entry of every wait, child and effect that has no answer yet."""
    kinds = {"TIMER": "timer", "WAIT": "signal", "SIGNAL": "signal", "CHILD": "child", "EFFECT": "effect"}
    found: dict[tuple[str, str], Entry] = {}
    for entry in _as_effects(past):
        kind = kinds.get(entry.type.partition("_")[0])
        if entry.type == "INSTANCE_RESTARTED":
            found.clear()  # what an epoch may leave open nobody waits for in the next
        if kind is None:
            continue
        if entry.type in ANSWERS:
            found.pop((kind, entry.name), None)
        else:
            found[kind, entry.name] = entry
    return found


def _paused(past: list[Entry]) -> bool:
    """By the last word on it: a pause, or what lifts one."""
    for entry in reversed(past):
        if entry.type == "INSTANCE_PAUSED":
            return True
        if entry.type in ENDINGS or (entry.type == "INSTANCE_RESUMED" and entry.name in ("", "cancel")):
            return False
    return False


def _lifts(event: Row) -> bool:
    return event["consumed_seq"] is None and event["kind"] in ("pause", "resume", "retry", "cancel")


def _closing(past: list[Entry]) -> bool:
    return any(e.type in ENDINGS for e in past)


def _next_due(database: Database, place: Place) -> int | None:
    times = []
    for (kind, _), entry in _open(database.past(place)).items():
        word = {"timer": "due", "signal": "deadline", "effect": "retry_at"}.get(kind)
        if word and entry.words.get(word):
            times.append(entry.words[word])
    return min(times) if times else None


def _waits(database: Database, place: Place, instance: Row) -> bool:
    past = database.past(place)
    closing = _closing(past)
    if past and past[-1].type == "INSTANCE_PARKED":
        return True
    for (kind, name), entry in _open(past).items():
        if kind == "signal" and not closing and not entry.words.get("deadline"):
            return True
        child = (place[0], ids.child_id(place[0], place[1], entry.step, entry.epoch))
        if kind == "child" and child in database.instances:
            return True
        row = database.effects.get(place, {}).get(name)
        if kind == "effect" and entry.type == "EFFECT_UNKNOWN" and row and row["state"] == "outcome_unknown":
            return True
    return False


def _unseen(database: Database, place: Place) -> Row | None:
    """An event that somebody should have looked at: the instance waits for it, and has no time to run."""
    past = database.past(place)
    open_ = {(kind, entry.step) for (kind, _), entry in _open(past).items()}
    waits = {name.partition("#")[0] for kind, name in open_ if kind == "signal"} if not _closing(past) else set()
    for event in database.events.get(place, ()):
        if event["consumed_seq"] is not None:
            continue
        kind, name = event["kind"], event["name"]
        if kind == "cancel" and past[-1].type == "INSTANCE_PARKED":
            continue  # what it owes keeps it from ending: the word waits for code that asks for that again
        if kind in ("cancel", "resume", "pause", "retry"):
            return event
        if kind == "signal" and any(w == name or w.startswith(name + ".") for w in waits):
            return event
        if kind == "child" and ("child", name) in open_:
            return event
        if kind == "resolution" and ("effect", name) in open_:
            return event
    return None


# -- I5, I6, I7, I13, I14: history and what follows from it


def _chain(database: Database, _: bool) -> Found:
    for place, rows in database.sealed.items():
        instance = database.instances.get(place)
        before = 0
        for row in rows:
            if row["fence"] < before:
                yield "I7", place, f"entry {row['seq']} was written under fence {row['fence']}, after {before}"
            if instance is not None and row["fence"] > instance["fence"]:
                yield (
                    "I14",
                    place,
                    f"entry {row['seq']} has fence {row['fence']}, it was only claimed {instance['fence']} times",
                )
            before = max(before, row["fence"])
        names = ("seq", "type", "name", "fence", "at", "payload", "salt", "hash", "payload_hash")
        bad = first_bad_row(place[0], place[1], [tuple(row[n] for n in names) for row in rows])
        if bad is not None and "lower than" not in bad[1]:
            yield "I5", place, f"row {bad[0]}: {bad[1]}"
        if instance is None:
            continue
        head = instance["seq"]
        if instance["hash"] is not None and len(instance["hash"]) == 8 and str(instance["waiting_on"]).endswith(LOST):
            continue  # a worker saw the end disappear, and wrote down how far it had come
        if head > len(rows):
            yield "I5", place, f"its row remembers entry {head}, the history ends at {len(rows)}"
        elif head and rows[head - 1]["hash"] != instance["hash"]:
            yield "I5", place, f"the hash of entry {head} is not the one its row remembers"
    for place, instance in database.instances.items():
        length = len(database.past(place))
        if instance["hash"] is not None and len(instance["hash"]) == 8 and str(instance["waiting_on"]).endswith(LOST):
            continue
        if instance["seq"] > 0 and not length:
            yield "I5", place, "its history is gone"
        settled = instance["completed_at"] is not None or instance["status"] == "waiting"
        if settled and length and instance["seq"] != length:
            yield (
                "I6",
                place,
                f"it is {instance['status']} as of entry {instance['seq']}, the history goes on to {length}",
            )


def _fold(database: Database, _: bool) -> Found:
    for place, instance in database.instances.items():
        if instance["kind"] != "code":
            continue
        past = database.past(place)
        status = instance["status"]
        ended = instance["completed_at"] is not None
        if ended != (status in TERMINAL.values()):
            yield "I6", place, f"its status is {status}, and completed_at is {instance['completed_at']}"
        if past and past[0].type != "INSTANCE_STARTED":
            yield "I6", place, f"its history begins with {past[0].type}"
        elif past and past[0].words.get("input_hash") != sha256(instance["input"]).hexdigest():
            yield "I6", place, "its input is not the one it was started with"
        ends = [e for e in past if e.type in TERMINAL]
        if len(ends) > 1:
            yield "I13", place, f"it ended {len(ends)} times"
        if ends and past[-1] is not ends[0]:
            yield "I13", place, f"{past[-1].type} follows its end at entry {ends[0].seq}"
        if ended and (instance["locked_by"] is not None or instance["run_at"] is not None):
            yield "I13", place, "it has ended, and it is still claimed or scheduled"
        if bool(ends) != ended:
            yield "I6", place, f"it is {status}, its history {'has' if ends else 'has no'} end"
        elif ends:
            yield from _ending(place, instance, ends[-1])
        elif status == "compensating" and not _closing(past):
            yield "I6", place, "it is compensating, and nothing in its history says why"
        elif status == "waiting" and _closing(past):
            yield "I6", place, "its history says it is ending, its status says waiting"
        yield from _answers(place, past)


def _ending(place: Place, instance: Row, last: Entry) -> Found:
    if TERMINAL[last.type] != instance["status"]:
        yield "I6", place, f"it is {instance['status']}, its history ends with {last.type}"
    for column, word in (("result", "result"), ("last_error", "error")):
        kept = None if instance[column] is None else json.loads(instance[column])
        if word in last.words and kept != last.words[word]:
            yield "I6", place, f"its {column} is {kept!r}, its history says {last.words[word]!r}"
    if instance["compensation"] != last.words.get("compensation"):
        yield "I6", place, f"compensation is {instance['compensation']!r}, its history says otherwise"


def _answers(place: Place, past: list[Entry]) -> Found:
    answered: dict[tuple[str, str], int] = {}
    for entry in past:
        if entry.type not in ANSWERS:
            continue
        space = entry.type.partition("_")[0]
        key = ({"SIGNAL": "signal", "WAIT": "signal", "VALUE": "value"}.get(space, ""), entry.name)
        if key in answered:
            yield "I6", place, f"{entry.name!r} was answered at entry {answered[key]} and again at {entry.seq}"
        answered[key] = entry.seq


# -- charts: I4 and I6, by snapshot and tasks


def _is_chart(database: Database, place: Place) -> bool:
    instance = database.instances.get(place)
    return instance is not None and instance["kind"] == "chart"


def _chart_lives(database: Database, place: Place, instance: Row) -> Found:
    """A chart that rests looks at the clock in time, and has seen every event."""
    if _paused(database.past(place)):
        if instance["snapshot"] is not None and not json.loads(instance["snapshot"]).get("paused"):
            yield "I6", place, "its history says it is paused, its snapshot does not"
        if instance["run_at"] is None and any(_lifts(e) for e in database.events.get(place, ())):
            yield "I4", place, "a word arrived for it while it was paused, and nobody will look"
        return
    if instance["snapshot"] is None:
        if instance["run_at"] is None:
            yield "I4", place, "it has not begun, and nobody will look"
        return
    snapshot = json.loads(instance["snapshot"])
    run_at = instance["run_at"]
    if not snapshot.get("incident"):
        if snapshot.get("inbox") and run_at is None:
            yield "I4", place, f"{len(snapshot['inbox'])} answers wait to be worked off, and nobody will look"
        times = [timer["due"] for timer in snapshot.get("timers", {}).values()] if not snapshot.get("ending") else []
        times += [t["run_at"] for t in database.tasks[place].values() if t["closed_at"] is None and t["run_at"]]
        if times and (run_at is None or run_at > min(times)):
            yield "I4", place, f"it has work due at {min(times)}, and nobody looks before {run_at}"
    for event in database.events.get(place, ()):
        stuck = event["kind"] == "signal" and (snapshot.get("incident") or snapshot.get("ending"))
        if event["consumed_seq"] is None and run_at is None and not stuck and event["kind"] != "resolution":
            yield "I4", place, f"{event['kind']} {event['name']!r} arrived for it, and nobody will look"


TASK_ENDS = {
    "TASK_COMPLETED": "succeeded", "TASK_FAILED": "failed", "TASK_CANCELLED": "cancelled", "TASK_SKIPPED": "skipped",
}  # fmt: skip


def _charts(database: Database, _: bool) -> Found:
    for place, instance in database.instances.items():
        if instance["kind"] != "chart":
            continue
        past = database.past(place)
        moves = [e for e in past if e.type == "STATE_TRANSITION"]
        snapshot = None if instance["snapshot"] is None else json.loads(instance["snapshot"])
        if bool(moves) != (snapshot is not None):
            yield "I6", place, f"it has {len(moves)} moves in its history, and its snapshot is {snapshot!r}"
        elif snapshot is not None:
            if moves[-1].words["to"] != snapshot["value"]:
                yield "I6", place, f"it stands in {snapshot['value']}, its history says {moves[-1].words['to']}"
            here = None
            for move in moves:
                if move.words["from"] != here:
                    yield "I6", place, f"entry {move.seq} leaves {move.words['from']}, it stood in {here}"
                here = move.words["to"]
            seqs = [move.words["seq"] for move in moves]
            if seqs != sorted(set(seqs)) or seqs[-1] > snapshot.get("seq", 0):
                yield "I6", place, f"its moves are numbered {seqs[-5:]}, its snapshot {snapshot.get('seq')}"
        ended = instance["completed_at"] is not None
        ends = [e for e in past if e.type in TERMINAL]
        if bool(ends) != ended or len(ends) > 1:
            yield "I13", place, f"it is {instance['status']}, and its history has {len(ends)} ends"
        elif ends:
            yield from _ending(place, instance, ends[-1])
            if past[-1] is not ends[0]:
                yield "I13", place, f"{past[-1].type} follows its end at entry {ends[0].seq}"
        yield from _tasks_of(place, past, database.tasks.get(place, {}), ended)


def _tasks_of(place: Place, past: list[Entry], rows: dict[str, Row], ended: bool) -> Found:
    made = [e.name for e in past if e.type == "TASK_CREATED"]
    if len(made) != len(set(made)):
        yield "I6", place, "a task was created twice"
    if set(made) != rows.keys():
        yield "I6", place, f"its history made the tasks {sorted(made)}, its rows are {sorted(rows)}"
    for key, row in rows.items():
        ends = [e for e in past if e.name == key and e.type in TASK_ENDS]
        expected = ids.effect_id(place[0], place[1], key)
        if row["id"] != expected or row["idempotency_key"] != ids.idempotency_key(expected):
            yield "I2", place, f"task {key!r}: its key does not follow from where it was born"
        if len(ends) > 1:
            yield "I6", place, f"task {key!r} ended {len(ends)} times"
        if bool(ends) != (row["closed_at"] is not None):
            yield "I6", place, f"task {key!r} is {row['status']}, closed at {row['closed_at']}; its history: {ends}"
        if ended and not ends:
            yield "I4", place, f"the instance has ended, and task {key!r} is still open"
        # A person's word that came while its instance moved on stays in the row; the history says it was too late.
        if ends and row["status"] != TASK_ENDS[ends[0].type] and row["completed_by"] is None:
            yield "I6", place, f"task {key!r} is {row['status']}, its history says {ends[0].type}"


# -- I8: timers


def _timers(database: Database, _: bool) -> Found:
    for place in database.history:
        past = database.own(place)
        due: dict[tuple[str, str], int] = {}
        fired: set[str] = set()
        for entry in past:
            if entry.type == "TIMER_CANCELLED" or (entry.type == "TIMER_STARTED" and _is_chart(database, place)):
                due.pop(("timer", entry.name), None)  # a chart's timer has the name of its state's visit
                fired.discard(entry.name)
            if entry.type == "TIMER_STARTED":
                if ("timer", entry.name) in due:
                    yield "I8", place, f"timer {entry.name!r} was set twice"
                due["timer", entry.name] = entry.words["due"]
            elif entry.type == "TIMER_FIRED":
                if entry.name in fired:
                    yield "I8", place, f"timer {entry.name!r} fired twice"
                fired.add(entry.name)
                yield from _early(place, entry, due.get(("timer", entry.name)), "timer")
            elif entry.type == "WAIT_STARTED":
                due["wait", entry.name] = entry.words.get("deadline") or 0
            elif entry.type == "WAIT_TIMED_OUT":
                yield from _early(place, entry, due.get(("wait", entry.name)), "time-out of")
            elif entry.type in ("STEP_RETRIED", "TRANSACTION_RETRIED"):
                due["retry", entry.name] = entry.words["retry_at"]
            elif entry.type == "INSTANCE_RETRIED":  # a person cut the wait short
                for name in entry.words["due"]:
                    if ("retry", name) in due:
                        due["retry", name] = min(due["retry", name], entry.at)
            elif entry.type in ("STEP_COMPLETED", "TRANSACTION_COMMITTED") and ("retry", entry.name) in due:
                yield from _early(place, entry, due["retry", entry.name], "retry of")


def _early(place: Place, entry: Entry, due: int | None, what: str) -> Found:
    if due is None:
        yield "I8", place, f"{what} {entry.name!r} at entry {entry.seq} was never set"
    elif entry.at < due:
        yield "I8", place, f"{what} {entry.name!r} came {due - entry.at} µs early"


# -- I9: events


def _resolutions(place: Place, entry: Entry) -> str:
    return ids.resolution_word(ids.effect_id(*place, entry.step, entry.epoch))


def _events(database: Database, _: bool) -> Found:
    for place, events in database.events.items():
        instance = database.instances.get(place)
        if instance is None:
            continue  # I15 names it
        past = {e.seq: e for e in _as_effects(database.past(place))}
        taken: dict[int, str] = {}
        if instance["woken"] != len(events):
            yield "I9", place, f"{len(events)} events were kept, it counts {instance['woken']}"
        for event in events:
            seq = event["consumed_seq"]
            if seq is None:
                continue
            entry = past.get(seq)
            if seq in taken:
                yield "I9", place, f"entry {seq} took both event {taken[seq]!r} and {event['id']!r}"
            taken[seq] = event["id"]
            if entry is None or entry.type not in TAKEN_BY.get(event["kind"], ()):
                there = entry.type if entry else "nothing"
                yield "I9", place, f"{event['kind']} {event['id']!r} was taken by entry {seq}, which is {there}"
            elif event["kind"] == "signal" and entry.words.get("event_id") != event["id"]:
                yield "I9", place, f"entry {seq} took signal {entry.words.get('event_id')!r}, not {event['id']!r}"
            elif event["kind"] in ("child", "resolution") and entry.step.removeprefix(NOTED) != event["name"]:
                yield "I9", place, f"entry {seq} is about {entry.name!r}, the event it took about {event['name']!r}"
            elif entry.type == "EFFECT_RESOLVED" and not event["id"].startswith(_resolutions(place, entry)):
                yield "I9", place, f"entry {seq} took {event['id']!r}, which is about the effect of another epoch"
    for place in database.history:
        there = {e["id"]: e["consumed_seq"] for e in database.events.get(place, ())}
        received: set[str] = set()
        for entry in database.own(place):
            if entry.type != "SIGNAL_RECEIVED":
                continue
            id_ = entry.words.get("event_id", "")
            if id_ in received:
                yield "I9", place, f"signal {id_!r} was received twice"
            received.add(id_)
            if there.get(id_) != entry.seq:
                yield "I9", place, f"entry {entry.seq} received signal {id_!r}, whose row says {there.get(id_)}"


# -- I11: parents and children


def _families(database: Database, _: bool) -> Found:
    for place in database.history:
        parent = database.instances.get(place)
        if parent is None:
            continue
        past = database.own(place)
        open_ = _open(past)
        for entry in past:
            if entry.type == "CHILD_STARTED":
                at = _child_of(place, entry)
                child = database.instances.get(at)
                if child is None or (child["parent_id"], child["parent_step"]) != (place[1], entry.step):
                    yield "I11", place, f"child {entry.name!r} was started, and it is not there"
                elif ("child", entry.name) in open_ and child["completed_at"] and not parent["completed_at"]:
                    told = [e for e in database.events.get(place, ()) if e["id"] == f"child:{at[1].hex()}"]
                    if not told:
                        yield "I11", place, f"it waits for child {entry.name!r}, which has ended and told nobody"
                    elif told[0]["consumed_seq"] is not None:
                        yield "I11", place, f"it waits for child {entry.name!r}, whose end it has already taken"
            elif entry.type == "CHILD_COMPLETED":
                child = database.instances.get(_child_of(place, entry))
                if child is not None and (
                    child["status"] != "completed" or json.loads(child["result"]) != entry.words.get("result")
                ):
                    yield "I11", place, f"it took a result of child {entry.name!r} that the child never gave"
    for place, child in database.instances.items():
        if child["parent_id"] is None:
            continue
        above = (place[0], child["parent_id"])
        parent = database.instances.get(above)
        started = any(e.type == "CHILD_STARTED" and e.step == child["parent_step"] for e in database.past(above))
        if parent is None or not started:
            yield "I11", place, "it is a child, and no parent started it"
        elif parent["completed_at"] and not child["completed_at"] and not _told_to_end(database, place):
            yield "I11", place, "its parent has ended, it lives on, and nobody told it to end"


def _child_of(parent: Place, started: Entry) -> Place:
    return parent[0], ids.child_id(*parent, started.step, started.epoch)


def _told_to_end(database: Database, child: Place) -> bool:
    return any(e["kind"] == "cancel" for e in database.events.get(child, ()))


def _ended_or_told_to(database: Database, child: Place, at: int) -> bool:
    """By that moment it had ended by itself, and its parent had not heard of that yet; or it was told."""
    row = database.instances.get(child)
    ended = row is not None and row["completed_at"] is not None and row["completed_at"] <= at
    return ended or _told_to_end(database, child)


# -- I12: compensations


def _compensations(database: Database, _: bool) -> Found:
    for place, past in database.history.items():
        started: dict[str, int] = {}
        succeeded: dict[str, str] = {}
        undone: dict[str, bool] = {}
        last: tuple[int, str] | None = None
        ending = 0
        for entry in past:
            if entry.type in OPENINGS:
                started.setdefault(entry.name, entry.seq)
            elif entry.type in ENDINGS:
                ending = entry.seq
            elif entry.type in ("STEP_COMPLETED", "TRANSACTION_COMMITTED", "EFFECT_SUCCEEDED", "CHILD_COMPLETED") or (
                entry.type in ("EFFECT_FAILED", "STEP_FAILED") and entry.words.get("aborted")
            ):
                succeeded[entry.name] = entry.type
            elif entry.type in UNDONE:
                if entry.name in undone:
                    yield "I12", place, f"{entry.name!r} was undone twice"
                undone[entry.name] = entry.type == "COMPENSATION_COMPLETED"
                if not ending:
                    yield "I12", place, f"{entry.name!r} was undone while the instance went on"
                if entry.name not in succeeded:
                    yield "I12", place, f"{entry.name!r} was undone, and it had not happened"
                at = started.get(entry.name)  # a transaction has no entry that says when it began
                if at is not None and last is not None and at > last[0]:
                    yield "I12", place, f"{entry.name!r} was undone after {last[1]!r}, which was started before it"
                if at is not None:
                    last = (at, entry.name)
        instance = database.instances.get(place)
        if instance is None or place in database.buried or instance["status"] not in ("failed", "cancelled"):
            continue
        settled = 1 + past[0].words.get("settled", 0)  # of a fork: taken over from one that completed
        owed = {e.name for e in past if e.type == "STEP_STARTED" and e.seq > settled} & succeeded.keys()
        for name in sorted(owed - undone.keys()):
            yield "I12", place, f"{name!r} happened and was never undone"
        expected = None if not undone else "complete" if all(undone.values()) else "partial"
        if instance["compensation"] != expected:
            yield "I12", place, f"compensation is {instance['compensation']!r}, its history says {expected!r}"


# -- forks


def _forks(database: Database, _: bool) -> Found:
    """What a fork has taken over stands in the original's past, in that order, and answers there."""
    for place, past in database.history.items():
        words = past[0].words
        if "copied" not in words:
            continue
        original = database.past((place[0], ids.parse("ins", words["forked_from"])))
        there = iter([(e.type, e.step, e.words) for e in original if e.seq < words["before_seq"]])
        for entry in past[1 : 1 + words["copied"]]:
            if (entry.type, entry.step, entry.words) not in there:
                yield "I6", place, f"entry {entry.seq} was taken over from a past that does not have it"
        own = {e.name for e in database.own(place) if e.type == "EFFECT_STARTED"}
        for name in sorted(own & {e.name for e in past[1 : 1 + words["copied"]] if e.type.startswith("EFFECT_")}):
            yield "I2", place, f"effect {name!r} was taken over as done, and done again"


# -- I15: tenants


def _tenants(database: Database, _: bool) -> Found:
    owners: dict[bytes, set[str]] = defaultdict(set)
    for tenant_id, id_ in database.instances:
        owners[id_].add(tenant_id)
    for id_, tenants in owners.items():
        if len(tenants) > 1:
            yield "I15", (min(tenants), id_), f"the same instance is in tenants {sorted(tenants)}"
    for table in ("history", "events", "effects", "effect_observations", "dead_letters"):
        strays = {
            (r["tenant_id"], r["instance_id"])
            for r in database.rows[table]
            if (r["tenant_id"], r["instance_id"]) not in database.instances
        }
        for place in sorted(strays):
            whose = sorted(owners.get(place[1], ()))
            yield (
                "I15",
                place,
                f"{table} of an instance that " + (f"is in tenant {whose[0]!r}" if whose else "is not there"),
            )
    effects = {(r["tenant_id"], r["id"]): r["instance_id"] for r in database.rows["effects"]}
    for row in database.rows["effect_observations"]:
        if effects.get((row["tenant_id"], row["effect_id"])) != row["instance_id"]:
            yield (
                "I15",
                (row["tenant_id"], row["instance_id"]),
                "evidence about an effect of another instance or tenant",
            )
    for (tenant_id, id_), instance in database.instances.items():
        parent = instance["parent_id"]
        if parent is not None and owners.get(parent, {tenant_id}) != {tenant_id}:
            yield "I15", (tenant_id, id_), f"its parent is in tenant {sorted(owners[parent])}"


# -- I6: epochs


def _did_not_happen(past: list[Entry], name: str) -> bool:
    """Whether the last word on an effect is that it did not happen: then code that asks for it no more owes nothing."""
    last = [entry for entry in past if entry.name == name and entry.type.startswith("EFFECT_")][-1]
    return last.type == "EFFECT_RESOLVED" or (last.type == "EFFECT_RETRIED" and not last.words.get("unknown"))


def _epochs(database: Database, _: bool) -> Found:
    """Each restart counts one, its row says where the epoch began, and nothing was under way or owed when it did."""
    for place, instance in database.instances.items():
        past = database.past(place)
        restarts = [entry for entry in past if entry.type == "INSTANCE_RESTARTED"]
        at = restarts[-1].seq if restarts else 0
        if (instance["epoch"], instance["epoch_seq"]) != (len(restarts), at):
            yield "I6", place, f"its row says epoch {instance['epoch']} from {instance['epoch_seq']} on, not {restarts}"
        if [entry.words.get("epoch") for entry in restarts] != list(range(1, len(restarts) + 1)):
            yield "I6", place, "its restarts are not numbered one after the other"
        for entry in restarts:
            before = [e for e in past if e.epoch == entry.epoch - 1 and e.seq < entry.seq]
            left = [
                (kind, name) for (kind, name), opened in _open(before).items()
                if (kind == "effect" and not _did_not_happen(before, name))
                or (kind == "child" and not _ended_or_told_to(database, _child_of(place, opened), entry.at))
            ]  # fmt: skip
            if left:
                yield "I3", place, f"it restarted at entry {entry.seq} and left {left} behind"
            owed = {e.name for e in before if e.type == "STEP_STARTED"}
            settled = 1 + past[0].words.get("settled", 0)
            if owed and any(e.seq > settled for e in before if e.type == "STEP_STARTED" and _done(before, e.name)):
                yield "I12", place, f"it restarted at entry {entry.seq}, and {sorted(owed)} may have to be undone"
            if any(e.type in ENDINGS or e.type in TERMINAL for e in before):
                yield "I13", place, f"it restarted at entry {entry.seq} after it began to end"


def _done(past: list[Entry], name: str) -> bool:
    return any(e.type == "STEP_COMPLETED" and e.name == name for e in past)


CHECKS: tuple[Callable[[Database, bool], Found], ...] = (
    _effects, _alive, _chain, _fold, _charts, _timers, _events, _families, _compensations, _forks, _epochs, _tenants,
)  # fmt: skip


# -- reading


def _read(url: str) -> dict[str, list[Row]]:
    if url.startswith("sqlite:///"):
        return _read_sqlite(url.removeprefix("sqlite:///"))
    return _in_a_thread(lambda: asyncio.run(_read_postgres(url)))


def _read_sqlite(path: str) -> dict[str, list[Row]]:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(60_000)
    try:
        with connection:
            return {
                table: [
                    dict(zip(columns.split(", "), row, strict=True))
                    for row in connection.execute(f"select {columns} from holdfast_{table}{ORDER.get(table, '')}")
                ]
                for table, columns in TABLES.items()
            }
    finally:
        connection.close()


async def _read_postgres(url: str) -> dict[str, list[Row]]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return {
                table: [
                    dict(row)
                    for row in await connection.fetch(f"select {columns} from holdfast.{table}{ORDER.get(table, '')}")
                ]
                for table, columns in TABLES.items()
            }
    finally:
        await connection.close()


def _in_a_thread(work: Callable[[], Any]) -> Any:
    """So that a test which runs on a loop of its own may call us like any function."""
    answer: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(work())
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if error:
        raise error[0]
    return answer[0]


def _words(payload: bytes | None) -> Row:
    words = json.loads(payload) if payload else {}
    return words if isinstance(words, dict) else {}


def _shown(raw: bytes | None) -> str:
    return ids.instance_word(raw) if raw else "-"
