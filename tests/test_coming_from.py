"""The page for people who come from other programs: every row of its tables, and every known difference, is shown."""

from __future__ import annotations

import pickle
import re
import runpy
import shlex
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_export_frameworks
import tiny
from commands import TEST, TRAIN, VAL, run_main
from test_readme import PAGES, REPOSITORY_DIR, find_commands

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed
from scannet_prep.cli.main import make_parser
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.synthetic import write_release

SECTIONS = dict(part.split("\n", 1) for part in PAGES["docs/coming-from.md"].split("\n## ")[1:])
Export = Callable[..., Path]
PROGRAMS = ("OctFormer", "Pointcept", "Mask3D", "mmdetection3d", "OneFormer3D")
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
TYPE = re.compile(r"\b(?:float|uint|int)\d+\b")

# What a test shows: section, and how the row or the difference begins. First those that tests of exports, of what
# they are made from (labels, annotations, scenes), and of `process` show.
SHOWN = [
    ("OctFormer", "Its test files hold 255"),
    ("OctFormer", "Its script for 200 classes reads `data/scannet.npz/scannetv2_test.txt`"),
    ("In words", "Pointcept | `coord`"),
    ("Pointcept", "Test scenes have no `segment` and `instance`"),
    ("Pointcept", "Points that were processed with `--align-axis` come back"),
    ("In words", "Mask3D | columns"),
    ("Mask3D", "The databases name files as Mask3D's own do"),
    ("Mask3D", "`label_database.yaml` of the 20 classes has 20 entries"),
    ("In words", "mmdetection3d | instance"),
    ("Pointcept", "Its copy of the label map lacks the row `stick`"),
    ("Pointcept", "A scene that is in no official list"),
    ("OctFormer", "It reads the labels of the 20 classes from `labels.ply`"),
    ("OctFormer", "Its `train/*.txt` of three scenes have the ids 50 and 149"),
    ("Mask3D", "Mask3D reads the labels of the 20 classes from `labels.ply`"),
    ("Mask3D", "Here, all vertices of an instance"),
    ("Mask3D", "It takes the first `*.aggregation.json`"),
    ("Mask3D", "scene0217_00 lists every group twice"),
    ("mmdetection3d", "mmdetection3d drops a scene"),
    ("mmdetection3d", "Where `objectId` is missing"),
    ("OneFormer3D", "OneFormer3D computes superpoints anew"),
    ("OneFormer3D", "OneFormer3D swaps chair and floor"),
]


def shows(section: str, *beginnings: str) -> Callable[[Any], Any]:
    """Says of a test which differences, or rows, of the page it shows."""
    SHOWN.extend((section, beginning) for beginning in beginnings)
    return lambda test: test


def find_rows(section: str, head: str) -> list[tuple[str, str]]:
    """Cells of the table with that head."""
    table = SECTIONS[section].split(f"| {head} | here |\n| --- | --- |\n")[1].split("\n\n")[0]
    return [(left, right) for left, right in (row.strip("| ").split(" | ") for row in table.splitlines())]


