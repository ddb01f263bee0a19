"""Completion with the Tab key: the scripts are valid, and complete commands and options."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import run_main, run_words

pytest.importorskip("shtab", reason="shtab is not installed")


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def script(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A shell, and the file with its script."""
    path = tmp_path_factory.mktemp("completion") / request.param
    outcome = run_main("completion", request.param)
    assert outcome.status == 0, outcome.stderr
    path.write_text(outcome.stdout)
    return request.param, path


def test_script_has_no_syntax_errors(script: tuple[str, Path]) -> None:
    shell, path = script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")

    outcome = run_words(shell, "--no-execute" if shell == "fish" else "-n", path)

    assert outcome.stderr == ""
    assert outcome.status == 0


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "script"
    path.write_text(run_main("completion", "bash").stdout)
    return path


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("scannet-prep pro", "process"),
        ("scannet-prep process --align", "--align-axis"),
        ("scannet-prep process --splits tr", "train"),
        ("scannet-prep export --format point", "pointcept"),
        ("scannet-prep help pro", "process"),
    ],
)
def test_bash_completes_word(bash_script: Path, line: str, completed: str) -> None:
    words = line.split()
    program = f"""
source {bash_script}
COMP_WORDS=({line})
COMP_CWORD={len(words) - 1}
_shtab_scannet_prep
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

    outcome = run_words("bash", "-c", program)

    assert outcome.stdout.split() == [completed]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("scannet-prep pro", "process"),
        ("scannet-prep process --splits tr", "train"),
        ("scannet-prep help pro", "process"),
    ],
)
def test_fish_completes_word(tmp_path: Path, line: str, completed: str) -> None:
    script_path = tmp_path / "script"
    script_path.write_text(run_main("completion", "fish").stdout)

    # Each line is a word, and after a tab what it means.
    outcome = run_words("fish", "--no-config", "-c", f"source {script_path}; complete -C '{line}'")

    assert [row.partition("\t")[0] for row in outcome.stdout.splitlines()] == [completed]


def test_bash_completes_names_of_files(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "predictions").mkdir()
    program = f"""
source {bash_script}
COMP_WORDS=(scannet-prep evaluate pred)
COMP_CWORD=2
_shtab_scannet_prep
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

    outcome = run_words("bash", "-c", program, cwd=tmp_path)

    assert outcome.stdout.split() == ["predictions"]


def test_unknown_shell_is_wrong_usage() -> None:
    assert run_main("completion", "ksh").status == 2
