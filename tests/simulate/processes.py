"""The long run: the same drawn programs in real worker processes, which are killed, stopped and restarted otherwise.

`python -m tests.simulate --processes --minutes 10 [--postgres]`. Rounds, each on a database of its own. The provider is
a folder that all processes share: a ledger of whole lines, and a file for each receipt. What happens when is not drawn
but left to the machine, so a failing round is kept as a folder, not as a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from holdfast import Holdfast
from holdfast.engine.journal import PARKED
from tests.simulate import checks
from tests.simulate.programs import SIGNAL, Author, Program, drawn_versions, statements_of
from tests.simulate.provider import Call, Ledger, Provider, Word, drawn_rates
from tests.simulate.simulation import ENDED, Facts, drawn_features
from tests.support.auditor import Database, _read, audit
from tests.support.postgres import Cluster

ROOT = Path(__file__).resolve().parent.parent.parent
LEASE = 4.0
HURRY = 0.1  # of the time that programs sleep and wait in the simulation
INSTANCES = 12
FAULT_SECONDS = 12.0
ROUNDS = 120
SECONDED_AFTER = 15  # rounds of a second: by then every call of a round has ended or timed out


# -- the provider, in a folder


class Lines:
    """A file that takes whole lines from many processes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)

    def write(self, **words: Any) -> None:
        os.write(self._file, json.dumps(words).encode() + b"\n")

    def append(self, place: tuple[str, str]) -> None:  # in the place of `Ledger.did`
        self.write(did=place)

    def add(self, heard: tuple[str, str]) -> None:  # in the place of `Ledger.heard`
        self.write(heard=heard)


class FolderProvider(Provider):
    def __init__(self, folder: Path, rates: dict[str, float], more: dict[str, float]) -> None:
        super().__init__(folder.name, asyncio.get_running_loop(), rates, more)  # type: ignore[arg-type]
        self.folder = folder
        self.lines = Lines(folder / "ledger")
        self.ledger.did = self.lines  # type: ignore[assignment]
        self.ledger.heard = self.lines  # type: ignore[assignment]

    def next_number(self) -> int:
        return time.monotonic_ns()  # one clock for all processes of a machine

    def _note(self, info: Any, statement: dict[str, Any], request: Any) -> tuple[Call, Random]:
        call, _ = super()._note(info, statement, request)
        if (self.folder / "healed").exists():
            call.behaviour = "ok"
        else:
            call.behaviour, _ = self._draw(call.key, call.number, call.undoes)
        self.lines.write(
            call=[
                call.key,
                call.instance,
                call.step,
                call.mode,
                call.undo,
                call.undoes,
                call.request,
                call.at,
                call.number,
                call.behaviour,
            ]
        )
        return call, Random(call.number)

    def _book(self, call: Call) -> Any:
        found = self._receipt(call.key)
        if call.mode == "keyed" and found is not None:
            return found
        receipt = {"receipt": call.key[-6:]}
        self.lines.write(booked=call.number, **({"refund": [call.instance, call.undoes]} if call.undoes else {}))
        (self.folder / call.key).write_text(json.dumps(receipt))
        return receipt

    def _answer(self, call: Call) -> Any:
        self.receipts = {call.key: True} if self._receipt(call.key) else {}
        if call.behaviour == "not_applied" or (call.behaviour == "rejected" and not self.receipts):
            self.lines.write(not_applied=call.number)
        return super()._answer(call)

    def _receipt(self, key: str) -> Any:
        try:
            return json.loads((self.folder / key).read_text() or "null")
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def find(self, key: str) -> Any:
        return self._receipt(key)

    def refund(self, info: Any) -> None:
        self.lines.write(refund=[info.instance_id, info.step])


def read_ledger(folder: Path) -> Ledger:
    ledger = Ledger()
    by_number: dict[int, Call] = {}
    for line in (folder / "ledger").read_text().splitlines():
        for kind, what in json.loads(line).items():
            if kind == "call":
                call = Call(*what)
                by_number[call.number] = call
                ledger.calls.append(call)
            elif kind == "booked":
                by_number[what].booked_at = by_number[what].at
            elif kind == "not_applied":
                by_number[what].not_applied = True
            elif kind == "refund":
                ledger.refunds.append(tuple(what))
            elif kind == "did":
                ledger.did.append(tuple(what))
            elif kind == "heard":
                ledger.heard.add(tuple(what))
    return ledger


# -- a worker


