"""The client against a real server and a real worker, also over a wire that is cut."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from holdfast.client import (
    Accepted,
    BatchItem,
    BusinessKeyTaken,
    Client,
    Filter,
    Forbidden,
    IdempotencyKeyReused,
    Instance,
    InstanceFailed,
    InvalidTransition,
    NameTaken,
    NotFound,
    PreconditionFailed,
    ResultNotReady,
    TaskAlreadyClaimed,
    Unauthenticated,
    Unreachable,
    ValidationFailed,
)
from tests.api.served import Served
from tests.api.support import CHART, House
from tests.client.support import key_of, patient, wire

Cut = Callable[[int], int | bytes | None]
FIRST_REPLY_LOST: Cut = lambda number: 0 if number == 1 else None  # noqa: E731
FIRST_REPLY_TORN: Cut = lambda number: 150 if number == 1 else None  # noqa: E731


def client_of(served: Served, role: str = "admin", tenant: str = "default", **more: str) -> Client:
    return Client(served.url, key_of(served, role, tenant, **more))


def new_tenant() -> str:
    return f"t-{uuid4().hex[:8]}"


# -- the whole of it


async def test_an_instance_from_its_start_to_its_result(served: Served) -> None:
    async with client_of(served) as client:
        key = uuid4().hex
        made = await client.instances.start("order", {"id": key}, business_key=key)
        assert (made.status, made.etag) == ("pending", '"0"')
        assert (await client.instances.start("order", {"id": key}, business_key=key)).id == made.id
        with pytest.raises(BusinessKeyTaken) as taken:
            await client.instances.start("order", {"id": "another"}, business_key=key)
        assert [fault.pointer for fault in taken.value.errors] == ["/input/id"]
        with pytest.raises(ResultNotReady):
            await client.instances.result(made.id, timeout=0)
        assert (await client.instances.pause(made.id, "so that nothing moves")).accepted == "pause"
        sent = await client.instances.signal(made.id, "confirmed", {"by": "ann"}, event_id="e1")
        assert (sent.id, sent.new) == ("e1", True)
        assert not (await client.instances.send(made.id, "confirmed", {"by": "ann"}, event_id="e1")).new
        await client.instances.resume(made.id)
        assert (await client.instances.result(made.id, timeout=60))["by"] == "ann"

        seen = await client.instances.read(made.id)
        assert (seen.status, seen.etag, seen.steps["reserve"]) == (
            "completed", f'"{seen.version}"', {"hold": f"hold-{key}"},
        )  # fmt: skip
        whole = [entry async for entry in client.instances.history(made.id)]
        assert [entry.seq for entry in whole] == list(range(1, len(whole) + 1))
        assert [entry async for entry in client.instances.history(made.id, limit=2)] == whole
        back = [entry async for entry in client.instances.history(made.id, before=len(whole), limit=2)]
        assert back == whole[-2::-1]
        assert [entry async for entry in client.instances.stream(made.id)] == whole
        assert [entry async for entry in client.instances.stream(made.id, after=2)] == whole[2:]
        assert [effect.step async for effect in client.instances.effects(made.id)] == ["pay"]
        assert "completed" in (await client.instances.why(made.id)).why
        with pytest.raises(InvalidTransition):
            await client.instances.cancel(made.id)


async def test_a_start_that_waits_brings_the_result_at_once(served: Served) -> None:
    async with client_of(served) as client:
        done = await client.instances.start("quick", {"n": 1}, wait=30)
        assert (done.status, done.result) == ("completed", {"n": 1})


async def test_a_failed_instance_raises_and_is_tried_again_as_a_new_one(served: Served) -> None:
    async with client_of(served) as client:
        made = await client.instances.start("failing", {"id": "x"})
        with pytest.raises(InstanceFailed, match="no such account"):
            await client.instances.result(made.id, timeout=60)
        again = await client.instances.retry(made.id, "they have one now")
        assert isinstance(again, Instance) and again.id != made.id
        forked = await client.instances.fork(made.id, "reserve")
        assert forked.id not in (made.id, again.id)
        slow = await client.instances.start("backing-off", {})
        assert isinstance(await client.instances.retry(slow.id), Accepted)
        await client.instances.cancel(slow.id, "enough")
        with pytest.raises(InstanceFailed, match="cancelled"):
            await client.instances.result(slow.id, timeout=60)


async def test_lists_are_walked_through_page_by_page(served: Served) -> None:
    async with client_of(served, tenant=new_tenant()) as client:
        batch = await client.instances.start_many("quick", [{"n": n} for n in range(5)])
        assert (batch.started, [item.status for item in batch.items]) == (5, [201] * 5)
        more = await client.instances.start_many("quick", items=[BatchItem(input=1, business_key="b")])
        words = [item.id for item in batch.items] + [item.id for item in more.items]
        found = [one.id async for one in client.instances.list(limit=2)]
        assert sorted(found) == sorted(str(word) for word in words) and len(found) == 6
        first = await client.instances.list(limit=4).page()
        assert first.next_cursor is not None and [one.id for one in first.items] == found[:4]
        assert [one.id for one in (await client.instances.list(limit=4).page(first.next_cursor)).items] == found[4:]
        assert [one.id async for one in client.instances.list(business_key="b", status="failed")] == []
        assert {role.role async for role in client.roles()} >= {"viewer", "admin"}
        assert "live" in {worker.state async for worker in client.workers.list()}


async def test_a_task_is_worked_on_and_versions_are_watched(served: Served) -> None:
    async with (
        client_of(served) as client, client_of(served, "approver", kind="human") as ann,
        client_of(served, "approver", kind="human", group="b") as bob,
    ):  # fmt: skip
        made = await client.instances.start("request", {"amount_minor": 900})
        async for entry in client.instances.stream(made.id):
            if entry.type == "TASK_CREATED" or [task async for task in client.instances.tasks(made.id)]:
                break
        [listed] = [task async for task in client.tasks.list(instance_id=made.id)]
        task = await ann.tasks.read(listed.id)
        assert task.etag == f'"{listed.version}"'
        claimed = await ann.tasks.claim(task.id, if_match=task.etag)
        with pytest.raises(TaskAlreadyClaimed):
            await bob.tasks.claim(task.id)
        with pytest.raises(PreconditionFailed):
            await ann.tasks.unclaim(task.id, if_match=listed.version)
        with pytest.raises(ValidationFailed) as refused:
            await ann.tasks.complete(task.id, {"approve": "yes"})
        assert [fault.pointer for fault in refused.value.errors] == ["/output/approve"]
        await ann.tasks.comment(task.id, "looks fine")
        assert [said.body async for said in ann.tasks.comments(task.id)] == ["looks fine"]
        done = await ann.tasks.complete(task.id, {"approve": True}, if_match=claimed.version)
        assert done.status == "succeeded"
        await client.instances.result(made.id, timeout=60)


async def test_definitions_people_keys_and_the_tenant(served: Served) -> None:
    async with client_of(served, tenant=new_tenant()) as client:
        made = await client.definitions.publish({**CHART, "id": "mine"})
        assert [one.key async for one in client.definitions.list(key="mine")] == ["mine"]
        assert (await client.definitions.read("mine@1")).spec == {**CHART, "id": "mine"}
        off = await client.definitions.deactivate(made.id, if_match=made.etag)
        with pytest.raises(PreconditionFailed):
            await client.definitions.activate(made.id, if_match=made.etag)
        await client.definitions.activate(made.id, if_match=off.etag)
        assert (await client.definitions.lint({"id": "x"})).sound is False
        assert len((await client.definitions.simulate(CHART, events=[{"type": "withdrawn"}])).turns) >= 1
        assert (await client.definitions.graph("mine")).startswith("<svg")
        assert "stateDiagram" in await client.definitions.graph("mine", format="mermaid")
        assert (await client.definitions.diff("mine", "mine@1")).same

        ann = await client.principals.create("ann", kind="human", roles=["viewer"])
        with pytest.raises(NameTaken):
            await client.principals.create("ann", kind="human", roles=["viewer"])
        changed = await client.principals.change(ann.id, if_match=ann.version, groups=["finance"])
        assert changed.groups == ["finance"] and changed.etag != ann.etag
        key = await client.keys.create("ann", "laptop")
        assert key.key is not None
        async with Client(served.url, key.key) as hers:
            assert (await hers.me()).name == "ann"
            with pytest.raises(Forbidden):
                await hers.instances.start("quick")
        rotated = await client.keys.rotate(key.id, overlap=timedelta())
        assert rotated.key not in (None, key.key)
        assert (await client.keys.revoke(rotated.id)).revoked_at is not None
        there = await client.tenant.read()
        mine = await client.tenant.change(if_match=there.version, http_hosts=["api.example.org"])
        assert (mine.http_hosts, (await client.tenant.read()).etag) == (["api.example.org"], mine.etag)
        assert "key.created" in {entry.action async for entry in client.audit.list()}


async def test_bulk_actions_and_the_desk(served: Served) -> None:
    async with client_of(served, tenant=new_tenant()) as client:
        await client.instances.start_many("order", [{"id": str(n)} for n in range(3)])
        everything = Filter(definition_key="order")
        counted = await client.bulk.begin("cancel", everything, reason="wrong", dry_run=True)
        assert (counted.matched, counted.id, counted.status) == (3, None, "dry_run")
        begun = await client.bulk.begin("cancel", everything, reason="wrong", expected=3)
        assert begun.id is not None
        for one in [one async for one in client.instances.list(definition_key="order")]:
            with pytest.raises(InstanceFailed):
                await client.instances.result(one.id, timeout=60)
        assert (await client.bulk.read(begun.id)).matched == 3
        assert [failure async for failure in client.bulk.failures(begun.id)] == []
        assert [effect async for effect in client.effects.list(state="outcome_unknown")] == []
        with pytest.raises(NotFound):
            await client.effects.read("eff_" + "0" * 32)


async def test_what_the_server_says_of_itself(served: Served) -> None:
    async with Client(served.url) as nobody:
        assert await nobody.ready()
        assert await nobody.server.live() == {"status": "alive"}
        assert (await nobody.server.openapi())["openapi"] == "3.1.0"
        assert "<html" in await nobody.server.docs()
        assert "holdfast_" in await nobody.server.metrics()
        with pytest.raises(Unauthenticated):
            await nobody.me()
        with pytest.raises(Unauthenticated):
            await nobody.server.log_in("no such link")
        with pytest.raises(NotFound):
            await (client_of(served)).instances.read("ins_" + "0" * 32)


# -- over a wire that is cut


@pytest.mark.parametrize("cut", [FIRST_REPLY_LOST, FIRST_REPLY_TORN])
async def test_a_start_whose_answer_was_lost_makes_one_instance(served: Served, cut: Cut) -> None:
    key = key_of(served, tenant=new_tenant())
    async with wire(served.url) as between, patient(between.url, key) as client:
        between.cut = cut
        made = await client.instances.start("quick", {"n": 1})
        assert between.connections == 2
        assert [one.id async for one in client.instances.list()] == [made.id]


async def test_a_start_whose_answer_was_lost_is_given_up_without_retries_and_found_again_by_its_key(
    served: Served,
) -> None:
    key = key_of(served, tenant=new_tenant())
    async with wire(served.url) as between, patient(between.url, key, retries=0) as client:
        between.cut = FIRST_REPLY_LOST
        with pytest.raises(Unreachable) as lost:
            await client.instances.start("quick", {"n": 1}, idempotency_key="mine")
        assert lost.value.sent
        made = await patient(served.url, key).instances.start("quick", {"n": 1}, idempotency_key="mine")
        assert [one.id async for one in client.instances.list()] == [made.id]
        with pytest.raises(IdempotencyKeyReused):
            await client.instances.start("quick", {"n": 2}, idempotency_key="mine")


async def test_other_changes_whose_answer_was_lost_happen_once_as_well(served: Served) -> None:
    key = key_of(served, tenant=new_tenant())
    async with wire(served.url) as between, patient(between.url, key) as client:
        between.cut = FIRST_REPLY_LOST
        batch = await client.instances.start_many("order", [{"id": "a"}, {"id": "b"}])
        assert (batch.started, between.connections) == (2, 2)
    async with patient(served.url, key) as client:
        assert len([one async for one in client.instances.list()]) == 2
        word = batch.items[0].id or ""
        async with wire(served.url) as between, patient(between.url, key) as over:
            between.cut = FIRST_REPLY_LOST
            sent = await over.instances.signal(word, "confirmed", {"by": "ann"})
            assert (sent.new, between.connections) == (True, 2)
        async with wire(served.url) as between, patient(between.url, key) as over:
            between.cut = FIRST_REPLY_LOST
            there = await client.tenant.read()
            mine = await over.tenant.change(if_match=there.version, ai_enabled=True)
            assert (mine.version, between.connections) == (there.version + 1, 2)
        async with wire(served.url) as between, patient(between.url, key) as over:
            between.cut = FIRST_REPLY_LOST
            await over.principals.create("ann", kind="human", roles=["viewer"])
            assert between.connections == 2
        async with wire(served.url) as between, patient(between.url, key) as over:
            between.cut = FIRST_REPLY_LOST
            made = await over.keys.create("ann", "laptop")
            assert made.key is None  # it was shown in the answer that was lost, and is not kept
        assert [one.name async for one in client.keys.list()].count("laptop") == 1


@pytest.mark.parametrize("after", [900, 1000, 1100, 1300])
async def test_a_stream_over_a_wire_that_is_cut_tells_everything_once(served: Served, after: int) -> None:
    key = key_of(served)
    async with wire(served.url) as between, patient(between.url, key) as client:
        made = await Client(served.url, key).instances.start("order", {"id": uuid4().hex})
        between.cut = lambda number: after
        told = []
        async for entry in client.instances.stream(made.id):
            told.append(entry)
            if len(told) == 3:
                await Client(served.url, key).instances.signal(made.id, "confirmed", {"by": "ann"})
        assert between.connections > 2
        assert told == [entry async for entry in Client(served.url, key).instances.history(made.id)]
        assert told[-1].type == "INSTANCE_COMPLETED"


async def test_the_tenants_stream_misses_nothing_of_what_happens_while_it_is_away(served: Served) -> None:
    key = key_of(served, tenant=new_tenant())
    made: list[Instance] = []
    async with wire(served.url) as between, Client(served.url, key) as direct, patient(between.url, key) as client:

        async def before(number: int) -> None:
            if number > 1 and len(made) < 3:  # it is away, and things happen
                made.append(await direct.instances.start("quick", {"n": number}, wait=60))

        between.before = before
        cuts = {1: b"\nid: ", 2: b"event: ", 3: b"event: ", 4: b"event: ", 5: b"event: "}  # the first, before any event
        between.cut = cuts.get
        told: list[tuple[str, int]] = []
        async for event in client.stream():
            told.append((event.instance_id, event.seq))
            if len(made) == 3 and event.type == "INSTANCE_COMPLETED" and event.instance_id == made[-1].id:
                break
        expected = [(one.id, entry.seq) for one in made async for entry in direct.instances.history(one.id)]
        assert sorted(told) == sorted(expected)


async def test_a_result_is_waited_for_over_a_wire_that_is_cut(served: Served) -> None:
    key = key_of(served)
    async with wire(served.url) as between, patient(between.url, key) as client:
        between.cut = lambda number: 1200 if number % 3 else None
        made = await client.instances.start("slow", {"seconds": 0.5})
        assert await client.instances.result(made.id, timeout=60) == {"seconds": 0.5}


async def test_who_follows_notices_nothing_of_a_rolling_restart(house: House) -> None:
    house.work()
    old = house.run("server", "--port", "0")
    key = key_of(house)
    async with wire(house.url_of(old)) as between, patient(between.url, key) as client:
        made = await client.instances.start("order", {"id": "a"})
        told = []
        async for entry in client.instances.stream(made.id):
            told.append(entry)
            if len(told) == 2:
                between.lead_to(house.serve())
                old.stop()
                await client.instances.signal(made.id, "confirmed", {"by": "ann"})
        assert told == [entry async for entry in client.instances.history(made.id)]
        assert (await client.instances.result(made.id, timeout=60))["by"] == "ann"
