"""Large values: read one by one, left out of lists, and never more of them in one answer than fit."""

from __future__ import annotations

from uuid import uuid4

from tests.api.conftest import Served

LARGE = "x" * 600_000


def test_lists_leave_large_values_out_and_say_so(served: Served) -> None:
    api = served.api("admin", f"large-{uuid4().hex[:6]}")
    small, large = api.start("quick", {"n": 1}), api.start("quick", {"text": LARGE})
    assert api.ended(large)["result"] == {"text": LARGE}
    api.ended(small)
    listed = {one["id"]: one for one in api.ok("GET /workflow/instances")["items"]}
    assert (listed[small]["input"], listed[small]["result"], listed[small]["left_out"]) == ({"n": 1}, {"n": 1}, [])
    assert (listed[large]["input"], listed[large]["result"]) == (None, None)
    assert listed[large]["left_out"] == ["input", "result"]


def test_a_page_of_history_ends_where_it_grows_too_large_and_the_next_goes_on(served: Served) -> None:
    api = served.api("admin", f"large-{uuid4().hex[:6]}")
    word = api.start("many", {"text": LARGE, "steps": 12})
    seen = api.ended(word)
    assert seen["history_before"] is not None and len(seen["history"]) < 12, "not the whole of it at once"
    found, path = [], f"GET /workflow/instances/{word}/history?limit=200&after="
    cursor: str | None = "0"
    pages = 0
    while cursor is not None:
        page = api.ok(path + cursor)
        found += [entry["seq"] for entry in page["items"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert found == list(range(1, len(found) + 1)) and pages > 1
    back: list[int] = []
    cursor = str(len(found) + 1)
    while cursor is not None:
        page = api.ok(f"GET /workflow/instances/{word}/history?limit=200&before={cursor}")
        back = [entry["seq"] for entry in page["items"]] + back
        cursor = page["next_cursor"]
    assert back == found
