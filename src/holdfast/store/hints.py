"""NOTIFY as a hint: "there is work", "these have ended". Sent outside the business transaction, at most one at a
time and not too often; whoever misses one finds out by polling."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from holdfast.engine.turns import Turn
from holdfast.store.tended import Tended

if TYPE_CHECKING:
    from holdfast.store.postgres import PostgresStore

log = structlog.get_logger("holdfast.hints")
CHANNEL = "holdfast"
ENDED_MAX = 200  # a payload holds 8,000 bytes
QUIET_SECONDS = 0.02


class Hints:
    def __init__(self, store: PostgresStore, service: Any) -> None:
        self.store = store
        self.service = service
        self._work = False
        self._ended: list[bytes] = []
        self._due = asyncio.Event()
        self._tended = [Tended("hints heard", self._listen), Tended("hints sent", self._send)]
        self._connection: Any = None

    def start(self) -> None:
        for tended in self._tended:
            tended.start()

    async def close(self) -> None:
        for tended in self._tended:
            await tended.stop()
        if self._connection is not None:
            self._connection.terminate()

    def send(self, turn: Turn) -> None:
        if turn.starts or turn.events:
            self._work = True
            self._due.set()
        if turn.change is not None and turn.change.completed_at is not None:
            if len(self._ended) < ENDED_MAX:
                self._ended.append(turn.instance_id)
            self._due.set()

    async def _send(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            work, self._work = self._work, False
            ended, self._ended = self._ended, []
            words = ("w" if work else "") + "".join(id_.hex() for id_ in ended)
            try:
                if self._connection is not None:
                    await self._connection.execute("select pg_notify($1, $2)", CHANNEL, words)
            except Exception as error:
                log.debug("hint_not_sent", error=repr(error))
            # Alone, a hint goes at once; under load they are rare: polling workers are busy anyway.
            await asyncio.sleep(QUIET_SECONDS if len(ended) > 4 else 0.001)

    async def _listen(self) -> None:
        while True:
            connection = None
            try:
                connection = await self.store.connect()
                await connection.add_listener(CHANNEL, self._heard)
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                self._connection = connection
                self._heard_work()  # what came before we listened
                await lost.wait()
            except Exception as error:  # whatever it is, polling goes on and so do we
                log.debug("not_listening", error=repr(error))
            finally:
                if connection is not None:
                    connection.terminate()  # also where a close comes before the first word was listened for
            self._connection = None
            await asyncio.sleep(1.0)

    def _heard(self, connection: Any, pid: int, _channel: str, words: str) -> None:
        if connection.is_closed() or pid == connection.get_server_pid():
            return  # our own word: whoever is here was told directly
        if words.startswith("w"):
            words = words[1:]
            self._heard_work()
        for at in range(0, len(words), 32):
            self.service.waiters.ended(bytes.fromhex(words[at : at + 32]))

    def _heard_work(self) -> None:
        for worker in self.service.workers:
            worker.more_work()
