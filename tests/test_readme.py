"""What the README shows is what the program does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from archives import has_tool, read_tree
from commands import run_command

import scannet_prep
from scannet_prep.cli.main import make_parser
from scannet_prep.synthetic import write_release

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TRAINING = [block for block in PYTHON_BLOCKS if "import torch" in block]
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
        if "|" in command:
            continue
        words = shlex.split(command)[1:]
        if words[0] == "download":  # there is no network here
            words.append("--dry-run")
        outcome = run_command(*words, cwd=working_dir)
        assert outcome.status == 0, (command, outcome.stderr)


def test_the_pipes_to_another_machine_bring_everything_there(working_dir: Path, tmp_path: Path) -> None:
    pipes = [command for command in COMMANDS if "|" in command]
    assert len(pipes) == 2
    (tmp_path / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')  # another machine is another folder here
    (tmp_path / "scannet-prep").write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m scannet_prep "$@"\n')
    for name in ("ssh", "scannet-prep"):
        (tmp_path / name).chmod(0o755)
    run_command("process", cwd=working_dir)
    expected = read_tree(working_dir / "data/processed")
    for number, (command, place) in enumerate(zip(pipes, ("data/processed", "."), strict=True)):
        if number == 1 and not has_tool("tar"):
            continue
        there = tmp_path / f"there{number}"
        there.mkdir()
        line = command.replace("/datasets", str(there))
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", line], cwd=working_dir, env=environment, check=True, capture_output=True)
        assert read_tree(there / place) == expected


@pytest.mark.parametrize("block", [block for block in PYTHON_BLOCKS if block not in TRAINING])
def test_every_python_example_runs(working_dir: Path, block: str) -> None:
    (working_dir / "example.py").write_text(block)
    run_command("process", cwd=working_dir)
    run_command("pack", cwd=working_dir)
    subprocess.run([sys.executable, "-W", "error", "example.py"], cwd=working_dir, check=True, capture_output=True)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("source", "launcher"),
    [("folder", []), ("archive", ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"])],
    indirect=["source"],
)
def test_the_training_script_runs_as_it_stands_goes_on_and_is_evaluated(
    source: Path, tmp_path: Path, launcher: list[str]
) -> None:
    pytest.importorskip("torch")
    for name, script in zip(("train.py", "evaluate.py"), TRAINING, strict=True):
        assert script.count('"data/processed"') == 1
        (tmp_path / name).write_text(script.replace('"data/processed"', repr(str(source))))

    def run(name: str) -> str:
        done = subprocess.run(
            [sys.executable, *launcher, name],
            cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.findall(r"epoch (\d), step \d+: loss \d+\.\d{3}\n", run("train.py")) == ["0", "1", "2"]
    if launcher:
        assert "epoch" not in run("train.py")
    assert re.fullmatch(r"accuracy [01]\.\d{3}\n", run("evaluate.py"))


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
        "Batch", "EvalSampler", "LabelClass", "LabelSet", "PointBudgetBatchSampler", "ProcessedScene", "SCANNET20",
        "SCANNET200", "ScanNet", "ScanNetPrepError", "SceneId", "Split", "__version__", "collate", "collate_torch",
        "official_scenes", "read_processed",
    ]  # fmt: skip
    assert set(scannet_prep.__all__) <= set(dir(scannet_prep))
    with pytest.raises(AttributeError, match="no attribute 'Scannet'"):
        scannet_prep.Scannet  # noqa: B018
