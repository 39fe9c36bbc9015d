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
from contextlib import ExitStack, contextmanager
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
ALIKE = 20  # requests to an operation that takes nothing: they are all the same
OFTEN = (False, True, True, True)
CHECKS: list[Any] = [
    checks.status_code_conformance, checks.content_type_conformance, checks.response_headers_conformance,
    checks.response_schema_conformance, checks.negative_data_rejection,
]  # fmt: skip
# Headers that say where a request ends: with a wrong one it is none, and the HTTP server refuses it before us.
FRAMING = frozenset(("connection", "content-length", "expect", "te", "transfer-encoding", "upgrade"))
# A stream never ends, and pages for people are not described.
OPERATIONS = [endpoint.operation for endpoint in table() if not (endpoint.stream or endpoint.page)]


class Found(AssertionError):
    """What an operation did wrong, with the request that shows it."""


class Target:
    """A server, in the tenant of the key of `api`; `seeds` live in that tenant and are not the key's own."""

    def __init__(self, name: str, url: str, api: Api, seeds: Seeds) -> None:
        self.name = name
        self.url = url
        self.api = api
        self.seeds = seeds
        self.session = requests.Session()
        self.session.trust_env = False  # or it looks for proxies and a .netrc before each request
        self.session.headers["Authorization"] = f"Bearer {api.key}"
        self.statuses: dict[str, dict[int, int]] = {}


class Fuzzer:
    """Sends the same requests to every target: making one up costs more than answering it."""

    def __init__(self, *targets: Target) -> None:
        self.targets = targets
        self.schema = schemathesis.openapi.from_dict(targets[0].api.ok("GET /openapi.json"))
        self.endpoints = {endpoint.operation: endpoint for endpoint in table()}
        self.sent = 0

    def fuzz(
        self, endpoint: Endpoint, cases: int, number: int = 0, progress: Callable[[], None] = lambda: None
    ) -> None:
        """Raises Found with the smallest request that shows something."""
        if not varied(endpoint):
            cases = min(cases, ALIKE)
        operation = self.schema[endpoint.path][endpoint.method]
        for target in self.targets:
            target.seeds.grow()
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
                for target in self.targets:
                    self._aim(target, endpoint, case, live, fits, choice)
                    self._try(target, endpoint, case)
                progress()

            probe()

    @staticmethod
    def _aim(target: Target, endpoint: Endpoint, case: Any, live: bool, fits: bool, choice: int) -> None:
        """Let what is not meant to be wrong point at something real."""
        wrong = {place for place, part in case.meta.components.items() if part.mode.is_negative}
        known = target.seeds.newest(noun_of(endpoint.path)) if "{id}" in endpoint.path else []
        if live and known and ParameterLocation.PATH not in wrong:
            case.path_parameters = {"id": known[choice % len(known)]}
            if endpoint.path.endswith("/diff") and ParameterLocation.QUERY not in wrong:
                case.query["against"] = known[choice // 7 % len(known)]
        bodies = fitting_body(endpoint.operation, target.seeds)
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

    def _try(self, target: Target, endpoint: Endpoint, case: Any) -> None:
        self.sent += 1
        framed = [name for name in case.headers or () if name.lower() in FRAMING]
        for name in framed:
            del case.headers[name]
        response = case.call(
            base_url=target.url, session=target.session, timeout=TIMEOUT_SECONDS, allow_redirects=False
        )
        counted = target.statuses.setdefault(endpoint.operation, {})
        counted[response.status_code] = counted.get(response.status_code, 0) + 1
        where = f"{target.name}, {endpoint.operation}: {response.status_code}"
        if response.status_code >= 500:
            raise Found(f"{where} {response.text[:500]}\n{shown(case, response)}")
        # Too large is a refusal, too, whatever else was wrong; and a key that is left out is put back by the session.
        mended = response.status_code == 413 or (
            _spoils_headers(case) and (bool(framed) or "Authorization" not in case.headers)
        )
        wanted = [one for one in CHECKS if not (mended and one is checks.negative_data_rejection)]
        try:
            case.validate_response(response, checks=wanted)
        except (Failure, FailureGroup) as failure:
            found = failure.exceptions if isinstance(failure, FailureGroup) else [failure]
            words = "\n".join(f"{type(one).__name__}: {one}" for one in found)
            raise Found(f"{where}\n{words}\n{shown(case, response)}") from None


def _spoils_headers(case: Any) -> bool:
    return any(
        place == ParameterLocation.HEADER and part.mode.is_negative for place, part in case.meta.components.items()
    )


def varied(endpoint: Endpoint) -> bool:
    return bool(
        endpoint.body or endpoint.query or endpoint.form or endpoint.parameters or endpoint.if_match or endpoint.keyed
    )


def shown(case: Any, response: Any) -> str:
    request = response.request
    body = request.body if isinstance(request.body, (bytes, str)) else b""
    return f"{request.method} {quote(request.url, safe=':/?&=%')}\n{dict(request.headers)}\n{body[:2000]!r}"


def target_on(house: House, name: str, tenant: str) -> Target:
    house.work()
    url = house.serve()
    api = Api(url, house.key("admin", tenant))
    return Target(name, url, api, Seeds(api).plant())


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
    with ExitStack() as stack:
        targets = []
        for number, database in enumerate(options.database or ["sqlite", "postgres"]):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            house = stack.enter_context(house_on(database, folder))
            targets.append(target_on(house, database.partition(":")[0], f"fuzz-{number}"))
        fuzzer = Fuzzer(*targets)
        wanted = [fuzzer.endpoints[operation] for operation in OPERATIONS if options.only in operation]
        columns = (TextColumn("{task.description:<50}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns) as bar:
            task = bar.add_task("", total=options.cases * len(wanted))
            for number, endpoint in enumerate(wanted):
                bar.update(task, description=endpoint.operation[:50])
                try:
                    fuzzer.fuzz(endpoint, options.cases, options.seed, partial(bar.advance, task))
                except Found as found:
                    failed += 1
                    bar.console.print(str(found), markup=False, highlight=False)
                bar.update(task, completed=options.cases * (number + 1))
        for endpoint in wanted:
            for target in targets:
                counted = sorted(target.statuses.get(endpoint.operation, {}).items())
                print(f"{endpoint.operation:<50} {target.name:<10} {' '.join(f'{s}:{n}' for s, n in counted)}")
        print(f"{fuzzer.sent:,} requests, {failed} operations with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
