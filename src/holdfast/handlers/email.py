"""EMAIL tasks: one task, one message, composed here and handed to a `Mail`; `SmtpMail` is the real one.

It says of every failure whether the message can have gone out, by where in the dialogue it happened and not by the
exception's name. Until the line that ends the content is written nothing can have happened: `NotApplied` if another
try may help, `Rejected` if not. From then on only the server's reply says what became of it; without one it is
`OutcomeUnknown`, and a person or a look at the mailbox settles it. SMTP has no key a server would honour: the
Message-ID, the same on every attempt, lets people and mail programs see a repeat, it does not prevent one.

It must not know about retries, journals or who asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
import ssl
import time
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.header import Header
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as WIRE
from email.policy import Policy
from email.utils import format_datetime
from typing import Any, Protocol, cast, runtime_checkable
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from aiosmtplib import (
    SMTP,
    SMTPHeloError,
    SMTPRecipientRefused,
    SMTPResponse,
    SMTPResponseException,
    SMTPServerDisconnected,
)

from holdfast.engine.errors import BadInput, NotApplied, Rejected
from holdfast.engine.tasks import TaskInfo
from holdfast.engine.templates import TemplateError, render
from holdfast.handlers.ports import Mail

RECIPIENTS_MAX = 100
HEADERS_MAX = 50
HEADER_CHARACTERS_MAX = 900  # with its name below the 998 that a line of mail may have, even where it cannot be folded
NAME_CHARACTERS_MAX = 200
CHUNK = 64 << 10

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u00a1-\U0010ffff-]+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_LABEL = r"[A-Za-z0-9\u00a1-\U0010ffff](?:[A-Za-z0-9\u00a1-\U0010ffff-]{0,61}[A-Za-z0-9\u00a1-\U0010ffff])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PHRASE = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~ -]*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SPECIALS = re.compile(r'[()<>\[\]:;@\\,"]')
_KEY = re.compile(r"[A-Za-z0-9_+/=-]+(?:\.[A-Za-z0-9_+/=-]+)*")
_EXTRA = re.compile(r"[Xx]-[A-Za-z0-9-]{1,70}")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class OutcomeUnknown(Exception):
    """The content was handed over whole and the mail server's answer to it is not known."""


@runtime_checkable
class PunctualMail(Protocol):
    """A `Mail` that may take a while before it begins to send, and looks at the clock again then."""

    async def send_before(
        self, message: EmailMessage, sender: str, recipients: list[str], not_after: float | None
    ) -> dict[str, Any]: ...


class Letter(msgspec.Struct, frozen=True):
    """A message and its envelope. Who gets a blind copy stands in the envelope alone."""

    message: EmailMessage
    sender: str
    recipients: list[str]
    message_id: str


class EmailHandler:
    """Serves EMAIL tasks. What is wrong with a task's options is `Rejected` before anything is sent."""

    def __init__(self, mail: Mail, *, default_sender: str, clock: Callable[[], float] = time.time) -> None:
        self._mail = mail
        self._default_sender = read_address("default_sender", default_sender)
        self._clock = clock

    async def __call__(self, task: TaskInfo) -> dict[str, Any]:
        letter = self.compose(task)
        _not_late(task.not_after, self._clock)
        if isinstance(self._mail, PunctualMail):
            receipt = await self._mail.send_before(letter.message, letter.sender, letter.recipients, task.not_after)
        else:
            receipt = await self._mail.send(letter.message, letter.sender, letter.recipients)
        return {
            "message_id": letter.message_id,
            "accepted": receipt.get("accepted", letter.recipients),
            "refused": receipt.get("refused", {}),
            "response": receipt.get("response", ""),
        }

    def compose(self, task: TaskInfo) -> Letter:
        """The message a task asks for; the same for every attempt but for its date."""
        try:
            return _compose(task, self._default_sender, self._clock())
        except (BadInput, TemplateError) as error:
            raise Rejected(str(error)) from error
        except Exception as error:  # nothing was sent while the message was being written, whatever went wrong
            raise Rejected(f"the message cannot be composed: {type(error).__name__}: {error}") from error


