"""Requests that nobody thought of, to every operation of /openapi.json: `python -m tests.api.fuzz --cases 5000`.

Schemathesis makes them from the description: half fit it, half break it somewhere. Half of those with an id in their
path get one that lives, and some of the bodies are ones that mean something, so that they come further than a 404.
Whatever is sent: no 5xx, no status, header or content type that is not described, every answer fits its schema, and
nothing is accepted that the description forbids.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from holdfast.api.endpoints import Endpoint
from holdfast.api.server import table
from tests.api.seeds import Seeds, fitting_body, noun_of
from tests.api.support import Api, House
from tests.support.postgres import Cluster

TIMEOUT_SECONDS = 60
OFTEN = (False, True, True, True)
CHECKS: list[Any] = [
    checks.status_code_conformance, checks.content_type_conformance, checks.response_headers_conformance,
    checks.response_schema_conformance, checks.negative_data_rejection,
]  # fmt: skip
TAGS = sorted({endpoint.tag for endpoint in table()})


class Found(AssertionError):
    """What an operation did wrong, with the request that shows it."""


class Fuzzer:
    """Fuzzes the server at `api`, in the tenant of its key; `seeds` live in that tenant and are not the key's own."""

    def __init__(self, url: str, api: Api, seeds: Seeds) -> None:
        self.url = url
        self.seeds = seeds
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {api.key}"
        self.document = api.ok("GET /openapi.json")
        self.schema = schemathesis.openapi.from_dict(self.document)
        self.endpoints = {endpoint.operation: endpoint for endpoint in table()}
        self.sent = 0
        self.statuses: dict[str, dict[int, int]] = {}

    def operations(self, tag: str | None = None) -> list[Endpoint]:
        """All but the streams, which never end."""
        return [e for e in self.endpoints.values() if not e.stream and tag in (None, e.tag)]

    def fuzz(
        self, endpoint: Endpoint, cases: int, number: int = 0, progress: Callable[[], None] = lambda: None
    ) -> None:
        """Raises Found with the smallest request that shows something."""
        operation = self.schema[endpoint.path][endpoint.method]
        self.seeds.grow()
        modes = [GenerationMode.POSITIVE]
        if endpoint.body is not None or endpoint.query is not None or endpoint.form:
            modes.append(GenerationMode.NEGATIVE)
        for mode in modes:

            @seed(number)
            @settings(
                max_examples=max(1, cases // len(modes)),
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink],
                report_multiple_bugs=False,
                print_blob=False,
            )
            @given(
                case=operation.as_strategy(generation_mode=mode), live=st.sampled_from(OFTEN),
                fits=st.sampled_from(OFTEN), choice=st.integers(0, 1000),
            )  # fmt: skip
            def probe(case: Any, live: bool, fits: bool, choice: int) -> None:
                self._aim(endpoint, case, live, fits, choice)
                self._try(endpoint, case)
                progress()

            probe()

    def _aim(self, endpoint: Endpoint, case: Any, live: bool, fits: bool, choice: int) -> None:
        """Let what is not meant to be wrong point at something real."""
        wrong = {place for place, part in case.meta.components.items() if part.mode.is_negative}
        known = self.seeds.newest(noun_of(endpoint.path)) if "{id}" in endpoint.path else []
        if live and known and ParameterLocation.PATH not in wrong:
            case.path_parameters = {"id": known[choice % len(known)]}
        bodies = fitting_body(endpoint.operation, self.seeds)
        if fits and bodies and endpoint.body is not None and ParameterLocation.BODY not in wrong:
            case.body = copy.deepcopy(bodies[choice % len(bodies)])
        if ParameterLocation.HEADER in wrong:
            return
        if endpoint.prefer:  # nobody waits a minute for a fuzzer
            case.headers["Prefer"] = "wait=0"
        if endpoint.if_match and choice % 3:
            case.headers["If-Match"] = "*" if choice % 3 == 1 else f'"{choice % 4}"'
            if endpoint.if_match == "optional" and choice % 2:
                case.headers.pop("If-Match")

    def _try(self, endpoint: Endpoint, case: Any) -> None:
        self.sent += 1
        response = case.call(base_url=self.url, session=self.session, timeout=TIMEOUT_SECONDS, allow_redirects=False)
        counted = self.statuses.setdefault(endpoint.operation, {})
        counted[response.status_code] = counted.get(response.status_code, 0) + 1
        if response.status_code >= 500:
            raise Found(f"{endpoint.operation}: {response.status_code} {response.text[:500]}\n{shown(case, response)}")
        try:
            case.validate_response(response, checks=CHECKS)
        except (Failure, FailureGroup) as failure:
            found = failure.exceptions if isinstance(failure, FailureGroup) else [failure]
            words = "\n".join(f"{type(one).__name__}: {one}" for one in found)
            raise Found(f"{endpoint.operation}: {response.status_code}\n{words}\n{shown(case, response)}") from None


def shown(case: Any, response: Any) -> str:
    request = response.request
    body = request.body if isinstance(request.body, (bytes, str)) else b""
    return f"{request.method} {quote(request.url, safe=':/?&=%')}\n{dict(request.headers)}\n{body[:2000]!r}"


def fuzzer_of(house: House, url: str, tenant: str) -> Fuzzer:
    return Fuzzer(url, Api(url, house.key("admin", tenant)), Seeds(Api(url, house.key("admin", tenant))).plant())


@contextmanager
def house_on(database: str, folder: Path) -> Iterator[House]:
    """A house on "sqlite", on "postgres" (a private one), or on the database of a URL."""
    if database == "sqlite":
        database = f"sqlite:///{folder / 'fuzz.db'}"
    if database == "postgres":
        with Cluster(durable=False) as cluster, cluster.database() as url, house_on(url, folder) as house:
            yield house
        return
    house = House(database, folder)
    try:
        yield house
    finally:
        house.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", action="append", help="sqlite, postgres or a URL; several times for several")
    parser.add_argument("--cases", type=int, default=5000, help="for each operation")
    parser.add_argument("--only", default="", help="operations whose name holds this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    for database in options.database or ["sqlite", "postgres"]:
        with tempfile.TemporaryDirectory() as folder, house_on(database, Path(folder)) as house:
            house.work()
            fuzzer = fuzzer_of(house, house.serve(), "fuzz")
            wanted = [one for one in fuzzer.operations() if options.only in one.operation]
            columns = (TextColumn("{task.description:<50}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns) as bar:
                task = bar.add_task(database, total=options.cases * len(wanted))
                for number, endpoint in enumerate(wanted):
                    bar.update(task, description=f"{database.partition(':')[0]} {endpoint.operation}"[:50])
                    try:
                        fuzzer.fuzz(endpoint, options.cases, options.seed, partial(bar.advance, task))
                    except Found as found:
                        failed += 1
                        bar.console.print(str(found), markup=False, highlight=False)
                    bar.update(task, completed=options.cases * (number + 1))
            for operation, counted in fuzzer.statuses.items():
                print(f"{operation:<55} {' '.join(f'{s}:{n}' for s, n in sorted(counted.items()))}")
            print(f"{database}: {fuzzer.sent:,} requests, {failed} operations with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
