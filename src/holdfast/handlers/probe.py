"""Asks a mail server and a model's server whether they are there. No mail is sent and no model is run.

What they answer is told in a few words, never with a password or a key. It must not know tasks.
"""

from __future__ import annotations

import ssl
from typing import Literal, NamedTuple

import httpx
from aiosmtplib import SMTP

from holdfast.handlers.smtp_url import read_url

PROBE_SECONDS = 5.0


class Answer(NamedTuple):
    state: Literal["ok", "warn", "fail"]
    found: str
    what_to_do: str = ""


async def mail_server(url: str, seconds: float = PROBE_SECONDS) -> Answer:
    """Connect, hear the greeting, say EHLO, leave."""
    server = read_url(url)
    where = f"{server.host}:{server.port}"
    context = ssl.create_default_context() if server.tls or server.starttls else None
    smtp = SMTP(
        hostname=server.host, port=server.port, use_tls=server.tls, start_tls=False, tls_context=context,
        timeout=seconds, local_hostname="localhost",
    )  # fmt: skip
    try:
        greeting = await smtp.connect()
        await smtp.ehlo()
        if server.starttls and not smtp.supports_extension("starttls"):
            return Answer(
                "fail", f"{where} offers no STARTTLS", "use smtps://, or another port: no password is sent in clear"
            )
        if server.starttls:
            await smtp.starttls()
            await smtp.ehlo()
        await smtp.quit()
    except Exception as error:
        return Answer(
            "fail", f"{where} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
            "correct HOLDFAST_SMTP_URL, or look at the server and the firewall between",
        )  # fmt: skip
    finally:
        smtp.close()
    return Answer("ok", f"{where} greets: {greeting.code} {' '.join(greeting.message.split())[:100]}")


async def model_server(url: str, key: str, seconds: float = PROBE_SECONDS) -> Answer:
    """GET models, which every server of the kind has or politely has not."""
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    shown = httpx.URL(url).copy_with(username=None, password=None, query=None)
    try:
        async with (
            httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=seconds) as client,
            client.stream("GET", url.rstrip("/") + "/models", headers=headers) as response,
        ):
            status = response.status_code
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:200]
        return Answer(
            "fail", f"{shown} cannot be reached: {words.replace(key, '[key]') if key else words}",
            "correct HOLDFAST_LLM_URL, or look at the server and the firewall between",
        )  # fmt: skip
    if status in (401, 403):
        return Answer("fail", f"{shown} answers {status}", "correct HOLDFAST_SECRET_LLM_KEY")
    if 300 <= status < 400:
        return Answer("fail", f"{shown} answers {status}", "name the server itself: redirects are not followed")
    if status >= 500:
        return Answer("warn", f"{shown} answers {status}", "it is there, but not well: ask again later")
    return Answer("ok", f"{shown} answers {status}")
