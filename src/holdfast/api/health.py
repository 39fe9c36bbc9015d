"""What asks for nothing: is it alive, is it ready, its metrics, and its own description."""

from __future__ import annotations

import hmac
from typing import Any

from holdfast.api.endpoints import PUBLIC, Answer, Call, Endpoints, Reply
from holdfast.api.problems import Problem


async def livez(call: Call) -> Reply:
    """The process answers."""
    return Reply(200, {"status": "alive"})


async def readyz(call: Call) -> Reply:
    """Requests can be served: every database answers, the server is not stopping, and no part of it has stopped."""
    if call.doors.stopping.is_set() or call.doors.draining:
        raise Problem("overloaded", "this server is stopping")
    for service in call.doors.services():
        if down := service.down():
            raise Problem("overloaded", f"a part of this server has ended and is begun again: {', '.join(down)}")
        await service.store.fetch("read_clock" if service.store.dialect == "postgres" else "ping")
    return Reply(200, {"status": "ready"})


async def metrics(call: Call) -> Reply:
    """Prometheus metrics, of all tenants together: for the operator, with the metrics key. Open where none is set and
    the server listens on the loopback address, with no public address in front of it."""
    doors = call.doors
    if doors.metrics is None:
        raise Problem("not-found", "this server keeps no metrics")
    word = call.headers.get("authorization", "").partition(" ")[2].strip()
    key = doors.settings.metrics_key
    if not doors.open_metrics and not (key and hmac.compare_digest(key.encode(), word.encode())):
        raise Problem("unauthenticated", "the metrics are the operator's: send the server's metrics_key as a Bearer")
    return Reply(200, await doors.metrics.render(*doors.databases()), None, {}, doors.metrics.content_type)


async def openapi(call: Call) -> Reply:
    """This description."""
    return Reply(200, call.doors.described)


def declare(endpoints: Endpoints) -> None:
    status: dict[str, Any] = {"status": "alive"}
    endpoints.add(
        "GET /livez", capability=PUBLIC, tag="server", summary="Is it alive?",
        answers={200: Answer("It is.", dict[str, str], status)},
    )(livez)  # fmt: skip
    endpoints.add(
        "GET /readyz", capability=PUBLIC, tag="server", summary="Is it ready?",
        answers={200: Answer("It is.", dict[str, str], {"status": "ready"})}, problems=("overloaded", "unavailable"),
    )(readyz)  # fmt: skip
    endpoints.add(
        "GET /metrics", capability=PUBLIC, tag="server", summary="Metrics",
        answers={200: Answer("Prometheus text.", None, "holdfast_queue_depth 0", "text/plain")},
        problems=("unauthenticated", "not-found"),
    )(metrics)  # fmt: skip
    endpoints.add(
        "GET /openapi.json", capability=PUBLIC, tag="server", summary="This description as OpenAPI 3.1",
        answers={200: Answer("The document.", dict[str, Any], {"openapi": "3.1.0"})},
    )(openapi)  # fmt: skip
