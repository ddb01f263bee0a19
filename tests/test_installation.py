"""The installation in README works as it is shown, without a network."""

from __future__ import annotations

import importlib.util
import os
import shutil
import site
from pathlib import Path

import pytest
from commands import PYTHON, Outcome, run_words
from test_readme import PAGES, REPOSITORY_DIR, find_blocks

# Without the line that clones: a copy of the repository stands for the clone.
INSTALLATION = "\n".join(find_blocks("README.md", "sh")[1].splitlines()[1:])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A copy of the repository in which the installation of README was run, and its outcome.

    pip downloads nothing: the packages of this interpreter stand in for those of an index.
    """
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("this Python has no ensurepip")
    directory = tmp_path_factory.mktemp("clone")
    for name in ("scannet_prep", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        source = REPOSITORY_DIR / name
        if source.is_dir():
            shutil.copytree(source, directory / name)
        else:
            shutil.copy(source, directory)
    # The first word of the block, as a program that is this interpreter.
    programs_dir = tmp_path_factory.mktemp("bin")
    program = programs_dir / "python3"
    program.write_text(f'#!/bin/sh\nexec "{PYTHON}" "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs_dir}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(site.getsitepackages()),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as "no isolation"
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    environment.pop("VIRTUAL_ENV", None)

    outcome = run_words("bash", "-euc", INSTALLATION, cwd=directory, env=environment)

    return directory, outcome


def test_readme_begins_with_two_commands():
    lines = find_blocks("README.md", "sh")[0].splitlines()

    assert [line.partition(" ")[0] for line in lines] == ["tools/demo", "tools/test"]


def test_installation_of_readme_runs(installed: tuple[Path, Outcome]) -> None:
    _, outcome = installed

    assert outcome.status == 0, outcome.stderr


def test_installation_of_readme_installs_into_its_environment(
    installed: tuple[Path, Outcome],
) -> None:
    directory, _ = installed

    assert (directory / ".venv/bin/scannet-prep").exists()


@pytest.mark.parametrize("name", ["scene.png", "scene.html"])
def test_installation_of_readme_makes_picture_and_page(
    installed: tuple[Path, Outcome], name: str
) -> None:
    directory, _ = installed

    assert (directory / "data/demo" / name).exists()


def test_readme_names_the_page_that_the_demo_makes() -> None:
    assert "`data/demo/scene.html`" in PAGES["README.md"]


def test_tool_for_the_demo_says_what_it_downloads() -> None:
    text = (REPOSITORY_DIR / "tools/demo").read_text()

    assert "downloads about 100 MB" in text.replace("\n# ", " ")
