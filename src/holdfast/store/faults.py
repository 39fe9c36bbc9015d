"""What an error from the database says about the database: that it cannot be reached, or that we are at fault."""

from __future__ import annotations

import apsw
import asyncpg

from holdfast.engine.errors import StoreUnavailable

AWAY = ("08", "53", "57", "58")  # connection, resources, operator's intervention, system


def unreachable(error: BaseException) -> bool:
    """Whether trying again later may help, because the database was away or had no room."""
    if isinstance(error, (StoreUnavailable, OSError, TimeoutError, asyncpg.InterfaceError)):
        return True
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate or "08")[:2] in AWAY
    return isinstance(error, (apsw.BusyError, apsw.IOError, apsw.FullError, apsw.CantOpenError))
