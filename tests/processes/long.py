"""The long runs behind the figures in RELIABILITY.md: `python -m tests.processes.long [what …]`.

Rounds of faults, each on a fresh database under a mixture of work, each ended by the auditor. Without arguments a
short round of everything; `--kills 2000` and its kin ask for more. Prints a progress line and a summary, and ends
with 1 if any round failed, whose seed and files it names. A round that came through is written to
tests/processes/came_through.jsonl, and counts in the next run on the same source, in any clone, so a run may be
interrupted; `--fresh` begins anew.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path

from tests.processes.fleet import Fleet, Process, wait_until
from tests.processes.mixture import Mixture
from tests.processes.proxy import Proxy
from tests.support.postgres import Cluster, Server
from tests.support.source import source_digest

CONCURRENCY = 25
COUNT = 100
PAUSE = 0.1
LEASE = 4.0
RESULTS = Path(__file__).with_name("came_through.jsonl")
PER_ROUND = {"kills": 20, "pauses": 5, "restarts": 5, "cuts": 100}


class Tally:
    """What happened so far, on one line."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.rounds = self.failed = self.fences = self.repeats = self.instances = 0
        self.began = time.monotonic()
        self.done: set[tuple[str, int]] = set()

    def write_down(self, source: str, name: str, seed: int, before: Tally) -> None:
        """What a round that came through has added, so that it need not be played again on this source."""
        added = {key: count - before.faults.get(key, 0) for key, count in self.faults.items()}
        words = {
            "source": source, "round": name, "seed": seed, "faults": {key: n for key, n in added.items() if n},
            "fences": self.fences - before.fences, "repeats": self.repeats - before.repeats,
            "instances": self.instances - before.instances,
        }  # fmt: skip
        # What came through on an older source goes: it says nothing of this one.
        lines = [line for line in _lines() if json.loads(line)["source"] == source]
        RESULTS.write_text("".join(f"{line}\n" for line in [*lines, json.dumps(words)]))

    def take_over(self, source: str) -> None:
        """Rounds that came through before on this very source."""
        for line in _lines():
            words = json.loads(line)
            if words["source"] == source and (words["round"], words["seed"]) not in self.done:
                self.done.add((words["round"], words["seed"]))
                self.rounds += 1
                for key, count in words["faults"].items():
                    self.faults[key] = self.faults.get(key, 0) + count
                for key in ("fences", "repeats", "instances"):
                    setattr(self, key, getattr(self, key) + words[key])
        if self.done:
            print(f"{len(self.done)} rounds came through before on source {source}")

    def fault(self, name: str, count: int = 1) -> None:
        self.faults[name] = self.faults.get(name, 0) + count
        self.show()

    def show(self) -> None:
        faults = ", ".join(f"{count} {name}" for name, count in self.faults.items())
        minutes = (time.monotonic() - self.began) / 60
        print(
            f"\r{minutes:6.1f} min  round {self.rounds + 1}  {self.instances} instances  {faults}  "
            f"{self.failed} failed rounds ",
            end="",
            flush=True,
        )

    def summary(self) -> str:
        faults = "\n".join(f"  {name:<24}{count:>8}" for name, count in self.faults.items())
        return (
            f"\n\nfaults:\n{faults}\nrounds {self.rounds}, instances {self.instances}, workers fenced {self.fences}, "
            f"steps run again {self.repeats}, failed rounds {self.failed}"
        )


def _lines() -> list[str]:
    return RESULTS.read_text().splitlines() if RESULTS.exists() else []


def moved_on(mixture: Mixture, chance: random.Random) -> None:
    """Wait until some work was done, or nothing is left."""
    seen, more = len(mixture.fleet.runs()), chance.randrange(1, 30)

    def moved() -> bool:
        return len(mixture.fleet.runs()) > seen + more or mixture.settled()

    mixture.fleet.wait_until(moved, "work goes on")


def kill_round(fleet: Fleet, tally: Tally, faults: int, chance: random.Random) -> Mixture:
    live = fleet.workers(2, concurrency=CONCURRENCY)
    mixture = Mixture(fleet, COUNT * 2, PAUSE)
    for _ in range(faults):
        moved_on(mixture, chance)
        if mixture.ended():
            break
        victim = live.pop(chance.randrange(len(live)))
        victim.kill()
        tally.fault(f"kill -9 ({'sqlite' if fleet.sqlite else 'postgres'})")
        live.append(replacement(fleet))
    return mixture


def replacement(fleet: Fleet) -> Process:
    process = Process(fleet, {"concurrency": CONCURRENCY})
    fleet.processes.append(process)
    return process.ready()


def pause_round(fleet: Fleet, tally: Tally, faults: int, chance: random.Random) -> Mixture:
    workers = fleet.workers(2, concurrency=CONCURRENCY, lease=LEASE)
    mixture = Mixture(fleet, COUNT * 2, PAUSE * 4)
    for _ in range(faults):
        moved_on(mixture, chance)
        stopped = chance.choice(workers)
        before = stopped.said("memory")[-1]["worker"]
        stopped.stop()
        fenced = "select 1 from holdfast.workers where id = %s and fenced_at is not null"
        wait_until(lambda before=before, sql=fenced: fleet.execute(sql, bytes.fromhex(before)), "it is fenced")
        stopped.wake()
        wait_until(lambda one=stopped, old=before: one.said("memory")[-1]["worker"] != old, "it comes back")
        tally.fault("pauses beyond the lease")
    return mixture


