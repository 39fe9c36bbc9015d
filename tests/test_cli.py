"""The `holdfast` command: what it answers, how it refuses, and that a killed `dev` goes on where it was."""

import asyncio
import importlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
import structlog
from click.testing import CliRunner, Result

import holdfast
from holdfast import Holdfast, logs
from holdfast.cli.main import cli
from holdfast.testing import Harness, ManualClock
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
NOBODY = "ins_" + "0" * 32
APP = '''
"""Workflows for the tests of the command line."""
import asyncio
import sys
import time
from holdfast import Context, Holdfast, StepInfo

hf = Holdfast()
other = "not a Holdfast"

@hf.workflow("greet")
async def greet(ctx: Context, given: dict) -> dict:
    return {"hello": await ctx.step("name", name, given)}

async def name(given: dict) -> str:
    return given["name"]

@hf.workflow("greet", version=2)
async def greet_again(ctx: Context, given: dict) -> str:
    return "hello again"

@hf.workflow("ask")
async def ask(ctx: Context) -> str:
    return await ctx.wait_for_signal("answer")

@hf.workflow("boom")
async def boom(ctx: Context) -> None:
    raise ValueError("it went wrong")

@hf.workflow("pay")
async def pay(ctx: Context) -> dict:
    await ctx.step("hold", hold, compensate=release)
    return await ctx.effect("pay", call_bank, mode="manual")

def hold() -> int:
    return 7

def release(hold: int) -> None: ...

def call_bank(info: StepInfo) -> dict:
    if info.attempt == 1:
        raise RuntimeError("no answer")
    return {"attempt": info.attempt}

@hf.workflow("pays")
async def pays(ctx: Context) -> None:
    await ctx.effect("pay", time.sleep, 3600)

async def never_ends() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

@hf.workflow("clings")
async def clings(ctx: Context) -> None:
    await ctx.effect("pay", never_ends)

@hf.workflow("stuck")
async def stuck(ctx: Context) -> None:
    await ctx.step("stuck", time.sleep, 3600)

@hf.workflow("cancels")
async def cancels(ctx: Context) -> None:
    await ctx.step("all", cancel_all, max_attempts=1)

async def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(0)

@hf.workflow("exits")
async def exits(ctx: Context) -> None:
    await ctx.step("exit", in_a_task_of_its_own)

async def in_a_task_of_its_own() -> None:
    async def leave() -> None:
        sys.exit(3)
    await asyncio.create_task(leave())

@hf.workflow("aside", queue="side")
async def aside(ctx: Context) -> str:
    return "done aside"
'''


