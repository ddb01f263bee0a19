"""The page for users of other programs: its commands run, its files and arrays are as described.

Its statements about labels are tested with the code that makes them (test_labels.py,
test_annotate.py, test_process.py), and those about exports in test_export*.py.
"""

from __future__ import annotations

import pickle
import re
import runpy
import shlex
import shutil
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from commands import TEST, TRAIN, VAL, Outcome, run_main
from pages import PAGES, REPOSITORY_DIR, find_commands

from scannet_prep import read_processed
from scannet_prep.cli.main import make_parser
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.synthetic import write_release

SECTIONS = dict(part.split("\n", 1) for part in PAGES["docs/coming-from.md"].split("\n## ")[1:])
# Number of different export folders in the section of each program.
EXPORT_DIR_COUNTS = {
    "OctFormer": 2,
    "Pointcept": 1,
    "Mask3D": 2,
    "mmdetection3d": 1,
    "OneFormer3D": 2,
    "VoteNet": 1,
    "ScanRefer": 1,
}
PROGRAMS = tuple(EXPORT_DIR_COUNTS)
DTYPE = re.compile(r"\b(?:float|uint|int)\d+\b")
VERTICES = 600


def find_rows(section: str, head: str) -> list[tuple[str, str]]:
    """Find the rows of the table with the columns `head` and `here`."""
    _, after_head = SECTIONS[section].split(f"| {head} | here |\n| --- | --- |\n")
    table, *_ = after_head.split("\n\n")
    rows = []
    for line in table.splitlines():
        left, right = line.strip("| ").split(" | ")
        rows.append((left, right))
    return rows


def find_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


OFFICIAL_ROWS = find_rows("The official download script", "official script")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw and processed scenes under the default names."""
    folder = tmp_path_factory.mktemp("coming")
    write_release(folder / "data/ScanNet", (TRAIN, VAL, TEST), vertices=VERTICES)
    assert run_main("process", "--compute-segments", cwd=folder).status == 0
    return folder


@pytest.fixture
def folder(release: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release, tmp_path / "here"))


def translate(official: str) -> list[str]:
    """Translate a command of the official script, as the cell of the page shows it."""
    name, *words = shlex.split(find_code(official)[0])
    assert name == "download-scannet.py"
    tool = runpy.run_path(str(REPOSITORY_DIR / "tools/download-scannet.py"))
    return tool["translate"](words)


def test_page_shows_11_commands_of_the_official_script() -> None:
    assert len(OFFICIAL_ROWS) == 11


@pytest.mark.parametrize(
    ("official", "ours"), [row for row in OFFICIAL_ROWS if not row[1].startswith("refused: ")]
)
def test_command_of_official_script_is_the_command_beside_it(official: str, ours: str) -> None:
    words = shlex.split(find_code(ours)[0].removeprefix("scannet-prep "))
    translated = translate(official)

    assert make_parser().parse_args(translated) == make_parser().parse_args(words)
    # The files of tasks, which are zip files, go into a folder of their own.
    has_zip_files = any(word.endswith(".zip") for word in translated)
    assert ("to `tasks/`" in ours) == has_zip_files


@pytest.mark.parametrize(
    ("official", "reason"), [row for row in OFFICIAL_ROWS if row[1].startswith("refused: ")]
)
def test_command_of_official_script_is_refused_for_the_reason_beside_it(
    official: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        translate(official)

    assert reason.removeprefix("refused: ") in capsys.readouterr().err


@dataclass(frozen=True)
class Exported:
    """The exports that the commands of a program's section have made.

    Attributes:
        program: The program.
        outcomes: Outcome of each command, by its words.
        out_dirs: Folder of each export, in the order of the commands.
        scenes: The processed scenes, by id.
    """

    program: str
    outcomes: dict[str, Outcome]
    out_dirs: list[Path]
    scenes: dict[str, ProcessedScene]


@pytest.fixture(scope="module", params=PROGRAMS)
def exported(
    request: pytest.FixtureRequest, release: Path, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    program = request.param
    folder = Path(shutil.copytree(release, tmp_path_factory.mktemp("exported") / "here"))
    outcomes: dict[str, Outcome] = {}
    (first_block, *_) = SECTIONS[program].split("```sh\n")[1].split("```")
    commands = [*find_commands(first_block)]
    for left, right in find_rows(program, program):
        for code in find_code(left) + find_code(right):
            words = shlex.split(code)
            if words[:2] == ["python", "tools/seg_scannet.py"]:
                outcomes[code] = run_seg_scannet(words[2:], folder)
            elif words[0] == "scannet-prep":
                commands.append(words[1:])
    for words in commands:
        outcomes[shlex.join(words)] = run_main(*words, cwd=folder)

    exports = [words for words in commands if words[0] == "export" and "-o" in words]
    out_dirs = [folder / words[words.index("-o") + 1] for words in exports]
    paths = (folder / "data/processed").glob("*/scene*.npz")
    scenes = {path.stem: read_processed(path) for path in paths}
    return Exported(program, outcomes, out_dirs, scenes)


def run_seg_scannet(words: list[str], folder: Path) -> Outcome:
    """Run OctFormer's tool, after writing the predictions that it reads."""
    if "generate_output_seg" in words:
        (folder / "logs").mkdir()
        scores = np.eye(21)[np.arange(VERTICES) % 21]
        np.savez(folder / f"logs/{VAL}.eval.npz", prob=scores)
    tool = runpy.run_path(str(REPOSITORY_DIR / "tools/seg_scannet.py"))["main"]
    return run_main(*words, cwd=folder, main=tool)


