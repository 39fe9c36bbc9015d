"""Addresses and headers of a message, narrow on purpose: what a header holds is one line, checked, folded and encoded
here. It must not know what the message is about, or how it travels.
"""

from __future__ import annotations

import re
import unicodedata
from email.header import Header
from email.headerregistry import Address
from email.policy import SMTP as WIRE
from email.policy import Policy
from typing import Any

from holdfast.engine.errors import BadInput

HEADER_CHARACTERS_MAX = 900  # with its name below the 998 that a line of mail may have, even where it cannot be folded
NAME_CHARACTERS_MAX = 200

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u00a1-\U0010ffff-]+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_LABEL = r"[A-Za-z0-9\u00a1-\U0010ffff](?:[A-Za-z0-9\u00a1-\U0010ffff-]{0,61}[A-Za-z0-9\u00a1-\U0010ffff])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PHRASE = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~ -]*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SPECIALS = re.compile(r'[()<>\[\]:;@\\,"]')


def one_line(what: str, value: str) -> str:
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


def read_addresses(what: str, value: Any) -> list[Address]:
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
    line = one_line(what, value)
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


def ascii_domain(domain: str) -> str:
    """For the Message-ID only, which is to be the same each time and readable everywhere; no mail goes by it."""
    return domain if domain.isascii() else domain.encode("idna").decode()


def wire_policy(utf8: bool) -> Policy:
    return WIRE.clone(utf8=utf8, cte_type="7bit")


class Line(str):
    """A header that is folded and encoded here.

    The standard library reads a header's value again before it writes it and decodes encoded words in it on the way:
    the subject `=?utf-8?q?=0D=0ABcc=3A…?=` becomes a header of its own in versions of Python we support.
    """

    name: str
    folded: str

    @classmethod
    def of(cls, name: str, value: str, folded: str | None = None) -> Line:
        line = cls(value)
        line.name, line.folded = name, value if folded is None else folded
        return line

    def fold(self, *, policy: Policy) -> str:
        return f"{self.name}: {self.folded}\n".replace("\n", policy.linesep)


def text_line(name: str, value: str) -> Line:
    charset = "us-ascii" if value.isascii() and "=?" not in value else "utf-8"
    return Line.of(name, value, Header(value, charset, header_name=name).encode())


def address_line(name: str, addresses: list[Address]) -> Line | None:
    if not addresses:
        return None
    folded = ",\n ".join(_mailbox(address) for address in addresses)
    return Line.of(name, ", ".join(str(address) for address in addresses), folded)


def _mailbox(address: Address) -> str:
    name = address.display_name
    if not name:
        return address.addr_spec
    if not name.isascii() or "=?" in name:
        name = Header(name, "utf-8", maxlinelen=60).encode()
    elif not _PHRASE.fullmatch(name):
        name = '"' + re.sub(r'([\\"])', r"\\\1", name) + '"'
    return f"{name}\n <{address.addr_spec}>" if len(name) > 40 else f"{name} <{address.addr_spec}>"
