"""The two pages of the server: the API to read, offline and without scripts, and the way in for a browser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from holdfast.api.endpoints import ANYONE, PUBLIC, Endpoint
from holdfast.api.openapi import ABOUT, TAGS, document, problems_of
from holdfast.api.problems import PROBLEMS

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --link: #06c; }
@media (prefers-color-scheme: dark) { :root { --link: #6af; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem; border-bottom: 1px solid var(--line) }
a { color: var(--link) } nav a { margin-right: 1rem; white-space: nowrap }
code, pre { font: 13px/1.45 ui-monospace, monospace } pre { background: var(--soft); padding: .7rem; overflow: auto }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: .4rem .7rem }
summary { cursor: pointer } summary b { display: inline-block; min-width: 4rem }
table { border-collapse: collapse; width: 100% } td, th { border-top: 1px solid var(--line); padding: .3rem .5rem;
text-align: left; vertical-align: top } .soft { opacity: .75 } button { font: inherit; padding: .5rem 1.2rem }
"""


def page(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>"
    )


def docs_page(endpoints: Sequence[Endpoint]) -> str:
    """Every operation: what it does, what it takes, what it answers, and a line to try."""
    schemas = document(endpoints)["components"]["schemas"]
    about = "".join(f"<p>{_code(escape(part))}</p>" for part in ABOUT.split("\n\n"))
    menu = "".join(f'<a href="#{tag}">{tag}</a>' for tag in [*TAGS, "models"])
    parts = [f'<h1>Holdfast API</h1>{about}<nav>{menu}<a href="/openapi.json">openapi.json</a></nav>']
    for tag, words in TAGS.items():
        parts.append(f'<h2 id="{tag}">{tag}</h2><p>{escape(words)}</p>')
        parts += [_operation(endpoint) for endpoint in endpoints if endpoint.tag == tag]
    parts.append('<h2 id="models">models</h2>')
    for name, schema in sorted(schemas.items()):
        parts.append(f'<details id="model-{escape(name)}"><summary>{escape(name)}</summary>{_pre(schema)}</details>')
    return page("Holdfast API", "".join(parts))


def _operation(endpoint: Endpoint) -> str:
    asks = {PUBLIC: "asks for nothing", ANYONE: "asks for any key"}.get(
        endpoint.capability, f"asks for <code>{endpoint.capability}</code>"
    )
    rows = []
    for status, answer in endpoint.answers.items():
        rows.append(f"<tr><td>{status}</td><td>{escape(answer.words)}</td></tr>")
    by_status: dict[int, list[str]] = {}
    for slug in problems_of(endpoint):
        by_status.setdefault(PROBLEMS[slug][0], []).append(slug)
    for status, slugs in by_status.items():
        words = "<br>".join(f"<code>{slug}</code> {escape(PROBLEMS[slug][1])}" for slug in slugs)
        rows.append(f'<tr class="soft"><td>{status}</td><td>{words}</td></tr>')
    shown = next((a.example for a in endpoint.answers.values() if a.example is not None), None)
    sample = f"<p>Answers, for example:</p>{_pre(shown)}" if shown is not None else ""
    return (
        f'<details id="{endpoint.operation_id}"><summary><b>{endpoint.method}</b> <code>{escape(endpoint.path)}</code> '
        f'<span class="soft">{escape(endpoint.summary)}</span></summary>'
        f"<p>{_code(escape(' '.join(endpoint.description.split())))} It {asks}.</p>{_pre(curl(endpoint))}"
        f"<table>{''.join(rows)}</table>{sample}</details>"
    )


def curl(endpoint: Endpoint) -> str:
    """A line that tries it."""
    path = endpoint.path.replace("{id}", f"{endpoint.prefix or 'expense@1'}{'_…' if endpoint.prefix else ''}")
    words = ["curl -s"]
    if endpoint.method != "GET":
        words.append(f"-X {endpoint.method}")
    if endpoint.capability != PUBLIC:
        words.append('-H "Authorization: Bearer $HOLDFAST_KEY"')
    if endpoint.keyed == "required":
        words.append("-H 'Idempotency-Key: my-request-1'")
    if endpoint.if_match == "required":
        words.append("-H 'If-Match: \"0\"'")
    if endpoint.body is not None:
        words.append(f"-H 'Content-Type: application/json' -d '{json.dumps(endpoint.body_example)}'")
    if endpoint.stream:
        words.insert(1, "-N")
    return " ".join([*words, f"http://127.0.0.1:8700{path}"])


def _pre(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"<pre>{escape(text)}</pre>"


def _code(text: str) -> str:
    parts = text.split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def login_page(key: str) -> str:
    return page(
        "Log in to Holdfast",
        "<h1>Log in to Holdfast</h1><p>This link works once. It opens a session of twelve hours in this browser.</p>"
        f'<form method="post" action="/login"><input type="hidden" name="key" value="{key}">'
        "<button>Log in</button></form>",
    )
