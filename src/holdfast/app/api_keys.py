"""API keys, sessions and login links: made once, shown once, kept as a hash; and who comes with one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from uuid_utils import uuid7

from holdfast.app import audit, principals
from holdfast.app.audit import By
from holdfast.engine import codec, ids
from holdfast.engine.access import CAPABILITIES, Caller, capabilities_of
from holdfast.engine.errors import BadInput, KeyNotFound, VersionMoved
from holdfast.engine.keys import SHOWN_LENGTH, is_key, key_hash, make_key

if TYPE_CHECKING:
    from holdfast.app.service import Service

KEPT_SECONDS = 1.0  # how long another server may honour a key after it was revoked here
KEPT_MAX = 10_000
TOUCH_SECONDS = 60.0
SESSION = timedelta(hours=12)
LOGIN = timedelta(minutes=15)
OVERLAP = timedelta(days=1)  # in which a key that was rotated still opens
OVERLAP_MAX = timedelta(days=90)
PAGE_MAX = 1000
TRIES = 5
FIRST = b""
LAST = 253_402_300_799_999_999  # the end of the year 9999, in microseconds


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as it can be shown: everything but the key."""

    id: str
    principal_id: str
    name: str
    kind: str
    shown: str
    scopes: list[str] | None
    created_at: int
    created_by: str
    expires_at: int | None
    revoked_at: int | None
    revoked_by: str | None
    last_used_at: int | None
    version: int


class NewKey(msgspec.Struct, frozen=True):
    """A key in the one moment in which it is known."""

    key: str
    view: KeyView


def _view(row: Any) -> KeyView:
    return KeyView(
        id=ids.shown("key", row[0]), principal_id=ids.shown("prn", row[1]), name=row[2], kind=row[3], shown=row[4],
        scopes=None if row[5] is None else codec.decode(row[5].encode()), created_at=row[6], created_by=row[7],
        expires_at=row[8], revoked_at=row[9], revoked_by=row[10], last_used_at=row[11], version=row[12],
    )  # fmt: skip


def check_scopes(scopes: Sequence[str] | None) -> list[str] | None:
    if scopes is None:
        return None
    if isinstance(scopes, str) or not all(scope in CAPABILITIES for scope in scopes):
        raise BadInput(f"scopes is {str(scopes)[:200]!r}: expected a list of {', '.join(CAPABILITIES)}")
    return sorted(set(scopes))


async def create(
    service: Service, tenant_id: str, principal: str, *, name: str, kind: str = "live",
    scopes: Sequence[str] | None = None, expires_at: int | None = None, by: By, id_: bytes | None = None,
) -> NewKey:  # fmt: skip
    """A new key of a principal. It is in the answer, and nowhere else."""
    key, id_, statements = await _new(service, tenant_id, principal, name, kind, scopes, expires_at, by, id_)
    if not await service.change(tenant_id, statements):
        raise _made_before(id_)
    return NewKey(key, await read(service, tenant_id, ids.shown("key", id_)))


def _made_before(id_: bytes) -> BadInput:
    return BadInput(f"key {ids.shown('key', id_)} was made before; its secret was shown then and is kept nowhere")


async def _new(
    service: Service, tenant_id: str, principal: str, name: str, kind: str, scopes: Sequence[str] | None,
    expires_at: int | None, by: By, id_: bytes | None,
) -> tuple[str, bytes, list[tuple[str, dict[str, Any]]]]:  # fmt: skip
    """The key, its id, and the statements that make it."""
    if kind not in ("live", "test", "session", "login"):
        raise BadInput(f"kind is {kind!r}: expected live or test")
    ids.check_name("name", name)
    now = service.store.now()
    if expires_at is not None and expires_at <= now:
        raise BadInput("expires_at has passed already: a key that is never valid helps nobody")
    owner = await principals.find(service, tenant_id, principal)
    key = make_key("test" if kind == "test" else "live", secrets.token_bytes(32))
    id_ = uuid7().bytes if id_ is None else id_
    known = check_scopes(scopes)
    values = {
        "tenant_id": tenant_id, "id": id_, "principal_id": ids.parse("prn", owner.id), "name": name, "kind": kind,
        "hash": key_hash(key), "shown": key[:SHOWN_LENGTH], "now": now, "actor": by.actor, "expires_at": expires_at,
        "scopes": None if known is None else codec.encode(known).decode(),
    }  # fmt: skip
    summary = {"name": name, "kind": kind, "principal": owner.name, "scopes": known, "shown": key[:SHOWN_LENGTH]}
    note = audit.entry(tenant_id, now, by, "key.created", ("key", ids.shown("key", id_)), summary)
    return key, id_, [("add_api_key", values), note]


