"""What stands in the Dockerfile and in compose.yaml is true of our command, pinned, watched and not root."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from holdfast.cli.main import cli
from holdfast.settings import TABLE, variable
from holdfast.store.postgres import WRITER_SETTINGS
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("holdfast:")]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PIN = re.compile(r"^([A-Za-z0-9._\[\]-]+==[^\n]+?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)
WITH_TAG = re.compile(r"[a-z][a-z0-9_-]*:[0-9][0-9A-Za-z.-]*")  # a short official name, and not `latest`


def known_command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in joined.splitlines())
        if word and not word.startswith("#")
    ]


def said(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def seconds(span: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", span).groups()  # type: ignore[union-attr]
    return float(number) * (60 if unit == "m" else 1)


# -- the image


def test_everything_from_outside_comes_with_hashes() -> None:
    installs = [run for run in said("RUN") if re.search(r"pip (install|wheel)", run)]
    assert any("requirements/run.txt" in run for run in installs)
    for run in installs:
        for one in run.split("&&"):
            assert "--require-hashes" in one or ("--no-index" in one and "--no-deps" in one), one
    for name in ("run.txt", "build.txt"):
        text = (ROOT / "requirements" / name).read_text()
        assert len(PIN.findall(text)) == len(re.findall(r"^\w", text, re.M)) > 0


def test_what_builds_the_wheel_is_pinned_as_for_development() -> None:
    development = dict(PIN.findall((ROOT / "requirements" / "dev.txt").read_text()))
    for pin, hashes in PIN.findall((ROOT / "requirements" / "build.txt").read_text()):
        assert development.get(pin) == hashes, f"copy {pin.partition('==')[0]} from dev.txt to build.txt"


def test_the_image_does_not_run_as_root() -> None:
    last = [number for number, (word, _) in enumerate(instructions()) if word == "FROM"][-1]
    final = instructions()[last:]
    [user] = [rest for word, rest in final if word == "USER"]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    assert [word for word, _ in final].index("USER") > max(n for n, (word, _) in enumerate(final) if word == "RUN")
    assert said("ENTRYPOINT") == ['["holdfast"]'] and said("STOPSIGNAL") == ["SIGTERM"]


def test_base_images_are_pinned() -> None:
    for image in said("FROM"):
        assert WITH_TAG.fullmatch(image.partition(" AS ")[0]), image


def test_what_is_copied_is_there_and_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    for copied in said("COPY"):
        *sources, _target = [word for word in copied.split() if not word.startswith("--")]
        for source in [] if "--from=" in copied else sources:
            assert (ROOT / source).exists() and source in allowed, source


# -- the services


def test_there_is_everything_that_is_needed() -> None:
    assert set(SERVICES) == {"postgres", "migrate", "server", "worker"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", OURS)
def test_every_command_exists_with_its_options(name: str) -> None:
    command, *words = SERVICES[name]["command"]
    known = {option for parameter in known_command(command).params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    known_command(command).make_context(command, words, resilient_parsing=False)


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    assert WITH_TAG.fullmatch(SERVICES[name]["image"])


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "migrate"])
def test_what_runs_is_watched_and_has_time_to_stop(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert seconds(service["healthcheck"]["timeout"]) <= seconds(service["healthcheck"]["interval"])
    assert seconds(service["stop_grace_period"]) >= 30
    assert service["restart"] == "unless-stopped"


def test_a_worker_may_use_its_grace() -> None:
    words = SERVICES["worker"]["command"]
    assert seconds(SERVICES["worker"]["stop_grace_period"]) > float(words[words.index("--grace") + 1])


@pytest.mark.parametrize("name", ["server", "worker"])
def test_the_health_check_asks_where_the_process_listens(name: str) -> None:
    words = SERVICES[name]["command"]
    port = words[words.index("--port" if name == "server" else "--metrics-port") + 1]
    check = SERVICES[name]["healthcheck"]["test"]
    assert f"http://127.0.0.1:{port}/readyz" in check[-1]
    compile(check[-1], "healthcheck", "exec")


def test_the_services_do_as_they_are_told(empty_postgres_url: str, tmp_path: Path) -> None:
    """Every command with its variables and its health check, on a database that is empty; only the ports are others."""
    (tmp_path / "database_url").write_text(empty_postgres_url + "\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}

    def begin(name: str, *words: str, port: int = 0) -> subprocess.Popen[str]:
        service = SERVICES[name]
        environment = kept | service["environment"] | {
            "HOLDFAST_DATABASE_URL_FILE": str(tmp_path / "database_url"), "EXPENSES_FOLDER": str(tmp_path),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }  # fmt: skip
        command = [{"8700": str(port), "9100": str(port)}.get(word, word) for word in words or service["command"]]
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", *command], cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    for job in ((), ("principals", "create", "ops", "--role", "admin"), ("keys", "create", "ops")):
        process = begin("migrate", *job)
        out, _ = process.communicate(timeout=200)
        assert process.returncode == 0, out
    for name, its in (("server", "8700"), ("worker", "9100")):
        port = free_port()
        process = begin(name, port=port)
        check = SERVICES[name]["healthcheck"]["test"][-1].replace(its, str(port))
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while subprocess.run([sys.executable, "-c", check], capture_output=True, check=False).returncode:
                assert process.poll() is None and time.monotonic() < end, process.communicate()
                time.sleep(0.1)
            process.terminate()
            out, _ = process.communicate(timeout=200)
            assert process.returncode == 0, out
        finally:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_nothing_starts_before_the_database_is_migrated() -> None:
    assert SERVICES["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    for name in ("server", "worker"):
        assert SERVICES[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


@pytest.mark.parametrize("name", OURS)
def test_secrets_come_as_files(name: str) -> None:
    service = SERVICES[name]
    known = {name for setting in TABLE for name in (variable(setting), f"{variable(setting)}_FILE")}
    for word, value in service["environment"].items():
        if word.startswith("HOLDFAST_"):
            assert word in known, word
        assert "password" not in str(value).lower() and "://" not in str(value)
    assert service["environment"]["HOLDFAST_DATABASE_URL_FILE"] == f"/run/secrets/{service['secrets'][0]}"
    assert set(service["secrets"]) <= set(COMPOSE["secrets"])
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]


def test_secrets_and_volumes_are_declared_and_never_committed() -> None:
    assert SERVICES["postgres"]["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/postgres_password"
    assert set(SERVICES["postgres"]["secrets"]) <= set(COMPOSE["secrets"])
    for secret in COMPOSE["secrets"].values():
        ignored = subprocess.run(["git", "check-ignore", "-q", secret["file"]], cwd=ROOT, check=False)
        assert ignored.returncode == 0, f"{secret['file']} could be committed"
    named = {mount.partition(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())}
    assert {name for name in named if not name.startswith(".")} == set(COMPOSE["volumes"])


def test_the_server_is_open_to_this_machine_only() -> None:
    assert SERVICES["server"]["ports"] == ["127.0.0.1:8700:8700"]


def test_the_guide_names_every_session_setting_that_a_pooler_must_not_drop() -> None:
    guide = (ROOT / "docs" / "deployment.md").read_text()
    [ignored] = re.findall(r"^ignore_startup_parameters = (.+)$", guide, re.M)
    assert set(ignored.split(",")) == WRITER_SETTINGS.keys() - {"application_name"} | {"role"}
    said_there = dict(re.findall(r"^alter role shop_worker set (\w+) = '?([^;']+)'?;$", guide, re.M))
    assert said_there == {name: value for name, value in WRITER_SETTINGS.items() if name != "application_name"}


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", ".dockerignore", "docs/deployment.md"])
def test_no_registry_is_named(name: str) -> None:
    text = (ROOT / name).read_text()
    hosts = (
        r"docker\.io|ghcr\.io|quay\.io|gcr\.io|amazonaws|azurecr|registry\.|pypi\.|npm[j]s|--index-url|--extra-index"
    )
    assert re.findall(hosts, text) == []
