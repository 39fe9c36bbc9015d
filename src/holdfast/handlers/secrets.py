"""Secrets by name: workflows and charts hold only the name, the value comes from the process's surroundings.

`HOLDFAST_SECRET_STRIPE_KEY` serves every tenant, `HOLDFAST_SECRET_ACME__STRIPE_KEY` only the tenant `acme`, and wins
there. With `_FILE` appended the variable holds the path of a file with the value. They are read at each use, so a
rotated file needs no restart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.engine.errors import HoldfastError, Rejected

PREFIX = "HOLDFAST_SECRET_"
# Two underscores part tenant and name, and _FILE marks a path. A name that contained either could be spelled so
# that one tenant reads another's variable: `acme__stripe_key`, asked for by anybody.
_NAME = re.compile(r"[A-Z0-9]+(?:_[A-Z0-9]+)*\Z")


class SecretMissing(HoldfastError, Rejected):
    """No secret of that name is set for this tenant. Nothing was sent."""

    code = "secret_missing"

    def __init__(self, tenant_id: str, name: str, what_to_do: str) -> None:
        super().__init__(f"secret {name!r} of tenant {tenant_id!r} is missing: {what_to_do}")


class EnvSecrets:
    """Reads `HOLDFAST_SECRET_*`. Tenants whose ids differ only in case or punctuation share their variables."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ: Mapping[str, str] = os.environ if environ is None else environ

    def get(self, tenant_id: str, name: str) -> str:
        spelled = _upper(name)
        if not name.isascii() or not _NAME.match(spelled) or spelled.endswith("_FILE"):
            raise SecretMissing(
                tenant_id, name, "no variable can hold that name; use letters, digits and single _ or - between them, "
                "not ending in _file",
            )  # fmt: skip
        own, shared = f"{PREFIX}{_upper(tenant_id)}__{spelled}", f"{PREFIX}{spelled}"
        for variable in (own, shared):
            value = self._read(tenant_id, name, variable)
            if value is not None:
                return value
        raise SecretMissing(tenant_id, name, f"set {shared} or {own}, or either with _FILE and the path of a file")

    def _read(self, tenant_id: str, name: str, variable: str) -> str | None:
        path = self._environ.get(f"{variable}_FILE")
        value = self._environ.get(variable)
        if value is None and path is not None:
            try:
                # An editor ends a file with a newline, which no header could carry and nobody means.
                value = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, ValueError) as error:
                problem = type(error).__name__
                raise SecretMissing(
                    tenant_id, name, f"{variable}_FILE names {path!r}, which cannot be read ({problem})"
                ) from None
        if value == "":  # set to nothing is a mistake or a ban; either way not a reason to use another one
            raise SecretMissing(tenant_id, name, f"{variable} is set, but empty; give it a value or remove it")
        return value


class DictSecrets:
    """For tests: values by name, and by tenant and name, which win."""

    def __init__(self, values: Mapping[str, str], by_tenant: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._values = dict(values)
        self._by_tenant = {tenant: dict(own) for tenant, own in (by_tenant or {}).items()}

    def get(self, tenant_id: str, name: str) -> str:
        value = self._by_tenant.get(tenant_id, {}).get(name) or self._values.get(name)
        if not value:
            raise SecretMissing(tenant_id, name, "add it to DictSecrets(…)")
        return value

    def __repr__(self) -> str:
        return f"<DictSecrets {sorted(self._values)}>"


def _upper(word: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", word.upper())
