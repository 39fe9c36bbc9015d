"""The browser that tests of pages stand on: which one is taken, and what is said where none can be had."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.browser import NoBrowser, find_chromium


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No browser on this machine, and an empty cache."""
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    monkeypatch.setattr(browser, "INSTALLED", ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return tmp_path


def brings(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """What `npm pack` is here."""
    monkeypatch.setattr(browser, "npm", lambda: [sys.executable, "-c", *words])


def test_the_one_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(browser.VARIABLE, sys.executable)
    assert find_chromium() == (Path(sys.executable), {})


def test_a_name_that_is_no_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(browser.VARIABLE, "/no/such/chromium")
    with pytest.raises(NoBrowser, match="HOLDFAST_TEST_BROWSER is '/no/such/chromium', which is no program"):
        find_chromium()


def test_without_a_network_it_is_said_what_helps(nothing_installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brings(monkeypatch, "import sys; sys.exit('npm error network is away')")
    with pytest.raises(NoBrowser, match=r"network is away.*Install Chromium or Chrome, or name one in HOLDFAST_TEST"):
        find_chromium()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(NoBrowser, match=r"for Linux on x86_64.*Install Chromium"):
        find_chromium()


def test_a_package_with_another_hash_is_not_used(nothing_installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(nothing_installed / "evil.tgz", "w:gz") as packed:
        packed.add(__file__, "package/bin/chromium.br")
    brings(monkeypatch, f"import shutil; shutil.copy({str(nothing_installed / 'evil.tgz')!r}, '.'); print('evil.tgz')")
    for _ in range(2):  # nothing of the first attempt is believed by the second
        with pytest.raises(NoBrowser, match="expected sha512-"):
            find_chromium()
    assert not list((nothing_installed / "cache").rglob("chromium"))


def test_who_asks_for_it_beforehand_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(browser.VARIABLE, "/no/such/chromium")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.browser"], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
