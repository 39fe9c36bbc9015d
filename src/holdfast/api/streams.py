"""Live updates: server-sent events of one instance, and of everything in a tenant. Who comes back goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from holdfast.api import shown
from holdfast.api.endpoints import Answer, Call, Endpoints, Reply
from holdfast.api.problems import Fault, Problem
from holdfast.app import instances
from holdfast.app.feed import Feed
from holdfast.engine.errors import BadInput
from holdfast.engine.moments import when

HEARTBEAT_SECONDS = 15.0
QUICK_SECONDS = 0.05
SLOW_SECONDS = 1.0
PAGE = 200
MEDIA_TYPE = "text/event-stream"
_encode = msgspec.json.Encoder().encode


def event(id_: str, name: str, data: Any) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id_.encode(), name.encode(), _encode(data))


async def stream_instance(call: Call) -> Reply:
    """Its history as it grows: `id` is the sequence, `event` the type, `data` the entry. `Last-Event-ID` goes on from
    there. It closes when the instance has ended; asked again after that: 204."""
    id_ = call.id("ins")
    await instances.exists(call.service, call.tenant_id, id_)
    given = call.headers.get("last-event-id")
    after = 0
    if given is not None:
        if not given.isascii() or not given.isdigit() or len(given) > 18:
            words = "expected a sequence: the id of the last event you got"
            raise Problem(
                "validation-failed", f"Last-Event-ID: {words}", errors=[Fault(words, "/headers/Last-Event-ID")]
            )
        after = int(given)
        ended = await _has_ended(call, id_)
        rest = await instances.history_page(call.service, call.tenant_id, id_, after=after, limit=1)
        if ended and not rest.entries:
            return Reply(204, b"")
    last = after

    async def read() -> tuple[list[bytes], bool]:
        nonlocal last
        ended = await _has_ended(call, id_)  # before the rows: those of its end are there then
        rows, more = await instances.history_page(call.service, call.tenant_id, id_, after=last, limit=PAGE)
        if rows:
            last = rows[-1].seq
        return [event(str(row.seq), row.type, shown.history(row)) for row in rows], ended and not more

    return _stream(call, read)


async def _has_ended(call: Call, id_: bytes) -> bool:
    rows = await call.service.store.fetch("read_ending", tenant_id=call.tenant_id, id=id_)
    return not rows or rows[0][4] is not None


async def stream_tenant(call: Call) -> Reply:
    """Everything that happens in your tenant from now on, or since `Last-Event-ID`: which instance, which entry of its
    history. `id` is where to go on from; nothing is left out in between."""
    try:
        feed = Feed(call.service, call.tenant_id, call.headers.get("last-event-id"))
        await feed.check()
    except BadInput as error:
        raise Problem("validation-failed", str(error), errors=[Fault(str(error), "/headers/Last-Event-ID")]) from None
    if feed.word is None:
        await feed.read()  # it begins now, not at the first look

    async def read() -> tuple[list[bytes], bool]:
        return [
            event(entry.word, entry.type, {
                "instance_id": entry.instance_id, "definition_key": entry.definition_key, "seq": entry.seq,
                "type": entry.type, "name": entry.name, "at": when(entry.at),
            })
            for entry in await feed.read()
        ], False  # fmt: skip

    # Where it begins goes out at once: a connection that is lost before the first event goes on from there, too.
    return _stream(call, read, f"id: {feed.word}\n" if feed.word else "")


def _stream(call: Call, read: Callable[[], Any], opening: str = "") -> Reply:
    doors = call.doors
    if doors.streams >= doors.settings.max_streams:
        raise Problem(
            "overloaded",
            f"{doors.streams} streams are open, which is the limit: try again",
            headers={"Retry-After": "5"},
        )

    async def events() -> AsyncIterator[bytes]:
        doors.streams += 1
        try:
            yield f"retry: 2000\n{opening}\n".encode()
            pause, quiet = QUICK_SECONDS, 0.0
            while not doors.stopping.is_set():
                if not await call.still_may():
                    return  # the key was revoked, the token is over, a role was taken away
                found, over = await read()
                for one in found:
                    yield one
                if over:
                    return
                pause = QUICK_SECONDS if found else min(pause * 1.5, SLOW_SECONDS)
                quiet = 0.0 if found else quiet + pause
                if quiet >= HEARTBEAT_SECONDS:
                    quiet = 0.0
                    yield b": still here\n\n"
                await _pause(doors.stopping, pause)
        finally:
            doors.streams -= 1

    return Reply(200, None, None, {}, MEDIA_TYPE, events())


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass


def declare(endpoints: Endpoints) -> None:
    text = 'id: 3\nevent: STATE_TRANSITION\ndata: {"seq": 3, "type": "STATE_TRANSITION"}\n\n'
    endpoints.add(
        "GET /workflow/instances/{id}/stream", capability="instances:read", tag="streams",
        summary="Follow an instance", stream=True,
        answers={
            200: Answer("Server-sent events.", None, text, MEDIA_TYPE),
            204: Answer("It has ended, and you have everything.", None, None, ""),
        },
        problems=("not-found", "overloaded"),
    )(stream_instance)  # fmt: skip
    endpoints.add(
        "GET /workflow/stream", capability="instances:read", tag="streams", summary="Follow your tenant", stream=True,
        answers={200: Answer("Server-sent events.", None, text, MEDIA_TYPE)}, problems=("overloaded",),
    )(stream_tenant)  # fmt: skip
