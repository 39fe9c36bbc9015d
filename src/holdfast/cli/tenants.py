"""Tenants: which hosts the HTTP tasks of one may call, and whether its AI tasks may call a model."""

from __future__ import annotations

import click

from holdfast import Holdfast, TenantPolicy
from holdfast.app import tenants as policies
from holdfast.cli.app import Place, place_options
from holdfast.cli.output import Output, actor_option, confirm, notice, output_option, show_one, yes_option


@click.group()
def tenants() -> None:
    """What the tasks of a tenant may reach."""


@tenants.command()
@click.argument("tenant")
@place_options
@output_option
def show(tenant: str, place: Place, output: Output) -> None:
    """What the tasks of TENANT may reach."""
    _show(tenant, place.ask(lambda hf: hf.tenant(tenant).policy()), output)


@tenants.command("set-hosts")
@click.argument("tenant")
@click.argument("hosts", nargs=-1, metavar="HOST...")
@click.option("--add", is_flag=True, help="Beside those that are there, instead of in their place.")
@click.option("--none", "nothing", is_flag=True, help="None at all.")
@click.option("--dry-run", is_flag=True, help="Only say what would be set.")
@actor_option
@yes_option
@place_options
@output_option
def set_hosts(
    tenant: str, hosts: tuple[str, ...], add: bool, nothing: bool, dry_run: bool, actor: str, yes: bool, place: Place,
    output: Output,
) -> None:  # fmt: skip
    """Let the HTTP tasks of TENANT call each HOST, and no other.

    A HOST is api.example.org, *.example.org, api.example.org:8443, or http://api.example.org for plain HTTP too."""
    if bool(hosts) == nothing or (add and nothing):
        raise click.UsageError("name the hosts, or --none")

    async def change(hf: Holdfast) -> TenantPolicy:
        now = await hf.tenant(tenant).policy()
        wanted = list(dict.fromkeys([*(now.http_hosts if add else ()), *hosts]))
        lost = [one for one in now.http_hosts if one not in wanted]
        if dry_run:
            policies.check_hosts(wanted)
            notice(f"{', '.join(wanted) or 'no host'} would be set; nothing was changed")
            return now
        if lost:
            confirm(f"Tenant {tenant!r} may not call {', '.join(lost)} any more?", yes)
        # Only if nobody has changed it since it was read.
        return await policies.change(
            hf.service, tenant, http_hosts=wanted, ai_enabled=None, actor=actor, version=now.version
        )

    _show(tenant, place.ask(change), output)


def _show(tenant: str, policy: TenantPolicy, output: Output) -> None:
    hosts = list(policy.http_hosts)
    show_one({"tenant_id": tenant, "http_hosts": hosts, "ai_enabled": policy.ai_enabled}, output)
    if output == "table" and not hosts:
        notice("HTTP tasks of this tenant may call nobody: holdfast tenants set-hosts TENANT HOST …")
