"""What an error from the database says about the database: that it cannot be reached, or that we are at fault."""

from __future__ import annotations

import apsw

from holdfast.engine.errors import StoreUnavailable

# Connection, no such login or database any more, rolled back for another's sake, resources, not in the state for it (a
# lock was not to be had in time, the database takes nobody), operator's intervention, system.
AWAY = ("08", "28", "3D", "40", "53", "55", "57", "58")


def unreachable(error: BaseException) -> bool:
    """Whether trying again later may help, because the database was away or had no room."""
    if isinstance(error, (StoreUnavailable, OSError, TimeoutError)):
        return True
    if type(error).__module__.startswith("asyncpg."):
        return _postgres_is_away(error)
    return isinstance(error, (apsw.BusyError, apsw.IOError, apsw.FullError, apsw.CantOpenError))


def _postgres_is_away(error: BaseException) -> bool:
    import asyncpg  # only where it is in use: whoever works on SQLite does not wait for it

    if isinstance(error, asyncpg.InterfaceError):
        return True
    return isinstance(error, asyncpg.PostgresError) and str(error.sqlstate or "08")[:2] in AWAY
