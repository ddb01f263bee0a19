"""README and the pages in docs/ show what the program does: their examples run, their commands and links exist.

The language of a block says how it is checked: `python` blocks are run, each as a program of its own, those of a page
in order in one folder of synthetic scenes; the `scannet-prep` commands of `sh` blocks are parsed, those of README also
run; others are not checked, nor are blocks after a line `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import PYTHON, run_main, run_words

import scannet_prep
from scannet_prep.cli.main import make_parser
from scannet_prep.synthetic import write_release

REPOSITORY_DIR = Path(__file__).parent.parent
PAGE_PATHS = (REPOSITORY_DIR / "README.md", *REPOSITORY_DIR.glob("docs/*.md"))
PAGES = {path.relative_to(REPOSITORY_DIR).as_posix(): path.read_text() for path in PAGE_PATHS}
BLOCK = re.compile(
    r"^(<!-- not run: .+ -->\n)?```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
TRAIN = ("scene0191_00", "scene0119_00", "scene0230_00", "scene0528_00")
SCENES = (*TRAIN, "scene0568_00", "scene0568_01", "scene0707_00")


def find_blocks(page: str, language: str) -> list[str]:
    return [text for mark, tag, text in BLOCK.findall(PAGES[page]) if tag == language and not mark]


def find_commands(block: str) -> Iterator[list[str]]:
    """Words after `scannet-prep`, also in pipes and in what is handed to a shell of another machine."""
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
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.+)$",
        re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE),
        re.MULTILINE,
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the pages speak of: raw, processed and packed scenes under the default names."""
    directory = tmp_path_factory.mktemp("docs")
    write_release(directory / "data/ScanNet", SCENES, vertices=800)
    assert run_main("process", "--scannet200", "--align-axis", cwd=directory).status == 0
    assert run_main("pack", cwd=directory).status == 0
    return directory


@pytest.mark.parametrize("page", [page for page in PAGES if find_blocks(page, "python")])
def test_python_examples_of_a_page_run(page: str, release_dir: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(release_dir, tmp_path / "here")
    for block in find_blocks(page, "python"):
        packages = re.findall(
            r"^(?:import|from) (torch|fsspec|h5py|webdataset)\b", block, re.MULTILINE
        )
        if "torch" in packages:
            assert "PATH, CHECKPOINT" in block, (
                "test_distributed.py runs only these, where torch is there already"
            )
        elif all(map(importlib.util.find_spec, packages)):
            (directory / "example.py").write_text(block)
            done = run_words(PYTHON, "-W", "error", "example.py", cwd=directory)
            assert done.status == 0, f"{page}:\n{block}\n{done.stderr}"


def test_commands_of_all_pages_are_accepted_by_the_parser() -> None:
    parser = make_parser()
    for block in (block for page in PAGES for block in find_blocks(page, "sh")):
        for words in find_commands(block):
            parser.parse_args(words)


def test_commands_of_the_readme_work_in_the_order_shown(tmp_path: Path) -> None:
    write_release(tmp_path / "data/ScanNet", SCENES[::2], vertices=600)
    commands = [words for block in find_blocks("README.md", "sh") for words in find_commands(block)]
    assert {words[0] for words in commands} >= {
        "download",
        "process",
        "pack",
        "verify",
        "info",
        "evaluate",
        "submit",
    }
    for words in commands:
        if words[0] in {"submit", "doctor"}:
            continue  # takes predictions of all 100 test scenes only; says what is wrong with this machine
        if words[0] == "evaluate":  # the annotation itself stands for a prediction
            export = ("export", "--format", "benchmark-gt", "--labels", "scannet200", "-o", "truth")
            assert run_main(*export, cwd=tmp_path).status == 0
            (tmp_path / "truth/semantic").rename(tmp_path / "predictions")
        extra = ["--dry-run"] if words[0] == "download" else []  # there is no network here
        outcome = run_main(*words, *extra, cwd=tmp_path)
        assert outcome.status == 0, (words, outcome.stderr)


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere_and_readme_is_short_and_links_it(page: str) -> None:
    assert (
        f"]({page}" in PAGES["README.md"] if page != "README.md" else PAGES[page].count("\n") <= 200
    )
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if not link.startswith("https://"):
            name, _, anchor = link.partition("#")
            target = (REPOSITORY_DIR / page).parent / name if name else REPOSITORY_DIR / page
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in find_anchors(target.read_text()), f"{page}: {link}"


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="argparse lays its help out in another way from 3.13 on"
)
def test_page_of_commands_shows_the_live_help_texts() -> None:
    assert (
        runpy.run_path(str(REPOSITORY_DIR / "tools/update_docs"))["make_page"]()
        == PAGES["docs/commands.md"]
    )


def test_every_command_and_public_name_is_documented() -> None:
    text = "\n".join(text for page, text in PAGES.items() if page != "docs/commands.md")
    code = "\n".join(re.findall(r"```python\n.*?```|`[^`\n]+`", text, re.DOTALL))
    commands = next(action.choices for action in make_parser()._actions if action.dest == "command")
    assert commands
    assert [name for name in commands if f"scannet-prep {name}" not in text] == []
    assert [name for name in scannet_prep.__all__ if not re.search(rf"\b{name}\b", code)] == []
    for name in scannet_prep.__all__:
        value = getattr(scannet_prep, name)
        assert isinstance(value, str) or value.__doc__, name


def test_public_names_are_pinned() -> None:
    assert sorted(scannet_prep.__all__) == [
        "Batch", "ConcatDataset", "EvalSampler", "LabelClass", "LabelSet", "PointBudgetBatchSampler",
        "ProcessedScene", "SCANNET20", "SCANNET200", "ScanNet", "ScanNetPrepError", "SceneId", "Split", "WithEpoch",
        "__version__", "collate", "collate_torch", "official_scenes", "read_processed", "render",
    ]  # fmt: skip
    assert set(scannet_prep.__all__) <= set(dir(scannet_prep))
    with pytest.raises(AttributeError, match="no attribute 'Scannet'"):
        scannet_prep.Scannet  # noqa: B018