async def read(service: Service, tenant_id: str, key: str) -> KeyView:
    rows = await service.store.fetch("read_api_key", tenant_id=tenant_id, id=ids.parse("key", key))
    if not rows:
        raise KeyNotFound(key)
    return _view(rows[0])


async def list_keys(service: Service, tenant_id: str, *, after: bytes = FIRST, limit: int = 50) -> list[KeyView]:
    if not 1 <= limit <= PAGE_MAX:
        raise BadInput(f"limit is {limit}: expected 1 to {PAGE_MAX:,}")
    rows = await service.store.fetch("list_api_keys", tenant_id=tenant_id, after=after, limit=limit)
    return [_view(row) for row in rows]


async def revoke(service: Service, tenant_id: str, key: str, *, by: By, version: int | None = None) -> KeyView:
    """End it now. Ended already, it stays as it ended. `version`: only if that still counts."""
    for _ in range(TRIES):
        there = await read(service, tenant_id, key)
        _check_version(there, version)
        if there.revoked_at is not None:
            return there
        now = service.store.now()
        if await _end(service, tenant_id, there, now, now, by, "key.revoked"):
            return await read(service, tenant_id, key)
    raise VersionMoved(f"key {key}", str(there.version), "another")


async def rotate(
    service: Service, tenant_id: str, key: str, *, overlap: timedelta = OVERLAP, by: By, id_: bytes | None = None,
    version: int | None = None,
) -> NewKey:  # fmt: skip
    """A new key in its place; the old one goes on for a while, so that nobody is locked out in between. Both in one
    commit: a server that dies leaves the old one as it was, or a new one beside one that ends."""
    if not timedelta() <= overlap <= OVERLAP_MAX:
        raise BadInput(f"overlap is {overlap}: expected none to {OVERLAP_MAX.days} days")
    if id_ is not None and await service.store.fetch("read_api_key", tenant_id=tenant_id, id=id_):
        raise _made_before(id_)
    for _ in range(TRIES):
        there = await read(service, tenant_id, key)
        _check_version(there, version)
        now = service.store.now()
        over = there.revoked_at is not None or (there.expires_at is not None and there.expires_at <= now)
        if over or there.kind not in ("live", "test"):
            raise KeyNotFound(key)
        # One that was to end some day does not go on for ever because it was replaced.
        until = None if there.expires_at is None else min(now + there.expires_at - there.created_at, LAST)
        made, new_id, statements = await _new(
            service, tenant_id, there.principal_id, there.name, there.kind, there.scopes, until, by, id_
        )
        ends = now + overlap // timedelta(microseconds=1)
        if await _end(service, tenant_id, there, ends, None, by, "key.rotated", statements):
            return NewKey(made, await read(service, tenant_id, ids.shown("key", new_id)))
    raise VersionMoved(f"key {key}", str(there.version), "another")


def _check_version(key: KeyView, version: int | None) -> None:
    if version is not None and key.version != version:
        raise VersionMoved(f"key {key.id}", str(version), str(key.version))


async def _end(
    service: Service, tenant_id: str, key: KeyView, ends_at: int, revoked_at: int | None, by: By, action: str,
    more: Sequence[tuple[str, dict[str, Any]]] = (),
) -> bool:  # fmt: skip
    """False: somebody else changed it since it was read."""
    values = {
        "tenant_id": tenant_id, "id": ids.parse("key", key.id), "ends_at": ends_at, "revoked_at": revoked_at,
        "actor": None if revoked_at is None else by.actor, "version": key.version,
    }  # fmt: skip
    note = audit.entry(tenant_id, service.store.now(), by, action, ("key", key.id), {"shown": key.shown})
    done = await service.change(tenant_id, [("end_api_key", values), note, *more])
    service.callers.forget(tenant_id)
    return done


