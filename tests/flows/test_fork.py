"""After `fork`, as gunicorn --preload, Celery and multiprocessing do it. Each program is a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.flows.support import query
from tests.support.size import sized

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 90  # a hang is a failure, not a wait
BEFORE = """
import atexit
at_end = []
atexit.register(lambda: [function() for function in at_end])  # registered first, so called last

import asyncio, json, os, signal, sys, traceback
from holdfast import Context, Holdfast

hf = Holdfast(sys.argv[1])

@hf.workflow("wait")
async def wait(ctx: Context, given: object) -> object:
    return await ctx.wait_for_signal("go")

def begin(work, leave=sys.exit):
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    signal.alarm(45)
    try:
        said = work()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    os.write(writer, json.dumps(said).encode())
    leave(0)  # sys.exit: with everything that the end of an interpreter does, as in a worker of gunicorn

def ended(child, reader):
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}, after {said!r}"
    return json.loads(said)

def in_child(work, leave=sys.exit):
    return ended(*begin(work, leave))
"""


def run(url: str, program: str) -> Any:
    """What the program printed as JSON. Nothing else may be written, to standard error neither."""
    done = subprocess.run(
        # Python 3.12 and later warn of every fork beside threads; what may hang there is what these tests are about.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-W", "always::ResourceWarning", "-c", BEFORE + program,
         url],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_children_use_what_the_parent_has_not_opened_yet(url: str) -> None:
    """gunicorn --preload: the app is imported in the parent, and first used in its workers."""
    said = run(url, """
children = [begin(lambda: hf.sync.start("wait", n).id) for n in range(3)]
ids = [ended(*child) for child in children]
ids.append(hf.sync.start("wait", 9).id)
print(json.dumps([ids, [view.id for view in hf.sync.instances()]]))
""")  # fmt: skip
    assert len(said[0]) == 4 and sorted(said[0]) == sorted(said[1])


def test_what_was_closed_before_the_fork_is_opened_anew_in_parent_and_child(url: str) -> None:
    said = run(url, """
ids = [hf.sync.start("wait", 0).id]
hf.sync.close()
ids.append(in_child(lambda: hf.sync.start("wait", 1).id))
ids.append(hf.sync.start("wait", 2).id)
print(json.dumps([ids, [view.id for view in hf.sync.instances()]]))
""")  # fmt: skip
    assert sorted(said[0]) == sorted(said[1])


def test_a_child_of_a_process_that_has_postgres_open_opens_it_anew(postgres_url: str) -> None:
    said = run(postgres_url, """
first = hf.sync.start("wait", 0)
children = [begin(lambda: hf.sync.start("wait", n).id) for n in range(3)]
between = hf.sync.start("wait", 4).id  # while the children run and end, the parent's sessions are its own
ids = [first.id, between, *(ended(*child) for child in children)]
ids.append(hf.sync.start("wait", 5).id)
print(json.dumps([ids, [view.id for view in hf.sync.instances()], first.status().status]))
""")  # fmt: skip
    assert sorted(said[0]) == sorted(said[1]) and said[2] == "pending"


def test_a_child_of_a_process_that_has_the_sqlite_file_open_is_refused_at_once(tmp_path: Path) -> None:
    """Opened anew there, the file would lose commits: SQLite believes that the child holds the parent's locks."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    said = run(url, """
ids = [hf.sync.start("wait", 0).id]
refused = [in_child(lambda: hf.sync.start("wait", 1).id) for _ in range(2)]
other = in_child(lambda: Holdfast(sys.argv[1]).sync.instances())
ids.append(hf.sync.start("wait", 2).id)
hf.sync.close()
ids.append(in_child(lambda: hf.sync.start("wait", 3).id))
print(json.dumps([refused, other, ids, [view.id for view in hf.sync.instances()]]))
""")  # fmt: skip
    refused, other, ids, found = said
    assert refused[0].startswith("StoreUnavailable") and "was open when this process was forked" in refused[0]
    assert "hf.sync.close() before it" in refused[0] and refused[1] == refused[0] == other
    assert sorted(ids) == sorted(found)


def test_a_handle_of_the_parent_is_refused_in_the_child(postgres_url: str) -> None:
    said = run(postgres_url, """
