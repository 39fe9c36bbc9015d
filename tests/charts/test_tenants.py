"""What a tenant's tasks may reach: changed by people, also by two at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import BadInput, Holdfast


async def test_what_is_not_given_stays_as_it_is_also_when_two_change_at_once(url: str) -> None:
    one, two = Holdfast(url), Holdfast(url)
    async with one, two:
        acme, same = one.tenant("acme"), two.tenant("acme")
        assert (await acme.policy()).ai_enabled
        for n in range(10):
            hosts = [f"h{n}.example.org"]
            await asyncio.gather(
                acme.set_policy(http_hosts=hosts, actor="ann"), same.set_policy(ai_enabled=bool(n % 2), actor="bob")
            )
            found = await acme.policy()
            assert (list(found.http_hosts), found.ai_enabled) == (hosts, bool(n % 2))
        await same.set_policy(ai_enabled=False, actor="bob")
        assert not (await acme.set_policy(http_hosts=["other.example.org"], actor="ann")).ai_enabled
        with pytest.raises(BadInput, match="http_hosts"):
            await acme.set_policy(http_hosts=["x" * 300])
        assert (await one.tenant("other").policy()).http_hosts == ()


async def test_of_charts_published_at_once_each_content_gets_one_version(url: str) -> None:
    def chart(n: int) -> dict[str, object]:
        return {"id": "many", "description": str(n), "initial": "a", "states": {"a": {}}}

    one, two = Holdfast(url), Holdfast(url)
    async with one, two:
        views = await asyncio.gather(*(hf.publish(chart(n % 3)) for n in range(9) for hf in (one, two)))
        assert sorted({(view.version, view.hash) for view in views}) == sorted(
            {(view.version, view.hash) for view in await one.definitions.list(key="many")}
        )
        assert sorted({view.version for view in views}) == [1, 2, 3]


@pytest.mark.parametrize("hosts", ["api.example.org", ["http://x/y"], ["a b"], [""], [5]])
async def test_hosts_that_cannot_be_meant_are_refused(url: str, hosts: Any) -> None:
    async with Holdfast(url) as hf:
        with pytest.raises(BadInput, match="http_hosts"):
            await hf.tenant("acme").set_policy(http_hosts=hosts)
        with pytest.raises(BadInput, match="ai_enabled"):
            await hf.tenant("acme").set_policy(ai_enabled="no")  # type: ignore[arg-type]
        await hf.tenant("acme").set_policy(http_hosts=["*.example.org", "http://127.0.0.1:8080", "[::1]:9"])
