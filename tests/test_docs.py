"""The examples, commands and links in README and docs/ work, and so do the site and the notebook.

The language of a block determines how it is checked:

    python    run as a program, in the order of the page, in one folder of synthetic scenes
    sh        the `scannet-prep` commands are parsed; those of README are also run
    others    not checked, and neither is a block after a line `<!-- not run: REASON -->`
"""

import importlib.util
import inspect
import json
import os
import re
import shutil
import site
from html import unescape

import pytest
from commands import PAGES, PYTHON, REPOSITORY_DIR, find_blocks, find_commands, run_words, succeed

import scannet_prep
from scannet_prep import convert, evaluation, frames, superpoints, synthetic, tables, transforms
from scannet_prep.cli.main import make_parser
from scannet_prep.synthetic import make_scene, write_release, write_scene


def find_anchors(text):
    """Find the anchors of all headings, as GitHub makes them."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PARSER = make_parser()
COMMANDS = next(action.choices for action in PARSER._actions if action.dest == "command")
TRAIN = ("scene0191_00", "scene0119_00", "scene0230_00", "scene0528_00")
SCENES = (*TRAIN, "scene0568_00", "scene0568_01", "scene0707_00")
PUBLIC_MODULES = (
    scannet_prep, convert, evaluation, frames, superpoints, synthetic, tables, transforms
)  # fmt: skip


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory):
    """A folder with raw, processed and packed scenes under the default names, as pages assume."""
    directory = tmp_path_factory.mktemp("docs")
    write_release(directory / "data/ScanNet", SCENES, vertices=800)
    succeed("process", "--scannet200", "--align-axis", cwd=directory)
    succeed("pack", cwd=directory)
    return directory


@pytest.mark.parametrize("page", [page for page in PAGES if find_blocks(page, "python")])
def test_python_examples_run(page, release_dir, tmp_path):
    directory = shutil.copytree(release_dir, tmp_path / "here")
    if page == "docs/frames.md":
        write_scene(make_scene("scene0568_00", vertices=800), directory / "data/ScanNet", frames=5)
        succeed("frames", "--every", "1", cwd=directory)

    for block in find_blocks(page, "python"):
        if "import torch" in block:
            # test_distributed.py runs this example, and no other, with torch.
            assert "PATH, CHECKPOINT" in block
            continue
        (directory / "example.py").write_text(block)
        outcome = run_words(PYTHON, "-W", "error", "example.py", cwd=directory)
        assert outcome.status == 0, f"{page}:\n{block}\n{outcome.stderr}"
    # The last example reads a scene without this program.
    assert page != "docs/archive.md" or "train/scene0191_00.npz (800, 3)" in outcome.stdout


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_accepted_and_links_lead_to_files_and_headings(page):
    for block in find_blocks(page, "sh"):
        for words in find_commands(block):
            PARSER.parse_args(words)

    assert "|\n\n|" not in PAGES[page]  # a blank line ends a table
    page_path = REPOSITORY_DIR / page
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page_path.parent / name if name else page_path
        assert target.exists(), link
        if anchor:
            assert anchor in find_anchors(target.read_text()), link


def test_commands_of_readme_work_in_the_order_shown(tmp_path):
    write_release(tmp_path / "data/ScanNet", SCENES[::2], vertices=600, frames=1)
    blocks = find_blocks("README.md", "sh")

    for words in (words for block in blocks for words in find_commands(block)):
        if words[0] == "download":  # there is no network here
            words = [*words, "--dry-run"]
        words = [word for word in words if word != "--fetch"]
        succeed(*words, cwd=tmp_path)


def test_installation_of_readme_works_as_it_is_shown_without_a_network(tmp_path):
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("this Python has no ensurepip")
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("scannet_prep", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        (clone / name).symlink_to(REPOSITORY_DIR / name)
    # The first word of the block, as a program that is this interpreter.
    program = tmp_path / "bin/python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{PYTHON}" "$@"\n')
    program.chmod(0o755)
    # pip downloads nothing: the packages of this interpreter stand in for those of an index.
    environment = os.environ | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(site.getsitepackages()),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as "no isolation"
    }
    # Without the line that clones; test_demo.py runs the demo.
    _, *lines, demo = find_blocks("README.md", "sh")[1].splitlines()
    lines.append("scannet-prep --version")

    outcome = succeed("bash", "-euc", "\n".join(lines), cwd=clone, env=environment, run=run_words)
    assert outcome.stdout.splitlines()[-1].startswith("scannet-prep 0.")
    assert demo.startswith("scannet-prep demo ")


def test_readme_is_one_page_that_leads_to_all_others():
    assert PAGES["README.md"].count("\n") <= 120
    for page in PAGES:
        assert page == "README.md" or f"]({page}" in PAGES["README.md"]


def test_every_command_variable_and_public_name_is_documented():
    text = "\n".join(PAGES.values())
    for command in COMMANDS:
        assert f"scannet-prep {command}" in text

    paths = [REPOSITORY_DIR / "Dockerfile", REPOSITORY_DIR / ".ci/run"]
    for pattern in ("scannet_prep/**/*.py", "tools/*", "tests/*.py"):
        paths += REPOSITORY_DIR.glob(pattern)
    read = "\n".join(path.read_text() for path in paths if path.is_file())
    variable = r"SCANNET_PREP_[A-Z]+(?:_[A-Z]+)*"
    assert {*re.findall(variable, PAGES["docs/reference.md"])} == {*re.findall(variable, read)}

    code = "\n".join(re.findall(r"```python\n.*?```|`[^`\n]+`", text, re.DOTALL))
    assert {*scannet_prep.__all__} <= {*dir(scannet_prep)}
    for name in scannet_prep.__all__:
        assert re.search(rf"\b{name}\b", code), name
    with pytest.raises(AttributeError, match="no attribute 'Scannet'"):
        scannet_prep.Scannet  # noqa: B018


def find_public_names(module):
    """Find the names in `__all__`; without it, the classes and functions that a module defines."""
    names = getattr(module, "__all__", None)
    if names is None:
        members = inspect.getmembers(module, lambda member: hasattr(member, "__module__"))
        names = [name for name, member in members if member.__module__ == module.__name__]
    return [f"{module.__name__}.{name}" for name in names if not name.startswith("_")]


@pytest.mark.extra("mkdocs", "material", "mkdocstrings")
def test_site_is_built_without_warnings_and_has_every_name_and_help_text(tmp_path):
    # Not with --quiet, which hides warnings from --strict, too.
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    succeed(PYTHON, *words, cwd=REPOSITORY_DIR, run=run_words)

    text = "\n".join(path.read_text() for path in tmp_path.glob("api/*/index.html"))
    anchors = {*re.findall(r'id="([\w.]+)"', text)}
    for module in PUBLIC_MODULES:
        assert {*find_public_names(module)} <= anchors
    text = re.sub("<[^>]+>", "", unescape((tmp_path / "commands/index.html").read_text()))
    for command in COMMANDS:
        assert f"usage: scannet-prep {command}" in text

    index = json.loads((tmp_path / "search/search_index.json").read_text())
    assert any("scannet@googlegroups.com" in entry["text"] for entry in index["docs"])


@pytest.mark.extra("nbclient", "nbformat", "ipykernel", "torch")
@pytest.mark.filterwarnings("ignore")  # of jupyter
def test_notebook_trains_shows_a_picture_and_is_stored_without_output(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(REPOSITORY_DIR / "docs/tour.ipynb", as_version=4)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYTHONWARNINGS", "")
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY_DIR}:{os.environ.get('PYTHONPATH', '')}")

    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    texts = ["".join(output.get("text", "") for output in cell["outputs"]) for cell in cells]
    assert "mean IoU 0." in texts[-1]
    losses = texts[-2].split()
    assert float(losses[3]) < float(losses[1])
    shown = [output.get("data", {}) for cell in cells for output in cell["outputs"]]
    assert any('src="data:image/png' in data.get("text/html", "") for data in shown)
