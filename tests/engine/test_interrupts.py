"""What an author's code raised is told from what came upon it."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.engine.interrupts import is_interrupt


def exits() -> None:
    sys.exit(3)


def raises_exit() -> None:
    raise SystemExit


def raises_interrupt() -> None:
    raise KeyboardInterrupt


def raises_interrupt_while_another_is_handled() -> None:
    try:
        raise ValueError
    except ValueError:
        raise KeyboardInterrupt from None


def raises_generator_exit() -> None:
    raise GeneratorExit


def raises_system_error() -> None:
    raise BaseException("of a kind of its own")


@pytest.mark.parametrize(
    "function",
    [exits, raises_exit, raises_interrupt, raises_interrupt_while_another_is_handled, raises_generator_exit,
     raises_system_error],
)  # fmt: skip
def test_what_an_authors_code_raises_is_its_own(function: Callable[[], None]) -> None:
    assert not is_interrupt(raised_by(function))


def throws_interrupt() -> None:
    def waits() -> Iterator[None]:
        yield

    waiting = waits()
    next(waiting)
    waiting.throw(KeyboardInterrupt())  # type: ignore[attr-defined]


def test_an_interrupt_that_is_handed_on_is_its_own_where_a_key_would_be_known() -> None:
    def pressed(*_: Any) -> None:
        raise KeyboardInterrupt

    with handled_by(signal.SIGINT, pressed):
        assert not is_interrupt(raised_by(throws_interrupt))
        assert is_interrupt(raised_by(lambda: signal.raise_signal(signal.SIGINT)))


def pressed() -> None:
    signal.raise_signal(signal.SIGINT)


def pressed_while_it_computes() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10_000_000):
        pass


@pytest.mark.parametrize("function", [pressed, pressed_while_it_computes])
def test_a_key_that_is_pressed_is_not(function: Callable[[], None]) -> None:
    with handled_by(signal.SIGINT, signal.default_int_handler):
        assert is_interrupt(raised_by(function))


def test_a_signal_handler_that_exits_is_not() -> None:
    def stop(*_: Any) -> None:
        sys.exit(0)

    def stopped() -> None:
        signal.raise_signal(signal.SIGTERM)

    with handled_by(signal.SIGTERM, stop):
        assert is_interrupt(raised_by(stopped))


def test_a_coroutine_that_is_closed_while_it_waits_is_not() -> None:
    seen: list[BaseException] = []

    class Never:
        def __await__(self) -> Iterator[None]:
            yield

    async def waits() -> None:
        try:
            await Never()
        except BaseException as error:
            seen.append(error)
            raise

    coroutine = waits()
    coroutine.send(None)
    coroutine.close()
    assert is_interrupt(seen[0])


def raised_by(function: Callable[[], None]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


@contextmanager
def handled_by(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
