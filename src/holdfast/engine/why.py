"""Why an instance is not moving: one sentence for a person, that also says what would move it.

It decides which of the facts matters most. Where they come from is not its business (`app/why.py`).
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.engine.calendar import moment_text
from holdfast.engine.retry import SECOND

SHOWN = 3  # of what it waits for; the rest is counted
AHEAD_MAX = 1000
LOOKED_SINCE = 5 * SECOND  # by then every worker that has room has looked
SILENT_FROM = 60 * SECOND  # what takes longer is worth a word


class Person(msgspec.Struct, frozen=True):
    """A HUMAN task that is open."""

    title: str
    since: int
    assignee: str | None = None
    groups: list[str] = []


class Unknown(msgspec.Struct, frozen=True):
    """An effect on the desk."""

    step: str
    since: int


class Child(msgspec.Struct, frozen=True):
    step: str
    id: str
    status: str


class Retried(msgspec.Struct, frozen=True):
    """The instance that goes on from the step in which this one failed."""

    id: str
    status: str


class Signal(msgspec.Struct, frozen=True):
    name: str
    until: int | None


class Attempt(msgspec.Struct, frozen=True):
    """A next attempt that waits for its time, or a lookup, which has no number."""

    of: str  # what is tried: step 'x', task 'y'
    number: int  # 0: of a lookup
    number_max: int  # 0: not on record
    at: int
    error: str = ""
    by_retry: bool = False  # a retry begins it at once


class Timer(msgspec.Struct, frozen=True):
    name: str
    due: int


class LateWord(msgspec.Struct, frozen=True):
    kind: str
    actor: str
    at: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about why an instance stands where it stands."""

    status: str
    now: int
    kind: str = "code"
    error: str = ""
    undone: bool = False  # all that it had done
    undone_in_part: bool = False
    retried: Retried | None = None
    late: list[LateWord] = []  # in line when it ended
    waiting_on: str = ""
    state: str = ""  # of a chart: where it stands
    ending: str = ""  # of a chart: the status that it will have once what may have happened is settled
    run_at: int | None = None
    queue: str = "default"
    quarantined_at: int | None = None
    held_by: str | None = None
    held_at: int | None = None
    answered_at: int | None = None  # when its history last grew
    running: list[str] = []  # what is on record as begun and has no answer
    holder_gone: bool = False
    short_of_threads: str = ""  # in words, if its worker is, and is in this process
    paused: str | None = None
    incident: str | None = None
    contradiction: str | None = None
    hole: str | None = None  # in its history
    lost_its_end: bool = False
    people: list[Person] = []
    unknown: list[Unknown] = []
    children: list[Child] = []
    signals: list[Signal] = []
    attempts: list[Attempt] = []
    timers: list[Timer] = []
    workers: int = 1  # that are alive
    missing: list[str] | None = None  # what no living worker has; None: some worker has everything
    ahead: int = 0  # that fell due before it, of those it stands in line with


def why(facts: Facts) -> str:
    """The one sentence."""
    if facts.status in ("completed", "failed", "cancelled"):
        return " ".join([_ended(facts), *map(_late, facts.late)])
    if facts.quarantined_at is not None:
        return (
            f"The database has been in quarantine since {moment_text(facts.quarantined_at)}, so no worker claims "
            "anything: somebody must look at it and lift the quarantine."
        )
    return _capital(_held(facts) or _stopped(facts) or _due(facts) or _waits(facts))


def _ended(facts: Facts) -> str:
    if facts.status == "completed":
        return "It has completed: nothing moves it any more."
    words = "failed" if facts.status == "failed" else "was cancelled"
    ended = f"It {words} ({_plain(facts.error) or 'no error is on record'})"
    if facts.retried is not None:
        new = facts.retried
        return f"{ended} and was tried again as {new.id}, which is {new.status}: look at that one."
    if facts.undone:
        return f"{ended} and was undone: fork it from the first step that was undone, or start it anew."
    if facts.undone_in_part:
        return f"{ended} and was undone in part: fork it from the first step that was undone, or start it anew."
    if facts.kind != "code":
        return f"{ended}: start a new one."
    return f"{ended}: retry it to go on from there, or fork it to go on from an earlier step."


def _late(word: LateWord) -> str:
    by = f" of {word.actor}" if word.actor else ""
    nothing = "it did nothing and nothing was undone by it" if word.kind == "cancel" else "it did nothing"
    return f"The {word.kind}{by} at {moment_text(word.at)} was still in line when it ended, so {nothing}."


def _held(facts: Facts) -> str | None:
    if facts.held_by is None:
        return None
    since = "" if facts.held_at is None else f" since {moment_text(facts.held_at)}"
    if facts.holder_gone:
        return f"worker {facts.held_by} has held it{since} and is gone: the next living worker takes it over."
    if facts.short_of_threads:
        return f"worker {facts.held_by} has held it{since}: {facts.short_of_threads}."
    at_work = f"is at work on it{_silence(facts)}"
    return f"worker {facts.held_by} has held it{since} and {at_work}: it moves with the next result."


