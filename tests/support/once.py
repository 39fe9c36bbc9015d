"""What libraries find out anew for each connection, although it is the same for all: found out once per process.

Only in the process of the tests. A server or a worker that a test starts asks as often as it does for its users.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import httpx._transports.default as httpx_transports
from asyncpg import Connection

BUILT_IN_BELOW = 16_384  # oids from here on are of types that somebody made

_introspect = Connection._introspect_types
_introspected: dict[frozenset[int], Any] = {}


async def _introspect_once(self: Any, oids: Any, timeout: float | None) -> Any:
    wanted = frozenset(oids)
    if wanted in _introspected:
        return _introspected[wanted], SimpleNamespace(name="not asked")  # named: it replaced no unnamed statement
    found = await _introspect(self, oids, timeout)
    if max(wanted) < BUILT_IN_BELOW:
        _introspected[wanted] = found[0]
    return found


def find_out_once() -> None:
    # What `bytea[]` is: a third of all that PostgreSQL did for a short test.
    Connection._introspect_types = _introspect_once
    # Whom to trust: 24 ms for each client, most of whom never speak TLS.
    httpx_transports.create_ssl_context = cache(httpx_transports.create_ssl_context)
