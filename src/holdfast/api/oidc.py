"""People who come with a token of somebody we trust: its signature, issuer, audience and time are checked, always."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import jwt
import msgspec
import structlog

from holdfast.app import principals
from holdfast.app.api_keys import caller_of
from holdfast.app.audit import By
from holdfast.engine import ids
from holdfast.engine.access import ROLES, Caller
from holdfast.engine.errors import BadInput, HoldfastError, NameTaken
from holdfast.engine.retry import storable
from holdfast.handlers.oidc import Jwks

if TYPE_CHECKING:
    from holdfast.api.server import Doors
    from holdfast.api.settings import ServerSettings

log = structlog.get_logger("holdfast.oidc")
# Asymmetric ones only: with a shared secret, whoever can check a token can make one.
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)  # fmt: skip
LEEWAY_SECONDS = 30
SUBJECT_MAX = 255


class Oidc:
    def __init__(self, settings: ServerSettings) -> None:
        assert settings.oidc_issuer is not None
        if not settings.oidc_audience:
            raise BadInput("oidc_audience is not set: without it any token of the issuer, meant for anybody, would do")
        strange = [name for name in settings.oidc_algorithms if name not in ALGORITHMS]
        if strange or not settings.oidc_algorithms:
            raise BadInput(f"oidc_algorithms is {strange}: expected some of {', '.join(sorted(ALGORITHMS))}")
        self.settings = settings
        self.keys = Jwks(settings.oidc_issuer, settings.oidc_jwks_url)

    async def caller(self, doors: Doors, token: str) -> Caller | None:
        claims = await self._claims(token)
        if claims is None:
            return None
        try:
            return await self._known(doors, claims)
        except HoldfastError as error:
            log.warning("token_refused", error=str(error))
            return None

    async def _claims(self, token: str) -> dict[str, Any] | None:
        settings = self.settings
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in settings.oidc_algorithms:
                return None
            key = await self.keys.key(header.get("kid"))
            if key is None:
                return None
            found: dict[str, Any] = jwt.decode(
                token, key, algorithms=list(settings.oidc_algorithms), audience=settings.oidc_audience,
                issuer=settings.oidc_issuer, leeway=LEEWAY_SECONDS, options={"require": ["exp", "iss", "sub", "aud"]},
            )  # fmt: skip
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            log.info("token_refused", error=type(error).__name__)
            return None
        return found

    async def _known(self, doors: Doors, claims: dict[str, Any]) -> Caller | None:
        settings = self.settings
        assert settings.oidc_issuer is not None
        tenant = claims.get(settings.oidc_tenant_claim) if settings.oidc_tenant_claim else settings.default_tenant
        if not isinstance(tenant, str):
            return None
        tenant_id, subject = ids.check_tenant(tenant), str(claims["sub"])
        if not 1 <= len(subject) <= SUBJECT_MAX or storable(subject) != subject:
            return None
        service = doors.service_for(tenant_id)
        found = await principals.of_subject(service, tenant_id, settings.oidc_issuer, subject)
        if found is None:
            found = await self._welcome(doors, tenant_id, subject, claims)
        if found.status != "active":
            return None
        roles = _words(claims, settings.oidc_roles_claim)
        if roles is not None:  # the issuer's word of today counts, not the one of the first visit
            found = msgspec.structs.replace(found, roles=[role for role in roles if role in ROLES])
        groups = _words(claims, settings.oidc_groups_claim)
        if groups is not None:
            found = msgspec.structs.replace(found, groups=groups)
        return caller_of(tenant_id, found)

    async def _welcome(
        self, doors: Doors, tenant_id: str, subject: str, claims: dict[str, Any]
    ) -> principals.PrincipalView:
        """A first visit: somebody without roles of their own, named as the issuer names them."""
        service, issuer = doors.service_for(tenant_id), self.settings.oidc_issuer
        assert issuer is not None
        # Names that people choose for themselves are nobody's: tasks are given by name, and histories name who decided.
        names = [f"{subject[:150]} at {urlsplit(issuer).netloc}"]
        if claims.get("email_verified") is True and isinstance(claims.get("email"), str):
            names.insert(0, str(claims["email"])[:190])
        for name in names:
            try:
                return await principals.create(
                    service, tenant_id, name=name, kind="human", roles=[], issuer=issuer, subject=subject,
                    by=By(name),
                )  # fmt: skip
            except (NameTaken, BadInput):
                # The same person in another request, or another person of that name.
                there = await principals.of_subject(service, tenant_id, issuer, subject)
                if there is not None:
                    return there
        raise BadInput(f"no name is left for subject {subject!r}")


def _words(claims: dict[str, Any], path: str | None) -> list[str] | None:
    """A list of texts in the token, found by a name or by names with dots between them; None if it is not there."""
    if not path:
        return None
    found: Any = claims
    for part in [path] if path in claims else path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        found = found.split()
    if not isinstance(found, list):
        return None
    return [word for word in found if isinstance(word, str)]
