"""Tells what an author's code raised from what came upon it: a signal, or the end of the interpreter's patience.

`sys.exit()`, `raise KeyboardInterrupt` and the like in an author's code are failures of that code. A real Ctrl-C, a
handler of SIGTERM that exits, and a coroutine that is closed while it waits are not, and must not be taken for one.
"""

from __future__ import annotations

import dis
import signal
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any

MAYBE = (KeyboardInterrupt, SystemExit, GeneratorExit)
RAISE = dis.opmap["RAISE_VARARGS"]
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))


def is_interrupt(error: BaseException) -> bool:
    """Whether the author's code did not raise it itself. Whoever catches an author's errors lets these pass."""
    if not isinstance(error, MAYBE):
        return False
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    if not places:
        return False
    handlers = set(_signal_handlers())
    if any(code in handlers for code, _ in places):
        return True
    if isinstance(error, SystemExit):
        return False
    # Python's own handler of Ctrl-C raises wherever the code stands, and so does whoever closes a coroutine. The author
    # raises by a `raise`, or by a future or a generator that is given the error; with another handler of Ctrl-C in
    # place, whose frame would be among these, that is told apart.
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    code, at = places[-1]
    return code.co_code[at] != RAISE


def _signal_handlers() -> Iterator[CodeType]:
    for number in SIGNALS:
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):  # asyncio's own for Ctrl-C is one
            handler = handler.func
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if isinstance(code, CodeType):
            yield code
