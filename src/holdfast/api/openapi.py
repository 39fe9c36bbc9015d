"""The API's own description as OpenAPI 3.1, made from the table of endpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.api.endpoints import ANYONE, PUBLIC, Answer, Endpoint
from holdfast.api.problems import MEDIA_TYPE, PROBLEMS, ProblemBody, example
from holdfast.version import __version__

TAGS = {
    "definitions": "What instances are instances of: published charts, and the code workflows of the server's app.",
    "instances": "Living executions: start, tell, read, stop and go on.",
    "tasks": "What instances wait for, and what people do with it.",
    "effects": "What touched the outside world, and the desk for what nobody knows.",
    "workers": "Who is at work, and what waits.",
    "bulk": "One thing done to everything that matches a filter.",
    "streams": "Live updates as server-sent events.",
    "access": "Principals, keys, tenants and the audit.",
    "server": "The server itself.",
}
ABOUT = """Durable workflows for processes that touch money and people.

Say who you are with `Authorization: Bearer` and an API key or an OIDC token. JSON is snake_case, moments are RFC 3339
in UTC. Lists come in pages: `limit`, `cursor`, and `next_cursor` in the answer. Changes take `If-Match` with an ETag:
of two who decided on the same version, one gets 412. Changes take `Idempotency-Key`: the same request with the same key
is carried out once, and answered again with `Idempotent-Replayed: true`. Refusals are RFC 9457 problems, with a
`trace_id` to find them in the logs by."""
HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {
        "description": "The same key again is the same request: carried out once, answered as the first time.",
        "schema": {"type": "string", "pattern": '^("[A-Za-z0-9_:.-]{1,255}"|[A-Za-z0-9_:.-]{1,255})$'},
        "example": "order-17-refund",
    },
    "If-Match": {
        "description": "The ETag of the version you decided on; if that is not the newest any more: 412.",
        "schema": {"type": "string"},
        "example": '"7"',
    },
    "Prefer": {
        "description": "`wait=N`: hold the answer for up to N seconds (60 at most).",
        "schema": {"type": "string"},
        "example": "wait=10",
    },
    "Last-Event-ID": {"description": "Go on after this event.", "schema": {"type": "string"}, "example": "3"},
}


def document(endpoints: Sequence[Endpoint], public_url: str | None = None) -> dict[str, Any]:
    endpoints = [endpoint for endpoint in endpoints if not endpoint.page]
    schemas = _Schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": ABOUT},
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        **({"servers": [{"url": public_url}]} if public_url else {}),
        "tags": [{"name": name, "description": words} for name, words in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "examples": {slug: {"summary": words[1], "value": example(slug)} for slug, words in PROBLEMS.items()},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An API key (hfst_…) or an OIDC token."}
            },
        },
    }


class _Schemas:
    """JSON Schemas of every model, each once."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        models: list[Any] = [ProblemBody]
        for endpoint in endpoints:
            models += [answer.model for answer in endpoint.answers.values() if answer.model is not None]
            if endpoint.body is not None:
                models.append(endpoint.body)
            if endpoint.query is not None:
                models += [field.type for field in msgspec.structs.fields(endpoint.query)]
        found, components = msgspec.json.schema_components(models, ref_template="#/components/schemas/{name}")
        names = {name: _name(name, components) for name in components}
        self.components = {names[name]: _renamed(schema, names) for name, schema in components.items()}
        self._of = [(model, _renamed(schema, names)) for model, schema in zip(models, found, strict=True)]

    def of(self, model: Any) -> dict[str, Any]:
        return next(schema for one, schema in self._of if one is model or one == model)


def _name(name: str, others: dict[str, Any]) -> str:
    """A model's name as a reader and a generator of clients like it: `Instance`, `InstancePage`."""
    if (listing := re.match(r"Listing\W?_?(\w+?)_?\W?$", name)) is not None:
        return listing[1].removesuffix("Out") + "Page"
    if name.endswith("Out"):
        short = name.removesuffix("Out")
        return short if short not in others and short != "Problem" else short + "View"
    return {"ProblemBody": "Problem"}.get(name, name)


def _renamed(schema: Any, names: dict[str, str]) -> Any:
    if isinstance(schema, dict):
        return {
            key: f"#/components/schemas/{names[value.rpartition('/')[2]]}" if key == "$ref" else _renamed(value, names)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_renamed(item, names) for item in schema]
    return schema


def _operation(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.operation_id,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": _description(endpoint),
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint, schemas), *_headers(endpoint)],
        "responses": _responses(endpoint, schemas),
        "security": [] if endpoint.capability == PUBLIC else [{"key": []}],
        "x-capability": endpoint.capability,
    }
    if endpoint.body is not None:
        content = {"schema": schemas.of(endpoint.body), "examples": {"one": {"value": endpoint.body_example}}}
        operation["requestBody"] = {
            "required": not endpoint.body_optional, "content": {"application/json": content},
        }  # fmt: skip
    elif endpoint.form:
        fields = {name: {"type": "string"} for name in endpoint.form}
        content = {"schema": {"type": "object", "properties": fields, "required": list(fields)}}
        operation["requestBody"] = {"required": True, "content": {"application/x-www-form-urlencoded": content}}
    return operation


