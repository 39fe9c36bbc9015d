"""The stack of an error: which frames are kept, how their files are named, and how they read.

An error is kept as type, message, frames (file, line, function) and the errors that led to it. No locals and no source
lines: both may hold secrets, and a history cannot forget. Everything is bounded, whatever an author's exception does.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from holdfast.engine import errors
from holdfast.engine.hiding import without_secrets
from holdfast.engine.interrupts import is_interrupt
from holdfast.engine.retry import storable

MESSAGE_MAX = 2000  # characters
CAUSE_MESSAGE_MAX = 500
NAME_MAX = 200  # characters of a type, a file or a function
FRAMES_MAX = 24  # of the error itself; where there are more, the first and the last are kept
CAUSE_FRAMES_MAX = 12
FIRST = 6  # of those that are kept, so many from the beginning
CAUSES_MAX = 6  # causes, contexts and members together
MEMBERS_LOOKED_AT = 50  # of an exception group
LINKED_MAX = 1_000  # exceptions that are looked at
ERROR_BYTES = 14_000  # of a whole error as JSON: lists leave out what has more than 16 KiB
TEXT_MAX = 8_000  # characters of a traceback in a log line
SOURCE_MAX = 200

Kind = Literal["author", "library", "machinery"]
OURS = str(Path(__file__).resolve().parent.parent) + "/"
PACKAGES = ("/site-packages/", "/dist-packages/")
STANDARD = tuple(sorted({f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "platstdlib")}))
# What stands between the worker and an author's function.
CALLERS = ("asyncio/", "concurrent/", "threading.py", "contextvars.py", "functools.py")
# How an error came to be in the list of another one, as a traceback says it.
JOINTS = {
    "cause": "The above exception was the direct cause of the following exception:",
    "context": "During handling of the above exception, another exception occurred:",
    "member": "The above exception is one of those in the following group:",
    "step": "The above exception ended a step, and the workflow went on with the following exception:",
    "task": "The above exception ended a task, and its chart failed by it:",
    "child": "The above exception ended a child, and the workflow went on with the following exception:",
}
# Errors in words of ours say what they are; the type before them would only repeat it.
SELF_EXPLAINING = frozenset(
    {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)}
    | {"Aborted", "Cancelled", "DeadlinePassed", "FailedByPerson", "ForkRefused", "LookupGone", "Poison", "StepFault"}
    | {"TaskFailed", "WindowOver", "WorkerLost"}
)


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the stack."""

    file: str
    line: int
    function: str
    library: bool = False  # of an installed package, the standard library or Holdfast
    left_out: int = 0  # frames left out just before this one


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error that led to another: its `cause` or `context`, a `member` of a group, what ended a `step`, `task` or
    `child`."""

    how: str
    type: str
    message: str
    stack: list[Frame] = []


class Parsed(msgspec.Struct, frozen=True):
    """An error on record."""

    type: str = "Error"
    message: str = ""
    stack: list[Frame] = []
    causes: list[Cause] = []


# -- from an exception


class Asked(msgspec.Struct, frozen=True):
    """What a model was asked, or would have been: the attribute `asked` of the error that came of it."""

    record: dict[str, Any]


def error_payload(error: BaseException) -> dict[str, Any]:
    """An error as history keeps it."""
    found: dict[str, Any] = {"type": type_of(error), "message": message_of(error)}
    try:
        asked = vars(error).get("asked")
        if isinstance(asked, Asked):
            return found | {"asked": asked.record}  # of our own handler, whose stack says nothing
        stack = [msgspec.to_builtins(frame) for frame, _ in frames_of(error.__traceback__, FRAMES_MAX)]
        causes = [msgspec.to_builtins(cause) for cause, _ in causes_of(error)]
    except BaseException as odd:  # an author's exception may answer anything; what is known so far is kept
        if is_interrupt(odd):
            raise
        return found
    while causes and _size(found, stack, causes) > ERROR_BYTES:
        causes.pop()
    while stack and _size(found, stack, causes) > ERROR_BYTES:
        del stack[len(stack) // 3]
    return found | ({"stack": stack} if stack else {}) | ({"causes": causes} if causes else {})


def _size(*parts: Any) -> int:
    return len(msgspec.json.encode(parts))


class Unreadable(Exception):
    """In the place of an error that cannot be asked what it is."""


def readable(error: BaseException) -> BaseException:
    """The error; another one in its place where `__class__` itself raises, and so every `isinstance` would."""
    try:
        isinstance(error, Unreadable)
    except BaseException as odd:
        if is_interrupt(odd):
            raise
        return Unreadable(f"the class of {type_of(error)} cannot be read")
    return error


def type_of(error: BaseException) -> str:
    try:
        return storable(type(error).__name__[:NAME_MAX])
    except BaseException as odd:  # a metaclass may answer anything
        if is_interrupt(odd):
            raise
        return "Error"


def message_of(error: BaseException, limit: int = MESSAGE_MAX) -> str:
    try:
        return storable(str(error)[:limit])
    except BaseException as odd:
        if is_interrupt(odd):
            raise
        return "(its text cannot be read)"


def spelled(error: BaseException) -> str:
    """For a log line: `repr`, whatever the exception answers."""
    try:
        return repr(error)
    except BaseException:  # an author's own
        return f"{type_of(error)}({message_of(error)!r})"


Kept = list[tuple[Frame, str]]  # a frame, and the path that its source is read from


def frames_of(traceback: TracebackType | None, limit: int) -> Kept:
    """The author's frames, and of each way through a library the first frame; of the last way also its end.

    What Holdfast and asyncio put between the worker and the author's function is left out."""
    walked: list[tuple[Kind, TracebackType]] = []
    while traceback is not None:
        kind = kind_of(traceback.tb_frame.f_code.co_filename)
        if walked or kind != "machinery":
            walked.append((kind, traceback))
        traceback = traceback.tb_next
    chosen = [
        at
        for at, (kind, _) in enumerate(walked)
        if kind == "author" or at in (0, len(walked) - 1) or walked[at - 1][0] == "author"
    ]
    if len(chosen) > limit:
        chosen = chosen[:FIRST] + chosen[FIRST - limit :]
    kept: Kept = []
    before = -1
    for at in chosen:
        kind, found = walked[at]
        code, line = found.tb_frame.f_code, found.tb_lineno or 0
        name, function = shown_path(code.co_filename), storable(code.co_qualname[-NAME_MAX:])
        kept.append((Frame(name, line, function, kind != "author", at - before - 1), code.co_filename))
        before = at
    return kept


