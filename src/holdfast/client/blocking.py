"""`BlockingClient`: the same coroutines for callers without a loop (Django, scripts, notebooks). A loop in a thread of
its own, nothing else: every method here is `Client`'s, waited for."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import httpx

from holdfast.api.models import Listing
from holdfast.client.access import Audit, Keys, Principals, Tenant
from holdfast.client.bulk import BulkActions
from holdfast.client.client import RETRIES, TIMEOUT, Client, from_environment
from holdfast.client.definitions import Definitions
from holdfast.client.effects import Effects
from holdfast.client.instances import Instances
from holdfast.client.pages import Pages
from holdfast.client.server import Server
from holdfast.client.tasks import Tasks
from holdfast.client.workers import Workers
from holdfast.engine.errors import HoldfastError

P = ParamSpec("P")
T = TypeVar("T")


class BlockingPages(Generic[T]):
    """A list that is read as it is walked through."""

    def __init__(self, waiting: Waiting, pages: Pages[T]) -> None:
        self._waiting = waiting
        self._pages = pages

    def page(self, cursor: str | None = None) -> Listing[T]:
        """One page: the first, or the one that a page's `next_cursor` names."""
        return self._waiting.run(self._pages.page(cursor))

    def __iter__(self) -> Iterator[T]:
        return self._waiting.walk(self._pages.__aiter__())


