"""The OpenAI-compatible client against a real server on loopback that answers well, badly, late, or not at all."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from holdfast.engine.effects import known_from
from holdfast.engine.errors import NotApplied, Rejected
from holdfast.handlers.llm import BadReply, LlmFailed, OpenAiCompatible
from holdfast.handlers.ports import LlmReply, LlmRequest
from holdfast.handlers.script import ScriptedLlm

KEY = "sk-test-0123456789abcdef"
REQUEST = LlmRequest(
    model="asked-model",
    system="Be careful.",
    messages=[{"role": "user", "content": "Judge „it”."}],
    schema={"type": "object"},
    max_tokens=77,
    timeout_seconds=30,
    idempotency_key="tsk-1.2",
)
GOOD: dict[str, Any] = {
    "id": "chatcmpl-1",
    "model": "real-model-2026-01-01",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": '{"a": "ü"}'}}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
}
Act = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Provider:
    """Remembers each request; `act` writes what comes back."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append((first, headers, json.loads(body)))
            await self.act(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client hung up first: some tests make it
        finally:
            writer.close()


@asynccontextmanager
async def provider(act: Act) -> AsyncIterator[Provider]:
    fake = Provider(act)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/"
    try:
        yield fake
    finally:
        server.close()


def answering(body: Any, status: int = 200, headers: str = "", length: int | None = None) -> Act:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def act(writer: asyncio.StreamWriter) -> None:
        size = len(raw) if length is None else length
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {size}\r\n{headers}\r\n".encode() + raw)
        await writer.drain()

    return act


def client_of(fake: Provider, **given: Any) -> OpenAiCompatible:
    return OpenAiCompatible(fake.url, lambda: KEY, "own-model", **given)


async def failure(act: Act, request: LlmRequest = REQUEST, **given: Any) -> Exception:
    async with provider(act) as fake:
        with pytest.raises(Exception) as raised:
            await client_of(fake, **given).complete(request)
    assert KEY not in str(raised.value)
    assert KEY not in repr(raised.value)
    if isinstance(raised.value, BadReply):
        assert KEY not in raised.value.reply.text
    return raised.value


def changed(**message: Any) -> dict[str, Any]:
    choice = GOOD["choices"][0]
    return GOOD | {"choices": [choice | {"message": choice["message"] | message}]}


async def test_it_asks_for_json_by_schema_and_gives_back_text_model_and_tokens() -> None:
    async with provider(answering(GOOD)) as fake:
        reply = await client_of(fake).complete(REQUEST)
    assert reply == LlmReply(text='{"a": "ü"}', model="real-model-2026-01-01", input_tokens=12, output_tokens=5)
    [(first, headers, body)] = fake.requests
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["idempotency-key"] == "tsk-1.2"
    assert headers["accept-encoding"] == "identity"
    assert body == {
        "model": "asked-model",
        "messages": [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "Judge „it”."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": False},
        },
        "max_tokens": 77,
        "stream": False,
    }


async def test_the_operator_may_name_the_model_and_shape_the_request() -> None:
    async with provider(answering(GOOD)) as fake:
        llm = client_of(
            fake, max_tokens_field="max_completion_tokens", extra={"temperature": 0, "stream": True}, strict=True
        )
        await llm.complete(
            LlmRequest(
                model="", system="", messages=[], schema={}, max_tokens=1, timeout_seconds=30, idempotency_key="k"
            )
        )
    body = fake.requests[0][2]
    assert (body["model"], body["max_completion_tokens"], body["temperature"]) == ("own-model", 1, 0)
    assert body["stream"] is False  # an extra adds to what we say and never overrules it
    assert body["response_format"]["json_schema"]["strict"] is True
    assert "max_tokens" not in body


async def test_a_server_that_asks_for_no_key_gets_none() -> None:
    async with provider(answering(GOOD)) as fake:
        await OpenAiCompatible(fake.url, lambda: "", "m").complete(REQUEST)
    assert "authorization" not in fake.requests[0][1]


async def test_the_client_comes_from_a_factory_that_may_be_replaced() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url == "https://models.example/v1/chat/completions"
        return httpx.Response(200, content=json.dumps(GOOD).encode())

    llm = OpenAiCompatible(
        "https://models.example/v1",
        lambda: KEY,
        "m",
        client=lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)),
    )
    assert (await llm.complete(REQUEST)).text == '{"a": "ü"}'


# What an error says about the world


