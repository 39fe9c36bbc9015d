"""The pages of the server: where to begin, the API to read and to try, offline, and the way in for a browser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from shlex import quote
from typing import Any

import msgspec

from holdfast.api.endpoints import ANYONE, PUBLIC, Endpoint
from holdfast.api.openapi import ABOUT, TAGS, problems_of
from holdfast.api.problems import PROBLEMS

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --link: #06c; }
@media (prefers-color-scheme: dark) { :root { --link: #6af; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem; border-bottom: 1px solid var(--line) }
a { color: var(--link) } nav a { margin-right: 1rem; white-space: nowrap }
code, pre, input, textarea { font: 13px/1.45 ui-monospace, monospace }
pre { background: var(--soft); padding: .7rem; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: .4rem .7rem }
summary { cursor: pointer } summary b { display: inline-block; min-width: 4rem }
table { border-collapse: collapse; width: 100% } td, th { border-top: 1px solid var(--line); padding: .3rem .5rem;
text-align: left; vertical-align: top } .soft { opacity: .75 } button { font: inherit; padding: .5rem 1.2rem }
form.try { border-left: 3px solid var(--line); margin: 1rem 0; padding-left: .8rem }
form.try label { display: grid; grid-template-columns: 10rem 1fr; gap: .5rem; margin: .3rem 0; align-items: start }
form.try input, form.try textarea { box-sizing: border-box; padding: .3rem; width: 100% } pre.body { max-height: 40rem }
[hidden] { display: none !important }
"""

ADDRESS, WHO = "⟦address⟧", "⟦who⟧"  # what DocsPage.shown puts in
LINK = "<code>holdfast dev</code> prints a link that logs a browser in, a new one at every start."


def page(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>"
    )


class DocsPage:
    """Every operation: what it does, what it takes, what it answers, a line for the shell, and a form that tries it.

    Made once; what differs from request to request, the server's address and who is logged in, is put in then."""

    def __init__(self, endpoints: Sequence[Endpoint], schemas: Mapping[str, Any]) -> None:
        about = "".join(f"<p>{_code(escape(part))}</p>" for part in ABOUT.split("\n\n"))
        menu = "".join(f'<a href="#{tag}">{tag}</a>' for tag in [*TAGS, "models"])
        parts = [f'<h1>Holdfast API</h1>{WHO}{about}<nav>{menu}<a href="/openapi.json">openapi.json</a></nav>']
        for tag, words in TAGS.items():
            parts.append(f'<h2 id="{tag}">{tag}</h2><p>{escape(words)}</p>')
            parts += [_operation(endpoint) for endpoint in endpoints if endpoint.tag == tag and not endpoint.page]
        parts.append('<h2 id="models">models</h2>')
        for name, schema in sorted(schemas.items()):
            parts.append(
                f'<details id="model-{escape(name)}"><summary>{escape(name)}</summary>{_pre(schema)}</details>'
            )
        self._page = page("Holdfast API", "".join([*parts, '<script src="/docs.js"></script>']))

    def shown(self, address: str, name: str) -> str:
        return self._page.replace(ADDRESS, escape(address)).replace(WHO, _who(name))


def _who(name: str) -> str:
    if name:
        return (
            f"<p>Logged in as <b>{escape(name)}</b>: what you send from these pages is done in that name.</p>"
            '<form method="post" action="/logout"><button>Log out</button></form>'
        )
    return f"<p>Nobody is logged in, so most of what you try here is refused. {LINK}</p>"


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
        f"{_try(endpoint)}<table>{''.join(rows)}</table>{sample}</details>"
    )


def curl(endpoint: Endpoint) -> str:
    """A line for the shell that tries it."""
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
        words += ["-H 'Content-Type: application/json'", f"-d {quote(json.dumps(endpoint.body_example))}"]
    if endpoint.stream:
        words[0] = "curl -sN"
    return " \\\n  ".join([*words, f"{ADDRESS}{path}"])


def _try(endpoint: Endpoint) -> str:
    """A form that the page's script sends; without the script it stays hidden."""
    if endpoint.form or any(answer.media_type == "text/html" for answer in endpoint.answers.values()):
        return ""
    fields = [_field("path", name, f"{endpoint.prefix}_…" if endpoint.prefix else "") for name in endpoint.parameters]
    if endpoint.query is not None:
        fields += [_field("query", field.encode_name) for field in msgspec.structs.fields(endpoint.query)]
    if endpoint.if_match:
        fields.append(_field("header", "If-Match", "the ETag of what you have read, with its quotes, or *"))
    if endpoint.keyed:
        empty = "left empty: a new one each time" if endpoint.keyed == "required" else ""
        fields.append(_field("header", "Idempotency-Key", empty))
    if endpoint.prefer:
        fields.append(_field("header", "Prefer", "wait=10"))
    if endpoint.body is not None:
        text = json.dumps(endpoint.body_example, indent=2, ensure_ascii=False)
        rows = min(20, text.count("\n") + 1)
        fields.append(
            f'<label>body <textarea name="body" rows="{rows}" spellcheck="false">{escape(text)}</textarea></label>'
        )
    words = "" if endpoint.method == "GET" else ' <span class="soft">This is no dry run: it is carried out.</span>'
    return (
        f'<form class="try" data-method="{endpoint.method}" data-path="{escape(endpoint.path)}" '
        f'data-key="{endpoint.keyed}" hidden>{"".join(fields)}'
        f'<button>Send</button> <button type="button" class="stop" hidden>Stop</button>{words}'
        '<div class="answer" role="status" hidden><p><b class="status"></b></p><pre class="headers"></pre>'
        '<pre class="body"></pre></div></form>'
    )


def _field(place: str, name: str, empty: str = "") -> str:
    must = " required" if place == "path" else ""
    return (
        f'<label>{escape(name)} <input name="{escape(name)}" data-in="{place}" placeholder="{escape(empty)}" '
        f'autocomplete="off"{must}></label>'
    )


def _pre(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"<pre>{escape(text)}</pre>"


def _code(text: str) -> str:
    parts = text.split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def front_page(name: str, address: str) -> str:
    return page(
        "Holdfast",
        f"<h1>Holdfast</h1><p>This is the server at <code>{escape(address)}</code>.</p>{_who(name)}"
        '<ul><li><a href="/docs">The API</a>: every operation, to read and to try</li>'
        '<li><a href="/openapi.json">The same as OpenAPI 3.1</a>, for tools</li>'
        '<li><a href="/readyz">Is it ready?</a></li></ul>',
    )


def login_page(key: str) -> str:
    return page(
        "Log in to Holdfast",
        "<h1>Log in to Holdfast</h1><p>This link works once. It opens a session of twelve hours in this browser.</p>"
        f'<form method="post" action="/login"><input type="hidden" name="key" value="{escape(key)}">'
        "<button>Log in</button></form>",
    )


def login_refused_page(words: str, name: str) -> str:
    return page(
        "Not logged in",
        f"<h1>{'That changed nothing' if name else 'You are not logged in'}</h1><p>{escape(words.capitalize())}.</p>"
        f'{_who(name) if name else f"<p>{LINK}</p>"}<p><a href="/">Back to the start</a></p>',
    )