async def open_session(service: Service, login: str) -> str | None:
    """A session for whoever holds this login link, once; None if it is used, unknown or too old."""
    found = await _look_up(service, login)
    if found is None or found[2] != "login":
        return None
    tenant_id, key_id, _, _, _, revoked_at, principal_id = found
    now = service.store.now()
    if revoked_at is not None or not await service.change(
        tenant_id, [("use_login", {"tenant_id": tenant_id, "id": key_id, "now": now})]
    ):
        return None
    owner = await principals.read(service, tenant_id, ids.shown("prn", principal_id))
    made = await create(
        service, tenant_id, owner.id, name="session", kind="session",
        expires_at=now + round(SESSION.total_seconds() * 1_000_000), by=By(owner.name, owner.id),
    )  # fmt: skip
    return made.key


async def _look_up(service: Service, key: str) -> tuple[Any, ...] | None:
    if not is_key(key):
        return None
    rows = await service.store.fetch_key(key_hash(key))
    return rows[0] if rows else None


class Callers:
    """Who comes with which key, remembered for a second."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kept: dict[bytes, tuple[float, int | None, Caller | None]] = {}
        self._reading: dict[bytes, asyncio.Task[tuple[int | None, Caller | None]]] = {}
        self._touched: dict[bytes, float] = {}

    def forget(self, tenant_id: str) -> None:
        self._kept = {
            digest: kept
            for digest, kept in self._kept.items()
            if kept[2] is not None and kept[2].tenant_id != tenant_id
        }
        self._reading = {}  # what is being read may be from before

    async def of_key(self, key: str) -> Caller | None:
        """None: no such key, or it is not valid any more; nobody is told which."""
        if not is_key(key):
            return None
        digest, now = key_hash(key), asyncio.get_running_loop().time()
        at, expires_at, caller = self._kept.get(digest, (-KEPT_SECONDS, None, None))
        if now - at >= KEPT_SECONDS:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            expires_at, caller = await self._read_once(key, digest, now)
        if expires_at is not None and self._service.store.now() >= expires_at:
            return None
        if caller is not None and now - self._touched.get(digest, -TOUCH_SECONDS) >= TOUCH_SECONDS:
            if len(self._touched) >= KEPT_MAX:
                self._touched.clear()
            self._touched[digest] = now
            assert caller.key_id is not None
            await self._service.store.write(
                "touch_api_key", tenant_id=caller.tenant_id, id=ids.parse("key", caller.key_id),
                now=self._service.store.now(),
            )  # fmt: skip
        return caller

    async def _read_once(self, key: str, digest: bytes, now: float) -> tuple[int | None, Caller | None]:
        """Of many requests that come with a key in the moment when it is to be read again, one reads it."""
        reading = self._reading.get(digest)
        if reading is None:
            reading = self._reading[digest] = asyncio.create_task(self._read(key))
            reading.add_done_callback(lambda done: self._have_read(digest, now, done))
        return await asyncio.shield(reading)

    def _have_read(self, digest: bytes, now: float, done: asyncio.Task[tuple[int | None, Caller | None]]) -> None:
        """Whoever asked for it may have gone; what was read before a change is not kept."""
        if self._reading.get(digest) is done:
            del self._reading[digest]
            if not done.cancelled() and done.exception() is None:
                self._kept[digest] = (now, *done.result())

    async def _read(self, key: str) -> tuple[int | None, Caller | None]:
        found = await _look_up(self._service, key)
        if found is None or found[5] is not None or found[2] == "login":
            return None, None
        tenant_id, key_id, _, scopes, expires_at, _, principal_id = found
        owner = await principals.read(self._service, tenant_id, ids.shown("prn", principal_id))
        if owner.status != "active":
            return None, None
        known = None if scopes is None else codec.decode(scopes.encode())
        return expires_at, caller_of(tenant_id, owner, known, ids.shown("key", key_id))


def caller_of(
    tenant_id: str, principal: principals.PrincipalView, scopes: Sequence[str] | None = None, key_id: str | None = None
) -> Caller:
    return Caller(
        tenant_id, principal.id, principal.name, principal.kind, tuple(principal.roles), frozenset(principal.groups),
        capabilities_of(principal.kind, principal.roles, scopes), key_id,
    )  # fmt: skip
