"""What can be set, and where each value came from: a flag, then HOLDFAST_* in the environment, then holdfast.toml, then
the default.

`Settings` is the one table: a field's annotation says how it is read and what it is for, so that the library, the
command line, the server and `holdfast config show` cannot disagree. `HOLDFAST_X_FILE` names a file with the value, so
that a secret need not stand in the environment. The settings file is the one that HOLDFAST_CONFIG names, else
holdfast.toml in the working directory; parent directories are not searched. This module must not know what the values
are used for.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from holdfast.engine.errors import BadInput
from holdfast.engine.hiding import HIDDEN, without_passwords
from holdfast.engine.ids import check_tenant
from holdfast.logs import LEVELS

PREFIX = "HOLDFAST_"
FILE = "holdfast.toml"
Kind = Literal["text", "url", "integer", "number", "boolean", "list", "table"]
SQLITE = "sqlite:///"
DATABASE = (SQLITE, "postgresql://", "postgres://")
HTTP = ("https://", "http://")
WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
# No settings: which file to read, tracebacks, what the client reads, secrets of tasks, what our own tests look at.
OTHER_VARIABLES = re.compile(r"HOLDFAST_(CONFIG|DEBUG|URL|KEY|KEY_FILE|SECRET_.+|TEST_.+|BENCH_.+)")
QUERY_PASSWORD = re.compile(r"(?P<before>[?&](?:\w*password|passwd|token|\w*secret|api_?key)=)[^&#\s]+", re.IGNORECASE)


class Entry(msgspec.Struct, frozen=True):
    """How one setting is read, and what it is for."""

    kind: Kind
    help: str
    secret: bool = False
    choices: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    option: str = ""  # the command line's name for it, where that is another


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting with its value."""

    # what every command may need
    app: Annotated[str | None, Entry("text", "the app, module:object")] = None
    database_url: Annotated[
        str | None, Entry("url", "sqlite:///file.db or postgresql://…", begins=DATABASE, option="database")
    ] = None
    postgres_hints: Annotated[bool, Entry("boolean", "NOTIFY on PostgreSQL; off where there is none")] = True
    postgres_session_locks: Annotated[bool, Entry("boolean", "advisory locks; off behind a pooler")] = True
    tenant: Annotated[str, Entry("text", "whom commands speak for")] = "default"
    log_level: Annotated[str, Entry("text", "how much is logged", choices=LEVELS)] = "info"
    log_format: Annotated[str, Entry("text", "lines or JSON", choices=("auto", "console", "json"))] = "auto"
    # workers
    queues: Annotated[tuple[str, ...], Entry("list", "the queues a worker serves")] = ("default",)
    concurrency: Annotated[int, Entry("integer", "instances a worker holds at once", least=1)] = 200
    kept: Annotated[int, Entry("integer", "busy instances a worker keeps in memory while they wait", least=0)] = 100
    grace: Annotated[float, Entry("number", "seconds that a stop waits for what runs", least=0)] = 10.0
    metrics_port: Annotated[int | None, Entry("integer", "where a worker tells of itself", least=0, most=65535)] = None
    metrics_host: Annotated[str, Entry("text", "and on which address")] = "127.0.0.1"
    # what tasks reach the world with
    smtp_url: Annotated[str | None, Entry("url", "the mail server", begins=("smtp://", "smtps://"))] = None
    mail_from: Annotated[str | None, Entry("text", "the sender where a task names none")] = None
    mailbox: Annotated[str | None, Entry("text", "a folder for mails, instead of a server")] = None
    llm_url: Annotated[str | None, Entry("url", "a server that speaks chat completions, up to /v1", begins=HTTP)] = None
    llm_model: Annotated[str | None, Entry("text", "the model")] = None
    dev_answers: Annotated[str | None, Entry("text", "what `dev` answers for a model", option="answers")] = None
    # the server
    host: Annotated[str, Entry("text", "the address the server listens on")] = "127.0.0.1"
    port: Annotated[int, Entry("integer", "and its port", least=0, most=65535)] = 8700
    public_url: Annotated[str | None, Entry("url", "how others reach the server", begins=HTTP)] = None
    default_tenant: Annotated[str, Entry("text", "the tenant of a caller that names none")] = "default"
    routes: Annotated[
        dict[str, str], Entry("table", "tenant = database URL, for those that are not in the first one", secret=True)
    ] = msgspec.field(default_factory=dict)
    require_idempotency_keys: Annotated[bool, Entry("boolean", "refuse a change without a key")] = False
    idempotency_days: Annotated[int, Entry("integer", "how long an answer is kept for its key", least=1)] = 7
    idempotency_tombstone_days: Annotated[int, Entry("integer", "and then that there was one", least=0)] = 90
    max_body_bytes: Annotated[int, Entry("integer", "the largest request", least=1024)] = 1_048_576
    max_in_flight: Annotated[int, Entry("integer", "requests at once", least=1)] = 256
    max_streams: Annotated[int, Entry("integer", "live streams at once", least=0)] = 200
    max_connections: Annotated[int, Entry("integer", "connections at once", least=1)] = 2000
    backlog_limit: Annotated[int | None, Entry("integer", "refuse starts beyond so many unclaimed", least=1)] = None
    oidc_issuer: Annotated[str | None, Entry("url", "who vouches for people", begins=HTTP)] = None
    oidc_audience: Annotated[str | None, Entry("text", "whom their tokens must be meant for")] = None
    oidc_jwks_url: Annotated[str | None, Entry("url", "where the issuer's keys are", begins=HTTP)] = None
    oidc_algorithms: Annotated[tuple[str, ...], Entry("list", "the signatures that count")] = (
        "RS256", "ES256", "EdDSA",
    )  # fmt: skip
    oidc_tenant_claim: Annotated[str | None, Entry("text", "the claim with the tenant")] = None
    oidc_roles_claim: Annotated[str, Entry("text", "the claim with the roles")] = "roles"
    oidc_groups_claim: Annotated[str, Entry("text", "the claim with the groups")] = "groups"
    metrics_key: Annotated[str | None, Entry("text", "what a reader of /metrics must show", secret=True)] = None

    def __repr__(self) -> str:
        return "<Settings>"  # some are secret, and a trace is no place for them