class Shop:
    """An app in a folder of its own, a database, and the command to use them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.module = f"shop_{uuid.uuid4().hex}"
        (folder / f"{self.module}.py").write_text(APP)
        self.app = f"{self.module}:hf"

    def run(self, *words: str, input: str | None = None, env: dict[str, str | None] | None = None) -> Result:
        where: dict[str, str | None] = {"HOLDFAST_DATABASE_URL": self.url, "HOLDFAST_APP": self.app}
        return CliRunner().invoke(cli, words, input=input, env=where | (env or {}))

    def ok(self, *words: str, input: str | None = None) -> str:
        result = self.run(*words, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "-o", "json"))

    def start(self, workflow: str, *words: str) -> str:
        return self.ok("start", workflow, *words).strip()

    def work(self) -> None:
        """Run everything that can run."""
        hf = importlib.import_module(self.module).hf
        clock = ManualClock(datetime.now(UTC) + timedelta(minutes=1))

        async def whole() -> None:
            async with Harness(hf, url=self.url, clock=clock) as test:
                await test.run_until_idle()

        asyncio.run(whole())


def make_shop(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for name in ("HOLDFAST_APP", "HOLDFAST_DATABASE_URL", "HOLDFAST_TENANT", "HOLDFAST_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    shop = Shop(folder, url)
    assert shop.run("migrate").exit_code == 0
    return shop


@pytest.fixture(autouse=True)
def unconfigured_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """On SQLite."""
    return make_shop(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", monkeypatch)


@pytest.fixture(params=["sqlite", "postgres"])
def shop_on_both(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    sqlite = f"sqlite:///{tmp_path / 'shop.db'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return make_shop(tmp_path, url, monkeypatch)


# -- instances


def test_a_started_instance_can_be_listed_shown_and_read(shop_on_both: Shop) -> None:
    shop = shop_on_both
    id_ = shop.start("greet", "--version", "1", "--input", '{"name": "ann"}', "--business-key", "g-1")
    assert id_.startswith("ins_")
    shop.work()
    [listed] = shop.json("instances", "list")
    assert (listed["id"], listed["status"], listed["business_key"]) == (id_, "completed", "g-1")
    shown = shop.json("instances", "show", id_)
    assert (shown["result"], shown["steps"]) == ({"hello": "ann"}, {"name": "ann"})
    assert datetime.fromisoformat(shown["created_at"]).tzinfo is not None
    history = shop.json("instances", "history", id_)
    assert [entry["type"] for entry in history] == ["INSTANCE_STARTED", "STEP_COMPLETED", "INSTANCE_COMPLETED"]
    assert len(shop.json("instances", "history", id_, "--after", "2")) == 1
    assert shop.json("instances", "list", "--status", "waiting") == []


def test_the_newest_version_is_started_unless_another_is_named(shop: Shop) -> None:
    shop.start("greet", "--input", '{"name": "ann"}')
    assert shop.json("instances", "list")[0]["version"] == 2


def test_a_signal_with_the_same_id_is_sent_once(shop_on_both: Shop) -> None:
    shop = shop_on_both
    id_ = shop.start("ask")
    assert shop.json("signal", id_, "answer", "--payload", '"yes"', "--id", "evt-1")["new"] is True
    assert shop.json("signal", id_, "answer", "--payload", '"yes"', "--id", "evt-1")["new"] is False
    shop.work()
    assert shop.json("instances", "show", id_)["result"] == "yes"


def test_cancel_keeps_actor_and_reason(shop_on_both: Shop) -> None:
    shop = shop_on_both
    id_ = shop.start("ask")
    shop.ok("cancel", id_, "--reason", "customer withdrew", "--actor", "ann", "--yes")
    shop.work()
    assert shop.json("instances", "show", id_)["status"] == "cancelled"
    [ending] = [e for e in shop.json("instances", "history", id_) if e["type"] == "INSTANCE_CANCELLING"]
    assert ending["payload"]["error"]["actor"] == "ann"
    assert ending["payload"]["reason"] == "customer withdrew"


def test_resume_has_an_instance_looked_at_again(shop: Shop) -> None:
    id_ = shop.start("ask")
    shop.work()
    shop.ok("resume", id_, "--reason", "mended")
    shop.work()
    assert "INSTANCE_RESUMED" in [entry["type"] for entry in shop.json("instances", "history", id_)]


def test_tenants_do_not_see_each_other(shop: Shop) -> None:
    id_ = shop.start("ask", "--tenant", "acme")
    assert shop.json("instances", "list") == []
    assert [one["id"] for one in shop.json("instances", "list", "--tenant", "acme")] == [id_]
    assert shop.run("instances", "show", id_).exit_code == 3


def test_input_comes_from_a_file_or_from_standard_input(shop: Shop) -> None:
    (shop.folder / "input.json").write_text('{"name": "from a file"}')
    from_file = shop.start("greet", "--input", "@input.json")
    from_pipe = shop.ok("start", "greet", "--input", "-", input='{"name": "from a pipe"}').strip()
    inputs = {one["id"]: one["input"]["name"] for one in shop.json("instances", "list")}
    assert inputs == {from_file: "from a file", from_pipe: "from a pipe"}


def test_lists_come_in_pages(shop: Shop) -> None:
    started = [shop.start("ask") for _ in range(3)]
    first = shop.json("instances", "list", "--limit", "2")
    second = shop.json("instances", "list", "--limit", "2", "--before", first[-1]["id"])
    assert [one["id"] for one in first + second] == started[::-1]


# -- the effect desk


def test_an_unknown_effect_is_listed_shown_and_settled_by_a_person(shop_on_both: Shop) -> None:
    shop = shop_on_both
    id_ = shop.start("pay")
    shop.work()
    [unknown] = shop.json("effects", "list")
    assert (unknown["instance_id"], unknown["step"], unknown["state"]) == (id_, "pay", "outcome_unknown")
    assert shop.json("effects", "show", unknown["id"])["error"]["message"] == "no answer"
    words = ("--actor", "ann", "--reason", "on the bank's list", "--yes")
    shop.ok("effects", "resolve", unknown["id"], "happened", *words, "--result", '{"id": "b-1"}')
    shop.work()
    assert shop.json("instances", "show", id_)["result"] == {"id": "b-1"}
    settled = shop.json("effects", "show", unknown["id"])
    assert (settled["resolution"], settled["resolved_by"]) == ("happened", "ann")
    assert shop.json("effects", "list") == []
    assert len(shop.json("effects", "list", "--all", "--instance", id_)) == 1
    assert shop.run("effects", "resolve", unknown["id"], "abort", *words).exit_code == 4


def test_an_effect_that_did_not_happen_is_started_again(shop: Shop) -> None:
    id_ = shop.start("pay")
    shop.work()
    [unknown] = shop.json("effects", "list")
    shop.ok("effects", "resolve", unknown["id"], "did-not-happen", "--actor", "ann", "--reason", "not on the list")
    shop.work()
    assert shop.json("instances", "show", id_)["result"] == {"attempt": 2}


def test_an_aborted_effect_undoes_what_was_done(shop: Shop) -> None:
    id_ = shop.start("pay")
    shop.work()
    [unknown] = shop.json("effects", "list")
    shop.ok("effects", "resolve", unknown["id"], "abort", "--actor", "ann", "--reason", "wrong account")
    shop.work()
    shown = shop.json("instances", "show", id_)
    assert (shown["status"], shown["compensation"]) == ("failed", "complete")


def test_a_resolution_needs_an_actor_and_a_reason(shop: Shop) -> None:
    effect = "eff_" + "0" * 32
    assert shop.run("effects", "resolve", effect, "abort", "--actor", "ann").exit_code == 2
    assert shop.run("effects", "resolve", effect, "abort", "--reason", "so").exit_code == 2
    assert shop.run("effects", "resolve", effect, "perhaps", "--actor", "ann", "--reason", "so").exit_code == 2
    with_result = ("--actor", "ann", "--reason", "so", "--result", "1")
    assert shop.run("effects", "resolve", effect, "abort", *with_result).exit_code == 2
    assert shop.run("effects", "resolve", effect, "abort", "--actor", "ann", "--reason", "so").exit_code == 3


# -- refusals


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("instances", "show", NOBODY), 3, "no instance"),
        (("instances", "history", NOBODY), 3, "no instance"),
        (("signal", NOBODY, "answer"), 3, "no instance"),
        (("cancel", NOBODY, "--reason", "so"), 3, "no instance"),
        (("effects", "show", "eff_" + "0" * 32), 3, "no effect"),
        (("start", "nothing"), 3, "no workflow 'nothing'"),
        (("start", "greet", "--version", "9"), 3, "version 9"),
        (("instances", "show", "nonsense"), 3, "is not an id"),
        (("instances", "list", "--tenant", "!"), 2, "is not a tenant id"),
        (("instances", "list", "--status", "odd"), 2, "odd"),
        (("cancel", NOBODY), 2, "--reason"),
        (("start", "greet", "--input", "{"), 2, "is not JSON"),
        (("start", "greet", "--input", '{"a": 1, "a": 2}'), 2, "twice"),
        (("start", "greet", "--input", "[NaN]"), 2, "NaN"),
        (("start", "greet", "--input", "@nowhere.json"), 2, "nowhere.json"),
        (("start", "greet", "--input", "[]"), 2, "does not fit"),
        (("start", "greet", "--app", "nowhere:hf"), 2, "no module 'nowhere'"),
        (("instances", "list", "--database", "mysql://x"), 2, "expected sqlite"),
        (("instances", "list", "--database", "sqlite:///nowhere.db"), 5, "holdfast migrate"),
        (("instances", "list", "--database", "postgresql://ann:secret@127.0.0.1:1/x"), 5, "cannot open PostgreSQL"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_a_refusal_is_one_line_and_an_exit_code(shop: Shop, words: tuple[str, ...], code: int, said: str) -> None:
    result = shop.run(*words)
    assert result.exit_code == code, result.output
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert said in line
    assert "Traceback" not in result.stderr
    assert "secret" not in result.stderr
    assert result.stdout == ""


def test_a_conflict_is_exit_code_4(shop: Shop) -> None:
    id_ = shop.start("greet", "--input", '{"name": "ann"}', "--business-key", "g-1")
    assert shop.start("greet", "--input", '{"name": "ann"}', "--business-key", "g-1") == id_
    assert shop.run("start", "greet", "--input", '{"name": "bob"}', "--business-key", "g-1").exit_code == 4
    shop.work()
    ended = shop.run("signal", id_, "answer")
    assert (ended.exit_code, "completed" in ended.stderr) == (4, True)


def test_an_app_that_cannot_be_used_is_refused_with_the_reason(shop: Shop) -> None:
    (shop.folder / "broken_app.py").write_text("1 / 0")
    assert "ZeroDivisionError" in shop.run("start", "greet", "--app", "broken_app:hf").stderr
    assert "not a Holdfast" in shop.run("start", "greet", "--app", f"{shop.module}:other").stderr
    assert "is not there" in shop.run("start", "greet", "--app", f"{shop.module}:nothing").stderr
    assert "HOLDFAST_APP" in shop.run("start", "greet", env={"HOLDFAST_APP": None}).stderr  # no chart of that name
    result = shop.run("worker", env={"HOLDFAST_APP": None})
    assert result.exit_code == 2


def test_debug_shows_the_traceback(shop: Shop) -> None:
    result = shop.run("instances", "show", NOBODY, env={"HOLDFAST_DEBUG": "1"})
    assert isinstance(result.exception, holdfast.InstanceNotFound)


def test_only_dev_migrate_and_an_embedded_start_migrate(tmp_path: Path, empty_postgres_url: str, shop: Shop) -> None:
    for words in (("instances", "list"), ("verify",), ("worker",), ("start", "ask")):
        result = shop.run(*words, "--database", empty_postgres_url)
        assert (result.exit_code, "holdfast migrate" in result.stderr) == (1, True), words
    fresh = f"sqlite:///{tmp_path / 'folder' / 'fresh.db'}"
    assert shop.run("worker", "--database", fresh).exit_code == 5
    assert shop.run("start", "ask", "--database", fresh).exit_code == 0
    assert shop.run("instances", "list", "--database", fresh).exit_code == 0


def test_migrate_says_what_it_did_and_may_run_twice(tmp_path: Path, empty_postgres_url: str) -> None:
    for url in (f"sqlite:///{tmp_path / 'new.db'}", empty_postgres_url):
        runner = CliRunner(env={"HOLDFAST_DATABASE_URL": url, "HOLDFAST_APP": None})
        assert runner.invoke(cli, ["migrate", "--dry-run"]).exit_code != 0
        assert "was brought up to date" in runner.invoke(cli, ["migrate"]).stderr
        assert "is up to date" in runner.invoke(cli, ["migrate"]).stderr
        assert runner.invoke(cli, ["migrate", "--dry-run"]).exit_code == 0


# -- which database


def test_the_database_is_the_flags_then_the_apps_own_then_the_environments(shop: Shop) -> None:
    """The app's own: what it gives `Holdfast(…)` as an argument. A web process that imports the app opens the same."""
    (shop.folder / "own_database.py").write_text(APP.replace("Holdfast()", 'Holdfast("sqlite:///app.db")'))
    at = {"HOLDFAST_APP": "own_database:hf"}
    assert shop.run("start", "ask", env=at).exit_code == 0
    assert (shop.folder / "app.db").exists()
    assert len(json.loads(shop.run("instances", "list", "-o", "json", env=at).stdout)) == 1
    assert shop.json("instances", "list") == []
    assert json.loads(shop.run("instances", "list", "-o", "json", "--database", shop.url, env=at).stdout) == []
    settings = json.loads(shop.run("doctor", "-o", "json", env=at).stdout)[1]
    assert settings["found"].endswith("database_url: given by the app")


