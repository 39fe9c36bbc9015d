"""Finds secrets in a text that people and log files see, and hides them.

Every pattern is bounded in how far it looks from where it begins: a line of a megabyte must not hold the worker up.
"""

from __future__ import annotations

import re

HIDDEN = "***"
# A URL's password, wherever it stands in a text. It ends at the last @ before a space or a slash.
URL_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]{0,30}://[^\s/:@]*:)[^\s/]+(?=@)", re.IGNORECASE)
# Keys and tokens by the words before them, and our own by how they begin.
KEYS = re.compile(
    r"(?P<before>\b(?:bearer|basic) +)[\w.~+/=-]{8,}|\b(?P<begin>hfst_(?:live|test)_|whsec_)[\w+/=]+", re.IGNORECASE
)
# A value that is given to a name: `password = "…"` in a line of source, `"token": "…"` in JSON, `secret=…` in words.
NAMED = re.compile(
    r"(?P<before>(?:password|passwd|secret|token|api[_-]?key|private[_-]?key)\w{0,30}(?:"
    r"[\"']?\s{0,3}[=:]\s{0,3}(?=[bru]{0,2}[\"'])|=(?!\d+\b)))"
    r"(?:[bru]{0,2}\"[^\"\n]*\"?|[bru]{0,2}'[^'\n]*'?|[^\s\"'&,;()\[\]{}<>=]{3,}+(?![(\[]))",
    re.IGNORECASE,
)


def without_passwords(text: str) -> str:
    return URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", text)


def without_secrets(text: str) -> str:
    text = KEYS.sub(lambda found: f"{found['before'] or found['begin']}{HIDDEN}", without_passwords(text))
    return NAMED.sub(rf"\g<before>{HIDDEN}", text)
