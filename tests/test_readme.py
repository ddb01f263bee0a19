"""The examples, commands and links in README and docs/ work.

The language of a block determines how it is checked:

    python    run as a program, in the order of the page, in one folder of synthetic scenes
    sh        the `scannet-prep` commands are parsed; those of README are also run
    others    not checked, and neither is a block after a line `<!-- not run: REASON -->`
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import PYTHON, run_main, run_words

import scannet_prep
from scannet_prep.cli.main import make_parser
from scannet_prep.synthetic import make_scene, write_release, write_scene

REPOSITORY_DIR = Path(__file__).parent.parent
PAGE_PATHS = (REPOSITORY_DIR / "README.md", *REPOSITORY_DIR.glob("docs/*.md"))
PAGES = {path.relative_to(REPOSITORY_DIR).as_posix(): path.read_text() for path in PAGE_PATHS}
WRITTEN_TEXT = "\n".join(PAGES.values())
BLOCK = re.compile(
    r"^(<!-- not run: .+ -->\n)?```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
COMMANDS = next(action.choices for action in make_parser()._actions if action.dest == "command")
TRAIN = ("scene0191_00", "scene0119_00", "scene0230_00", "scene0528_00")
SCENES = (*TRAIN, "scene0568_00", "scene0568_01", "scene0707_00")


def find_blocks(page: str, language: str) -> list[str]:
    """Find the blocks of a page that are in a language and are to be checked."""
    blocks = []
    for mark, block_language, text in BLOCK.findall(PAGES[page]):
        if block_language == language and not mark:
            blocks.append(text)
    return blocks


def find_commands(block: str) -> Iterator[list[str]]:
    """Find the words after `scannet-prep`, also in pipes and in quoted commands for a shell."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "@:,%"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>()"):
                if "scannet-prep" in words:
                    yield words[words.index("scannet-prep") + 1 :]
                words = []
            elif " " in word:
                yield from find_commands(word)
            else:
                words.append(word)


def find_anchors(text: str) -> set[str]:
    """Find the anchors of all headings, as GitHub makes them."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with raw, processed and packed scenes under the default names, as pages assume."""
    directory = tmp_path_factory.mktemp("docs")
    write_release(directory / "data/ScanNet", SCENES, vertices=800)
    assert run_main("process", "--scannet200", "--align-axis", cwd=directory).status == 0
    assert run_main("pack", cwd=directory).status == 0
    return directory


def find_packages(block: str) -> set[str]:
    """Find the packages of a program that `tools/test` does not install."""
    return {*re.findall(r"^(?:import|from) (torch|fsspec|h5py|webdataset)\b", block, re.MULTILINE)}


def list_examples() -> Iterator[Any]:
    """List the pages with programs, and again with the packages that some of them need."""
    for page in PAGES:
        blocks = find_blocks(page, "python")
        if blocks:
            yield pytest.param(page, set(), id=page)
        packages = set().union(*map(find_packages, blocks)) - {"torch"}
        if packages:
            marks = pytest.mark.extra(*packages)
            yield pytest.param(page, packages, marks=marks, id=f"{page} with packages")


