"""What a process inherits by `fork`, and must leave alone.

SQLite counts the locks of a process in memory that a child inherits, while the locks themselves stay with the parent. A
child that opens a file its parent had open at the fork believes that it holds them and takes none: the parent's last
close then removes the write-ahead log, and with it what the child has committed. So that file is refused in the child.

A socket or a lock file that stays open in a child outlives the parent, and so would the parent's session or its
worker's lock: the child closes them. Objects that own such things are never freed in the child, because freeing them
would write to the parent's sockets, change the parent's selector, or close the parent's database.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import apsw

from holdfast.engine.errors import HoldfastError, StoreUnavailable

AGAIN = "this was made before the process was forked: take it anew from the Holdfast of this process, hf.instance(id)"

_databases: WeakKeyDictionary[apsw.Connection, tuple[int, int]] = WeakKeyDictionary()
_refused: set[tuple[int, int]] = set()  # device and inode of files that an ancestor had open
_lock_files: set[int] = set()
_sessions: WeakSet[Any] = WeakSet()  # asyncpg connections
_children: list[Callable[[], None]] = []


class LeftBehind:
    """What a store that was open at the fork becomes in the child: every use of it is refused."""

    def __getattr__(self, name: str) -> Any:
        raise HoldfastError(AGAIN)


def leave_behind(store: Any) -> None:
    """Refuse a store in this child, and free nothing of it."""
    keep_for_ever(store.__dict__.copy())
    store.__dict__.clear()
    store.__class__ = LeftBehind


def keep_for_ever(*things: Any) -> None:
    """Also at the end of the interpreter, which frees whatever modules still hold."""
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def in_child(function: Callable[[], None]) -> None:
    """Call this in every forked child, before anything else runs there."""
    _children.append(function)


# -- what is open


def database(connection: apsw.Connection, path: str) -> None:
    file = _identity(path)
    if file is not None:
        _databases[connection] = file


def check_database(path: str) -> None:
    if _refused and _identity(path) in _refused:
        raise StoreUnavailable(
            f"the SQLite file {path} was open when this process was forked, and SQLite would lose commits here: first "
            "use Holdfast after the fork, or call hf.sync.close() before it; on PostgreSQL it opens anew by itself"
        )


def lock_file(descriptor: int) -> None:
    _lock_files.add(descriptor)


def no_lock_file(descriptor: int) -> None:
    _lock_files.discard(descriptor)


def session(connection: Any) -> None:
    _sessions.add(connection)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# -- in the child


def _is_open(connection: apsw.Connection) -> bool:
    try:
        connection.in_transaction  # noqa: B018
    except apsw.ConnectionClosedError:
        return False
    except apsw.Error:  # another thread of the parent was using it
        return True
    return True


def _socket(connection: Any) -> int | None:
    transport = getattr(connection, "_transport", None)
    if transport is None or transport.is_closing():
        return None  # the number may belong to another file by now
    found = transport.get_extra_info("socket")
    return None if found is None else int(found.fileno())


def _forked() -> None:
    for connection, file in list(_databases.items()):
        if _is_open(connection):
            _refused.add(file)
            keep_for_ever(connection)
    _databases.clear()
    descriptors = [*_lock_files, *(_socket(one) for one in list(_sessions))]
    if descriptors:
        # The number stays taken: whatever still owns it closes no stranger's file.
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in descriptors:
            if descriptor is not None and descriptor >= 0:
                os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
    keep_for_ever(*_sessions)
    _lock_files.clear()
    _sessions.clear()
    for function in _children:
        function()


os.register_at_fork(after_in_child=_forked)