def test_an_operator_reads_the_database_of_the_settings_though_the_app_is_broken(shop: Shop) -> None:
    id_ = shop.start("ask")
    (shop.folder / "broken_app.py").write_text("1 / 0")
    result = shop.run("instances", "show", id_, env={"HOLDFAST_APP": "broken_app:hf"})
    assert result.exit_code == 0 and id_ in result.stdout
    assert "ZeroDivisionError" in result.stderr and "the database of HOLDFAST_DATABASE_URL" in result.stderr
    without = {"HOLDFAST_APP": "broken_app:hf", "HOLDFAST_DATABASE_URL": None}
    assert shop.run("instances", "show", id_, env=without).exit_code == 2


def test_commands_that_need_no_workflows_need_no_app(shop: Shop) -> None:
    id_ = shop.start("ask")
    without: dict[str, str | None] = {"HOLDFAST_APP": None}
    for words in (
        ("instances", "list"), ("instances", "show", id_), ("signal", id_, "answer"), ("effects", "list"),
        ("workers", "list"), ("verify",), ("migrate",), ("cancel", id_, "--reason", "so"),
    ):  # fmt: skip
        assert shop.run(*words, env=without).exit_code == 0, words


# -- output


def test_output_is_a_table_or_json_or_lines(shop: Shop) -> None:
    ids = [shop.start("ask"), shop.start("ask")]
    table = shop.ok("instances", "list")
    assert table.splitlines()[0].split()[:2] == ["id", "workflow"]
    assert all(id_ in table for id_ in ids)
    assert "\x1b" not in table
    lines = [json.loads(line) for line in shop.ok("instances", "list", "-o", "jsonl").splitlines()]
    assert [one["id"] for one in lines] == ids[::-1]
    for words in (("instances", "show", ids[0]), ("instances", "history", ids[0]), ("workers", "list"), ("verify",)):
        shop.ok(*words)
        shop.json(*words)
        shop.ok(*words, "-o", "jsonl")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli.main", *words]