@pytest.mark.parametrize("status", [300, 301, 302, 307, 400, 401, 403, 404, 409, 413, 422])
async def test_a_definite_no_is_rejected(status: int) -> None:
    words = {"error": {"message": f"Incorrect API key provided: {KEY}. " + "x" * 9000}}
    error = await failure(answering(words, status, "Location: http://127.0.0.1:1/\r\n"))
    assert isinstance(error, Rejected)
    assert str(error).startswith(f"the model's server answered {status}: Incorrect API key provided: [key].")
    assert len(str(error)) < 400


@pytest.mark.parametrize("status", [408, 425, 429])
async def test_a_server_that_did_not_begin_may_be_asked_again(status: int) -> None:
    assert isinstance(await failure(answering({"error": "slow down"}, status)), NotApplied)


@pytest.mark.parametrize("status", [202, 500, 502, 503, 529])
async def test_other_statuses_leave_it_unknown(status: int) -> None:
    error = await failure(answering(b"<html>", status))
    assert isinstance(error, LlmFailed)
    assert known_from(error) == "unknown"


async def test_a_huge_error_page_is_judged_by_its_status() -> None:
    error = await failure(answering(b"x" * 100_000, 403), response_limit=1000)
    assert isinstance(error, Rejected)
    error = await failure(answering(gzip.compress(b" " * 10_000_000), 403, "Content-Encoding: gzip\r\n"))
    assert isinstance(error, Rejected)


async def test_a_connection_that_was_never_opened_means_that_nothing_happened() -> None:
    async with provider(answering(GOOD)) as fake:
        pass
    with pytest.raises(NotApplied, match="no connection to the model"):
        await client_of(fake).complete(REQUEST)
    with pytest.raises(NotApplied, match="no connection to the model"):
        await OpenAiCompatible("http://model.invalid", lambda: KEY, "m").complete(REQUEST)


async def test_a_server_without_tls_never_sees_the_request() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(65_536))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NotApplied):
            await OpenAiCompatible(f"https://127.0.0.1:{port}", lambda: KEY, "m").complete(REQUEST)
    assert seen
    assert KEY.encode() not in seen[0]


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout])
async def test_what_is_called_a_failed_connection_is_unknown_once_a_byte_has_left(error: type[Exception]) -> None:
    class Retrying(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await request.extensions["trace"]("http11.send_request_headers.started", {})
            raise error("the second try found no connection")

    llm = OpenAiCompatible("http://m", lambda: KEY, "m", client=lambda: httpx.AsyncClient(transport=Retrying()))
    with pytest.raises(LlmFailed):
        await llm.complete(REQUEST)


@pytest.mark.parametrize("url", ["ftp://model", "model/v1", "", "http://[::1", "http://\x00"])
async def test_a_url_that_cannot_be_called_is_rejected(url: str) -> None:
    with pytest.raises(Rejected, match="correct base_url"):
        await OpenAiCompatible(url, lambda: KEY, "m").complete(REQUEST)


async def test_a_server_that_hangs_up_before_it_answers_leaves_it_unknown() -> None:
    async def hang_up(writer: asyncio.StreamWriter) -> None:
        writer.close()

    assert isinstance(await failure(hang_up), LlmFailed)


async def test_an_answer_cut_in_the_middle_leaves_it_unknown() -> None:
    whole = json.dumps(GOOD).encode()
    assert isinstance(await failure(answering(whole[:40], length=len(whole))), LlmFailed)


async def test_an_answer_that_is_not_http_leaves_it_unknown() -> None:
    async def babble(writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01 hello\r\n\r\n")

    assert isinstance(await failure(babble), LlmFailed)


async def test_a_server_that_never_answers_is_given_up_on() -> None:
    asked = asyncio.Event()

    async def never(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    request = LlmRequest(
        model="", system="", messages=[], schema={}, max_tokens=1, timeout_seconds=1.0, idempotency_key="k"
    )
    error = await failure(never, request)
    assert asked.is_set()
    assert isinstance(error, LlmFailed)


async def test_a_server_that_trickles_for_ever_is_given_up_on() -> None:
    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    request = LlmRequest(
        model="", system="", messages=[], schema={}, max_tokens=1, timeout_seconds=1.5, idempotency_key="k"
    )
    error = await failure(trickle, request)
    assert isinstance(error, LlmFailed)
    assert "within 1.5 s" in str(error)


# Answers that arrived and cannot be used


async def test_an_answer_beyond_the_limit_is_not_read_to_its_end() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    error = await failure(endless)
    assert isinstance(error, BadReply)
    assert "more than 1,048,576 bytes" in str(error)


async def test_a_compressed_answer_is_not_unfolded() -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    error = await failure(answering(bomb, headers="Content-Encoding: gzip\r\n"))
    assert isinstance(error, BadReply)
    assert "compressed" in str(error)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b"{", b"\xff\xfe", b"[" * 100_000, b'{"choices": 5}', b'{"choices": []}',
     b'{"choices": [null]}', b'{"choices": [{"message": {}}]}', b'{"choices": [{"message": {"content": null}}]}',
     b'{"choices": [{"message": {"content": ["x"]}}]}', b'{"choices": [{"message": {"content": ""}}]}',
     b'{"choices": [{"message": {"content": "\\ud800"}}]}', b"Bearer " + KEY.encode()],
)  # fmt: skip
async def test_an_answer_of_another_shape_is_a_bad_reply_in_words(body: bytes) -> None:
    error = await failure(answering(body))
    assert isinstance(error, BadReply)
    assert str(error).startswith("the model's server answered with")


async def test_a_model_that_declines_is_quoted() -> None:
    error = await failure(answering(changed(content=None, refusal="I cannot help with that.")))
    assert isinstance(error, BadReply)
    assert error.reply == LlmReply(
        text="I cannot help with that.", model="real-model-2026-01-01", input_tokens=12, output_tokens=5
    )


async def test_an_answer_cut_at_max_tokens_says_so_and_is_kept() -> None:
    cut = GOOD | {"choices": [GOOD["choices"][0] | {"finish_reason": "length"}]}
    error = await failure(answering(cut))
    assert isinstance(error, BadReply)
    assert str(error) == "the answer was cut at max_tokens"
    assert error.reply.text == '{"a": "ü"}'


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": "5"}, {"prompt_tokens": -5}, {"prompt_tokens": True},
                                   {"prompt_tokens": 10**30}, {"prompt_tokens": 1.5}])  # fmt: skip
