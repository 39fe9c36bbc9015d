"""A person at the command line, charts to work with, and a worker beside them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.main import cli
from holdfast.testing import Harness, ManualClock
from tests.support.patience import PATIENCE_SECONDS

NO_INSTANCE = "ins_" + "0" * 32
NO_TASK = "tsk_" + "0" * 32

REQUEST: dict[str, Any] = {
    "id": "request",
    "context": {"item": {"@expr": "event.input.item"}},
    "initial": "asked",
    "output": {"item": {"@expr": "context.item"}},
    "states": {
        "asked": {
            "entry": {
                "type": "createTask",
                "params": {
                    "type": "HUMAN",
                    "name": "approve",
                    "groups": ["managers"],
                    "completion_event": "decided",
                    "failure_event": "stuck",
                    "form": {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}},
                },
            },
            "on": {
                "decided": [{"guard": {"@expr": "event.output.ok"}, "target": "granted"}, {"target": "denied"}],
                "stuck": "denied",
                "withdraw": "denied",
            },
            "after": {"P3D": "denied"},
        },
        "granted": {"on": {"close": "closed"}},
        "denied": {"on": {"close": "closed"}},
        "closed": {"type": "final"},
    },
}


def with_state(chart: dict[str, Any], name: str) -> dict[str, Any]:
    """The chart with one state more, so that it is another version."""
    return chart | {"states": chart["states"] | {name: {"type": "final"}}}


class Desk:
    """A folder, a database, and the command."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def run(self, *words: str, input: str | None = None) -> Result:
        result = CliRunner().invoke(cli, words, input=input, env={"HOLDFAST_DATABASE_URL": self.url})
        assert "Traceback" not in result.output
        return result

    def ok(self, *words: str, input: str | None = None) -> Result:
        result = self.run(*words, input=input)
        assert result.exit_code == 0, result.output
        return result

    def json(self, *words: str, code: int = 0, flag: str = "-o") -> Any:
        result = self.run(*words, flag, "json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def refused(self, code: int, said: str, *words: str, input: str | None = None) -> None:
        """One line on standard error that says it, nothing on standard output, and this exit code."""
        result = self.run(*words, input=input)
        assert result.exit_code == code, result.output
        [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert said in line
        assert result.stdout == ""

    def file(self, name: str, content: Any) -> str:
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return name

    def publish(self, chart: dict[str, Any]) -> int:
        version: int = self.json("definitions", "publish", self.file("published.json", chart))["version"]
        return version

    def start(self, key: str, *words: str) -> str:
        return self.ok("start", key, *words).stdout.strip()

    def work(self) -> None:
        """Everything that can happen now happens."""
        clock = ManualClock(datetime.now(UTC) + timedelta(seconds=1))  # the command's own is the real one

        async def whole() -> None:
            async with Harness(url=self.url, clock=clock) as test:
                await test.run_until_idle()

        asyncio.run(whole())

    def open_request(self) -> tuple[str, str]:
        """An instance that waits for a person, and the task."""
        self.publish(REQUEST)
        instance = self.start("request", "--input", '{"item": "a chair"}')
        self.work()
        [task] = self.json("tasks", "list", "--instance", instance)
        return instance, task["id"]

    @contextmanager
    def worker(self) -> Iterator[None]:
        """A worker in a thread of its own, as it would run in another process."""
        begun, loop = threading.Event(), asyncio.new_event_loop()
        over = asyncio.Event()

        async def whole() -> None:
            async with Holdfast(self.url) as hf, hf.worker(poll_seconds=0.02):
                begun.set()
                await over.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(whole()), daemon=True)
        thread.start()
        assert begun.wait(PATIENCE_SECONDS)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
            loop.close()