def _silence(facts: Facts) -> str:
    """How long a handler has been without an answer. A plain step is on record only once it ends, so it has no name."""
    last = max(facts.held_at or 0, facts.answered_at or 0)
    if not last or facts.now - last < SILENT_FROM:
        return ""
    names = f" of {_listed(facts.running)}" if facts.running else ""
    age = timedelta(seconds=(facts.now - last) // SECOND)
    return f", without an answer{names} for {age} (since {moment_text(last)})"


def _stopped(facts: Facts) -> str | None:
    """A person had it stand still, or has to mend something first."""
    if facts.paused is not None:
        return f"it is {_plain(facts.paused)}."
    if facts.hole is not None:
        mend = "`holdfast verify` names the first bad row; bring back what is missing, then resume it"
        if facts.lost_its_end:
            mend = "compare with the providers what it did, then resume it to go on from what is there, or cancel it"
        return f"{_plain(facts.hole)}: nothing is written on it. {_capital(mend)}."
    if facts.incident is not None:
        return (
            f"a step of its chart was refused ({_plain(facts.incident)}): mend the chart or the data and resume it, or "
            "resume it and drop the event."
        )
    if facts.contradiction is not None:
        mend = "" if "mend its code" in facts.contradiction else ": mend the code, deploy it and resume it"
        return f"{_plain(facts.contradiction)}{mend}."
    return None


def _due(facts: Facts) -> str | None:
    """It could move now, or will begin later, and nobody has claimed it yet."""
    if facts.run_at is None:
        return None
    if facts.run_at > facts.now:
        if facts.status == "pending":
            return f"it is to start at {moment_text(facts.run_at)}: the time moves it."
        if not facts.waiting_on:  # claimed, and let go without a turn that says what it waits for
            return (
                f"a worker could not move it, as that worker's log says; it is tried again at "
                f"{moment_text(facts.run_at)}: the time moves it."
            )
        return None
    since = f"it has been due since {moment_text(facts.run_at)}"
    if facts.workers == 0:
        return f"{since}, and no worker is alive: start one for queue {facts.queue!r}."
    if facts.missing is not None:
        return f"{since}, and no living worker has {_listed(facts.missing)}: start a worker that has."
    if facts.ahead:
        count = f"more than {AHEAD_MAX:,}" if facts.ahead > AHEAD_MAX else f"{facts.ahead:,}"
        return (
            f"{since}, and queue {facts.queue!r} has {count} before it: its turn will come, sooner with more workers."
        )
    words = f"{since}, and is the next in queue {facts.queue!r}: a worker of that queue claims it at its next look"
    if facts.now - facts.run_at < LOOKED_SINCE:
        return f"{words}."
    return f"{words}, which one that runs an instance alone, because it took workers down, puts off for up to 30 s."


def _waits(facts: Facts) -> str:
    parts = [
        *(_unknown(one) for one in facts.unknown), *(_person(one) for one in facts.people),
        *(f"child {one.step!r} ({one.id}, {one.status}) to end" for one in facts.children),
        *(_signal(one) for one in facts.signals),
        *(_attempt(one) for one in sorted(facts.attempts, key=lambda one: one.at)),
        *(f"the timer {one.name!r} at {moment_text(one.due)}" for one in sorted(facts.timers, key=lambda t: t.due)),
    ]  # fmt: skip
    if not parts and facts.state and not facts.ending:
        parts = [f"an event that moves it on from {facts.state!r}"]
    if not parts:
        parts = [_plain(facts.waiting_on) or "its next turn"]
    shown = "; and for ".join(parts[:SHOWN])
    more = f"; and for {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    waits = "it waits"
    if facts.status == "compensating":
        waits = "it is being undone and waits"
    elif facts.ending:
        waits = f"it is ending ({facts.ending}) and waits"
    return f"{waits} for {shown}{more}."


def _unknown(one: Unknown) -> str:
    return (
        f"a person to say at the effect desk what became of effect {one.step!r}, unknown since {moment_text(one.since)}"
    )


def _person(one: Person) -> str:
    task = f"task {one.title!r}, open since {moment_text(one.since)}"
    if one.assignee is not None:
        return f"{one.assignee} to finish the {task}"
    whose = f"somebody of {' or '.join(one.groups)}" if one.groups else "somebody"
    return f"{whose} to take the {task}"


def _signal(one: Signal) -> str:
    until = "" if one.until is None else f", at the latest until {moment_text(one.until)}"
    return f"the signal {one.name!r}{until}"


def _attempt(one: Attempt) -> str:
    number_max = f" of {one.number_max}" if one.number_max else ""
    what = f"attempt {one.number}{number_max} of {one.of}" if one.number else one.of
    after = f", after {_plain(one.error)}" if one.error else ""
    at_once = " (a retry begins it at once)" if one.by_retry else ""
    return f"{what} at {moment_text(one.at)}{after}{at_once}"


def _listed(names: list[str]) -> str:
    return " and ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _plain(text: str) -> str:
    """On one line, of a length that fits into a sentence, without a full stop of its own."""
    return " ".join(text.split())[:500].rstrip(" .")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
