"""Secrets in a text are hidden, what only looks like one is not, and a long text takes no long time."""

from __future__ import annotations

import pytest

from holdfast.engine.hiding import without_secrets
from tests.support.patience import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://bob:hunter2@db/x", "postgresql://bob:***@db/x"),
        ("Authorization: Bearer hunter2hunter2", "Authorization: Bearer ***"),
        ("hfst_live_hunter2", "hfst_live_***"),
        ("password=hunter2 was refused", "password=*** was refused"),
        ("?db_password=hunter2&x=1", "?db_password=***&x=1"),
        ('    password = "hunter2"; connect()', "    password = ***; connect()"),
        ("connect(api_key='hunter2', port=5)", "connect(api_key=***, port=5)"),
        ('SECRET_KEY = b"hunter2 that was cut', "SECRET_KEY = ***"),
        ('{"token": "hunter2", "n": 1}', '{"token": ***, "n": 1}'),
    ],
)
def test_a_secret_in_a_text_is_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        'pay(token=order["token"], amount=4)', "pay(token=fresh_token())", "max_tokens=4096", "KeyError: 'token'",
        "token: expected a text", "if token == 'x':", "https://host:8700/docs", "tokens = [1, 2]",
    ],
)  # fmt: skip
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.timeout(PATIENCE_SECONDS)
@pytest.mark.parametrize(
    "part", ["a", "a://b:", "a://b:c", "bearer ", "token", "token=", 'password="', "secret = '", "hfst_live_", "x@"]
)
def test_a_text_of_a_megabyte_is_read_in_one_pass(part: str) -> None:
    """A pattern that looked ahead from every letter to the end would take hours."""
    text = part * (1_000_000 // len(part))
    assert len(without_secrets(text + "c" * 100_000)) <= 1_200_000
