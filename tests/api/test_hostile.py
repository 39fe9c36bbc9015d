"""Bodies, headers, paths and queries that were made to hurt: refused with a place, and alike on both databases."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from tests.api.seeds import Seeds
from tests.api.served import Served
from tests.api.support import CHART, Api, House

MAX_BYTES = 1 << 20
DEEP = 5000
TENANT = "hostile"

# What stands in place of a value, and what the refusal says about it. The pointer ends there, unless it is the whole
# body that cannot be read.
VALUES: dict[str, tuple[str, str, bool]] = {
    "a repeated key": ('{"a": 1, "b": {"c": 1, "c": 2}}', "/b/c", True),
    "the same key, escaped": ('{"a": 1, "\\u0061": 2}', "/a", True),
    "NUL": ('"a\\u0000b"', "", True),
    "NUL in a key": ('{"a\\u0000": 1}', "", True),
    "half a pair": ('"\\ud800"', "", True),
    "the other half": ('["x", "\\udc00y"]', "/1", True),
    "half a pair in a key": ('{"\\ud800": 1}', "", True),
    "NaN": ("NaN", "", True),
    "Infinity": ('{"a": [0, Infinity]}', "/a/1", True),
    "-Infinity": ("-Infinity", "", True),
    "2^53": ("9007199254740992", "", True),
    "-2^53": ('{"a/b~c": -9007199254740992}', "/a~1b~0c", True),
    "a big integer": ("1" + "0" * 30, "", True),
    "an integer of 5000 digits": ("9" * 5000, "", False),
    "a number beyond a double": ("1e400", "", True),
    "deep lists": ("[" * DEEP + "]" * DEEP, "", False),
    "deep objects": ('{"a":' * 300 + "1" + "}" * 300, "/a", False),
}
WHOLE: dict[str, bytes] = {
    "nothing": b"", "spaces": b"   ", "not UTF-8": b'{"input": "\xff"}', "overlong UTF-8": b'{"input": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"input": "\xed\xa0\x80"}', "a BOM": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-32": '{"a": 1}'.encode("utf-32"), "garbage behind": b"{} x", "two values": b"{}{}", "half": b'{"a": ',
    "a comment": b"{} // no", "single quotes": b"{'a': 1}", "a trailing comma": b'{"a": 1,}',
    "a control": b'{"a": "\n"}',
    "a list": b"[]", "a text": b'"x"', "a number": b"7", "null": b"null", "true": b"true", "NUL": b"\x00",
    "a form": b"a=1&b=2", "a bare word": b"undefined", "hex": b"0x10",
}  # fmt: skip


def planted(served: Served) -> Seeds:
    return Seeds(served.api("admin", TENANT)).plant()


@pytest.fixture
def seeds(served: Served) -> Seeds:
    return served.once(planted)


def places(seeds: Seeds) -> list[tuple[str, str, str]]:
    """Every place that takes any JSON: the operation, a body with @ in that place, and its pointer."""
    order = next(word for word in seeds.ids["instances"])
    task, effect = seeds.ids["tasks"][0], seeds.ids["effects"][0]
    return [
        ("POST /workflow/instances", '{"definition_key": "quick", "input": @}', "/input"),
        ("POST /workflow/instances", '{"definition_key": "quick", "context": @}', "/context"),
        ("POST /workflow/instances/batch", '{"definition_key": "quick", "items": [{"input": @}]}', "/items/0/input"),
        (f"POST /workflow/instances/{order}/events", '{"name": "note", "payload": @}', "/payload"),
        (f"POST /workflow/instances/{order}/signal", '{"name": "note", "payload": @}', "/payload"),
        (f"POST /workflow/instances/{order}/migrate", '{"version": 2, "context": {"x": @}}', "/context/x"),
        (f"POST /workflow/tasks/{task}/complete", '{"output": @}', "/output"),
        (f"POST /workflow/effects/{effect}/resolve", '{"resolution": "happened", "reason": "r", "result": @}',
         "/result"),
        ("POST /workflow/definitions", '{"spec": {"id": "x", "context": @}}', "/spec/context"),
        ("POST /workflow/definitions/lint", '{"spec": {"id": "x", "context": @}}', "/spec/context"),
        ("POST /workflow/definitions/simulate", '{"definition_key": "request", "input": @}', "/input"),
        ("POST /workflow/definitions/simulate", '{"definition_key": "request", "events": [@]}', "/events/0"),
        ("POST /workflow/bulk", '{"action": "signal", "signal": "x", "filter": {"all": true}, "reason": "r", '
         '"dry_run": true, "payload": @}', "/payload"),
    ]  # fmt: skip


def test_what_two_readers_may_understand_differently_is_refused_with_its_place(served: Served, seeds: Seeds) -> None:
    api = served.api("admin", TENANT)
    for operation, body, pointer in places(seeds):
        for name, (value, below, placed) in VALUES.items():
            found = api(operation, body.replace("@", value), idempotency_key=uuid4().hex)
            assert found.status_code == 422, f"{operation} {name}: {found.status_code} {found.text[:300]}"
            problem = found.json()
            assert problem["code"] == "validation-failed"
            [fault] = problem["errors"]
            if placed:
                assert fault["pointer"] == pointer + below, f"{operation} {name}: {fault}"
            else:
                assert fault["pointer"].startswith(below and pointer + below), f"{operation} {name}: {fault}"
            assert len(found.content) < 5000


def test_the_widest_values_that_are_fine_come_back_as_they_went_in(served: Served) -> None:
    api = served.api("admin", TENANT)
    for text in (
        "9007199254740991", "-9007199254740991", "0.1", "1e308", "5e-324",
        '"\\ud83d\\ude00\\u0001\\u007f"', '"\U0010ffff"',
        '{"": {"": []}}', "[" * 90 + "]" * 90, '{"a/b~c": [null, true]}', '"\\u2028"', '{"__proto__": 1, "$ref": "#"}',
    ):  # fmt: skip
        made = api("POST /workflow/instances", f'{{"definition_key": "quick", "input": {text}}}', prefer="wait=30")
        assert (made.status_code, made.json()["result"]) == (201, json.loads(text)), text


def test_a_body_that_is_no_object_of_json_is_refused(served: Served, seeds: Seeds) -> None:
    api = served.api("admin", TENANT)
    for operation, _, _ in places(seeds):
        for name, raw in WHOLE.items():
            found = api(operation, raw, idempotency_key=uuid4().hex)
            assert found.status_code == 422, f"{operation} {name}: {found.status_code} {found.text[:300]}"
            assert [fault["pointer"] for fault in found.json()["errors"]] == [""], f"{operation} {name}: {found.text}"
        for kind in (
            "text/plain",
            "application/xml",
            "multipart/form-data; boundary=x",
            "",
            "application/jsonx",
            "json",
        ):
            found = api(operation, b"{}", idempotency_key=uuid4().hex, content_type=kind)
            assert (found.status_code, found.json()["code"]) == (415, "unsupported-media-type"), kind
        for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json"):
            assert api(operation, b"{}", idempotency_key=uuid4().hex, content_type=kind).status_code == 422


def chunks(size: int) -> Iterator[bytes]:
    yield b'{"definition_key": "quick", "input": "'
    for _ in range(0, size, 65536):
        yield b"x" * 65536
    yield b'"}'


def test_what_is_too_large_is_not_read_to_its_end(served: Served, seeds: Seeds) -> None:
    api = served.api("admin", TENANT)
    for operation, body, _ in places(seeds):
        large = body.replace("@", '"' + "x" * MAX_BYTES + '"')
        found = api(operation, large, idempotency_key=uuid4().hex)
        assert (found.status_code, found.json()["code"]) == (413, "payload-too-large"), operation
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {api.key}"}, timeout=60) as client:
        try:
            found = client.post(
                "/workflow/instances", content=chunks(8 << 20), headers={"Content-Type": "application/json"}
            )
            assert (found.status_code, found.json()["code"]) == (413, "payload-too-large")
        except (httpx.WriteError, httpx.RemoteProtocolError):
            pass  # it was answered, and hung up on, while we were still sending
    said = raw(
        served, api, "POST /workflow/instances HTTP/1.1", "Content-Type: application/json", "Content-Length: 99999999"
    )
    assert said.startswith("HTTP/1.1 413")
    assert api("GET /livez").status_code == 200


def test_large_bodies_within_the_limit_are_taken_or_refused_in_words(served: Served, seeds: Seeds) -> None:
    api = served.api("admin", TENANT)
    wide = json.dumps({f"k{n}": n for n in range(50_000)})
    long = json.dumps(["x"] * 150_000)
    text = json.dumps("ä" * 400_000, ensure_ascii=False)
    for number, (operation, body, _) in enumerate(places(seeds)):
        value = (wide, long, text)[number % 3]
        found = api(operation, body.replace("@", value).encode(), idempotency_key=uuid4().hex)
        assert found.status_code < 500, f"{operation}: {found.text[:300]}"
    assert api("GET /livez").status_code == 200


PROBES: tuple[tuple[str, str, int], ...] = (
    ("GET", "/workflow/instances/%00", 404), ("GET", "/workflow/instances/%2e%2e", 404),
    ("GET", "/workflow/instances/..%2f..%2fetc", 404), ("GET", "/workflow/instances/%ff%fe", 404),
    ("GET", "/workflow/instances/%ed%a0%80", 404), ("GET", "/workflow/instances/%C0%AF", 404),
    ("GET", "/workflow/instances/" + "x" * 6000, 404), ("GET", "/workflow/instances/%E2%80%AE", 404),
    ("GET", "/workflow/definitions/%00", 404), ("GET", "/workflow/definitions/a%00b", 404),
    ("GET", "/workflow/definitions/request%40", 200), ("GET", "/workflow/definitions/request@0", 404),
    ("GET", "/workflow/definitions/request@-1", 404), ("GET", "/workflow/definitions/request@99999999999", 404),
    ("GET", "/workflow/definitions/request@1@1", 404), ("GET", "/workflow/definitions/request@%D9%A1", 404),
    ("GET", "/workflow/definitions/" + "%F0%9F%98%80" * 500, 404),
    ("GET", "/workflow/definitions/def_" + "g" * 32, 404),
    ("GET", "/workflow//instances", 200), ("GET", "/workflow/instances/x/y/z", 404), ("GET", "/%2e%2e/workflow", 404),
    ("GET", "/workflow%2Finstances", 200), ("GET", "/WORKFLOW/instances", 404), ("GET", "/workflow/instances;a=1", 404),
    ("GET", "/workflow/instances?limit=1&limit=2", 422), ("GET", "/workflow/instances?nope=1", 422),
    ("GET", "/workflow/instances?limit", 422), ("GET", "/workflow/instances?limit=", 422),
    ("GET", "/workflow/instances?limit=%zz", 422), ("GET", "/workflow/instances?limit=%", 422),
    ("GET", "/workflow/instances?business_key=%ff", 400), ("GET", "/workflow/instances?business_key=%00", 422),
    ("GET", "/workflow/instances?business_key=%ed%a0%80", 400), ("GET", "/workflow/instances?%00=1", 422),
    ("GET", "/workflow/instances?" + "&".join(["a"] * 10_000), 400),
    ("GET", "/workflow/instances?limit=99999999999999999999", 422), ("GET", "/workflow/instances?limit=-1", 422),
    ("GET", "/workflow/instances?limit=1e1", 422), ("GET", "/workflow/instances?limit=0x10", 422),
    ("GET", "/workflow/instances?limit=%D9%A1", 422), ("GET", "/workflow/instances?limit=1_0", 422),
    ("GET", "/workflow/instances?limit=null", 422), ("GET", "/workflow/instances?status=waiting,,failed", 422),
    ("GET", "/workflow/instances?created_after=1700000000", 422), ("GET", "/workflow/instances?created_after=now", 422),
    ("GET", "/workflow/instances?created_after=2026-01-01", 422),
    ("GET", "/workflow/instances?created_after=2026-01-01T00:00:00", 422),
    ("GET", "/workflow/instances?created_after=9999-12-31T23:59:59-23:59", 200),
    ("GET", "/workflow/instances?created_before=0001-01-01T00:00:00%2B23:59", 200),
    ("GET", "/workflow/instances?business_key=null", 200), ("GET", "/workflow/tasks?assignee=%25_%27--", 200),
    ("GET", "/workflow/tasks?group=%22%25~_%5C", 200), ("GET", "/workflow/tasks?group=" + "x" * 5000, 200),
    ("GET", "/workflow/me?x=1", 422), ("GET", "/livez?x=1", 422),
    ("DELETE", "/workflow/instances", 405), ("PUT", "/workflow/instances", 405), ("TRACE", "/workflow/instances", 405),
    ("HEAD", "/workflow/instances", 405), ("PATCH", "/workflow/definitions/x", 405), ("GET", "/workflow/bulk", 405),
)  # fmt: skip
CURSORS = (
    "", "=", "====", "AAAA", "W10", "bnVsbA", "e30", "WzFd", "x" * 2000, "%00", "..", "W1sxXV0", "WzEsMl0", "WyJhIl0",
    "WzQ2MTE2ODYwMTg0MjczODc5MDQsMSwiYSIsIjAwIl0", "WyJhIiw0NjExNjg2MDE4NDI3Mzg3OTA0XQ", "WyJhIiwtMV0",
    "WzEuNSwiMDAiXQ", "W3RydWUsIjAwIl0", "WzEsInp6Il0", "WzEsIlx1ZDgwMCJd",
)  # fmt: skip


def test_paths_queries_and_methods_that_were_made_to_hurt(served: Served, seeds: Seeds) -> None:
    api = served.api("admin", TENANT)
    for method, path, status in PROBES:
        found = api.client.request(method, httpx.URL(served.url).copy_with(raw_path=path.encode("latin-1")))
        assert found.status_code == status, f"{method} {path[:100]}: {found.status_code} {found.text[:300]}"
        if status >= 400 and method != "HEAD":
            assert found.headers["content-type"] == "application/problem+json"
            assert re.fullmatch(r"[0-9a-f]{32}", found.json()["trace_id"])
        if status == 405:
            assert found.headers["allow"]


def test_a_cursor_of_another_make_is_refused_and_none_of_them_hurts(served: Served, seeds: Seeds) -> None:
    api = served.api("admin", TENANT)
    order = seeds.ids["instances"][0]
    for where in (
        "instances", "tasks", "tasks?status=any", "definitions", "effects", "principals", "keys", "audit",
        "dead-letters", f"instances/{order}/tasks", f"instances/{order}/children",
        f"tasks/{seeds.ids['tasks'][0]}/comments",
    ):  # fmt: skip
        refused = 0
        for cursor in CURSORS:
            found = api(f"GET /workflow/{where}{'&' if '?' in where else '?'}cursor={cursor}")
            assert found.status_code in (200, 422), f"{where} {cursor}: {found.status_code} {found.text[:300]}"
            refused += found.status_code == 422
            if found.status_code == 422:
                assert [fault["pointer"] for fault in found.json()["errors"]] == ["/query/cursor"]
        assert refused >= len(CURSORS) - 4, where


def test_a_path_that_no_database_would_keep_burns_no_server(served: Served) -> None:
    """An Idempotency-Key is kept with whom the path names."""
    api = served.api("admin", TENANT)
    for word in ("%00", "a%00b", "x" * 6000, "%F0%9F%98%80" * 600, "%ff", "request@1 ", "%0a"):
        for operation in (f"POST /workflow/definitions/{word}/activate", f"POST /workflow/instances/{word}/cancel"):
            key = uuid4().hex
            body = {} if "instances" in operation else None
            first = api(operation, body, idempotency_key=key)
            assert first.status_code == 404, f"{operation[:60]}: {first.text[:300]}"
            again = api(operation, body, idempotency_key=key)
            assert (again.status_code, again.headers["idempotent-replayed"]) == (404, "true")


HEADERS: tuple[tuple[str, str, int], ...] = (
    ("X-Request-Id", "a b\tc", 200), ("X-Request-Id", "x" * 5000, 200), ("X-Request-Id", "\xff", 200),
    ("traceparent", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", 200), ("traceparent", "x" * 1000, 200),
    ("Prefer", "wait=99999999999999999999", 200), ("Accept", "text/html", 200), ("Host", "evil.example", 200),
    ("X-Forwarded-For", "1.2.3.4", 200), ("X-Http-Method-Override", "DELETE", 200), ("Range", "bytes=0-1", 200),
    ("Accept-Encoding", "zstd;q=0, *;q=0", 200), ("Cookie", "holdfast_session=" + "x" * 3000, 200),
    ("Expect", "100-continue", 200), ("Content-Length", "0", 200),
)  # fmt: skip


def test_headers_that_were_made_to_hurt(served: Served, seeds: Seeds) -> None:
    api = served.api("admin", TENANT)
    for name, value, status in HEADERS:
        found = api.client.get("/workflow/me", headers=[(name.encode(), value.encode("latin-1"))])
        assert found.status_code == status, f"{name}: {value[:50]}: {found.text[:300]}"
        assert re.fullmatch(r"[A-Za-z0-9_\-:.]{1,128}", found.headers["x-request-id"])
    echoed = api.client.get("/workflow/me", headers={"X-Request-Id": "my-request:1"})
    assert echoed.headers["x-request-id"] == "my-request:1"
    for key in ("", '"', '""', "a b", "é", "x" * 256, '"a', "a\tb", '"a"b"', "a/b", "'a'", '"' + "x" * 256 + '"'):
        found = api.client.post(
            "/workflow/instances", json={"definition_key": "quick"}, headers=[(b"Idempotency-Key", key.encode())]
        )
        assert (found.status_code, found.json()["code"]) == (400, "malformed-request"), key
    for word in ("x", "-1", "1.5", "99999999999999999999", "\u0663", ""):
        found = api.client.get(
            f"/workflow/instances/{seeds.ids['instances'][0]}/stream", headers=[(b"Last-Event-ID", word.encode())]
        )
        assert (found.status_code, found.json()["code"]) == (422, "validation-failed"), word


def test_both_databases_refuse_alike(postgres_url: str, tmp_path: Path) -> None:
    said = []
    for url in (f"sqlite:///{tmp_path / 'x.db'}", postgres_url):
        house = House(url, tmp_path)
        try:
            api = Api(house.serve(), house.key())
            said.append(transcript(api))
        finally:
            house.close()
    assert len(said[0]) > 500
    for (asked, one), (_, other) in zip(*said, strict=True):
        assert one == other, asked


def transcript(api: Api) -> list[tuple[str, tuple[int, str]]]:
    """Everything above and what was answered, without what differs from run to run."""
    api.ok("POST /workflow/definitions", {"spec": {**CHART, "id": "request"}})
    found: list[tuple[str, tuple[int, str]]] = []
    nobody = Seeds(api)
    nobody.ids |= {"instances": ["ins_" + "0" * 32], "tasks": ["tsk_" + "0" * 32], "effects": ["eff_" + "0" * 32]}
    for operation, body, _ in places(nobody):
        for name, (value, _, _) in VALUES.items():
            answer = api(operation, body.replace("@", value), idempotency_key=uuid4().hex)
            found.append((f"{operation} {name}", (answer.status_code, steady(answer.text))))
        for name, content in WHOLE.items():
            answer = api(operation, content, idempotency_key=uuid4().hex)
            found.append((f"{operation} {name}", (answer.status_code, steady(answer.text))))
    for method, path, _ in PROBES:
        answer = api.client.request(method, api.client.base_url.copy_with(raw_path=path.encode("latin-1")))
        found.append((f"{method} {path}", (answer.status_code, steady(answer.text))))
    for where in ("instances", "tasks", "definitions", "effects", "principals", "keys", "audit", "dead-letters"):
        for cursor in CURSORS:
            answer = api(f"GET /workflow/{where}?cursor={cursor}")
            found.append((f"{where} {cursor}", (answer.status_code, steady(answer.text))))
    return found


def steady(text: str) -> str:
    text = re.sub(r'"trace_id":"[0-9a-f]{32}"', "", re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "(moment)", text))
    return re.sub(r"hfst_live_\w{4}|\b(ins|key|prn|aud)_[0-9a-f]{32}", "(id)", re.sub(r'"request_id":"\w+"', "", text))


def raw(served: Served, api: Api, *lines: str, body: bytes = b"") -> str:
    """What a server says to bytes that no library would send."""
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=30) as connection:
        head = "\r\n".join([*lines, f"Host: {place.netloc}", f"Authorization: Bearer {api.key}", "Connection: close"])
        connection.sendall(head.encode("latin-1") + b"\r\n\r\n" + body)
        said = b""
        try:
            while part := connection.recv(65536):
                said += part
                if b"\r\n\r\n" in said and said.startswith(b"HTTP/1.1 4"):
                    break
        except ConnectionResetError:
            pass
    return said.decode("latin-1")


def test_bytes_that_are_hardly_http(served: Served) -> None:
    api = served.api("admin", TENANT)
    post = ("POST /workflow/instances HTTP/1.1", "Content-Type: application/json")
    for lines, body in (
        (("GET /workflow/me\x00 HTTP/1.1",), b""), (("GET  HTTP/1.1",), b""), (("G\x01T /livez HTTP/1.1",), b""),
        (("GET /livez HTTP/9.9",), b""), ((*post, "Content-Length: -1"), b"{}"), ((*post, "Content-Length: x"), b"{}"),
        ((*post, "Content-Length: 2", "Content-Length: 3"), b"{}"), ((*post, "Transfer-Encoding: chunked"), b"zz\r\n"),
        ((*post, "Content-Length: 2", "Transfer-Encoding: chunked"), b"0\r\n\r\n"),
        (("GET /livez HTTP/1.1", "X: " + "y" * 200_000), b""), (("\x16\x03\x01 tls",), b""),
        ((*post, "Transfer-Encoding: chunked"), b"2\r\n{}\r\n0\r\n\r\n"),
    ):  # fmt: skip
        said = raw(served, api, *lines, body=body)
        assert not re.match(r"HTTP/1\.[01] 5", said), (lines[0][:60], said[:200])
    assert api("GET /livez").status_code == 200


def test_moments_at_both_ends_of_time(served: Served) -> None:
    api = served.api("admin", TENANT)
    for moment in ("9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999Z"):
        word = api.ok("POST /workflow/instances", {"definition_key": "quick", "start_at": moment})["id"]
        assert api.ok(f"GET /workflow/instances/{word}")["run_at"] == "9999-12-31T23:59:59.999999Z"
        key = api.ok("POST /workflow/keys", {"principal": "admin-service", "name": "long", "expires_at": moment})
        assert key["expires_at"] == "9999-12-31T23:59:59.999999Z"
        api.ok(f"POST /workflow/instances/{word}/cancel", {})
    early = api.ok("POST /workflow/instances", {"definition_key": "quick", "start_at": "0001-01-01T00:00:00+23:59"})
    assert api.ended(early["id"])["status"] == "completed"
    assert api("GET /workflow/instances?limit=200").status_code == 200


def test_texts_as_long_and_as_strange_as_they_may_be(served: Served) -> None:
    """What fits the description fits the database: 4 bytes a character, none of them compressible."""
    api = served.api("admin", TENANT)
    wild = "".join(chr(0x20000 + (n * 7919) % 40000) for n in range(500))
    word = uuid4().hex
    made = api("POST /workflow/instances", {"definition_key": "quick", "business_key": wild[:468] + word})
    assert made.status_code == 201, made.text
    name = wild[:168] + word
    who = {"name": name, "kind": "human", "roles": [], "groups": [wild[:200]], "issuer": "https://" + "i" * 492}
    assert api("POST /workflow/principals", {**who, "subject": wild[:223] + word}).status_code == 201
    api.refused(422, "validation-failed", "POST /workflow/principals", {**who, "subject": wild[:256]})
    api.refused(422, "validation-failed", "POST /workflow/principals", {**who, "issuer": "https://ä", "subject": "s"})
    order = api.start("order", {"id": "x"})
    event = {"name": wild[:200], "id": wild[:200], "payload": wild}
    assert api(f"POST /workflow/instances/{order}/events", event).status_code == 202
    for bad in ("line\nend", "end\n", "\x00", "#", "tab\t", "\x7f", ""):
        api.refused(422, "validation-failed", f"POST /workflow/instances/{order}/events", {"name": bad})
    key = {"principal": name, "name": wild[:200], "scopes": ["tasks:read"] * 100}
    assert api("POST /workflow/keys", key).status_code == 201
    spec = {**CHART, "id": "x" * 201}
    assert api("POST /workflow/definitions", {"spec": spec}).status_code == 422
