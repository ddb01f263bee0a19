"""Hooks of MkDocs: pages of the site that are not in docs/.

README.md becomes the first page. The pages of the API are made from the docstrings, and the page of
commands from their help texts. So docs/ stays readable without MkDocs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import scannet_prep
from scannet_prep import convert, evaluation, frames, superpoints, synthetic, tables, transforms
from scannet_prep.cli.main import make_parser

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
API = (
    scannet_prep,
    transforms,
    evaluation,
    tables,
    superpoints,
    frames,
    convert,
    synthetic,
)


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
    for module in API:
        name = module.__name__.rpartition(".")[2]
        pages[f"api/{name}.md"] = make_api_page(module)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def make_first_page() -> str:
    """Return README with links from docs/ instead of from the root of the repository."""
    text = (REPOSITORY_DIR / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", "](", text)


def make_commands_page() -> str:
    """Return a page with the help text of every command."""
    os.environ["COLUMNS"] = "80"
    parser = make_parser()
    # argparse has no public list of commands.
    commands = next(action for action in parser._actions if action.dest == "command")  # noqa: SLF001
    lines = ["# Commands", ""]
    for each in (parser, *dict(commands.choices or {}).values()):
        lines += [f"## {each.prog}", "", "```text", each.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def make_api_page(module: ModuleType) -> str:
    """Return a page that mkdocstrings fills with the docstrings of a module."""
    lines = [f"# {module.__name__}", "", f"::: {module.__name__}"]
    names = getattr(module, "__all__", [])
    if names:
        lines += ["    options:", "      members: false", ""]
    for name in sorted(names, key=str.lower):
        if not name.startswith("_"):
            lines += [f"::: {module.__name__}.{name}", ""]
    if "__version__" in names:
        lines += ["## `__version__`", "", "Version of the package, for example `0.1.0`."]
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, **_options: Any) -> str:  # noqa: ANN401 - of MkDocs
    """Hide comments for the tests, and let links to README lead to the first page."""
    markdown = markdown.replace("](../README.md", "](index.md")
    return re.sub(r"^<!-- not run: .+ -->\n", "", markdown, flags=re.MULTILINE)
