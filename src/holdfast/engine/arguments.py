"""What a handler is given: the recorded arguments, read afresh for each attempt.

The bytes are taken when the body makes its call. Whatever the body, another branch or an earlier attempt does to the
objects afterwards, every attempt gets what is on record.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import msgspec

from holdfast.engine import codec
from holdfast.engine.errors import BadInput
from holdfast.engine.signatures import Signature

# Nobody can change these, and JSON gives them back as they are: they are handed over without being read again.
AS_THEY_ARE = frozenset((str, int, float, bool, type(None)))
_PLAIN = frozenset((dict, list, tuple, set, frozenset))
_plain = codec.decoder_for(None)
_pieces = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode


def need_reading(args: Sequence[Any]) -> bool:
    """Whether some of these could be changed after the call."""
    return not AS_THEY_ARE.issuperset(map(type, args))


def read_again(recorded: bytes, args: Sequence[Any], signature: Signature, skip: int = 0) -> tuple[Any, ...]:
    """The recorded arguments as the parameters are annotated, from the one after `skip` on. `args`: the objects that
    they were recorded from."""
    given = []
    for at, (piece, arg) in enumerate(zip(_pieces(recorded), args, strict=True), skip):
        if type(arg) in AS_THEY_ARE:
            given.append(arg)
        else:
            takes = signature.takes
            given.append(_read(bytes(piece), arg, takes[at] if at < len(takes) else signature.takes_more, at - skip))
    return tuple(given)


def _read(piece: bytes, arg: Any, kind: Any, at: int) -> Any:
    if kind is None or kind is Any or kind is object:  # nothing is said of it
        return _plain(piece)
    decoder = codec.decoder_for(kind)
    another = False
    if decoder is not _plain:
        try:
            read = decoder(piece)
            another = codec.encode_sorted(read, limit=codec.UNLIMITED) != piece and _is_another(read, arg)
            if not another:
                return read
        except Exception:  # of any kind: an author's type may check more than msgspec and pydantic do
            pass
    # The annotation does not say how to read it: it names a class that cannot be read from JSON, or that reads another
    # value from it, or something else than what was passed. Annotations of parameters are not checked, so the handler
    # gets what was passed, as a copy.
    if type(arg) in _PLAIN and not another:
        return _plain(piece)
    if codec.encode_sorted(arg, limit=codec.UNLIMITED) != piece:
        raise BadInput(
            f"argument {at + 1} was changed after the call, and what is on record cannot be read as {kind!r}: "
            "pass a plain value, a dataclass, a msgspec Struct or a pydantic model, or do not change it"
        )
    return deepcopy(arg)


def _is_another(read: Any, arg: Any) -> bool:
    """Of what was read and is not on record: whether it was to be the argument itself. A class may convert its fields
    whenever one is made (`__post_init__`), or lack those of a subclass. Plain values may be converted as annotated."""
    return isinstance(arg, type(read)) and not _is_plain(arg)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if kind in _PLAIN else kind in AS_THEY_ARE


def copied(value: Any) -> Any:
    """A copy of what was read from JSON."""
    kind = type(value)
    if kind in AS_THEY_ARE:
        return value
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    return deepcopy(value)


def call_arguments(args: tuple[Any, ...], recorded: bytes, signature: Signature, skip: int = 0) -> tuple[Any, ...]:
    """For one attempt. `recorded` is empty where `args` were read from JSON themselves, or nobody can change them."""
    return read_again(recorded, args, signature, skip) if recorded else tuple(map(copied, args))
