"""The stack of an error: the author's frames, where a library call left his code, and no more of it than fits."""

import asyncio
import importlib
import json
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from holdfast.engine import stacks
from holdfast.engine.errors import StepFailed
from holdfast.engine.stacks import (
    CAUSES_MAX,
    ERROR_BYTES,
    FRAMES_MAX,
    TEXT_MAX,
    error_payload,
    place_of,
    recorded_text,
    shown_path,
    summary,
    traceback_text,
)

SHOP = """
import asyncio
import json


def amount(row):
    return row["amuont"]


def total(rows):
    return sum(map(amount, rows))


def read(text):
    return json.loads(text)


def each(function, rows):
    return sorted(rows, key=function)


class Till:
    def close(self):
        try:
            amount({})
        except KeyError as error:
            raise ValueError("the till does not close") from error

    def count(self):
        try:
            amount({})
        except KeyError:
            raise ValueError("the till does not count")


def deep(number):
    return amount({}) if number == 0 else deeper(number)


def deeper(number):
    return deep(number - 1)


async def both():
    async with asyncio.TaskGroup() as group:
        group.create_task(soon())
        group.create_task(late())


async def soon():
    return amount({})


async def late():
    raise OSError("away")


async def slow():
    async with asyncio.timeout(0.001):
        await waits()


async def waits():
    await asyncio.sleep(10)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An author's module in a folder of its own, as `sys.path` finds it."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "prices.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("store.prices")
    for name in ("store", "store.prices"):
        del sys.modules[name]


def caught(function: Callable[..., Any], *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next  # without this function's own frame
        return error
    raise AssertionError("nothing was raised")


def places(stack: list[dict[str, Any]]) -> list[str]:
    return [f"{frame['file']} {frame['function']}" for frame in stack]


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SHOP.splitlines(), 1) if text in line)


def test_an_error_is_kept_with_the_authors_frames_and_no_locals(shop: ModuleType) -> None:
    kept = error_payload(caught(shop.total, [{"amount": 1, "password": "hunter2"}]))
    assert kept == {
        "type": "KeyError",
        "message": "'amuont'",
        "stack": [
            {"file": "store/prices.py", "line": line_of("map(amount"), "function": "total"},
            {"file": "store/prices.py", "line": line_of('row["amuont"]'), "function": "amount"},
        ],
    }
    assert summary(kept) == "KeyError: 'amuont'"
    assert place_of(kept) == f"store/prices.py:{line_of('amuont')} in amount"


def test_an_error_without_a_traceback_is_its_type_and_its_words() -> None:
    assert error_payload(ValueError("no\x00pe \ud800")) == {"type": "ValueError", "message": "no\ufffdpe ?"}
    assert place_of(error_payload(ValueError("nope"))) == "" == recorded_text(error_payload(ValueError("nope")))


def test_of_a_library_the_first_frame_and_the_last_are_kept(shop: ModuleType) -> None:
    kept = error_payload(caught(shop.read, "{"))
    assert [frame["file"] for frame in kept["stack"]] == ["store/prices.py", "json/__init__.py", "json/decoder.py"]
    assert [frame.get("library", False) for frame in kept["stack"]] == [False, True, True]
    assert kept["stack"][-1]["left_out"] == 1
    assert place_of(kept).endswith("in read")


def test_what_a_library_calls_of_the_authors_is_kept(shop: ModuleType) -> None:
    encode = json.JSONEncoder(default=shop.amount).encode
    kept = error_payload(caught(lambda: encode({"a": object()})))
    mine = [frame for frame in kept["stack"] if not frame.get("library")]
    assert [frame["function"].rpartition(".")[2] for frame in mine] == ["<lambda>", "amount"]
    assert mine[-1]["left_out"] > 0 and kept["stack"][1]["library"]


def test_what_calls_the_authors_function_is_left_out() -> None:
    async def run() -> None:
        await asyncio.to_thread(json.loads, "{")

    error = caught(asyncio.run, run())
    assert error_payload(error)["stack"][0]["function"].endswith("run")
    assert stacks.without_machinery(error).__traceback__ is not None
    assert error.__traceback__ is not None and error.__traceback__.tb_frame.f_code is run.__code__


def test_causes_and_contexts_are_kept_and_say_which_they_are(shop: ModuleType) -> None:
    [cause] = error_payload(caught(shop.Till().close))["causes"]
    assert (cause["how"], cause["type"], cause["message"]) == ("cause", "KeyError", "'amuont'")
    assert places(cause["stack"]) == ["store/prices.py Till.close", "store/prices.py amount"]
    [context] = error_payload(caught(shop.Till().count))["causes"]
    assert (context["how"], context["type"]) == ("context", "KeyError")


def test_a_context_that_was_put_aside_is_not_kept() -> None:
    def hides() -> None:
        try:
            raise KeyError("secret")
        except KeyError:
            raise ValueError("plain") from None

    assert "causes" not in error_payload(caught(hides))


def test_the_members_of_a_group_are_kept_with_their_frames(shop: ModuleType) -> None:
    kept = error_payload(caught(asyncio.run, shop.both()))
    assert kept["type"] == "ExceptionGroup"
    assert sorted((one["how"], one["type"]) for one in kept["causes"][:2]) == [
        ("member", "KeyError"),
        ("member", "OSError"),
    ]
    assert {frame["function"] for one in kept["causes"] for frame in one["stack"]} >= {"amount", "late"}


def test_a_time_out_shows_where_the_author_waited(shop: ModuleType) -> None:
    kept = error_payload(caught(asyncio.run, shop.slow()))
    assert kept["type"] == "TimeoutError"
    assert kept["causes"][0]["type"] == "CancelledError"
    assert [f["function"] for f in kept["causes"][0]["stack"] if not f.get("library")] == ["slow", "waits"]


# -- bounded


def test_a_thousand_frames_become_the_first_and_the_last(shop: ModuleType) -> None:
    kept = error_payload(caught(shop.deep, 400))
    assert len(kept["stack"]) == FRAMES_MAX
    assert kept["stack"][0]["function"] == "deep" and kept["stack"][-1]["function"] == "amount"
    assert sum(frame.get("left_out", 0) for frame in kept["stack"]) == 400 * 2 + 2 - FRAMES_MAX
    text = traceback_text(caught(shop.deep, 400), linecache.getline)
    assert len(text) <= TEXT_MAX + 10 and "more" in text and text.endswith("KeyError: 'amuont'")


def test_a_recursion_without_end_is_bounded(shop: ModuleType) -> None:
    error = caught(shop.deep, 10**9)
    assert isinstance(error, RecursionError)
    assert len(error_payload(error)["stack"]) == FRAMES_MAX
    assert len(traceback_text(error)) <= TEXT_MAX + 10


def test_a_chain_without_end_is_bounded_and_a_ring_ends() -> None:
    error: BaseException = ValueError("0")
    for number in range(1, 5000):
        after = ValueError(str(number))
        after.__cause__ = error
        error = after
    assert [cause["message"] for cause in error_payload(error)["causes"]] == [
        "4998",
        "4997",
        "4996",
        "4995",
        "4994",
        "4993",
    ]
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert [cause["message"] for cause in error_payload(one)["causes"]] == ["other"]
    many = ExceptionGroup("many", [ValueError("\x01" * 10_000) for _ in range(10_000)])
    assert len(error_payload(many)["causes"]) <= CAUSES_MAX


def test_whatever_an_exception_says_the_record_has_a_size() -> None:
    long = "\x01" * 100_000
    kind = type(long, (Exception,), {})
    function: Any = eval(f"lambda error: {'x' * 5}(error)", {"xxxxx": _raise})
    error = caught(function, kind(long))
    error.__cause__ = caught(function, kind(long))
    group = BaseExceptionGroup(long, [caught(function, kind(long)) for _ in range(50)])
    for one in (error, group):
        raw = msgspec.json.encode(error_payload(one))
        assert len(raw) <= ERROR_BYTES
        assert len(traceback_text(one)) <= TEXT_MAX + 10


def _raise(error: BaseException) -> None:
    raise error


class Mute(Exception):
    """Cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