def find_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def find_differences(section: str) -> list[str]:
    return re.findall(r"^- (.+)$", SECTIONS[section].partition("Known differences:\n")[2], re.MULTILINE)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw and processed scenes under the default names, and segments of the test scene as the page names them."""
    folder = tmp_path_factory.mktemp("coming")
    write_release(folder / "data/ScanNet", (TRAIN, VAL, TEST), vertices=600)
    assert run_main("process", cwd=folder).status == 0
    segments = folder / f"data/raw/scannet_test_segments/{TEST}{SEGMENTS}"
    segments.parent.mkdir(parents=True)
    segments.write_bytes(tiny.segments_file(tuple(range(600)), scene_id=TEST))
    return folder


@pytest.fixture
def folder(release: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release, tmp_path / "here"))


@pytest.fixture(scope="module")
def scenes(release: Path) -> list[ProcessedScene]:
    """The scenes of train, val and test."""
    return [
        read_processed(path) for name in (TRAIN, VAL, TEST) for path in release.glob(f"data/processed/*/{name}.npz")
    ]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """Writes an export of scenes into a new folder, without the command."""
    return lambda scenes, name, **options: test_export_frameworks.write_export(
        name, scenes, tmp_path / f"export{len([*tmp_path.iterdir()])}", **options
    )


def test_every_known_difference_and_every_row_in_words_has_a_test() -> None:
    there = [(section, text) for section in PROGRAMS for text in find_differences(section)]
    there += [("In words", row.strip("| ")) for row in SECTIONS["In words"].splitlines()[3:] if row]
    assert len(there) > 20
    for section, text in there:
        found = [item for item in SHOWN if item[0] == section and text.startswith(item[1])]
        assert len(found) == 1, (section, text)
    assert len(SHOWN) == len(there)


def test_commands_of_the_official_script_are_the_commands_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
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
            assert make_parser().parse_args(translate(words)) == make_parser().parse_args(shlex.split(ours))
            kinds = [item for item in translate(words) if item.endswith(".zip")]
            assert ("to `tasks/`" in right) == bool(kinds)


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_of_a_program_run_in_the_order_shown_and_its_files_are_those_of_the_page(
    folder: Path, program: str
) -> None:
    commands = [*find_commands(SECTIONS[program].split("```sh\n")[1].split("```")[0])]
    for code in (code for row in find_rows(program, program) for cell in row for code in find_code(cell)):
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
    export_dirs = {folder / words[words.index("-o") + 1] for words in commands if "-o" in words}
    (first, *_) = (folder / words[words.index("-o") + 1] for words in commands if "-o" in words)
    assert len(export_dirs) == {"OctFormer": 2, "Mask3D": 2, "OneFormer3D": 2}.get(program, 1)
    check_files(first, program, folder / "data/processed")


def check_files(out_dir: Path, program: str, place: Path) -> None:
    """The table of files names each that is there, no other, with its type; and arrays that exist, beside them."""
    matched = {"TERMS.txt", "export.json"}
    stored = {path.stem: read_processed(path) for path in place.glob("*/scene*.npz")}
    paths: list[Path] = []
    for left, right in find_rows(program, "file"):
        names = [name for code in find_code(left) for name in expand(code)]
        patterns = [name for name in names if re.search(r"[./]", name)]
        paths = [path for name in patterns for path in out_dir.rglob(name)] or paths  # else: those of the row above
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
        known = {key for scene in stored.values() for key in scene.arrays()} | {"objectId", "object"}
        words = {word for word in find_code(right) if re.fullmatch(r"[a-z_\d]+", word)}
        assert words <= known, right
    visible = {path.relative_to(out_dir).as_posix() for path in out_dir.rglob("*") if path.is_file()}
    assert {name for name in visible if not name.startswith(".")} == matched


def expand(pattern: str) -> list[str]:
    """What a shell makes of braces."""
    parts = [item.split(",") for item in re.split(r"[{}]", pattern)]
    return ["".join(items) for items in product(*parts)]


@shows("In words", "OctFormer | `labels`", "Pointcept | `segment20`")
def test_labels_of_the_dataset_are_segment20_and_segment200_and_our_segments_are_superpoints(
    release: Path, scenes: list[ProcessedScene], export: Export
) -> None:
    folder = export(scenes, "pointcept") / f"train/{TRAIN}"
    for name, label_set in {"20": SCANNET20, "200": SCANNET200}.items():
        sample = ScanNet(release / "data/processed", split="train", labels=label_set, keys=("labels", "segments"))[
            TRAIN
        ]
        assert np.array_equal(np.load(folder / f"segment{name}.npy"), sample["labels"])
        with np.load(export(scenes, "octformer", label_set=label_set) / f"train/{TRAIN}.npz") as arrays:
            assert sample["labels"].tolist() == (arrays["labels"].astype(int) - 1).tolist()
        assert (sample["labels"].min(), sample["labels"].max() < len(label_set)) == (-1, True)
    assert len(set(sample["segments"].tolist())) > len(set(sample["labels"].tolist()))


@shows("OctFormer", "OctFormer adds 1e-8 to lengths")
@shows("Pointcept", "It adds 1e-8 to lengths")
@shows("Mask3D", "Normals come from float16")
def test_normals_have_unit_length_and_those_with_1e_8_added_are_short(tmp_path: Path, export: Export) -> None:
    small = [[value / 1000 for value in row] for row in tiny.POSITIONS]
    scenes = [tiny.process_tiny(tmp_path / "raw", {"_vh_clean_2.ply": tiny.Ply(small).encode()})]
    points, faces = np.array(small), np.array(tiny.FACES)
    sums = np.zeros((6, 3))
    for face in faces:  # as tools/seg_scannet.py of OctFormer does: the unit normal times the area, then both lengths
        vector = np.cross(points[face[1]] - points[face[0]], points[face[2]] - points[face[0]])
        length = np.linalg.norm(vector) + 1e-8
        sums[face] += vector / length * length / 2
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    theirs, exact = sums / (lengths + 1e-8), sums / lengths
    assert 0.97 < np.linalg.norm(theirs, axis=1).min() < 0.985
    for found in (
        np.load(export(scenes, "octformer") / f"train/{tiny.SCENE_ID}.npz")["normals"],
        np.load(export(scenes, "pointcept") / f"train/{tiny.SCENE_ID}/normal.npy"),
        np.load(export(scenes, "mask3d") / f"train/{tiny.SCENE_ID[5:]}.npy")[:, 6:9],
    ):
        assert np.abs(found - exact).max() < 0.0003


@shows("Pointcept", "Files for limited annotations and reconstructions")
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


@shows(
    "mmdetection3d", "`scannet_instance_data/` is not written", "Scenes stand in the infos in the order of their ids"
)
def test_infos_are_in_the_order_of_ids_and_no_intermediate_files_are_there(tmp_path: Path) -> None:
    write_release(tmp_path / "raw", ("scene0191_00", TRAIN), vertices=500)
    assert run_main("process", tmp_path / "raw", "-o", tmp_path / "processed").status == 0
    assert run_main("export", tmp_path / "processed", "-o", tmp_path / "out", "--format", "mmdet3d").status == 0
    infos = pickle.loads((tmp_path / "out/scannet_infos_train.pkl").read_bytes())["data_list"]
    assert [info["lidar_points"]["lidar_path"] for info in infos] == [f"{TRAIN}.bin", "scene0191_00.bin"]
    assert not (tmp_path / "out/scannet_instance_data").exists()
