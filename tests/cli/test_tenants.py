"""`holdfast tenants`: which hosts the tasks of a tenant may call."""

from __future__ import annotations

from tests.cli.support import Desk


def test_the_hosts_of_a_tenant_are_set_added_to_and_shown(desk: Desk) -> None:
    desk.publish({"id": "any", "initial": "a", "states": {"a": {}}})
    assert desk.json("tenants", "show", "acme") == {"tenant_id": "acme", "http_hosts": [], "ai_enabled": True}
    assert "may call nobody" in desk.ok("tenants", "show", "acme").stderr
    desk.ok("tenants", "set-hosts", "acme", "api.example.org", "*.example.com", "--actor", "ann")
    desk.ok("tenants", "set-hosts", "acme", "http://localhost:8080", "--add")
    hosts = ["api.example.org", "*.example.com", "http://localhost:8080"]
    assert desk.json("tenants", "show", "acme")["http_hosts"] == hosts
    said = desk.ok("tenants", "set-hosts", "acme", "one.example.org", "--dry-run")
    assert "one.example.org would be set; nothing was changed" in said.stderr
    assert desk.json("tenants", "show", "acme")["http_hosts"] == hosts
    assert desk.json("tenants", "set-hosts", "acme", "--none", "--yes")["http_hosts"] == []
    assert desk.json("tenants", "show", "default")["http_hosts"] == []


def test_what_is_no_host_is_refused(desk: Desk) -> None:
    desk.publish({"id": "any", "initial": "a", "states": {"a": {}}})
    for host in ("ftp://example.org", "a b"):
        desk.refused(2, "expected a list of at most 200 hosts", "tenants", "set-hosts", "acme", host)
    desk.refused(2, "name the hosts, or --none", "tenants", "set-hosts", "acme")
    desk.refused(2, "name the hosts, or --none", "tenants", "set-hosts", "acme", "a.example.org", "--none")
    assert desk.json("tenants", "show", "acme")["http_hosts"] == []
