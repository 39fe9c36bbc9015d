"""Names for things: sixteen bytes inside, a prefixed word outside (`ins_…`, `eff_…`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from holdfast.engine.errors import BadInput

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
NAME = re.compile(r"[^\x00-\x1f\x7f#\ud800-\udfff]{1,200}\Z")  # a lone surrogate cannot be hashed or stored


def shown(prefix: str, raw: bytes) -> str:
    return f"{prefix}_{raw.hex()}"


def instance_word(raw: bytes) -> str:
    return "ins_" + raw.hex()


def effect_word(raw: bytes) -> str:
    return "eff_" + raw.hex()


def worker_word(raw: bytes) -> str:
    return "wrk_" + raw.hex()


def parse(prefix: str, word: str) -> bytes:
    """The sixteen bytes behind a shown id, or a refusal that shows the expected form."""
    try:
        raw = bytes.fromhex(word.removeprefix(prefix + "_"))
    except (ValueError, AttributeError):
        raw = b""
    if len(raw) != 16:
        raise BadInput(f"{word!r} is not an id: expected {prefix}_ and 32 hexadecimal digits")
    return raw


def derived(*parts: str | bytes) -> bytes:
    """An id that follows from where a thing was born, so deciding twice asks for the same thing."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(4, "big") + raw)
    return digest.digest()[:16]


def effect_id(tenant_id: str, instance_id: bytes, step: str, epoch: int = 0) -> bytes:
    """An instance that restarts asks for new deeds: from its second epoch on, ids say which one they are of."""
    return derived("effect", tenant_id, instance_id, step, *([str(epoch)] if epoch else ()))


def effect_ids(tenant_id: str, instance_id: bytes) -> Callable[[str], bytes]:
    """`effect_id` of one instance, for many steps: what they have in common is hashed once."""
    head = hashlib.sha256()
    for part in (b"effect", tenant_id.encode(), instance_id):
        head.update(len(part).to_bytes(4, "big") + part)

    def of(step: str) -> bytes:
        raw = step.encode()
        digest = head.copy()
        digest.update(len(raw).to_bytes(4, "big") + raw)
        return digest.digest()[:16]

    return of


def resolution_word(effect: bytes) -> str:
    """What the event ids of people's words on this effect begin with."""
    return f"resolution:{effect_word(effect)}:"


def child_id(tenant_id: str, parent_id: bytes, step: str, epoch: int = 0) -> bytes:
    return derived("child", tenant_id, parent_id, step, *([str(epoch)] if epoch else ()))


def child_event(child: bytes) -> str:
    """The id of the event by which a child tells its parent that it has ended."""
    return f"child:{child.hex()}"


def idempotency_key(effect: bytes) -> str:
    """What the provider sees: the same for every attempt of one effect."""
    word = effect.hex()
    return f"{word[:8]}-{word[8:12]}-{word[12:16]}-{word[16:20]}-{word[20:]}"


def check_tenant(tenant_id: str) -> str:
    if not isinstance(tenant_id, str) or not TENANT.match(tenant_id):
        raise BadInput(
            f"tenant {tenant_id!r} is not a tenant id: expected 1 to 63 letters, digits, '_', '.' or '-', "
            "beginning with a letter or digit"
        )
    return tenant_id


def check_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not NAME.match(name):
        raise BadInput(f"{what} {name!r} is not a name: expected 1 to 200 characters without control characters or '#'")
    return name
