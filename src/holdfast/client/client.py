"""`Client`: every operation of the API by name, typed, asked again where that cannot do harm."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path

import httpx
import msgspec

from holdfast.api.models import Listing, Me, RoleOut
from holdfast.client.access import Audit, Keys, Principals, Tenant
from holdfast.client.answers import TenantEvent
from holdfast.client.bulk import BulkActions
from holdfast.client.calls import Connection, at
from holdfast.client.definitions import Definitions
from holdfast.client.effects import Effects
from holdfast.client.errors import UnreadableReply
from holdfast.client.instances import Instances
from holdfast.client.pages import Pages
from holdfast.client.server import Server
from holdfast.client.streams import events
from holdfast.client.tasks import Tasks
from holdfast.client.workers import Workers
from holdfast.engine.errors import BadInput

TIMEOUT = 30.0
RETRIES = 4
_told = msgspec.json.Decoder(TenantEvent).decode


class Client:
    """A server of Holdfast's, as one of its callers sees it: `async with Client(url, key) as client: …`.

    `timeout` is for one attempt, in seconds; `retries` counts the attempts after the first. `transport` is httpx's, for
    those who need their own certificates or proxy. `sleep` and `chance` are for tests.
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout: float = TIMEOUT, retries: int = RETRIES,
        transport: httpx.AsyncBaseTransport | None = None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        self._connection = connection = Connection(
            url, key, timeout=timeout, retries=retries, transport=transport, sleep=sleep, chance=chance
        )
        self.definitions = Definitions(connection)
        self.instances = Instances(connection)
        self.tasks = Tasks(connection)
        self.effects = Effects(connection)
        self.bulk = BulkActions(connection)
        self.workers = Workers(connection)
        self.principals = Principals(connection)
        self.keys = Keys(connection)
        self.tenant = Tenant(connection)
        self.audit = Audit(connection)
        self.server = Server(connection)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, *, timeout: float = TIMEOUT, retries: int = RETRIES
    ) -> Client:
        """By HOLDFAST_URL, and HOLDFAST_KEY or HOLDFAST_KEY_FILE."""
        url, key = from_environment(os.environ if environ is None else environ)
        return cls(url, key, timeout=timeout, retries=retries)

    def __repr__(self) -> str:
        return f"<Client of {self._connection.url}>"  # and not its key

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give its connections back."""
        await self._connection.http.aclose()

    async def me(self) -> Me:
        """Who you are to this server, and what you may do."""
        return await self._connection.read(Me, at("me"))

    def roles(self) -> Pages[RoleOut]:
        """The roles, and what each may do."""
        return self._connection.whole(Listing[RoleOut], at("roles"))

    async def ready(self) -> bool:
        """Whether the server can serve requests now."""
        return await self.server.ready()

    async def stream(self, *, after: str | None = None) -> AsyncGenerator[TenantEvent, None]:
        """Everything that happens in your tenant from now on, or after the event with this id. It does not end by
        itself; a lost connection is taken up where it was."""
        async for event in events(self._connection, at("stream"), after):
            try:
                told = _told(event.data)
            except msgspec.DecodeError as error:
                raise UnreadableReply(f"the stream says what this client does not know: {error}") from None
            yield msgspec.structs.replace(told, id=event.id)


def from_environment(environ: Mapping[str, str]) -> tuple[str, str]:
    """Where the server is, and the key."""
    url, key, path = (environ.get(f"HOLDFAST_{name}", "") for name in ("URL", "KEY", "KEY_FILE"))
    if not url:
        raise BadInput("HOLDFAST_URL is not set: expected the server's address, as in http://127.0.0.1:8700")
    if bool(key) == bool(path):
        raise BadInput("expected one of HOLDFAST_KEY and HOLDFAST_KEY_FILE, which names a file with the key")
    if path:
        try:
            key = Path(path).read_text()
        except (OSError, ValueError) as error:
            raise BadInput(f"HOLDFAST_KEY_FILE names {path!r}, which cannot be read ({type(error).__name__})") from None
    return url, key.strip()
