"""A request is carried out once: its key is claimed before anything happens, and its answer kept for who asks again.

What an action makes has an id that follows from the key (`Claim.derived`), so that a request which is taken over from
a server that died half-way asks for the same thing, not for a second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
from uuid_utils import uuid4

from holdfast.engine import codec, ids

if TYPE_CHECKING:
    from holdfast.app.service import Service

HASH_VERSION = 1
LEASE = 120_000_000  # microseconds: longer than any request is held
DAY = 86_400_000_000
SWEPT_AT_ONCE = 500


class Place(msgspec.Struct, frozen=True):
    """What a key is unique in: who asks, for what, about whom."""

    tenant_id: str
    principal_id: str
    operation: str
    entity_id: str
    key: str


class Answered(msgspec.Struct, frozen=True):
    """It was carried out before: this was the answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class InProgress(msgspec.Struct, frozen=True):
    """Another request with this key is being carried out."""

    retry_after_seconds: int


class Reused(msgspec.Struct, frozen=True):
    """The key was used for another request."""


class Gone(msgspec.Struct, frozen=True):
    """It was carried out so long ago that its answer is not kept any more."""


class Claim(msgspec.Struct, frozen=True):
    """The right to carry the request out."""

    place: Place
    locked_by: str
    request_hash: bytes
    taken_over: bool = False
    """Somebody began it before, and nobody knows how far they came."""
    done: bool = False
    """Its change was committed, and only the answer is missing."""

    def derived(self, *parts: str) -> bytes:
        """An id for what this request makes: the same whenever it is carried out."""
        p = self.place
        where = (p.tenant_id, p.principal_id, p.operation, p.entity_id, p.key)
        return ids.derived("request", *where, self.request_hash, *parts)

    def mark(self, now: int) -> tuple[str, dict[str, Any]]:
        """The statement that goes with its change: who takes the request over then knows that this was made."""
        return "mark_request", {**msgspec.structs.asdict(self.place), "locked_by": self.locked_by, "marked_at": now}


_UNDER: ContextVar[Claim | None] = ContextVar("holdfast_request", default=None)


@contextmanager
def under(claim: Claim) -> Iterator[None]:
    """What is changed in this block is changed by this request."""
    token = _UNDER.set(claim)
    try:
        yield
    finally:
        _UNDER.reset(token)


def current() -> Claim | None:
    return _UNDER.get()


async def claim(
    service: Service, place: Place, request_hash: bytes, *, keep_days: int
) -> Claim | Answered | InProgress | Reused | Gone:
    mine = uuid4().hex
    where: dict[str, Any] = msgspec.structs.asdict(place)
    now = service.store.now()
    while not await service.store.write(
        "claim_request", **where, hash_version=HASH_VERSION, request_hash=request_hash, now=now, locked_by=mine,
        expires_at=now + keep_days * DAY,
    ):  # fmt: skip
        rows = await service.store.fetch("read_request", **where)
        if not rows:
            continue  # the other one was refused and forgotten in between: the key is free again
        _, hashed, status, code, headers, body, locked_at, locked_by, _, expires_at, marked_at = rows[0]
        if bytes(hashed) != request_hash:
            return Reused()
        if status != "STARTED":
            if body is None or expires_at <= now:
                return Gone()
            return Answered(code, codec.decode(headers.encode()), bytes(body))
        if locked_at > now - LEASE:
            return InProgress(max(1, min(5, (locked_at + LEASE - now) // 1_000_000)))
        if await service.store.write(
            "take_over_request", **where, now=now, locked_by=mine, found=locked_by, stale=now - LEASE
        ):
            return Claim(place, mine, request_hash, True, marked_at is not None)
    return Claim(place, mine, request_hash)


async def settle(service: Service, claim: Claim, status: int, headers: dict[str, str], body: bytes) -> None:
    """Keep the answer. Whoever has taken the request over meanwhile says it instead of us."""
    await service.store.write(
        "settle_request", **msgspec.structs.asdict(claim.place), locked_by=claim.locked_by,
        status="SUCCEEDED" if status < 400 else "FAILED", response_status=status, now=service.store.now(),
        response_headers=codec.encode(headers).decode(), response=body,
    )  # fmt: skip


async def forget(service: Service, claim: Claim) -> None:
    """It was refused before anything happened: the key is free again."""
    await service.store.write("forget_request", **msgspec.structs.asdict(claim.place), locked_by=claim.locked_by)


async def release(service: Service, claim: Claim) -> None:
    """What came of it is not known: whoever asks again carries it out anew, under the same ids."""
    await service.store.write("release_request", **msgspec.structs.asdict(claim.place), locked_by=claim.locked_by)


async def sweep(service: Service, tombstone_days: int) -> None:
    """Empty answers that are old enough, and remove what is left of them after a while."""
    now = service.store.now()
    for name, values in (
        ("bury_requests", {"now": now}), ("remove_tombstones", {"before": now - tombstone_days * DAY}),
    ):  # fmt: skip
        while await service.store.write(name, **values, limit=SWEPT_AT_ONCE) >= SWEPT_AT_ONCE:
            await asyncio.sleep(0.05)
