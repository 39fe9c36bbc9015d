"""The README's lines for the shell, as printed, against what `make run` starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx

from tests.api.support import ROOT, Running, wait_until
from tests.support.patience import PATIENCE_SECONDS

README = (ROOT / "README.md").read_text()


def test_the_lines_for_the_shell_work_as_printed_and_a_browser_gets_in_once(tmp_path: Path) -> None:
    [block] = re.findall(r"^```sh curl\n(.*?)^```$", README, re.M | re.S)
    shims = tmp_path / "bin"
    shims.mkdir()
    (shims / "curl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.api.curl "$@"\n')
    (shims / "curl").chmod(0o755)
    command = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "holdfast dev" in line)
    app = re.search(r"--app (\S+)", command)
    assert app is not None
    dev = Running(
        tmp_path / "dev.log", "dev", "--app", app[1], "--port", "0", cwd=tmp_path,
        env={"EXPENSE_ID": "claim-1", "EXPENSES_FOLDER": str(tmp_path / "expenses")},
    )  # fmt: skip
    try:
        url = wait_until(lambda: dev.said(r"API +(http\S+)"), lambda: dev.log.read_text())
        wait_until(lambda: "waits for a person" in dev.log.read_text(), lambda: dev.log.read_text())
        text = block.replace("http://127.0.0.1:8700", url)
        # A person reads between the lines; here the proposal has to be there before it is asked for.
        text = text.replace("TASK=$(", f"{_waiting(url)}\nTASK=$(")
        done = subprocess.run(
            ["sh", "-eu", "-c", text], capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False,
            env=os.environ | {"PATH": f"{shims}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": _path()},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert '"status":"pending"' in done.stdout and '"business_key":"claim-2"' in done.stdout
        assert '"status":"succeeded"' in done.stdout, done.stdout
        key = (tmp_path / ".holdfast" / "dev-key").read_text().strip()
        assert key in dev.log.read_text()
        headers = {"Authorization": f"Bearer {key}"}
        wait_until(
            lambda: httpx.get(
                f"{url}/workflow/instances?status=completed", headers=headers, timeout=PATIENCE_SECONDS
            ).json()["items"],
            "a claim that is paid",
        )
        link = dev.said(r"(http\S+/login\?key=\S+)")
        assert link is not None
        _log_in_once(url, link)
    finally:
        dev.stop()


def _waiting(url: str) -> str:
    return (
        f'until api "{url}/workflow/tasks?type=HUMAN" | grep -q tsk_ && '
        f'api "{url}/workflow/instances?business_key=claim-2" | grep -q \'"status":"waiting"\'; do sleep 0.1; done'
    )


def _log_in_once(url: str, link: str) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as browser:
        page = browser.get(link)
        assert page.status_code == 200 and "<form" in page.text and not browser.cookies, "looking does nothing"
        assert browser.get("/workflow/me").status_code == 401
        form = {"key": link.partition("key=")[2]}
        assert browser.post("/login", data=form, headers={"Origin": "http://evil.example"}).status_code == 403
        done = browser.post("/login", data=form, headers={"Origin": url})
        assert (done.status_code, done.headers["location"]) == (303, "/docs")
        assert browser.get("/workflow/me").json()["name"] == "dev"
        start = {"definition_key": "expense"}
        elsewhere = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert browser.post("/workflow/instances", json=start, headers=elsewhere).status_code == 403
        assert browser.post("/workflow/instances", json=start).status_code == 403
        assert browser.post("/workflow/instances", json=start, headers={"Origin": url}).status_code == 422
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as another:
        assert another.post("/login", data=form).status_code == 401, "the link works once"


def _path() -> str:
    return f"{ROOT / 'src'}{os.pathsep}{ROOT}"
