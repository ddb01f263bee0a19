"""The scripts in tools/: which environment they use, and what they say."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from commands import Outcome, run_words

from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.splits import official_scenes
from scannet_prep.stages import process
from scannet_prep.stages.process.scene_worker import make_scene_file
from scannet_prep.synthetic import write_release

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


def test_each_step_that_the_benchmark_times_is_made_in_a_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS_DIR))
    timer = importlib.import_module("benchmark.steps").StepTimer()
    write_release(tmp_path / "raw", official_scenes("train")[:1], vertices=600)
    plan = process.plan(tmp_path / "raw", tmp_path / "out", ProcessOptions(align_axis=True))
    (tmp_path / "out" / "train").mkdir(parents=True)
    with timer.installed():
        times = timer.call(lambda: make_scene_file(plan.tasks[0], plan.context))
    assert [step for step, seconds in times.items() if not seconds] == []
