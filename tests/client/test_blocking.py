"""The same client for callers without a loop, and for those who have one and block it."""

from __future__ import annotations

import asyncio
import threading
from uuid import uuid4

import pytest

from holdfast.client import BlockingClient, InstanceFailed, NotFound, Unreachable
from holdfast.engine.errors import HoldfastError
from tests.api.served import Served
from tests.client.support import ME, answer, drop_after, key_of, stand_in


def walk_through(served: Served, key: str) -> None:
    """A little of everything: a call, pages, a stream, a result, a refusal."""
    with BlockingClient(served.url, key) as client:
        assert client.me().tenant_id == "default" and client.ready()
        business_key = uuid4().hex
        made = client.instances.start("order", {"id": business_key}, business_key=business_key)
        assert [one.id for one in client.instances.list(business_key=business_key, limit=1)] == [made.id]
        assert client.instances.list(business_key=business_key).page().next_cursor is None
        client.instances.signal(made.id, "confirmed", {"by": "ann"})
        assert client.instances.result(made.id, timeout=60)["by"] == "ann"
        told = list(client.instances.stream(made.id))
        assert told == list(client.instances.history(made.id, limit=3)) and len(told) > 3
        for entry in client.instances.stream(made.id):
            assert entry.seq == 1
            break  # whoever has enough leaves no connection behind
        with pytest.raises(NotFound):
            client.instances.read("ins_" + "0" * 32)
        failing = client.instances.start("failing", {"id": "x"})
        with pytest.raises(InstanceFailed):
            client.instances.result(failing.id, timeout=60)


def test_from_a_thread_without_a_loop(served: Served) -> None:
    walk_through(served, key_of(served))


async def test_from_inside_a_running_loop(served: Served) -> None:
    walk_through(served, key_of(served))


def test_from_many_threads_at_once(served: Served) -> None:
    found: list[str] = []
    with BlockingClient(served.url, key_of(served)) as client:

        def start() -> None:
            found.append(client.instances.start("quick", {"n": 1}, wait=30).id)

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(found)) == 8


async def test_it_asks_again_by_the_same_rules() -> None:
    async with stand_in(drop_after, answer(200, ME)) as server:

        def ask() -> str:
            with BlockingClient(server.url, "k") as client:
                return client.me().name

        assert await asyncio.to_thread(ask) == "ann"
    assert server.connections == 2


def test_a_closed_client_says_so_and_leaves_no_thread_behind() -> None:
    client = BlockingClient("http://127.0.0.1:1", "k", retries=0)
    stream = client.stream()
    with pytest.raises(Unreachable):
        next(stream)
    pages = client.instances.list()
    client.close()
    client.close()
    for ask in (client.me, lambda: list(pages), lambda: next(client.stream())):
        with pytest.raises(HoldfastError, match="closed"):
            ask()
    assert not [thread for thread in threading.enumerate() if thread is client._waiting._thread]


def test_from_its_own_loop_it_refuses_instead_of_waiting_for_itself() -> None:
    with BlockingClient("http://127.0.0.1:1", "k") as client:

        async def inside() -> None:
            client.me()

        with pytest.raises(HoldfastError, match="wait for itself"):
            client._waiting.run(inside())
