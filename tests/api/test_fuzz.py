"""A few requests of the fuzzer to every operation, on both databases. `make fuzz-api` sends 5,000 to each."""

from __future__ import annotations

import os

import pytest

from tests.api.conftest import Served
from tests.api.fuzz import TAGS, Fuzzer, Seeds

CASES = int(os.environ.get("HOLDFAST_TEST_FUZZ_CASES", "12"))


@pytest.fixture(scope="session")
def fuzzer(served: Served) -> Fuzzer:
    """In a tenant of its own: it changes and ends whatever it finds there."""
    return Fuzzer(served.url, served.api("admin", "fuzz"), Seeds(served.api("admin", "fuzz")).plant())


@pytest.mark.parametrize("tag", TAGS)
def test_no_request_of_the_fuzzer_is_answered_with_what_is_not_described(fuzzer: Fuzzer, tag: str) -> None:
    for endpoint in fuzzer.operations(tag):
        fuzzer.fuzz(endpoint, CASES)
    statuses = {status for counted in fuzzer.statuses.values() for status in counted}
    assert not any(status >= 500 for status in statuses)
