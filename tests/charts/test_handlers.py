"""HTTP and EMAIL tasks in charts: through the whole engine, against real servers on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Outside
from holdfast.handlers.mailbox import FileMailbox
from holdfast.handlers.secrets import DictSecrets
from holdfast.testing import Harness


class Server:
    """A small HTTP server that remembers what it was sent and answers as planned."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:]) if k}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((head[0], headers, body))
        answer = self.answers.pop(0) if self.answers else (200, {"id": "ch_1"})
        if answer is not None:
            status, value = answer
            raw = json.dumps(value).encode()
            writer.write(
                f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
                + raw
            )
            await writer.drain()
        writer.close()


def charge(port: int, **more: Any) -> dict[str, Any]:
    task = {
        "type": "HTTP", "name": "charge", "url": f"http://127.0.0.1:{port}/charges", "backoff": 1000,
        "json": {"amount": {"@expr": "context.amount"}},
        "headers": {"Authorization": {"@secret": "api_key", "prefix": "Bearer "}}, **more,
    }  # fmt: skip
    return {
        "id": "charging", "context": {"amount": {"@expr": "event.input"}, "charge": ""}, "initial": "on",
        "output": {"@expr": "context.charge"},
        "states": {
            "on": {"invoke": {"src": {"task": task}, "onDone": {"target": "paid", "actions": {
                "type": "assign", "assign": {"charge": {"@expr": "event.output.body.id"}}}}, "onError": "refused"}},
            "paid": {"type": "final"}, "refused": {"type": "final"},
        },
    }  # fmt: skip


def outside(port: int) -> Outside:
    return Outside(private_hosts=(f"127.0.0.1:{port}",), secrets=DictSecrets({"api_key": "s3cr3t"}))


async def state_of(handle: Any) -> str:
    return [e.name for e in await handle.history() if e.type == "STATE_TRANSITION"][-1]


async def test_a_request_leaves_with_its_key_and_its_secret_and_neither_stays_behind(url: str) -> None:
    async with Server().running() as server:
        async with Harness(Holdfast("sqlite:///x.db"), url=url, outside=outside(server.port)) as test:
            await test.tenant("default").set_policy(http_hosts=[f"http://127.0.0.1:{server.port}"], actor="ann")
            await test.publish(charge(server.port))
            handle = await test.start("charging", 500)
            await test.run_until_idle()
            assert await handle.result(0) == "ch_1"
            [(line, headers, body)] = server.requests
            assert line.startswith("POST /charges") and json.loads(body) == {"amount": 500}
            [task] = await test.tasks.list(status=None)
            assert headers["idempotency-key"] == task.idempotency_key
            assert headers["authorization"] == "Bearer s3cr3t"
            kept = json.dumps([e.payload for e in await handle.history()]) + json.dumps([task.options, task.output])
            assert "s3cr3t" not in kept


async def test_a_tenant_that_allows_no_host_reaches_none(url: str) -> None:
    async with Server().running() as server:
        async with Harness(Holdfast("sqlite:///x.db"), url=url, outside=outside(server.port)) as test:
            await test.publish(charge(server.port))
            handle = await test.start("charging", 500)
            await test.run_until_idle()
            assert await state_of(handle) == "refused"
            [task] = await test.tasks.list(status=None)
            assert "http_hosts" in task.error["message"]
            assert server.requests == []


@pytest.mark.parametrize(
    ("answers", "mode", "ends", "calls"),
    [
        ([(402, {"why": "no money"})], "manual", "refused", 1),
        ([(429, {}), (200, {"id": "ch_2"})], "manual", "paid", 2),
        ([None, (200, {"id": "ch_2"})], "keyed", "paid", 2),
        ([(500, {}), (200, {"id": "ch_2"})], "keyed", "paid", 2),
        ([None], "manual", "on", 1),
    ],
    ids=["rejected", "try later", "cut off, keyed", "500, keyed", "cut off, manual"],
)
async def test_what_was_sent_decides_what_follows(
    url: str, answers: list[Any], mode: str, ends: str, calls: int
) -> None:
    async with Server(*answers).running() as server:
        async with Harness(Holdfast("sqlite:///x.db"), url=url, outside=outside(server.port)) as test:
            await test.tenant("default").set_policy(http_hosts=[f"http://127.0.0.1:{server.port}"], actor="ann")
            await test.publish(charge(server.port, mode=mode))
            handle = await test.start("charging", 500)
            await test.advance(minutes=5)
            assert await state_of(handle) == ends
            assert len(server.requests) == calls
            assert len({headers["idempotency-key"] for _, headers, _ in server.requests}) == 1
            if ends == "on":
                assert "a person: the outcome of effect" in str((await handle.status()).waiting_on)


async def test_a_mail_is_sent_once_with_an_id_that_follows_from_its_key(url: str, tmp_path: Path) -> None:
    box = FileMailbox(tmp_path / "mail")
    task = {
        "type": "EMAIL", "name": "tell", "to": {"@expr": "context.to"}, "subject": "Hello {{name}}",
        "text": "Dear {{name}}", "html": "<b>{{name}}</b>", "input": {"name": "<Ada>"},
    }  # fmt: skip
    chart = {
        "id": "mailing", "context": {"to": {"@expr": "event.input"}}, "initial": "on",
        "states": {"on": {"invoke": {"src": {"task": task}, "onDone": "sent", "onError": "failed"}},
                   "sent": {"type": "final"}, "failed": {"type": "final"}},
    }  # fmt: skip
    hf = Holdfast("sqlite:///x.db")
    async with Harness(hf, url=url, outside=Outside(mail=box, mail_from="us@example.org")) as test:
        await test.publish(chart)
        good = await test.start("mailing", "ada@example.org")
        bad = await test.start("mailing", "ada@example.org\nBcc: all@example.org")
        await test.run_until_idle()
        assert (await state_of(good), await state_of(bad)) == ("sent", "failed")
        [mail] = box.list()
        assert (mail.subject, mail.text.strip(), mail.html.strip()) == (
            "Hello <Ada>", "Dear <Ada>", "<b>&lt;Ada&gt;</b>",
        )  # fmt: skip
        [task_row] = await test.tasks.list(instance=good.id, status=None)
        assert task_row.idempotency_key in mail.message_id
