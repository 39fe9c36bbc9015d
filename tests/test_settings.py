"""Settings: which source counts, what is refused and how that is said, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from holdfast.engine.errors import BadInput
from holdfast.settings import DEFAULTS, OPTIONS, TABLE, Settings, load, shown_url, unknown_variables, variable

SECRET = "hunter2"


def found(folder: Path, toml: str = "", flags: dict[str, Any] | None = None, **environ: str) -> Any:
    if toml:
        (folder / "holdfast.toml").write_text(toml)
    return load(flags, environ=environ, folder=folder)


def test_the_first_that_is_given_counts(tmp_path: Path) -> None:
    assert found(tmp_path).values.port == 8700
    assert found(tmp_path, "port = 1").values.port == 1
    assert found(tmp_path, HOLDFAST_PORT="2").values.port == 2
    assert found(tmp_path, flags={"port": 3}, HOLDFAST_PORT="2").values.port == 3


def test_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    given = found(
        tmp_path, 'host = "0.0.0.0"\ntenant = "acme"', flags={"tenant": "flagged"},
        HOLDFAST_PORT="9", HOLDFAST_METRICS_KEY_FILE=str(tmp_path / "key"),
    )  # fmt: skip
    wanted = ("tenant", "port", "metrics_key", "host", "grace")
    assert [given.origins[name] for name in wanted] == [
        "flag", "HOLDFAST_PORT", "HOLDFAST_METRICS_KEY_FILE", "holdfast.toml", "default",
    ]  # fmt: skip
    assert given.values.metrics_key == SECRET
    assert [given.is_set(name) for name in ("host", "grace")] == [True, False]


def test_another_file_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("port = 5")
    given = found(tmp_path, "port = 1", HOLDFAST_CONFIG="other.toml")
    assert (given.values.port, given.origins["port"]) == (5, "other.toml")
    with pytest.raises(BadInput, match=r"HOLDFAST_CONFIG names gone\.toml, which is not there"):
        found(tmp_path, HOLDFAST_CONFIG="gone.toml")


def test_a_file_that_an_editor_began_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert found(tmp_path, "\ufeffport = 5").values.port == 5


def test_the_database_url_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"postgresql://me:{SECRET}@db/shop\n")
    given = found(tmp_path, HOLDFAST_DATABASE_URL_FILE=str(tmp_path / "url"))
    assert given.values.database_url == f"postgresql://me:{SECRET}@db/shop"
    assert given.shown("database_url") == "postgresql://me:***@db/shop"


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("prot = 1", r"holdfast\.toml: no setting is called 'prot'; is 'port' meant\?"),
        ("log-level = 'info'", r"no setting is called 'log-level'; is 'log_level' meant\?"),
        ("database = 'sqlite:///x.db'", r"no setting is called 'database'; is 'database_url' meant\?"),
        ("[server]\nport = 1", r"no setting is called 'server'"),
        ("port = 'abc'", r"port is 'abc': expected a whole number, 0 at least, 65,535 at most \(from holdfast\.toml\)"),
        ("port = 70000", "port is '70000': expected"),
        ("port = true", "port is 'True': expected"),
        ("grace = -1", "grace is '-1': expected a number, 0 at least"),
        ("grace = nan", "grace is 'nan': expected a number"),
        ("log_level = 'loud'", "log_level is 'loud': expected one of debug, info, warning, error"),
        ("host = 7", "host is '7': expected a text"),
        ("queues = []", "queues is '.*': expected a list"),
        ("queues = 3", "queues is '3': expected a list"),
        ("require_idempotency_keys = 'perhaps'", "expected true or false"),
        ("tenant = 'a b'", "tenant 'a b' is not a tenant id: expected"),
        ("public_url = 'shop.example.org'", r"public_url: expected https://… or http://… \(from holdfast"),
        ("port = ", "holdfast.toml is not TOML"),
        ("port = 1\nport = 2", "holdfast.toml is not TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, toml: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        found(tmp_path, toml)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HOLDFAST_PORT": "x"}, r"port is 'x': expected a whole number.* \(from HOLDFAST_PORT\)"),
        (
            {"HOLDFAST_DATABASE_URL": f"mysql://me:{SECRET}@h/d"},
            r"database_url: expected sqlite:///… or postgresql://…",
        ),
        ({"HOLDFAST_DATABASE_URL_FILE": "gone"}, "HOLDFAST_DATABASE_URL_FILE names gone, which cannot be read"),
        ({"HOLDFAST_METRICS_KEY_FILE": "empty"}, "HOLDFAST_METRICS_KEY_FILE names empty, which is empty"),
        ({"HOLDFAST_METRICS_KEY": SECRET, "HOLDFAST_METRICS_KEY_FILE": "empty"}, "are both set"),
        ({"HOLDFAST_ROUTES": f'{{"acme": "{SECRET}"}}'}, r"routes: expected tenants with their database URLs"),
        ({"HOLDFAST_ROUTES": f'{{"a b": "sqlite:///{SECRET}"}}'}, r"routes: expected"),
        ({"HOLDFAST_ROUTES": SECRET}, r"routes: expected .* JSON object \(from HOLDFAST_ROUTES\)"),
        ({"HOLDFAST_SMTP_URL": f"me:{SECRET}@host"}, r"smtp_url: expected"),
    ],
)
def test_a_refusal_says_where_and_repeats_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(BadInput, match=said) as refusal:
        found(tmp_path, **variables)
    assert SECRET not in str(refusal.value)


def test_lists_and_tables_come_from_text_and_from_toml(tmp_path: Path) -> None:
    said = '{"acme": "postgresql://a", "umbrella": "sqlite:///u.db"}'
    given = found(tmp_path, HOLDFAST_OIDC_ALGORITHMS="RS256, EdDSA", HOLDFAST_ROUTES=said, HOLDFAST_QUEUES="a,b")
    assert given.values.oidc_algorithms == ("RS256", "EdDSA")
    assert given.values.queues == ("a", "b")
    assert given.values.routes == {"acme": "postgresql://a", "umbrella": "sqlite:///u.db"}
    again = found(tmp_path, 'queues = ["a"]\nrequire_idempotency_keys = true\n[routes]\nacme = "postgresql://a"')
    assert (again.values.queues, again.values.routes) == (("a",), {"acme": "postgresql://a"})
    assert again.values.require_idempotency_keys is True


@pytest.mark.parametrize(("word", "value"), [("true", True), ("ON", True), ("1", True), ("no", False), ("0", False)])
def test_truth_values_come_as_words(tmp_path: Path, word: str, value: bool) -> None:
    given = found(tmp_path, HOLDFAST_REQUIRE_IDEMPOTENCY_KEYS=word)
    assert given.values.require_idempotency_keys is value


def test_a_variable_set_to_nothing_is_not_set(tmp_path: Path) -> None:
    given = found(tmp_path, "port = 1", HOLDFAST_PORT="", HOLDFAST_METRICS_KEY_FILE="")
    assert (given.values.port, given.values.metrics_key) == (1, None)


def test_nothing_secret_is_shown(tmp_path: Path) -> None:
    given = found(
        tmp_path, HOLDFAST_METRICS_KEY=SECRET, HOLDFAST_ROUTES=f'{{"acme": "postgresql://a:{SECRET}@h/d"}}',
        HOLDFAST_SMTP_URL=f"smtp://me:{SECRET}@mail:587?starttls=1",
        HOLDFAST_DATABASE_URL=f"postgresql://db/shop?user=me&password={SECRET}&sslmode=require",
    )  # fmt: skip
    assert given.shown("metrics_key") == "***"
    assert given.shown("routes") == {"acme": "***"}
    assert given.shown("smtp_url") == "smtp://me:***@mail:587?starttls=1"
    assert given.shown("database_url") == "postgresql://db/shop?user=me&password=***&sslmode=require"
    assert SECRET not in repr(given) + str([given.shown(name) for name in TABLE])
    assert shown_url("sqlite:///shop.db") == "sqlite:///shop.db"


def test_a_secret_that_is_not_set_is_shown_as_such(tmp_path: Path) -> None:
    assert (found(tmp_path).shown("metrics_key"), found(tmp_path).shown("routes")) == (None, {})


def test_a_misspelt_variable_is_noticed() -> None:
    known = {
        "HOLDFAST_PORT": "1",
        "HOLDFAST_METRICS_KEY_FILE": "x",
        "HOLDFAST_SECRET_STRIPE": "x",
        "HOLDFAST_DEBUG": "1",
    }
    assert unknown_variables(known | {"HOLDFAST_PROT": "1", "PATH": "x"}) == ["HOLDFAST_PROT"]


def test_the_table_is_whole() -> None:
    hints = get_type_hints(Settings)
    assert len(OPTIONS) == len(TABLE)
    for name, entry in TABLE.items():
        assert entry.help and variable(name) == f"HOLDFAST_{name.upper()}"
        default = getattr(DEFAULTS, name)
        assert default is not None or type(None) in get_args(hints[name]), name
        if default is not None and default != {}:
            given = load({name: default}, environ={}, folder=Path("nowhere"))
            assert getattr(given.values, name) == default, "a default must pass its own check"
