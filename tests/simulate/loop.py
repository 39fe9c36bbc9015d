"""An event loop under a virtual clock that holds several simulated processes, each of which may be frozen or killed.

A callback belongs to the process in whose context it was scheduled. Callbacks of one process run in their order, as
asyncio promises; which process goes next is drawn. So every `await` is a place where another process may come between,
where a process may be frozen for a while, and where it may die without any clean-up.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

STEPS_MAX = 600_000


class Process:
    """A simulated process: what it scheduled runs while it lives and is not frozen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.frozen = False
        self.dead = False
        self.fuse = 0  # callbacks until it is killed; 0: it is not
        self.exited: BaseException | None = None  # what came out of a callback that ends a real process
        self.on_death: list[Callable[[], None]] = []
        self.tasks: list[asyncio.Task[Any]] = []  # held, so that no `finally` of a dead process ever runs

    def runs(self) -> bool:
        return not self.dead and not self.frozen

    def kill(self) -> None:
        if self.dead:
            return
        self.dead = True
        self.ready.clear()
        for told in self.on_death:
            told()


WORLD = Process("world")  # the provider, the people and the simulation itself: never frozen, never killed
PROCESS: ContextVar[Process] = ContextVar("simulated process", default=WORLD)


def here() -> Process:
    return PROCESS.get()


def context_of(process: Process) -> Context:
    context = copy_context()
    context.run(PROCESS.set, process)
    return context


class Stalled(Exception):
    """Nothing is scheduled any more, or the simulation runs on without an end."""


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._number = 0
        self.steps = 0
        self.jumps = 0
        self._timed: list[tuple[float, int, asyncio.TimerHandle, Process]] = []
        self._processes: list[Process] = [WORLD]
        WORLD.ready.clear()
        WORLD.tasks.clear()
        self.set_task_factory(_make_task)

    def process(self, name: str) -> Process:
        made = Process(name)
        self._processes.append(made)
        return made

    def bury(self, process: Process) -> None:
        if process in self._processes:
            self._processes.remove(process)

    # -- what asyncio schedules

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(PROCESS, WORLD)
        if not process.dead:
            process.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timed, (when, self._number, handle, context.get(PROCESS, WORLD)))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """A thread's work is done at once, where it stands; a pool of the simulation says when it begins and ends."""
        if executor is not None:
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        future = self.create_future()
        self.call_soon(_do, future, func, args)
        return future

    def _write_to_self(self) -> None: ...

    def _process_events(self, event_list: Any) -> None: ...

    # -- running

    def _run_once(self) -> None:
        timed = self._timed
        while timed and timed[0][0] <= self._now:
            _, _, handle, process = heapq.heappop(timed)
            if not handle.cancelled() and not process.dead:
                process.ready.append(handle)
        able = [process for process in self._processes if process.ready and process.runs()]
        if not able:
            self._jump()
            return
        process = able[0] if len(able) == 1 else able[int(self._rng.random() * len(able))]
        for _ in range(1 + int(self._rng.random() * 4)):
            if not process.ready or not process.runs():
                break
            handle = process.ready.popleft()
            if handle.cancelled():
                continue
            self.steps += 1
            if process.fuse:
                process.fuse -= 1
                if not process.fuse:
                    process.kill()
                    break
            try:
                handle._run()  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt) as error:
                if process is WORLD:
                    raise
                process.exited = error
                process.kill()
        if self.steps > STEPS_MAX:
            raise Stalled(f"{STEPS_MAX:,} callbacks, and no end")

    def _jump(self) -> None:
        """Nothing can run at this moment: go to the next one at which something can."""
        timed = self._timed
        while timed and (timed[0][2].cancelled() or timed[0][3].dead):
            heapq.heappop(timed)
        if not timed:
            raise Stalled("nothing is scheduled any more")
        self.jumps += 1
        self._now = max(self._now, timed[0][0])


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    process = (options.get("context") or copy_context()).get(PROCESS, WORLD)
    if process is not WORLD:
        process.tasks.append(task)
    return task


def _do(future: asyncio.Future[Any], func: Any, args: Any) -> None:
    try:
        answer = func(*args)
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(answer)