handle = hf.sync.start("wait", 0)
print(json.dumps([
    in_child(lambda: [hf.sync.instances(), handle.status()]), in_child(lambda: handle.signal("go")),
    handle.signal("go"),
]))
""")  # fmt: skip
    for refused in said[:2]:
        assert refused.startswith("HoldfastError") and "before the process was forked" in refused
    assert said[2] is True


def test_an_async_store_of_the_parent_is_refused_in_the_child(url: str) -> None:
    said = run(url, """
async def again():
    async with hf:
        return len(await hf.instances())

async def story():
    async with hf:
        await hf.start("wait", 0)
        # In a thread, as a child must not go on with the loop that runs here; multiprocessing ends its children so.
        refused = await asyncio.to_thread(in_child, lambda: asyncio.run(hf.instances()), os._exit)
        anew = await asyncio.to_thread(in_child, lambda: asyncio.run(again()), os._exit)
        return refused, anew, len(await hf.instances())

print(json.dumps(asyncio.run(story())))
""")  # fmt: skip
    refused, again, still = said
    assert refused.startswith("HoldfastError") and "opened before this process was forked" in refused
    assert again.startswith("StoreUnavailable") if url.startswith("sqlite") else again == 1
    assert still == 1


def test_a_script_that_closes_nothing_ends_in_silence(url: str) -> None:
    said = run(url, """
import threading
def use():
    hf.sync.start("wait", 1)
threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
count = len(hf.sync.instances())
at_end.append(lambda: print(json.dumps([count, hf.loop is None])))  # by then it was closed
""")  # fmt: skip
    assert said == [3, True]


WORKER = """
async def work():
    async with hf, hf.worker(poll_seconds=0.05):
        await asyncio.to_thread(sys.stdin.readline)
        child = await asyncio.to_thread(begin, lambda: [signal.alarm(0), signal.pause()])
        print(child[0], flush=True)
        await asyncio.Event().wait()

asyncio.run(work())
"""


async def test_a_killed_worker_is_dead_though_its_forked_child_lives(url: str) -> None:
    """A child inherits lock files and sockets. Kept open there, they would hold the worker's lock and its session."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEFORE + WORKER, url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    child = None
    try:
        async with Holdfast(url) as hf:
            await locks_become(1, hf)
            process.stdin.write("fork\n")
            process.stdin.flush()
            child = int(await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), SECONDS))
            assert await locks_of_workers(hf) == 1
            process.kill()
            process.wait()
            await locks_become(0, hf)
            os.kill(child, 0)  # the child lives
    finally:
        process.kill()
        if child is not None:
            os.kill(child, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()


async def locks_become(count: int, hf: Holdfast) -> None:
    end = time.monotonic() + SECONDS
    while await locks_of_workers(hf) != count:
        assert time.monotonic() < end, f"not {count} locks of workers within {SECONDS} s"
        await asyncio.sleep(0.05)


async def locks_of_workers(hf: Holdfast) -> int:
    if hf.url.startswith("sqlite"):
        return [view.state for view in await hf.workers()].count("live")
    held = """select count(*) from pg_locks l join pg_database d on d.oid = l.database
              where d.datname = current_database() and locktype = 'advisory' and granted"""
    [(count,)] = await asyncio.to_thread(query, hf.url, held)
    return int(count)


@pytest.mark.parametrize("times", [sized(8, 20)])
def test_forks_while_other_threads_commit_hang_nowhere(url: str, times: int) -> None:
    said = run(url, f"""
import threading
stop, done = threading.Event(), []
def commit():
    while not stop.is_set():
        done.append(hf.sync.start("wait", 1).id)
threads = [threading.Thread(target=commit) for _ in range(3)]
for thread in threads:
    thread.start()
while len(done) < 3:
    pass
said = [in_child(lambda: hf.sync.start("wait", 2).id) for _ in range({times})]
stop.set()
for thread in threads:
    thread.join()
if sys.argv[1].startswith("sqlite"):
    assert all(one.startswith("StoreUnavailable") for one in said), said
    said = []
print(json.dumps([len(done) + len(said), len(hf.sync.instances(limit=500))]))
""")  # fmt: skip
    assert min(said[0], 500) == said[1]