async def test_counts_that_cannot_be_are_not_believed(usage: Any) -> None:
    async with provider(answering(GOOD | {"usage": usage, "model": 5})) as fake:
        reply = await client_of(fake).complete(REQUEST)
    assert (reply.input_tokens, reply.output_tokens, reply.model) == (0, 0, "")


# The key


async def test_a_key_that_cannot_be_read_sends_nothing_and_tells_nothing() -> None:
    def broken() -> str:
        raise RuntimeError(KEY)

    async with provider(answering(GOOD)) as fake:
        with pytest.raises(NotApplied) as raised:
            await OpenAiCompatible(fake.url, broken, "m").complete(REQUEST)
        for key in (f"{KEY}\n", f"{KEY}\r\nX-Evil: 1", "ключ", f"a {KEY}", None):
            with pytest.raises(Rejected) as rejected:
                await OpenAiCompatible(fake.url, lambda key=key: key, "m").complete(REQUEST)  # type: ignore[misc]
            assert KEY not in str(rejected.value)
    assert KEY not in str(raised.value)
    assert raised.value.__cause__ is None
    assert fake.requests == []


async def test_a_missing_secret_keeps_its_own_words() -> None:
    def missing() -> str:
        raise Rejected("secret 'openai' is missing")

    with pytest.raises(Rejected, match="secret 'openai'"):
        await OpenAiCompatible("http://127.0.0.1:1", missing, "m").complete(REQUEST)


async def test_a_request_that_is_not_json_sends_nothing() -> None:
    async with provider(answering(GOOD)) as fake:
        with pytest.raises(Rejected, match="cannot be written as JSON"):
            await client_of(fake).complete(
                LlmRequest(model="", system="\ud800", messages=[], schema={}, max_tokens=1, timeout_seconds=1,
                           idempotency_key="k")
            )  # fmt: skip
    assert fake.requests == []


# The script


async def test_a_script_answers_in_order_and_remembers_what_it_was_asked() -> None:
    reply = LlmReply(text="three", model="m", input_tokens=1, output_tokens=2)
    llm = ScriptedLlm(["one", NotApplied("away"), reply])
    first = await llm.complete(REQUEST)
    assert (first.text, first.model) == ("one", "scripted")
    assert first.input_tokens > 0
    assert first.output_tokens > 0
    with pytest.raises(NotApplied, match="away"):
        await llm.complete(REQUEST)
    assert await llm.complete(REQUEST) is reply
    with pytest.raises(Rejected, match="the script holds 3 replies, and this is request 4"):
        await llm.complete(REQUEST)
    assert llm.requests == [REQUEST] * 4


async def test_a_script_may_be_a_function_of_the_request() -> None:
    llm = ScriptedLlm(lambda request: request.messages[0]["content"], model="echo")
    assert (await llm.complete(REQUEST)).text == "Judge „it”."
