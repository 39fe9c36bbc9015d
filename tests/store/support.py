"""Turns made by hand, for tests that speak to the store alone."""

from __future__ import annotations

import os
from typing import Any

from holdfast.engine.history import genesis, payload_seal, seal
from holdfast.engine.turns import Change, NewEvent, NewInstance, Outcome, Turn
from holdfast.store.port import Claimed

PLACES = [("", "work", 1)]


def an_id() -> bytes:
    return os.urandom(16)


async def a_worker(store: Any) -> bytes:
    worker_id = an_id()
    await store.write(
        "register_worker", id=worker_id, host="here", pid=1, now=store.now(), liveness="0", definitions="work v1"
    )
    return worker_id


def an_instance(store: Any, *, tenant: str = "acme", key: str = "work", version: int = 1, **fields: Any) -> NewInstance:
    made = NewInstance(
        tenant, an_id(), "code", key, version, None, "default", 0, store.now(), b"{}", None, None, None, store.now()
    )
    return made._replace(**fields)


async def put(store: Any, *instances: NewInstance) -> list[Outcome]:
    return await store.commit(None, [Turn(one.tenant_id, one.id, starts=[one]) for one in instances])


async def claim(store: Any, worker_id: bytes, limit: int = 100, *, alone: bool = False) -> list[Claimed]:
    claimed, _ = await store.claim(worker_id, PLACES, "default", limit, alone=alone)
    return claimed


def rows(store: Any, claimed: Claimed, count: int = 1, after: int | None = None, fence: int | None = None) -> list[Any]:
    past = claimed.history
    seq, digest = (past[-1].seq, past[-1].hash) if past else (0, genesis(claimed.tenant_id, claimed.id))
    seq = seq if after is None else after
    made = []
    for _ in range(count):
        seq, salt, payload = seq + 1, os.urandom(16), b'{"result":1}'
        under = claimed.fence if fence is None else fence
        digest = seal(digest, seq, "STEP_COMPLETED", f"s{seq}", under, store.now(), payload_seal(salt, payload))
        made.append(
            (claimed.tenant_id, claimed.id, seq, "STEP_COMPLETED", f"s{seq}", under, store.now(), payload, salt, digest)
        )
    return made


def a_turn(store: Any, claimed: Claimed, **options: Any) -> Turn:
    past = claimed.history
    after = past[-1].hash if past else genesis(claimed.tenant_id, claimed.id)
    return Turn(claimed.tenant_id, claimed.id, claimed.fence, rows(store, claimed, **options), after=after)


def parking(store: Any, claimed: Claimed, turn: Turn, *, woken: int | None = None, run_at: int | None = None) -> Turn:
    last = turn.history[-1]
    turn.change = Change(
        claimed.tenant_id, claimed.id, claimed.fence, "waiting", "a signal", run_at, True,
        claimed.woken if woken is None else woken, last[2], last[9], None, None, None, None, None, None,
    )  # fmt: skip
    return turn


def ending(store: Any, claimed: Claimed, turn: Turn) -> Turn:
    last = turn.history[-1]
    turn.change = Change(
        claimed.tenant_id, claimed.id, claimed.fence, "completed", None, None, True, 1 << 62, last[2], last[9], b"1",
        None, None, None, None, store.now(),
    )  # fmt: skip
    return turn


def an_event(store: Any, tenant: str, instance_id: bytes, event_id: str = "e1", **fields: Any) -> Turn:
    event = NewEvent(tenant, instance_id, event_id, "signal", "go", b"1", store.now())._replace(**fields)
    return Turn(tenant, instance_id, events=[event])


async def history_of(store: Any, one: Any) -> list[int]:
    found = await store.fetch("read_history", tenant_id=one.tenant_id, instance_id=one.id, after=0, limit=1000)
    return [row[0] for row in found]


async def row_of(store: Any, one: Any) -> dict[str, Any]:
    [row] = await store.fetch("read_instance", tenant_id=one.tenant_id, id=one.id)
    return {"status": row[5], "waiting_on": row[6], "attempts": row[8], "run_at": row[20], "locked_by": row[21]}
