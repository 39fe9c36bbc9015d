"""What comes over the wire and what goes back, in ASGI's own terms.

Litestar finds the route. Its way from there to a function and back serves every kind of function, and costs more than
reading, checking and answering together; there is one kind here, so its requests are read and answered directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from litestar import Request as LitestarRequest
from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.api.problems import Problem
from holdfast.settings import seconds_for_tests

BODY_SECONDS = seconds_for_tests("BODY", 30)
STUCK_SECONDS = seconds_for_tests("STUCK", 30)
NO_CONTENT = 204


class Request:
    """One request's words. Of a header that stands twice, the first counts."""

    __slots__ = ("_receive", "_scope", "headers", "method", "path", "path_params", "query_string")

    def __init__(self, scope: Any, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.path_params: dict[str, str] = scope["path_params"]
        self.query_string: bytes = scope["query_string"]
        self.headers = headers_of(scope)

    @property
    def cookies(self) -> dict[str, str]:
        return LitestarRequest[Any, Any, Any](self._scope).cookies

    async def body(self, limit: int, seconds: float = BODY_SECONDS) -> bytes:
        """Whole and in time: who sends it drop by drop must not hold a place for ever."""
        said = self.headers.get("content-length", "")
        if said.isdigit() and int(said) > limit:
            raise Problem("payload-too-large", f"the body has {int(said):,} bytes, the limit is {limit:,}")
        try:
            async with asyncio.timeout(seconds):
                return await self._read(limit)
        except TimeoutError:
            words = f"the body did not arrive in {seconds:g} seconds"
            raise Problem("malformed-request", words, headers={"Connection": "close"}) from None

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message: Any = await self._receive()
            if message["type"] == "http.disconnect":
                raise Problem("malformed-request", "the body did not arrive whole: whoever sent it has gone")
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise Problem("payload-too-large", f"the body has more than {limit:,} bytes, which is the limit")
            parts.append(part)
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def headers_of(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(list(scope["headers"]))}


async def send_whole(send: Send, status: int, headers: dict[str, str], media_type: str, body: bytes) -> None:
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    if status != NO_CONTENT:
        raw.append((b"content-type", media_type.encode("latin-1")))
        raw.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_events(
    scope: Scope, receive: Receive, send: Send, headers: dict[str, str], media_type: str, events: AsyncIterator[bytes]
) -> None:
    """Until they end, or whoever reads them has gone."""
    await ASGIStreamingResponse(iterator=events, headers=headers, media_type=media_type)(scope, receive, send)


def connection_class(most: int) -> type[HttpToolsProtocol]:
    """uvicorn's, with three limits: so many at once; whoever does not come to the end of a request's head, or takes
    nothing of an answer, for a while is cut off."""

    class Connection(HttpToolsProtocol):
        head: asyncio.TimerHandle | None = None
        taker: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            self.head = self._cut_off_later()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            _stop(self.head)
            self.head = self._cut_off_later()

        def on_headers_complete(self) -> None:
            _stop(self.head)
            super().on_headers_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            _stop(self.taker)
            self.taker = self._cut_off_later()

        def resume_writing(self) -> None:
            _stop(self.taker)
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            _stop(self.head)
            _stop(self.taker)
            super().connection_lost(exc)

        def _cut_off_later(self) -> asyncio.TimerHandle:
            # Not `close`, which would wait until everything was taken.
            return self.loop.call_later(STUCK_SECONDS, self.transport.abort)

    return Connection


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
