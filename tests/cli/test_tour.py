"""The README's ten minutes, as printed: begin an app, break a step, read the stack, mend it, go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.api.support import ROOT, Running, wait_until

README = (ROOT / "README.md").read_text()
NEWEST = "ins_…"


class Desk:
    """A folder with an app, a terminal where `dev` runs, and a second one for the commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shims = folder / ".bin"
        self.shims.mkdir(parents=True)
        (self.shims / "holdfast").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast.cli.main "$@"\n')
        (self.shims / "holdfast").chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{self.shims}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip
        self.newest = ""
        self.starts = 0

    def type(self, lines: str) -> str:
        said = ""
        for line in lines.strip().splitlines():
            done = subprocess.run(
                ["sh", "-c", line.replace(NEWEST, self.newest)], cwd=self.folder, env=self.environment, text=True,
                capture_output=True, timeout=200, check=False,
            )  # fmt: skip
            assert done.returncode == 0, line + done.stdout + done.stderr
            if re.fullmatch(r"ins_[0-9a-f]+\n", done.stdout):
                self.newest = done.stdout.strip()
            said += done.stdout
        return said

    def edit(self, before: str, after: str) -> None:
        text = (self.folder / "app.py").read_text()
        assert text.count(before) == 1
        (self.folder / "app.py").write_text(text.replace(before, after))

    def dev(self) -> Running:
        self.starts += 1
        running = Running(
            self.folder / f"dev-{self.starts}.log", "dev", "--port", "0", "--log-format", "console", cwd=self.folder
        )
        wait_until(lambda: "log a browser in" in running.log.read_text(), running.log.read_text)
        return running

    def seen(self, running: Running, words: str) -> None:
        wait_until(lambda: words in running.log.read_text(), lambda: f"{words!r} in {running.log.read_text()}")


def test_a_person_breaks_a_step_reads_why_mends_it_and_goes_on(tmp_path: Path) -> None:
    approve, start, why, go_on = re.findall(r"^```sh tour\n(.*?)^```$", README, re.M | re.S)
    [trace] = re.findall(r"^```text trace\n(.*?)^```$", README, re.M | re.S)
    [mistake] = re.findall(r'write `(order\["\w+"\])`', README)
    desk = Desk(tmp_path)
    desk.type("holdfast init .")

    dev = desk.dev()
    desk.seen(dev, "waiting for you")
    printed = dev.said(r"waiting for you: (holdfast signal .*)")
    assert printed is not None and printed.startswith("holdfast signal ins_")
    assert re.sub(r"ins_[0-9a-f]+", NEWEST, printed) == approve.partition("  #")[0].strip()
    desk.newest = printed.split()[2]
    desk.type(approve)
    desk.seen(dev, "result: {'paid': ")
    dev.stop()

    desk.edit('order["amount_minor"]', mistake)
    dev = desk.dev()
    desk.type(start)
    desk.seen(dev, trace)
    desk.seen(dev, "instance_failed")
    said = desk.type(why)
    assert "KeyError: 'amuont_minor'" in said and "app.py:21 in reserve" in said
    assert 'File "app.py", line 21, in reserve' in said
    dev.stop()

    desk.edit(mistake, 'order["amount_minor"]')
    dev = desk.dev()
    failed = desk.newest
    history = desk.type(go_on)
    assert desk.newest != failed
    wait_until(lambda: '"completed"' in desk.type(f"holdfast instances show {NEWEST} --output json"), "a refund")
    assert "reserve" in history
    dev.stop()
