"""The built-in handlers, put together: what HTTP, EMAIL and AI tasks reach the world with.

Everything comes from `Outside(…)`, or from the settings where nothing is given: `smtp_url` and `mail_from`, or
`mailbox` (a folder, for development); `llm_url`, `llm_model` and the secret HOLDFAST_SECRET_LLM_KEY. Where these give
nothing either, tasks are refused with what to set; only `holdfast dev` asks for stand-ins first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.app.registry import TaskHandler
from holdfast.app.tenants import Policies
from holdfast.engine.ai import AiDefaults
from holdfast.engine.errors import Rejected
from holdfast.engine.signatures import signature_of
from holdfast.engine.tasks import TaskInfo
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.handlers.ports import Llm, Mail, Secrets

MAIL_FROM = "holdfast@localhost"
AI_WINDOW = timedelta(hours=1)


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's built-in handlers reach the world with."""

    mail: Mail | None = None
    mail_from: str | None = None
    llm: Llm | None = None
    ai: AiDefaults | None = None
    secrets: Secrets | None = None
    private_hosts: tuple[str, ...] = ()
    """Hosts in the own house (`127.0.0.1:8123`) that HTTP tasks may call where a tenant allows them by name."""


def with_stand_ins(outside: Outside, settings: Settings, *, mailbox: Path, answers: Path) -> Outside:
    """The same, with a folder for mails and a file of a model's answers where nothing else is set up.

    For `holdfast dev` alone: in production, a mail that nobody gets must not look sent, and a made-up answer not given.
    What is set up by half is left as it is, so that its tasks say what is missing.
    """
    from holdfast.handlers.mailbox import FileMailbox
    from holdfast.handlers.script import ScriptedLlm, answers_in

    if outside.mail is None and not (settings.smtp_url or settings.mailbox):
        outside = msgspec.structs.replace(outside, mail=FileMailbox(mailbox))
    if outside.llm is None and not (settings.llm_url or settings.llm_model):
        outside = msgspec.structs.replace(outside, llm=ScriptedLlm(answers_in(answers)))
    return outside


def handlers(
    outside: Outside, settings: Settings, policies: Policies, clock: Callable[[], int]
) -> dict[str, TaskHandler]:
    """One handler for each type of task that reaches out."""
    # The handlers' libraries are large: only a process that runs tasks waits for them.
    from holdfast.handlers.ai import AiHandler
    from holdfast.handlers.egress import Egress
    from holdfast.handlers.email import EmailHandler
    from holdfast.handlers.http import HttpHandler
    from holdfast.handlers.secrets import EnvSecrets

    secrets = outside.secrets or EnvSecrets()

    def now() -> float:
        return clock() / 1_000_000

    http = HttpHandler(Egress(private_hosts=_set(outside.private_hosts), now=now), secrets, policies)
    mail = outside.mail or _mail(settings)
    llm = outside.llm or _llm(settings, secrets)
    made: list[TaskHandler] = [_handler("HTTP", http, "manual", None)]
    sender = outside.mail_from or settings.mail_from or MAIL_FROM
    made.append(
        _handler("EMAIL", EmailHandler(mail, default_sender=sender, clock=now) if mail else _not_set_up(
            "no mail server is set up: set HOLDFAST_SMTP_URL, or HOLDFAST_MAILBOX for a folder to look into"
        ), "manual", None)
    )  # fmt: skip
    # A model that is asked twice answers twice and nothing else happens: repeating costs money only, within caps.
    made.append(
        _handler("AI", AiHandler(llm, policies, defaults=outside.ai, now=now) if llm else _not_set_up(
            "no model is set up: set HOLDFAST_LLM_URL, HOLDFAST_LLM_MODEL and HOLDFAST_SECRET_LLM_KEY"
        ), "keyed", AI_WINDOW)
    )  # fmt: skip
    return {handler.type: handler for handler in made}


def _handler(type_: str, function: Callable[..., Any], mode: str, window: timedelta | None) -> TaskHandler:
    return TaskHandler(type_, "", function, signature_of(function), "effect", mode, window, None, None, False)


def _not_set_up(words: str) -> Callable[..., Any]:
    async def refuse(task: TaskInfo) -> None:
        raise Rejected(words)

    return refuse


def _set(hosts: Iterable[str]) -> frozenset[str]:
    return frozenset(hosts)


def _mail(settings: Settings) -> Mail | None:
    from holdfast.handlers.email import SmtpMail
    from holdfast.handlers.mailbox import FileMailbox

    if settings.smtp_url:
        return SmtpMail(settings.smtp_url)
    return FileMailbox(settings.mailbox) if settings.mailbox else None


def _llm(settings: Settings, secrets: Secrets) -> Llm | None:
    if not settings.llm_url or not settings.llm_model:
        return None
    from holdfast.handlers.llm import OpenAiCompatible

    return OpenAiCompatible(settings.llm_url, lambda: secrets.get("default", "llm_key"), settings.llm_model)
