"""A SQLite file as this process has it open, compared with what is found at its path.

A file that is deleted or replaced while it is open stays open: what is committed goes into a file that nobody will
find. So does what is committed into a write-ahead log that was removed. Without the log's index (`-shm`), which holds
the locks, the next process to open the file would make one of its own, and both would write at once. All are noticed by
the inode.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.engine.errors import StoreUnavailable

LOOK_SECONDS = 1.0
WRITE_LOCK = "120"  # the byte of a file's -shm that a writer locks, as SQLite's documentation of its WAL format says
WHAT_TO_DO = (
    "what is committed now would be lost, so nothing is taken: stop every process that uses it, put the right file "
    "in place, without the -wal and -shm of another one, and start again"
)


class FileGone(StoreUnavailable):
    """The file that this process has open is not the one at its path."""


class FileBusy(StoreUnavailable):
    """Another process does not let go of the write lock."""


class OpenFile:
    def __init__(self, path: str) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None
        self._index: tuple[int, int] | None = None
        self._look_at = 0.0
        self._found: str | None = None

    def opened(self) -> None:
        """Its connections are open: what is there now is what they have open."""
        self._file, self._log = _identity(self.path), _identity(f"{self.path}-wal")
        self._index = _identity(f"{self.path}-shm")

    @property
    def is_gone(self) -> bool:
        """As of the last look."""
        return self._found is not None

    def check(self) -> None:
        """Looks once a second, whoever asks; raises for as long as the file is another one."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at, self._found = now + LOOK_SECONDS, self._difference()
        if self._found is not None:
            raise FileGone(f"{self._found}; {WHAT_TO_DO}")

    def _difference(self) -> str | None:
        if self._file is None:
            return None
        now = _identity(self.path)
        if now != self._file:
            what = "was deleted" if now is None else "was replaced by another file"
            return f"the SQLite file {self.path} {what} while this process had it open"
        if Path(self.path).stat().st_size == 0:  # written with the schema, before anybody else has it open
            return f"the SQLite file {self.path} was emptied while this process had it open"
        log = _identity(f"{self.path}-wal")
        if self._log is None:
            self._log = log  # made with the first transaction
        elif log != self._log:
            return f"the write-ahead log of the SQLite file {self.path} was removed while this process had it open"
        if _identity(f"{self.path}-shm") != self._index:
            return f"the -shm of the SQLite file {self.path} was removed while this process had it open"
        return None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def busy(path: str, seconds: float) -> FileBusy:
    """What to say when another process has not let go of the write lock for so long."""
    pid = _writer(path)
    who = "another process" if pid is None else f"process {pid}"
    return FileBusy(
        f"{who} has held the write lock of the SQLite file {path} for {seconds:.0f} s: a process that is stopped in "
        "the middle of a write (SIGSTOP, a debugger, a frozen container) keeps it; continue that process or end it"
    )


def _writer(path: str) -> int | None:
    """Who holds the write lock; Linux says so. Asking for the lock itself would lose those of this process: a record
    lock goes when any descriptor of its file is closed."""
    try:
        inode = str(Path(f"{path}-shm").stat().st_ino)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if "WRITE" not in words or words[-2] != WRITE_LOCK or words[-3].rpartition(":")[2] != inode:
            continue
        pid = words[words.index("WRITE") + 1]
        return int(pid) if pid.isdigit() and int(pid) != os.getpid() else None
    return None