def test_commands_of_program_run_in_the_order_shown(exported: Exported) -> None:
    for words, outcome in exported.outcomes.items():
        assert outcome.status == 0, (words, outcome.stderr)


def test_commands_of_program_export_into_different_folders(exported: Exported) -> None:
    assert len(set(exported.out_dirs)) == EXPORT_DIR_COUNTS[exported.program]


@dataclass(frozen=True)
class FileRow:
    """A row of the table of files that a program reads.

    Attributes:
        left: The cell of the program.
        right: The cell of this package.
        patterns: Names and patterns of files in the left cell.
        arrays: Names of arrays in the left cell; one empty name if the file is one array.
    """

    left: str
    right: str
    patterns: list[str]
    arrays: list[str]


def find_file_rows(program: str) -> list[FileRow]:
    rows = []
    for left, right in find_rows(program, "file"):
        names = [name for code in find_code(left) for name in expand_braces(code)]
        patterns = [name for name in names if re.search(r"[./]", name)]
        arrays = [name for name in names if name not in patterns]
        rows.append(FileRow(left, right, patterns, arrays or [""]))
    return rows


def expand_braces(pattern: str) -> list[str]:
    """Expand braces as a shell does: `a{b,c}` gives `ab` and `ac`."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(choice) for choice in product(*parts)]


def find_files(out_dir: Path, row: FileRow) -> list[Path]:
    return [path for pattern in row.patterns for path in out_dir.rglob(pattern)]


def test_files_of_program_are_exactly_those_of_the_page(exported: Exported) -> None:
    out_dir = exported.out_dirs[0]
    named = {"TERMS.txt", "export.json"}
    for row in find_file_rows(exported.program):
        assert all([*out_dir.rglob(pattern)] for pattern in row.patterns), row.left
        named |= {path.relative_to(out_dir).as_posix() for path in find_files(out_dir, row)}

    paths = [path.relative_to(out_dir).as_posix() for path in out_dir.rglob("*") if path.is_file()]

    assert {path for path in paths if not path.startswith(".")} == named


def test_arrays_of_program_have_the_types_and_shapes_of_the_page(exported: Exported) -> None:
    paths: list[Path] = []
    for row in find_file_rows(exported.program):
        # A row without a file name describes the files of the row above.
        paths = find_files(exported.out_dirs[0], row) or paths
        dtypes = DTYPE.findall(row.left) or DTYPE.findall(row.right)
        if not dtypes:
            continue
        for path in paths:
            scene = find_scene(exported, path)
            for index, name in enumerate(row.arrays):
                dtype = np.dtype(dtypes[min(index, len(dtypes) - 1)])
                array = load_array(path, name, dtype)
                assert array.dtype == dtype, (path, name)
                check_size(array, row.left, len(scene.points))


def find_scene(exported: Exported, path: Path) -> ProcessedScene:
    """Find the scene whose id the path of an exported file contains."""
    (scene_id,) = [scene_id for scene_id in exported.scenes if scene_id in str(path)]
    return exported.scenes[scene_id]


def load_array(path: Path, name: str, dtype: np.dtype) -> np.ndarray:
    if path.suffix == ".bin":
        return np.fromfile(path, dtype)
    loaded = np.load(path)
    return loaded[name] if name else loaded


def check_size(array: np.ndarray, description: str, vertex_count: int) -> None:
    """Check the size of an array against a shape such as (V,) or (V, 3) in its description.

    The scenes are so small that N points are all vertices. K is a number of boxes.
    """
    shape = re.search(r"\(([VNK]),(?: (\d))?\)", description)
    if shape and shape[1] == "K":
        assert array.shape[1:] == (int(shape[2]),)
        return
    assert array.size % vertex_count == 0
    if shape:
        assert array.size == int(shape[2] or 1) * vertex_count


def test_page_names_only_arrays_that_exist(exported: Exported) -> None:
    known = {"objectId", "object"}
    for scene in exported.scenes.values():
        known |= scene.arrays().keys()

    for row in find_file_rows(exported.program):
        words = {word for word in find_code(row.right) if re.fullmatch(r"[a-z_\d]+", word)}
        assert words <= known, row.right


POINTCEPT_EXPORT = ("export", "--format", "pointcept", "-o", "out", "--scenes", TRAIN)


def test_export_makes_no_tasks(folder: Path) -> None:
    assert run_main(*POINTCEPT_EXPORT, cwd=folder).status == 0

    assert not (folder / "out/tasks").exists()


@pytest.fixture
def task_path(folder: Path) -> Path:
    """A file of the user in the tasks of an export that is then made again."""
    assert run_main(*POINTCEPT_EXPORT, cwd=folder).status == 0
    path = folder / "out/tasks/scenes/1.txt"
    path.parent.mkdir(parents=True)
    path.write_text(TRAIN)
    assert run_main(*POINTCEPT_EXPORT, "--force", cwd=folder).status == 0
    return path


def test_forced_export_leaves_tasks_unchanged(task_path: Path) -> None:
    assert task_path.read_text() == TRAIN


@pytest.fixture(scope="module")
def mmdet3d_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mmdet3d")
    write_release(folder / "raw", ("scene0191_00", TRAIN), vertices=500)
    assert run_main("process", folder / "raw", "-o", folder / "processed").status == 0
    words = ("export", folder / "processed", "-o", folder / "out", "--format", "mmdet3d")
    assert run_main(*words).status == 0
    return folder / "out"


def test_infos_of_mmdet3d_are_sorted_by_scene_id(mmdet3d_dir: Path) -> None:
    infos = pickle.loads((mmdet3d_dir / "scannet_infos_train.pkl").read_bytes())["data_list"]

    paths = [info["lidar_points"]["lidar_path"] for info in infos]
    assert paths == [f"{TRAIN}.bin", "scene0191_00.bin"]


def test_export_for_mmdet3d_has_no_intermediate_files(mmdet3d_dir: Path) -> None:
    assert not (mmdet3d_dir / "scannet_instance_data").exists()
