"""`Holdfast(…)` takes what it is not given from the same places as the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import BadInput, Holdfast, Outside
from holdfast.handlers.email import SmtpMail
from holdfast.handlers.llm import OpenAiCompatible
from holdfast.handlers.mailbox import FileMailbox
from holdfast.handlers.secrets import EnvSecrets
from holdfast.outside import _llm, _mail
from holdfast.settings import for_the_library

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_argument_then_a_variable_then_the_file_then_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (Holdfast().url, Holdfast().backlog_limit) == ("sqlite:///.holdfast/holdfast.db", None)
    (folder / "holdfast.toml").write_text('database_url = "sqlite:///file.db"\nbacklog_limit = 5')
    assert (Holdfast().url, Holdfast().backlog_limit) == ("sqlite:///file.db", 5)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "sqlite:///variable.db")
    monkeypatch.setenv("HOLDFAST_BACKLOG_LIMIT", "7")
    assert (Holdfast().url, Holdfast().backlog_limit) == ("sqlite:///variable.db", 7)
    given = Holdfast("sqlite:///argument.db", backlog_limit=9)
    assert (given.url, given.backlog_limit) == ("sqlite:///argument.db", 9)


def test_the_database_url_may_be_a_secret_of_the_library_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "secret").write_text("postgresql://shop:hunter2@db/shop\n")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL_FILE", "secret")
    assert Holdfast().url == "postgresql://shop:hunter2@db/shop"


def test_a_named_file_means_the_same_database_in_every_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "shop.toml").write_text(
        'database_url = "sqlite:///data/shop.db"\nmailbox = "mails"\nroutes = { acme = "sqlite:////srv/acme.db" }'
    )
    monkeypatch.setenv("HOLDFAST_CONFIG", str(folder / "etc" / "shop.toml"))
    seen = set()
    for name in ("one", "two"):
        (folder / name).mkdir()
        monkeypatch.chdir(folder / name)
        seen.add((Holdfast().url, for_the_library().mailbox))
    assert seen == {(f"sqlite:///{folder}/etc/data/shop.db", f"{folder}/etc/mails")}


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("database = 'sqlite:///x.db'", r"holdfast\.toml: no setting is called 'database'; is 'database_url' meant\?"),
        ("database_url = 'shop.db'", r"database_url: expected sqlite:///… or .* \(from holdfast\.toml\)"),
        ("backlog_limit = 0", r"backlog_limit is '0': expected a whole number, 1 at least \(from holdfast\.toml\)"),
        ("database_url = ", r"holdfast\.toml is not TOML"),
    ],
)
def test_a_fault_in_the_file_names_the_file_the_key_and_what_is_expected(folder: Path, toml: str, said: str) -> None:
    (folder / "holdfast.toml").write_text(toml)
    with pytest.raises(BadInput, match=said):
        Holdfast()


def test_a_setting_that_only_a_server_reads_does_not_stop_a_process_that_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_METRICS_KEY_FILE", "/not/mine/to/read")
    (folder / "holdfast.toml").write_text('port = "abc"\ndatabase_url = "sqlite:///file.db"')
    assert Holdfast().url == "sqlite:///file.db"


def test_a_web_process_and_a_command_open_the_same_database(folder: Path) -> None:
    """A start from a plain Python process is found by the command line beside it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment = kept | {"PYTHONPATH": str(ROOT / "src")}

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (folder / "holdfast.toml").write_text('app = "web:hf"\ndatabase_url = "sqlite:///shop.db"')
    (folder / "web.py").write_text(
        "from holdfast import Context, Holdfast\n\nhf = Holdfast()\n\n\n"
        '@hf.workflow("ask")\nasync def ask(ctx: Context) -> None:\n    await ctx.wait_for_signal("answer")\n\n\n'
        'if __name__ == "__main__":\n    with hf.sync as sync:\n        print(sync.start("ask").id)\n'
    )
    id_ = python("web.py").strip()
    assert id_ in python("-m", "holdfast.cli.main", "instances", "list", "-o", "json")


# -- what tasks reach the world with


def test_mail_and_model_may_be_set_in_the_file_or_a_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = EnvSecrets()
    assert (_mail(for_the_library()), _llm(for_the_library(), secrets)) == (None, None)
    (folder / "holdfast.toml").write_text('mailbox = "post"\nllm_model = "small"')
    assert isinstance(_mail(for_the_library()), FileMailbox)
    assert _llm(for_the_library(), secrets) is None
    monkeypatch.setenv("HOLDFAST_SMTP_URL", "smtp://mail:25")
    monkeypatch.setenv("HOLDFAST_LLM_URL", "http://127.0.0.1:1/v1")
    assert isinstance(_mail(for_the_library()), SmtpMail)
    assert isinstance(_llm(for_the_library(), secrets), OpenAiCompatible)


async def test_what_the_app_sets_up_itself_stays(folder: Path) -> None:
    (folder / "holdfast.toml").write_text('smtp_url = "smtp://mail:25"\nmail_from = "shop@example.org"')
    own = FileMailbox(folder / "own")
    async with Holdfast(outside=Outside(mail=own, mail_from="own@example.org")) as hf:
        handler: object = hf.built_in_handlers()["EMAIL"].function
    assert own in vars(handler).values() and "own@example.org" in map(_written, vars(handler).values())


def _written(value: object) -> str:
    return str(getattr(value, "addr_spec", ""))
