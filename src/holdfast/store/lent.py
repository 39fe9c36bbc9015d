"""The connection that a transaction handler is lent on PostgreSQL: how long it may idle, and who closed it."""

from __future__ import annotations

import asyncpg

OURS_MS = 10_000  # for our own turn, behind the handler: it locks the worker's row, so it is well below the lease
MARGIN_SECONDS = 2.0
LONGEST_MS = 2**31 - 1  # that PostgreSQL takes


def idle_limit(timeout: float) -> str:
    """A worker that stands still keeps its handler's locks no longer than this. The time-out comes first, so that the
    server never cuts off a handler which waits for something else."""
    return f"{min(round((timeout + MARGIN_SECONDS) * 1000), LONGEST_MS)}ms"


class LentConnection(asyncpg.Connection):
    """asyncpg itself does not say afterwards who closed a connection."""

    closed_here = False

    async def close(self, *, timeout: float | None = None) -> None:
        self._note_close()
        await super().close(timeout=timeout)

    def terminate(self) -> None:
        self._note_close()
        super().terminate()

    def _note_close(self) -> None:
        self.closed_here = self.closed_here or not self.is_closed()

    def was_lost(self) -> bool:
        """Whether the server or the network closed it, and not whoever uses it."""
        return self.is_closed() and not self.closed_here
