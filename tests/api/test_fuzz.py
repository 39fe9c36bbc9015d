"""The fuzzer sends 20 requests to every operation on both databases, 200 at full size, 5,000 with `make fuzz-api`."""

from __future__ import annotations

import pytest

from tests.api.fuzz import ALIKE, OPERATIONS, Fuzzer, Seeds, Target
from tests.api.served import Served
from tests.support.size import sized

CASES = sized(20, 200)


def target(served: Served) -> Target:
    """In a tenant of its own: it changes and ends whatever it finds there."""
    api = served.api("admin", "fuzz")
    return Target(served.dialect, served.url, api, Seeds(api).plant())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_request_of_the_fuzzer_is_answered_with_what_is_not_described(
    served_sqlite: Served, served_postgres: Served, operation: str
) -> None:
    targets = [served_sqlite.once(target), served_postgres.once(target)]
    fuzzer = Fuzzer(*targets)
    fuzzer.fuzz(fuzzer.endpoints[operation], CASES)
    for one in targets:
        assert sum(one.statuses[operation].values()) >= min(CASES, ALIKE)