def _table() -> dict[str, Entry]:
    hints = get_type_hints(Settings, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in Settings.__struct_fields__}


TABLE: Mapping[str, Entry] = _table()
DEFAULTS = Settings()
# By the name that the command line has for it.
OPTIONS: Mapping[str, str] = {entry.option or name: name for name, entry in TABLE.items()}
# What `Holdfast(…)` itself reads. The others may be wrong or out of reach for a process that does not use them.
LIBRARY = frozenset((
    "database_url", "postgres_hints", "postgres_session_locks", "backlog_limit", "smtp_url", "mail_from", "mailbox",
    "llm_url", "llm_model",
))  # fmt: skip
PATHS = ("mailbox", "dev_answers")


class Found(msgspec.Struct, frozen=True):
    """The settings, and where each came from: `flag`, a variable, a file, or `default`."""

    values: Settings
    origins: dict[str, str]
    file: str = ""  # the settings file that was read, as an absolute path

    def is_set(self, name: str) -> bool:
        return self.origins[name] != "default"

    def shown(self, name: str) -> Any:
        """A value as anybody may see it."""
        value = getattr(self.values, name)
        if TABLE[name].secret and value:
            return dict.fromkeys(value, HIDDEN) if isinstance(value, dict) else HIDDEN
        return shown_url(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value


def shown_url(text: str) -> str:
    """Without its passwords, also where one stands in the query."""
    return QUERY_PASSWORD.sub(rf"\g<before>{HIDDEN}", without_passwords(text))


def variable(name: str) -> str:
    return PREFIX + name.upper()


def load(
    flags: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None,
    only: Container[str] = TABLE,
) -> Found:  # fmt: skip
    """Read everything, and refuse what nobody could mean: an unknown key, a value that does not fit.

    `only`: the settings that are wanted; the others keep their defaults."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins = dict.fromkeys(TABLE, "default")
    file, in_file = _from_file(environ, folder or Path.cwd())
    given = [in_file, _from_environment(environ, only)]
    given.append({name: (value, "flag") for name, value in (flags or {}).items()})
    for source in given:  # the later wins
        for name, (value, origin) in source.items():
            if name in only:
                values[name], origins[name] = read(name, value, origin), origin
    return Found(Settings(**values), origins, file)


def for_the_library() -> Settings:
    """What `Holdfast(…)` takes where it is given nothing."""
    return load(only=LIBRARY).values


def _from_file(environ: Mapping[str, str], folder: Path) -> tuple[str, dict[str, tuple[Any, str]]]:
    named = environ.get("HOLDFAST_CONFIG")
    path = (folder / (named or FILE)).absolute()
    origin = named or FILE
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        if named:
            raise BadInput(f"HOLDFAST_CONFIG names {named}, which is not there: correct it, or unset it") from None
        return "", {}
    except OSError as error:
        raise BadInput(f"{origin} cannot be read: {error.strerror}") from error
    except ValueError as error:  # neither TOML nor UTF-8
        raise BadInput(f"{origin} is not TOML: {error}") from None
    for name in content:
        if name not in TABLE:
            raise BadInput(f"{origin}: no setting is called {name!r}{_meant(name)}")
    if path.parent != folder.absolute():
        content = {name: _beside(path.parent, name, value) for name, value in content.items()}
    return str(path), {name: (value, origin) for name, value in content.items()}


def _beside(folder: Path, name: str, value: Any) -> Any:
    """A relative path in a file that is elsewhere means a place beside that file: two processes that name the same
    file find the same database, whatever their working directories are."""
    if isinstance(value, dict):
        return {key: _beside(folder, "database_url", url) for key, url in value.items()}
    if not isinstance(value, str):
        return value
    if name == "database_url" and value.startswith(SQLITE):
        return f"{SQLITE}{folder / value.removeprefix(SQLITE)}"
    return str(folder / value) if name in PATHS else value


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name.replace("-", "_").lower(), [*TABLE, *OPTIONS], n=1)
    if close:
        return f"; is {OPTIONS.get(close[0], close[0])!r} meant?"
    return "; `holdfast config show` lists them all"


def _from_environment(environ: Mapping[str, str], only: Container[str]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for name in TABLE:
        if name not in only:
            continue
        here, there = variable(name), f"{variable(name)}_FILE"
        value, path = environ.get(here), environ.get(there)  # set to nothing is as good as not set
        if value and path:
            raise BadInput(f"{here} and {there} are both set: remove one, so that nobody has to guess which counts")
        if value:
            found[name] = (value, here)
        elif path:
            found[name] = (_content(path, there), there)
    return found


def _content(path: str, origin: str) -> str:
    try:
        content = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"{origin} names {path}, which cannot be read ({type(error).__name__})") from None
    if not content:
        raise BadInput(f"{origin} names {path}, which is empty: expected the value in it")
    return content


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """What begins like one of ours and is none: most likely misspelt."""
    known = {name for setting in TABLE for name in (variable(setting), f"{variable(setting)}_FILE")}
    given = os.environ if environ is None else environ
    return sorted(
        n for n in given if n.startswith(PREFIX) and n not in known and not OTHER_VARIABLES.fullmatch(n)
    )  # fmt: skip


def seconds_for_tests(name: str, seconds: float) -> float:
    """A time limit that our own tests shorten."""
    return float(os.environ.get(f"HOLDFAST_TEST_{name}_SECONDS", seconds))


# -- one value


def read(name: str, given: Any, origin: str) -> Any:
    """A value as its setting wants it, from text or from TOML."""
    entry = TABLE[name]
    try:
        value = READERS[entry.kind](given)
        if not _fits(entry, value):
            raise ValueError
        if name in ("tenant", "default_tenant"):
            check_tenant(value)
        if entry.kind == "table":
            for tenant in value:
                check_tenant(tenant)
    except (ValueError, TypeError, BadInput):
        hidden = entry.secret or entry.kind == "url"  # what does not fit may still be a password
        shown = "" if hidden else f" is {str(given)[:100]!r}"
        if name in ("tenant", "default_tenant"):
            shown = f" {str(given)[:100]!r} is not a tenant id"
        raise BadInput(f"{name}{shown}: expected {_expected(name, entry)} (from {origin})") from None
    return value


def _fits(entry: Entry, value: Any) -> bool:
    if entry.choices:
        return value in entry.choices
    if entry.begins:
        return bool(value.startswith(entry.begins)) and not any(mark.isspace() for mark in value)
    if entry.least is not None and value < entry.least:
        return False
    return entry.most is None or value <= entry.most


def _text(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise TypeError
    return given


def _integer(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, str)):
        raise TypeError
    return int(given)


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise TypeError
    value = float(given)
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError
    return value


def _boolean(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    found = WORDS.get(_text(given).lower())
    if found is None:
        raise ValueError
    return found


def _list(given: Any) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, (list, tuple)):
        raise TypeError
    found = tuple(_text(part).strip() for part in parts)
    if not found:
        raise ValueError
    return found


def _pairs(given: Any) -> dict[str, str]:
    """A table in TOML; elsewhere a JSON object."""
    table = msgspec.json.decode(given) if isinstance(given, str) else given
    if not isinstance(table, dict) or not all(str(url).startswith(DATABASE) for url in table.values()):
        raise TypeError
    return dict(table)


READERS: Mapping[Kind, Callable[[Any], Any]] = {
    "text": _text, "url": _text, "integer": _integer, "number": _number, "boolean": _boolean, "list": _list,
    "table": _pairs,
}  # fmt: skip


def _expected(name: str, entry: Entry) -> str:
    if entry.choices:
        return "one of " + ", ".join(entry.choices)
    if entry.begins:
        return " or ".join(f"{begin}…" for begin in entry.begins)
    if name in ("tenant", "default_tenant"):
        return "1 to 63 letters, digits, '_', '.' or '-'"
    words = {
        "text": "a text", "url": "a URL", "integer": "a whole number", "number": "a number",
        "boolean": "true or false", "list": "a list of texts, in the environment with commas between",
        "table": "tenants with their database URLs, in the environment as a JSON object",
    }[entry.kind]  # fmt: skip
    if entry.least is not None:
        words += f", {entry.least:,} at least"
    if entry.most is not None:
        words += f", {entry.most:,} at most"
    return words
