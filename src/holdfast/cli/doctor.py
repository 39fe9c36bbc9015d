"""`holdfast doctor`: looks at everything an installation needs, and says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click

from holdfast import Holdfast, HoldfastError
from holdfast.app import doctor as app
from holdfast.app.doctor import Check
from holdfast.cli.app import Place, place_options, run, settled
from holdfast.cli.config import whence
from holdfast.cli.output import Output, bar, notice, output_option, show_rows
from holdfast.cli.refusals import FAILED
from holdfast.handlers.probe import Answer, mail_server, model_server
from holdfast.handlers.secrets import EnvSecrets, SecretMissing
from holdfast.settings import Found, shown_url, unknown_variables

Update = Callable[[int, int], None] | None


@click.command()
@place_options
@output_option
def doctor(place: Place, output: Output) -> None:
    """Look at Python, database, clocks, mail, model, workers and open questions. Exit 1 if something is broken."""
    hf, found = place.holdfast(), settled()
    with bar("looking") as update:
        checks = run(_all(hf, found, update))
    show_rows(checks, ("check", "state", "found", "what_to_do"), output, empty="", cell_max=500)
    worst = {state: sum(1 for one in checks if one.state == state) for state in ("fail", "warn")}
    notice(f"{len(checks)} looked at, {worst['fail']} broken, {worst['warn']} doubtful")
    if worst["fail"]:
        raise click.exceptions.Exit(FAILED)


async def _all(hf: Holdfast, found: Found, update: Update) -> list[Check]:
    looks: list[app.Examination] = [
        ("python", app.python), ("settings", lambda: _settings(hf, found)), ("time zones", app.time_zones),
        ("mail", lambda: _mail(hf, found)), ("model", lambda: _model(hf, found)),
    ]  # fmt: skip
    more = 10  # about: what there is to ask of the database is known once it is open
    checks = [await _told(look, number, len(looks) + more, update) for number, look in enumerate(looks)]
    try:
        async with asyncio.timeout(app.CHECK_SECONDS):
            await hf.open(migrate=False)
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, HoldfastError):
            words = f"{type(error).__name__}: {words}"
        what_to_do = "" if isinstance(error, HoldfastError) else "check the URL, and that the server runs"
        if "startup parameter" in words:
            what_to_do = "a pooler refuses our session settings: connect directly, or see docs/deployment.md"
        checks.append(Check(check="database", state="fail", found=shown_url(words), what_to_do=what_to_do))
        return checks
    try:
        checks.append(Check(check="database", state="ok", found=f"{shown_url(hf.url)} is reachable and migrated"))
        of_database = list(app.of_database(hf.service))
        for number, look in enumerate(of_database):
            checks.append(await _told(look, len(looks) + 1 + number, len(looks) + 1 + len(of_database), update))
    finally:
        await hf.close()
    return checks


async def _told(look: app.Examination, number: int, total: int, update: Update) -> Check:
    check = await app.examine(*look)
    if update is not None:
        update(number + 1, total)
    return check


async def _settings(hf: Holdfast, found: Found) -> Check:
    unknown = unknown_variables()
    if unknown:
        return Check(
            check="settings", state="warn", found=f"{', '.join(unknown)} is set, but nothing reads it",
            what_to_do="correct the name; `holdfast config show` lists all of them",
        )  # fmt: skip
    return Check(check="settings", state="ok", found=f"{whence(found)}; database_url: {_whence_database(hf, found)}")


def _whence_database(hf: Holdfast, found: Found) -> str:
    origin = found.origins["database_url"]
    return "given by the app" if hf.url_is_given and origin != "flag" else origin


async def _mail(hf: Holdfast, found: Found) -> Check:
    if hf.outside.mail is not None:
        return Check(check="mail", state="ok", found=f"{hf.outside.mail!r}, set up by the app: not asked")
    if found.values.smtp_url:
        return _check("mail", await mail_server(found.values.smtp_url))
    if found.values.mailbox:
        return Check(check="mail", state="ok", found=f"a folder: {found.values.mailbox}")
    return Check(check="mail", state="ok", found="not set up: EMAIL tasks are refused")


async def _model(hf: Holdfast, found: Found) -> Check:
    if hf.outside.llm is not None:
        return Check(check="model", state="ok", found="set up by the app: not asked")
    url, model = found.values.llm_url, found.values.llm_model
    if url and not model:
        return Check(check="model", state="fail", found="a server, but no model", what_to_do="set HOLDFAST_LLM_MODEL")
    if url:
        try:
            key = (hf.outside.secrets or EnvSecrets()).get("default", "llm_key")
        except SecretMissing as error:
            return Check(check="model", state="fail", found=str(error), what_to_do="set it; any word if none is asked")
        return _check("model", await model_server(url, key))
    return Check(check="model", state="ok", found="not set up: AI tasks are refused")


def _check(name: str, answer: Answer) -> Check:
    return Check(check=name, state=answer.state, found=answer.found, what_to_do=answer.what_to_do)