def restart_round(fleet: Fleet, tally: Tally, faults: int, chance: random.Random, cluster: Cluster) -> Mixture:
    live = fleet.workers(2, concurrency=CONCURRENCY)
    mixture = Mixture(fleet, COUNT, PAUSE)
    for _ in range(faults):
        moved_on(mixture, chance)
        cluster.stop("immediate")
        if chance.random() < 0.3:
            live.pop(chance.randrange(len(live))).kill()
            tally.fault("kill -9 while it is down")
        time.sleep(chance.random() * 3)
        cluster.start()
        tally.fault("database restarts")
        while len(live) < 2:
            live.append(replacement(fleet))
    return mixture


def cut_round(fleet: Fleet, tally: Tally, faults: int, chance: random.Random, proxy: Proxy) -> Mixture:
    fleet.workers(2, concurrency=CONCURRENCY // 3)
    proxy.loss = chance.choice([0.01, 0.03, 0.1])
    mixture = Mixture(fleet, COUNT * 2, PAUSE / 5)
    began = time.monotonic()
    wait_until(lambda: proxy.lost >= faults or mixture.ended() or time.monotonic() - began > 60, "replies are lost")
    proxy.loss = 0.0
    tally.fault("lost replies", proxy.lost)
    return mixture


@contextmanager
def fleet_on(url: str, logs: Path, worker_url: str | None = None) -> Iterator[Fleet]:
    fleet = Fleet(url, logs, worker_url=worker_url)
    try:
        yield fleet
    finally:
        fleet.close()


def run_round(
    source: str, name: str, seed: int, tally: Tally, work: Callable[[Path, random.Random], Iterator[Mixture]]
) -> None:
    before = copy(tally)
    before.faults = dict(tally.faults)
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-long-{name}-{seed}-"))
    try:
        for mixture in work(folder, random.Random(f"{name}{seed}")):
            found = mixture.finish()
            tally.fences += found["fences"]
            tally.repeats += found["repeats"]
            tally.instances += len(mixture.started)
        shutil.rmtree(folder, ignore_errors=True)
        tally.write_down(source, name, seed, before)
    except Exception:
        tally.failed += 1
        print(f"\nround {name} with --seed {seed} failed, its files are in {folder}:\n{traceback.format_exc()[-3000:]}")
    tally.rounds += 1
    tally.show()


def rounds(options: argparse.Namespace, source: str, server: Server, cluster: Cluster, tally: Tally) -> None:
    def on_sqlite(folder: Path, chance: random.Random) -> Iterator[Mixture]:
        with fleet_on(f"sqlite:///{folder / 'test.db'}", folder) as fleet:
            yield kill_round(fleet, tally, PER_ROUND["kills"], chance)

    def on_postgres(folder: Path, chance: random.Random) -> Iterator[Mixture]:
        with server.database() as url, fleet_on(url, folder) as fleet:
            yield kill_round(fleet, tally, PER_ROUND["kills"], chance)

    def paused(folder: Path, chance: random.Random) -> Iterator[Mixture]:
        with server.database() as url, fleet_on(url, folder) as fleet:
            yield pause_round(fleet, tally, PER_ROUND["pauses"], chance)

    def restarted(folder: Path, chance: random.Random) -> Iterator[Mixture]:
        with cluster.database() as url, fleet_on(url, folder) as fleet:
            yield restart_round(fleet, tally, PER_ROUND["restarts"], chance, cluster)

    def cut(folder: Path, chance: random.Random) -> Iterator[Mixture]:
        with server.database() as url, Proxy(url, seed=chance.randrange(1 << 30)) as proxy:
            with fleet_on(url, folder, proxy.url) as fleet:
                yield cut_round(fleet, tally, PER_ROUND["cuts"], chance, proxy)

    plan = [
        ("kills-sqlite", "kill -9 (sqlite)", options.kills, on_sqlite),
        ("kills-postgres", "kill -9 (postgres)", options.kills // 2, on_postgres),
        ("pauses", "pauses beyond the lease", options.pauses, paused),
        ("restarts", "database restarts", options.restarts, restarted),
        ("cuts", "lost replies", options.cuts, cut),
    ]
    for name, fault, wanted, work in plan:
        if options.what and name not in options.what:
            continue
        seed = options.seed
        while tally.faults.get(fault, 0) < wanted and tally.failed <= options.failures:
            if (name, seed) not in tally.done:
                run_round(source, name, seed, tally, work)
            seed += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="kills-sqlite, kills-postgres, pauses, restarts, cuts; all if none")
    parser.add_argument("--kills", type=int, default=40, help="on SQLite; half as many on PostgreSQL")
    parser.add_argument("--pauses", type=int, default=5)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--failures", type=int, default=0, help="how many failed rounds to go on after")
    parser.add_argument("--fresh", action="store_true", help="count no round that came through before")
    options = parser.parse_args()
    tally, source = Tally(), source_digest("processes")
    if not options.fresh:
        tally.take_over(source)
    with Cluster(durable=False) as server, Cluster() as cluster:
        rounds(options, source, server, cluster, tally)
    print(tally.summary())
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
