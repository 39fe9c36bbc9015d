"""The URL of a mail server, strictly read. It must not know the dialogue; and it never repeats what it was given, for a
password may stand anywhere in it."""

from __future__ import annotations

import ipaddress
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.engine.errors import BadInput


class SmtpServer(msgspec.Struct, frozen=True):
    """Where mail is handed in, and as whom."""

    host: str
    port: int
    tls: bool
    starttls: bool
    username: str | None
    password: str | None


def read_url(url: str) -> SmtpServer:
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
    return SmtpServer(host, port or (465 if tls else 587 if starttls else 25), tls, starttls, username, password)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
