"""The server itself: is it alive, is it ready, its metrics, its own description, and the way in for a browser."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from holdfast.client.calls import Ask, Connection
from holdfast.client.errors import Unavailable

FORM = "application/x-www-form-urlencoded"


class Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def live(self) -> dict[str, str]:
        """The process answers."""
        return await self._connection.read(dict[str, str], "/livez")

    async def ready(self) -> bool:
        """Whether it can serve requests now; asked once. A server that does not answer at all is `Unreachable`."""
        try:
            await self._connection.once(Ask(method="GET", path="/readyz", repeatable=True))
        except Unavailable:
            return False
        return True

    async def metrics(self) -> str:
        """Prometheus's text."""
        return await self._connection.text("/metrics")

    async def openapi(self) -> dict[str, Any]:
        """The API, described as OpenAPI 3.1."""
        return await self._connection.read(dict[str, Any], "/openapi.json")

    async def docs(self) -> str:
        """The same as a page."""
        return await self._connection.text("/docs")

    async def login_page(self, key: str) -> str:
        """The page behind a login link. Looking at it does nothing."""
        return await self._connection.text("/login", query={"key": key})

    async def log_in(self, key: str) -> str:
        """Exchange a login link, once, for a browser's session: the cookie, as `name=value`. Without a key of its own
        this is never sent twice."""
        reply = await self._connection.send(Ask(
            method="POST", path="/login", headers={"Content-Type": FORM}, content=urlencode({"key": key}).encode(),
            repeatable=False, expected=303,
        ))  # fmt: skip
        return str(reply.headers.get("set-cookie", "")).partition(";")[0]

    async def log_out(self, cookie: str) -> None:
        """End a browser's session; `cookie` is what `log_in` gave."""
        await self._connection.send(Ask(
            method="POST", path="/logout", headers={"Cookie": cookie}, repeatable=True, expected=303,
        ))  # fmt: skip
