"""The README as the package's page. Links into the repository lead nowhere there, so they become plain text."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?![a-z]+:)[^)]*\)\n+", re.M)
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)([^)\s]*)\)")


def page(readme: str) -> str:
    return LINK.sub(lambda link: f"{link[1]} (`{link[2]}`)", PICTURE.sub("", readme))


class PageHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": page(text)}
