"""What the README shows is what the program does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_command

import scannet_prep
from scannet_prep.cli.main import make_parser
from scannet_prep.synthetic import write_release

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("scannet-prep ")
]


@pytest.fixture(scope="module")
def working_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    working_dir = tmp_path_factory.mktemp("readme")
    write_release(working_dir / "data/ScanNet", ["scene0191_00", "scene0011_00", "scene0707_00"], vertices=800)
    return working_dir


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse lays its help out in another way from 3.13 on")
def test_the_help_shown_is_the_live_one() -> None:
    shown = re.search(r"<!-- help -->\n```\n(.*?)```\n<!-- end of help -->", README, re.DOTALL)
    assert shown is not None
    assert shown[1] == run_command("--help").stdout + "\n" + run_command("process", "--help").stdout


def test_all_commands_shown_work_in_the_order_shown(working_dir: Path) -> None:
    assert len(COMMANDS) >= 5
    for command in COMMANDS:
        if "|" in command:  # to another machine, which there is not; the tests of unpack have the pipe
            continue
        words = shlex.split(command)[1:]
        if words[0] == "download":  # there is no network here
            words.append("--dry-run")
        outcome = run_command(*words, cwd=working_dir)
        assert outcome.status == 0, (command, outcome.stderr)


@pytest.mark.parametrize("block", PYTHON_BLOCKS)
def test_every_python_example_runs(working_dir: Path, block: str) -> None:
    (working_dir / "example.py").write_text(block)
    run_command("process", cwd=working_dir)
    run_command("pack", cwd=working_dir)
    subprocess.run([sys.executable, "-W", "error", "example.py"], cwd=working_dir, check=True, capture_output=True)


def test_every_command_and_public_name_is_documented() -> None:
    commands = next(action.choices for action in make_parser()._actions if action.dest == "command")
    assert commands is not None
    for name in commands:
        assert f"scannet-prep {name}" in README, name
    for name in scannet_prep.__all__:
        value = getattr(scannet_prep, name)
        assert isinstance(value, str) or value.__doc__, name


def test_the_public_names_are_pinned() -> None:
    assert sorted(scannet_prep.__all__) == [
        "LabelClass", "LabelSet", "ProcessedScene", "SCANNET20", "SCANNET200", "ScanNet", "ScanNetPrepError", "SceneId",
        "Split", "__version__", "official_scenes", "read_processed",
    ]  # fmt: skip
    assert set(scannet_prep.__all__) <= set(dir(scannet_prep))
    with pytest.raises(AttributeError, match="no attribute 'Scannet'"):
        scannet_prep.Scannet  # noqa: B018
