"""What Prometheus is told: counts of what was committed, and how the database stands when somebody asks.

Counters are fed from batches of turns after their commit, never from what was tried: what is counted is in a history.
Gauges are read from the store at a scrape, by statements that cannot hurt it, and kept for some seconds. One registry
belongs to one `Holdfast`, so several in a process do not add up. No label holds an id, and no metric has more than
`SERIES_LIMIT` series: what comes after those is counted as "other".
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from holdfast.engine import history as h

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from holdfast.app.service import Service
    from holdfast.engine.turns import Turn

log = structlog.get_logger("holdfast.metrics")
SERIES_LIMIT = 2_000
OTHER = "other"
GAUGE_SECONDS = 5.0  # for so long a scrape is answered from the one before
READ_SECONDS = 10.0  # a database that takes longer to say how it stands is not waited for
HEADS_LIMIT = 2_000  # queues, tenants and definitions in them with scheduled work that one look walks over
COUNT_LIMIT = 10_000  # rows that one look counts, all queues together: on SQLite each of them is looked up
LOOK_LIMIT = 2_000
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))

STEPS = {
    h.STEP_COMPLETED: "succeeded", h.STEP_FAILED: "failed", h.STEP_RETRIED: "retried",
    h.TRANSACTION_COMMITTED: "succeeded", h.TRANSACTION_FAILED: "failed", h.TRANSACTION_RETRIED: "retried",
    h.EFFECT_SUCCEEDED: "succeeded", h.EFFECT_FAILED: "failed", h.EFFECT_RETRIED: "retried",
    h.EFFECT_UNKNOWN: "unknown",
    h.COMPENSATION_COMPLETED: "compensated", h.COMPENSATION_RETRIED: "compensation_retried",
    h.COMPENSATION_FAILED: "compensation_failed", h.COMPENSATION_UNKNOWN: "unknown",
}  # fmt: skip
# A task that is an effect has both kinds of entries: of its end, the task's own is counted.
TASKS = {
    h.TASK_COMPLETED: "succeeded", h.TASK_FAILED: "failed", h.TASK_CANCELLED: "cancelled", h.TASK_SKIPPED: "skipped",
    h.TASK_RETRIED: "retried",
    h.EFFECT_RETRIED: "retried", h.EFFECT_UNKNOWN: "unknown",
}  # fmt: skip
ENDINGS = {h.INSTANCE_COMPLETED: "completed", h.INSTANCE_FAILED: "failed", h.INSTANCE_CANCELLED: "cancelled"}


class Gauges(NamedTuple):
    """How the database stands."""

    depths: dict[str, int]
    ages: dict[str, float]
    timer_lag: float
    dead_letters: int
    effects_unknown: int
    parked: int


class Counts:
    """One counter's series. `open`: how many of its labels, from the left, hold words of authors and clients."""

    def __init__(self, name: str, help_: str, labels: Sequence[str], open_: int) -> None:
        self.name, self.help, self.labels = name, help_, tuple(labels)
        self._others = (OTHER,) * open_
        self._open = open_
        self.series: dict[tuple[str, ...], int] = {}

    def add(self, labels: tuple[str, ...], count: int = 1) -> None:
        series = self.series
        found = series.get(labels)
        if found is None and len(series) >= SERIES_LIMIT:
            labels = self._others + labels[self._open :]
            found = series.get(labels)
        series[labels] = count if found is None else found + count

    def family(self) -> Metric:
        from prometheus_client.core import CounterMetricFamily  # only those who are scraped wait for it

        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for labels, count in self.series.items():
            family.add_metric(labels, count)
        return family