def environment(**more: str) -> dict[str, str]:
    """Ours, with the package and the examples on the path wherever the process is started."""
    path = os.pathsep.join([str(Path(holdfast.__file__).parents[1]), str(ROOT)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "NO_COLOR"))}
    return kept | {"PYTHONPATH": path, "TERM": "xterm-256color", "COLUMNS": "160"} | more


def on_a_terminal(words: list[str], typed: str = "", **more: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**more)) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        seen = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            seen += piece
    os.close(ours)
    return process.returncode, seen.decode()


def test_a_terminal_gets_colours_unless_it_says_no(shop: Shop) -> None:
    id_ = shop.start("ask")
    shop.work()
    words = command("instances", "list", "--database", shop.url)
    code, coloured = on_a_terminal(words)
    assert (code, "\x1b[" in coloured, id_ in coloured) == (0, True, True)
    code, plain = on_a_terminal(words, NO_COLOR="1")
    assert (code, "\x1b[3" in plain, id_ in plain) == (0, False, True)


def test_a_terminal_is_asked_before_an_instance_is_cancelled(shop: Shop) -> None:
    id_ = shop.start("ask")
    words = command("cancel", id_, "--reason", "so", "--database", shop.url)
    assert on_a_terminal(words, "n\n")[0] == 1
    shop.work()
    assert shop.json("instances", "show", id_)["status"] == "waiting"
    assert on_a_terminal(words, "y\n")[0] == 0
    shop.work()
    assert shop.json("instances", "show", id_)["status"] == "cancelled"


