"""HTTP tasks: what is sent for an author, and what an answer or its absence means."""

import asyncio
import gzip
import json
import logging
from typing import Any

import httpcore
import pytest

from holdfast.engine.effects import known_from
from holdfast.engine.errors import NotApplied, Rejected
from holdfast.engine.http_outcomes import outcome_of, retry_after_seconds
from holdfast.handlers.egress import Egress, OutcomeUnknown
from holdfast.handlers.http import REFUSED_HEADERS, Hidden, HttpHandler, TryLater, options_of
from holdfast.handlers.ports import TenantPolicy
from holdfast.handlers.secrets import DictSecrets, SecretMissing
from tests.handlers.support import (
    KEY,
    PUBLIC,
    Dials,
    Exchange,
    Names,
    Policies,
    Script,
    Server,
    a_task,
    answering,
    answering_json,
    serving,
)

SECRET = 'sk_live_"Q/x+9&é'  # spelled differently in JSON, in a URL and in HTML
PLAIN_SECRET = "sk_live_0123456789"
SECRETS = DictSecrets({"odd": SECRET, "stripe_key": PLAIN_SECRET, "number": "987654321", "broken": "a\r\nX-Evil: 1"})


def handler_for(server: Server, **more: Any) -> HttpHandler:
    """A handler that may reach this server, by its address, as in `dev`."""
    here = f"127.0.0.1:{server.port}"
    return HttpHandler(Egress(private_hosts={here}, **more), SECRETS, Policies(f"http://{here}"))


async def call(server: Server, not_after: float | None = None, **options: Any) -> Any:
    options.setdefault("url", f"{server.url}/pay")
    return await handler_for(server)(a_task(not_after=not_after, **options))


async def refused(server: Server, **options: Any) -> str:
    with pytest.raises(Rejected) as error:
        await call(server, **options)
    return str(error.value)


async def failure(script: Script, **options: Any) -> Exception:
    async with serving(script) as server:
        with pytest.raises(Exception) as failed:
            await call(server, **options)
    return failed.value


# ---- What is sent


async def test_a_task_posts_json_with_its_idempotency_key() -> None:
    async with serving(answering_json(b'{"id": "ch_1"}', status=201)) as server:
        result = await call(server, json={"amount": 500, "note": "für dich"})
        [seen] = server.seen
    assert seen.head.startswith("POST /pay HTTP/1.1\r\n")
    assert json.loads(seen.body) == {"amount": 500, "note": "für dich"}
    assert seen.header("content-type") == "application/json"
    assert seen.header("idempotency-key") == KEY
    assert seen.header("user-agent") == "holdfast"
    assert seen.header("host") == f"127.0.0.1:{server.port}"
    assert result == {"status": 201, "headers": {"content-type": "application/json"}, "body": {"id": "ch_1"}}


@pytest.mark.parametrize(
    ("options", "content_type", "body"),
    [
        ({"form": {"a": "x y", "b": [1, 2], "c": True}}, "application/x-www-form-urlencoded", b"a=x+y&b=1&b=2&c=true"),
        ({"body": "grüße"}, "text/plain; charset=utf-8", "grüße".encode()),
        ({"body": "<a/>", "headers": {"content-type": "application/xml"}}, "application/xml", b"<a/>"),
        ({"json": None}, "application/json", b"null"),
        ({"json": [1.5]}, "application/json", b"[1.5]"),
        ({}, None, b""),
    ],
)
async def test_a_body_is_json_a_form_or_a_text(options: dict[str, Any], content_type: str | None, body: bytes) -> None:
    async with serving(answering(204)) as server:
        await call(server, **options)
        [seen] = server.seen
    assert (seen.header("content-type"), seen.body) == (content_type, body)
    assert seen.header("content-length") == str(len(body))


