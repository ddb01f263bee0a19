"""The scripts in tools/: which environment they use, and what they say."""

from __future__ import annotations

import os
from pathlib import Path

from commands import Outcome, run_words

TOOLS_DIR = Path(__file__).parent.parent / "tools"


def run_bash(script: str, **environment: str | Path) -> Outcome:
    variables = {key: value for key, value in os.environ.items() if key not in {"PYTHON", "SCANNET_PREP_VENV"}}
    variables |= {key: str(value) for key, value in environment.items()}
    return run_words("bash", "-euc", f'source "{TOOLS_DIR}/environment.sh"; {script}', env=variables)


def test_python_of_another_version_than_the_environment_is_told_with_both_versions(tmp_path: Path) -> None:
    python, folder = tmp_path / "python3.13", tmp_path / "a b"
    (folder / "bin").mkdir(parents=True)
    for path, version in ((folder / "bin/python", "3.12"), (python, "3.13")):  # they pass for Pythons with pip
        path.write_text(f"#!/bin/sh\n[ $1 = -m ] || echo {version}\n")
        path.chmod(0o755)
    done = run_bash("prepare_environment run", SCANNET_PREP_VENV=folder, PYTHON=python)
    assert done.status == 1
    assert f"error: PYTHON={python} is Python 3.13, but {folder} was made with Python 3.12" in done.stderr
    assert "hint: use another folder: SCANNET_PREP_VENV=.venv-3.13" in done.stderr
    assert f"rm -r {tmp_path}/a\\ b\n" in done.stderr


def test_unusable_python_and_folders_that_are_not_environments_are_told_and_left_alone(tmp_path: Path) -> None:
    for python in ("/bin/false", "no-such-python"):
        done = run_bash("prepare_environment run", SCANNET_PREP_VENV=tmp_path / "venv", PYTHON=python)
        assert (done.status, f"error: PYTHON={python} is not Python 3." in done.stderr) == (1, True)
        assert not (tmp_path / "venv").exists()
    # Nor is an environment used that is active.
    assert run_bash("echo $python", VIRTUAL_ENV=tmp_path).stdout == f"{TOOLS_DIR.parent}/.venv/bin/python\n"
    (tmp_path / "thesis.tex").write_text("mine")
    done = run_bash("prepare_environment run", SCANNET_PREP_VENV=tmp_path)
    assert (done.status, f"error: {tmp_path} is not a virtual environment" in done.stderr) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
