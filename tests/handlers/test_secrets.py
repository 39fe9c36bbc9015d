"""Secrets by name, from the environment or from a file."""

from pathlib import Path

import pytest

from holdfast.engine.effects import known_from
from holdfast.handlers.secrets import DictSecrets, EnvSecrets, SecretMissing


def test_a_secret_comes_from_its_variable() -> None:
    secrets = EnvSecrets({"HOLDFAST_SECRET_STRIPE_KEY": "sk_1"})
    assert secrets.get("acme", "stripe_key") == "sk_1"
    assert secrets.get("acme", "Stripe-Key") == "sk_1"
    assert secrets.get("acme", "stripe.key") == "sk_1"


def test_the_process_environment_is_read_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = EnvSecrets()
    monkeypatch.setenv("HOLDFAST_SECRET_LATE", "one")
    assert secrets.get("acme", "late") == "one"
    monkeypatch.setenv("HOLDFAST_SECRET_LATE", "two")
    assert secrets.get("acme", "late") == "two"


def test_a_tenants_own_secret_wins_and_is_nobody_elses() -> None:
    secrets = EnvSecrets({"HOLDFAST_SECRET_KEY": "shared", "HOLDFAST_SECRET_ACME_EU__KEY": "own"})
    assert secrets.get("acme-eu", "key") == "own"
    assert secrets.get("globex", "key") == "shared"


def test_a_secret_comes_from_a_file_without_the_line_break_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk_file\n")
    secrets = EnvSecrets({"HOLDFAST_SECRET_KEY_FILE": str(path), "HOLDFAST_SECRET_ACME__OTHER_FILE": str(path)})
    assert secrets.get("acme", "key") == "sk_file"
    assert secrets.get("acme", "other") == "sk_file"
    path.write_text("rotated\r\n")
    assert secrets.get("acme", "key") == "rotated"
    with pytest.raises(SecretMissing):
        secrets.get("globex", "other")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "set HOLDFAST_SECRET_KEY or HOLDFAST_SECRET_ACME__KEY, or either with _FILE"),
        ({"HOLDFAST_SECRET_KEY": ""}, "HOLDFAST_SECRET_KEY is set, but empty"),
        ({"HOLDFAST_SECRET_ACME__KEY": "", "HOLDFAST_SECRET_KEY": "x"}, "HOLDFAST_SECRET_ACME__KEY is set, but empty"),
        ({"HOLDFAST_SECRET_KEY_FILE": "/nowhere/key"}, "HOLDFAST_SECRET_KEY_FILE names '/nowhere/key'"),
        ({"HOLDFAST_SECRET_KEY_FILE": "a\x00b"}, "cannot be read (ValueError)"),
        ({"HOLDFAST_SECRET_KEY_FILE": ""}, "cannot be read"),
    ],
)
def test_a_missing_secret_says_what_to_set(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SecretMissing) as missing:
        EnvSecrets(environ).get("acme", "key")
    assert words in str(missing.value)
    assert missing.value.code == "secret_missing"
    assert known_from(missing.value) == "rejected"


@pytest.mark.parametrize(
    "name", ["acme__key", "ACME--key", "acme._key", "_key", "key_", "key_file", "key-FILE", "", "clé", "ключ", "a b"]
)
def test_no_spelling_of_a_name_reaches_another_tenants_variable_or_a_path(name: str) -> None:
    held = {
        "HOLDFAST_SECRET_ACME__KEY": "acme's",
        "HOLDFAST_SECRET_KEY_FILE": "/etc/hostname",
        "HOLDFAST_SECRET_GLOBEX___KEY": "x",
        "HOLDFAST_SECRET__KEY": "x",
        "HOLDFAST_SECRET_KEY_": "x",
        "HOLDFAST_SECRET_": "x",
        "HOLDFAST_SECRET_CL_": "x",
        "HOLDFAST_SECRET_A__B": "x",
    }
    if name == "a b":  # other characters become _, which is one name
        assert EnvSecrets({"HOLDFAST_SECRET_A_B": "ab"}).get("globex", name) == "ab"
        return
    with pytest.raises(SecretMissing):
        EnvSecrets(held).get("globex", name)


def test_secrets_for_tests_come_from_a_table() -> None:
    secrets = DictSecrets({"key": "shared", "empty": ""}, {"acme": {"key": "own"}})
    assert (secrets.get("acme", "key"), secrets.get("globex", "key")) == ("own", "shared")
    for name in ("other", "empty"):
        with pytest.raises(SecretMissing, match=f"'{name}' of tenant 'acme'"):
            secrets.get("acme", name)
    assert "shared" not in repr(secrets)
