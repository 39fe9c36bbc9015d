"""Which source a long run ran on, so that what came through counts for that source only."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def source_digest(*folders: str) -> str:
    """Of the engine, and of the modules of a run that lie in `folders` of the tests; not of their own tests."""
    digest = sha256()
    parts = [
        *(ROOT / "src").rglob("*"),
        *(path for folder in folders for path in (ROOT / "tests" / folder).glob("*.py")),
    ]
    for path in sorted(p for p in parts if p.suffix in (".py", ".sql") and not p.name.startswith("test_")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