def _description(endpoint: Endpoint) -> str:
    words = " ".join(endpoint.description.split())
    if endpoint.capability in (PUBLIC, ANYONE):
        return words
    return f"{words}\n\nAsks for the capability `{endpoint.capability}`."


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found = []
    for name in endpoint.parameters:
        prefix = endpoint.prefix
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if prefix:
            schema = {"type": "string", "pattern": f"^{prefix}_[0-9a-f]{{32}}$"}
        word = f"{prefix}_0192f0a1b2c37d4e8f90a1b2c3d4e5f6" if prefix else "expense@1"
        found.append({"name": name, "in": "path", "required": True, "schema": schema, "example": word})
    return found


def _query_parameters(endpoint: Endpoint, schemas: _Schemas) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    found = []
    for field in msgspec.structs.fields(endpoint.query):
        parameter: dict[str, Any] = {
            "name": field.encode_name, "in": "query", "required": field.required,
            "schema": _without_null(schemas.of(field.type)),
        }  # fmt: skip
        if field.encode_name in getattr(endpoint.query, "LISTS", ()):
            parameter |= {"style": "form", "explode": False}
            parameter["schema"] = {**parameter["schema"], "minItems": 1}
        if field.default not in (msgspec.NODEFAULT, None):
            parameter["schema"] = {**parameter["schema"], "default": field.default}
        found.append(parameter)
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null: what may be left away is simply not required."""
    if "anyOf" not in schema:
        return schema
    left = [one for one in schema["anyOf"] if one != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**rest, **left[0]} if len(left) == 1 else {**rest, "anyOf": left}


def _headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    wanted = []
    if endpoint.keyed:
        wanted.append(("Idempotency-Key", endpoint.keyed == "required"))
    if endpoint.if_match:
        wanted.append(("If-Match", endpoint.if_match == "required"))
    if endpoint.prefer:
        wanted.append(("Prefer", False))
    if endpoint.stream:
        wanted.append(("Last-Event-ID", False))
    return [{"name": name, "in": "header", "required": required, **HEADERS[name]} for name, required in wanted]


def problems_of(endpoint: Endpoint) -> list[str]:
    """Every refusal this endpoint may answer with."""
    found = [*endpoint.problems, "internal-error", "overloaded", "unavailable", "malformed-request"]
    if endpoint.capability != PUBLIC:
        found.append("unauthenticated")
    if endpoint.capability not in (PUBLIC, ANYONE):
        found.append("forbidden")
    if endpoint.body is not None:
        found += ["payload-too-large", "unsupported-media-type"]
    if endpoint.form:
        found.append("payload-too-large")
    if endpoint.keyed:
        found += ["idempotency-key-in-use", "idempotency-key-expired", "idempotency-key-reused"]
        found.append("idempotency-key-missing")
    if endpoint.if_match == "required":
        found.append("precondition-required")
    found.append("validation-failed")
    return sorted(set(found), key=lambda slug: (PROBLEMS[slug][0], slug))


def _responses(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, answer in endpoint.answers.items():
        found[str(status)] = _answer(endpoint, status, answer, schemas)
    by_status: dict[int, list[str]] = {}
    for slug in problems_of(endpoint):
        by_status.setdefault(PROBLEMS[slug][0], []).append(slug)
    for status, slugs in by_status.items():
        content = {
            "schema": schemas.of(ProblemBody),
            "examples": {slug: {"$ref": f"#/components/examples/{slug}"} for slug in slugs},
        }
        headers = {"X-Request-Id": {"schema": {"type": "string"}}}
        if status in (429, 503):
            headers["Retry-After"] = {"schema": {"type": "string"}}
        words = "; ".join(f"`{slug}`: {PROBLEMS[slug][1]}" for slug in slugs)
        found[str(status)] = {"description": words, "headers": headers, "content": {MEDIA_TYPE: content}}
    return found


def _answer(endpoint: Endpoint, status: int, answer: Answer, schemas: _Schemas) -> dict[str, Any]:
    headers: dict[str, Any] = {"X-Request-Id": {"schema": {"type": "string"}}}
    if answer.location:
        headers["Location"] = {"schema": {"type": "string"}, "description": "Where it is to be found."}
    if endpoint.if_match or (endpoint.method == "GET" and endpoint.parameters and answer.model is not None):
        headers["ETag"] = {"schema": {"type": "string"}, "description": "Its version, for If-Match."}
    if endpoint.keyed:
        headers["Idempotent-Replayed"] = {
            "schema": {"type": "string", "enum": ["true"]}, "description": "This request was carried out before.",
        }  # fmt: skip
    found: dict[str, Any] = {"description": answer.words, "headers": headers}
    if answer.media_type:
        content: dict[str, Any] = {"schema": {"type": "string"} if answer.model is None else schemas.of(answer.model)}
        if answer.example is not None:
            content["examples"] = {"one": {"value": answer.example}}
        found["content"] = {answer.media_type: content}
        if answer.or_type:
            found["content"][answer.or_type] = {"schema": {"type": "string"}}
    return found
