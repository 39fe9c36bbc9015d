"""Templates without logic: `{{ path.to.value }}`, `{{#items}}…{{/items}}`, `{{^items}}…{{/items}}`, `{{.}}`.

A template can read the JSON it is given and nothing else: no expressions, no attributes, no calls. It knows neither
mail nor the web; `html=True` escapes every value for the text of an element and for a quoted attribute (not for a
script, a style or an unquoted attribute: no escaping makes those safe, so keep values out of them).

A first name is sought in the innermost section and then outward; the rest of a path is followed from what was found.
What is missing is an error, also in a section; what is null is empty. A section is left out for null, false, 0, "",
[] and {}, repeated for each item of a list, and entered once for anything else. A section's tag alone on its line
takes the line with it.
"""

from __future__ import annotations

import html as markup
import json
import re
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.engine.errors import HoldfastError

TEMPLATE_LIMIT = 64 << 10
OUTPUT_LIMIT = 1 << 20
NESTING_LIMIT = 20
STEPS_LIMIT = 250_000
"""Sections in sections over long lists could go round for ever without writing a byte."""

_PATH = re.compile(r"\.|[\w$@:-]+(?:\.[\w$@:-]+)*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_BLANK = re.compile(r"[ \t]*\Z")
_REST_OF_LINE = re.compile(r"[ \t]*(?:\r?\n|\Z)")
_MISSING = object()


class TemplateError(HoldfastError):
    """A template is written wrongly, or asks for what its data does not hold."""

    code = "bad_template"


class _Value(msgspec.Struct, frozen=True):
    path: str
    at: int


class _Section(msgspec.Struct, frozen=True):
    path: str
    at: int
    inverted: bool
    body: list[_Node]


_Node = str | _Value | _Section


class _Tag(msgspec.Struct, frozen=True):
    sigil: str
    path: str
    at: int


class _Compiled(msgspec.Struct, frozen=True):
    body: list[_Node]
    errors: list[str]
    paths: list[str]


def check(template: object) -> list[str]:
    """What is wrong with it, each with its line and column; empty for a good one."""
    return list(_compiled(template).errors)


def paths(template: str) -> list[str]:
    """The paths it reads, as written (those in a section are sought in its items first), each once, in order."""
    return list(_sound(template).paths)


def render(template: str, data: Any, *, html: bool) -> str:
    """The template filled with JSON data, or a `TemplateError` that names the place and the path."""
    sound = _sound(template)
    rendering = _Rendering(template, html)
    rendering.write(sound.body, [data])
    return "".join(rendering.pieces)


def _sound(template: str) -> _Compiled:
    compiled = _compiled(template)
    if compiled.errors:
        raise TemplateError("; ".join(compiled.errors[:5]))
    return compiled


def _compiled(template: object) -> _Compiled:
    if not isinstance(template, str):
        return _Compiled([], [f"a template is text, this is {type(template).__name__}"], [])
    if (size := len(template.encode("utf-8", "surrogatepass"))) > TEMPLATE_LIMIT:
        return _Compiled([], [f"the template takes {size:,} bytes, the limit is {TEMPLATE_LIMIT:,}: shorten it"], [])
    return _compile(template)


@lru_cache(maxsize=128)
def _compile(template: str) -> _Compiled:
    errors: list[tuple[int, str]] = []
    body: list[_Node] = []
    opened: list[tuple[_Tag, list[_Node]]] = []  # the sections we are in, each with the body that surrounds it
    found: dict[str, None] = {}
    for piece in _pieces(template, errors):
        if isinstance(piece, str):
            body.append(piece)
        elif piece.sigil == "/":
            if not opened:
                errors.append((piece.at, f"{{{{/{piece.path}}}}} closes a section that was never opened"))
                continue
            tag, outer = opened.pop()
            if tag.path != piece.path:
                errors.append((piece.at, f"{{{{/{piece.path}}}}} stands where {{{{/{tag.path}}}}} is expected"))
            outer.append(_Section(tag.path, tag.at, tag.sigil == "^", body))
            body = outer
        else:
            found[piece.path] = None
            if not piece.sigil:
                body.append(_Value(piece.path, piece.at))
                continue
            if len(opened) == NESTING_LIMIT:
                errors.append((piece.at, f"sections are nested deeper than {NESTING_LIMIT}"))
                opened.clear()  # the rest cannot be judged
                break
            opened.append((piece, body))
            body = []
    errors.extend((tag.at, f"{{{{{tag.sigil}{tag.path}}}}} is never closed") for tag, _ in opened)
    if errors:
        return _Compiled([], [f"{_position(template, at)}: {words}" for at, words in sorted(errors)], list(found))
    return _Compiled(body, [], list(found))


def _pieces(template: str, errors: list[tuple[int, str]]) -> list[str | _Tag]:
    """Text and tags in their order; what is no tag goes to `errors`."""
    pieces: list[str | _Tag] = []
    at = 0
    while (start := template.find("{{", at)) >= 0:
        end = template.find("}}", start + 2)
        if end < 0:
            errors.append((start, "{{ is never closed with }}"))
            return pieces
        text, after = template[at:start], end + 2
        tag = _tag(template[start + 2 : end], start, errors)
        if tag is not None and tag.sigil:
            text, after = _without_its_line(template, at, start, text, after)
        if text:
            pieces.append(text)
        if tag is not None:
            pieces.append(tag)
        at = after
    if at < len(template):
        pieces.append(template[at:])
    return pieces


def _tag(inside: str, at: int, errors: list[tuple[int, str]]) -> _Tag | None:
    name = inside.strip()
    sigil = name[:1] if name[:1] in ("#", "^", "/") else ""
    name = name[len(sigil) :].strip()
    shown = "{{" + inside[:40] + "}}"
    if name[:1] in ("{", "&"):
        errors.append((at, f"{shown}: there is no unescaped form; write {{{{ name }}}}"))
    elif not _PATH.fullmatch(name):
        errors.append((at, f"{shown} is not a path: expected names joined by dots, as in {{{{ order.items.0.name }}}}"))
    else:
        return _Tag(sigil, name, at)
    return None


def _without_its_line(template: str, at: int, start: int, text: str, after: int) -> tuple[str, int]:
    """If the tag at `start` is alone on its line, the text before without the indent, and where the next line begins.

    Only the text since the last tag is looked at, which keeps a long line of tags from being read once per tag.
    """
    line = text.rfind("\n") + 1
    begins_line = line > 0 or at == 0 or template[at - 1] == "\n"
    rest = _REST_OF_LINE.match(template, after)
    if begins_line and rest is not None and _BLANK.match(text, line):
        return text[:line], rest.end()
    return text, after


def _position(template: str, at: int) -> str:
    return f"line {template.count(chr(10), 0, at) + 1}, column {at - template.rfind(chr(10), 0, at)}"


class _Rendering:
    """One rendering under way: what was written so far, and how much of the limits is used."""

    def __init__(self, template: str, html: bool) -> None:
        self.template = template
        self.html = html
        self.pieces: list[str] = []
        self.size = 0
        self.steps = 0

    def write(self, body: list[_Node], scopes: list[Any]) -> None:
        for node in body:
            self._count(node)
            if isinstance(node, str):
                self._put(node)
            elif isinstance(node, _Value):
                self._put(self._text(node, self._find(node, scopes)))
            else:
                self._enter(node, scopes)

    def _enter(self, section: _Section, scopes: list[Any]) -> None:
        value = self._find(section, scopes)
        if section.inverted:
            if not value:
                self.write(section.body, scopes)
        elif isinstance(value, list):
            for item in value:
                self._count(section)
                self.write(section.body, [*scopes, item])
        elif value:
            self.write(section.body, [*scopes, value])

    def _find(self, node: _Value | _Section, scopes: list[Any]) -> Any:
        if node.path == ".":
            return scopes[-1]
        first, *rest = node.path.split(".")
        value = _MISSING
        for scope in reversed(scopes):
            if (value := _member(scope, first)) is not _MISSING:
                break
        if value is _MISSING:
            raise self._error(node, f"nothing in the data is called {node.path!r}")
        for name in rest:
            if (value := _member(value, name)) is _MISSING:
                raise self._error(node, f"nothing in the data is called {node.path!r}: {name!r} is missing")
        return value

    def _text(self, node: _Value, value: Any) -> str:
        if isinstance(value, str):
            return markup.escape(value, quote=True) if self.html else value
        if value is None:
            return ""
        if isinstance(value, (bool, int, float)):
            try:
                return json.dumps(value, allow_nan=False)
            except ValueError as error:
                raise self._error(node, f"{node.path!r} cannot be written: {error}") from None
        kind = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else type(value).__name__
        raise self._error(node, f"{node.path!r} is {kind}, not text or a number: open a section, or name what is in it")

    def _put(self, piece: str) -> None:
        self.size += len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
        if self.size > OUTPUT_LIMIT:
            raise TemplateError(f"the rendered text is longer than {OUTPUT_LIMIT:,} bytes: give it less data")
        self.pieces.append(piece)

    def _count(self, node: _Node) -> None:
        self.steps += 1
        if self.steps > STEPS_LIMIT:
            words = f"the rendering takes more than {STEPS_LIMIT:,} steps: give it less data"
            raise TemplateError(words) if isinstance(node, str) else self._error(node, words)

    def _error(self, node: _Value | _Section, words: str) -> TemplateError:
        return TemplateError(f"{_position(self.template, node.at)}: {words}")


def _member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name, _MISSING)
    if isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
        return value[int(name)]
    return _MISSING
