"""The site is built without warnings, has all pages and all public names, and its links work."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import re
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from commands import PYTHON, run_words

import scannet_prep
from scannet_prep import convert, evaluation, frames, superpoints, synthetic, tables, transforms
from scannet_prep.cli.main import make_parser

COMMANDS = next(action.choices for action in make_parser()._actions if action.dest == "command")
REPOSITORY_DIR = Path(__file__).parent.parent
DOCS_DIR = REPOSITORY_DIR / "docs"


def find_public_names(module: ModuleType) -> list[str]:
    """Find the names in `__all__`; without it, the classes and functions that a module defines."""
    names = getattr(module, "__all__", None)
    if names is None:
        members = inspect.getmembers(module, lambda member: hasattr(member, "__module__"))
        names = [name for name, member in members if member.__module__ == module.__name__]
    return [f"{module.__name__}.{name}" for name in names if not name.startswith("_")]


PUBLIC_MODULES = (
    scannet_prep,
    convert,
    evaluation,
    frames,
    superpoints,
    synthetic,
    tables,
    transforms,
)
PUBLIC_NAMES = [name for module in PUBLIC_MODULES for name in find_public_names(module)]


def find_pages(entries: list[object]) -> set[str]:
    """Find the pages in a tree of navigation."""
    pages = set()
    for entry in entries:
        if isinstance(entry, str):
            pages.add(entry)
        else:
            (value,) = entry.values()
            pages |= find_pages(value)
    return pages


def test_navigation_has_every_page_of_docs() -> None:
    config = yaml.safe_load((REPOSITORY_DIR / "mkdocs.yml").read_text())
    pages = {path.name for path in DOCS_DIR.glob("*.md")}

    assert pages - find_pages(config["nav"]) == set()


def build_site(directory: Path) -> None:
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", directory]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    outcome = run_words(PYTHON, *words, cwd=REPOSITORY_DIR, env=environment)
    assert outcome.status == 0, outcome.stdout + outcome.stderr


@pytest.fixture(scope="module")
def site_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The processes of pytest-xdist share a folder, in which the first of them builds the site.
    directory = tmp_path_factory.getbasetemp() / "site"
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = tmp_path_factory.getbasetemp().parent / "site"
    with (directory.parent / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            build_site(directory)
    return directory


@pytest.mark.extra("mkdocs", "material", "mkdocstrings")
def test_reference_has_every_public_name(site_dir: Path) -> None:
    text = "\n".join(path.read_text() for path in site_dir.glob("api/*/index.html"))
    anchors = set(re.findall(r'id="([\w.]+)"', text))

    assert [name for name in PUBLIC_NAMES if name not in anchors] == []


@pytest.mark.extra("mkdocs", "material", "mkdocstrings")
def test_page_of_commands_has_every_help_text(site_dir: Path) -> None:
    text = unescape((site_dir / "commands/index.html").read_text())

    for command in COMMANDS:
        assert f"usage: scannet-prep {command}" in re.sub("<[^>]+>", "", text)


@pytest.mark.extra("mkdocs", "material", "mkdocstrings")
def test_search_finds_words_of_a_page(site_dir: Path) -> None:
    index = json.loads((site_dir / "search/search_index.json").read_text())

    assert [entry for entry in index["docs"] if "scannet@googlegroups.com" in entry["text"]]


@pytest.mark.extra("mkdocs", "material", "mkdocstrings")
def test_links_of_first_page_lead_to_pages_of_the_site(site_dir: Path) -> None:
    links = re.findall(r'<a href="([^"#:]+)(?:#[^"]*)?"', (site_dir / "index.html").read_text())

    assert "access/" in links
    assert [link for link in links if not (site_dir / unescape(link)).exists()] == []


@pytest.mark.extra("mkdocs", "material", "mkdocstrings")
def test_first_page_shows_its_picture(site_dir: Path) -> None:
    assert 'src="images/scene.png"' in (site_dir / "index.html").read_text()
    assert (site_dir / "images/scene.png").exists()
