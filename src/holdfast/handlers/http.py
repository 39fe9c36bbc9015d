"""HTTP tasks: builds the request an author asked for, and says what its answer means.

Secrets stand in a task by name and are filled in here, last of all; nothing that leaves this module towards the
store, a log or an error holds them. Where a request may go is `egress`' business, what a status means the engine's.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode, urlsafe_b64encode
from typing import Annotated, Any, Literal
from urllib.parse import quote, quote_plus, urlencode

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.engine.errors import BadInput, NotApplied, Rejected
from holdfast.engine.http_outcomes import checked_outcomes, outcome_of, retry_after_seconds
from holdfast.engine.retry import storable
from holdfast.engine.tasks import TaskInfo
from holdfast.engine.trace import parse_traceparent
from holdfast.handlers.egress import REDIRECTS_MAX, RESPONSE_BYTES, TIMEOUT, Answer, Egress, OutcomeUnknown, Request
from holdfast.handlers.ports import Secrets, TenantPolicies

TIMEOUT_MAX = 300.0
RESPONSE_BYTES_MAX = 8 << 20
HIDDEN = "***"
EXCERPT = 200
DEPTH_MAX = 150  # below what the store's codec takes
EXACT_MAX = 1 << 53
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# What the connection, the body's length or the idempotency key decide is not the author's to say.
REFUSED_HEADERS = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings", "idempotency-key",
    "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
SHOWN_HEADERS = frozenset({
    "cache-control", "content-language", "content-type", "date", "etag", "expires", "idempotent-replayed",
    "last-modified", "link", "location", "request-id", "retry-after", "x-correlation-id", "x-request-id",
})  # fmt: skip
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "iso-8859-15", "windows-1252"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}\Z")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")
_JSON_TYPE = re.compile(r"application/(?:[a-z0-9!#$&^_.+-]+\+)?json\Z")


class TryLater(NotApplied):
    """The server did nothing and may do it later; `retry_after` is how many seconds it asks to wait, if it says."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a chart may say about an HTTP task."""

    url: str
    method: str = "POST"
    headers: dict[str, Any] = {}
    query: dict[str, Any] = {}
    json: Any = UNSET
    form: dict[str, Any] | UnsetType = UNSET
    body: str | UnsetType = UNSET
    timeout: Annotated[float, Meta(gt=0, le=TIMEOUT_MAX)] = TIMEOUT
    """Seconds for the whole call."""
    max_response_bytes: Annotated[int, Meta(gt=0, le=RESPONSE_BYTES_MAX)] = RESPONSE_BYTES
    """Of the body, unpacked."""
    follow_redirects: Annotated[int, Meta(ge=0, le=REDIRECTS_MAX)] = 0
    outcomes: dict[str, str] = {}
    output: Literal["full", "body"] = "full"
    idempotency_header: str = "Idempotency-Key"


class HttpHandler:
    """Serves HTTP tasks. Returns `{"status", "headers", "body"}`, or the body alone if the task says so.

    Raises `NotApplied` or `Rejected` when it is known that nothing happened; any other error means nobody knows.
    """

    def __init__(self, egress: Egress, secrets: Secrets, policies: TenantPolicies) -> None:
        self._egress = egress
        self._secrets = secrets
        self._policies = policies

    async def __call__(self, task: TaskInfo) -> Any:
        options = options_of(task.options)
        outcomes = _or_rejected(checked_outcomes, options.outcomes)
        allowed = await self._allowed(task.tenant_id)
        filler = _Filler(self._secrets, task.tenant_id)
        try:
            request = _request(options, task, filler)
        except (NotApplied, Rejected):
            raise
        except Exception as error:  # a lone surrogate, say; nothing has been sent
            kind = type(error).__name__  # not its text, which may quote a secret
            raise Rejected(f"the request could not be written from the task's options ({kind})") from None
        hidden = Hidden(filler.values)
        problem: Exception
        try:
            answer = await self._egress.send(request, tenant_id=task.tenant_id, allowed=allowed)
        except (NotApplied, Rejected, OutcomeUnknown) as error:
            problem = type(error)(hidden.text(str(error)))
        else:
            return self._concluded(answer, options, outcomes, hidden)
        raise problem  # out here, so that it does not carry the unredacted one along

    async def _allowed(self, tenant_id: str) -> tuple[str, ...]:
        try:
            return (await self._policies.of(tenant_id)).http_hosts
        except Exception as error:  # nothing has been sent, and it would count as unknown
            raise NotApplied(f"the policy of tenant {tenant_id!r} could not be read: {error!r}") from error

    def _concluded(self, answer: Answer, options: Options, outcomes: Any, hidden: Hidden) -> Any:
        what = f"{options.method.upper()} {hidden.text(answer.origin)} was answered with {answer.status}"
        outcome = outcome_of(answer.status, outcomes)
        if outcome == "succeeded":
            if answer.problem is not None:
                raise OutcomeUnknown(f"{what}, so it probably happened, but {hidden.text(answer.problem)}")
            body = _body(answer, hidden)
            return body if options.output == "body" else _full(answer, body, hidden)
        text = f"{what}{_excerpt(answer, hidden)}"
        if outcome == "rejected":
            raise Rejected(text)
        asked = retry_after_seconds(answer.header("retry-after"), self._egress.now())
        raise TryLater(text, asked) if outcome == "not_applied" else OutcomeUnknown(text, asked)


