"""The page for users of other programs: its commands run, and its translations are true.

What exports hold is tested in test_export.py.
"""

import re
import runpy
import shlex
import shutil

import numpy as np
import pytest
from commands import PAGES, REPOSITORY_DIR, TEST, TRAIN, VAL, find_commands, run_main, succeed

from scannet_prep.cli.main import make_parser
from scannet_prep.synthetic import write_release

SECTIONS = dict(part.split("\n", 1) for part in PAGES["docs/coming-from.md"].split("\n## ")[1:])
PROGRAMS = [name for name, text in SECTIONS.items() if f"| {name} | here |" in text]
VERTICES = 600


def find_rows(section, head):
    """Find the rows of the table with the columns `head` and `here`."""
    _, after_head = SECTIONS[section].split(f"| {head} | here |\n| --- | --- |\n")
    table, *_ = after_head.split("\n\n")
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def find_code(text):
    return re.findall(r"`([^`]+)`", text)


def test_command_of_the_official_script_is_the_command_beside_it_or_refused(capsys):
    tool = runpy.run_path(str(REPOSITORY_DIR / "tools/download-scannet.py"))
    rows = find_rows("The official download script", "official script")
    assert len(rows) == 7
    for official, ours in rows:
        name, *words = shlex.split(find_code(official)[0])
        assert name == "download-scannet.py"
        if ours.startswith("refused: "):
            with pytest.raises(SystemExit, match="2"):
                tool["translate"](words)
            assert ours.removeprefix("refused: ") in capsys.readouterr().err
            continue
        translated = tool["translate"](words)
        expected = shlex.split(find_code(ours)[0].removeprefix("scannet-prep "))
        assert make_parser().parse_args(translated) == make_parser().parse_args(expected)
        # The files of tasks, which are zip files, go into a folder of their own.
        assert ("to `tasks/`" in ours) == any(word.endswith(".zip") for word in translated)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Raw and processed scenes under the default names."""
    folder = tmp_path_factory.mktemp("coming")
    write_release(folder / "data/ScanNet", (TRAIN, VAL, TEST), vertices=VERTICES, frames=1)
    succeed("process", "--compute-segments", cwd=folder)
    return folder


def run_seg_scannet(words, folder):
    """Run OctFormer's tool, after writing the predictions that it reads."""
    if "generate_output_seg" in words:
        (folder / "logs").mkdir()
        np.savez(folder / f"logs/{VAL}.eval.npz", prob=np.eye(21)[np.arange(VERTICES) % 21])
    tool = runpy.run_path(str(REPOSITORY_DIR / "tools/seg_scannet.py"))["main"]
    return run_main(*words, cwd=folder, main=tool)


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_of_program_run_in_the_order_shown(program, release, tmp_path):
    folder = shutil.copytree(release, tmp_path / "here")
    (first_block, *_) = SECTIONS[program].split("```sh\n")[1].split("```")
    commands = [*find_commands(first_block)]
    outcomes = {}
    for code in find_code(" ".join(map(" ".join, find_rows(program, program)))):
        words = shlex.split(code)
        if words[:2] == ["python", "tools/seg_scannet.py"]:
            outcomes[code] = run_seg_scannet(words[2:], folder)
        elif words[0] == "scannet-prep":
            commands.append(words[1:])
    for words in commands:
        outcomes[shlex.join(words)] = run_main(*words, cwd=folder)

    for words, outcome in outcomes.items():
        assert outcome.status == 0, (words, outcome.stderr)
    assert any("--format" in words for words in outcomes)
