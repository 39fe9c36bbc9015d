"""A `Mail` for `dev`: messages become `.eml` files in a directory, and nothing leaves the machine.

One file per Message-ID: an attempt that is repeated takes the place of the one before, as a mail program would show
it. A file is the message as its recipients would get it, so it does not say who got a blind copy.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as WIRE
from pathlib import Path
from typing import Any

import msgspec

from holdfast.engine.errors import HoldfastError, NotApplied

_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


class MailNotFound(HoldfastError):
    """There is no such message in the mailbox."""

    code = "mail_not_found"

    def __init__(self, which: str) -> None:
        super().__init__(f"no message {which!r} in the mailbox: give a file name or a Message-ID from its list")


class MailSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a person reads it."""

    name: str
    """Its file's name, which `read` takes."""
    message_id: str
    sender: str = msgspec.field(name="from")
    to: str
    cc: str
    subject: str
    date: str
    text: str | None
    html: str | None


class FileMailbox:
    def __init__(self, directory: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self._directory = Path(directory)
        self._clock = clock

    async def send(
        self, message: EmailMessage, sender: str, recipients: list[str], not_after: float | None = None
    ) -> dict[str, Any]:
        """Writes at once, so `not_after` is as its caller found it: nothing is waited for in between."""
        utf8 = bool(getattr(message.policy, "utf8", False))
        raw = message.as_bytes(policy=WIRE.clone(utf8=utf8, cte_type="7bit"))
        message_id = str(message["Message-ID"] or hashlib.sha256(raw).hexdigest())
        try:
            name = self._put(message_id, raw)
        except OSError as error:  # replacing is all or nothing, and it comes last
            raise NotApplied(f"the message was not written to the mailbox: {error}") from error
        return {"accepted": list(recipients), "refused": {}, "response": f"250 written to {name}"}

    def list(self) -> tuple[MailSummary, ...]:
        """Every message, in the order in which they were first sent."""
        return tuple(_summary(path) for path in sorted(self._directory.glob("[0-9]*.eml")))

    def read(self, which: str) -> MailSummary:
        """One message by its file's name or its Message-ID."""
        wanted = self._directory / which if which.endswith(".eml") and Path(which).name == which else self._find(which)
        try:
            if wanted is not None:
                return _summary(wanted)
        except FileNotFoundError:
            pass  # named like one of ours, and not there
        raise MailNotFound(which)

    def _put(self, message_id: str, raw: bytes) -> str:
        """Nothing waits in here, so no two tasks of one process can write the same message side by side."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._find(message_id) or self._directory / self._new_name(message_id)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            unfinished.write_bytes(raw)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        return path.name

    def _find(self, message_id: str) -> Path | None:
        return next(iter(sorted(self._directory.glob(f"[0-9]*-{_mark(message_id)}.eml"))), None)

    def _new_name(self, message_id: str) -> str:
        moment = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        readable = _UNSAFE.sub("-", message_id).strip("-.")[:80]
        return f"{moment}-{readable}-{_mark(message_id)}.eml"


def _mark(message_id: str) -> str:
    """Tells apart what the readable part of a name, cut and cleaned, cannot."""
    return hashlib.sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _summary(path: Path) -> MailSummary:
    message = message_from_bytes(path.read_bytes(), _class=EmailMessage, policy=WIRE)
    heads = {name: str(message[name] or "") for name in ("Message-ID", "From", "To", "Cc", "Subject", "Date")}
    return MailSummary(
        name=path.name, message_id=heads["Message-ID"], sender=heads["From"], to=heads["To"], cc=heads["Cc"],
        subject=heads["Subject"], date=heads["Date"], text=_part(message, "plain"), html=_part(message, "html"),
    )  # fmt: skip


def _part(message: EmailMessage, kind: str) -> str | None:
    part = message.get_body((kind,))
    if not isinstance(part, EmailMessage):
        return None
    return str(part.get_content()).replace("\r\n", "\n")
