"""Single statements that wait at the same time share a transaction, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import apsw
import asyncpg
import pytest

from holdfast.facade import make_doors, make_store


@pytest.fixture
async def door(url: str) -> AsyncIterator[Any]:
    """As a server opens it."""
    first = make_store(url)
    await first.open(migrate=True)
    await first.close()
    store = make_doors(url)
    await store.open(migrate=False)
    yield store
    await store.close()


def a_request(key: str, tenant: str = "acme", **more: Any) -> dict[str, Any]:
    return {
        "tenant_id": tenant, "principal_id": "p", "operation": "POST /", "entity_id": "", "key": key,
        "hash_version": 1, "request_hash": b"hash", "now": 1, "locked_by": "me", "expires_at": 2, **more,
    }  # fmt: skip


async def keys_of(store: Any, count: int, tenant: str = "acme") -> list[bool]:
    where = {"tenant_id": tenant, "principal_id": "p", "operation": "POST /", "entity_id": ""}
    return [bool(await store.fetch("read_request", **where, key=f"k{n}")) for n in range(count)]


async def test_each_of_many_statements_at_once_has_its_own_answer(door: Any) -> None:
    tenants = ["acme" if n % 3 else "abel" for n in range(300)]
    claims = [door.write("claim_request", **a_request(f"k{n}", tenants[n])) for n in range(300)]
    again = [door.write("claim_request", **a_request(f"k{n}", tenants[n])) for n in range(300)]
    found = await asyncio.gather(*claims, *again)
    assert [found[n] + found[n + 300] for n in range(300)] == [1] * 300
    assert await keys_of(door, 300) == [tenant == "acme" for tenant in tenants]


async def test_one_that_is_refused_takes_no_other_with_it(door: Any) -> None:
    bad: dict[str, Any] = {"request_hash": "no bytes"}
    found = await asyncio.gather(
        *(door.write("claim_request", **a_request(f"k{n}", **(bad if n % 7 == 3 else {}))) for n in range(40)),
        return_exceptions=True,
    )
    refused = [n for n, answer in enumerate(found) if isinstance(answer, (apsw.Error, asyncpg.PostgresError))]
    assert refused == [n for n in range(40) if n % 7 == 3]
    assert [answer for n, answer in enumerate(found) if n not in refused] == [1] * (40 - len(refused))
    assert await keys_of(door, 40) == [n not in refused for n in range(40)]


async def test_a_caller_who_leaves_leaves_the_others_their_answers(door: Any) -> None:
    writes = [asyncio.ensure_future(door.write("claim_request", **a_request(f"k{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    writes[3].cancel()
    found = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(found[3], asyncio.CancelledError)
    assert [answer for n, answer in enumerate(found) if n != 3] == [1] * 19
