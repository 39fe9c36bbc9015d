"""API keys: `hfst_live_` or `hfst_test_`, thirty random base62 characters, and six of a checksum.

The checksum lets a scanner, or a typing error, be recognised without asking the database. What is kept is a hash.
"""

from __future__ import annotations

import binascii
import hashlib
import re

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_LENGTH = 30
CHECK_LENGTH = 6
KEY = re.compile(r"hfst_(live|test)_[0-9A-Za-z]{36}\Z")
SHOWN_LENGTH = 14  # the prefix and four characters: enough to tell keys apart, nothing to guess from


def make_key(kind: str, entropy: bytes) -> str:
    """A key of this kind from 32 or more random bytes."""
    assert kind in ("live", "test") and len(entropy) >= 32
    number = int.from_bytes(entropy, "big")
    body = _base62(number % len(ALPHABET) ** RANDOM_LENGTH, RANDOM_LENGTH)
    return f"hfst_{kind}_{body}{_check(body)}"


def is_key(text: str) -> bool:
    """Whether this can be a key at all."""
    if not KEY.match(text):
        return False
    body = text[-RANDOM_LENGTH - CHECK_LENGTH : -CHECK_LENGTH]
    return text.endswith(_check(body))


def key_hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _check(body: str) -> str:
    return _base62(binascii.crc32(body.encode()), CHECK_LENGTH)


def _base62(number: int, length: int) -> str:
    found = ""
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        found = ALPHABET[digit] + found
    return found