class Liar(ExceptionGroup):
    """Answers with what no group holds."""

    @property
    def exceptions(self) -> Any:
        raise RuntimeError("ask somebody else")


class NoNames(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("ask somebody else")


class Nameless(Exception, metaclass=NoNames):
    pass


def test_the_words_of_an_error_that_led_to_another_are_kept_without_secrets() -> None:
    def connect() -> None:
        try:
            raise ConnectionError("no answer from postgresql://ann:hunter2@db" + "x" * 1000 + " password=hunter2")
        except ConnectionError as error:
            raise RuntimeError("the shop is closed") from error

    failed = caught(connect)
    [cause] = error_payload(failed)["causes"]
    assert cause["message"].startswith("no answer from postgresql://ann:***@db") and len(cause["message"]) == 500
    # A password that stands where the text is cut is hidden before that.
    cut = RuntimeError("closed")
    cut.__cause__ = ConnectionError("x" * 450 + " postgresql://ann:hunter2" + "2" * 100 + "@db")
    assert "hunter2" not in error_payload(cut)["causes"][0]["message"]
    assert "hunter2" not in traceback_text(failed) + traceback_text(cut)


def test_an_exception_that_cannot_be_read_is_kept_all_the_same() -> None:
    mute = caught(_raise, Mute())
    assert error_payload(mute)["message"] == "(its text cannot be read)"
    assert traceback_text(mute).endswith("Mute: (its text cannot be read)")
    nameless = caught(_raise, Nameless("x"))
    assert (error_payload(nameless)["type"], error_payload(nameless)["message"]) == ("Error", "x")
    liar = caught(_raise, Liar("group", [ValueError("x")]))
    assert error_payload(liar)["type"] == "Liar" and "Liar" in traceback_text(liar)


@pytest.mark.parametrize(
    "words", [None, "text", 7, {"type": 5}, {"stack": "at line 5"}, {"message": "m", "causes": {}}]
)
def test_an_error_that_is_no_record_of_ours_has_no_stack(words: Any) -> None:
    assert place_of(words) == "" == recorded_text(words)
    summary(words)


# -- files


def test_a_file_is_named_as_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = "/home/ann/projects"
    monkeypatch.setattr(sys, "path", ["/", f"{home}/shop", f"{home}/shop/src/", "/opt/app.zip"])
    assert shown_path(f"{home}/shop/src/orders/pay.py") == "orders/pay.py"
    assert shown_path(f"{home}/shop/tests/test_pay.py") == "tests/test_pay.py"
    assert shown_path(f"{home}/elsewhere/deep/tool.py") == "deep/tool.py"
    assert shown_path(f"{home}/shop/.venv/lib/python3.11/site-packages/httpx/_client.py") == "httpx/_client.py"
    assert shown_path("./app.py") == "app.py" and shown_path("<string>") == "<string>"
    assert shown_path(json.__file__) == "json/__init__.py"
    assert shown_path(stacks.__file__) == "holdfast/engine/stacks.py"
    monkeypatch.setattr(sys, "path", [""])
    monkeypatch.chdir(tmp_path)
    assert shown_path(str(tmp_path / "jobs" / "night.py")) == "jobs/night.py"


# -- as text


def test_a_log_line_reads_as_python_prints_it(shop: ModuleType) -> None:
    text = traceback_text(caught(shop.Till().close), linecache.getline)
    at = line_of
    assert (
        text
        == f"""Traceback (most recent call last):
  File "store/prices.py", line {at("def close") + 2}, in Till.close
    amount({{}})
  File "store/prices.py", line {at('row["amuont"]')}, in amount
    return row["amuont"]
KeyError: 'amuont'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "store/prices.py", line {at("does not close")}, in Till.close
    raise ValueError("the till does not close") from error
ValueError: the till does not close"""
    )


def test_what_is_on_record_reads_the_same_without_the_source(shop: ModuleType) -> None:
    error = caught(shop.Till().close)
    kept = json.loads(msgspec.json.encode(error_payload(error)))
    assert recorded_text(kept) == traceback_text(error)


def test_the_failure_of_a_step_leads_to_what_it_died_of(shop: ModuleType) -> None:
    failed = StepFailed("price", "KeyError", "'amuont'", 3)
    failed.recorded = error_payload(caught(shop.total, [{}]))
    kept = error_payload(caught(_raise, failed))
    assert (kept["type"], kept["causes"][0]["how"], kept["causes"][0]["type"]) == ("StepFailed", "step", "KeyError")
    assert place_of(kept).endswith("in amount")
    assert summary(kept) == "step 'price' failed after 3 attempt(s): KeyError: 'amuont'"
