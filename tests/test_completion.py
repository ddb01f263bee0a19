"""Completion with the Tab key: the scripts are valid, and complete commands, options and files."""

import pytest
from commands import needing, run_words, succeed

COMPLETIONS = [
    ("scannet-prep pro", "process"),
    ("scannet-prep process --splits tr", "train"),
    ("scannet-prep export --format pointc", "pointcept"),
    ("scannet-prep evaluate pred", "predictions"),
]
# Prints the completions of $LINE, one per line, each followed by a tab and its meaning in fish.
PROGRAMS = {
    "bash": """
source $SCRIPT
COMP_WORDS=($LINE)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_scannet_prep
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "fish": "source $SCRIPT; complete -C $LINE",
    "zsh": None,
}


@pytest.mark.parametrize("shell", ["bash", *needing("fish", "zsh")])
def test_script_is_valid_and_completes_words(shell, tmp_path):
    outcome = succeed("--print-completion", shell)
    script_path = tmp_path / "script"
    script_path.write_text(outcome.stdout)
    (tmp_path / "here/predictions").mkdir(parents=True)

    checked = succeed(
        shell, "--no-execute" if shell == "fish" else "-n", script_path, run=run_words
    )
    assert checked.stderr == ""
    if PROGRAMS[shell] is None:
        return
    options = ["--no-config"] if shell == "fish" else []
    for line, completed in COMPLETIONS:
        environment = {"SCRIPT": str(script_path), "LINE": line, "PATH": "/usr/bin:/bin"}
        environment["HOME"] = str(tmp_path)
        outcome = run_words(
            shell, *options, "-c", PROGRAMS[shell], cwd=tmp_path / "here", env=environment
        )
        names = [row.partition("\t")[0].rstrip("/") for row in outcome.stdout.splitlines()]
        assert names == [completed]