def hurried(program: Program) -> Program:
    for statement in statements_of(program.body):
        word = "timeout" if statement["k"] == "wait" else "seconds"
        if statement.get(word):
            statement[word] *= HURRY
    return program


async def work(url: str, folder: Path, seed: int, version: int, features: frozenset[str]) -> None:
    hf = Holdfast(url)
    provider = FolderProvider(folder, *drawn_rates(Random(f"{seed}/rates"), features))
    author = Author(provider, lambda: time.time_ns() // 1000)
    for program in drawn_versions(seed, features)[version]:
        author.register(hf, hurried(program))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with hf, hf.worker(poll_seconds=0.2, **({"lease": LEASE} if url.startswith("postgres") else {})):
        await stop.wait()


class Fleet:
    def __init__(self, url: str, folder: Path, seed: int, features: frozenset[str]) -> None:
        self.url, self.folder, self.seed, self.features = url, folder, seed, features
        self.version = 0
        self.running: list[subprocess.Popen[bytes]] = []
        self.all: list[subprocess.Popen[bytes]] = []
        self.tally = {"kill -9": 0, "SIGSTOP": 0, "clean restart": 0, "deploy": 0}

    def launch(self) -> None:
        with (self.folder / "output").open("ab") as out:
            one = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.simulate.processes", self.url, str(self.folder), str(self.seed),
                    str(self.version), ",".join(sorted(self.features)),
                ],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=ROOT,
            )  # fmt: skip
        self.running.append(one)
        self.all.append(one)

    def mend(self, wanted: int = 2) -> None:
        self.running = [one for one in self.running if one.poll() is None]
        while len(self.running) < wanted:
            self.launch()

    async def meddle(self, rng: Random) -> None:
        self.mend()
        one = rng.choice(self.running)
        what = rng.choice(tuple(self.tally))
        self.tally[what] += 1
        if what == "kill -9":
            one.kill()
        elif what == "SIGSTOP":
            one.send_signal(signal.SIGSTOP)
            await asyncio.sleep(rng.choice((0.5, LEASE + 2)))
            one.send_signal(signal.SIGCONT)
        elif what == "clean restart":
            one.terminate()
        else:
            self.version = 1 - self.version if any(f.startswith("deploy_") for f in self.features) else self.version
            for other in self.running:
                other.terminate()

    def close(self) -> None:
        for one in self.all:
            if one.poll() is None:
                one.kill()
            one.wait()


# -- a round


