"""`holdfast replay`: what the code at hand would make of the instances that live, before it is deployed."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import redirect_stdout
from typing import Any

import click
import msgspec

from holdfast import BadInput, Holdfast, InstanceNotFound, Rehearsed
from holdfast.app import instances, rehearsal
from holdfast.app.registry import OURS
from holdfast.app.rehearsal import BAD, Stored
from holdfast.cli.app import Place, opened, place_options, run
from holdfast.cli.finding import STATUSES
from holdfast.cli.output import WHOLE_MAX, Output, bar, hint, notice, output_option, show_rows
from holdfast.cli.refusals import FAILED
from holdfast.cli.time_limit import within
from holdfast.engine import ids
from holdfast.engine.moments import micros
from holdfast.worker.rehearsal import rehearse_here, told

PAGE = 500
NAMED = 3  # ids in one line of the table
COLUMNS = ("verdict", "instances", "workflow", "version", "why", "such_as")
WORDS = {
    "goes_on": "go on", "ends": "end", "waits_for_person": "wait for a person", "parked": "would be parked",
    "unknown": "would be left alone", "not_replayed": "could not be replayed",
}  # fmt: skip
# What differs from one instance to the next though the reason is the same: arguments, occurrences, keys of branches.
OWN = re.compile(r"(with (?:the )?arguments ).*|(?<=#)\d+|(?<=\w\.)[^'.]+(?=')", re.S)
GROUPS_MAX = 500
OTHERS = "other reasons, which -o jsonl names"
Named = tuple[str, bytes]  # an instance: its tenant and its id


class Group(msgspec.Struct):
    """Instances of one workflow with one verdict for one reason; `why` is that of the first."""

    verdict: str
    workflow: str
    version: int
    why: str
    instances: int = 0
    such_as: list[str] = msgspec.field(default_factory=list)


class Findings:
    """What was found so far: counts and groups, never the instances themselves."""

    def __init__(self) -> None:
        self.says_tenants = False  # beside each id: there are several
        self.counts: Counter[str] = Counter()
        self.groups: dict[tuple[str, str, int, str], Group] = {}

    def add(self, one: Rehearsed) -> None:
        self.counts[one.verdict] += 1
        reason, why = OWN.sub(lambda found: (found[1] or "") + "…", one.why), one.why
        if (one.verdict, one.workflow, one.version, reason) not in self.groups and len(self.groups) >= GROUPS_MAX:
            reason = why = OTHERS
        key = (one.verdict, one.workflow, one.version, reason)
        group = self.groups.setdefault(key, Group(one.verdict, one.workflow, one.version, why))
        group.instances += 1
        if len(group.such_as) < NAMED:
            group.such_as.append(f"{one.id} ({one.tenant_id})" if self.says_tenants else one.id)

    def rows(self) -> list[dict[str, Any]]:
        """The worst first, then the largest group."""
        worst = list(WORDS)[::-1]
        groups = sorted(self.groups.values(), key=lambda group: (worst.index(group.verdict), -group.instances))
        return [msgspec.structs.asdict(group) | {"such_as": " ".join(group.such_as)} for group in groups]

    def summary(self) -> str:
        said = [f"{self.counts[verdict]:,} {words}" for verdict, words in WORDS.items() if self.counts[verdict]]
        return ", ".join(said) or "there is nothing to replay"


@click.command()
@click.option(
    "--status", type=click.Choice(["living", *STATUSES]), default="living", show_default=True,
    help="Those that have not ended, or those of one status.",
)  # fmt: skip
@click.option(
    "--tenant", envvar="HOLDFAST_TENANT", show_default="all of them", help="Only the instances of one tenant."
)
@click.option("--workflow", metavar="NAME", help="Only those of one workflow or chart.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="N of them, drawn at random.")
@click.option("--seed", type=int, help="With --sample: the same number draws the same ones.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True,
    help="Seconds that the body of one instance may take.",
)  # fmt: skip
@place_options
@output_option
def replay(
    status: str, tenant: str | None, workflow: str | None, sample: int | None, seed: int | None, timeout: float,
    place: Place, output: Output,
) -> None:  # fmt: skip
    """Say who would go on and who would be parked if the app's code were deployed; changes nothing.

    Each instance's history is replayed against the code of --app: its body runs as far as the history reaches, no
    handler is called, nothing is written. The table has a line for each reason; -o json and jsonl have one for each
    instance. Exit code 1 if one would be parked, or left alone because the app does not have its workflow."""
    if seed is not None and sample is None:
        raise click.UsageError("--seed goes with --sample")
    statuses = list(instances.LIVE) if status == "living" else [status]
    hf = place.load()[1]
    findings, found = Findings(), list[Rehearsed]()

    def take(one: Rehearsed) -> None:
        findings.add(one)
        if output == "jsonl":
            show_rows([one], (), output, empty="")
        elif output == "json":
            found.append(one)

    async def whole() -> tuple[int, int]:
        async with opened(hf, migrate=False):
            with bar("replaying") as update:
                tenants = await rehearsal.tenants(hf.service) if tenant is None else [tenant]
                findings.says_tenants = len(tenants) > 1
                return await _replay_all(hf, tenants, statuses, workflow, (sample, seed), timeout, take, update)

    done, total = run(whole())
    if output == "table":
        show_rows(findings.rows(), COLUMNS, output, empty="nothing to replay", cell_max=WHOLE_MAX)
    elif output == "json":
        show_rows(found, (), output, empty="")
    which = f"a sample of {done:,} of {total:,} instances" if done < total else f"{done:,} instances"
    notice(f"{which}: {findings.summary()}")
    if any(verdict in findings.counts for verdict in BAD):
        hint("nothing was changed; `-o jsonl` names each of them")
        raise click.exceptions.Exit(FAILED)


def _is_known(hf: Holdfast, workflow: str) -> bool:
    """A mistyped name finds nothing to replay, which must not look like good news."""
    return hf.registry.has(workflow) or hf.service.charts.is_known_to_anybody(workflow)


async def _replay_all(
    hf: Holdfast, tenants: list[str], statuses: list[str], workflow: str | None, sample: tuple[int | None, int | None],
    timeout: float, take: Callable[[Rehearsed], None], update: Callable[[int, int], None] | None,
) -> tuple[int, int]:  # fmt: skip
    """How many were replayed, and of how many. One at a time: neither instances nor histories pile up."""
    service = hf.service
    await service.charts.refresh()
    total = sum([await rehearsal.count(service, tenant, statuses, workflow) for tenant in tenants])
    if not total and workflow is not None and not _is_known(hf, workflow):
        raise BadInput(f"--workflow is {workflow!r}: the app has no such workflow, and no instance is of it")
    ids_ = _ids(hf, tenants, statuses, workflow)
    if sample[0] is not None:
        ids_ = _drawn(ids_, sample[0], random.Random(sample[1]))
    done = 0
    async for tenant, id_ in ids_:
        try:
            stored = await rehearsal.read(service, tenant, id_)
        except InstanceNotFound:
            continue
        take(_replayed(hf, stored, timeout))
        done += 1
        if update is not None:
            update(done, total if sample[0] is None else min(total, sample[0]))
    return done, max(total, done)


async def _ids(hf: Holdfast, tenants: list[str], statuses: list[str], workflow: str | None) -> AsyncIterator[Named]:
    """One tenant after the other, newest first, a page at a time. What is started meanwhile is not among them."""
    for tenant in tenants:
        edge = instances.FAR_AHEAD
        while True:
            page = await instances.list_instances(
                hf.service, tenant, status=statuses, key=workflow, limit=PAGE, before=edge, most=0
            )
            for one in page:
                if not one.workflow.startswith(OURS):
                    yield tenant, ids.parse("ins", one.id)
            if len(page) < PAGE:
                break
            edge = (micros(page[-1].created_at), ids.parse("ins", page[-1].id))


async def _drawn(all_of: AsyncIterator[Named], count: int, entropy: random.Random) -> AsyncIterator[Named]:
    """Each with the same chance, however many there are, and never more than `count` in memory."""
    kept: list[Named] = []
    number = 0
    async for named in all_of:
        number += 1
        if len(kept) < count:
            kept.append(named)
        elif (place := entropy.randrange(number)) < count:
            kept[place] = named
    for named in kept:
        yield named


def _replayed(hf: Holdfast, stored: Stored, seconds: float) -> Rehearsed:
    """What a body prints does not belong into the answer, and one that never ends must not stop the others."""
    with redirect_stdout(sys.stderr):
        found = within(seconds, lambda: rehearse_here(hf.service, stored))
    words = f"its body ran for {seconds:g} s and asked for nothing: it would bring a worker to a standstill"
    return told(stored, "not_replayed", words) if found is None else found
