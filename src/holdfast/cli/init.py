"""`holdfast init`: a folder to begin in, with an app, a test of it, and the settings."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.output import notice
from holdfast.cli.refusals import CONFLICT

APP = '''"""Refunds: money is held, a person approves, the bank is called once."""

from datetime import timedelta

from holdfast import Context, Holdfast, StepInfo

hf = Holdfast()  # the database is in holdfast.toml


@hf.workflow("refund")
async def refund(ctx: Context, order: dict) -> dict:
    hold = await ctx.step("reserve", reserve, order, compensate=release)
    answer = await ctx.wait_for_signal("approved", timeout=timedelta(days=3))  # None if nobody came
    if answer is None:
        raise TimeoutError("nobody approved in time")  # what was reserved is released
    paid = await ctx.effect("pay", pay, hold, mode="keyed", window=timedelta(hours=24))
    return {"paid": paid, "approved_by": answer["by"]}


async def reserve(order: dict) -> dict:
    return {"hold": f"hold-{order['id']}", "amount_minor": order["amount_minor"]}


async def release(hold: dict) -> None:
    print("released", hold["hold"])


async def pay(hold: dict, info: StepInfo) -> str:
    # Recorded before it starts. Hand the key to your bank, so that a repeat is recognised.
    return f"paid-{hold['hold']}-{info.idempotency_key[:8]}"


async def dev(hf: Holdfast) -> None:
    """`holdfast dev` calls this once its worker runs."""
    handle = await hf.start("refund", {"id": "o-1", "amount_minor": 4200}, business_key="o-1")
    if (await handle.status()).status in ("pending", "running", "waiting"):
        print(f"""waiting for you: holdfast signal {handle.id} approved --payload \'{{"by": "ann"}}\'""", flush=True)
        print("result:", await handle.result(), flush=True)
'''

TEST = '''"""The refund, on a temporary database and with a clock that the test moves."""

import asyncio

from app import hf
from holdfast.testing import Harness

ORDER = {"id": "o-1", "amount_minor": 4200}


def test_an_approved_refund_is_paid():
    async def story():
        async with Harness(hf) as test:
            handle = await test.start("refund", ORDER)
            await handle.signal("approved", {"by": "ann"})
            return await test.finish(handle)

    assert asyncio.run(story())["approved_by"] == "ann"


def test_what_nobody_approves_is_released():
    async def story():
        async with Harness(hf) as test:
            handle = await test.start("refund", ORDER)
            await test.advance(days=3)
            return await handle.status()

    end = asyncio.run(story())
    assert (end.status, end.compensation) == ("failed", "complete")
'''

TOML = """# Flags and HOLDFAST_* in the environment come before this file; `holdfast config show` says what counts.
app = "app:hf"
database_url = "sqlite:///.holdfast/holdfast.db"
"""

PYTEST = """# So that pytest looks at no settings of a folder above this one.
[pytest]
pythonpath = .
"""

README = """# {name}

```
holdfast dev        # runs app.py; kill it and run it again, it goes on where it was
holdfast signal …   # the line that `dev` prints: approve the refund
pytest              # the same on a clock that the test moves
```
"""
IGNORED = ".holdfast/"


class Occupied(click.ClickException):
    exit_code = CONFLICT


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
def init(folder: Path, dry_run: bool) -> None:
    """Write a small app to begin with, its test and its settings into FOLDER. Nothing is overwritten."""
    files = {
        "app.py": APP,
        "test_app.py": TEST,
        "pytest.ini": PYTEST,
        "holdfast.toml": TOML,
        "README.md": README.format(name=folder.resolve().name),
    }
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise Occupied(f"{folder} has {', '.join(there)} already: nothing was written; name another folder")
    ignore = folder / ".gitignore"
    before = ignore.read_text(encoding="utf-8") if ignore.exists() else ""
    if IGNORED not in before.splitlines():
        files[".gitignore"] = before + ("" if before.endswith("\n") or not before else "\n") + IGNORED + "\n"
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if not dry_run:
            (folder / name).write_text(content, encoding="utf-8")
        click.echo(folder / name)
    if not dry_run:
        notice(f"next:{'' if folder == Path() else f' cd {folder};'} holdfast dev")
