"""The keys of an OIDC provider, fetched when they are needed and kept for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import jwt
import structlog

log = structlog.get_logger("holdfast.oidc")
KEPT_SECONDS = 300.0
AGAIN_SECONDS = 15.0  # how often a token with a key nobody knows may make us ask
TIMEOUT_SECONDS = 5.0
BYTES_MAX = 1 << 20


class Jwks:
    """An issuer's signing keys. The address is the operator's, or found by the issuer's own discovery document."""

    def __init__(self, issuer: str, url: str | None = None) -> None:
        self.issuer = issuer
        self.url = url
        self._keys: dict[str, Any] = {}
        self._at = -KEPT_SECONDS
        self._one = asyncio.Lock()

    async def key(self, kid: str | None) -> Any:
        """The key of this name; None if the issuer has none."""
        fetched_at = self._at
        age = asyncio.get_running_loop().time() - fetched_at
        known = kid in self._keys
        # While somebody asks, a known key is used as it is; whoever needs the answer waits for it.
        if (age >= KEPT_SECONDS and not (known and self._one.locked())) or (not known and age >= AGAIN_SECONDS):
            async with self._one:
                if self._at == fetched_at:  # nobody asked while we waited
                    await self._fetch()
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid or "")

    async def _fetch(self) -> None:
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
                url = self.url or str((await _json(client, self._discovery()))["jwks_uri"])
                found = jwt.PyJWKSet.from_dict(await _json(client, url))
        except (httpx.HTTPError, jwt.PyJWTError, KeyError, ValueError, TypeError) as error:
            log.warning("keys_not_fetched", issuer=self.issuer, error=repr(error))
        else:
            self._keys = {key.key_id or "": key for key in found.keys}
        finally:
            self._at = asyncio.get_running_loop().time()

    def _discovery(self) -> str:
        return self.issuer.rstrip("/") + "/.well-known/openid-configuration"


async def _json(client: httpx.AsyncClient, url: str) -> Any:
    answer = await client.get(url, headers={"Accept": "application/json"})
    answer.raise_for_status()
    if len(answer.content) > BYTES_MAX:
        raise ValueError(f"{url} answered {len(answer.content):,} bytes")
    return answer.json()
