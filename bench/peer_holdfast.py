"""Holdfast's adapter for the shared benchmark harness (see docs/benchmarks.md)."""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, os.environ.get("HF_BENCH_COMMON", ""))
import common

ROOT = Path(__file__).resolve().parent.parent
# What the project itself runs with; the harness is started from the project's root.
META = {"services": ["postgres"], "requires": ["-r", "requirements/run.txt"], "workloads": "ABCDE"}
VARIANTS = {  # "direct": started in the worker's own process, as the peers' variants of that name
    "pg": {"topology": "split", "concurrency": 500, "lead": 15, "n": {"A": 10000, "C": 20000}},
    "direct": {"topology": "embedded", "concurrency": 500, "lead": 15, "n": {"A": 10000, "C": 20000}},
    "sqlite": {
        "topology": "embedded",
        "db": "sqlite",
        "concurrency": 200,  # the default; with more, what a batch touches no longer fits into the cache
        "services": [],
        "lead": 15,
        "n": {"A": 10000, "C": 20000},
    },
}
sys.path.insert(0, str(ROOT / "src"))


def check_requirements():
    """The harness keeps the environment of an earlier run: it must be the one that this commit asks for."""
    from importlib.metadata import PackageNotFoundError, version

    for line in (ROOT / "requirements" / "run.txt").read_text().splitlines():
        if line[:1].isalnum() and "==" in line and ";" not in line:
            name, pinned = line.removesuffix(" \\").split("==")
            try:
                found = version(name.partition("[")[0])
            except PackageNotFoundError:
                found = "not installed"
            if found != pinned:
                sys.exit(f"{name} is {found}, not {pinned}: remove venv/holdfast in the harness's cache and run again")


class Bench(common.Peer):
    def make(self):
        import gc
        import logging

        import structlog

        from holdfast import Holdfast

        gc.freeze()  # as `holdfast worker` does
        gc.set_threshold(20_000, 50, 100)
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        hf = Holdfast(f"sqlite:///{self.dir}/holdfast.db" if self.opts.get("db") == "sqlite" else self.dsn)
        log = self.log

        async def step(key, i):
            return log.step(key, i)

        @hf.workflow("wf5")
        async def wf5(ctx, key):
            for i in range(common.STEPS):
                await ctx.step("step", step, key, i)
            return key

        @hf.workflow("job1")
        async def job1(ctx, key):
            return await ctx.step("step", step, key, 0)

        @hf.workflow("sleep")
        async def sleep(ctx, given):
            log.asleep(given["k"])
            from datetime import UTC, datetime

            await ctx.sleep("until", until=datetime.fromtimestamp(given["due"], UTC))
            log.woke(given["k"], given["due"])

        return hf

    def setup(self):
        check_requirements()

        async def go():
            async with self.make():
                pass

        asyncio.run(go())

    def worker(self):
        async def go():
            async with self.make() as hf, hf.worker(concurrency=self.opts["concurrency"]):
                self.ready()
                await asyncio.Event().wait()

        self.profiled(go)

    def profiled(self, go):
        import uvloop

        if not os.environ.get("HF_PROFILE"):
            uvloop.run(go())
            return
        import cProfile

        profile = cProfile.Profile()

        async def timed():
            task = asyncio.ensure_future(go())
            await asyncio.sleep(float(os.environ["HF_PROFILE"]))
            profile.disable()
            profile.dump_stats("/tmp/holdfast.prof")
            await task

        profile.enable()
        uvloop.run(timed())

    def open(self):
        import threading

        import uvloop

        self.loop = uvloop.new_event_loop()
        ready = threading.Event()

        async def go():
            self.hf = self.make()
            await self.hf.open()
            if self.opts["topology"] == "embedded":
                self.scope = self.hf.worker(concurrency=self.opts["concurrency"])
                await self.scope.__aenter__()
            ready.set()

        self.loop.run_until_complete(go())

    def submit(self, kind, keys, due=None):
        inputs = keys if due is None else [{"k": k, "due": due} for k in keys]

        async def go():
            for at in range(0, len(keys), 2000):
                part = slice(at, at + 2000)
                await self.hf.start_many(kind, inputs[part], business_keys=keys[part])

        self.loop.run_until_complete(go())

    def wait(self, kind, keys):
        async def go():
            while await self.hf.instances(status=["pending", "running", "waiting"], limit=1):
                await asyncio.sleep(0.01)

        self.loop.run_until_complete(go())

    def call(self, kind, key):
        async def go():
            handle = await self.hf.start(kind, key, business_key=key)
            await handle.result()

        self.loop.run_until_complete(go())

    def close(self):
        pass


if __name__ == "__main__":
    common.main(Bench)
