"""Principals and keys on the command line, and that a server takes them: on both databases."""

from __future__ import annotations

import asyncio
import json

from holdfast import Holdfast
from holdfast.engine.keys import is_key
from tests.cli.support import Desk


def who(desk: Desk, key: str) -> tuple[str, list[str], list[str]] | None:
    """Whom a key is of, as the server finds out."""

    async def ask() -> tuple[str, list[str], list[str]] | None:
        async with Holdfast(desk.url) as hf:
            caller = await hf.service.callers.of_key(key)
            return None if caller is None else (caller.name, list(caller.roles), sorted(caller.capabilities))

    return asyncio.run(ask())


def test_a_principal_gets_a_key_that_is_shown_once_rotated_and_revoked(desk: Desk) -> None:
    made = desk.json("principals", "create", "ann", "--role", "viewer", "--group", "finance")
    assert (made["name"], made["kind"], made["roles"], made["groups"]) == ("ann", "human", ["viewer"], ["finance"])
    assert [p["name"] for p in desk.json("principals", "list")] == ["ann"]
    desk.refused(4, "is named 'ann'", "principals", "create", "ann")

    key = desk.json("keys", "create", "ann", "--name", "laptop", "--scope", "instances:read")
    assert is_key(key["key"]) and key["shown"] == key["key"][:14]
    assert who(desk, key["key"]) == ("ann", ["viewer"], ["instances:read"])
    [listed] = desk.json("keys", "list")
    assert "key" not in listed and key["key"] not in json.dumps(listed)

    new = desk.json("keys", "rotate", key["id"], "--overlap", "0")
    assert who(desk, key["key"]) is None and who(desk, new["key"]) is not None
    desk.json("keys", "revoke", new["id"], "--yes")
    assert who(desk, new["key"]) is None


def test_a_disabled_principal_gets_in_with_no_key(desk: Desk) -> None:
    desk.json("principals", "create", "bot", "--kind", "agent", "--role", "admin")
    key = desk.json("keys", "create", "bot")["key"]
    found = who(desk, key)
    assert found is not None and "effects:resolve" not in found[2] and "tasks:work" not in found[2]
    assert desk.json("principals", "change", "bot", "--disable")["status"] == "disabled"
    assert who(desk, key) is None
    assert desk.json("principals", "change", "bot", "--enable")["status"] == "active"
    assert who(desk, key) is not None


def test_what_is_not_there_or_not_known_is_said(desk: Desk) -> None:
    desk.refused(3, "no principal 'nobody'", "keys", "create", "nobody")
    desk.refused(3, "no API key", "keys", "revoke", "key_" + "0" * 32, "--yes")
    desk.refused(2, "king", "principals", "create", "ann", "--role", "king")
    desk.refused(2, "issuer and subject belong together", "principals", "create", "ann", "--issuer", "https://x")
