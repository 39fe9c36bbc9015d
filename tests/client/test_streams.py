"""Streams: whole events and nothing else, over as many connections as it takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import Overloaded, Unauthenticated, UnreadableReply
from holdfast.client.streams import Event, Parser
from tests.client.support import Pauses, answer, drop_before, patient, problem, raw, stand_in

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
OVER = raw("HTTP/1.1 204 No Content\r\n\r\n")


def entry(seq: int, name: str = "x") -> str:
    data = {"seq": seq, "type": "T", "name": name, "at": "2026-11-16T10:00:00Z", "payload": None, "hash": "h"}
    return f"id: {seq}\nevent: T\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def chunked(text: str) -> str:
    content = text.encode()
    return f"{len(content):x}\r\n{text}\r\n"


def whole(text: str) -> bytes:
    """A stream that is closed as it should be."""
    return (HEAD + chunked(text) + "0\r\n\r\n").encode()


def cut(text: str) -> bytes:
    """A stream that ends in the middle."""
    return (HEAD + chunked(text)).encode()


@given(
    sizes=st.lists(st.integers(1, 9), max_size=200), end=st.sampled_from(["\n", "\r\n", "\r"]),
    names=st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=5),
)  # fmt: skip
def test_events_are_the_same_however_the_bytes_arrive(sizes: list[int], end: str, names: list[str]) -> None:
    text = ": hello\nretry: 50\n\n" + "".join(f"id: {n}\nevent: e\ndata: {name}\n\n" for n, name in enumerate(names))
    content = (text.replace("\n", end) + "id: 99\ndata: half").encode()
    parser, found = Parser(None), []
    for size in [*sizes, len(content)]:
        found += parser.feed(content[:size])
        content = content[size:]
    assert found == [Event(str(n), "e", name.encode()) for n, name in enumerate(names)]
    assert parser.last_id == (str(len(names) - 1) if names else None) and parser.retry_seconds == 0.05


def test_an_event_may_have_several_lines_and_an_id_may_come_alone() -> None:
    parser = Parser("1")
    assert parser.feed(b"data: a\ndata:b\ndata\n\n") == [Event("1", "", b"a\nb\n")]
    assert parser.feed(b"id: 7\n\n") == [] and parser.last_id == "7"
    assert parser.feed(b"id: 8\n") == [] and parser.last_id == "7"
    assert parser.feed(b"id: a\0b\nunknown: x\nretry: soon\n\n") == [] and parser.last_id == "8"


async def test_a_stream_goes_on_where_it_was_cut_off() -> None:
    third = entry(3, "a line\u2028and \u0085 another")
    script = (
        raw(cut("retry: 2000\n\n" + entry(1) + entry(2) + third[:30])), drop_before, problem(503, "unavailable"),
        raw(whole(third)), raw(whole("")), raw(cut("")), raw(cut(entry(4))), OVER,
    )  # fmt: skip
    pauses = Pauses()
    async with stand_in(*script) as server, patient(server.url, pauses=pauses) as client:
        found = [(one.seq, one.name) async for one in client.instances.stream("ins_1")]
    assert found == [(1, "x"), (2, "x"), (3, "a line\u2028and \u0085 another"), (4, "x")]
    assert [seen.headers["last-event-id"] for seen in server.seen] == ["0", "2", "2", "3", "3", "3", "4"]
    assert pauses == pytest.approx([0.15, 0.3, 1.5, 1.5])  # after a refusal, and where a connection brought nothing


async def test_an_entry_that_comes_twice_is_told_once() -> None:
    script = (raw(cut(entry(1) + entry(2))), raw(whole(entry(1) + entry(2) + entry(3))), OVER)
    async with stand_in(*script) as server, patient(server.url) as client:
        assert [one.seq async for one in client.instances.stream("ins_1")] == [1, 2, 3]


async def test_a_stream_begins_after_what_the_caller_has() -> None:
    async with stand_in(raw(whole(entry(8))), OVER) as server, patient(server.url) as client:
        assert [one.seq async for one in client.instances.stream("ins_1", after=7)] == [8]
    assert [seen.headers["last-event-id"] for seen in server.seen] == ["7", "8"]


async def test_a_stream_that_is_refused_says_why() -> None:
    script = (raw(cut(entry(1))), problem(401, "unauthenticated"))
    async with stand_in(*script) as server, patient(server.url) as client:
        with pytest.raises(Unauthenticated):
            _ = [one async for one in client.instances.stream("ins_1")]
    assert server.connections == 2
    async with stand_in(problem(503, "overloaded")) as server, patient(server.url, retries=2) as client:
        with pytest.raises(Overloaded):
            _ = [one async for one in client.stream()]
    assert server.connections == 3
    async with stand_in(answer(200, "<html>", "text/html")) as server, patient(server.url) as client:
        with pytest.raises(UnreadableReply, match="not Holdfast's"):
            _ = [one async for one in client.stream()]
    async with stand_in(raw(whole("id: 1\ndata: {}\n\n"))) as server, patient(server.url) as client:
        with pytest.raises(UnreadableReply, match="does not know"):
            _ = [one async for one in client.instances.stream("ins_1")]


async def test_the_tenants_stream_goes_on_from_where_it_began_though_nothing_came() -> None:
    told = {
        "instance_id": "ins_1",
        "definition_key": "k",
        "seq": 1,
        "type": "T",
        "name": "n",
        "at": "2026-11-16T10:00:00Z",
    }
    one = f"id: a.9\nevent: T\ndata: {json.dumps(told)}\n\n"
    script = (raw(cut("retry: 2000\nid: a.8\n\n")), raw(cut(one)), OVER)
    async with stand_in(*script) as server, patient(server.url) as client:
        found = [event async for event in client.stream()]
    assert [(event.id, event.instance_id, event.seq) for event in found] == [("a.9", "ins_1", 1)]
    assert [seen.headers.get("last-event-id") for seen in server.seen] == [None, "a.8", "a.9"]