async def test_a_query_joins_the_one_in_the_url() -> None:
    async with serving(answering(204)) as server:
        await call(
            server, method="get", url=f"{server.url}/a%2Fb/ü?x=1#part", query={"q": "a&b=c", "n": 3, "l": ["x", "y"]}
        )
        [seen] = server.seen
    assert seen.head.splitlines()[0] == "GET /a%2Fb/%C3%BC?x=1&q=a%26b%3Dc&n=3&l=x&l=y HTTP/1.1"
    assert seen.header("content-length") is None


async def test_the_idempotency_key_may_be_renamed_and_never_replaced() -> None:
    async with serving(answering(204)) as server:
        await call(server, idempotency_header="X-Request-Id", headers={"X-Other": "1"})
        [seen] = server.seen
        assert seen.header("x-request-id") == KEY
        assert seen.header("idempotency-key") is None
        for headers in ({"Idempotency-Key": "mine"}, {"idempotency-KEY": "mine"}):
            words = await refused(server, headers=headers)
            assert "idempotency key and cannot be set" in words
        assert "cannot be set" in await refused(
            server, idempotency_header="X-Request-Id", headers={"x-request-id": "mine"}
        )
        assert "cannot be set" in await refused(
            server, idempotency_header="X-Request-Id", headers={"Idempotency-Key": "mine"}
        )
        for name in ("Host", "a b", "", "Content-Length", "X\r\nY"):
            assert "idempotency_header" in await refused(server, idempotency_header=name)
        assert server.connections == 1


@pytest.mark.parametrize("name", sorted(REFUSED_HEADERS - {"idempotency-key"}))
async def test_headers_of_the_connection_are_not_the_authors(name: str) -> None:
    async with serving(answering(204)) as server:
        assert "set by the connection" in await refused(server, headers={name.title(): "x"})
        assert server.connections == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "1\r\nX-Evil: 1"},
        {"X-A": "1\nX-Evil: 1"},
        {"X-A": "1\x00"},
        {"X-A": "\x7f"},
        {"X-A": "é"},
        {"X-A\r\nX-Evil": "1"},
        {"X-A:": "1"},
        {"X A": "1"},
        {"": "1"},
        {"X-Ä": "1"},
        {"X-A": {"@secret": "broken"}},
        {"X-A": "1", "x-a": "2"},
        {"X-A": None},
        {"X-A": ["1"]},
        {"X-A": {"a": 1}},
    ],
    ids=ascii,
)
async def test_a_header_cannot_smuggle_another(headers: dict[str, Any]) -> None:
    async with serving(answering(204)) as server:
        words = await refused(server, headers=headers)
        assert "header" in words
        assert "Evil: 1" not in words or "header name" in words
        assert server.connections == 0