class Round:
    def __init__(self, url: str, folder: Path, seed: int, without: frozenset[str]) -> None:
        self.url, self.folder, self.seed = url, folder, seed
        off = {"charts", "restart"} | ({"transactions"} if url.startswith("postgres") else set())
        self.features = drawn_features(seed) - without - off
        self.fleet = Fleet(url, folder, seed, self.features)
        self.facts = Facts()
        self.words: list[Word] = []
        self._signals = 0

    async def play(self) -> list[str]:
        (self.folder / "ledger").touch()
        hf = Holdfast(self.url)
        author = Author(FolderProvider(self.folder, {}, {}), lambda: time.time_ns() // 1000)
        for program in drawn_versions(self.seed, self.features)[0]:
            author.register(hf, program)
        rng = Random(f"{self.seed}/round")
        async with hf:
            self.fleet.mend()
            try:
                await self._faults(hf, rng)
                await self._rest(hf, rng)
            finally:
                self.fleet.close()
            self.facts.verify = [str(fault) for fault in (await hf.verify()).faults]
        return self._judge()

    async def _faults(self, hf: Holdfast, rng: Random) -> None:
        for number in range(INSTANCES):
            name = rng.choice(("one", "two", "neighbour"))
            handle = await hf.start(name, {"n": number}, business_key=f"k{number}")
            self.facts.acknowledged.append(handle.id)
            if name == "neighbour":
                self.facts.healthy.append(handle.id)
        began = time.monotonic()
        while time.monotonic() - began < FAULT_SECONDS:
            await asyncio.sleep(rng.uniform(0.3, 2.0))
            await self.fleet.meddle(rng)
            handle = hf.instance(rng.choice(self.facts.acknowledged))
            if "signals" in self.features:
                await self._signal(handle)
            if "operators" in self.features and rng.random() < 0.4 and handle.id not in self.facts.healthy:
                with suppress(Exception):
                    await rng.choice((handle.cancel, handle.pause, handle.resume))("a person says so", actor="ann")

    async def _signal(self, handle: Any) -> None:
        self._signals += 1
        id_ = f"sig-{self._signals:04d}"
        with suppress(Exception):
            await handle.signal(SIGNAL, {"id": id_}, id=id_)
            self.facts.signals.append((handle.id, id_))

    async def _rest(self, hf: Holdfast, rng: Random) -> None:
        (self.folder / "healed").touch()
        self.facts.deployed = any(name.startswith("deploy_") for name in self.features)
        resumed: set[str] = set()
        for number in range(ROUNDS):
            await asyncio.sleep(1.0)
            self.fleet.mend()
            left = [view for view in await hf.instances(limit=500) if view.status not in ENDED]
            moving = [v for v in left if not str(v.waiting_on).startswith(PARKED) or v.id not in resumed]
            parked = len(moving) < len(left)
            if not [v for v in moving if not (parked and "child" in str(v.waiting_on))]:
                return
            await self._settle(hf, "bob" if number > SECONDED_AFTER else None)
            for view in moving:
                handle, on = hf.instance(view.id), str(view.waiting_on)
                if on.startswith((PARKED, "paused")):
                    if on.startswith(PARKED):
                        resumed.add(view.id)
                    with suppress(Exception):
                        await handle.resume("go on", actor="ann")
                elif "signal" in on:
                    await self._signal(handle)
        self.facts.unrest += [f"{v.workflow} {v.id} is {v.status}, on {v.waiting_on}" for v in moving]

    async def _settle(self, hf: Holdfast, second_person: str | None) -> None:
        """A call whose worker lives may be made again once two people agree: nothing hangs that long any more."""
        booked = {call.key for call in read_ledger(self.folder).calls if call.booked_at is not None}
        for effect in await hf.effects.list():
            key = effect.idempotency_key
            choice = "happened" if key in booked else "did_not_happen"
            number = time.monotonic_ns()
            with suppress(Exception):
                await hf.effects.resolve(
                    effect.id, choice, actor="ann", reason="read the books", second_person=second_person,
                    result={"receipt": key[-6:]} if choice == "happened" else None,
                )  # fmt: skip
                self.words.append(Word(key, choice, 0.0, number, False, effect.instance_id, effect.step))

    def _judge(self) -> list[str]:
        ledger = read_ledger(self.folder)
        ledger.words = self.words
        self.facts.deaths = self.fleet.tally["kill -9"] + self.fleet.tally["SIGSTOP"]
        database = Database(_read(self.url))
        keys = [call.key for call in ledger.calls]
        found = [
            f"audit {violation}"
            for violation in audit(self.url, provider_calls=keys, acknowledged=self.facts.acknowledged)
            if not checks.excused(database, violation)
        ]
        found += [f"verify: {fault}" for fault in self.facts.verify] + [f"unrest: {text}" for text in self.facts.unrest]
        for check in (checks.calls, checks.undone, checks.forgotten, checks.signals, checks.endings):
            found += check(database, self.facts, ledger)
        return found


def long_run(minutes: float, without: frozenset[str], *, postgres: bool, first: int) -> int:
    """Rounds until the time is over; the folder of a round that failed stays."""
    began, number, failed = time.monotonic(), 0, 0
    tally: dict[str, int] = {}
    cluster = Cluster() if postgres else None
    if cluster is not None:
        cluster.start()
    try:
        while time.monotonic() - began < minutes * 60:
            seed = first + number
            folder = Path(tempfile.mkdtemp(prefix=f"holdfast-simulate-{seed}-"))
            url = cluster.dsn(cluster.create_database()) if cluster is not None else f"sqlite:///{folder / 's.db'}"
            one = Round(url, folder, seed, without)
            found = asyncio.run(one.play())
            number, failed = number + 1, failed + bool(found)
            for what, count in one.fleet.tally.items():
                tally[what] = tally.get(what, 0) + count
            said = f", {found[0][:160]} ({len(found)} in all), {folder}" if found else ""
            print(
                f"{(time.monotonic() - began) / 60:5.1f} min  round {number}, seed {seed}: {len(found)} problems{said}",
                flush=True,
            )
    finally:
        if cluster is not None:
            cluster.remove()
    faults = ", ".join(f"{count} {what}" for what, count in tally.items())
    print(f"{number} rounds, {number * INSTANCES} instances, {faults}; {failed} failed rounds")
    return 1 if failed else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "folder", "seed", "version", "features"):
        parser.add_argument(name)
    given = parser.parse_args()
    features = frozenset(filter(None, given.features.split(",")))
    asyncio.run(work(given.url, Path(given.folder), int(given.seed), int(given.version), features))


if __name__ == "__main__":
    main()
