"""What an author's function wants and gives is read from its signature, once and without holding on to it."""

from functools import partial, wraps
from typing import Any

import pytest

from holdfast.engine.errors import BadDefinition
from holdfast.engine.signatures import StepInfo, signature_of


def plain(order: dict[str, Any], amount: int) -> str: ...  # type: ignore[empty-body]
async def with_info(order: int, info: StepInfo) -> None: ...
def only_info(info: "StepInfo") -> None: ...
def by_name(order: int, *, info: StepInfo) -> None: ...
def many(*orders: int) -> None: ...


class Service:
    async def __call__(self, order: int) -> str: ...  # type: ignore[empty-body]
    def method(self, order: int, info: StepInfo) -> str: ...  # type: ignore[empty-body]


def test_a_plain_function_takes_its_arguments_and_no_info() -> None:
    found = signature_of(plain)
    assert (found.is_async, found.info, found.positional, found.first_type, found.returns) == (
        False, None, 2, dict[str, Any], str,
    )  # fmt: skip


def test_info_is_found_by_its_annotation_wherever_it_stands() -> None:
    assert (signature_of(with_info).info, signature_of(with_info).info_at) == ("info", 1)
    assert (signature_of(only_info).only_info, signature_of(only_info).positional) == (True, 0)
    assert (signature_of(by_name).info, signature_of(by_name).info_at) == ("info", None)
    assert signature_of(many).positional == -1


def test_async_is_seen_through_partials_methods_and_callable_objects() -> None:
    assert signature_of(with_info).is_async
    assert signature_of(partial(with_info, 5)).is_async
    assert signature_of(Service()).is_async
    assert not signature_of(Service().method).is_async
    assert signature_of(Service().method).info_at == 1
    assert signature_of(partial(plain, {})).returns is str


def test_functions_that_share_their_code_are_told_apart_by_what_they_say() -> None:
    def made(returns: Any) -> Any:
        def handler(order: int) -> Any: ...

        handler.__annotations__["return"] = returns
        return handler

    assert signature_of(made(int)).returns is int
    assert signature_of(made(str)).returns is str

    def logged(function: Any) -> Any:
        @wraps(function)
        def wrapper(*args: Any) -> Any: ...

        return wrapper

    assert (signature_of(logged(plain)).positional, signature_of(logged(only_info)).only_info) == (2, True)


@pytest.mark.parametrize("function", [None, 5, "pay"])
def test_what_is_not_a_function_is_refused(function: Any) -> None:
    with pytest.raises(BadDefinition, match="expected a function"):
        signature_of(function)
