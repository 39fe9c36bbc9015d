"""Keeps the outside world from a workflow's body: what it opens there, it would open again in each replay.

Python announces connections, look-ups of names and new processes to audit hooks. One hook refuses them on a thread on
which a body is being drained; steps, effects and everything else in the process run while none is. A hook cannot be
taken out of a process again, so it is put in by the first worker, not by an import.

What is not announced is not refused: a connection that is open already, a library that connects by C code of its own.
Datagrams pass on purpose: they carry the lines of many loggers.
"""

from __future__ import annotations

import sys
from asyncio.events import _get_running_loop
from typing import Any

import structlog

from holdfast.engine.errors import NotInWorkflow
from holdfast.engine.turnloop import TurnLoop

log = structlog.get_logger("holdfast.workflow")
REFUSED = {
    "socket.connect": "connect to anything",
    "socket.getaddrinfo": "look up a host",
    "socket.gethostbyname": "look up a host",
    "socket.gethostbyaddr": "look up a host",
    "subprocess.Popen": "start a process",
    "os.system": "start a process",
    "os.posix_spawn": "start a process",
}
_watching = False


def watch() -> None:
    global _watching
    if not _watching:
        _watching = True
        sys.addaudithook(_hook)


def _hook(event: str, _: Any) -> None:
    if event in REFUSED and isinstance(_get_running_loop(), TurnLoop):
        log.warning("refused_in_body", what=REFUSED[event])  # the body may catch what follows, and go on without
        raise NotInWorkflow(
            f"a workflow's body cannot {REFUSED[event]}: it would do so again in each replay; do it in a ctx.step(…), "
            "or in a ctx.effect(…) if it must not be repeated"
        )