@pytest.mark.parametrize(("page", "has_packages"), list(list_examples()))
def test_python_examples_run(
    page: str, has_packages: set[str], release_dir: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(release_dir, tmp_path / "here")
    if page == "docs/frames.md":
        add_frames(directory)

    for block in find_blocks(page, "python"):
        packages = find_packages(block)
        if "torch" in packages:
            # test_distributed.py runs this example, and no other, with torch.
            assert "PATH, CHECKPOINT" in block
            continue
        if not packages <= has_packages:
            continue
        (directory / "example.py").write_text(block)
        outcome = run_words(PYTHON, "-W", "error", "example.py", cwd=directory)
        assert outcome.status == 0, f"{page}:\n{block}\n{outcome.stderr}"


def add_frames(directory: Path) -> None:
    """Add a sensor stream to the first scene, and extract its frames."""
    scene = make_scene(TRAIN[0], vertices=800)
    write_scene(scene, directory / "data/ScanNet", frames=5)
    assert run_main("frames", "--every", "1", cwd=directory).status == 0


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_page_are_accepted_by_parser(page: str) -> None:
    parser = make_parser()

    for block in find_blocks(page, "sh"):
        for words in find_commands(block):
            parser.parse_args(words)


@pytest.fixture(scope="module")
def readme_commands() -> list[list[str]]:
    blocks = find_blocks("README.md", "sh")
    return [words for block in blocks for words in find_commands(block)]


def test_commands_of_readme_work_in_the_order_shown(
    readme_commands: list[list[str]], tmp_path: Path
) -> None:
    write_release(tmp_path / "data/ScanNet", SCENES[::2], vertices=600)

    for words in readme_commands:
        # `submit` needs predictions of all 100 test scenes; `doctor` checks this machine.
        if words[0] in {"submit", "doctor"}:
            continue
        if words[:2] == ["evaluate", "predictions"]:
            make_predictions(tmp_path)
        if words[0] == "download":  # there is no network here
            words = [*words, "--dry-run"]
        outcome = run_main(*words, cwd=tmp_path)
        assert outcome.status == 0, (words, outcome.stderr)


def make_predictions(folder: Path) -> None:
    """Make predictions that equal the annotation."""
    words = ("export", "--format", "benchmark-gt", "--label-set", "scannet200", "-o", "truth")
    assert run_main(*words, cwd=folder).status == 0
    (folder / "truth/semantic").rename(folder / "predictions")


def test_readme_has_at_most_120_lines() -> None:
    assert PAGES["README.md"].count("\n") <= 120


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_readme_links_page(page: str) -> None:
    assert f"]({page}" in PAGES["README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_existing_files_and_headings(page: str) -> None:
    page_path = REPOSITORY_DIR / page

    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page_path.parent / name if name else page_path
        assert target.exists(), link
        if anchor:
            assert anchor in find_anchors(target.read_text()), link


@pytest.mark.parametrize("command", COMMANDS or ())
def test_command_is_documented(command: str) -> None:
    assert f"scannet-prep {command}" in WRITTEN_TEXT


def find_variables(paths: Iterable[Path]) -> set[str]:
    """Find the names of all variables of this program in files."""
    texts = [path.read_text(encoding="utf-8") for path in paths if path.is_file()]
    return set(re.findall(r"SCANNET_PREP_[A-Z]+(?:_[A-Z]+)*", "\n".join(texts)))


def test_page_of_variables_lists_those_of_program_tools_and_tests() -> None:
    paths = [REPOSITORY_DIR / "Dockerfile", REPOSITORY_DIR / ".ci/run"]
    paths += (REPOSITORY_DIR / "scannet_prep").rglob("*.py")
    paths += (REPOSITORY_DIR / "tools").glob("*")
    paths += (REPOSITORY_DIR / "tests").glob("*.py")

    page = REPOSITORY_DIR / "docs/reference.md"
    assert find_variables([page]) == find_variables(paths)


@pytest.mark.parametrize("name", scannet_prep.__all__)
def test_public_name_is_documented(name: str) -> None:
    code = "\n".join(re.findall(r"```python\n.*?```|`[^`\n]+`", WRITTEN_TEXT, re.DOTALL))
    value = getattr(scannet_prep, name)

    assert re.search(rf"\b{name}\b", code)
    assert isinstance(value, str) or value.__doc__


def test_public_names_do_not_change() -> None:
    assert sorted(scannet_prep.__all__) == [
        "Batch",
        "ConcatDataset",
        "EvalSampler",
        "LabelClass",
        "LabelSet",
        "PointBudgetBatchSampler",
        "ProcessedScene",
        "SCANNET20",
        "SCANNET200",
        "ScanNet",
        "ScanNetPrepError",
        "SceneId",
        "Split",
        "WithEpoch",
        "__version__",
        "collate",
        "collate_torch",
        "official_scenes",
        "read_processed",
        "render",
        "sample_from_mesh",
        "show",
    ]


def test_public_names_are_listed_by_dir() -> None:
    assert set(scannet_prep.__all__) <= set(dir(scannet_prep))


def test_unknown_public_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Scannet'"):
        scannet_prep.Scannet  # noqa: B018