# -- verify


def test_verify_finds_every_chain_whole(shop_on_both: Shop) -> None:
    shop = shop_on_both
    shop.start("greet", "--version", "1", "--input", '{"name": "ann"}')
    shop.work()
    assert shop.json("verify") == {"instances": 1, "rows": 3, "faults": []}


def test_verify_names_the_row_that_was_tampered_with(shop: Shop) -> None:
    id_ = shop.start("greet", "--version", "1", "--input", '{"name": "ann"}')
    shop.start("ask")
    shop.work()
    database = apsw.Connection(shop.url.removeprefix("sqlite:///"))
    tables = database.execute("select name, tbl_name from sqlite_schema where type = 'trigger'").fetchall()
    for trigger, table in tables:
        if "history" in table:
            database.execute(f'drop trigger "{trigger}"')
    [(table,)] = database.execute("select tbl_name from sqlite_schema where type = 'table' and name like '%history'")
    database.execute(
        f"update {table} set payload = cast('{{\"result\":\"bob\"}}' as blob) where type = 'STEP_COMPLETED'"
    )
    database.close()
    result = shop.run("verify")
    assert result.exit_code == 1
    assert id_ in result.stdout
    verdict = json.loads(shop.run("verify", "-o", "json").stdout)
    assert [(fault["instance_id"], fault["seq"]) for fault in verdict["faults"]] == [(id_, 2)]
    [fault] = [json.loads(line) for line in shop.run("verify", "-o", "jsonl").stdout.splitlines()]
    assert fault["tenant_id"] == "default"


