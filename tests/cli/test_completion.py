"""The shell completes the command: its nouns, verbs, options and choices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import Desk

HOLDFAST = Path(sys.executable).parent / "holdfast"


def completed(shell: str, *words: str) -> str:
    line = " ".join(["holdfast", *words])
    env = {**os.environ, "_HOLDFAST_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    if shell == "fish":
        env["COMP_CWORD"] = words[-1]
    return subprocess.run([HOLDFAST], env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script_and_is_answered(desk: Desk, shell: str) -> None:
    script = desk.ok("completion", shell).stdout
    assert "_HOLDFAST_COMPLETE" in script and f"{shell}_complete" in script and "holdfast" in script
    assert "dead-letters" in completed(shell, "dead")
    assert "set-hosts" in completed(shell, "tenants", "set")
    assert "--older-than" in completed(shell, "instances", "list", "--old")
    assert "waiting" in completed(shell, "instances", "list", "--status", "wai")


def test_a_real_bash_completes_with_the_script(desk: Desk, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "script").write_text(desk.ok("completion", "bash").stdout)
    asked = (
        "shopt -s progcomp; source ./script; COMP_WORDS=(holdfast instances li); COMP_CWORD=2; "
        "_holdfast_completion holdfast; echo ${COMPREPLY[@]}"
    )
    env = {**os.environ, "PATH": f"{HOLDFAST.parent}:{os.environ['PATH']}"}
    done = subprocess.run([bash, "-c", asked], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["list"], done.stderr
