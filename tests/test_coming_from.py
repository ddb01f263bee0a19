"""The page for people who come from other programs: its commands and files, and how arrays differ.

What it says of labels is shown where they are made (test_labels.py, test_annotate.py, test_process.py), and what it
says of an export by test_export*.py.
"""

from __future__ import annotations

import pickle
import re
import runpy
import shlex
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tiny
from commands import TEST, TRAIN, VAL, run_main
from test_readme import PAGES, REPOSITORY_DIR, find_commands

from scannet_prep import read_processed
from scannet_prep.cli.main import make_parser
from scannet_prep.synthetic import write_release

SECTIONS = dict(part.split("\n", 1) for part in PAGES["docs/coming-from.md"].split("\n## ")[1:])
PROGRAMS = ("OctFormer", "Pointcept", "Mask3D", "mmdetection3d", "OneFormer3D")
TYPE = re.compile(r"\b(?:float|uint|int)\d+\b")


def find_rows(section: str, head: str) -> list[tuple[str, str]]:
    """Cells of the table with that head."""
    table = SECTIONS[section].split(f"| {head} | here |\n| --- | --- |\n")[1].split("\n\n")[0]
    return [
        (left, right)
        for left, right in (row.strip("| ").split(" | ") for row in table.splitlines())
    ]


def find_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw and processed scenes under the default names, and segments of the test scene as the page names them."""
    folder = tmp_path_factory.mktemp("coming")
    write_release(folder / "data/ScanNet", (TRAIN, VAL, TEST), vertices=600)
    assert run_main("process", cwd=folder).status == 0
    segments = folder / f"data/raw/scannet_test_segments/{TEST}_vh_clean_2.0.010000.segs.json"
    segments.parent.mkdir(parents=True)
    segments.write_bytes(tiny.segments_file(tuple(range(600)), scene_id=TEST))
    return folder


@pytest.fixture
def folder(release: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release, tmp_path / "here"))


def test_commands_of_the_official_script_are_the_commands_beside_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    translate = runpy.run_path(str(REPOSITORY_DIR / "tools/download-scannet.py"))["translate"]
    rows = find_rows("The official download script", "official script")
    assert len(rows) == 11
    for left, right in rows:
        name, *words = shlex.split(find_code(left)[0])
        assert name == "download-scannet.py"
        if right.startswith("refused: "):
            with pytest.raises(SystemExit, match="2"):
                translate(words)
            assert right.removeprefix("refused: ") in capsys.readouterr().err
        else:
            ours = find_code(right)[0].removeprefix("scannet-prep ")
            assert make_parser().parse_args(translate(words)) == make_parser().parse_args(
                shlex.split(ours)
            )
            kinds = [item for item in translate(words) if item.endswith(".zip")]
            assert ("to `tasks/`" in right) == bool(kinds)


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_of_a_program_run_in_the_order_shown_and_its_files_are_those_of_the_page(
    folder: Path, program: str
) -> None:
    commands = [*find_commands(SECTIONS[program].split("```sh\n")[1].split("```")[0])]
    for code in (
        code for row in find_rows(program, program) for cell in row for code in find_code(cell)
    ):
        words = shlex.split(code)
        if words[:2] == ["python", "tools/seg_scannet.py"]:
            if "generate_output_seg" in words:
                (folder / "logs").mkdir()
                np.savez(folder / f"logs/{VAL}.eval.npz", prob=np.eye(21)[np.arange(600) % 21])
            tool = runpy.run_path(str(REPOSITORY_DIR / "tools/seg_scannet.py"))["main"]
            assert run_main(*words[2:], cwd=folder, main=tool).status == 0
        elif words[0] == "scannet-prep":
            commands.append(words[1:])
    for words in commands:
        outcome = run_main(*words, cwd=folder)
        assert outcome.status == 0, (words, outcome.stderr)
    export_dirs = [
        folder / words[words.index("-o") + 1]
        for words in commands
        if words[0] == "export" and "-o" in words
    ]
    assert len({*export_dirs}) == {"OctFormer": 2, "Mask3D": 2, "OneFormer3D": 2}.get(program, 1)
    check_files(export_dirs[0], program, folder / "data/processed")


def check_files(out_dir: Path, program: str, place: Path) -> None:
    """The table of files names each that is there, no other, with its type; and arrays that exist, beside them."""
    matched = {"TERMS.txt", "export.json"}
    stored = {path.stem: read_processed(path) for path in place.glob("*/scene*.npz")}
    paths: list[Path] = []
    for left, right in find_rows(program, "file"):
        names = [name for code in find_code(left) for name in expand(code)]
        patterns = [name for name in names if re.search(r"[./]", name)]
        paths = [
            path for name in patterns for path in out_dir.rglob(name)
        ] or paths  # else: those of the row above
        assert all([*out_dir.rglob(name)] for name in patterns), left
        matched |= {path.relative_to(out_dir).as_posix() for path in paths}
        arrays = [name for name in names if name not in patterns] or [""]
        types = TYPE.findall(left) or TYPE.findall(right)
        shape = re.search(r"\(V,(?: (\d))?\)", left)
        for path, (number, name) in product(paths if types else (), enumerate(arrays)):
            scene = next(item for scene_id, item in stored.items() if scene_id in str(path))
            kind = np.dtype(types[min(number, len(types) - 1)])
            found = np.fromfile(path, kind) if path.suffix == ".bin" else np.load(path)
            array = found[name] if name else found
            assert array.dtype == kind, (path, name)
            assert array.size % len(scene.points) == 0
            assert not shape or array.size == int(shape[1] or 1) * len(scene.points)
        known = {key for scene in stored.values() for key in scene.arrays()} | {
            "objectId",
            "object",
        }
        words = {word for word in find_code(right) if re.fullmatch(r"[a-z_\d]+", word)}
        assert words <= known, right
    visible = {
        path.relative_to(out_dir).as_posix() for path in out_dir.rglob("*") if path.is_file()
    }
    assert {name for name in visible if not name.startswith(".")} == matched


def expand(pattern: str) -> list[str]:
    """What a shell makes of braces."""
    parts = [item.split(",") for item in re.split(r"[{}]", pattern)]
    return ["".join(items) for items in product(*parts)]


def test_files_of_tasks_beside_the_splits_stay_where_they_are(folder: Path) -> None:
    words = ("export", "--format", "pointcept", "-o", "out", "--scenes", TRAIN)
    assert run_main(*words, cwd=folder).status == 0
    assert not (folder / "out/tasks").exists()
    path = folder / "out/tasks/scenes/1.txt"
    path.parent.mkdir(parents=True)
    path.write_text(TRAIN)
    assert run_main(*words, "--force", cwd=folder).status == 0
    assert run_main("verify", "out", cwd=folder).status == 0
    assert path.read_text() == TRAIN


def test_infos_are_in_the_order_of_ids_and_no_intermediate_files_are_there(tmp_path: Path) -> None:
    write_release(tmp_path / "raw", ("scene0191_00", TRAIN), vertices=500)
    assert run_main("process", tmp_path / "raw", "-o", tmp_path / "processed").status == 0
    assert (
        run_main(
            "export", tmp_path / "processed", "-o", tmp_path / "out", "--format", "mmdet3d"
        ).status
        == 0
    )
    infos = pickle.loads((tmp_path / "out/scannet_infos_train.pkl").read_bytes())["data_list"]
    assert [info["lidar_points"]["lidar_path"] for info in infos] == [
        f"{TRAIN}.bin",
        "scene0191_00.bin",
    ]
    assert not (tmp_path / "out/scannet_instance_data").exists()
