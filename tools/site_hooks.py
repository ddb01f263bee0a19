"""Hooks of MkDocs: pages of the site that are not in docs/.

README.md becomes the first page. The pages of the API are made from the docstrings, and the page of
commands from their help texts. So docs/ stays readable without MkDocs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import scannet_prep
from scannet_prep import evaluation, frames, synthetic, transforms
from scannet_prep.cli.main import make_parser

REPOSITORY_DIR = Path(__file__).resolve().parent.parent

# Title and names of each page of the API, by its file.
API_PAGES: dict[str, tuple[str, list[str]]] = {
    "api/scannet_prep.md": ("scannet_prep", list(scannet_prep.__all__)),
    "api/transforms.md": ("scannet_prep.transforms", list(transforms.__all__)),
    "api/evaluation.md": ("scannet_prep.evaluation", list(evaluation.__all__)),
    "api/tables.md": ("scannet_prep.tables", []),
    "api/superpoints.md": ("scannet_prep.superpoints", []),
    "api/frames.md": ("scannet_prep.frames", list(frames.__all__)),
    "api/convert.md": ("scannet_prep.convert", []),
    "api/synthetic.md": ("scannet_prep.synthetic", list(synthetic.__all__)),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the address of the repository from pyproject.toml."""
    text = (REPOSITORY_DIR / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^repository = "(.+)"$', text, re.MULTILINE)  # tomllib needs Python 3.11
    if match is not None:
        config.repo_url = match[1]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    pages = {"index.md": make_first_page(), "commands.md": make_commands_page()}
    for path, (module, names) in API_PAGES.items():
        pages[path] = make_api_page(module, names)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def make_first_page() -> str:
    """Return README with links from docs/ instead of from the root of the repository."""
    text = (REPOSITORY_DIR / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", "](", text)


def make_commands_page() -> str:
    """Return a page with the help text of every command."""
    actions = make_parser()._actions  # noqa: SLF001 - argparse has no public list of commands
    commands = next(action.choices for action in actions if action.dest == "command")
    lines = ["# Commands", ""]
    for words in ([], *([name] for name in commands or ())):
        title = " ".join(["scannet-prep", *words])
        lines += [f"## {title}", "", "```text", read_help(*words), "```", ""]
    return "\n".join(lines)


def read_help(*words: str) -> str:
    """Return the help text of the program, or of one command."""
    done = subprocess.run(
        [sys.executable, "-m", "scannet_prep", *words, "--help"],
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rstrip()


def make_api_page(module: str, names: list[str]) -> str:
    """Return a page that mkdocstrings fills with the docstrings of a module.

    Args:
        module: The module.
        names: Its public names; if empty, those that do not begin with an underscore.
    """
    lines = [f"# {module}", ""]
    if not names:
        lines.append(f"::: {module}")
    else:
        lines += [f"::: {module}", "    options:", "      members: false", ""]
    for name in sorted(names, key=str.lower):
        if not name.startswith("_"):
            lines += [f"::: {module}.{name}", ""]
    if "__version__" in names:
        lines += ["## `__version__`", "", "Version of the package, for example `0.1.0`."]
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, **_options: Any) -> str:  # noqa: ANN401 - of MkDocs
    """Hide comments for the tests, and let links to README lead to the first page."""
    markdown = markdown.replace("](../README.md", "](index.md")
    return re.sub(r"^<!-- not run: .+ -->\n", "", markdown, flags=re.MULTILINE)
