"""Server-sent events: bytes in, whole events out, and a stream that goes on where it was cut off.

An event counts when it has arrived whole; a connection that breaks inside one is followed by another that asks with
the id of the last whole one. So nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import msgspec

from holdfast.client.calls import Ask, Connection, may_ask_again, pause_seconds
from holdfast.client.errors import ApiError

# Only these three end a line (and not U+2028, which may stand in JSON). A last \r may be half of \r\n.
LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
RETRY_SECONDS = 2.0


class Event(msgspec.Struct, frozen=True):
    id: str
    name: str
    data: bytes


class Parser:
    """The bytes of one connection."""

    def __init__(self, last_id: str | None) -> None:
        self.last_id = last_id
        self.retry_seconds = RETRY_SECONDS
        self._id = last_id
        self._name = b""
        self._data: list[bytes] = []
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Event]:
        *lines, self._rest = LINE_END.split(self._rest + chunk)
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._whole()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self.retry_seconds = min(int(value[:9]) / 1000, 60.0)
        return None  # anything else is a comment, or of a later day

    def _whole(self) -> Event | None:
        self.last_id = self._id
        name, data = self._name, self._data
        self._name, self._data = b"", []
        if not data:
            return None
        return Event(self.last_id or "", name.decode("utf-8", "replace"), b"\n".join(data))


async def events(connection: Connection, path: str, last_id: str | None) -> AsyncGenerator[Event, None]:
    """Events from there on, over as many connections as it takes; it ends when the server says that was all."""
    ask = Ask(method="GET", path=path, repeatable=True)
    refused = 0
    while True:
        parser, opened, pause = Parser(last_id), False, 0.0
        try:
            async with connection.follow(path, last_id) as chunks:
                if chunks is None:
                    return
                opened = True
                async for chunk in chunks:
                    for event in parser.feed(chunk):
                        yield event
        except ApiError as error:
            if not opened:
                refused += 1
                if refused > connection.retries or not may_ask_again(ask, error):
                    raise
                pause = pause_seconds(refused, error.retry_after, connection.chance())
        if opened:
            refused = 0
            # After an event, ask at once: it is mostly the end of an instance, and the answer will be that this was
            # all. A connection that brought nothing is not followed by another without a pause.
            if parser.last_id == last_id:
                pause = parser.retry_seconds * (0.5 + connection.chance() / 2)
        last_id = parser.last_id
        if pause:
            await connection.sleep(pause)
