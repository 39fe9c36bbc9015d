"""Instances: start, tell, follow, wait for the end, stop and go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.api.models import (
    Accepted,
    BatchItem,
    BatchOut,
    EffectOut,
    EventOut,
    Fork,
    HistoryOut,
    InstanceOut,
    InstanceStatus,
    Listing,
    Migrate,
    MigrationOut,
    Reasoning,
    Resume,
    SendEvent,
    Start,
    StartBatch,
    TaskOut,
    TrailOut,
)
from holdfast.client.answers import FullInstance, Instance, Why
from holdfast.client.calls import Connection, IfMatch, at
from holdfast.client.errors import Unavailable, UnreadableReply
from holdfast.client.pages import Pages
from holdfast.client.streams import events
from holdfast.engine.errors import InstanceFailed, ResultNotReady
from holdfast.engine.stacks import recorded_text, summary

ENDED = frozenset({"completed", "failed", "cancelled"})
POLL_SECONDS = 1.0
_history = msgspec.json.Decoder(HistoryOut).decode


class Instances:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -- starting

    async def start(
        self, definition_key: str | None = None, input: Any = None, *, definition_id: str | None = None,
        version: int | None = None, business_key: str | None = None, start_at: datetime | None = None,
        wait: float | None = None, idempotency_key: str | None = None,
    ) -> Instance:  # fmt: skip
        """Start an instance of `definition_key` or `definition_id`. The same `business_key` again gives the instance
        that has it. `wait`: up to so many seconds for its end; look at `status`."""
        body = Start(
            definition_key=definition_key, definition_id=definition_id, version=version, business_key=business_key,
            input=msgspec.UNSET if input is None else input, start_at=start_at,
        )  # fmt: skip
        return await self._connection.change(
            Instance, at("instances"), body, wait=wait, idempotency_key=idempotency_key
        )

    async def start_many(
        self, definition_key: str | None = None, inputs: Iterable[Any] = (), *,
        items: Iterable[BatchItem] | None = None, definition_id: str | None = None, version: int | None = None,
        idempotency_key: str | None = None,
    ) -> BatchOut:  # fmt: skip
        """Start up to 1,000 instances in one request, each with its own answer, in order. `inputs`, or `items` where
        they have business keys."""
        given = [BatchItem(input=one) for one in inputs] if items is None else [*items]
        body = StartBatch(definition_key=definition_key, definition_id=definition_id, version=version, items=given)
        return await self._connection.change(
            BatchOut, at("instances", "batch"), body, idempotency_key=idempotency_key
        )  # fmt: skip

    # -- reading

    def list(
        self, *, status: Sequence[InstanceStatus] | InstanceStatus | None = None, definition_key: str | None = None,
        business_key: str | None = None, created_after: datetime | None = None,
        created_before: datetime | None = None, limit: int | None = None,
    ) -> Pages[InstanceOut]:  # fmt: skip
        """Those that match every filter, newest first."""
        query = {
            "status": status, "definition_key": definition_key, "business_key": business_key,
            "created_after": created_after, "created_before": created_before, "limit": limit,
        }  # fmt: skip
        return self._connection.pages(Listing[InstanceOut], at("instances"), query)

    async def read(self, id: str) -> FullInstance:
        """How it stands, with its tasks and the newest part of its history."""
        return await self._connection.read(FullInstance, at("instances", id))

    def history(
        self, id: str, *, after: int = 0, before: int | None = None, types: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Pages[HistoryOut]:  # fmt: skip
        """Its past, in order, from `after` on. With `before`: from there back, the newest first."""
        path = at("instances", id, "history")

        async def fetch(cursor: str | None) -> Listing[HistoryOut]:
            begin = {"after": after} if before is None else {"before": before}
            where = begin if cursor is None else {"cursor": cursor}
            query = {**where, "type": types or None, "limit": limit}
            return await self._connection.read(Listing[HistoryOut], path, query=query)

        return Pages(fetch, backwards=before is not None)

    def tasks(self, id: str, *, limit: int | None = None) -> Pages[TaskOut]:
        """All its tasks, open or not, in the order they were made."""
        return self._connection.pages(Listing[TaskOut], at("instances", id, "tasks"), {"limit": limit})

    def audit(self, id: str, *, limit: int | None = None) -> Pages[TrailOut]:
        """Every transition and decision: what, when and by whom, without any payload."""
        return self._connection.pages(Listing[TrailOut], at("instances", id, "audit"), {"limit": limit})

    def children(self, id: str, *, limit: int | None = None) -> Pages[InstanceOut]:
        """The instances that it started, newest first."""
        return self._connection.pages(Listing[InstanceOut], at("instances", id, "children"), {"limit": limit})

    def effects(self, id: str, *, limit: int | None = None) -> Pages[EffectOut]:
        """Its effects, in the order they were started."""
        return self._connection.pages(Listing[EffectOut], at("instances", id, "effects"), {"limit": limit})

    async def why(self, id: str) -> Why:
        """One plain sentence: why it does not move, and what would move it."""
        return await self._connection.read(Why, at("instances", id, "why"))

    async def stream(self, id: str, *, after: int = 0) -> AsyncGenerator[HistoryOut, None]:
        """Its history as it grows, from `after` on, until it has ended. A lost connection is taken up where it was."""
        last = after
        # With a place to go on from, the server says that there is nothing more; without, it would begin again.
        async for event in events(self._connection, at("instances", id, "stream"), str(after)):
            try:
                entry = _history(event.data)
            except msgspec.DecodeError as error:
                raise UnreadableReply(f"the stream says what this client does not know: {error}") from None
            if entry.seq > last:
                last = entry.seq
                yield entry

    async def result(self, id: str, *, timeout: float | None = None) -> Any:
        """Wait for its end: its result, or `InstanceFailed` if it failed or was cancelled, or `ResultNotReady` if it
        has not ended after `timeout` seconds."""
        seen = await self.read(id)
        try:
            async with asyncio.timeout(timeout):
                while seen.status not in ENDED:
                    try:
                        async for _ in self.stream(id, after=seen.history[-1].seq if seen.history else 0):
                            pass
                    except Unavailable:
                        pass  # it has no room for another stream: look now and then
                    seen = await self.read(id)
                    if seen.status not in ENDED:
                        await self._connection.sleep(POLL_SECONDS)
        except TimeoutError:
            raise ResultNotReady(id, seen.status, seen.waiting_on) from None
        if seen.status != "completed":
            failed = InstanceFailed(id, seen.status, seen.last_error, summary(seen.last_error))
            if trace := recorded_text(seen.last_error):
                failed.add_note(trace)
            raise failed
        return seen.result

    # -- telling

    async def send(
        self, id: str, name: str, payload: Any = None, *, event_id: str | None = None, strict: bool = False,
        wait: float | None = None, if_match: IfMatch = None, idempotency_key: str | None = None,
    ) -> EventOut:  # fmt: skip
        """Send an event; the same `event_id` twice is one event. `strict`: wait for its turn (up to `wait` seconds),
        `InvalidTransition` if no state takes it."""
        body = SendEvent(name=name, payload=payload, id=event_id, strict=strict)
        return await self._connection.change(
            EventOut, at("instances", id, "events"), body, if_match=if_match, wait=_held(strict, wait),
            idempotency_key=idempotency_key,
        )  # fmt: skip

    async def signal(
        self, id: str, name: str, payload: Any = None, *, event_id: str | None = None, strict: bool = False,
        wait: float | None = None, if_match: IfMatch = None, idempotency_key: str | None = None,
    ) -> EventOut:  # fmt: skip
        """The same, by the name code workflows know it by."""
        body = SendEvent(name=name, payload=payload, id=event_id, strict=strict)
        return await self._connection.change(
            EventOut, at("instances", id, "signal"), body, if_match=if_match, wait=_held(strict, wait),
            idempotency_key=idempotency_key,
        )  # fmt: skip

    # -- controlling

    async def cancel(
        self, id: str, reason: str = "", *, if_match: IfMatch = None, idempotency_key: str | None = None
    ) -> Accepted:
        """Ask it to end: what is under way is settled, owed compensations run, then it is cancelled."""
        return await self._connection.change(
            Accepted, at("instances", id, "cancel"), Reasoning(reason=reason), if_match=if_match,
            idempotency_key=idempotency_key,
        )  # fmt: skip

    async def pause(
        self, id: str, reason: str = "", *, if_match: IfMatch = None, idempotency_key: str | None = None
    ) -> Accepted:
        """Have it stand still; what comes meanwhile waits in line."""
        return await self._connection.change(
            Accepted, at("instances", id, "pause"), Reasoning(reason=reason), if_match=if_match,
            idempotency_key=idempotency_key,
        )  # fmt: skip

    async def resume(
        self, id: str, reason: str = "", *, drop_event: bool = False, if_match: IfMatch = None,
        idempotency_key: str | None = None,
    ) -> Accepted:  # fmt: skip
        """Go on, after a pause or after what stopped it was mended."""
        return await self._connection.change(
            Accepted, at("instances", id, "resume"), Resume(reason=reason, drop_event=drop_event), if_match=if_match,
            idempotency_key=idempotency_key,
        )  # fmt: skip

    async def retry(
        self, id: str, reason: str = "", *, if_match: IfMatch = None, idempotency_key: str | None = None
    ) -> Accepted | Instance:
        """Of one that lives: begin the next attempts at once (`Accepted`). Of one that failed or was cancelled: the new
        `Instance` that goes on from the step that failed."""
        reply = await self._connection.changed(
            at("instances", id, "retry"), Reasoning(reason=reason), if_match=if_match, idempotency_key=idempotency_key
        )
        if reply.status_code == 201:
            return self._connection.answer(Instance, reply)
        return self._connection.answer(Accepted, reply)

    async def fork(
        self, id: str, step: str | None = None, *, business_key: str | None = None, reason: str = "",
        if_match: IfMatch = None, idempotency_key: str | None = None,
    ) -> Instance:  # fmt: skip
        """A new instance that goes on from before `step` of one that has ended."""
        return await self._connection.change(
            Instance, at("instances", id, "fork"), Fork(step=step, business_key=business_key, reason=reason),
            if_match=if_match, idempotency_key=idempotency_key,
        )  # fmt: skip

    async def migrate(
        self, id: str, version: int, states: Mapping[str, str] | None = None, *,
        context: Mapping[str, Any] | None = None, stop: Sequence[str] | None = None,
        start: Sequence[str] | None = None, enter: Sequence[str] | None = None, reason: str = "",
        dry_run: bool = False, if_match: IfMatch = None, idempotency_key: str | None = None,
    ) -> MigrationOut:  # fmt: skip
        """Move an instance of a chart to another version of its definition. `dry_run` says what would happen."""
        body = Migrate(
            version=version, states=dict(states or {}), context=None if context is None else dict(context),
            stop=None if stop is None else [*stop], start=None if start is None else [*start],
            enter=None if enter is None else [*enter], reason=reason, dry_run=dry_run,
        )  # fmt: skip
        return await self._connection.change(
            MigrationOut, at("instances", id, "migrate"), body, if_match=if_match, idempotency_key=idempotency_key
        )


def _held(strict: bool, wait: float | None) -> float | None:
    """A strict send is held by the server for ten seconds unless it is told otherwise."""
    return 10.0 if strict and wait is None else wait