class Waiting:
    """A loop in a thread, and callers who wait for what runs on it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-client", daemon=True)
        self._thread.start()
        atexit.register(self._end)  # a generator that is thrown away even later must not wait for a loop that is gone

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or threading.current_thread() is self._thread:
            coroutine.close()
            raise HoldfastError(
                "this client is closed: make another" if self._loop is None else "a callback of the client's own loop "
                "would wait for itself: use Client there"
            )  # fmt: skip
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # whoever is interrupted while waiting does not leave it running
            raise

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """End the loop and its thread, after this."""
        if self._loop is None:
            last.close()
            return
        try:
            self.run(last)
            self.run(self._loop.shutdown_asyncgens())
        finally:
            self._end()

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            atexit.unregister(self._end)
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def call(self, method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        @functools.wraps(method)
        def waited(*args: P.args, **kwargs: P.kwargs) -> T:
            return self.run(method(*args, **kwargs))

        return waited

    def pages(self, method: Callable[P, Pages[T]]) -> Callable[P, BlockingPages[T]]:
        @functools.wraps(method)
        def listed(*args: P.args, **kwargs: P.kwargs) -> BlockingPages[T]:
            return BlockingPages(self, method(*args, **kwargs))

        return listed

    def stream(self, method: Callable[P, AsyncGenerator[T, None]]) -> Callable[P, Generator[T, None, None]]:
        @functools.wraps(method)
        def followed(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
            return self.walk(method(*args, **kwargs))

        return followed

    def walk(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        async def following() -> tuple[T] | None:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return None

        async def close() -> None:
            try:
                await items.aclose()
            except RuntimeError:
                pass  # it is being cancelled at this moment, which ends it as well

        try:
            while (found := self.run(following())) is not None:
                yield found[0]
        finally:
            if self._loop is not None:
                self.run(close())


class BlockingDefinitions:
    def __init__(self, waiting: Waiting, inner: Definitions) -> None:
        self.publish = waiting.call(inner.publish)
        self.list = waiting.pages(inner.list)
        self.read = waiting.call(inner.read)
        self.activate = waiting.call(inner.activate)
        self.deactivate = waiting.call(inner.deactivate)
        self.archive = waiting.call(inner.archive)
        self.lint = waiting.call(inner.lint)
        self.simulate = waiting.call(inner.simulate)
        self.diff = waiting.call(inner.diff)
        self.graph = waiting.call(inner.graph)


class BlockingInstances:
    def __init__(self, waiting: Waiting, inner: Instances) -> None:
        self.start = waiting.call(inner.start)
        self.start_many = waiting.call(inner.start_many)
        self.list = waiting.pages(inner.list)
        self.read = waiting.call(inner.read)
        self.history = waiting.pages(inner.history)
        self.tasks = waiting.pages(inner.tasks)
        self.audit = waiting.pages(inner.audit)
        self.children = waiting.pages(inner.children)
        self.effects = waiting.pages(inner.effects)
        self.why = waiting.call(inner.why)
        self.stream = waiting.stream(inner.stream)
        self.result = waiting.call(inner.result)
        self.send = waiting.call(inner.send)
        self.signal = waiting.call(inner.signal)
        self.cancel = waiting.call(inner.cancel)
        self.pause = waiting.call(inner.pause)
        self.resume = waiting.call(inner.resume)
        self.retry = waiting.call(inner.retry)
        self.fork = waiting.call(inner.fork)
        self.migrate = waiting.call(inner.migrate)


class BlockingTasks:
    def __init__(self, waiting: Waiting, inner: Tasks) -> None:
        self.list = waiting.pages(inner.list)
        self.read = waiting.call(inner.read)
        self.claim = waiting.call(inner.claim)
        self.unclaim = waiting.call(inner.unclaim)
        self.assign = waiting.call(inner.assign)
        self.complete = waiting.call(inner.complete)
        self.fail = waiting.call(inner.fail)
        self.comment = waiting.call(inner.comment)
        self.comments = waiting.pages(inner.comments)


class BlockingEffects:
    def __init__(self, waiting: Waiting, inner: Effects) -> None:
        self.list = waiting.pages(inner.list)
        self.read = waiting.call(inner.read)
        self.resolve = waiting.call(inner.resolve)


class BlockingBulkActions:
    def __init__(self, waiting: Waiting, inner: BulkActions) -> None:
        self.begin = waiting.call(inner.begin)
        self.read = waiting.call(inner.read)
        self.failures = waiting.pages(inner.failures)


class BlockingWorkers:
    def __init__(self, waiting: Waiting, inner: Workers) -> None:
        self.list = waiting.pages(inner.list)
        self.queues = waiting.pages(inner.queues)
        self.dead_letters = waiting.pages(inner.dead_letters)


class BlockingPrincipals:
    def __init__(self, waiting: Waiting, inner: Principals) -> None:
        self.create = waiting.call(inner.create)
        self.list = waiting.pages(inner.list)
        self.read = waiting.call(inner.read)
        self.change = waiting.call(inner.change)


class BlockingKeys:
    def __init__(self, waiting: Waiting, inner: Keys) -> None:
        self.create = waiting.call(inner.create)
        self.list = waiting.pages(inner.list)
        self.read = waiting.call(inner.read)
        self.revoke = waiting.call(inner.revoke)
        self.rotate = waiting.call(inner.rotate)


class BlockingTenant:
    def __init__(self, waiting: Waiting, inner: Tenant) -> None:
        self.read = waiting.call(inner.read)
        self.change = waiting.call(inner.change)


class BlockingAudit:
    def __init__(self, waiting: Waiting, inner: Audit) -> None:
        self.list = waiting.pages(inner.list)


class BlockingServer:
    def __init__(self, waiting: Waiting, inner: Server) -> None:
        self.live = waiting.call(inner.live)
        self.ready = waiting.call(inner.ready)
        self.metrics = waiting.call(inner.metrics)
        self.openapi = waiting.call(inner.openapi)
        self.docs = waiting.call(inner.docs)
        self.login_page = waiting.call(inner.login_page)
        self.log_in = waiting.call(inner.log_in)
        self.log_out = waiting.call(inner.log_out)


class BlockingClient:
    """`Client` for blocking callers: `with BlockingClient(url, key) as client: …`. Also from several threads."""

    def __init__(
        self, url: str, key: str | None = None, *, timeout: float = TIMEOUT, retries: int = RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:  # fmt: skip
        self._client = client = Client(url, key, timeout=timeout, retries=retries, transport=transport)
        self._waiting = waiting = Waiting()
        self.definitions = BlockingDefinitions(waiting, client.definitions)
        self.instances = BlockingInstances(waiting, client.instances)
        self.tasks = BlockingTasks(waiting, client.tasks)
        self.effects = BlockingEffects(waiting, client.effects)
        self.bulk = BlockingBulkActions(waiting, client.bulk)
        self.workers = BlockingWorkers(waiting, client.workers)
        self.principals = BlockingPrincipals(waiting, client.principals)
        self.keys = BlockingKeys(waiting, client.keys)
        self.tenant = BlockingTenant(waiting, client.tenant)
        self.audit = BlockingAudit(waiting, client.audit)
        self.server = BlockingServer(waiting, client.server)
        self.me = waiting.call(client.me)
        self.roles = waiting.pages(client.roles)
        self.ready = waiting.call(client.ready)
        self.stream = waiting.stream(client.stream)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, *, timeout: float = TIMEOUT, retries: int = RETRIES
    ) -> BlockingClient:
        """By HOLDFAST_URL, and HOLDFAST_KEY or HOLDFAST_KEY_FILE."""
        url, key = from_environment(os.environ if environ is None else environ)
        return cls(url, key, timeout=timeout, retries=retries)

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._client)[1:]}"

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give its connections back, and end its thread."""
        self._waiting.stop(self._client.close())