class Spread:
    """One histogram's series."""

    def __init__(self, name: str, help_: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name, self.help, self.bounds, self.labels = name, help_, tuple(bounds), tuple(labels)
        self.series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observe(self, value: float, labels: tuple[str, ...] = (), count: int = 1) -> None:
        found = self.series.get(labels)
        if found is None:
            if len(self.series) >= SERIES_LIMIT:
                labels = (OTHER,) * len(labels)
            found = self.series.setdefault(labels, ([0] * (len(self.bounds) + 1), [0.0]))
        found[0][bisect_left(self.bounds, value)] += count
        found[1][0] += value * count

    def family(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        for labels, (counts, total) in self.series.items():
            summed, buckets = 0, []
            for name, count in zip(names, counts, strict=True):
                summed += count
                buckets.append((name, float(summed)))
            family.add_metric(labels, buckets, total[0])
        return family


class Metrics:
    """The metrics of one `Holdfast`: `hf.metrics`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # `hf.sync` and a worker live on different threads
        self._started = Counts("holdfast_instances_started", "Instances whose first turn was taken", ["definition"], 1)
        self._restarted = Counts("holdfast_instances_restarted", "Epochs that ended in a restart", ["definition"], 1)
        self._ended = Counts("holdfast_instances_completed", "Instances that ended", ["definition", "status"], 1)
        self._steps = Counts(
            "holdfast_steps",
            "Attempts of steps, transactions, effects and compensations of code, by what came of them",
            ["definition", "step", "outcome"],
            2,
        )
        self._tasks = Counts("holdfast_tasks", "Attempts of tasks, by what came of them", ["type", "outcome"], 0)
        self._sizes = Spread("holdfast_commit_batch_size", "Turns that shared a commit", SIZES)
        self._seconds = Spread("holdfast_commit_seconds", "How long a batch took to be on disk", SECONDS)
        self._waits = Spread(
            "holdfast_queue_wait_seconds", "How long instances were due before they were claimed", WAITS, ["queue"]
        )
        self._requests = Spread(
            "holdfast_http_request_duration_seconds", "How long requests to the server took", SECONDS,
            ["route", "method", "status"],
        )  # fmt: skip
        self._gauges: Gauges | None = None
        self._load = (0, 0, 0)  # of the workers of this process, when they were last asked
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    # -- what is told

    def committed(self, batch: Sequence[tuple[Turn, Any]], seconds: float | None) -> None:
        """Turns that are on disk, each with the one who is told. `seconds`: None where it was no batch.

        This runs for every turn, so rows are counted first; what they mean is looked up once for all that are alike."""
        counts: dict[tuple[str, str, str], int] = {}
        tasks: list[tuple[str, str]] = []
        for turn, told in batch:
            rows = turn.history
            if not rows:
                continue
            try:
                execution = told.__self__  # a worker's turn is told to its execution, which knows its definition
                claimed = execution.claimed
            except AttributeError:
                continue
            definition = claimed.definition_key
            if execution.copied and rows[0][2] == 1:  # a fork's first turn: what it took over was counted before
                rows = [rows[0], *rows[1 + execution.copied :]]
            if claimed.kind == "code":
                for row in rows:
                    key = (definition, row[3], row[4])
                    counts[key] = counts.get(key, 0) + 1
                continue
            for row in rows:
                outcome = TASKS.get(row[3])
                if outcome is not None:
                    from holdfast.worker.tasks import type_of

                    tasks.append((type_of(execution, row[4]), outcome))
                elif row[3] in ENDINGS or row[3] == h.INSTANCE_STARTED:
                    key = (definition, row[3], row[4])
                    counts[key] = counts.get(key, 0) + 1
        with self._lock:
            for (definition, type_, name), count in counts.items():
                outcome = STEPS.get(type_)
                if outcome is not None:
                    self._steps.add((definition, step_name(name), outcome), count)
                elif type_ == h.INSTANCE_STARTED:
                    self._started.add((definition,), count)
                elif type_ == h.INSTANCE_RESTARTED:
                    self._restarted.add((definition,), count)
                elif type_ in ENDINGS:
                    self._ended.add((definition, ENDINGS[type_]), count)
            for labels in tasks:
                self._tasks.add(labels)
            if seconds is not None:
                self._sizes.observe(float(len(batch)))
                self._seconds.observe(seconds)

    def waited(self, queue: str, seconds: Sequence[float], at_once: int = 0) -> None:
        """How long those were due who were claimed together; and how many were claimed as they were started."""
        with self._lock:
            for one in seconds:
                self._waits.observe(one, (queue,))
            if at_once:
                self._waits.observe(0.0, (queue,), at_once)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request that was answered. `route`: the template of its path, never the path itself."""
        with self._lock:
            self._requests.observe(seconds, (route, method if method in METHODS else OTHER, str(status)))

    # -- what is asked

    @cached_property
    def registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry

        made = CollectorRegistry(auto_describe=False)
        made.register(self)  # it asks for `collect` alone
        return made

    @property
    def content_type(self) -> str:
        from prometheus_client import CONTENT_TYPE_LATEST

        return CONTENT_TYPE_LATEST

    async def render(self, *services: Service) -> bytes:
        """The exposition text, of the type `content_type`, with the gauges of these databases together. Where one does
        not answer, without them."""
        await self._look(services)
        loads = [worker.load() for service in services for worker in service.workers]
        self._load = (sum(one[0] for one in loads), sum(one[1] for one in loads), sum(one[2] for one in loads))
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            families = [
                each.family()
                for each in (
                    self._started,
                    self._restarted,
                    self._ended,
                    self._steps,
                    self._tasks,
                    self._sizes,
                    self._seconds,
                    self._waits,
                )
            ]
            families.append(self._requests.family())
        yield from families
        yield from _here(self._load)
        if self._gauges is not None:
            yield from _gauges(self._gauges)

    async def _look(self, services: Sequence[Service]) -> None:
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if self._read_at is not None and now < self._read_at + GAUGE_SECONDS:
                return
            try:
                async with asyncio.timeout(READ_SECONDS):
                    self._gauges = added([await read_gauges(service) for service in services])
            except Exception as error:  # a number from before would look like one of now
                self._gauges = None
                log.warning("metrics_not_read", error=repr(error))
            self._read_at = asyncio.get_running_loop().time()


async def read_gauges(service: Service) -> Gauges:
    store = service.store
    now = store.now()
    heads = [(queue, run_at) for queue, run_at in await store.fetch("queue_heads", heads=HEADS_LIMIT) if run_at]
    depths = {queue: 0 for queue, _ in heads[:SERIES_LIMIT]}
    ages = dict.fromkeys(depths, 0.0)
    late = [(queue, run_at) for queue, run_at in heads if run_at <= now]
    for queue, run_at in late:
        ages[queue] = max(ages[queue], (now - run_at) / 1_000_000)
    lag = 0.0
    if late:
        share = {"counted": max(COUNT_LIMIT // len(late), 10), "looked": max(LOOK_LIMIT // len(late), 1)}
        for queue, depth, slept in await store.fetch("queue_depths", heads=HEADS_LIMIT, now=now, **share):
            depths[queue] = depths.get(queue, 0) + depth
            lag = max(lag, 0.0 if slept is None else (now - slept) / 1_000_000)
    [(letters,)] = await store.fetch("count_open_dead_letters", limit=COUNT_LIMIT)
    [(unknown,)] = await store.fetch("count_unknown_effects", limit=COUNT_LIMIT)
    [(parked,)] = await store.fetch("count_parked", limit=COUNT_LIMIT)
    return Gauges(depths, ages, lag, letters, unknown, parked)


def added(found: Sequence[Gauges]) -> Gauges:
    """Of several databases: as many, as old and as late as all of them together."""
    depths: dict[str, int] = {}
    ages: dict[str, float] = {}
    for one in found:
        for queue, depth in one.depths.items():
            depths[queue] = depths.get(queue, 0) + depth
        for queue, age in one.ages.items():
            ages[queue] = max(ages.get(queue, 0.0), age)
    return Gauges(
        depths, ages, max((one.timer_lag for one in found), default=0.0), sum(one.dead_letters for one in found),
        sum(one.effects_unknown for one in found), sum(one.parked for one in found),
    )  # fmt: skip


def _here(load: tuple[int, int, int]) -> Iterable[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    busy, waiting, receipts = load
    return (
        GaugeMetricFamily("holdfast_threads_busy", "Threads of this process that run a sync handler", value=busy),
        GaugeMetricFamily("holdfast_threads_waiting", "Calls of sync handlers that wait for a thread", value=waiting),
        GaugeMetricFamily(
            "holdfast_evidence_waiting", "What effects came back with and the database has not taken", value=receipts
        ),
    )


def _gauges(found: Gauges) -> Iterable[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    depth = GaugeMetricFamily("holdfast_queue_depth", "Instances that are due and unclaimed", labels=["queue"])
    for queue, count in found.depths.items():
        depth.add_metric([queue], count)
    age = GaugeMetricFamily(
        "holdfast_queue_oldest_age_seconds", "How long the longest waiting of them is due", labels=["queue"]
    )
    for queue, seconds in found.ages.items():
        age.add_metric([queue], seconds)
    lag = "How late the most overdue instance is that slept until a time and is not awake yet"
    return (
        depth,
        age,
        GaugeMetricFamily("holdfast_timer_lag_seconds", lag, value=found.timer_lag),
        GaugeMetricFamily("holdfast_dead_letters_open", "Dead letters that are open", value=found.dead_letters),
        GaugeMetricFamily("holdfast_effects_unknown", "Effects of unknown outcome", value=found.effects_unknown),
        GaugeMetricFamily(
            "holdfast_instances_parked", "Instances that stand still until code or data is mended", value=found.parked
        ),
    )


def step_name(key: str) -> str:
    """A step's name without its occurrence (`#2`) and its `key=` (`.o-1`), which may be an id.

    A dot in the name itself cannot be told from one before a key, so a name ends at its first dot."""
    return key.partition("#")[0].partition(".")[0] or OTHER