def _compose(task: TaskInfo, default_sender: Address, now: float) -> Letter:
    options = task.options
    sender = default_sender if options.get("from") is None else read_address("from", options["from"])
    to, cc, bcc, reply_to = (_addresses(name, options.get(name)) for name in ("to", "cc", "bcc", "reply_to"))
    if not to:
        raise BadInput("to: name at least one recipient")
    if (count := len(to) + len(cc) + len(bcc)) > RECIPIENTS_MAX:
        raise BadInput(f"to, cc and bcc name {count} recipients, the limit is {RECIPIENTS_MAX}: send several messages")
    data = task.input if options.get("data") is None else options["data"]
    text, html = _body("text", options, data, html=False), _body("html", options, data, html=True)
    if text is None and html is None:
        raise BadInput("text, html: give at least one of them")

    everyone = [sender, *to, *cc, *bcc, *reply_to]
    utf8 = not all(address.addr_spec.isascii() for address in everyone)
    message = EmailMessage(policy=_policy(utf8))
    message_id = f"<{_local_id(task.idempotency_key)}@{_ascii_domain(sender.domain)}>"
    lines = [
        _address_line("From", [sender]),
        _address_line("To", to),
        _address_line("Cc", cc),
        _address_line("Reply-To", reply_to),
        _text_line("Subject", _subject(options, data)),
        _Line.of("Date", format_datetime(datetime.fromtimestamp(now, UTC))),
        _Line.of("Message-ID", message_id),
        *_extra_lines(options.get("headers")),
    ]
    for line in lines:
        if line is not None:
            message[line.name] = line
    _fill(message, text, html, message_id)
    recipients = list(dict.fromkeys(address.addr_spec for address in [*to, *cc, *bcc]))
    return Letter(message, sender.addr_spec, recipients, message_id)


def _fill(message: EmailMessage, text: str | None, html: str | None, message_id: str) -> None:
    if text is None:
        message.set_content(html or "", subtype="html")
        return
    message.set_content(text)
    if html is not None:
        message.add_alternative(html, subtype="html")
        # Not drawn by lot, so that attempts are alike; and what holds its own digest cannot be written on purpose.
        digest = hashlib.sha256("\0".join([message_id, text, html]).encode()).hexdigest()
        message.set_boundary(f"=_{digest[:40]}")


def _body(name: str, options: dict[str, Any], data: Any, *, html: bool) -> str | None:
    template = options.get(name)
    if template is None:
        return None
    body = _rendered(name, template, data, html=html)
    if "\0" in body or any("\ud800" <= character <= "\udfff" for character in body):
        raise BadInput(f"{name} holds a NUL or half a character, which no mail can carry")
    return body


def _subject(options: dict[str, Any], data: Any) -> str:
    if options.get("subject") is None:
        raise BadInput("subject: give the message one")
    return _one_line("subject", _rendered("subject", options["subject"], data, html=False))


def _rendered(name: str, template: Any, data: Any, *, html: bool) -> str:
    if not isinstance(template, str):
        raise BadInput(f"{name}: expected text, found {type(template).__name__}")
    try:
        return render(template, data, html=html)
    except TemplateError as error:
        raise BadInput(f"{name}, {error}") from error


def _extra_lines(headers: Any) -> list[_Line]:
    if headers is None:
        return []
    if not isinstance(headers, dict) or len(headers) > HEADERS_MAX:
        raise BadInput(f"headers: expected an object with at most {HEADERS_MAX} names")
    lines = []
    for name, value in headers.items():
        if not isinstance(name, str) or not _EXTRA.fullmatch(name):
            raise BadInput(f"headers: {name!r} is not allowed; names begin with X- and hold letters, digits and -")
        if not isinstance(value, str):
            raise BadInput(f"headers: {name} is {type(value).__name__}, expected text")
        lines.append(_text_line(name, _one_line(name, value)))
    return lines


