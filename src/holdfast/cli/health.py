"""What a worker process says about itself over HTTP: /metrics, /livez and /readyz, and nothing else.

A server of its own size: no routes, no bodies, one request per connection. The product's API is elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from holdfast import Holdfast

HEAD_LIMIT = 8 * 1024
HEAD_SECONDS = 5.0
READY_SECONDS = 2.0
PLAIN = "text/plain; charset=utf-8"
Answer = tuple[int, str, bytes]
WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@asynccontextmanager
async def watched(hf: Holdfast, host: str, port: int) -> AsyncIterator[int]:
    """Serve for the length of the block; gives the port, which is chosen where 0 is asked for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _serve(hf, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked has gone, or never asked
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(serve, host, port, limit=HEAD_LIMIT)
    except OSError as error:
        raise click.ClickException(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from error
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _serve(hf: Holdfast, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(HEAD_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    status, kind, body = await _answer(hf, words[0], words[1]) if len(words) == 3 else (400, PLAIN, b"bad request\n")
    lines = [
        f"HTTP/1.1 {status} {WORDS[status]}", f"Content-Type: {kind}", f"Content-Length: {len(body)}",
        "Cache-Control: no-store", "Connection: close", "", "",
    ]  # fmt: skip
    writer.write("\r\n".join(lines).encode() + (b"" if words[0] == "HEAD" else body))
    async with asyncio.timeout(HEAD_SECONDS):
        await writer.drain()


async def _answer(hf: Holdfast, method: str, target: str) -> Answer:
    if method not in ("GET", "HEAD"):
        return 405, PLAIN, b"only GET and HEAD\n"
    match target.partition("?")[0]:
        case "/livez":
            return 200, PLAIN, b"ok\n"  # the loop turns: that is all it says
        case "/readyz":
            problem = await why_not_ready(hf)
            return (200, PLAIN, b"ok\n") if problem is None else (503, PLAIN, f"{problem}\n".encode())
        case "/metrics":
            return 200, hf.metrics.content_type, await hf.metrics.render(hf.service)
        case _:
            return 404, PLAIN, b"there is /metrics, /livez and /readyz\n"


async def why_not_ready(hf: Holdfast) -> str | None:
    """None: the database answers, and every worker of this process is registered there and not fenced."""
    workers = list(hf.service.workers)
    if not workers:
        return "no worker is running"
    try:
        async with asyncio.timeout(READY_SECONDS):
            for worker in workers:
                if down := worker.down():
                    return f"a part of the worker has ended and is begun again: {', '.join(down)}"
                if not await hf.service.store.fetch("worker_is_live", worker_id=worker.id):
                    return "a worker was fenced and is not registered anew yet"
    except Exception as error:
        return f"the database does not answer ({type(error).__name__})"
    return None