def options_of(options: dict[str, Any]) -> Options:
    """The task's options, or `Rejected` in words that name the wrong one."""
    try:
        parsed = msgspec.convert(options, Options)
    except msgspec.ValidationError as error:
        raise Rejected(f"the options of the HTTP task cannot be used: {error}") from None
    method = parsed.method.upper()
    if method not in METHODS:
        raise Rejected(f"method is {parsed.method!r}: expected one of {', '.join(METHODS)}")
    bodies = [name for name in ("json", "form", "body") if getattr(parsed, name) is not UNSET]
    if len(bodies) > 1:
        raise Rejected(f"the HTTP task has {' and '.join(bodies)}: give one of json, form and body")
    if parsed.follow_redirects and (method not in ("GET", "HEAD") or bodies):
        raise Rejected("follow_redirects works only for GET and HEAD without a body: a repeated request may act twice")
    return parsed


# ---- Building the request ------------------------------------------------------------------------------------------


def _request(options: Options, task: TaskInfo, filler: _Filler) -> Request:
    headers = _headers(options, task.idempotency_key, filler)
    content, content_type = _content(options, filler)
    given = {name.lower() for name, _ in headers}
    for name, value in (("Content-Type", content_type), ("Accept", "application/json, */*;q=0.5")):
        if value and name.lower() not in given:
            headers.append((name, value))
    if "user-agent" not in given:
        headers.append(("User-Agent", "holdfast"))
    if task.trace_id is not None and "traceparent" not in given and parse_traceparent(task.trace_id) is not None:
        headers.append(("traceparent", task.trace_id))
    return Request(
        method=options.method.upper(),
        url=options.url,
        query=tuple(_pairs("query", options.query, filler)),
        headers=tuple(headers),
        travelling=frozenset({"accept", "user-agent", options.idempotency_header.lower()}),
        content=content,
        timeout_seconds=options.timeout,
        max_response_bytes=options.max_response_bytes,
        follow_redirects=options.follow_redirects,
        not_after=task.not_after,
    )


def _headers(options: Options, key: str, filler: _Filler) -> list[tuple[str, str]]:
    renamed = options.idempotency_header
    if not _TOKEN.match(renamed) or (renamed.lower() in REFUSED_HEADERS and renamed.lower() != "idempotency-key"):
        raise Rejected(f"idempotency_header is {renamed!r}: it cannot carry the idempotency key")
    headers = [(renamed, key)]
    seen = {renamed.lower()}
    for name, given in options.headers.items():
        lower = name.lower()
        if not _TOKEN.match(name):
            raise Rejected(f"header name {name!r} holds a character that a header name cannot have")
        if lower == "idempotency-key" or lower == renamed.lower():
            raise Rejected(
                f"header {name!r} carries Holdfast's idempotency key and cannot be set: remove it from headers; "
                'if the provider wants another name, say "idempotency_header": "…"'
            )
        if lower in REFUSED_HEADERS:
            raise Rejected(f"header {name!r} is set by the connection and cannot be given: remove it from headers")
        if lower in seen:
            raise Rejected(f"header {name!r} is given twice")
        seen.add(lower)
        value = filler.text(f"header {name!r}", given)
        if not _HEADER_VALUE.match(value):
            # The value is not shown: it may be a secret.
            raise Rejected(f"the value of header {name!r} holds a line break, a control character or non-ASCII text")
        headers.append((name, value.strip(" \t")))
    return headers


def _content(options: Options, filler: _Filler) -> tuple[bytes, str | None]:
    if options.json is not UNSET:
        return msgspec.json.encode(filler.filled(options.json)), "application/json"
    if not isinstance(options.form, UnsetType):
        return urlencode(_pairs("form", options.form, filler)).encode(), "application/x-www-form-urlencoded"
    if not isinstance(options.body, UnsetType):
        return options.body.encode(), "text/plain; charset=utf-8"
    return b"", None


def _pairs(what: str, given: dict[str, Any], filler: _Filler) -> list[tuple[str, str]]:
    pairs = []
    for name, value in given.items():
        for item in value if isinstance(value, list) else [value]:
            pairs.append((name, filler.text(f"{what} parameter {name!r}", item)))
    return pairs


