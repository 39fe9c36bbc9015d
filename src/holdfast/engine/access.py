"""Who may do what: roles are sets of capabilities, and every route names the one it asks for.

A principal has the capabilities of its roles. An API key may have fewer (its scopes), never more. Agents are programs
that decide by a model: whatever their roles, they settle no effects, do no person's task and manage no access.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

PrincipalKind = Literal["human", "service", "agent"]
KINDS = ("human", "service", "agent")

CAPABILITIES = {
    "definitions:read": "read definitions, draw, lint, compare and simulate them",
    "definitions:write": "publish definitions, activate and deactivate them",
    "instances:read": "read instances, their history, children and streams",
    "instances:start": "start instances",
    "instances:send": "send events and signals to instances",
    "instances:control": "cancel, pause, resume, retry, fork and migrate instances",
    "instances:bulk": "act on everything that matches a filter",
    "tasks:read": "read tasks and their comments",
    "tasks:work": "claim, unclaim, complete, fail and comment on tasks",
    "tasks:assign": "give tasks to others, and take them away",
    "effects:read": "read effects and the evidence about them",
    "effects:resolve": "say what became of an effect whose outcome is unknown",
    "workers:read": "read workers, queues and dead letters",
    "tenant:read": "read what the tenant's tasks may reach",
    "tenant:write": "change what the tenant's tasks may reach",
    "access:read": "read principals and keys",
    "access:manage": "create and change principals and keys",
    "audit:read": "read who changed what",
}

_READ = frozenset({"definitions:read", "instances:read", "tasks:read", "workers:read"})
ROLES: dict[str, frozenset[str]] = {
    "viewer": _READ,
    "operator": _READ
    | {"instances:start", "instances:send", "instances:control", "instances:bulk", "tasks:assign"}
    | {"effects:read", "effects:resolve", "tenant:read"},
    "approver": _READ | {"tasks:work"},
    "builder": _READ | {"definitions:write", "instances:start", "instances:send", "tenant:read"},
    "admin": frozenset(CAPABILITIES),
    "auditor": _READ | {"effects:read", "tenant:read", "access:read", "audit:read"},
}
NOT_FOR_AGENTS = frozenset({"effects:resolve", "tasks:work", "tasks:assign", "access:manage", "tenant:write"})


class Caller(msgspec.Struct, frozen=True):
    """Whoever asks: a principal of one tenant, with what it may do."""

    tenant_id: str
    principal_id: str
    name: str
    kind: str
    roles: tuple[str, ...]
    groups: frozenset[str]
    capabilities: frozenset[str]
    key_id: str | None = None

    def may(self, capability: str) -> bool:
        return capability in self.capabilities


def capabilities_of(kind: str, roles: Iterable[str], scopes: Iterable[str] | None = None) -> frozenset[str]:
    """What a principal of this kind with these roles may do, through a key with these scopes."""
    found: frozenset[str] = frozenset()
    for role in roles:
        found |= ROLES.get(role, frozenset())
    if kind == "agent":
        found -= NOT_FOR_AGENTS
    return found if scopes is None else found & frozenset(scopes)


def may_see(caller: Caller, candidates: Iterable[str], *people: str | None) -> bool:
    """Whether a caller may read a task: one that it may take, one that is or was its own (`people`), and any where it
    gives tasks to others or audits what was done."""
    return sees_all_tasks(caller) or may_take(caller.groups, candidates) or caller.name in people


def sees_all_tasks(caller: Caller) -> bool:
    return caller.may("tasks:assign") or caller.may("audit:read")


def may_take(groups: frozenset[str], candidates: Iterable[str]) -> bool:
    """Whether somebody of these groups may take a task that is open to those candidates; none named: anybody."""
    wanted = set(candidates)
    return not wanted or not wanted.isdisjoint(groups)
