"""`play(workflow)` starts one by hand; what is still suspended at the end of a test is unwound."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.support import Play


@pytest.fixture
def play() -> Iterator[Callable[..., Play]]:
    played: list[Play] = []

    def begin(*args: Any, **options: Any) -> Play:
        played.append(Play(*args, **options))
        return played[-1]

    yield begin
    for one in played:
        one.replay.close()
