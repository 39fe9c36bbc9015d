"""The load of `bench.server`, a process that imports nothing of what it measures: `python -m bench.load PLAN`.

A plan is a file of requests as they go over the wire; what came of them is written beside it. `python -m bench.load`
alone is a server that does nothing, by which the load itself is measured.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60.0


def run(work: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class Caller(asyncio.Protocol):
    """One connection: sends the next request as soon as the answer to the last is whole."""

    def __init__(self, requests: Iterator[bytes], over: Callable[[], None]) -> None:
        self.requests = requests
        self.over = over
        self.seconds: list[float] = []
        self.statuses: dict[str, int] = {}
        self.heard = b""
        self.began = 0.0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self) -> None:
        request = next(self.requests, None)
        if request is None:
            self.over()
            return
        self.began = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        end = self.heard.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self.heard.lower().find(b"content-length:", 0, end)
        length = int(self.heard[at + 15 : self.heard.find(b"\r\n", at)])
        if len(self.heard) < end + 4 + length:
            return
        self.seconds.append(time.perf_counter() - self.began)
        status = self.heard[9:12].decode()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.heard = b""
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        self.statuses["lost"] = self.statuses.get("lost", 0) + (error is not None)


async def fire(host: str, port: int, requests: list[bytes], callers: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    queue, left, done = iter(requests), callers, loop.create_future()

    def over() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set_result(None)

    made = [await loop.create_connection(lambda: Caller(queue, over), host, port) for _ in range(callers)]
    before = time.perf_counter()
    for _, caller in made:
        caller.send()
    await asyncio.wait_for(done, PATIENCE_SECONDS * 5)
    took = time.perf_counter() - before
    seconds = sorted(one for _, caller in made for one in caller.seconds)
    statuses: dict[str, int] = {}
    for transport, caller in made:
        transport.close()
        for status, count in caller.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    return {"rate": len(seconds) / took, "seconds": [quantile(seconds, share) for share in (0.5, 0.99)],
            "statuses": statuses}  # fmt: skip


def quantile(seconds: list[float], share: float) -> float:
    return seconds[math.ceil(len(seconds) * share) - 1]


def load(plan: Path) -> None:
    """What `plan` says, and the answer beside it."""
    wanted = json.loads(plan.read_text())
    requests = [request.encode() for request in wanted["requests"]]
    plan.with_suffix(".done").write_text(
        json.dumps(run(fire("127.0.0.1", wanted["port"], requests, wanted["callers"])))
    )


class Nothing(asyncio.Protocol):
    """A server that reads nothing and has one answer."""

    ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 400\r\ncontent-type: application/json\r\n\r\n" + b" " * 400

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.ANSWER)


async def serve_nothing() -> None:
    server = await asyncio.get_running_loop().create_server(Nothing, "127.0.0.1", 0)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load(Path(sys.argv[1]))
    else:
        run(serve_nothing())
