"""The distribution `holdfast-engine`: its page, its licence, its content, and that it works where it is installed."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parent.parent
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of the licence's own full text


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    for kind in ("wheel", "sdist"):
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)], cwd=ROOT, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        return BytesParser().parsebytes(packed.read(name))


def test_the_package_says_what_it_is(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("holdfast-engine", holdfast.__version__)
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    assert metadata["Author"] == "The Holdfast authors"
    assert metadata["Project-URL"] == "Homepage, https://holdfast.dev"
    assert "idempotency" in metadata["Keywords"] and metadata["Summary"]
    assert "otel" in metadata.get_all("Provides-Extra", [])


def test_the_packages_page_is_the_readme_without_links_that_lead_nowhere_there(metadata: Message) -> None:
    page = metadata.get_payload()
    assert isinstance(page, str) and metadata["Description-Content-Type"] == "text/markdown"
    assert "pip install holdfast-engine" in page and "## The promise" in page
    assert re.findall(r"\]\((?!https?:)[^)]*\)", page) == []
    assert "Steps (`docs/steps.md`)" in page and "pictures/" not in page


def test_the_licence_is_whole_and_inside(wheel: Path, built: Path) -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    with zipfile.ZipFile(wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith("licenses/LICENSE")]
        assert hashlib.sha256(packed.read(name)).hexdigest() == APACHE_2
    [source] = built.glob("*.tar.gz")
    with tarfile.open(source) as packed_source:
        inside = {name.partition("/")[2] for name in packed_source.getnames()}
    assert {"LICENSE", "README.md", "SECURITY.md", "CHANGELOG.md", "hatch_build.py", "docs/steps.md"} <= inside


def test_the_wheel_holds_every_file_of_the_source_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"], cwd=ROOT, capture_output=True,
        text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert inside == {name.removeprefix("src/") for name in tracked}
    assert {"holdfast/py.typed", "holdfast/api/docs.js"} <= inside


def test_where_it_is_installed_an_app_is_begun_and_its_tests_pass(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are those of this environment: there is no network."""
    target, folder = tmp_path / "installed", tmp_path / "shop"
    environment = os.environ | {"PYTHONPATH": str(target), "NO_COLOR": "1"}

    def run(*words: str, cwd: Path = tmp_path) -> str:
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    install = ("install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", *install, "--target", str(target), str(wheel))
    command = str(target / "bin" / "holdfast")
    assert run(command, "--version") == f"holdfast, version {holdfast.__version__}\n"
    assert str(target) in run(sys.executable, "-c", "import holdfast; print(holdfast.__file__)")
    run(command, "init", str(folder))
    assert "2 passed" in run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder)


def test_to_run_the_example_nothing_is_installed_that_only_tests_need(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "hatch_build.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "requirements").mkdir()
    for file in (ROOT / "requirements").iterdir():
        (tmp_path / "requirements" / file.name).write_bytes(file.read_bytes())

    def would_do(target: str) -> str:
        return subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert "requirements/run.txt" in would_do("run") and "requirements/dev.txt" not in would_do("run")
    for target in ("test", "check"):
        assert "requirements/run.txt" in would_do(target) and "requirements/dev.txt" in would_do(target)
        assert "tests.support.browser" in would_do(target)