# -- processes of their own


class Process:
    """A `holdfast` process; its log lines are read back as JSON."""

    def __init__(self, folder: Path, *words: str, **more: str) -> None:
        self.log = folder / f"{uuid.uuid4().hex}.err"
        self.out = folder / f"{uuid.uuid4().hex}.out"
        with self.log.open("w") as err, self.out.open("w") as out:
            self.process = subprocess.Popen(
                command(*words), cwd=folder, env=environment(**more), stdout=out, stderr=err
            )

    def events(self) -> list[dict[str, Any]]:
        found = []
        for line in self.log.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # a word for people
        return found

    def seen(self, event: str, **fields: Any) -> bool:
        return any(fields.items() <= one.items() for one in self.events() if one["event"] == event)

    def wait_for(self, event: str, **fields: Any) -> None:
        wait_until(lambda: self.seen(event, **fields) or self.process.poll() is not None, lambda: self.log.read_text())
        assert self.seen(event, **fields), self.log.read_text()

    def send(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        try:
            return self.process.wait(timeout=200)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on and on: {self.log.read_text()}") from None


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*words: str, **more: str) -> Process:
        started.append(Process(tmp_path, *words, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def wait_until(true: Callable[[], bool], said: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, said()
        time.sleep(0.05)


def test_a_killed_dev_goes_on_where_it_was(tmp_path: Path, processes: Callable[..., Process]) -> None:
    first = processes("dev", "--port", "0", "--app", "examples.orders:hf")
    first.wait_for("effect_succeeded", step="pay")
    first.send(signal.SIGKILL)

    second = processes("dev", "--port", "0", "--app", "examples.orders:hf")
    second.wait_for("worker_started")
    runner = CliRunner(env={"HOLDFAST_DATABASE_URL": f"sqlite:///{tmp_path}/.holdfast/holdfast.db"})
    [order] = json.loads(runner.invoke(cli, ["instances", "list", "-o", "json"]).stdout)
    assert "order v1\n" in second.out.read_text()
    hint = f"signal {order['id']} confirmed"
    wait_until(lambda: hint in second.out.read_text(), lambda: second.out.read_text())
    assert first.seen("step_failed", instance_id=order["id"], step="reserve", attempt=1)
    assert first.seen("step_completed", instance_id=order["id"], step="reserve", attempt=2)

    assert runner.invoke(cli, ["signal", order["id"], "confirmed", "--payload", '{"ok": true}']).exit_code == 0
    second.wait_for("instance_completed", instance_id=order["id"])
    assert second.seen("timer_fired", instance_id=order["id"])
    assert second.seen("step_completed", instance_id=order["id"], step="ship")
    assert not second.seen("step_completed", step="reserve")
    assert second.send(signal.SIGINT) == 0
    assert second.seen("worker_stopped")

    assert len(list((tmp_path / ".holdfast" / "provider").iterdir())) == 1
    assert runner.invoke(cli, ["verify"]).exit_code == 0
    [stopped] = [
        one
        for one in json.loads(runner.invoke(cli, ["workers", "list", "-o", "json"]).stdout)
        if one["state"] == "stopped"
    ]
    assert stopped["definitions"] == "order v1"


def test_a_start_waits_for_its_result(shop_on_both: Shop, processes: Callable[..., Process]) -> None:
    shop = shop_on_both
    at = {"HOLDFAST_APP": shop.app, "HOLDFAST_DATABASE_URL": shop.url}
    worker = processes("worker", "--concurrency", "10", "--verbose", **at)
    worker.wait_for("worker_started")
    done = shop.json("start", "greet", "--version", "1", "--input", '{"name": "ann"}', "--wait", "60")
    assert (done["status"], done["result"]) == ("completed", {"hello": "ann"})
    failed = shop.run("start", "boom", "--wait", "60", "-o", "json")
    assert (failed.exit_code, json.loads(failed.stdout)["status"]) == (1, "failed")
    assert "it went wrong" in failed.stderr
    late = shop.run("start", "ask", "--wait", "0.2")
    assert (late.exit_code, late.stdout.startswith("ins_"), "still" in late.stderr) == (1, True, True)
    [one] = [one for one in shop.json("workers", "list") if one["pid"] == worker.process.pid]
    assert one["state"] == "live"
    assert worker.send(signal.SIGTERM) == 0
    [one] = [one for one in shop.json("workers", "list") if one["pid"] == worker.process.pid]
    assert one["state"] == "stopped"


def test_a_worker_serves_its_queues_only(shop: Shop, processes: Callable[..., Process]) -> None:
    at = {"HOLDFAST_APP": shop.app, "HOLDFAST_DATABASE_URL": shop.url}
    processes("worker", "--queue", "side", **at).wait_for("worker_started")
    greeting = shop.start("greet", "--input", '{"name": "ann"}')
    assert shop.json("start", "aside", "--wait", "60")["result"] == "done aside"
    assert shop.json("instances", "show", greeting)["status"] == "pending"


def test_dev_serves_every_queue_of_the_app(shop: Shop, processes: Callable[..., Process]) -> None:
    processes("dev", "--port", "0", "--app", shop.app, "--database", shop.url).wait_for("worker_started")
    assert shop.json("start", "aside", "--wait", "60")["result"] == "done aside"
    assert shop.json("start", "greet", "--input", '{"name": "ann"}', "--wait", "60")["result"] == "hello again"


def test_a_step_that_never_ends_is_handed_back_when_the_grace_is_over(
    shop: Shop, processes: Callable[..., Process]
) -> None:
    at = {"HOLDFAST_APP": shop.app, "HOLDFAST_DATABASE_URL": shop.url}
    worker = processes("worker", "--grace", "0.2", "--verbose", **at)
    id_ = shop.start("stuck")
    worker.wait_for("instance_started", instance_id=id_)
    assert worker.send(signal.SIGINT) == 0
    assert [one["holds"] for one in shop.json("workers", "list")] == [0]


@pytest.mark.parametrize("workflow", ["pays", "clings"], ids=["in a thread", "that takes no cancel"])
def test_a_call_that_cannot_be_stopped_is_on_record_as_unknown_when_the_grace_is_over_and_the_process_ends(
    shop_on_both: Shop, processes: Callable[..., Process], workflow: str
) -> None:
    shop = shop_on_both
    at = {"HOLDFAST_APP": shop.app, "HOLDFAST_DATABASE_URL": shop.url}
    worker = processes("worker", "--grace", "0.2", "--verbose", **at)
    id_ = shop.start(workflow)
    worker.wait_for("effect_started", instance_id=id_)
    assert worker.send(signal.SIGTERM) == 0
    assert worker.seen("calls_outlive_worker")
    [effect] = shop.json("effects", "list")
    assert (effect["instance_id"], effect["state"]) == (id_, "outcome_unknown")
    refused = shop.run("effects", "resolve", effect["id"], "did-not-happen", "--actor", "a", "--reason", "r", "--yes")
    assert "may still be on its way" in refused.output, "its worker is known gone, and only time is missing"


def test_a_handler_that_cancels_every_task_fails_its_step_and_ends_no_worker(
    shop: Shop, processes: Callable[..., Process]
) -> None:
    at = {"HOLDFAST_APP": shop.app, "HOLDFAST_DATABASE_URL": shop.url}
    worker = processes("worker", **at)
    worker.wait_for("worker_started")
    failed = shop.run("start", "cancels", "--wait", "60", "-o", "json")
    assert (failed.exit_code, json.loads(failed.stdout)["status"]) == (1, "failed")
    assert worker.seen("cancel_refused", task="holdfast-claiming") and not worker.seen("worker_task_ended")
    done = shop.json("start", "greet", "--input", '{"name": "ann"}', "--wait", "60")
    assert done["result"] == {"hello": "ann"} or done["status"] == "completed"
    assert worker.send(signal.SIGTERM) == 0


def test_a_task_that_ends_the_process_ends_it(shop_on_both: Shop, processes: Callable[..., Process]) -> None:
    shop = shop_on_both
    at = {"HOLDFAST_APP": shop.app, "HOLDFAST_DATABASE_URL": shop.url}
    worker = processes("worker", "--grace", "0.2", **at)
    id_ = shop.start("exits")
    assert worker.ended() == 3, worker.log.read_text()
    assert [one["holds"] for one in shop.json("workers", "list")] in ([], [0])
    assert shop.json("instances", "show", id_)["status"] != "completed"


def test_asked_twice_it_stops_at_once(shop: Shop, processes: Callable[..., Process]) -> None:
    at = {"HOLDFAST_APP": shop.app, "HOLDFAST_DATABASE_URL": shop.url}
    worker = processes("worker", "--grace", "3600", "--verbose", **at)
    id_ = shop.start("stuck")
    worker.wait_for("instance_started", instance_id=id_)
    worker.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in worker.log.read_text(), lambda: worker.log.read_text())
    assert worker.send(signal.SIGINT) == 130


# -- logs


def test_secrets_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", format="json")
    log = structlog.get_logger()
    log.debug("not_shown")
    log.info("connected", url="postgresql://ann:hunter2@db/shop", api_key="hunter2", more={"password": "hunter2"})
    log.warning("heartbeat_failed", error="OSError('postgresql://ann:hunter2@hunter2@db/shop is away')")
    captured = capsys.readouterr()
    first, second = [json.loads(line) for line in captured.err.splitlines()]
    assert captured.out == ""
    assert "hunter2" not in captured.err
    assert first["url"] == "postgresql://ann:***@db/shop"
    assert (first["level"], second["level"]) == ("info", "warning")


def test_a_terminal_gets_lines_and_a_file_gets_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", format="console")
    structlog.get_logger().info("step_completed", step="reserve")
    assert "step=reserve" in capsys.readouterr().err
    logs.configure("info")
    structlog.get_logger().info("step_completed", step="reserve")
    assert json.loads(capsys.readouterr().err)["step"] == "reserve"


def test_an_app_is_named_by_module_alone_when_it_calls_its_holdfast_hf(shop: Shop) -> None:
    assert shop.ok("start", "ask", "--app", shop.module).startswith("ins_")
    assert isinstance(importlib.import_module(shop.module).hf, Holdfast)
