"""Prints the newest Python on this machine that is newer than the one that runs this, or nothing: `make test-newest`.

Looks at `python3.N` on the path and at pyenv's versions. Release candidates and builds without the GIL are passed over:
not every dependency has a wheel for them. Only the standard library: this runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"python3\.\d+")
ASK = "import sys; v = sys.version_info; print(*v[:3], v.releaselevel, 't' in getattr(sys, 'abiflags', ''))"


def candidates() -> Iterator[Path]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and Path(folder).is_dir():
            yield from (file for file in Path(folder).iterdir() if NAME.fullmatch(file.name))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from pyenv.glob("versions/3.*/bin/python")


def version(interpreter: Path) -> tuple[int, ...] | None:
    """None: it does not run, or is not one to test on. A shim of pyenv may be there for a version that is not."""
    try:
        done = subprocess.run([interpreter, "-c", ASK], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    *numbers, level, free_threaded = done.stdout.split()
    return tuple(map(int, numbers)) if (level, free_threaded) == ("final", "False") else None


def newest() -> Path | None:
    found = [(known, path) for path in candidates() if (known := version(path)) is not None]
    return max((one for one in found if one[0][:2] > sys.version_info[:2]), default=(None, None))[1]


if __name__ == "__main__":
    print(newest() or "")