async def test_header_values_may_be_numbers_and_lose_the_space_around_them() -> None:
    async with serving(answering(204)) as server:
        await call(server, headers={"X-N": 5, "X-B": True, "X-S": "  a\tb  "})
        [seen] = server.seen
    assert (seen.header("x-n"), seen.header("x-b"), seen.header("x-s")) == ("5", "true", "a\tb")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": 5}, "$.url"),
        ({"method": "CONNECT"}, "method is 'CONNECT'"),
        ({"method": "TRACE"}, "expected one of GET"),
        ({"method": "GET / HTTP/1.1\r\n"}, "method is"),
        ({"json": 1, "body": "x"}, "json and body"),
        ({"json": None, "form": {}}, "json and form"),
        ({"body": {"a": 1}}, "$.body"),
        ({"timeout": 0}, "$.timeout"),
        ({"timeout": 301}, "<= 300"),
        ({"timeout": "30"}, "$.timeout"),
        ({"timeout": float("nan")}, "$.timeout"),
        ({"max_response_bytes": 0}, "$.max_response_bytes"),
        ({"max_response_bytes": (8 << 20) + 1}, "<= 8388608"),
        ({"max_response_bytes": True}, "$.max_response_bytes"),
        ({"follow_redirects": 4, "method": "GET"}, "<= 3"),
        ({"follow_redirects": -1, "method": "GET"}, ">= 0"),
        ({"follow_redirects": 1}, "only for GET and HEAD"),
        ({"follow_redirects": 1, "method": "PUT"}, "only for GET and HEAD"),
        ({"follow_redirects": 1, "method": "GET", "json": 1}, "without a body"),
        ({"output": "status"}, "$.output"),
        ({"header": {}}, "`header`"),
        ({"headers": []}, "$.headers"),
        ({"query": {"a": {"b": 1}}}, "query parameter 'a'"),
        ({"form": {"a": None}}, "form parameter 'a'"),
        ({"outcomes": {"99": "rejected"}}, "outcomes names '99'"),
        ({"outcomes": {"4XX": "rejected"}}, "outcomes names '4XX'"),
        ({"outcomes": {"600": "rejected"}}, "outcomes names '600'"),
        ({"outcomes": {"409": "fine"}}, "outcomes says 'fine' for 409: expected one of succeeded"),
        ({"outcomes": {"409": True}}, "$.outcomes"),
        ({"outcomes": ["409"]}, "$.outcomes"),
        ({"json": {"a": "\ud800"}}, "could not be written"),
        ({"json": 1j}, "could not be written"),
        ({"body": "\ud800"}, "could not be written"),
        ({"json": {"@secret": "stripe_key", "sufix": "x"}}, '"prefix" and "suffix"'),
        ({"json": {"@secret": 5}}, "a secret is written"),
        ({"json": {"@secret": "stripe_key", "prefix": 5}}, "must be texts"),
        ({"json": {"@secret": "nobody_knows"}}, "secret 'nobody_knows' of tenant 'acme' is missing"),
    ],
    ids=ascii,
)
async def test_options_that_cannot_work_are_refused_before_anything_is_sent(
    options: dict[str, Any], words: str
) -> None:
    async with serving(answering(204)) as server:
        assert words in await refused(server, **options)
        assert server.connections == 0


def test_a_task_without_a_url_is_refused() -> None:
    with pytest.raises(Rejected, match="url"):
        options_of({})


async def test_a_host_the_tenant_does_not_allow_is_refused_with_what_to_change() -> None:
    handler = HttpHandler(Egress(resolve=Names({}), connect=Dials()), SECRETS, Policies())
    with pytest.raises(Rejected, match=r"add 'api\.stripe\.com' to the tenant's setting http_hosts"):
        await handler(a_task(url="https://api.stripe.com/v1/charges"))


# ---- What an answer means


@pytest.mark.parametrize(
    ("status", "known"),
    [
        *[(status, "succeeded") for status in (200, 201, 202, 204, 206, 299)],
        *[(status, "rejected") for status in (300, 301, 302, 304, 307, 308)],
        *[(status, "rejected") for status in (400, 401, 402, 403, 404, 405, 409, 410, 412, 413, 422, 423, 451, 499)],
        (408, "unknown"),
        (425, "not_applied"),
        (429, "not_applied"),
        *[(status, "unknown") for status in (500, 501, 502, 503, 504, 599)],
    ],
)
async def test_a_status_says_what_happened(status: int, known: str) -> None:
    async with serving(answering(status, location="http://127.0.0.1:1/")) as server:
        if known == "succeeded":
            assert (await call(server))["status"] == status
        else:
            with pytest.raises(Exception, match=f"POST {server.url} was answered with {status}") as failed:
                await call(server)
            assert known_from(failed.value) == known
        assert server.connections == 1


@pytest.mark.parametrize(
    ("status", "outcomes", "known"),
    [
        (409, {"409": "succeeded"}, "succeeded"),
        (500, {"5xx": "not_applied"}, "not_applied"),
        (500, {"5xx": "not_applied", "500": "unknown"}, "unknown"),
        (402, {"402": "rejected"}, "rejected"),
        (404, {"4xx": "succeeded"}, "succeeded"),
        (202, {"202": "unknown"}, "unknown"),
        (200, {"2xx": "rejected"}, "rejected"),
        (303, {"3xx": "succeeded"}, "succeeded"),
        (429, {"4xx": "rejected"}, "not_applied"),
        (408, {"4xx": "rejected"}, "unknown"),
        (408, {"408": "not_applied"}, "not_applied"),
        (503, {"503": "not_applied"}, "not_applied"),
        (503, {"502": "not_applied"}, "unknown"),
        (101, {}, "unknown"),
        (700, {}, "unknown"),
    ],
)
def test_the_authors_table_comes_first_and_a_status_before_its_class(status: int, outcomes: Any, known: str) -> None:
    assert outcome_of(status, outcomes) == known


