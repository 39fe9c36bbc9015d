"""What one tenant's tasks may reach."""

from __future__ import annotations

import msgspec


class TenantPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant's tasks may reach. A tenant nobody has set anything for reaches no host."""

    http_hosts: tuple[str, ...] = ()
    """Hosts its HTTP tasks may call: `api.stripe.com`, `*.example.org`, or `*` for any public host. Empty: none."""
    ai_enabled: bool = True
    """The kill switch: off, no AI task of this tenant calls a model."""
    version: int = 0
    """Counts the changes; 0: nobody has set anything."""
