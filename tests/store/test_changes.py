"""`change`: several statements or none, and the first one decides."""

from __future__ import annotations

from typing import Any

import apsw
import asyncpg
import pytest

from tests.store.support import an_id

NOBODY = {"issuer": None, "subject": None, "kind": "human", "roles": "[]", "groups": "[]", "now": 1, "actor": "ann"}


def a_principal(name: str) -> tuple[str, dict[str, Any]]:
    return "add_principal", NOBODY | {"id": an_id(), "name": name}


async def names(store: Any, tenant: str = "acme") -> list[str]:
    return [row[2] for row in await store.fetch("list_principals", tenant_id=tenant, after="", limit=100)]


async def test_the_first_statement_decides_whether_the_others_are_run(store: Any) -> None:
    assert await store.change("acme", [a_principal("ann"), a_principal("bob")]) is True
    assert await store.change("acme", [a_principal("ann"), a_principal("eve")]) is False
    assert (
        await store.change("acme", [a_principal("cid"), a_principal("ann")]) is True
    )  # only the first one's say counts
    assert await names(store) == ["ann", "bob", "cid"]
    assert await store.change("beta", [a_principal("ann")]) is True
    assert await names(store, "beta") == ["ann"]


async def test_an_error_in_a_later_statement_undoes_the_earlier(store: Any) -> None:
    wrong = a_principal("bob")
    wrong[1]["kind"] = "cat"
    with pytest.raises((apsw.ConstraintError, asyncpg.CheckViolationError)):
        await store.change("acme", [a_principal("ann"), wrong])
    assert await names(store) == []
    assert await store.change("acme", [a_principal("ann")]) is True


async def test_a_change_is_of_one_tenant(store: Any) -> None:
    name, values = a_principal("ann")
    with pytest.raises(AssertionError, match="tenant 'acme' names tenant 'beta'"):
        await store.change("acme", [(name, values | {"tenant_id": "beta"})])


async def test_a_key_is_found_by_its_hash_whosever_it_is(store: Any) -> None:
    for number, tenant in enumerate(("acme", "beta")):
        key = {
            "id": an_id(), "principal_id": an_id(), "name": "k", "kind": "live", "hash": bytes([number]) * 32,
            "shown": "x", "scopes": None, "now": 1, "actor": "ann", "expires_at": None,
        }  # fmt: skip
        assert await store.change(tenant, [("add_api_key", key)])
    [found] = await store.fetch_key(b"\x01" * 32)
    assert (found[0], found[2], found[3], found[4], found[5]) == ("beta", "live", None, None, None)
    assert await store.fetch_key(b"\x02" * 32) == []
