"""`play(workflow)` starts one by hand; what is still suspended at the end of a test is unwound."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.engine.support import Play

# A busy machine is no failure, and a property leaves nothing behind in the tree.
settings.register_profile("engine", deadline=None, database=None, max_examples=60)
settings.load_profile("engine")


@pytest.fixture
def play() -> Iterator[Callable[..., Play]]:
    played: list[Play] = []

    def begin(*args: Any, **options: Any) -> Play:
        played.append(Play(*args, **options))
        return played[-1]

    yield begin
    for one in played:
        one.replay.close()
