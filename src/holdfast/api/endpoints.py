"""What an endpoint is: its route, the capability it asks for, what goes in and what comes out, and its words.

Everything about the API is derived from this one table: the routes, the access check, the OpenAPI document, the page
at /docs and the table of who may do what. An endpoint without a declared capability does not start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.api.problems import Problem
from holdfast.app.audit import By
from holdfast.engine import ids
from holdfast.engine.access import CAPABILITIES, Caller
from holdfast.engine.errors import BadInput, HoldfastError

if TYPE_CHECKING:
    from holdfast.api.server import Doors
    from holdfast.app.idempotency import Claim
    from holdfast.app.service import Service

F = TypeVar("F", bound=Callable[..., Any])
PUBLIC = "public"  # asks for nothing: no tenant's data is behind it
ANYONE = "authenticated"  # any caller we know, whatever its roles

PREFIXES = {
    "instances": "ins", "tasks": "tsk", "effects": "eff", "bulk": "blk", "principals": "prn", "keys": "key",
}  # fmt: skip


class Answer(msgspec.Struct, frozen=True):
    """One way in which a request can go well."""

    words: str
    model: Any = None
    example: Any = None
    media_type: str = "application/json"
    location: bool = False
    or_type: str = ""  # what else it may be, as a text


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    capability: str
    tag: str
    summary: str
    function: Callable[..., Awaitable[Reply]]
    answers: dict[int, Answer]
    description: str = ""
    body: Any = None
    body_example: Any = None
    body_optional: bool = False
    query: Any = None
    problems: tuple[str, ...] = ()
    if_match: str = ""  # "", "optional" or "required"
    keyed: str = ""  # whether Idempotency-Key is "", "optional" or "required"
    prefer: bool = False
    stream: bool = False
    secret: bool = False  # its answer holds what must not be kept
    form: tuple[str, ...] = ()  # fields of a browser's form, in place of a body
    greets: bool = False  # public, and says who is logged in
    page: bool = False  # only for browsers: a route, but no operation of the API
    again: Callable[[Call], Awaitable[Reply]] | None = None  # how its answer is made once its change is committed

    @property
    def operation(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def prefix(self) -> str:
        """What the id in its path begins with, by the noun before it."""
        before = self.path.partition("/{id}")[0].rpartition("/")[2]
        return PREFIXES.get(before, "")

    @property
    def operation_id(self) -> str:
        return self.function.__name__

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: Any = None
    etag: str | None = None
    headers: dict[str, str] = {}
    media_type: str = "application/json"
    events: AsyncIterator[bytes] | None = None


async def _always() -> bool:
    return True


class Call(msgspec.Struct, kw_only=True):
    """One request, as an endpoint sees it: who asks, for which tenant, with which words."""

    doors: Doors
    service: Service
    caller: Caller
    request_id: str
    trace_id: str
    traceparent: str
    path: Mapping[str, str]
    headers: Mapping[str, str]
    if_match: str | None = None
    wait_seconds: float | None = None
    claim: Claim | None = None
    form: Mapping[str, str] = {}
    still_may: Callable[[], Awaitable[bool]] = _always

    @property
    def tenant_id(self) -> str:
        return self.caller.tenant_id

    @property
    def actor(self) -> str:
        return self.caller.name

    @property
    def by(self) -> By:
        return By(self.caller.name, self.caller.principal_id, self.request_id)

    def derived(self, *parts: str) -> bytes | None:
        """An id for what this request makes, that follows from its Idempotency-Key; None without one."""
        return None if self.claim is None else self.claim.derived(*parts)

    def id(self, prefix: str, name: str = "id") -> bytes:
        """The id in the path. What is no id at all answers like one that nobody has."""
        word = self.path[name]
        try:
            found = ids.parse(prefix, word)
        except BadInput:
            raise not_found(word) from None
        if ids.shown(prefix, found) != word:  # or one thing had several names, and each its own Idempotency-Keys
            raise not_found(word)
        return found

    def word(self, prefix: str, name: str = "id") -> str:
        """The id in the path, as it is shown."""
        return ids.shown(prefix, self.id(prefix, name))

    def expected_version(self) -> int | None:
        """The version in If-Match; None where none is asked for."""
        if self.if_match is None or self.if_match == "*":
            return None
        word = self.if_match.strip()
        if len(word) >= 2 and word[0] == word[-1] == '"':
            word = word[1:-1]
        if not word.isascii() or not word.isdigit() or len(word) > 10 or int(word) >= 1 << 31:
            raise Problem(
                "precondition-failed", f"If-Match is {self.if_match!r}: no version of it has that ETag; read it again"
            )
        return int(word)


def not_found(word: str) -> Problem:
    return Problem("not-found", f"there is no {word[:100]!r} here")


class Endpoints:
    """The table, filled by the modules of each noun."""

    def __init__(self) -> None:
        self.all: list[Endpoint] = []

    def add(self, operation: str, **words: Any) -> Callable[[F], F]:
        """Declare a function as an endpoint: `@endpoints.add("GET /workflow/…", capability=…, …)`."""
        method, path = operation.split(" ")

        def declare(function: F) -> F:
            description = (function.__doc__ or "").strip()
            endpoint = Endpoint(method=method, path=path, function=function, description=description, **words)
            check(endpoint)
            self.all.append(endpoint)
            return function

        return declare


def check(endpoint: Endpoint) -> None:
    """A route that does not say who may use it must not start."""
    capability = endpoint.capability
    if capability not in CAPABILITIES and capability not in (PUBLIC, ANYONE):
        raise HoldfastError(
            f"{endpoint.operation} declares the capability {capability!r}, which there is not: the server does not "
            "start; name one of engine/access.py"
        )