def _one_line(what: str, value: str) -> str:
    """Everything that goes into a header passes here: a line break in it would begin a header of its own."""
    for character in value:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            raise BadInput(
                f"{what} holds the control character U+{ord(character):04X}; a header is one line of text "
                "without line breaks: take it out of the text or out of the data"
            )
    if len(value) > HEADER_CHARACTERS_MAX:
        raise BadInput(f"{what} has {len(value):,} characters, the limit is {HEADER_CHARACTERS_MAX}: shorten it")
    return value.strip()


# -- addresses


def _addresses(what: str, value: Any) -> list[Address]:
    if value is None:
        return []
    if isinstance(value, list):
        return [read_address(what, item) for item in value]
    return [read_address(what, value)]


def read_address(what: str, value: Any) -> Address:
    """One mailbox: `ada@example.org`, `Ada <ada@example.org>` or `"Lovelace, Ada" <ada@example.org>`.

    Narrower than the standard on purpose (no groups, routes, comments, quoted local parts or encoded words):
    what two programs may read differently is a way to reach somebody else.
    """
    if not isinstance(value, str):
        raise BadInput(f"{what}: expected an address as text or a list of them, found {type(value).__name__}")
    line = _one_line(what, value)
    name, spec = "", line
    if line.endswith(">") and "<" in line:
        name, _, spec = line[:-1].rpartition("<")
        name = name.strip()
    if quoted := _QUOTED.fullmatch(name):
        name = re.sub(r"\\(.)", r"\1", quoted[1])
    elif _SPECIALS.search(name):
        raise BadInput(f"{what}: {value!r} is not one address; put a name that holds , : ; @ or the like in quotes")
    local, _, domain = spec.rpartition("@")
    if not spec.isprintable() or not _LOCAL.fullmatch(local) or not _DOMAIN.fullmatch(domain) or "=?" in local:
        raise BadInput(
            f"{what}: {value!r} is not one address; expected ada@example.org or Ada <ada@example.org>, "
            "and a list for several"
        )
    if len(local.encode()) > 64 or len(domain.encode()) > 253 or len(name) > NAME_CHARACTERS_MAX:
        raise BadInput(f"{what}: {value[:80]!r}… is too long for an address")
    return Address(display_name=name, username=local, domain=domain)


def _local_id(idempotency_key: str) -> str:
    if len(idempotency_key) <= 128 and _KEY.fullmatch(idempotency_key):
        return idempotency_key
    return hashlib.sha256(idempotency_key.encode("utf-8", "surrogatepass")).hexdigest()


def _ascii_domain(domain: str) -> str:
    """For the Message-ID only, which is to be the same each time and readable everywhere; no mail goes by it."""
    return domain if domain.isascii() else domain.encode("idna").decode()


# -- headers


def _policy(utf8: bool) -> Policy:
    return WIRE.clone(utf8=utf8, cte_type="7bit")


class _Line(str):
    """A header that is folded and encoded here.

    The standard library reads a header's value again before it writes it and decodes encoded words in it on the way:
    the subject `=?utf-8?q?=0D=0ABcc=3A…?=` becomes a header of its own in versions of Python we support.
    """

    name: str
    folded: str

    @classmethod
    def of(cls, name: str, value: str, folded: str | None = None) -> _Line:
        line = cls(value)
        line.name, line.folded = name, value if folded is None else folded
        return line

    def fold(self, *, policy: Policy) -> str:
        return f"{self.name}: {self.folded}\n".replace("\n", policy.linesep)


def _text_line(name: str, value: str) -> _Line:
    charset = "us-ascii" if value.isascii() and "=?" not in value else "utf-8"
    return _Line.of(name, value, Header(value, charset, header_name=name).encode())


def _address_line(name: str, addresses: list[Address]) -> _Line | None:
    if not addresses:
        return None
    folded = ",\n ".join(_mailbox(address) for address in addresses)
    return _Line.of(name, ", ".join(str(address) for address in addresses), folded)