async def test_the_authors_table_decides() -> None:
    async with serving(answering_json(b'{"id": 1}', status=409)) as server:
        assert (await call(server, outcomes={"409": "succeeded"}))["body"] == {"id": 1}
        with pytest.raises(OutcomeUnknown):
            await call(server, outcomes={"4xx": "unknown"})


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("999999999", 86_400.0),
        ("Thu, 01 Jan 1970 00:17:10 GMT", 30.0),
        ("Thu, 01 Jan 1970 00:17:10 -0000", 30.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
        ("-5", None),
        ("soon", None),
        ("9" * 400, None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, now=1000.0) == seconds


async def test_a_server_that_asks_to_wait_is_heard() -> None:
    error = await failure(answering(429, b"slow down", retry_after="17"))
    assert isinstance(error, TryLater)
    assert error.retry_after == 17.0
    assert str(error).endswith("was answered with 429: slow down")
    error = await failure(answering(503, retry_after="17"), outcomes={"503": "not_applied"})
    assert isinstance(error, TryLater) and error.retry_after == 17.0
    error = await failure(answering(429))
    assert isinstance(error, TryLater) and error.retry_after is None
    error = await failure(answering(503, retry_after="17"))
    assert known_from(error) == "unknown" and error.retry_after == 17.0  # type: ignore[attr-defined]


async def test_a_refusal_carries_a_short_excerpt() -> None:
    error = await failure(answering(402, b"no\x00 money\r\n\x1b[31m" + "ü".encode() * 5000))
    words = str(error).partition("answered with 402: ")[2]
    assert words.startswith("no\ufffd money \ufffd[31mü")
    assert len(words) <= 201 and words.endswith("…")


# ---- What no answer means


async def test_a_server_that_hangs_up_before_or_after_reading_leaves_it_unknown() -> None:
    async def at_once(exchange: Exchange) -> None:
        exchange.writer.transport.abort()

    async def after_reading(exchange: Exchange) -> None:
        await exchange.read()

    for script in (at_once, after_reading):
        error = await failure(script, json={"amount": 1})
        assert isinstance(error, OutcomeUnknown)
        assert known_from(error) == "unknown"


@pytest.mark.parametrize("status", [200, 402, 429])
async def test_half_an_answer_leaves_it_unknown_whatever_its_status(status: int) -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.read()
        await exchange.answer(status, b'{"id": "ch', content_length="100", content_type="application/json")

    assert known_from(await failure(half)) == "unknown"


async def test_a_slow_body_past_the_time_out_leaves_it_unknown() -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.read()
        await exchange.answer(200, b"a", content_length="100")
        await server.released.wait()

    async with serving(slow) as server:
        with pytest.raises(OutcomeUnknown, match="longer than 1 s"):
            await call(server, timeout=1)


async def test_a_port_where_nobody_listens_means_nothing_happened() -> None:
    async with serving(answering(200)) as server:
        handler = handler_for(server)
    with pytest.raises(NotApplied, match="was not sent"):
        await handler(a_task(url=server.url))


async def test_a_task_found_late_is_not_sent() -> None:
    async with serving(answering(200)) as server:
        handler = handler_for(server, now=lambda: 1000.0)
        with pytest.raises(NotApplied, match="late"):
            await handler(a_task(url=server.url, not_after=1000.0))
        assert server.seen == []
        assert (await handler(a_task(url=server.url, not_after=1000.5)))["status"] == 200


async def test_a_policy_or_a_secret_store_that_is_down_means_nothing_happened() -> None:
    class Down:
        async def of(self, tenant_id: str) -> TenantPolicy:
            raise ConnectionResetError("the database went away")

        def get(self, tenant_id: str, name: str) -> str:
            raise TimeoutError(f"vault did not give {PLAIN_SECRET}")

    dials = Dials()
    egress = Egress(resolve=Names({"api.example.org": [PUBLIC]}), connect=dials)
    with pytest.raises(NotApplied, match="policy of tenant 'acme'"):
        await HttpHandler(egress, SECRETS, Down())(a_task(url="https://api.example.org/"))
    with pytest.raises(NotApplied, match=r"could not be read \(TimeoutError\)") as failed:
        await HttpHandler(egress, Down(), Policies("*"))(
            a_task(url="https://api.example.org/", headers={"X": {"@secret": "k"}})
        )
    assert PLAIN_SECRET not in str(failed.value)
    assert dials.dialled == []


async def test_a_cancelled_task_stays_cancelled() -> None:
    async def wait(exchange: Exchange) -> None:
        await exchange.read()
        reached.set()
        await server.released.wait()

    reached = asyncio.Event()
    async with serving(wait) as server:
        running = asyncio.create_task(call(server))
        await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


# ---- What comes back


async def test_only_a_few_harmless_headers_come_back() -> None:
    script = answering(
        200, b"hi", content_type="text/plain", set_cookie="session=1", etag='"1"', x_request_id="req_1",
        authorization="no", server="x", location="/there",
    )  # fmt: skip
    async with serving(script) as server:
        result = await call(server)
    assert result["headers"] == {
        "content-type": "text/plain",
        "etag": '"1"',
        "location": "/there",
        "x-request-id": "req_1",
    }


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("application/json", b'{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
        ("application/json; charset=utf-8", b'"\xc3\xbc"', "ü"),
        ("application/problem+json", b"[]", []),
        ("Application/JSON", b"\xef\xbb\xbf{}", {}),
        ("application/json", b'{"a": 1', '{"a": 1'),
        ("application/json", b"NaN", "NaN"),
        ("application/json", b"1e999", "1e999"),
        ("application/json", b"\xff", "\ufffd"),
        ("application/json", b'"\\ud800"', '"\\ud800"'),
        ("application/json", b'"a\\u0000b"', "a\ufffdb"),
        ("application/json", b"[9007199254740992, 9007199254740993]", [9007199254740992, "9007199254740993"]),
        ("application/json", b"-123456789012345678901234567890", "-123456789012345678901234567890"),
        ("application/json", b"[" * 160 + b"]" * 160, "[" * 160 + "]" * 160),
        ("application/json", b"[" * 5000 + b"]" * 5000, "[" * 5000 + "]" * 5000),
        ("application/json", b"9" * 5000, "9" * 5000),
        ("application/json", b"", None),
        ("text/plain", b'{"a": 1}', '{"a": 1}'),
        ("text/plain; charset=iso-8859-1", b"\xfc", "ü"),
        ('text/plain; charset="utf-8"', b"\xc3\xbc", "ü"),
        ("text/plain; charset=rot13", b"abc", "abc"),
        ("text/plain; charset=unicode_escape", b"\\u0041", "\\u0041"),
        ("text/plain", b"a\x00b\xff", "a\ufffdb\ufffd"),
        ("application/jsonp", b"1", "1"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_json_comes_back_as_json_and_anything_else_as_text(content_type: str, body: bytes, expected: Any) -> None:
    async with serving(answering(200, body, content_type=content_type)) as server:
        assert await call(server, output="body") == expected
        assert (await call(server))["body"] == expected


async def test_a_packed_answer_is_unpacked() -> None:
    packed = gzip.compress(b'{"a": 1}')
    async with serving(answering_json(packed, content_encoding="gzip")) as server:
        assert await call(server, output="body") == {"a": 1}
        assert server.seen[0].header("accept-encoding") == "gzip"


async def test_a_success_too_large_to_read_is_unknown_and_a_refusal_too_large_is_a_refusal() -> None:
    bomb = gzip.compress(bytes(10 << 20))
    for script in (answering(200, b"a" * 2000), answering(200, bomb, content_encoding="gzip")):
        error = await failure(script, max_response_bytes=1000)
        assert isinstance(error, OutcomeUnknown)
        assert "was answered with 200, so it probably happened, but its body is larger than" in str(error)
    error = await failure(answering(402, b"a" * 2000), max_response_bytes=1000)
    assert isinstance(error, Rejected)
    assert "larger than max_response_bytes = 1,000" in str(error)
    assert known_from(await failure(answering(200, b"x", content_encoding="br"))) == "unknown"


async def test_a_head_has_no_body() -> None:
    async def head(exchange: Exchange) -> None:
        await exchange.read()
        await exchange.answer(200, content_length="5000000", content_encoding="gzip")

    async with serving(head) as server:
        assert (await call(server, method="HEAD"))["body"] is None


# ---- Redirects


async def test_a_redirect_is_followed_only_when_asked_and_carries_the_key() -> None:
    async with serving(answering(302, location="/there"), answering_json(b"1")) as server:
        assert await call(server, method="GET", follow_redirects=1, output="body") == 1
        assert [exchange.header("idempotency-key") for exchange in server.seen] == [KEY, KEY]


async def test_a_redirect_to_a_private_address_is_refused() -> None:
    async with serving(answering(200)) as inside:
        async with serving(answering(302, location=f"{inside.url}/admin")) as server:
            words = await refused(server, method="GET", follow_redirects=3)
            assert "loopback" in words
        assert inside.connections == 0


async def test_a_secret_does_not_follow_a_redirect_to_another_host() -> None:
    names = Names({"one.example.org": [PUBLIC], "two.example.org": [PUBLIC]})
    async with serving(answering(302, location="http://two.example.org/"), answering(200)) as server:
        handler = HttpHandler(
            Egress(resolve=names, connect=Dials(server.port)), SECRETS, Policies("http://*.example.org")
        )
        headers = {"X-Api-Key": {"@secret": "stripe_key"}}
        await handler(a_task(method="GET", url="http://one.example.org/", headers=headers, follow_redirects=1))
        assert [exchange.header("x-api-key") for exchange in server.seen] == [PLAIN_SECRET, None]
        assert [exchange.header("idempotency-key") for exchange in server.seen] == [KEY, KEY]


# ---- Secrets


async def echo(exchange: Exchange) -> None:
    """Answers with all it was told, in every spelling a server may use."""
    await exchange.read()
    said = exchange.head + exchange.body.decode()
    body = json.dumps({"said": said, "raw": SECRET, PLAIN_SECRET: [SECRET + PLAIN_SECRET], "n": 987654321, "f": 1.5})
    await exchange.answer(200, body.encode(), content_type="application/json", x_request_id=f"req-{PLAIN_SECRET}")


WITH_SECRETS: dict[str, Any] = {
    "headers": {"Authorization": {"@secret": "stripe_key", "prefix": "Bearer ", "suffix": "!"}},
    "query": {"key": {"@secret": "odd"}, "keys": [{"@secret": "stripe_key"}]},
    "json": {"deep": [{"key": {"@secret": "odd", "prefix": "<"}}], "n": {"@secret": "number"}},
}


async def test_a_secret_is_sent_and_nowhere_to_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    task = a_task(**WITH_SECRETS)
    async with serving(echo) as server:
        task.options["url"] = server.url
        result = await handler_for(server)(task)
        [seen] = server.seen
    assert seen.header("authorization") == f"Bearer {PLAIN_SECRET}!"
    assert seen.head.split()[1] == f"/?key=sk_live_%22Q%2Fx%2B9%26%C3%A9&keys={PLAIN_SECRET}"
    assert json.loads(seen.body) == {"deep": [{"key": f"<{SECRET}"}], "n": "987654321"}
    shown = json.dumps(result, ensure_ascii=False) + caplog.text + repr(task) + json.dumps(task.options)
    for hidden in (SECRET, PLAIN_SECRET, "987654321", "sk_live", "%22Q%2Fx", '\\"Q/x'):
        assert hidden not in shown
    assert result["body"]["***"] == ["******"]
    assert result["body"]["n"] == "***"
    assert result["body"]["f"] == 1.5
    assert result["headers"]["x-request-id"] == "req-***"


async def test_a_secret_echoed_in_a_text_is_hidden() -> None:
    said = f"{PLAIN_SECRET} {SECRET} sk_live_%22Q%2Fx%2B9%26%C3%A9 sk_live_&quot;Q/x+9&amp;é"
    for content_type in ("text/html", "application/json"):  # the second is no JSON, and comes back as text
        async with serving(answering(200, said.encode(), content_type=content_type)) as server:
            keys = [{"@secret": "stripe_key"}, {"@secret": "odd"}]
            assert await call(server, json=keys, output="body") == "*** *** *** ***"


@pytest.mark.parametrize("status", [302, 402, 429, 500])
async def test_a_secret_is_not_in_an_error(status: int) -> None:
    async def shout(exchange: Exchange) -> None:
        await exchange.read()
        said = f"{exchange.head}{exchange.body.decode()} {'.' * 100} {SECRET}"
        await exchange.answer(status, said.encode(), location=f"http://x/?{PLAIN_SECRET}", content_type="text/plain")

    async with serving(shout) as server:
        task = a_task(url=server.url, **WITH_SECRETS)
        with pytest.raises(Exception) as failed:
            await handler_for(server)(task)
    error: BaseException | None = failed.value
    assert "***" in str(error)
    while error is not None:
        assert "sk_live" not in str(error) + repr(error)
        error = error.__cause__ or error.__context__


async def test_a_secret_in_a_redirects_host_is_not_in_the_error() -> None:
    async with serving(answering(302, location=f"http://{PLAIN_SECRET}.example.com/")) as server:
        words = await refused(server, method="GET", follow_redirects=1, headers={"X-Key": {"@secret": "stripe_key"}})
    assert "sk_live" not in words
    assert "***" in words


async def test_a_secret_is_not_in_the_error_of_a_broken_connection() -> None:
    class Talkative(httpcore.AsyncNetworkStream):
        async def write(self, buffer: bytes, timeout: float | None = None) -> None:
            raise OSError(f"could not write {buffer!r}")

        async def aclose(self) -> None:
            pass

    async def connect(address: str, port: int, timeout: float) -> httpcore.AsyncNetworkStream:
        return Talkative()

    egress = Egress(resolve=Names({"api.example.org": [PUBLIC]}), connect=connect)
    handler = HttpHandler(egress, SECRETS, Policies("http://api.example.org"))
    with pytest.raises(OutcomeUnknown) as failed:
        await handler(a_task(url="http://api.example.org/", headers={"X-Key": {"@secret": "stripe_key"}}))
    assert "could not write" in str(failed.value)
    assert "sk_live" not in str(failed.value)
    assert failed.value.__cause__ is None and failed.value.__context__ is None


async def test_a_secret_in_a_form_is_sent() -> None:
    async with serving(answering(204)) as server:
        await call(server, form={"key": {"@secret": "stripe_key"}})
        assert server.seen[0].body == f"key={PLAIN_SECRET}".encode()


async def test_a_missing_secret_sends_nothing() -> None:
    async with serving(answering(204)) as server:
        with pytest.raises(SecretMissing):
            await call(server, headers={"X": {"@secret": "nobody_knows"}})
        assert server.connections == 0


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    hidden = Hidden(["abc", "abcdef"])
    assert hidden.text("xabcdefx abc") == "x***x ***"
    assert hidden.text("YWJjZGVm") == "***"  # base64
    assert Hidden([]).text("abc") == "abc"
