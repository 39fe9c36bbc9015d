"""A client on a bad network: what is asked again and what is not, with which key, after which pause."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.api.models import InstanceOut
from holdfast.client import (
    ApiError,
    BadRequest,
    BlockingClient,
    Client,
    Conflict,
    IdempotencyKeyInUse,
    NotFound,
    Overloaded,
    QuotaExceeded,
    ServerError,
    TimedOut,
    Unavailable,
    Unreachable,
    UnreadableReply,
    ValidationFailed,
)
from holdfast.client.calls import Ask, at, etag_word, may_ask_again, pause_seconds, query_of, retry_after_seconds
from holdfast.client.errors import kind_of
from holdfast.engine.errors import BadInput, NotJson
from tests.client.support import (
    ME,
    Behaviour,
    Pauses,
    answer,
    drop_after,
    drop_before,
    half,
    hang,
    patient,
    problem,
    stand_in,
    trickle,
)

ACCEPTED = answer(202, {"instance_id": "ins_1", "accepted": "cancel"})
TROUBLE = [
    drop_before,
    drop_after,
    half,
    hang,
    problem(503, "unavailable"),
    problem(503, "overloaded", retry_after="1"),
    problem(429, "quota-exceeded", retry_after="2"),
    problem(409, "idempotency-key-in-use", retry_after="1"),
    answer(502, "<h1>Bad Gateway</h1>", "text/html"),
    answer(504, "", "text/plain"),
]


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_a_change_is_asked_for_again_with_the_same_key(trouble: Behaviour) -> None:
    async with stand_in(trouble, trouble, ACCEPTED) as server, patient(server.url, timeout=0.5) as client:
        done = await client.instances.cancel("ins_1", "enough")
    assert done.accepted == "cancel" and server.connections == 3
    assert len({seen.key for seen in server.seen}) == 1 and server.seen[0].key is not None
    assert {seen.body for seen in server.seen} == {b'{"reason":"enough"}'}


async def test_every_call_has_a_key_of_its_own_unless_the_caller_gives_one() -> None:
    async with stand_in(ACCEPTED) as server, patient(server.url) as client:
        await client.instances.cancel("ins_1")
        await client.instances.cancel("ins_1")
        await client.instances.cancel("ins_1", idempotency_key="mine-1")
        for bad in ("", "with space", 'quo"te', "x" * 256, "line\nbreak"):
            with pytest.raises(BadInput):
                await client.instances.cancel("ins_1", idempotency_key=bad)
    first, second, third = [seen.key for seen in server.seen]
    assert first != second and third == '"mine-1"'


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_a_question_is_asked_again(trouble: Behaviour) -> None:
    async with stand_in(trouble, answer(200, ME)) as server, patient(server.url, timeout=0.5) as client:
        assert (await client.me()).name == "ann"
    assert server.connections == 2 and all(seen.key is None for seen in server.seen)


async def test_without_attempts_left_the_last_error_is_raised() -> None:
    pauses = Pauses()
    script = (drop_after, problem(503, "overloaded"), problem(503, "unavailable"))
    async with stand_in(*script) as server, patient(server.url, retries=2, pauses=pauses) as client:
        with pytest.raises(Unavailable) as refused:
            await client.instances.cancel("ins_1")
    assert (refused.value.code, server.connections, len(pauses)) == ("unavailable", 3, 2)


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (problem(404, "not-found"), NotFound),
        (problem(409, "invalid-transition"), Conflict),
        (problem(422, "validation-failed"), ValidationFailed),
        (problem(400, "malformed-request"), BadRequest),
        (problem(500, "internal-error"), ServerError),
        (answer(500, "oh no", "text/plain"), UnreadableReply),
        (answer(401, "<html>log in</html>", "text/html"), UnreadableReply),
    ],
)
async def test_what_would_be_refused_again_is_not_asked_again(trouble: Behaviour, kind: type[ApiError]) -> None:
    async with stand_in(trouble) as server, patient(server.url) as client:
        with pytest.raises(kind):
            await client.me()
        with pytest.raises(kind):
            await client.instances.cancel("ins_1")
    assert server.connections == 2


@pytest.mark.parametrize("trouble", [drop_before, drop_after, half, hang, problem(503, "unavailable")])
async def test_what_has_no_key_is_not_sent_again_once_the_server_may_have_it(trouble: Behaviour) -> None:
    async with stand_in(trouble) as server, patient(server.url, timeout=0.5) as client:
        with pytest.raises((Unreachable, Unavailable)):
            await client.server.log_in("once")
    assert server.connections == 1


async def test_what_has_no_key_is_sent_again_if_nobody_was_there() -> None:
    pauses = Pauses()
    async with stand_in(drop_before) as server:
        url = server.url
    async with patient(url, retries=3, pauses=pauses) as client:
        with pytest.raises(Unreachable) as refused:
            await client.server.log_in("once")
    assert (refused.value.sent, refused.value.status, len(pauses)) == (False, 0, 3)


async def test_a_pause_doubles_and_is_never_shorter_than_the_server_asks_for() -> None:
    pauses = Pauses()
    script = (
        drop_after, drop_after, problem(429, "quota-exceeded", retry_after="7"), problem(503, "overloaded"),
        answer(200, ME),
    )  # fmt: skip
    async with stand_in(*script) as server, patient(server.url, pauses=pauses) as client:
        await client.me()
    assert pauses == pytest.approx([0.15, 0.3, 7.6, 1.2])
    assert pause_seconds(50, None, 1.0) == 10.0
    assert [pause_seconds(1, None, chance) for chance in (0.0, 1.0)] == pytest.approx([0.1, 0.2])


async def test_who_is_to_wait_for_very_long_is_told_instead() -> None:
    pauses = Pauses()
    busy = problem(429, "quota-exceeded", retry_after="3600")
    async with stand_in(busy) as server, patient(server.url, pauses=pauses) as client:
        with pytest.raises(QuotaExceeded) as refused:
            await client.me()
    assert (refused.value.retry_after, pauses, server.connections) == (3600.0, [], 1)


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 11, 16, 10, 0, 0, tzinfo=UTC)
    assert retry_after_seconds("Mon, 16 Nov 2026 10:00:05 GMT", now) == 5.0
    assert retry_after_seconds("Mon, 16 Nov 2026 09:00:00 GMT", now) == 0.0
    assert [retry_after_seconds(word, now) for word in ("12", " 3 ", None, "soon", "-1", "9" * 40)] == [
        12.0, 3.0, None, None, None, None,
    ]  # fmt: skip


async def test_time_runs_out_also_for_an_answer_that_trickles() -> None:
    async with stand_in(trickle) as server, patient(server.url, timeout=0.2, retries=1) as client:
        with pytest.raises(TimedOut) as refused:
            await client.instances.cancel("ins_1")
    assert refused.value.sent and server.connections == 2


async def test_a_key_that_stays_in_use_says_so() -> None:
    async with (
        stand_in(problem(409, "idempotency-key-in-use", retry_after="1")) as server,
        patient(server.url, retries=2) as client,
    ):
        with pytest.raises(IdempotencyKeyInUse):
            await client.instances.cancel("ins_1", idempotency_key="k")
    assert {seen.key for seen in server.seen} == {'"k"'} and server.connections == 3


# -- answers that are not ours


@pytest.mark.parametrize(
    "reply",
    [
        answer(200, "<html>Welcome to the hotel's network</html>", "text/html"),
        answer(302, "", "text/html", location="https://login.example/"),
        answer(404, "<h1>nginx</h1>", "text/html"),
        answer(404, "no problem", "application/problem+json"),
        answer(404, {"title": "without a code"}, "application/problem+json"),
        answer(404, {"detail": "another server's"}),
    ],
)
async def test_a_reply_that_is_not_holdfasts_says_what_came(reply: Behaviour) -> None:
    async with stand_in(reply) as server, patient(server.url) as client:
        with pytest.raises(UnreadableReply, match="not Holdfast's") as refused:
            await client.me()
    assert server.url in str(refused.value) and server.connections == 1


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    async with stand_in(answer(200, ME)) as other, stand_in(answer(307, "", "text/html", location=other.url)) as server:
        async with patient(server.url) as client:
            with pytest.raises(UnreadableReply, match=other.url):
                await client.me()
    assert other.connections == 0


@pytest.mark.parametrize("body", ['{"tenant_id": 7}', '{"tenant_id": "x"', "[]", ""])
async def test_an_answer_that_this_client_does_not_understand_says_that_it_went_well(body: str) -> None:
    async with stand_in(answer(200, body)) as server, patient(server.url) as client:
        with pytest.raises(UnreadableReply, match="it went well"):
            await client.me()


async def test_what_a_newer_server_says_besides_is_passed_over() -> None:
    newer = {**ME, "colour": "red", "etag": "no"}
    async with stand_in(answer(200, newer)) as server, patient(server.url) as client:
        assert (await client.me()).name == "ann"
    body = {"code": "brand-new", "detail": "later", "errors": [{"detail": "x", "pointer": "/y", "line": 3}], "more": 1}
    async with stand_in(answer(409, body, "application/problem+json")) as server, patient(server.url) as client:
        with pytest.raises(Conflict) as refused:
            await client.me()
    assert (type(refused.value), refused.value.code) == (Conflict, "brand-new")
    assert kind_of("brand-new", 418) is ApiError and kind_of("brand-new", 507) is ServerError
    assert issubclass(Overloaded, Unavailable)


# -- words


async def test_what_json_cannot_carry_is_refused_before_it_is_sent() -> None:
    async with stand_in(ACCEPTED) as server, patient(server.url) as client:
        for bad in (float("nan"), object(), {"a": {1: {2: object()}}}, "\ud800"):
            with pytest.raises(NotJson):
                await client.instances.start("k", {"x": bad})
    assert server.connections == 0


async def test_no_word_of_a_caller_leads_to_another_route() -> None:
    async with stand_in(problem(404, "not-found")) as server, patient(server.url) as client:
        for word in ("", ".", ".."):
            with pytest.raises(BadInput):
                await client.instances.read(word)
        for word in ("../keys", "a/b", "x?y=1", "x#y", "ü", "%2e%2e", "a b"):
            with pytest.raises(NotFound):
                await client.instances.read(word)
    assert [seen.path for seen in server.seen] == [
        f"/workflow/instances/{quoted}"
        for quoted in ("..%2Fkeys", "a%2Fb", "x%3Fy%3D1", "x%23y", "%C3%BC", "%252e%252e", "a%20b")
    ]


def test_words_on_the_wire() -> None:
    moment = datetime(2026, 11, 16, 10, tzinfo=UTC)
    assert query_of({"a": None, "b": ["x", "y"], "c": moment, "d": 3, "e": "text"}) == {
        "b": "x,y", "c": "2026-11-16T10:00:00+00:00", "d": "3", "e": "text",
    }  # fmt: skip
    assert [etag_word(given) for given in (7, "7", '"7"', 'W/"7"', "*")] == ['"7"', '"7"', '"7"', 'W/"7"', "*"]
    assert at("definitions", "expense@2") == "/workflow/definitions/expense@2"
    ask = Ask(method="POST", path="/", repeatable=True)
    assert not may_ask_again(ask, ApiError("x", status=409, code="business-key-taken"))


async def test_an_answer_carries_its_etag() -> None:
    one = {
        "id": "ins_1", "definition_key": "k", "definition_version": 1, "kind": "code", "status": "pending",
        "waiting_on": None, "current_state": None, "business_key": None, "queue": "default", "input": None,
        "result": None, "last_error": None, "compensation": None, "parent_id": None, "trace_id": None,
        "created_by": None, "created_at": "2026-11-16T10:00:00Z", "started_at": None, "completed_at": None,
        "run_at": None,
    }  # fmt: skip
    script = (answer(201, one, etag='"7"'), answer(201, {**one, "etag": "what the body says"}))
    async with stand_in(*script) as server, patient(server.url) as client:
        made = await client.instances.start("k")
        assert isinstance(made, InstanceOut) and made.etag == '"7"'
        assert (await client.instances.start("k")).etag is None
    assert json.loads(server.seen[0].body) == {"definition_key": "k"}


async def test_a_wait_is_asked_for_and_waited_for() -> None:
    async with stand_in(hang) as server, patient(server.url, timeout=0.1, retries=0) as client:
        with pytest.raises(TimedOut, match=r"within 2\.1 seconds"):
            await client.instances.send("ins_1", "go", strict=True, wait=1.2)
    assert server.seen[0].headers["prefer"] == "wait=2"


# -- making one


def test_a_client_is_made_from_the_environment(tmp_path: Path) -> None:
    kept = tmp_path / "key"
    kept.write_text("hfst_test_abc\n")
    url = {"HOLDFAST_URL": "http://127.0.0.1:8700/"}
    client = Client.from_env(url | {"HOLDFAST_KEY_FILE": str(kept)})
    assert repr(client) == "<Client of http://127.0.0.1:8700>"
    assert client._connection.http.headers["authorization"] == "Bearer hfst_test_abc"
    with BlockingClient.from_env(url | {"HOLDFAST_KEY": "hfst_test_x"}) as blocking:
        assert repr(blocking) == "<BlockingClient of http://127.0.0.1:8700>"
    for bad, words in (
        ({}, "HOLDFAST_URL is not set"),
        (url, "one of HOLDFAST_KEY and HOLDFAST_KEY_FILE"),
        (url | {"HOLDFAST_KEY": "a", "HOLDFAST_KEY_FILE": "b"}, "one of HOLDFAST_KEY and HOLDFAST_KEY_FILE"),
        (url | {"HOLDFAST_KEY_FILE": str(tmp_path / "none")}, "cannot be read"),
        ({"HOLDFAST_URL": "localhost:8700", "HOLDFAST_KEY": "a"}, "no address of a server"),
        (url | {"HOLDFAST_KEY": "two words"}, "the key is empty"),
    ):
        with pytest.raises(BadInput, match=words):
            Client.from_env(bad)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"retries": -1}])
def test_a_client_that_could_never_ask_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        Client("http://127.0.0.1:1", "k", **options)  # type: ignore[arg-type]