def _mailbox(address: Address) -> str:
    name = address.display_name
    if not name:
        return address.addr_spec
    if not name.isascii() or "=?" in name:
        name = Header(name, "utf-8", maxlinelen=60).encode()
    elif not _PHRASE.fullmatch(name):
        name = '"' + re.sub(r'([\\"])', r"\\\1", name) + '"'
    return f"{name}\n <{address.addr_spec}>" if len(name) > 40 else f"{name} <{address.addr_spec}>"


# -- SMTP


class SmtpMail:
    """Sends by SMTP, one connection for each message.

    `smtp://user@host:587?starttls=1` (TLS is then required), `smtps://user@host:465`, `smtp://host:25`. The password
    may stand in the URL; better is `password`, asked at each sending, which is in no text and can be rotated.
    """

    def __init__(
        self,
        url: str,
        *,
        password: Callable[[], str] | None = None,
        tls_context: ssl.SSLContext | None = None,
        local_hostname: str | None = None,
        connect_seconds: float = 10,
        command_seconds: float = 30,
        content_seconds: float = 60,
        reply_seconds: float = 120,
        clock: Callable[[], float] = time.time,
    ) -> None:
        server = _read_url(url)
        if password is not None and (server.password is not None or server.username is None):
            raise BadInput("password=… goes with an SMTP URL that names a user and holds no password")
        if server.username is not None and password is None and server.password is None:
            raise BadInput("the SMTP URL names a user: give its password with password=…")
        self._server = server
        self._password = password if password is not None else lambda: server.password or ""
        self._tls_context = tls_context or (ssl.create_default_context() if server.tls or server.starttls else None)
        self._local_hostname = local_hostname
        self._connect_seconds = connect_seconds
        self._command_seconds = command_seconds
        self._content_seconds = content_seconds
        self._reply_seconds = reply_seconds
        self._clock = clock

    def __repr__(self) -> str:
        return f"SmtpMail({self._server.host}:{self._server.port})"

    async def send(self, message: EmailMessage, sender: str, recipients: list[str]) -> dict[str, Any]:
        return await self.send_before(message, sender, recipients, None)

    async def send_before(
        self, message: EmailMessage, sender: str, recipients: list[str], not_after: float | None
    ) -> dict[str, Any]:
        """`not_after`: the Unix time from which on the message must not be begun."""
        utf8 = bool(getattr(message.policy, "utf8", False)) or not "".join([sender, *recipients]).isascii()
        try:
            content = _wire_content(message, utf8)
        except Exception as error:  # nothing was sent while it was being written
            raise Rejected(f"the message cannot be written as mail: {error}") from error
        smtp = SMTP(
            hostname=self._server.host, port=self._server.port, use_tls=self._server.tls, start_tls=False,
            tls_context=self._tls_context, timeout=self._command_seconds, local_hostname="localhost",
        )  # fmt: skip
        try:
            with _nothing_happened("before the content"):
                await self._open(smtp)
                self._check_what_the_server_takes(smtp, utf8, len(content))
                refused = await self._envelope(smtp, sender, recipients, utf8, len(content), not_after)
            reply = await self._content(smtp, content)
        finally:
            _leave(smtp)
        # Below nothing waits, so that nobody can be cancelled between the server's word and ours.
        if 400 <= reply.code < 600:
            raise _refusal("after the content", reply.code, reply.message)
        if not 200 <= reply.code < 300:
            raise OutcomeUnknown(f"the message was sent whole; the answer was {reply.code} {_words(reply.message)}")
        return {
            "accepted": [recipient for recipient in recipients if recipient not in refused],
            "refused": refused,
            "response": f"{reply.code} {_words(reply.message)}",
        }

    async def _open(self, smtp: SMTP) -> None:
        with _nothing_happened("connecting"):
            await smtp.connect(timeout=self._connect_seconds)
        with _nothing_happened("EHLO"):
            await self._hello(smtp)
        if self._server.starttls:
            with _nothing_happened("STARTTLS"):
                await smtp.starttls(timeout=self._command_seconds)
            with _nothing_happened("EHLO"):
                await self._hello(smtp)
        if (username := self._server.username) is not None:
            with _nothing_happened("asking for the password"):
                password = self._password()
                sent = [b64encode(text.encode()).decode() for text in (password, f"\0{username}\0{password}")]
            with _nothing_happened("AUTH", secrets=(password, *sent)):
                await smtp.login(username, password)

    async def _hello(self, smtp: SMTP) -> None:
        # Our name is not looked up: that may take the resolver's time-out, and an address will do (RFC 5321, 4.1.3).
        address = str(smtp.get_transport_info("sockname")[0]).partition("%")[0]
        literal = f"[IPv6:{address}]" if ":" in address else f"[{address}]"
        try:
            await smtp.ehlo(hostname=self._local_hostname or literal)
        except SMTPHeloError as error:
            if error.code < 500 or not smtp.is_connected:
                raise
            await smtp.helo(hostname=self._local_hostname or literal)

    def _check_what_the_server_takes(self, smtp: SMTP, utf8: bool, size: int) -> None:
        if utf8 and not smtp.supports_extension("smtputf8"):
            raise Rejected(
                "an address is not written in ASCII and the mail server does not know SMTPUTF8: "
                "write the domain in its xn-- form, or send by another server"
            )
        limit = smtp.esmtp_extensions.get("size", "")[:18]
        if limit.isdecimal() and 0 < int(limit) < size:
            raise Rejected(f"the message takes {size:,} bytes, the mail server takes {int(limit):,}")

    async def _envelope(
        self, smtp: SMTP, sender: str, recipients: list[str], utf8: bool, size: int, not_after: float | None
    ) -> dict[str, str]:
        """From MAIL to the server's consent to the content; returns who was refused and why."""
        encoding = "utf-8" if utf8 else "ascii"
        options = [f"SIZE={size}"] if smtp.supports_extension("size") else []
        if utf8:
            options += ["SMTPUTF8", "BODY=8BITMIME"] if smtp.supports_extension("8bitmime") else ["SMTPUTF8"]
        _not_late(not_after, self._clock)
        with _nothing_happened("MAIL"):
            await smtp.mail(sender, options=options, encoding=encoding)
        refused: dict[str, SMTPResponseException] = {}
        for recipient in recipients:
            with _nothing_happened("RCPT"):
                try:
                    await smtp.rcpt(recipient, encoding=encoding)
                except SMTPRecipientRefused as error:
                    if not 200 <= error.code < 300:
                        refused[recipient] = error
        reasons = {recipient: f"{error.code} {_words(error.message)}" for recipient, error in refused.items()}
        if len(refused) == len(recipients):
            words = "; ".join(f"{recipient}: {reason}" for recipient, reason in list(reasons.items())[:5])
            for_good = all(500 <= error.code < 600 for error in refused.values())
            raise (Rejected if for_good else NotApplied)(f"every recipient was refused: {words}")
        # A process that was stopped since MAIL and woken late has still sent nothing.
        _not_late(not_after, self._clock)
        with _nothing_happened("DATA"):
            reply = await smtp.execute_command(b"DATA")
            if reply.code != 354:
                raise SMTPResponseException(reply.code, reply.message)
        return reasons

    async def _content(self, smtp: SMTP, content: bytes) -> SMTPResponse:
        """Sends the content and then, on its own, the line that ends it; what the server answered to that."""
        if smtp.transport is None:
            raise NotApplied("sending the content: the connection was lost before it began")
        transport = cast(asyncio.Transport, smtp.transport)
        try:
            with _nothing_happened("sending the content"):
                async with asyncio.timeout(self._content_seconds):
                    for at in range(0, len(content), CHUNK):
                        await _write(smtp, transport, content[at : at + CHUNK])
                if not smtp.is_connected:
                    raise SMTPServerDisconnected("the connection was lost")
            try:
                reply = await smtp.execute_command(b".", timeout=self._reply_seconds)
            except Exception as error:
                raise OutcomeUnknown(
                    f"the message was sent whole and its acceptance was not heard of: {_words(str(error))}"
                ) from error
        except BaseException:
            # Not close(): that would go on sending what is still buffered after we have said how it ended.
            transport.abort()
            raise
        return reply


