"""What an operator sets about the server."""

from __future__ import annotations

import ipaddress

import msgspec


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8700
    public_url: str | None = None
    default_tenant: str = "default"
    require_idempotency_keys: bool = False
    idempotency_days: int = 7
    idempotency_tombstone_days: int = 90
    max_body_bytes: int = 1 << 20
    max_in_flight: int = 256
    max_streams: int = 200
    max_connections: int = 2000
    oidc_issuer: str | None = None
    oidc_audience: str | None = None
    oidc_jwks_url: str | None = None
    oidc_algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    oidc_tenant_claim: str | None = None
    oidc_roles_claim: str | None = "roles"
    oidc_groups_claim: str | None = "groups"
    metrics_key: str | None = None
    routes: dict[str, str] = {}


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