def causes_of(error: BaseException) -> list[tuple[Cause, Kept]]:
    """What led to an error, nearest first: the members of a group, what a step or a child died of, causes, contexts."""
    found: list[tuple[Cause, Kept]] = []
    seen = {id(error)}
    line: list[tuple[str, BaseException]] = list(_led_to(error))
    found += _recorded(error)
    while line and len(found) < CAUSES_MAX:
        how, one = line.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        frames = frames_of(one.__traceback__, CAUSE_FRAMES_MAX)
        # The words of other errors than the one an author let out: nobody meant them to be read, so secrets are hidden.
        words = type_of(one), without_secrets(message_of(one))[:CAUSE_MESSAGE_MAX]
        found.append((Cause(how, *words, [frame for frame, _ in frames]), frames))
        found += _recorded(one)
        line[:0] = _led_to(one)
    return found[:CAUSES_MAX]


def _led_to(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    for member in members_of(error)[:MEMBERS_LOOKED_AT]:
        yield "member", member
    cause, context = behind(error)
    if cause is not None:
        yield "cause", cause
    elif context is not None and not error.__suppress_context__:
        yield "context", context


def behind(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Its cause and its context, past whatever an author's class answers under these names."""
    kind: Any = BaseException
    cause, context = kind.__cause__.__get__(error), kind.__context__.__get__(error)
    return cause and readable(cause), context and readable(context)


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    kind: Any = BaseExceptionGroup
    return tuple(map(readable, kind.exceptions.__get__(error))) if issubclass(type(error), kind) else ()


def _recorded(error: BaseException) -> Iterator[tuple[Cause, Kept]]:
    """What the journal says a step or a child died of, if this is how the workflow was told."""
    words = parsed(error.recorded) if isinstance(error, errors.StepFailed | errors.ChildFailed) else None
    if words is not None:
        how = "child" if isinstance(error, errors.ChildFailed) else "step"
        first = Cause(how, words.type, words.message[:CAUSE_MESSAGE_MAX], words.stack[-CAUSE_FRAMES_MAX:])
        for cause in (first, *words.causes):
            yield cause, [(frame, "") for frame in cause.stack]


def linked(error: BaseException) -> Iterator[BaseException]:
    """The error, and every exception that it leads to, once."""
    line = [error]
    seen: set[int] = set()
    while line and len(seen) < LINKED_MAX:
        one = line.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            line += [after for after in behind(one) if after is not None]
            line += members_of(one)


def without_machinery(error: BaseException) -> BaseException:
    """The same exception, its traceback from the author's first frame on: for those who keep it, as the frames before
    hold on to the worker."""
    traceback = error.__traceback__
    while traceback is not None and kind_of(traceback.tb_frame.f_code.co_filename) == "machinery":
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    return error


# -- files


@lru_cache(4096)
def kind_of(file: str) -> Kind:
    """Whose code a file holds."""
    path = file.replace("\\", "/")
    if path.startswith(OURS) or path.startswith("<frozen "):
        return "machinery"
    if any(name in path for name in PACKAGES):
        return "library"
    for root in STANDARD:
        if path.startswith(root):
            return "machinery" if path.removeprefix(root).startswith(CALLERS) else "library"
    return "author"


def shown_path(file: str) -> str:
    """A file as it is imported: below the longest entry of sys.path that holds it, so that no home directory and no
    place of an installation is kept. Where none holds it: its folder and its name."""
    path = file.replace("\\", "/")
    if path.startswith(OURS):
        return "holdfast/" + path.removeprefix(OURS)
    for name in PACKAGES:
        if name in path:
            return storable(path.rpartition(name)[2][-NAME_MAX:])
    if path.startswith("<") or not Path(path).is_absolute():
        return storable(path.removeprefix("./")[-NAME_MAX:])
    roots = [root for root in (*STANDARD, *_search_path()) if path.startswith(root)]
    longest = max(roots, key=len, default="")
    below = path.removeprefix(longest) if longest else "/".join(Path(path).parts[-2:])
    return storable(below[-NAME_MAX:])


def _search_path() -> Iterator[str]:
    for entry in sys.path:
        root = entry.replace("\\", "/") if isinstance(entry, str) else "/"
        root = Path.cwd().as_posix() if root in ("", ".") else root.rstrip("/")
        if root and root != Path(root).anchor:
            yield f"{root}/"


# -- on record


def parsed(words: Any) -> Parsed | None:
    """None where it is not an error as `error_payload` makes them."""
    try:
        return msgspec.convert(words, Parsed)
    except msgspec.ValidationError:
        return None


def without_stack(words: Any) -> Any:
    """An error as a chart is told of it: a stack or a prompt in its context would be stored again with every turn."""
    if not isinstance(words, dict):
        return words
    return {k: v for k, v in words.items() if k not in ("stack", "causes", "asked")}


def causes_from(how: str, words: Any) -> dict[str, Any]:
    """The causes of an error that says what ended a step, a child or a task, from the words of that other error."""
    if not isinstance(words, dict) or not (words.get("stack") or words.get("causes")):
        return {}
    first = {"how": how} | {key: words[key] for key in ("type", "message", "stack") if key in words}
    return {"causes": [first, *words.get("causes", [])][:CAUSES_MAX]}


# -- as text


def summary(words: Any) -> str:
    """One line: the type and the message."""
    if not isinstance(words, Mapping):
        return str(words or "")
    type_, message = str(words.get("type") or ""), str(words.get("message") or "")
    if not type_ or (message and type_ in SELF_EXPLAINING):
        return message
    return f"{type_}: {message}" if message else type_


def place_of(words: Any) -> str:
    """The author's line that failed: `shop/prices.py:12 in amount`; empty where none is on record."""
    error = parsed(words)
    if error is None:
        return ""
    ended = [cause for cause in error.causes if cause.how in ("step", "task", "child")]
    for stack in (*(cause.stack for cause in reversed(ended)), error.stack, *(cause.stack for cause in error.causes)):
        mine = [frame for frame in stack if not frame.library]
        if mine:
            return f"{mine[-1].file}:{mine[-1].line} in {mine[-1].function}"
    return ""


def traceback_text(error: BaseException, source: Callable[[str, int], str] | None = None) -> str:
    """As Python prints it, for a log line, without locals. `source`: the text of a file's line, such as
    `linecache.getline` gives it."""
    try:
        parts = [_part(type_of(error), message_of(error), frames_of(error.__traceback__, FRAMES_MAX), source)]
        joints = []
        for cause, frames in causes_of(error):
            joints.append(cause.how)
            parts.append(_part(cause.type, cause.message, frames, source))
    except BaseException as odd:
        if is_interrupt(odd):
            raise
        return f"{type_of(error)}: {message_of(error)}"
    return _joined(parts, joints)


def recorded_text(words: Any) -> str:
    """The same of an error on record: without source lines. Empty where it has no frames."""
    error = parsed(words)
    if error is None or (not error.stack and not any(cause.stack for cause in error.causes)):
        return ""
    parts = [_part(error.type, error.message, [(frame, "") for frame in error.stack])]
    parts += [_part(one.type, one.message, [(frame, "") for frame in one.stack]) for one in error.causes]
    return _joined(parts, [one.how for one in error.causes])


def _part(
    type_: str, message: str, frames: Iterable[tuple[Frame, str]], source: Callable[[str, int], str] | None = None
) -> str:
    lines: list[str] = []
    for frame, path in frames:
        if frame.left_out and lines:
            lines.append(f"  … {frame.left_out} more")
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        text = source(path, frame.line).strip() if source is not None and path else ""
        if text:
            lines.append(f"    {text[:SOURCE_MAX]}")
    head = ["Traceback (most recent call last):"] if lines else []
    return "\n".join([*head, *lines, f"{type_}: {message}" if message else type_])


def _joined(parts: list[str], joints: list[str]) -> str:
    text = parts[0]
    for part, joint in zip(parts[1:], joints, strict=True):
        text = f"{part}\n\n{JOINTS.get(joint, JOINTS['cause'])}\n\n{text}"
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX // 4]}\n  …\n{text[-TEXT_MAX * 3 // 4 :]}"
