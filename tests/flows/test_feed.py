"""The tenant's feed while others write: who commits late is not passed by."""

from __future__ import annotations

from typing import Any

import asyncpg

from holdfast import Context, Holdfast
from holdfast.app.feed import Feed, FeedEntry


async def seen_by(feed: Feed, looks: int = 3) -> list[FeedEntry]:
    return [entry for _ in range(looks) for entry in await feed.read()]


async def write_late(connection: Any, instance: bytes, seq: int, at: int) -> None:
    await connection.execute(
        "insert into holdfast.history (tenant_id, instance_id, seq, type, name, fence, at, payload, hash) "
        "values ('default', $1, $2, 'LOGGED', 'late', 1, $3, '{}', 'x')",
        instance, seq, at,
    )  # fmt: skip


async def test_what_commits_late_is_shown_once_and_after_its_commit(postgres_url: str) -> None:
    """A transaction that began before others and ends after them: the feed waits for it, and then shows all."""
    hf = Holdfast(postgres_url)

    @hf.workflow("note")
    async def note(ctx: Context, given: Any) -> Any:
        return given

    async with hf:
        late, other = [(await hf.start("note", n)) for n in range(2)]
        feed = Feed(hf.service, "default")
        assert await seen_by(feed) == []  # it begins now
        slow, quick = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
        try:
            transaction = slow.transaction()
            await transaction.start()
            await write_late(slow, late._raw, 900, hf.service.store.now())
            await write_late(quick, other._raw, 901, hf.service.store.now())
            passed = await seen_by(feed)
            assert [entry.seq for entry in passed] in ([], [901])
            again = Feed(hf.service, "default", feed.word)  # whoever lost its connection meanwhile
            await transaction.commit()
            for one in (feed, again):
                shown = [entry.seq for entry in passed]
                while len(shown) < 2:  # the horizon waits for other databases of the server, too
                    shown += [entry.seq for entry in await seen_by(one)]
                shown += [entry.seq for entry in await seen_by(one)]
                assert sorted(shown) == [900, 901], shown
        finally:
            await slow.close()
            await quick.close()
