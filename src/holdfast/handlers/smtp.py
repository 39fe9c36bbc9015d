"""The SMTP dialogue, and what its failures mean.

It says of every failure whether the message can have gone out, by where in the dialogue it happened and not by the
exception's name. Until the line that ends the content is written nothing can have happened: `NotApplied` if another
try may help, `Rejected` if not. From then on only the server's reply says what became of it; without one it is
`OutcomeUnknown`, and a person or a look at the mailbox settles it.

It must not know tasks, or how a message is composed.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any, cast

from aiosmtplib import (
    SMTP,
    SMTPHeloError,
    SMTPRecipientRefused,
    SMTPResponse,
    SMTPResponseException,
    SMTPServerDisconnected,
)

from holdfast.engine.errors import BadInput, NotApplied, Rejected
from holdfast.handlers.mail_headers import wire_policy
from holdfast.handlers.ports import refuse_if_late
from holdfast.handlers.smtp_url import read_url

CHUNK = 64 << 10
_LINE_END = re.compile(rb"\r\n|\r|\n")


class OutcomeUnknown(Exception):
    """The content was handed over whole and the mail server's answer to it is not known."""


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
        server = read_url(url)
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

    async def send(
        self, message: EmailMessage, sender: str, recipients: list[str], not_after: float | None = None
    ) -> dict[str, Any]:
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
        refuse_if_late(not_after, self._clock)
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
        refuse_if_late(not_after, self._clock)
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


def _wire_content(message: EmailMessage, utf8: bool) -> bytes:
    """With CRLF only: a lone CR or LF is how one server's content becomes another server's commands."""
    lines = _LINE_END.split(message.as_bytes(policy=wire_policy(utf8)))
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
