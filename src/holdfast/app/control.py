"""What a person may do with an instance as a whole: pause it, have it try again, go on from a point of its past.

Each is a fact. The worker that holds the claim takes it in a turn; a fork's first turn takes its past over.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from uuid_utils import uuid7

from holdfast.app import instances
from holdfast.app.registry import Definition, no_function
from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.errors import BadInput, ForkRefused, InstanceEnded, InstanceNotFound
from holdfast.engine.forks import ENDS, Point, Row, fork_point
from holdfast.engine.journal import ENDINGS, UNDO, restart_from
from holdfast.engine.retry import storable
from holdfast.engine.turns import NewEvent, NewInstance, Outcome, Turn

if TYPE_CHECKING:
    from holdfast.app.service import Service

ENTRIES_MAX = 50_000
BYTES_MAX = 128 << 20  # of its payloads: a fork takes them over in one turn
LOOKED_INTO = (
    *ENDINGS,
    *ENDS,
    h.EFFECT_FAILED,
    h.COMPENSATION_RESOLVED,
    h.INSTANCE_RESTARTED,
    h.CHILD_STARTED,
)  # why it ended, which effects a person gave up finding out about, and which instances were its children
CHILDREN_MAX = 1_000  # looked into for effects that a fork would make once more; with more, a person decides
WORDS_MAX = {"reason": 2000, "actor": 200}


async def pause(service: Service, tenant_id: str, id_: bytes, *, reason: str, actor: str) -> None:
    """Ask it to stand still: what is under way is settled, nothing new begins until it is resumed."""
    await _say(service, tenant_id, id_, "pause", reason, actor, "be paused")


async def retry(service: Service, tenant_id: str, id_: bytes, *, reason: str, actor: str, again: bool = True) -> bytes:
    """Ask a living one to begin its next attempts at once; of one that failed or was cancelled, make a fork.

    The id of what goes on. The fork of a retry is one: asked again, it is the same. Without `again` a fork that would
    make an effect once more is refused."""
    status = (await instances.read(service, tenant_id, id_, steps=False)).status
    if status not in instances.ENDED:
        try:
            await _say(service, tenant_id, id_, "retry", reason, actor, "be tried again")
            return id_
        except InstanceEnded as ended:  # since we looked
            status = ended.status
    if status == "completed":
        raise InstanceEnded(ids.instance_word(id_), status, "be tried again")
    new_id = retry_id(tenant_id, id_)
    if not again and (repeated := (await plan_fork(service, tenant_id, id_, None)).again):
        raise ForkRefused(ids.instance_word(id_), f"{_named(repeated)}: retry it by itself, where that can be decided")
    return await _fork(service, tenant_id, id_, None, new_id, reason=reason, actor=actor, business_key=None)


def retry_id(tenant_id: str, id_: bytes) -> bytes:
    """Of the instance that a retry makes of one that ended."""
    return ids.derived("retry", tenant_id, id_)


async def fork(
    service: Service, tenant_id: str, id_: bytes, step: str | None, *, reason: str, actor: str,
    business_key: str | None, name: str | None,
) -> bytes:  # fmt: skip
    """Start a new instance that goes on from before `step` of one that has ended. The same `name`, the same fork."""
    if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= 200 or storable(name) != name):
        raise BadInput(f"id is {name!r}: expected a text of 1 to 200 characters")
    new_id = uuid7().bytes if name is None else ids.derived("fork", tenant_id, id_, name)
    return await _fork(
        service, tenant_id, id_, step, new_id, reason=reason, actor=actor, business_key=business_key
    )  # fmt: skip


async def _say(service: Service, tenant_id: str, id_: bytes, kind: str, reason: str, actor: str, asked: str) -> None:
    raw = codec.encode(checked_words(reason, actor))
    await instances.send(service, tenant_id, id_, kind, "", raw, uuid7().hex, asked)


def checked_words(reason: Any, actor: Any) -> dict[str, str]:
    for field, value in (("reason", reason), ("actor", actor)):
        if not isinstance(value, str) or len(value) > WORDS_MAX[field] or storable(value) != value:
            raise BadInput(
                f"{field} is {value!r:.100}: expected a text of at most {WORDS_MAX[field]:,} characters, none of them "
                "NUL or half a pair"
            )
    return {"reason": reason, "actor": actor}


# -- forks


async def _fork(
    service: Service, tenant_id: str, id_: bytes, step: str | None, new_id: bytes, *, reason: str, actor: str,
    business_key: str | None,
) -> bytes:  # fmt: skip
    said = checked_words(reason, actor)
    word = ids.instance_word(id_)
    point = await plan_fork(service, tenant_id, id_, step)
    if point.again and not actor.strip():
        raise ForkRefused(word, f"{_named(point.again)}: say who decides so with actor=…, or fork from a later step")
    [(_, key, version, _, queue, given, trace_id, epoch_seq)] = await service.store.fetch(
        "read_to_fork", tenant_id=tenant_id, id=id_
    )
    if epoch_seq:  # the fork begins where the last epoch did
        [began] = await service.store.fetch(
            "read_history", tenant_id=tenant_id, instance_id=id_, after=epoch_seq - 1, limit=1
        )
        given = restart_from(bytes(began[5])).input
    born = instances.new_instance(
        Definition("code", key, version, queue, no_function), bytes(given), tenant_id=tenant_id,
        now=service.store.now(), business_key=business_key, run_at=None, trace_id=trace_id,
    )._replace(id=new_id)  # fmt: skip
    await service.check_backlog(queue, 1)
    words = {"from": word, "before_seq": point.before_seq, "step": point.step, "epoch_seq": epoch_seq, **said}
    event = NewEvent(tenant_id, new_id, f"fork:{id_.hex()}", "fork", "", codec.encode(words), born.created_at)
    return await _born(service, born, event, word)


def _named(effects: list[str]) -> str:
    named = ", ".join(repr(name) for name in effects[:5])
    return f"effects that happened or may have ({named}) would be done once more, under new keys"


async def plan_fork(service: Service, tenant_id: str, id_: bytes, step: str | None) -> Point:
    """Where a fork would begin, and which effects it would make once more. Raises ForkRefused where it cannot."""
    word = ids.instance_word(id_)
    rows = await service.store.fetch("read_to_fork", tenant_id=tenant_id, id=id_)
    if not rows:
        raise InstanceNotFound(word, tenant_id)
    kind, status, epoch_seq = rows[0][0], rows[0][3], rows[0][7]
    if kind != "code":
        raise ForkRefused(word, f"it is of kind {kind}: start a new one, or migrate one that lives")
    if status not in instances.ENDED:
        raise ForkRefused(word, f"it is {status}: wait for its end, or cancel it; a retry cuts its waits short")
    past = await service.store.fetch(
        "history_in_short", tenant_id=tenant_id, instance_id=id_, since=epoch_seq, limit=ENTRIES_MAX + 1,
        types=f" {' '.join(LOOKED_INTO)} ", instead=b"{}",
    )  # fmt: skip
    if len(past) > ENTRIES_MAX:
        raise ForkRefused(word, f"its history has more than {ENTRIES_MAX:,} entries: start a new one")
    if sum(bytes_ or 0 for _, _, _, _, _, bytes_, _ in past) > BYTES_MAX:
        raise ForkRefused(word, f"its history has more than {BYTES_MAX >> 20:,} MiB: start a new one")
    looked = [Row(seq, type_, name, None if raw is None else bytes(raw)) for seq, type_, name, _, _, _, raw in past]
    point = fork_point(looked, step)
    if isinstance(point, str):
        raise ForkRefused(word, point)
    return msgspec.structs.replace(point, again=[*point.again, *await _again_in_children(service, tenant_id, point)])


async def _again_in_children(service: Service, tenant_id: str, point: Point) -> list[str]:
    """Effects that happened, or may have, in children that a fork would start once more, and in all below them."""
    again: list[str] = []
    looked_into = 0
    for name, child in point.children.items():
        below = [ids.parse("ins", child)]
        while below:
            looked_into += 1
            if looked_into > CHILDREN_MAX:
                return [*again, f"{name}/…"]
            id_ = below.pop()
            again += [f"{name}/{step}" for step in await _not_undone(service, tenant_id, id_)]
            found = await service.store.fetch("child_ids", tenant_id=tenant_id, parent_id=id_, limit=CHILDREN_MAX)
            below += [bytes(row[0]) for row in found]
    return again


async def _not_undone(service: Service, tenant_id: str, id_: bytes) -> list[str]:
    rows = await service.store.fetch(
        "effects_that_may_have_happened", tenant_id=tenant_id, instance_id=id_, limit=ENTRIES_MAX
    )
    undone = Counter(step for step, happened in rows if happened)
    made = Counter(step for step, _ in rows if not step.startswith(UNDO))
    return [step for step, times in made.items() if times > undone[UNDO + step]]  # once in each epoch


async def _born(service: Service, born: NewInstance, event: NewEvent, original: str) -> bytes:
    """The id of the fork: the one just committed, or the one that was there under its id or business key already."""
    outcome = await service.commit(Turn(born.tenant_id, born.id, starts=[born], events=[event]))
    found = born.id
    if outcome is Outcome.MOVED:
        rows = await service.store.fetch(
            "find_business_key", tenant_id=born.tenant_id, definition_key=born.definition_key,
            business_key=born.business_key,
        )  # fmt: skip
        assert rows, "a fork was refused though no other instance has its key"
        found = bytes(rows[0][0])
    there = await service.store.fetch("read_event", tenant_id=born.tenant_id, instance_id=found, id=event.id)
    wanted = codec.decode(event.payload)["before_seq"]
    if there and codec.decode(there[0][2])["before_seq"] == wanted:
        return found
    if found == born.id:
        raise BadInput(
            f"the id given names another fork of {original}, from another step ({ids.instance_word(found)}): ids name "
            "one fork"
        )
    raise ForkRefused(
        original, f"business key {born.business_key!r} belongs to {ids.instance_word(found)}: give another, or none"
    )