class _Server(msgspec.Struct, frozen=True):
    host: str
    port: int
    tls: bool
    starttls: bool
    username: str | None
    password: str | None


def _read_url(url: str) -> _Server:
    """No refusal repeats any of the URL: with a stray / or # in a password, any part of it may be the password."""
    expected = "expected smtp://user@host:587?starttls=1, smtps://user@host:465 or smtp://host:25"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise BadInput(f"the SMTP URL cannot be read: {expected}; %-encode what is special in a password") from None
    if parts.scheme not in ("smtp", "smtps") or not host or parts.path not in ("", "/") or parts.fragment:
        raise BadInput(f"the SMTP URL cannot be read: {expected}; %-encode what is special in a password")
    if options.keys() - {"starttls"} or options.get("starttls", "0") not in ("0", "1"):
        raise BadInput("the SMTP URL has an option other than starttls=1 or starttls=0")
    tls, starttls = parts.scheme == "smtps", options.get("starttls") == "1"
    if tls and starttls:
        raise BadInput("smtps:// is encrypted from the start: leave starttls=1 out, or use smtp://")
    username = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    if username is not None and not (tls or starttls or _is_loopback(host)):
        raise BadInput("the SMTP URL would send a password unencrypted: add ?starttls=1, or use smtps://")
    return _Server(host, port or (465 if tls else 587 if starttls else 25), tls, starttls, username, password)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wire_content(message: EmailMessage, utf8: bool) -> bytes:
    """With CRLF only: a lone CR or LF is how one server's content becomes another server's commands."""
    lines = _LINE_END.split(message.as_bytes(policy=_policy(utf8)))
    if lines[-1] == b"":
        lines.pop()
    return b"".join((b"." if line.startswith(b".") else b"") + line + b"\r\n" for line in lines)


