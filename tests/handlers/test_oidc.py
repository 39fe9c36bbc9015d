"""When the keys of an issuer are fetched: at the first token, after a while, and once for all who wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.handlers.oidc import AGAIN_SECONDS, KEPT_SECONDS, Jwks

PUBLISHED = {"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "alg": "EdDSA", "x": "A" * 43}]}


class Counted(Jwks):
    """Asks nobody, counts how often, and is told of the key "k"."""

    asked = 0

    async def _fetch(self) -> None:
        self.asked += 1
        await super()._fetch()


@pytest.fixture(autouse=True)
def issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(client: Any, url: str) -> Any:
        await asyncio.sleep(0)
        return PUBLISHED

    monkeypatch.setattr("holdfast.handlers.oidc._json", answer)


@pytest.mark.parametrize("now", [0.0, 1.5, 8137.547109264174, 65_400.1, 1e9])
async def test_the_first_token_makes_us_ask_however_long_the_machine_is_up(
    now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8137.5…, 300 added and subtracted again, is another number: by that, the keys counted as fetched already."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    keys = Counted("https://issuer.example", "https://issuer.example/keys")
    assert await keys.key("k") is not None and keys.asked == 1


async def test_of_many_who_come_at_once_one_asks() -> None:
    keys = Counted("https://issuer.example", "https://issuer.example/keys")
    assert all(await asyncio.gather(*(keys.key("k") for _ in range(5)))), "refused while the keys were on their way"
    assert keys.asked == 1


async def test_keys_are_asked_for_again_after_a_while_and_sooner_if_one_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    keys = Counted("https://issuer.example", "https://issuer.example/keys")
    await keys.key("k")
    for more, kid, asked in (
        (1.0, "unknown", 1), (AGAIN_SECONDS, "k", 1), (0.0, "unknown", 2), (KEPT_SECONDS, "k", 3),
    ):  # fmt: skip
        now += more
        await keys.key(kid)
        assert keys.asked == asked
