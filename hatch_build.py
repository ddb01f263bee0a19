"""Metadata of the package that depend on the address of the repository.

The address is defined once, in `pyproject.toml` under `[tool.hatch.metadata.hooks.custom]`. While
it is empty, a package index gets neither links to the repository nor links to files in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

TERMS_URL = "https://kaldir.vc.cit.tum.de/scannet/ScanNet_TOS.pdf"
# An image or a link to a file of the repository: `![text](path)` or `[text](path)`.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


class MetadataHook(MetadataHookInterface):
    """Adds the description and the addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the dynamic fields to the metadata."""
        root = Path(self.root)
        repository = self.config["repository"]
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": make_description(text, repository),
        }
        metadata["urls"] = make_urls(repository)


def make_urls(repository: str) -> dict[str, str]:
    """Return the addresses that a package index shows.

    Args:
        repository: Address of the repository; empty if there is none yet.
    """
    urls = {"ScanNet": "http://www.scan-net.org", "ScanNet Terms of Use": TERMS_URL}
    if repository:
        urls |= {"Repository": repository, "Issues": f"{repository}/issues"}
    return urls


def make_description(text: str, repository: str) -> str:
    """Return README with links that work outside of the repository.

    Without a repository, a link becomes its text, and an image is left out.
    """

    def replace(match: re.Match[str]) -> str:
        image_mark, link_text, path = match.groups()
        if repository:
            kind = "raw" if image_mark else "blob"
            return f"{image_mark}[{link_text}]({repository}/{kind}/main/{path})"
        return "" if image_mark else link_text

    return _LINK.sub(replace, text)
