"""Every example runs, and does what it says it shows."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import holdfast
from examples import in_your_transaction, orders, refund_builder, unknown_payment
from holdfast.testing import Harness

ROOT = Path(__file__).resolve().parent.parent
TEAPOT = orders.Order("o-1", "teapot", 4200, "EUR")


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORDERS_PROVIDER", str(tmp_path / "provider"))
    return tmp_path / "provider"


def charges(provider: Path) -> list[dict[str, object]]:
    return [json.loads(file.read_text()) for file in provider.iterdir()]


async def test_a_confirmed_order_is_paid_once_and_shipped(provider: Path) -> None:
    async with Harness(orders.hf) as test:
        handle = await test.start("order", TEAPOT)
        await test.advance(minutes=1)
        assert "signal 'confirmed'" in ((await handle.status()).waiting_on or "")
        await handle.signal("confirmed", {"ok": True})
        await test.run_until_idle()
        result = await handle.result(timeout=0)
        types = [entry.type for entry in await handle.history()]
    assert result["parcel"] == "parcel of teapot from shelf-7/teapot"
    assert [charge["order"] for charge in charges(provider)] == ["o-1"]
    assert {"STEP_RETRIED", "TIMER_FIRED", "SIGNAL_RECEIVED"} <= set(types)


@pytest.mark.parametrize("answer", [{"ok": False, "why": "too dear"}, None])
async def test_an_order_nobody_wants_is_refunded_and_released(provider: Path, answer: dict[str, object] | None) -> None:
    async with Harness(orders.hf) as test:
        handle = await test.start("order", TEAPOT)
        if answer is not None:
            await handle.signal("confirmed", answer)
        await test.advance(orders.ANSWER_WITHIN + timedelta(minutes=1))
        view = await handle.status()
        undone = [entry.name for entry in await handle.history() if entry.type == "COMPENSATION_COMPLETED"]
    assert (view.status, view.compensation) == ("failed", "complete")
    assert view.error["message"] == ("nobody answered in time" if answer is None else "too dear")
    assert undone == ["pay", "reserve"]
    assert sorted("refund_of" in charge for charge in charges(provider)) == [False, True]


def test_the_provider_recognises_a_key(provider: Path) -> None:
    first = orders.charge("key-1", {"order": "o-1"})
    assert orders.charge("key-1", {"order": "o-1"}) == first
    assert len(charges(provider)) == 1


async def test_dev_starts_an_order_only_if_none_is_on_its_way(
    provider: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Harness(orders.hf) as test:
        await orders.dev(test)
        [only] = await test.instances()
        assert (
            f"signal {only.id} confirmed --payload '{{\"ok\": true}}' --database {test.url}" in capsys.readouterr().out
        )
        await test.run_until_idle()
        await orders.dev(test)
        assert [one.id for one in await test.instances()] == [only.id]


async def test_the_builder_takes_the_route_and_polls_until_it_is_done() -> None:
    low, high = await refund_builder.main()
    assert low["risk"]["route"] == "low"
    assert high["risk"]["results"] == {"ask": "papers for r-250000"}
    assert set(refund_builder.looks.values()) == {3}
    assert high["notify"]["crm"] == "noted r-250000"


async def test_an_unknown_payment_waits_for_a_person_and_is_made_once() -> None:
    assert await unknown_payment.main() == {"paid": "prov-1"}
    assert len(unknown_payment.bank.calls) == 1


async def test_an_order_and_its_instance_appear_together_or_not_at_all() -> None:
    found = await in_your_transaction.main()
    assert found == {"booking": 1, "orders": [("o-2", "booked")], "instances": ["o-2"]}


@pytest.mark.parametrize("name", ["orders", "refund_builder", "unknown_payment", "in_your_transaction"])
def test_each_runs_as_a_script(name: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
    environment.pop("HOLDFAST_DATABASE_URL", None)
    script = ROOT / "examples" / f"{name}.py"
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True, timeout=60)
