"""Lists: all of one with `async for`, however many pages that takes, or a single page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar

from holdfast.api.models import Listing
from holdfast.client.errors import UnreadableReply

T = TypeVar("T")


class Pages(Generic[T]):
    """A list that is read as it is walked through. Nothing is asked before that."""

    def __init__(self, fetch: Callable[[str | None], Awaitable[Listing[T]]], *, backwards: bool = False) -> None:
        self._fetch = fetch
        self._backwards = backwards

    async def page(self, cursor: str | None = None) -> Listing[T]:
        """One page: the first, or the one that a page's `next_cursor` names."""
        return await self._fetch(cursor)

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        cursor: str | None = None
        while True:
            page = await self._fetch(cursor)
            for item in reversed(page.items) if self._backwards else page.items:
                yield item
            if page.next_cursor is None:
                return
            if page.next_cursor == cursor:
                raise UnreadableReply(f"the page after {cursor!r} is that page again: the list would never end")
            cursor = page.next_cursor
