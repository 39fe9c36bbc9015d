"""One seed: its programs, its faults, its people; then everything heals, comes to rest, and is judged."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

import structlog

from holdfast import Holdfast
from holdfast.engine.journal import PARKED
from holdfast.worker.worker import Worker
from tests.simulate import charts, checks
from tests.simulate.loop import Process, SimLoop, Stalled, context_of
from tests.simulate.machine import Machine, Rates, drawn_ids
from tests.simulate.programs import DEPLOYS, SIGNAL, Author, Program, drawn_versions, shown
from tests.simulate.provider import Provider, Word, drawn_rates
from tests.support.postgres import memory_root

FEATURES = (
    "crashes", "freezes", "clean_stops", "store_faults", "operators", "forks", "abort", "signals", "charts", "children",
    "transactions", "races", "restart", "clock_forward", "clock_back", "mutation", "body_raises", "handler_raises",
    "refused", "slow", "hang", "slow_threads", *(f"deploy_{kind}" for kind in DEPLOYS), "undo_modes",
)  # fmt: skip
ALWAYS = ("late_signals",)  # kinds of judgement, in force unless they are switched off
ENDED = ("completed", "failed", "cancelled")
ROUNDS = 60


def drawn_features(seed: int) -> frozenset[str]:
    draw = Random(f"{seed}/features")
    return frozenset(name for name in FEATURES if draw.random() < 0.5) | frozenset(ALWAYS)


@dataclass
class Result:
    seed: int
    problems: list[str]
    features: tuple[str, ...]
    trace: str  # a digest of all that happened: the same seed on the same source gives the same
    counts: dict[str, int]


@dataclass
class Running:
    process: Process
    version: int
    hf: Holdfast | None = None
    worker: Worker | None = None
    stopping: bool = False


def _claims_no_more(worker: Worker) -> bool:
    return "claiming" in worker.down()


@dataclass
class Facts:
    """What the simulation knows from outside, for the checks."""

    acknowledged: list[str] = field(default_factory=list)
    signals: list[tuple[str, str]] = field(default_factory=list)  # instance, id: acknowledged
    healthy: list[str] = field(default_factory=list)
    deaths: int = 0
    exits: list[str] = field(default_factory=list)
    stopped_tasks: list[str] = field(default_factory=list)
    deployed: bool = False
    unrest: list[str] = field(default_factory=list)
    verify: list[str] = field(default_factory=list)


class Simulation:
    def __init__(self, seed: int, *, without: frozenset[str] = frozenset(), say: Callable[[str], None] | None = None):
        self.seed = seed
        self.say_aloud = say
        self._digest = sha256()
        self.features = drawn_features(seed) - without
        self.loop = SimLoop(Random(f"{seed}/schedule"))
        if say is None:  # of processes that died, nobody is left to ask for an exception
            self.loop.set_exception_handler(lambda _loop, _context: None)
        self.facts = Facts()
        self.workers: list[Running] = []
        self.handles: dict[str, Any] = {}
        self.healed = False
        self.version = 0
        self._signals = 0
        self._parked_tried: set[tuple[str, int]] = set()

    def say(self, text: str) -> None:
        line = f"{self.loop.time():9.3f} {text}"
        self._digest.update(line.encode())
        if self.say_aloud is not None:
            self.say_aloud(line)

    def has(self, feature: str) -> bool:
        return feature in self.features

    # -- one seed

    def run(self) -> Result:
        folder = tempfile.mkdtemp(prefix="holdfast-simulate-", dir=memory_root())
        logs = structlog.get_config()
        if self.say_aloud is None:
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self.url = f"sqlite:///{folder}/s.db"
        problems: list[str] = []
        try:
            self._draw_world()
            asyncio.set_event_loop(self.loop)
            with drawn_ids(Random(f"{self.seed}/ids")), self.machine.in_place():
                try:
                    self.loop.run_until_complete(self._play())
                except Stalled as error:
                    problems.append(f"stalled: {error}")
            problems += checks.all_of(self.url, self.facts, self.provider.ledger, self.machine.clock, self.features)
        finally:
            for one in self.workers:
                one.process.kill()
            asyncio.set_event_loop(None)
            structlog.configure(**logs)
            shutil.rmtree(folder, ignore_errors=True)
        for problem in problems:
            self.say(problem)
        counts = {
            "instances": len(self.facts.acknowledged), "calls": len(self.provider.ledger.calls),
            "deaths": self.facts.deaths, "callbacks": self.loop.steps, "seconds": round(self.loop.time()),
        }  # fmt: skip
        return Result(self.seed, problems, tuple(sorted(self.features)), self._digest.hexdigest(), counts)

    def _draw_world(self) -> None:
        rng = Random(f"{self.seed}/world")
        self.rates = Rates(rng, self.features)
        self.machine = Machine(self.url, self.loop, Random(f"{self.seed}/machine"), self.rates)
        rates, more = drawn_rates(rng, self.features)
        self.provider = Provider(str(self.seed), self.loop, rates, more)
        self.author = Author(self.provider, self.machine.clock)
        self.versions = drawn_versions(self.seed, self.features)
        self.chart = charts.drawn(rng) if self.has("charts") else None
        for number, programs in enumerate(self.versions):
            for program in programs:
                self.say(f"program {number} {shown(program)}")
        self.say(f"features {sorted(self.features)} rates {rates} store {self.rates.store}")

    async def _play(self) -> None:
        self.client = Holdfast(self.url)
        self._register(self.client, self.versions[0])
        store_rate, self.rates.store = self.rates.store, 0.0
        await self.machine.open(self.client, migrate=True)
        if self.chart is not None:
            await self.client.publish(self.chart)
        rng = Random(f"{self.seed}/play")
        self.rates.store = store_rate
        for number in range(rng.randint(1, 2)):
            self.launch(number)
        length = rng.uniform(15, 60)
        acts = [self._starts(Random(f"{self.seed}/starts"), length), self._supervise(Random(f"{self.seed}/supervise"))]
        actors: list[tuple[str, Callable[[Random], Awaitable[None]], int]] = [
            ("signals", self._signal, 6), ("operators", self._operate, 8), ("crashes", self._crash, 4),
            ("freezes", self._freeze, 2), ("clean_stops", self._stop_one, 2), ("clock_forward", self._forward, 1),
            ("clock_back", self._back, 2),
        ]  # fmt: skip
        for name, act, most in actors:
            if self.has(name):
                acts.append(self._now_and_then(Random(f"{self.seed}/{name}"), length, act, most))
        if any(self.has(f"deploy_{kind}") for kind in DEPLOYS):
            acts.append(self._deploys(Random(f"{self.seed}/deploy times"), length))
        tasks = [asyncio.create_task(act) for act in acts]
        await asyncio.sleep(length)
        await self._heal()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._rest()
        await self._close()

    def _register(self, hf: Holdfast, programs: list[Program]) -> None:
        for program in programs:
            self.author.register(hf, program)
        charts.register(hf, self.author)

    # -- workers

    def launch(self, number: int) -> Running:
        process = self.loop.process(f"worker {number}")
        one = Running(process, self.version)
        self.workers.append(one)
        rng = Random(f"{self.seed}/worker/{len(self.workers)}/{self.loop.time()}")
        self.loop.create_task(self._work(one, rng), context=context_of(process))
        self.say(f"{process.name} is launched, program {self.version}")
        return one

    async def _work(self, one: Running, rng: Random) -> None:
        one.hf = Holdfast(self.url)
        self._register(one.hf, self.versions[one.version])
        try:
            await self.machine.open(one.hf)
            one.worker = await self.machine.worker(
                one.hf, kept=rng.choice((0, 50)), seed=rng.randrange(1 << 30), poll_seconds=rng.choice((1.0, 4.0))
            )
        except Exception as error:
            self.say(f"{one.process.name} did not start: {error!r}")
            one.process.kill()

    def _count_dead(self) -> None:
        for one in list(self.workers):
            if one.process.dead:
                self.workers.remove(one)
                self.loop.bury(one.process)
                if one.process.exited is not None:
                    self.facts.exits.append(f"{one.process.name} ended by {one.process.exited!r}")
                if not one.stopping:
                    self.facts.deaths += 1
                self.say(f"{one.process.name} is gone")
            elif one.worker is not None and not one.stopping and _claims_no_more(one.worker):
                self.facts.stopped_tasks.append(f"the claiming task of {one.process.name} ended in silence")
                one.process.kill()

    async def _supervise(self, rng: Random) -> None:
        wanted = len(self.workers)
        while True:
            await asyncio.sleep(rng.uniform(0.2, 3.0))
            self._count_dead()
            while len(self.workers) < wanted:
                self.launch(rng.randrange(100, 1000))

    def _some_worker(self, rng: Random) -> Running | None:
        able = [one for one in self.workers if one.process.runs() and one.worker is not None and not one.stopping]
        return rng.choice(able) if able else None

    async def _crash(self, rng: Random) -> None:
        one = self._some_worker(rng)
        if one is not None:
            one.process.fuse = rng.randint(1, 120)
            self.say(f"{one.process.name} will be killed in {one.process.fuse} callbacks")

    async def _freeze(self, rng: Random) -> None:
        one = self._some_worker(rng)
        if one is None:
            return
        one.process.frozen = True
        seconds = rng.choice((2.0, 10.0, 20.0, 40.0))
        self.say(f"{one.process.name} is frozen for {seconds} s")
        self.loop.call_later(seconds, self._thaw, one.process)

    def _thaw(self, process: Process) -> None:
        process.frozen = False

    async def _stop_one(self, rng: Random) -> None:
        one = self._some_worker(rng)
        if one is not None:
            self._stop(one, rng.choice((0.0, 0.5, 3.0)))

    def _stop(self, one: Running, grace: float) -> None:
        one.stopping = True
        self.say(f"{one.process.name} is told to stop")
        self.loop.create_task(self._end(one, grace), context=context_of(one.process))

    async def _end(self, one: Running, grace: float) -> None:
        assert one.worker is not None and one.hf is not None
        try:
            await one.worker.stop(timeout=grace)
            await one.hf.close()
        except Exception as error:
            self.say(f"{one.process.name} did not stop: {error!r}")
            one.stopping = False  # then its end is a death like any other
        one.process.kill()

    async def _deploys(self, rng: Random, length: float) -> None:
        for _ in range(rng.randint(1, 2)):
            await asyncio.sleep(rng.uniform(1, length / 2))
            await self._deploy(1 - self.version, hard=rng.random() < 0.3)
            if self.has("operators") and rng.random() < 0.5:  # while the new code is on its way through the old past
                await asyncio.sleep(rng.uniform(1, 6))
                await self._cancel(self._some_handle(rng))

    async def _deploy(self, version: int, *, hard: bool = False) -> None:
        self.version = version
        self.facts.deployed = True
        self.say(f"deploy of program {version}")
        for one in list(self.workers):
            if hard or one.worker is None or one.process.frozen or one.stopping:
                one.process.kill()
            else:
                self._stop(one, 2.0)

    # -- people

    async def _now_and_then(
        self, rng: Random, length: float, act: Callable[[Random], Awaitable[None]], most: int
    ) -> None:
        for at in sorted(rng.uniform(0, length) for _ in range(rng.randint(1, most))):
            await asyncio.sleep(max(0.0, at - self.loop.time()))
            await act(rng)

    async def asks(self, what: str, asked: Awaitable[Any]) -> tuple[bool, Any]:
        """A person or a caller asks for something. True: it was acknowledged."""
        try:
            answer = await asked
        except Exception as error:
            self.say(f"{what}: refused, {type(error).__name__} {str(error)[:100]}")
            return False, None
        self.say(f"{what}: yes")
        return True, answer

    async def _starts(self, rng: Random, length: float) -> None:
        names = ("one", "two", "neighbour")
        wanted = [*names, *(rng.choice(names) for _ in range(rng.randint(0, 3)))]
        if self.chart is not None:
            wanted += [self.chart["id"]] * rng.randint(1, 2)
        rng.shuffle(wanted)
        for number, name in enumerate(wanted):
            yes, handle = await self.asks(
                f"start {name}", self.client.start(name, {"n": number}, business_key=f"k{number}")
            )
            if yes:
                self.handles[handle.id] = handle
                self.facts.acknowledged.append(handle.id)
                if name == "neighbour":
                    self.facts.healthy.append(handle.id)
            await asyncio.sleep(rng.uniform(0, length / 20))

    def _some_handle(self, rng: Random) -> Any:
        return self.handles[rng.choice(sorted(self.handles))] if self.handles else None

    async def _signal(self, rng: Random) -> None:
        handle = self._some_handle(rng)
        if handle is None:
            return
        await self.signal(handle)
        if rng.random() < 0.3:
            await self.signal(handle, again=True)

    async def signal(self, handle: Any, again: bool = False) -> None:
        self._signals += not again
        id_ = f"sig-{self._signals:04d}"
        yes, _ = await self.asks(
            f"signal {id_} to {handle.id[-6:]}", handle.signal(SIGNAL, {"id": id_, "me": handle.id}, id=id_)
        )
        if yes and (handle.id, id_) not in self.facts.signals:
            self.facts.signals.append((handle.id, id_))

    async def _operate(self, rng: Random) -> None:
        handle = self._some_handle(rng)
        if handle is None:
            return
        what = rng.choice(("resolve", "resolve", "cancel", "pause", "resume", "retry", "fork", "task"))
        short = handle.id[-6:]
        if what == "resolve":
            await self._settle(rng)
        elif what == "task":
            await self._tasks(rng)
        elif what == "cancel":
            await self._cancel(handle)
        elif what == "pause":
            await self.asks(f"pause {short}", handle.pause("look", actor="ann"))
        elif what == "resume":
            await self.asks(f"resume {short}", handle.resume("go on", actor="ann"))
        elif what == "retry":
            yes, new = await self.asks(f"retry {short}", handle.retry("now", actor="ann"))
            self._know(yes, new)
        elif what == "fork" and self.has("forks"):
            yes, new = await self.asks(f"fork {short}", handle.fork(reason="again", actor="ann"))
            self._know(yes, new)

    async def _cancel(self, handle: Any) -> None:
        if handle is not None and handle.id not in self.facts.healthy:
            await self.asks(f"cancel {handle.id[-6:]}", handle.cancel("enough", actor="ann"))

    def _know(self, yes: bool, handle: Any) -> None:
        if yes and handle.id not in self.handles:
            self.handles[handle.id] = handle
            self.facts.acknowledged.append(handle.id)

    async def _settle(self, rng: Random, second_person: str | None = None) -> None:
        """A person reads the provider's books and says what they say, sometimes in haste: a double is accepted."""
        yes, open_ = await self.asks("the desk", self.client.effects.list())
        for effect in open_ if yes else ():
            key = effect.idempotency_key
            booked = self.provider.ledger.booked(key)
            choice = "happened" if booked else "did_not_happen"
            if self.has("abort") and rng.random() < 0.3:
                choice = "abort"
            double = choice == "did_not_happen" and rng.random() < 0.1
            number = self.provider.next_number()
            yes, _ = await self.asks(
                f"{choice} of {effect.step} of {effect.instance_id[-6:]}",
                self.client.effects.resolve(
                    effect.id, choice, actor="ann", reason="read the books", accept_double=double,
                    second_person=second_person,
                    result=self.provider.receipts.get(key) if choice == "happened" else None,
                ),
            )  # fmt: skip
            if yes:
                word = Word(key, choice, self.loop.time(), number, double, effect.instance_id, effect.step)
                self.provider.ledger.words.append(word)

    async def _tasks(self, rng: Random) -> None:
        yes, open_ = await self.asks("tasks", self.client.tasks.list(type="HUMAN"))
        for task in open_ if yes else ():
            await self.asks(f"task {task.name}", self.client.tasks.complete(task.id, {"ok": True}, actor="ann"))

    async def _forward(self, rng: Random) -> None:
        seconds = rng.choice((5.0, 60.0, 900.0))
        self.say(f"the clock jumps {seconds} s ahead")
        self.provider.time_passed()
        self.machine.clock.step(seconds)

    async def _back(self, rng: Random) -> None:
        seconds = rng.uniform(0.1, 3.0)
        self.say(f"the clock is set back by {seconds:.3f} s")
        self.machine.clock.step(-seconds)

    # -- the end

    async def _heal(self) -> None:
        self.say("all faults end")
        self.healed = True
        self.rates.heal()
        self.provider.heal()
        for one in self.workers:
            one.process.frozen = False
            one.process.fuse = 0
        self._count_dead()
        while len(self.workers) < 1:
            self.launch(1)

    async def _rest(self) -> None:
        """Answer whatever waits for people until everything has ended, or stands parked under either program."""
        rng = Random(f"{self.seed}/rest")
        left = await self._rounds(rng)
        if left and self.facts.deployed:
            for version in (1 - self.version, self.version):
                await self._deploy(version)
                await asyncio.sleep(5)
                self._count_dead()
                self.launch(1)
                left = await self._rounds(rng)
                if not left:
                    break
        parked = any(str(view.waiting_on).startswith(PARKED) for view in left)
        for view in left:
            on = str(view.waiting_on)
            if not on.startswith(PARKED) and not (parked and "child" in on):  # a parent waits for a parked child
                self.facts.unrest.append(f"{view.workflow} {view.id[-6:]} is {view.status}, on {on}")

    async def _rounds(self, rng: Random) -> list[Any]:
        """What has not ended."""
        left: list[Any] = []
        for number in range(ROUNDS):
            await asyncio.sleep(15)
            self._count_dead()
            if not self.workers:
                self.launch(1)
            left = [view for view in await self.client.instances(limit=500) if view.status not in ENDED]
            moving = [
                view for view in left
                if not str(view.waiting_on).startswith(PARKED) or (view.id, self.version) not in self._parked_tried
            ]  # fmt: skip
            if not moving:
                break
            await self._settle(rng, "bob" if number > 3 else None)  # nothing is on its way any more, both can see that
            await self._tasks(rng)
            for view in moving:
                handle = self.client.instance(view.id)
                on = str(view.waiting_on)
                if on.startswith(PARKED):
                    self._parked_tried.add((view.id, self.version))
                    self.say(f"parked {view.id[-6:]}: {on}")
                    await self.asks(f"resume {view.id[-6:]}", handle.resume("mended", actor="ann"))
                elif on.startswith("paused") or view.workflow in ("approval", "reminders", "both"):
                    await self.asks(f"resume {view.id[-6:]}", handle.resume("go on", actor="ann"))
                elif "signal" in on:
                    await self.signal(handle)
        return left

    async def _close(self) -> None:
        for one in self.workers:
            if one.worker is not None:
                self._stop(one, 5.0)
        for _ in range(100):
            await asyncio.sleep(0.5)
            self._count_dead()
            if not self.workers:
                break
        verdict = await self.client.verify()
        self.facts.verify = [str(fault) for fault in verdict.faults]
        await self.client.close()
