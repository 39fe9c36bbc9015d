"""Who may use the server: principals and their keys, on the database itself; the first key has to come from here."""

from __future__ import annotations

from datetime import timedelta

import click

from holdfast import Holdfast
from holdfast.app import api_keys, principals
from holdfast.app.audit import By
from holdfast.cli.app import Place, place_options, tenant_option
from holdfast.cli.output import (
    Output,
    actor_option,
    confirm,
    hint,
    notice,
    output_option,
    plain,
    show_one,
    show_rows,
    yes_option,
)
from holdfast.engine.access import CAPABILITIES, KINDS, ROLES

WHO = ("name", "kind", "roles", "groups", "status", "subject", "created_at", "id")
KEYS = ("id", "name", "kind", "shown", "principal_id", "scopes", "expires_at", "revoked_at", "last_used_at")


@click.group("principals")
def principals_group() -> None:
    """People, services and agents that may use the server."""


@principals_group.command("create")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default="human", show_default=True)
@click.option("--role", "roles", multiple=True, type=click.Choice(list(ROLES)), help="May be given again.")
@click.option("--group", "groups", multiple=True, help="Whose tasks it may take; may be given again.")
@click.option("--issuer", help="Who vouches for it, with --subject: for OIDC tokens.")
@click.option("--subject", help="Its name at the issuer.")
@actor_option
@place_options
@tenant_option
@output_option
def create_principal(
    name: str, kind: str, roles: tuple[str, ...], groups: tuple[str, ...], issuer: str | None, subject: str | None,
    actor: str, place: Place, tenant: str, output: Output,
) -> None:  # fmt: skip
    """Make a principal called NAME, which is how histories will name it."""
    view = place.ask(
        lambda hf: principals.create(
            hf.service, tenant, name=name, kind=kind, roles=roles, groups=groups, issuer=issuer, subject=subject,
            by=By(actor),
        )
    )  # fmt: skip
    if output == "table":
        notice(f"{view.kind} {view.name} ({view.id}) with the roles {', '.join(view.roles) or '(none)'}")
        hint(f"holdfast keys create {view.name} makes a key for it")
    else:
        show_one(plain(view), output)


@principals_group.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=200, show_default=True)
@place_options
@tenant_option
@output_option
def list_principals(limit: int, place: Place, tenant: str, output: Output) -> None:
    """Everybody of a tenant, by name."""
    found = place.ask(lambda hf: principals.list_principals(hf.service, tenant, limit=limit))
    show_rows(found, WHO, output, empty=f"nobody may use tenant {tenant!r} yet: holdfast principals create")


@principals_group.command("change")
@click.argument("name")
@click.option("--role", "roles", multiple=True, type=click.Choice(list(ROLES)), help="These, in place of the old.")
@click.option("--group", "groups", multiple=True, help="These, in place of the old.")
@click.option("--disable/--enable", "disabled", default=None, help="Its keys are not taken any more, or again.")
@actor_option
@place_options
@tenant_option
@output_option
def change_principal(
    name: str, roles: tuple[str, ...], groups: tuple[str, ...], disabled: bool | None, actor: str, place: Place,
    tenant: str, output: Output,
) -> None:  # fmt: skip
    """Change the roles, groups or status of NAME (or its id)."""

    async def change(hf: Holdfast) -> principals.PrincipalView:
        there = await principals.find(hf.service, tenant, name)
        return await principals.change(
            hf.service, tenant, there.id, roles=roles or None, groups=groups or None, by=By(actor),
            status=None if disabled is None else "disabled" if disabled else "active",
        )  # fmt: skip

    show_one(plain(place.ask(change)), output)


@click.group()
def keys() -> None:
    """API keys: made once, shown once."""


@keys.command("create")
@click.argument("principal")
@click.option("--name", default="made on the command line", show_default=True, help="To recognise it by.")
@click.option("--kind", type=click.Choice(["live", "test"]), default="live", show_default=True)
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(list(CAPABILITIES)), help="Only this; may be given again."
)
@click.option("--days", type=click.IntRange(1, 3650), help="For how long it is valid; without, until it is revoked.")
@actor_option
@place_options
@tenant_option
@output_option
def create_key(
    principal: str, name: str, kind: str, scopes: tuple[str, ...], days: int | None, actor: str, place: Place,
    tenant: str, output: Output,
) -> None:  # fmt: skip
    """Make a key for PRINCIPAL (its name or id). It is printed, and kept nowhere."""

    async def create(hf: Holdfast) -> api_keys.NewKey:
        ends = (
            None if days is None else hf.service.store.now() + round(timedelta(days=days).total_seconds() * 1_000_000)
        )
        return await api_keys.create(
            hf.service, tenant, principal, name=name, kind=kind, scopes=scopes or None, expires_at=ends, by=By(actor)
        )

    _show(place.ask(create), output)


def _show(made: api_keys.NewKey, output: Output) -> None:
    if output == "table":
        click.echo(made.key)
        hint("this is the only time it is shown: keep it where you keep secrets")
    else:
        show_one({"key": made.key, **plain(made.view)}, output)


@keys.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=200, show_default=True)
@place_options
@tenant_option
@output_option
def list_keys(limit: int, place: Place, tenant: str, output: Output) -> None:
    """All keys of a tenant, without the keys themselves."""
    found = place.ask(lambda hf: api_keys.list_keys(hf.service, tenant, limit=limit))
    show_rows(found, KEYS, output, empty=f"tenant {tenant!r} has no keys: holdfast keys create")


@keys.command("revoke")
@click.argument("key")
@actor_option
@yes_option
@place_options
@tenant_option
@output_option
def revoke_key(key: str, actor: str, yes: bool, place: Place, tenant: str, output: Output) -> None:
    """End KEY (its id) now."""
    confirm(f"end key {key} now?", yes)
    view = place.ask(lambda hf: api_keys.revoke(hf.service, tenant, key, by=By(actor)))
    show_one(plain(view), output)


@keys.command("rotate")
@click.argument("key")
@click.option("--overlap", type=click.IntRange(0, 7_776_000), default=86_400, show_default=True, metavar="SECONDS",
              help="For how long the old one goes on.")  # fmt: skip
@actor_option
@place_options
@tenant_option
@output_option
def rotate_key(key: str, overlap: int, actor: str, place: Place, tenant: str, output: Output) -> None:
    """A new key in place of KEY (its id); the old one goes on for a while."""
    ends = timedelta(seconds=overlap)
    _show(place.ask(lambda hf: api_keys.rotate(hf.service, tenant, key, overlap=ends, by=By(actor))), output)
