"""The package: what its files contain, its requirements, and what a package index shows."""

from __future__ import annotations

import re
import runpy
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import PYTHON, run_words
from test_readme import PAGES, REPOSITORY_DIR

from scannet_prep.base.version import VERSION

tomllib = pytest.importorskip("tomllib", reason="this Python has no tomllib")

PROJECT = tomllib.loads((REPOSITORY_DIR / "pyproject.toml").read_text())["project"]
RECIPE = yaml.safe_load((REPOSITORY_DIR / "tools/conda/recipe.yaml").read_text())
SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def dist_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel."""
    directory = tmp_path_factory.mktemp("dist")
    outcome = run_words(PYTHON, "-m", "hatchling", "build", "-d", directory, cwd=REPOSITORY_DIR)
    assert outcome.status == 0, outcome.stderr
    return directory


@pytest.fixture(scope="module")
def wheel_names(dist_dir: Path) -> set[str]:
    (path,) = dist_dir.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        return set(wheel.namelist())


@pytest.fixture(scope="module")
def sdist_names(dist_dir: Path) -> set[str]:
    (path,) = dist_dir.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


@pytest.fixture(scope="module")
def description(dist_dir: Path) -> str:
    """What a package index shows."""
    (path,) = dist_dir.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        metadata = wheel.read(f"scannet_prep-{VERSION}.dist-info/METADATA").decode()
    return metadata.partition("\n\n")[2]


def test_package_index_accepts_both_files(dist_dir: Path) -> None:
    outcome = run_words(PYTHON, "-m", "twine", "check", "--strict", *dist_dir.iterdir())

    assert outcome.status == 0, outcome.stdout + outcome.stderr


def test_wheel_has_nothing_but_the_package(wheel_names: set[str]) -> None:
    folders = {name.partition("/")[0] for name in wheel_names}

    assert folders == {"scannet_prep", f"scannet_prep-{VERSION}.dist-info"}


def test_wheel_has_every_file_of_the_package(wheel_names: set[str]) -> None:
    names = set()
    for path in (REPOSITORY_DIR / "scannet_prep").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            names.add(path.relative_to(REPOSITORY_DIR).as_posix())

    assert names - wheel_names == set()


@pytest.mark.parametrize(
    "name", ["LICENSE", "hatch_build.py", "docs/access.md", "tests/commands.py", "tools/test"]
)
def test_sdist_has_file(sdist_names: set[str], name: str) -> None:
    assert name in sdist_names


def test_sdist_has_no_data(sdist_names: set[str]) -> None:
    assert [name for name in sdist_names if name.startswith("data")] == []


def test_description_has_only_absolute_links(description: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", description)

    assert links
    assert [link for link in links if not link.startswith("https://")] == []


def test_links_of_description_lead_into_a_repository_that_has_an_address() -> None:
    make_description = runpy.run_path(str(REPOSITORY_DIR / "hatch_build.py"))["make_description"]

    text = make_description("![a](docs/a.png) [b](docs/b.md#c)", "https://example.org/r")

    assert text == (
        "![a](https://example.org/r/raw/main/docs/a.png) "
        "[b](https://example.org/r/blob/main/docs/b.md#c)"
    )


@pytest.mark.parametrize("version", SUPPORTED)
def test_supported_python_has_a_classifier(version: str) -> None:
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_oldest_supported_python_is_required() -> None:
    assert PROJECT["requires-python"] == f">={SUPPORTED[0]}"


def test_cap_of_plyfile_depends_on_the_python_version() -> None:
    assert [line for line in PROJECT["dependencies"] if "plyfile<" in line] == [
        "plyfile<1.1.4; python_version < '3.13'"
    ]


# Packages whose wheels are made for one version of Python.
COMPILED = ("deflate", "msgspec", "numpy", "pandas", "pillow", "pyarrow", "zstandard")


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_lowest_versions_of_compiled_packages_have_wheels_for_new_python(extra: str) -> None:
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    names = {re.match(r"[\w-]+", line)[0] for line in lines}

    for name in names.intersection(COMPILED):
        markers = [line.partition("; ")[2] for line in lines if line.startswith(f"{name}>=")]
        assert "python_version >= '3.13'" in markers, name


def requirements(lines: list[Any]) -> set[str]:
    """The requirements that hold for every Python, without blanks."""
    return {line.replace(" ", "") for line in lines if ";" not in line}


def test_conda_recipe_has_the_requirements_of_the_package() -> None:
    lines = [line for line in RECIPE["requirements"]["run"] if not line.startswith("python ")]

    assert requirements(lines) == requirements(PROJECT["dependencies"])


def test_conda_recipe_has_the_version_of_the_package() -> None:
    assert RECIPE["context"]["version"] == VERSION


CITATION = yaml.safe_load((REPOSITORY_DIR / "CITATION.cff").read_text())


def test_citation_has_the_version_of_the_package() -> None:
    assert CITATION["version"] == VERSION


@pytest.mark.extra("cffconvert")
def test_citation_follows_its_schema() -> None:
    import cffconvert

    cffconvert.Citation((REPOSITORY_DIR / "CITATION.cff").read_text()).validate()


@pytest.mark.parametrize("page", PAGES)
def test_no_page_installs_the_package_by_its_name(page: str) -> None:
    # Nobody owns that name in the index yet.
    pattern = r"(?:pip|uv|pipx) (?:install|add) [^\n`]*(?<!/)scannet-prep\b"
    assert re.findall(pattern, PAGES[page]) == []


def test_no_message_installs_the_package_by_its_name() -> None:
    for path in (REPOSITORY_DIR / "scannet_prep").rglob("*.py"):
        text = path.read_text()
        assert re.findall(r"pip install [^\n]*scannet-prep\b", text) == [], path