class _Filler:
    """Puts the values of secrets where their names stand, and remembers them for hiding."""

    def __init__(self, secrets: Secrets, tenant_id: str) -> None:
        self._secrets = secrets
        self._tenant_id = tenant_id
        self.values: list[str] = []

    def filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            if "@secret" in value:
                return self._secret(value)
            return {key: self.filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        return value

    def text(self, what: str, value: Any) -> str:
        """A header, query or form value: a text, a number, true or false, or a secret."""
        if isinstance(value, dict) and "@secret" in value:
            return self._secret(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (str, int, float)):
            return str(value)
        raise Rejected(f'{what} is {type(value).__name__}: expected a text, a number, a boolean or {{"@secret": "…"}}')

    def _secret(self, reference: dict[str, Any]) -> str:
        name = reference["@secret"]
        rest = {key: value for key, value in reference.items() if key != "@secret"}
        if not isinstance(name, str) or not rest.keys() <= {"prefix", "suffix"}:
            raise Rejected('a secret is written {"@secret": "name"}, with "prefix" and "suffix" if needed')
        if not all(isinstance(value, str) for value in rest.values()):
            raise Rejected(f"prefix and suffix of secret {name!r} must be texts")
        try:
            value = self._secrets.get(self._tenant_id, name)
        except (NotApplied, Rejected):
            raise
        except Exception as error:
            kind = type(error).__name__  # not its text: who knows what a secret store quotes
            raise NotApplied(f"secret {name!r} could not be read ({kind}), so nothing was sent") from None
        self.values.append(value)
        return f"{rest.get('prefix', '')}{value}{rest.get('suffix', '')}"


# ---- Reading the answer --------------------------------------------------------------------------------------------


class Hidden:
    """Takes secrets out of what a server echoes, also where it spells them for a URL, for HTML, JSON or base64."""

    def __init__(self, values: list[str]) -> None:
        spelled: set[str] = set()
        for value in values:
            raw = value.encode()
            spelled |= {
                value, quote(value), quote(value, safe=""), quote_plus(value), html.escape(value),
                json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1],
                b64encode(raw).decode(), urlsafe_b64encode(raw).decode(), b64encode(raw).decode().rstrip("="),
            }  # fmt: skip
        spelled.discard("")
        self._spelled = sorted(spelled, key=len, reverse=True)  # a secret may be part of another one

    def text(self, text: str) -> str:
        for word in self._spelled:
            text = text.replace(word, HIDDEN)
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """A JSON value without secrets, and as both databases can keep it."""
        if depth > DEPTH_MAX:
            raise RecursionError
        if isinstance(value, str):
            return storable(self.text(value))
        if isinstance(value, dict):
            return {storable(self.text(key)): self.value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.text(str(value)) != str(value):
                return HIDDEN
            if isinstance(value, int) and abs(value) > EXACT_MAX:
                return str(value)  # every digit survives as text; as a number some readers would round it
        return value


def _body(answer: Answer, hidden: Hidden) -> Any:
    if not answer.body:
        return None
    kind = _content_type(answer)[0]
    if _JSON_TYPE.match(kind):
        try:
            return hidden.value(msgspec.json.decode(answer.body.removeprefix(b"\xef\xbb\xbf")))
        except (msgspec.DecodeError, RecursionError, ValueError):  # ValueError: a number of thousands of digits
            pass  # it happened, and what it says is kept as it came
    return storable(hidden.text(_text(answer)))


def _full(answer: Answer, body: Any, hidden: Hidden) -> dict[str, Any]:
    shown = {
        name: storable(hidden.text(value))[:2000] for name, value in reversed(answer.headers) if name in SHOWN_HEADERS
    }
    return {"status": answer.status, "headers": dict(sorted(shown.items())), "body": body}


def _excerpt(answer: Answer, hidden: Hidden) -> str:
    if answer.problem is not None:
        return f" ({hidden.text(answer.problem)})"
    # Hidden first and cut afterwards: half a secret would not be recognised.
    words = " ".join(storable(hidden.text(_text(answer))).split())
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in words[: EXCERPT + 1])
    if not printable:
        return ""
    return f": {printable}" if len(printable) <= EXCERPT else f": {printable[:EXCERPT]}…"


def _text(answer: Answer) -> str:
    charset = _content_type(answer)[1]
    return answer.body.decode(charset if charset in CHARSETS else "utf-8", "replace")


def _content_type(answer: Answer) -> tuple[str, str]:
    kind, *parameters = (answer.header("content-type") or "").lower().split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset":
            return kind.strip(), value.strip(" \"'")
    return kind.strip(), ""


def _or_rejected(check: Any, value: Any) -> Any:
    try:
        return check(value)
    except BadInput as error:
        raise Rejected(str(error)) from None
