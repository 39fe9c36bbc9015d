"""Which app and which database a command works on, and how it gets hold of them.

A command that needs no workflows needs no app: it then works on a bare Holdfast. Which database counts is the same for
every command and for the library: --database, then what the app gives `Holdfast(…)` itself, then the settings.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click

from holdfast import Holdfast, StoreUnavailable
from holdfast.cli.output import notice
from holdfast.engine.scope import SCOPE
from holdfast.facade import DEFAULT_URL
from holdfast.settings import OPTIONS, Found, load
from holdfast.store.tended import OwnTask

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


SETTLED = "go to a folder whose holdfast.toml names it (`holdfast init` writes one)"


class Place:
    """Where a command works: an app, a database, or both."""

    def __init__(self, app: str | None, found: Found) -> None:
        self.app = app
        self.found = found

    def load(self) -> tuple[ModuleType, Holdfast]:
        """The app and the module it stands in."""
        if not self.app:
            raise click.UsageError(
                f"this command runs workflows: name the app, --app module:object or HOLDFAST_APP, or {SETTLED}"
            )
        module, hf = find_app(self.app)
        if not hf.url_is_given or self._flagged():
            hf.url = self.found.values.database_url or DEFAULT_URL
        if hf.backlog_limit is None:
            hf.backlog_limit = self.found.values.backlog_limit
        return module, hf

    def _flagged(self) -> bool:
        return self.found.origins["database_url"] == "flag"

    def holdfast(self) -> Holdfast:
        """For commands that need the database only: the app is looked at only to learn whether it names one itself."""
        bare = Holdfast()
        bare.url = self.found.values.database_url or DEFAULT_URL
        if self._flagged() or not self.app:
            return bare
        try:
            return self.load()[1]
        except click.UsageError as error:
            if not self.found.is_set("database_url"):
                raise
            # An operator can look and mend though the app is broken or elsewhere.
            notice(f"{error.message}; working on the database of {self.found.origins['database_url']}")
            return bare

    def ask(self, use: Callable[[Holdfast], Awaitable[T]]) -> T:
        """Open the database, which must be migrated already, and use it once."""

        async def whole() -> T:
            async with opened(self.holdfast(), migrate=False) as hf:
                return await use(hf)

        try:
            return run(whole())
        except StoreUnavailable as error:
            if self.app or self.found.is_set("database_url"):
                raise
            # Mostly the wrong folder: the default database is asked for where nothing names one.
            raise StoreUnavailable(f"{error}; no --database, app or holdfast.toml here names another") from error


def place_options(function: F) -> F:
    """Adds --app and --database; the command receives them as `place`."""

    @click.option("--app", envvar="HOLDFAST_APP", metavar="MODULE:OBJECT", help="The app  [env: HOLDFAST_APP]")
    @click.option(
        "--database", envvar="HOLDFAST_DATABASE_URL", metavar="URL",
        help="sqlite:///file.db or postgresql://…, instead of the app's  [env: HOLDFAST_DATABASE_URL]",
    )  # fmt: skip
    @wraps(function)
    def with_place(*args: Any, app: str | None, database: str | None, **kwargs: Any) -> Any:
        return function(*args, place=Place(app, settled()), **kwargs)

    return with_place  # type: ignore[return-value]


def tenant_option(function: F) -> F:
    return click.option("--tenant", envvar="HOLDFAST_TENANT", default="default", show_default=True)(function)


# -- settings


def settled(context: click.Context | None = None) -> Found:
    """The settings of the command that runs, its own flags first."""
    context = context or click.get_current_context()
    flags = {
        OPTIONS[name]: str(value) if isinstance(value, Path) else value
        for name, value in context.params.items()
        if name in OPTIONS and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    return load(flags)


def defaults(command: click.Command, found: Found) -> dict[str, Any]:
    """What click takes for options that are not given: an option named like a setting has the setting's value."""
    if isinstance(command, click.Group):
        return {name: defaults(inner, found) for name, inner in command.commands.items()}
    named = {option.name: OPTIONS[option.name] for option in command.params if option.name in OPTIONS}
    return {option: getattr(found.values, name) for option, name in named.items() if found.is_set(name)}


@asynccontextmanager
async def opened(hf: Holdfast, *, migrate: bool = False, door: bool = False) -> AsyncIterator[Holdfast]:
    await (hf.open_door() if door else hf.open(migrate=migrate))
    try:
        yield hf
    finally:
        await hf.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where there is one: half the cost per awaited thing. In a task that no handler's code cancels."""
    try:
        import uvloop
    except ImportError:
        new_loop = None
    else:
        new_loop = uvloop.new_event_loop

    async def whole() -> T:
        asyncio.get_running_loop().set_task_factory(None)  # all other tasks are made as ever
        with _ctrl_c_is_nobodys():
            return await work

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.get_loop().set_task_factory(lambda loop, coro, **named: OwnTask(coro, loop=loop, **named))
        return runner.run(whole())


@contextmanager
def _ctrl_c_is_nobodys() -> Iterator[None]:
    """asyncio's answer to Ctrl-C cancels the task of the command, also where it comes while an author's body is being
    replayed: that is not the author's cancel."""
    answer = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and isinstance(answer, partial)):  # not asyncio's for this loop
        yield
        return

    def answered(*of_signal: Any) -> None:
        token = SCOPE.set(None)
        try:
            answer(*of_signal)
        finally:
            SCOPE.reset(token)

    signal.signal(signal.SIGINT, answered)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is answered:  # else the command has one of its own
            signal.signal(signal.SIGINT, answer)


def find_app(spec: str) -> tuple[ModuleType, Holdfast]:
    """`module:object`; `module` alone means its `hf`. The current folder is looked in first."""
    name, _, path = spec.partition(":")
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if os.environ.get("HOLDFAST_DEBUG") == "1":
            raise
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"no module {error.name!r} here or on the path: correct --app {spec}") from error
        raise click.UsageError(
            f"the app {name!r} cannot be imported: {type(error).__name__}: {error} (HOLDFAST_DEBUG=1 shows where)"
        ) from error
    found: Any = module
    for part in (path or "hf").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Holdfast):
        what = "is not there" if found is None else f"is a {type(found).__name__}, not a Holdfast"
        raise click.UsageError(f"{path or 'hf'!r} in {name!r} {what}: --app names the module and its Holdfast object")
    return module, found
