"""A TCP proxy before PostgreSQL that loses replies: the request goes through, then the connection breaks.

Whoever waits for the answer to a COMMIT cannot know whether it happened. `loss` is the chance per reply; 0 lets
everything through. It runs on a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

GREETING_REPLIES = 3  # authentication and the settings: a client that never gets in tells nothing


class Proxy:
    def __init__(self, url: str, *, seed: int = 1) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._parts = parts
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: Any = None
        self._open: set[asyncio.StreamWriter] = set()
        self.loss = 0.0
        self.lost = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        return urlunsplit(self._parts._replace(netloc=f"{user}127.0.0.1:{port}"))

    def lead_to(self, port: int) -> None:
        """From now on to another server, as a failover of its address does."""
        self._target = (self._target[0], port)

    def cut_all(self) -> None:
        """Break every connection now."""
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in self._open])

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0.05)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        tasks = [asyncio.create_task(self._pass_on(reader, back)), asyncio.create_task(self._answer(there, writer))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._open -= {writer, back}
            for end in (writer, back):
                end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies = 0
        while data := await reader.read(1 << 16):
            replies += 1
            if replies > GREETING_REPLIES and self._random.random() < self.loss:
                self.lost += 1
                return  # the server has done it; nobody is told
            writer.write(data)
            await writer.drain()