async def _write(smtp: SMTP, transport: asyncio.Transport, chunk: bytes) -> None:
    """Returns once the chunk has left us, so that what has not been written yet is known not to have been sent."""
    if smtp.protocol is None:
        raise SMTPServerDisconnected("the connection was lost")
    smtp.protocol.write(chunk)
    while transport.get_write_buffer_size() > 0:
        await asyncio.sleep(0.005)
        if not smtp.is_connected:
            raise SMTPServerDisconnected("the connection was lost")


def _leave(smtp: SMTP) -> None:
    """Says goodbye without waiting for an answer: what the server said before it is what counts."""
    try:
        if smtp.is_connected and smtp.protocol is not None:
            smtp.protocol.write(b"QUIT\r\n")
    except Exception:
        pass  # whoever is gone needs no goodbye
    smtp.close()


def _not_late(not_after: float | None, clock: Callable[[], float]) -> None:
    if not_after is not None and clock() >= not_after:
        raise NotApplied("found late before it began, so the message was not sent")


@contextmanager
def _nothing_happened(phase: str, secrets: tuple[str, ...] = ()) -> Iterator[None]:
    """Around what comes before the end of the content: whatever goes wrong there, no message went out."""
    try:
        yield
    except (NotApplied, Rejected):
        raise
    except Exception as error:
        # Some servers repeat the command they did not like, and with it what we sent in it.
        said = getattr(error, "message", None) or str(error)
        told = any(secret in said for secret in secrets if secret)
        if isinstance(error, SMTPResponseException):
            known: NotApplied | Rejected = _refusal(phase, error.code, "" if told else said)
        else:
            known = NotApplied(f"{phase}: {type(error).__name__}" + ("" if told else f": {_words(said)}"))
        raise known from (None if secrets else error)


def _refusal(phase: str, code: int, message: str) -> NotApplied | Rejected:
    words = f"{phase}: the mail server answered {code} {_words(message)}".rstrip()
    return Rejected(words) if 500 <= code < 600 else NotApplied(words)


def _words(text: str) -> str:
    """A server's words as text that any journal can keep."""
    clean = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in clean).split())[:500]
