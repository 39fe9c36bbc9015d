"""Answers that have a version: the wire's own models, with the ETag that came beside them as one more attribute.

An attribute, and no wrapper around the value: most callers never look at it, and those who do write
`if_match=task.etag`. Items of a list came without one; their `version`, where they have it, serves as well.
"""

from __future__ import annotations

from holdfast.api.models import (
    BulkOut,
    DefinitionOut,
    EffectOut,
    InstanceDetail,
    InstanceOut,
    KeyOut,
    NewKeyOut,
    PrincipalOut,
    Said,
    TaskOut,
    TenantOut,
    WhyOut,
)
from holdfast.engine.moments import Moment


class Definition(DefinitionOut, frozen=True, kw_only=True):
    etag: str | None = None


class Instance(InstanceOut, frozen=True, kw_only=True):
    etag: str | None = None


class FullInstance(InstanceDetail, frozen=True, kw_only=True):
    """An instance with its tasks, its context and the newest part of its history."""

    etag: str | None = None


class Why(WhyOut, frozen=True, kw_only=True):
    etag: str | None = None


class Task(TaskOut, frozen=True, kw_only=True):
    etag: str | None = None


class Effect(EffectOut, frozen=True, kw_only=True):
    etag: str | None = None


class BulkAction(BulkOut, frozen=True, kw_only=True):
    etag: str | None = None


class Principal(PrincipalOut, frozen=True, kw_only=True):
    etag: str | None = None


class Key(KeyOut, frozen=True, kw_only=True):
    etag: str | None = None


class NewKey(NewKeyOut, frozen=True, kw_only=True):
    """`key` is there once. It is None if the first answer was lost on its way and this is a second one: then rotate or
    revoke what was made."""

    etag: str | None = None


class TenantSettings(TenantOut, frozen=True, kw_only=True):
    etag: str | None = None


class TenantEvent(Said, frozen=True, kw_only=True):
    """One entry of some instance's history, as the tenant's stream tells it. `id` is where to go on from."""

    id: str = ""
    instance_id: str
    definition_key: str
    seq: int
    type: str
    name: str
    at: Moment
