"""Workers, queues and dead letters: what of them concerns the caller's tenant."""

from __future__ import annotations

from holdfast.api.models import DeadLetterOut, Listing, QueueOut, WorkerOut
from holdfast.client.calls import Connection, at
from holdfast.client.pages import Pages


class Workers:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Pages[WorkerOut]:
        """Who is at work, the newest first."""
        return self._connection.whole(Listing[WorkerOut], at("workers"))

    def queues(self) -> Pages[QueueOut]:
        """Queues in which instances are due and not claimed."""
        return self._connection.whole(Listing[QueueOut], at("queues"))

    def dead_letters(self, *, limit: int | None = None) -> Pages[DeadLetterOut]:
        """Work out of attempts, newest first."""
        return self._connection.pages(Listing[DeadLetterOut], at("dead-letters"), {"limit": limit})
