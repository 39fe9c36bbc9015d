"""A private event loop for one workflow: it runs until nothing is ready, and can do nothing else.

An author's `async def` runs here, never on the real loop. Draining it is a pure computation, so the order in
which results are released decides everything, live and in replay alike. Whatever would bring in time or the
outside world (`asyncio.sleep`, sockets, threads) is refused with the name of the `ctx` call to use instead.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context as Variables
from threading import get_ident
from types import AsyncGeneratorType
from typing import Any, cast

from holdfast.engine.errors import NotInWorkflow
from holdfast.engine.interrupts import is_interrupt

DRAIN_LIMIT = 100_000
GENERATORS_KEPT = 64  # async generators that are kept before those at their end are looked for


# From Python 3.14 on a thread has one current task, whichever loop it belongs to: the real loop's task steps aside
# while a workflow is drained. Before, each loop had its own.
if sys.version_info >= (3, 14):
    from asyncio.tasks import _swap_current_task

    def _step_aside(outer: asyncio.AbstractEventLoop | None) -> asyncio.Task[Any] | None:
        return _swap_current_task(outer, None) if outer is not None else None

else:

    def _swap_current_task(loop: Any, task: Any) -> Any: ...

    def _step_aside(outer: asyncio.AbstractEventLoop | None) -> asyncio.Task[Any] | None:
        return None


class _Handle:
    """Stands for asyncio.Handle where nobody looks; a workflow's callbacks are never cancelled one by one."""

    def cancel(self) -> None: ...

    def cancelled(self) -> bool:
        return False


_HANDLE = _Handle()
_UNKNOWN = object()


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotInWorkflow(
        "a workflow cannot touch the outside world (sockets, processes, signals): "
        "do the work in a ctx.step(…), or in a ctx.effect(…) if it must not be repeated"
    )


_no_world: Any = _refuse


async def _closed(generator: AsyncGeneratorType[Any, Any]) -> None:
    await generator.aclose()


async def _awaited(future: asyncio.Future[Any]) -> Any:
    return await future


class TurnFuture(asyncio.Future[Any]):
    """Hashed by the order in which the body first put them into sets, not by an address: `asyncio.wait`, `TaskGroup`
    and authors iterate over sets of futures, and must do so in the same order live and in replay."""

    __slots__ = ("number",)

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            self.number: int = cast("TurnLoop", self.get_loop()).next_number()
            return self.number


# In Python's messages ("… object is not subscriptable") it has the name that authors know.
TurnFuture.__name__ = "_asyncio.Future"


class _TaskOfAll(asyncio.Task[Any]):
    """What a task is while asyncio puts it into its set of all tasks of all loops: hashed by its address. Numbers begin
    anew with each workflow, and a set of thousands whose hashes are the same is walked from end to end."""

    __slots__ = ("number",)
    number: int


