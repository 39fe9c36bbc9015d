"""Somebody else's words inside ours: quoted, short, printable, storable. It must not know what they are about."""

from __future__ import annotations

from typing import Any

import rfc8785

from holdfast.engine.codec import digest, encode
from holdfast.engine.retry import storable

WHOLE_MAX = 2**53 - 1  # beyond it, readers of JSON disagree about the number


def shown(value: object) -> str:
    """Somebody else's word inside a sentence of ours: quoted, short, printable."""
    if not isinstance(value, str):
        return {dict: "(an object)", list: "(a list)", type(None): "(nothing)"}.get(type(value), f"({value!r})"[:40])
    return ascii(value[:60]) + ("…" if len(value) > 60 else "")


def clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clip_stored(text: str, limit: int) -> str:
    """Text that takes about `limit` bytes as JSON and no more, and says so when some of it is missing."""
    text = storable(text)
    if len(text) <= limit and len(encode(text, limit=8 * limit)) <= limit:
        return text
    room = max(limit - 64, 0)
    kept = text[:room]
    while kept and (size := len(encode(kept, limit=8 * limit))) > room:
        kept = kept[: len(kept) * room // size]
    return f"{kept}… [{len(text):,} characters, the rest is not kept]"


def canonical_hash(value: Any) -> str:
    return digest(rfc8785.dumps(value))
