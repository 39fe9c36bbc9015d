"""Asks a model: any server that speaks OpenAI's chat completions. A script in its place: `script.py`.

What comes back is text and counts. Whether the text means anything, and what may follow from it, is not known here.

A call to the model does not pass `egress.py`, the tenants' way out. That one holds a URL an author wrote to the hosts
the tenant allows and to public addresses. The model's URL is the operator's own, from `Outside(…)` or the environment:
no chart and no tenant can change it, and it is often a server in the same house, which the tenants' way out refuses.
So it gets a client of its own. No redirect is followed, so the server cannot send the request and its key elsewhere.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

from holdfast.engine.ai import TOKENS_MAX, clip
from holdfast.engine.errors import NotApplied, Rejected
from holdfast.engine.retry import storable
from holdfast.handlers.ports import LlmReply, LlmRequest

RESPONSE_LIMIT = 1 << 20
CONNECT_SECONDS = 10.0
KNOWN_UNTOUCHED = frozenset({408, 425, 429})  # the server says that it did not begin


class LlmFailed(Exception):
    """Nobody can say whether the model was run: no full answer came back. To repeat it is harmless, and may cost."""


class BadReply(Exception):
    """The model was run and its answer arrived, and nothing in it can be used. `raw` is what came."""

    def __init__(
        self, words: str, raw: str = "", model: str = "", input_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        super().__init__(words)
        self.reply = LlmReply(text=raw, model=model, input_tokens=input_tokens, output_tokens=output_tokens)


class OpenAiCompatible:
    """`base_url` is the operator's word, so it may be a server in the same house; an author cannot change it.

    `client` makes the HTTP client for one call: a proxy, an own certificate authority, a test's transport.
    """

    def __init__(
        self,
        base_url: str,
        key: Callable[[], str],
        model: str,
        *,
        client: Callable[[], httpx.AsyncClient] | None = None,
        response_limit: int = RESPONSE_LIMIT,
        strict: bool = False,
        max_tokens_field: str = "max_tokens",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._key = key
        self._model = model
        self._client = client or self._plain_client
        self._response_limit = response_limit
        self._strict = strict
        self._max_tokens_field = max_tokens_field
        self._extra = dict(extra or {})
        self._trusted: ssl.SSLContext | None = None

    def _plain_client(self) -> httpx.AsyncClient:
        # Reading the certificate authorities takes longer than making a client: once for all calls.
        self._trusted = self._trusted or httpx.create_ssl_context()
        return httpx.AsyncClient(verify=self._trusted, follow_redirects=False, trust_env=False)

    async def complete(self, request: LlmRequest) -> LlmReply:
        key = self._read_key()
        try:
            content = msgspec.json.encode(self._body(request))
        except (ValueError, TypeError, RecursionError) as error:
            raise Rejected(f"the request to the model cannot be written as JSON ({type(error).__name__})") from None
        sent = _Sent()
        try:
            async with asyncio.timeout(request.timeout_seconds):
                status, answer = await self._post(content, request, key, sent)
        except TimeoutError:
            raise LlmFailed(f"the model did not answer within {request.timeout_seconds:g} s") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise Rejected("the model's base URL is not one that can be called: correct base_url") from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
            if sent.begun:  # never seen; a client of one's own may retry inside
                raise LlmFailed(f"the connection to the model was lost: {type(error).__name__}") from None
            raise NotApplied(f"no connection to the model could be opened: {_words(error, key)}") from None
        except httpx.HTTPError as error:
            raise LlmFailed(f"no full answer came from the model: {_words(error, key)}") from None
        if status != 200:
            raise _refusal(status, _provider_words(answer, key))
        return _reply(answer, key)

    def _read_key(self) -> str:
        try:
            key = self._key()
        except (NotApplied, Rejected):
            raise
        except Exception as error:  # its words may hold what it read
            raise NotApplied(f"the key for the model cannot be read ({type(error).__name__})") from None
        if not isinstance(key, str) or not key.isascii() or not key.isprintable() or " " in key:
            raise Rejected("the key for the model holds characters that no header can carry: correct the secret")
        return key

    async def _post(self, content: bytes, request: LlmRequest, key: str, sent: _Sent) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if key:  # a server in the same house may ask for none
            headers["Authorization"] = f"Bearer {key}"
        headers["Idempotency-Key"] = request.idempotency_key
        seconds = request.timeout_seconds
        async with (
            self._client() as client,
            client.stream(
                "POST",
                self._url,
                content=content,
                headers=headers | {"Content-Type": "application/json"},
                timeout=httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds / 2)),
                extensions={"trace": sent.trace},
                follow_redirects=False,
            ) as response,
        ):
            return response.status_code, await self._read(response)

    def _body(self, request: LlmRequest) -> dict[str, Any]:
        return self._extra | {
            "model": request.model or self._model,
            "messages": [{"role": "system", "content": request.system}, *request.messages],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": request.schema, "strict": self._strict},
            },
            self._max_tokens_field: request.max_tokens,
            "stream": False,
        }

    async def _read(self, response: httpx.Response) -> bytes:
        good, body = response.status_code == 200, bytearray()
        # Asked for as it is: a few compressed bytes could unfold to more than the limit before it is looked at.
        if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            if good:
                raise BadReply("the model's server compressed its answer, though it was asked not to")
            return b""
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > self._response_limit:
                if good:
                    raise BadReply(f"the model's server answered with more than {self._response_limit:,} bytes")
                break  # its status has said enough
        return bytes(body)


class _Sent:
    """Whether a byte of the request may have left."""

    def __init__(self) -> None:
        self.begun = False

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started"):
            self.begun = True


def _refusal(status: int, said: str) -> Exception:
    words = f"the model's server answered {status}{said}"
    if status in KNOWN_UNTOUCHED:
        return NotApplied(words)
    if 300 <= status < 500:
        return Rejected(words + (" (redirects are not followed)" if status < 400 else ""))
    return LlmFailed(words)


def _reply(body: bytes, key: str) -> LlmReply:
    raw = _without(key, body.decode("utf-8", "replace"))
    try:
        answer = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise BadReply(
            f"the model's server answered with something that is not JSON ({type(error).__name__})", raw
        ) from None
    choices = _field(answer, "choices")
    message = _field(choices[0], "message") if isinstance(choices, list) and choices else None
    text, declined, usage = _field(message, "content"), _field(message, "refusal"), _field(answer, "usage")
    model = _field(answer, "model")
    known: dict[str, Any] = {
        "model": clip(storable(model), 200) if isinstance(model, str) else "",
        "input_tokens": _tokens(_field(usage, "prompt_tokens")),
        "output_tokens": _tokens(_field(usage, "completion_tokens")),
    }
    if isinstance(text, str) and text:
        if _field(choices[0], "finish_reason") == "length":
            raise BadReply("the answer was cut at max_tokens", _without(key, text), **known)
        return LlmReply(text=_without(key, text), **known)
    if isinstance(declined, str) and declined:
        raise BadReply("the model declined to answer", _without(key, declined), **known)
    raise BadReply("the model's server answered without a text in choices[0].message.content", raw, **known)


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _tokens(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKENS_MAX:
        return 0
    return value


def _provider_words(body: bytes, key: str) -> str:
    """`: …` with what the server says is wrong, in short; empty if it does not say it the usual way."""
    try:
        error = _field(msgspec.json.decode(body), "error")
    except (ValueError, RecursionError):
        return ""
    message = error if isinstance(error, str) else _field(error, "message")
    return f": {clip(_without(key, storable(message)), 300)}" if isinstance(message, str) else ""


def _words(error: Exception, key: str) -> str:
    return clip(_without(key, f"{type(error).__name__}: {error}"), 300)


def _without(key: str, text: str) -> str:
    """A short key is a stand-in for a server that asks for none, and would be found in any word."""
    return text.replace(key, "[key]") if len(key) >= 8 else text
