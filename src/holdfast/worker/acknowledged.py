"""The ends of histories that this worker was told are on disk: its own witness that the database still has them.

A server that was promoted without its last commits, or a state that was put back, holds an earlier part of what was
acknowledged. What is missing is missing from the end, so the newest few rows tell whether anything is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.store.port import Claimed, Store
    from holdfast.worker.turns import UnderClaim

REMEMBERED = 10_000  # instances
NEWEST = 16  # several batches are on their way at once, so the newest row alone is not the last on disk


class Row(NamedTuple):
    """The last row of an instance's history, and the fence of the claim under which it was written."""

    tenant_id: str
    instance_id: bytes
    seq: int
    hash: bytes
    fence: int


class Acknowledged:
    def __init__(self) -> None:
        # By instance, the newest last: the fields of a `Row`, which is only made for those who ask.
        self._rows: dict[bytes, tuple[str, bytes, int, bytes, int]] = {}

    def note(self, execution: UnderClaim) -> None:
        """The turn that ends with this execution's head is committed."""
        id_ = execution.id
        rows = self._rows
        rows.pop(id_, None)
        rows[id_] = (execution.tenant_id, id_, execution.seq, execution.hash, execution.fence)
        if len(rows) > REMEMBERED:
            del rows[next(iter(rows))]

    def claim_lacks(self, claimed: Claimed) -> Row | None:
        """The row that we were told is on disk, where the history that came with this claim ends before it."""
        found = self._rows.get(claimed.id)
        if found is None:
            return None
        row = Row._make(found)
        last = claimed.history[-1].seq if claimed.history else 0
        return None if last >= row.seq else row

    async def lost(self, store: Store) -> list[Row]:
        """Rows that are gone."""
        newest = [row for row, _ in zip(reversed(self._rows.values()), range(NEWEST), strict=False)]
        if not newest or len(await store.rows_there(newest)) == len(newest):
            return []
        everything = list(self._rows.values())
        there = await store.rows_there(everything)
        return [row for row in map(Row._make, everything) if row.hash not in there]

    def forget(self, lost: Iterable[Row]) -> None:
        """It is on record that these are gone: nobody needs to be told once more."""
        for row in lost:
            if self._rows.get(row.instance_id) == row:
                del self._rows[row.instance_id]