class TurnTask(asyncio.Task[Any]):
    """Hashed as a `TurnFuture`; numbered when it is made."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class _FirstIteration:
    """What Python calls with each async generator that begins, on a thread on which workflows are drained."""

    def __init__(self, outer: Any) -> None:
        self._outer = outer

    def __call__(self, generator: AsyncGenerator[Any, Any]) -> None:
        loop = _get_running_loop()
        if isinstance(loop, TurnLoop) and isinstance(generator, AsyncGeneratorType):
            loop.hold(generator)
        elif self._outer is not None:
            self._outer(generator)


def hold_generators() -> None:
    """On this thread, see to it that the async generators of bodies are closed when their body ends. Whichever loop
    runs around us would close them at a moment of its own."""
    first = sys.get_asyncgen_hooks().firstiter
    if not isinstance(first, _FirstIteration):
        sys.set_asyncgen_hooks(firstiter=_FirstIteration(first))


class TurnLoop(asyncio.AbstractEventLoop):
    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., Any], tuple[Any, ...], Variables | None]] = deque()
        self.children: list[asyncio.Task[Any]] = []
        self._main: asyncio.Task[Any] | None = None
        self._outer: Any = _UNKNOWN  # the loop around us
        # The thread on which this loop is being drained, 0: none. A call on `ctx` asks by it whether it comes from the
        # body: Python 3.11 answers "which loop runs?" with a system call.
        self.drained_by = 0
        self.generators: list[AsyncGeneratorType[Any, Any]] = []  # begun and perhaps not at their end
        self.closing: list[asyncio.Task[Any]] = []  # what closes them
        self._generators_max = GENERATORS_KEPT
        self._number = 0

    # -- what tasks and futures need

    def call_soon(self, callback: Any, *args: Any, context: Variables | None = None) -> Any:  # type: ignore[override]
        self._ready.append((callback, args, context))
        return _HANDLE

    def create_future(self) -> asyncio.Future[Any]:
        return TurnFuture(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if isinstance(coro, asyncio.Future):  # an answer of `ctx`: asyncio.create_task(ctx.step(…))
            coro = _awaited(coro)
        task = _TaskOfAll(coro, loop=self, **options)
        task.number = self.next_number()
        task.__class__ = TurnTask  # type: ignore[assignment]
        if self._main is None:
            self._main = task
        else:
            self.children.append(task)
        return task

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def hold(self, generator: AsyncGeneratorType[Any, Any]) -> None:
        if len(self.generators) >= self._generators_max:
            self.generators = [one for one in self.generators if one.ag_frame is not None]
            self._generators_max = 2 * len(self.generators) + GENERATORS_KEPT
        self.generators.append(generator)

    def close_generators(self) -> None:
        """The body is at its end: close what it left in the middle, the youngest first. Those still in use are not."""
        generators, self.generators = self.generators, []
        left = [one for one in generators if one.ag_frame is not None and not one.ag_running and one.ag_await is None]
        for generator in reversed(left):
            self.closing.append(self.create_task(_closed(generator)))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Unretrieved exceptions of a workflow's own tasks: the workflow's outcome tells what matters."""

    # -- what a workflow must not do

    def time(self) -> float:
        raise NotInWorkflow(
            "a workflow has no clock and no timers of its own (asyncio.sleep, wait_for, timeout): "
            "use ctx.now(), ctx.sleep(…) or the timeout= of the ctx call"
        )

    def call_later(self, delay: Any, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.time()

    def call_at(self, when: Any, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.time()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise NotInWorkflow("a workflow cannot use threads: do the work in a ctx.step(…)")

    getaddrinfo = getnameinfo = create_connection = create_server = create_datagram_endpoint = _no_world
    create_unix_connection = create_unix_server = connect_accepted_socket = start_tls = sendfile = _no_world
    connect_read_pipe = connect_write_pipe = subprocess_exec = subprocess_shell = add_signal_handler = _no_world
    sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = sock_sendall = sock_sendto = _no_world
    sock_connect = sock_accept = sock_sendfile = add_reader = add_writer = call_soon_threadsafe = _no_world

    # -- running

    def drain(self) -> None:
        """Run everything that is ready, and what that makes ready, until nothing is."""
        ready = self._ready
        if not ready:
            return
        outer = self._outer
        if outer is _UNKNOWN:  # asked once: asking costs a system call
            outer = self._outer = _get_running_loop()
        task = _step_aside(outer)
        _set_running_loop(self)
        self.drained_by = get_ident()
        hops = 0
        callback: Any = None
        try:
            while ready:
                callback, args, context = ready.popleft()
                try:
                    if context is None:
                        callback(*args)
                    else:
                        context.run(callback, *args)
                except (KeyboardInterrupt, SystemExit) as error:
                    if not self._has_failed_by(error):
                        raise
                hops += 1
                if hops > DRAIN_LIMIT:
                    raise NotInWorkflow(
                        f"the workflow made {DRAIN_LIMIT:,} hops without asking for anything: it seems to loop for ever"
                    )
        finally:
            callback = None  # the body's task, whose exception holds this frame
            self.drained_by = 0
            _set_running_loop(outer)
            if task is not None:
                _swap_current_task(outer, task)

    def _has_failed_by(self, error: BaseException) -> bool:
        """Whether a task of the body raised this and holds it now. asyncio raises these two out of the loop as well,
        which here would end whoever drains it."""
        if is_interrupt(error):
            return False
        tasks = self.children if self._main is None else [self._main, *self.children]
        return any(task.done() and not task.cancelled() and task._exception is error for task in tasks)

    def dispose(self) -> None:
        """Unwind what is still suspended. The context is closed first, so unwinding code writes nothing."""
        tasks = self.children
        if self._main is not None:
            tasks.append(self._main)
        if not all(task.done() for task in tasks):
            outer = _get_running_loop()
            _set_running_loop(self)
            try:
                for task in tasks:  # and those that are made by unwinding others
                    if task.done():
                        continue
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    coroutine = task.get_coro()
                    if isinstance(coroutine, Coroutine):
                        try:
                            coroutine.close()
                        except BaseException:
                            pass
            finally:
                _set_running_loop(outer)
        if self.generators:
            self._unwind_generators()
        self._ready.clear()
        self.children = []
        self._main = None

    def _unwind_generators(self) -> None:
        generators, self.generators = self.generators, []
        outer = _get_running_loop()
        _set_running_loop(self)
        try:
            for generator in reversed(generators):
                closing = generator.aclose()
                try:
                    closing.send(None)
                    closing.close()
                except BaseException:
                    pass
        finally:
            _set_running_loop(outer)
