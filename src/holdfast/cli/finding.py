"""Which instances a command means: by workflow, business key, status and age; and a page of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

import click
import msgspec

from holdfast import Holdfast, InstanceView
from holdfast.app import instances
from holdfast.engine import history as h
from holdfast.engine import ids
from holdfast.engine.journal import HOLE
from holdfast.engine.moments import micros
from holdfast.engine.spans import span

F = TypeVar("F", bound=Callable[..., Any])
STATUSES = ("pending", "running", "waiting", "compensating", "completed", "failed", "cancelled")
STOPPED = (h.INSTANCE_PARKED, h.ERROR, h.INCIDENT_RAISED)
SHORT = re.compile(r"(\d{1,9})(s|m|h|d|w)\Z")
SHORT_ISO = {"s": "PT{}S", "m": "PT{}M", "h": "PT{}H", "d": "P{}D", "w": "P{}W"}
PAGE = 1000
LOOKED_AT = 20 * PAGE  # instances that one command looks at for those it wants


class Moment(click.ParamType[int]):
    """A moment in microseconds: an RFC 3339 time, or a span before now (90s, 15m, 2h, 3d, 1w, P3D)."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if (short := SHORT.match(text)) is not None:
            text = SHORT_ISO[short[2]].format(short[1])
        ago = span(text) if text.startswith("P") else ""
        if isinstance(ago, int):
            return micros(datetime.now(UTC)) - ago
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            self.fail(
                f"{value!r}: expected a span such as 90s, 15m, 2h, 3d, 1w or P3D, or a time with its zone such as "
                "2026-11-17T08:00:00Z", param, ctx,
            )  # fmt: skip
        return micros(found)


MOMENT = Moment()


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance must be to be meant."""

    statuses: list[str] | None
    key: str | None
    business_key: str | None
    until: int | None
    since: int

    @property
    def is_everything(self) -> bool:
        return not (self.statuses or self.key or self.business_key or self.until or self.since)


def matching_options(function: F) -> F:
    """Adds --workflow, --business-key, --status, --older-than and --newer-than; the command receives a `wanted`."""

    @click.option("--workflow", metavar="NAME", help="Only those of one workflow or chart.")
    @click.option("--business-key", help="Only those with this business key.")
    @click.option("--status", type=click.Choice(STATUSES), multiple=True, help="Only those; may be given again.")
    @click.option(
        "--older-than", type=MOMENT, metavar="SPAN|MOMENT", help="Started before: 2h, 3d, 2026-11-17T08:00:00Z"
    )
    @click.option("--newer-than", type=MOMENT, metavar="SPAN|MOMENT", help="Started since.")
    @wraps(function)
    def with_matching(
        *args: Any, workflow: str | None, business_key: str | None, status: tuple[str, ...], older_than: int | None,
        newer_than: int | None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        wanted = Matching(
            statuses=list(status) or None, key=workflow, business_key=business_key, until=older_than,
            since=newer_than or 0,
        )  # fmt: skip
        return function(*args, wanted=wanted, **kwargs)

    return with_matching  # type: ignore[return-value]


class Page(msgspec.Struct, frozen=True):
    found: list[InstanceView]
    more: str | None  # the id that the next page begins before; None: this was the last


async def page(
    hf: Holdfast, tenant: str, wanted: Matching, *, parked: bool, ended: int | None, limit: int, before: str | None
) -> Page:
    """Newest first. Whether one is parked, or ended since, is looked up one page after the other, up to a limit."""
    if parked and wanted.statuses not in (None, ["waiting"]):
        raise click.UsageError("--parked goes with --status waiting only: whatever is parked waits")
    service = hf.service
    edge = instances.FAR_AHEAD if wanted.until is None else (wanted.until, b"")
    if before is not None:
        edge = min(edge, await instances.edge_of(service, tenant, before))
    found: list[InstanceView] = []
    narrowed = parked or ended is not None
    size = PAGE if narrowed else limit
    for _ in range(LOOKED_AT // PAGE):
        looked = await instances.list_instances(
            service, tenant, status=["waiting"] if parked else wanted.statuses, key=wanted.key,
            business_key=wanted.business_key, since=wanted.since, limit=size, before=edge,
        )  # fmt: skip
        for view in looked:
            if ended is not None and (view.completed_at is None or micros(view.completed_at) < ended):
                continue
            if parked and not await is_parked(hf, tenant, view):
                continue
            found.append(view)
            if len(found) == limit:
                return Page(found, view.id)
        if len(looked) < size:
            return Page(found, None)
        edge = (micros(looked[-1].created_at), ids.parse("ins", looked[-1].id))
    return Page(found, looked[-1].id)


async def is_parked(hf: Holdfast, tenant: str, view: InstanceView) -> bool:
    """Whether the last thing on record is that it was stopped; one that wakes by itself is not."""
    if view.run_at is not None:
        return False
    if (view.waiting_on or "").startswith(HOLE):
        return True
    raw = ids.parse("ins", view.id)
    last = await instances.history_page(hf.service, tenant, raw, limit=1, most=1)
    return bool(last.entries) and last.entries[-1].type in STOPPED
