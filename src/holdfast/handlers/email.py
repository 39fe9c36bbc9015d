"""EMAIL tasks: one task, one message, composed here and handed to a `Mail`; `SmtpMail` is the real one.

What is wrong with a task's options is `Rejected` before anything is sent; whether a message went out, the `Mail` says.
SMTP has no key a server would honour: the Message-ID, the same on every attempt, lets people and mail programs see a
repeat, it does not prevent one.

It must not know about retries, journals or who asked.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

import msgspec

from holdfast.engine.errors import BadInput, Rejected
from holdfast.engine.tasks import TaskInfo
from holdfast.engine.templates import TemplateError, render
from holdfast.handlers.mail_headers import (
    Line,
    address_line,
    ascii_domain,
    one_line,
    read_address,
    read_addresses,
    text_line,
    wire_policy,
)
from holdfast.handlers.ports import Mail, refuse_if_late
from holdfast.handlers.smtp import OutcomeUnknown, SmtpMail

__all__ = ["EmailHandler", "Letter", "OutcomeUnknown", "SmtpMail", "read_address"]

RECIPIENTS_MAX = 100
HEADERS_MAX = 50

_KEY = re.compile(r"[A-Za-z0-9_+/=-]+(?:\.[A-Za-z0-9_+/=-]+)*")
_EXTRA = re.compile(r"[Xx]-[A-Za-z0-9-]{1,70}")


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
        refuse_if_late(task.not_after, self._clock)
        receipt = await self._mail.send(letter.message, letter.sender, letter.recipients, task.not_after)
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
    to, cc, bcc, reply_to = (read_addresses(name, options.get(name)) for name in ("to", "cc", "bcc", "reply_to"))
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
    message = EmailMessage(policy=wire_policy(utf8))
    message_id = f"<{_local_id(task.idempotency_key)}@{ascii_domain(sender.domain)}>"
    lines = [
        address_line("From", [sender]),
        address_line("To", to),
        address_line("Cc", cc),
        address_line("Reply-To", reply_to),
        text_line("Subject", _subject(options, data)),
        Line.of("Date", format_datetime(datetime.fromtimestamp(now, UTC))),
        Line.of("Message-ID", message_id),
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
    return one_line("subject", _rendered("subject", options["subject"], data, html=False))


def _rendered(name: str, template: Any, data: Any, *, html: bool) -> str:
    if not isinstance(template, str):
        raise BadInput(f"{name}: expected text, found {type(template).__name__}")
    try:
        return render(template, data, html=html)
    except TemplateError as error:
        raise BadInput(f"{name}, {error}") from error


def _extra_lines(headers: Any) -> list[Line]:
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
        lines.append(text_line(name, one_line(name, value)))
    return lines


def _local_id(idempotency_key: str) -> str:
    if len(idempotency_key) <= 128 and _KEY.fullmatch(idempotency_key):
        return idempotency_key
    return hashlib.sha256(idempotency_key.encode("utf-8", "surrogatepass")).hexdigest()
