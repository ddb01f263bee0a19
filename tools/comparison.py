"""Run the preprocessing scripts of other programs beside ours: the tables of docs/comparison.md.

You clone the other programs; the command shows what to type for those that are missing, and leaves
them out. Nothing of them is part of this repository. Each is called as its README shows, with one
worker. The tables are written to standard output, and what each program made of each irregular
input to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import plyfile
from benchmark.scenes import make_scenes
from numpy.typing import NDArray
from usage import Usage, run

from scannet_prep.release.files import LABEL_MAP
from scannet_prep.release.scenes import Split, official_scenes
from scannet_prep.synthetic import write_release

Command: TypeAlias = list[object]
Arrays: TypeAlias = dict[str, NDArray[Any]]

VERTEX_COUNT = 2000
TRAIN_SCENES = tuple(sorted(map(str, official_scenes(Split.TRAIN)[:5])))
# In the middle, so that other scenes follow it.
SCENE = TRAIN_SCENES[2]
TEST_SCENE = str(official_scenes(Split.TEST)[0])

# Coordinates, in metres, and normals that differ less are equal.
_TOLERANCE = 1e-3
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, plyfile.PlyParseError)
# The fastest of this many runs counts.
_REPEATS = 9
_MESSAGE = re.compile(r"error|warning|note:|fail|unknown|exception|stopiteration", re.IGNORECASE)
_NUMBERS = re.compile(r"[\d.,]+")


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a program.

    Attributes:
        raw_dir: Folder of the release: `scans/` with train scenes, `scans_test/`, the label map.
        folder: Folder for all that is written.
        clones_dir: Folder of the clones of all repositories.
        python: The interpreter for the other programs.
    """

    raw_dir: Path
    folder: Path
    clones_dir: Path
    python: str

    @property
    def out_dir(self) -> Path:
        """Folder for the output."""
        return self.folder / "output"

    @property
    def work_dir(self) -> Path:
        """The current folder of the program."""
        return self.folder / "work"

    def list_scenes(self, scans_name: str) -> str:
        """List the scenes in `scans` or `scans_test`, one per line."""
        paths = sorted((self.raw_dir / scans_name).glob("scene*"))
        return "".join(f"{path.name}\n" for path in paths)


class Program(NamedTuple):
    """A preprocessing program.

    Attributes:
        name: Its name.
        prepare: Makes the files that it needs besides the release, and returns the command.
        contents: What is compared, and the names of the arrays that contain it; see `read_arrays`.
        repository: Owner and name of the repository; empty for this package.
        commit: The commit that is compared.
    """

    name: str
    prepare: Callable[[Job], Command]
    contents: Mapping[str, str]
    repository: str = ""
    commit: str = ""


def find_obstacle(program: Program, clones_dir: Path) -> str:
    """Find out why a clone cannot be used, and what to type; empty if it can be used."""
    if not program.repository:
        return ""
    clone_dir = clones_dir / program.repository.rpartition("/")[2]
    git = ["git", "-C", str(clone_dir)]
    describe = [*git, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    done = subprocess.run(describe, capture_output=True, text=True, check=False)
    state = done.stdout.strip()
    if state == program.commit:
        return ""
    clone = ["git", "clone", f"https://github.com/{program.repository}", str(clone_dir)]
    checkout = [*git, "checkout", program.commit]
    problem = f"found {state or 'no clone'}, expected {program.commit}"
    return f"{problem}; type: {shlex.join(clone)}; {shlex.join(checkout)}"


def prepare_ours(job: Job) -> Command:
    """Prepare a run of this package."""
    options = ["--scannet200", "--align-axis", "--jobs", "1", "--no-progress"]
    command = [sys.executable, "-m", "scannet_prep", "process", job.raw_dir]
    return [*command, "-o", job.out_dir, *options]


def prepare_octformer(job: Job) -> Command:
    """Prepare a run of OctFormer's script."""
    # The script downloads this file, unless it exists.
    job.out_dir.mkdir(exist_ok=True)
    with zipfile.ZipFile(job.out_dir / "filelist.zip", "w") as archive:
        archive.write(job.raw_dir / LABEL_MAP.suffix, LABEL_MAP.suffix)
    # The script needs both folders. It reads the annotation of the full-resolution mesh, which
    # synthetic scenes do not have.
    raw_dir = job.work_dir / "raw"
    shutil.copytree(job.raw_dir, raw_dir, copy_function=os.link)
    (raw_dir / "scans_test").mkdir(exist_ok=True)
    for path in raw_dir.glob("scans/*/*.aggregation.json"):
        path.rename(path.with_name(path.name.replace(".", "_vh_clean.", 1)))
    script = job.clones_dir / "octformer/tools/seg_scannet.py"
    options = ["--run", "process_scannet", "--align_axis", "--scannet200"]
    return [job.python, script, *options, "--path_in", raw_dir, "--path_out", job.out_dir]


def prepare_pointcept(job: Job) -> Command:
    """Prepare a run of Pointcept's script."""
    scripts_dir = job.clones_dir / "Pointcept/pointcept/datasets/preprocessing/scannet"
    folders = ["--dataset_root", job.raw_dir, "--output_root", job.out_dir]
    return [job.python, scripts_dir / "preprocess_scannet.py", *folders, "--num_workers", "1"]


def prepare_mask3d(job: Job) -> Command:
    """Prepare a run of Mask3D's script."""
    lists_dir = job.work_dir / "lists/Tasks/Benchmark"
    lists_dir.mkdir(parents=True)
    (lists_dir / "scannetv2_train.txt").write_text(job.list_scenes("scans"))
    (lists_dir / "scannetv2_val.txt").write_text("")
    (lists_dir / "scannetv2_test.txt").write_text(job.list_scenes("scans_test"))
    # The script is a module of its repository.
    python = ["env", f"PYTHONPATH={job.clones_dir / 'Mask3D'}", job.python]
    command = ["-m", "datasets.preprocessing.scannet_preprocessing", "preprocess"]
    folders = [f"--data_dir={job.raw_dir}", f"--save_dir={job.out_dir}"]
    options = [f"--git_repo={job.work_dir / 'lists'}", "--scannet200=True", "--n_jobs=1"]
    return [*python, *command, *folders, *options]


def prepare_mmdetection3d(job: Job) -> Command:
    """Prepare a run of the first of mmdetection3d's scripts."""
    options: Command = ["--label_map_file", job.raw_dir / LABEL_MAP.suffix]
    for split, scans_name in (("train", "scans"), ("test", "scans_test")):
        list_path = job.work_dir / f"{split}.txt"
        list_path.write_text(job.list_scenes(scans_name))
        options += [f"--{split}_scan_names_file", list_path]
        options += [f"--{split}_scannet_dir", job.raw_dir / scans_name]
    script = job.clones_dir / "mmdetection3d/data/scannet/batch_load_scannet_data.py"
    return [job.python, script, *options, "--output_folder", job.out_dir]


def prepare_scannet(job: Job) -> Command:
    """Prepare a run of the official script for ScanNet200."""
    # The script makes the folders of train and val only.
    (job.out_dir / "test").mkdir(parents=True, exist_ok=True)
    clone_dir = job.clones_dir / "ScanNet"
    script = clone_dir / "BenchmarkScripts/ScanNet200/preprocess_scannet200.py"
    # The script finds the scenes of a pattern, so that one run makes train and test scenes.
    folders = ["--dataset_root", job.raw_dir / "scans*", "--output_root", job.out_dir]
    options = ["--label_map_file", job.raw_dir / LABEL_MAP.suffix, "--num_workers", "1"]
    lists = ["--train_val_splits_path", clone_dir / "Tasks/Benchmark"]
    return [job.python, script, *folders, *options, *lists]


PROGRAMS = (
    Program(
        "scannet_prep",
        prepare_ours,
        {
            "points": "points",
            "normals": "normals",
            "colors": "colors",
            "labels of 200 classes": "labels",
            "nyu40 ids": "nyu40_ids",
            "ScanNet ids": "scannet_ids",
            "instances": "instances",
            "segments": "segments",
            "axis alignment": "axis_alignment",
        },
    ),
    Program(
        "OctFormer",
        prepare_octformer,
        {
            "points": "points",
            "normals": "normals",
            "colors": "colors",
            "labels of 200 classes": "labels",
            "ScanNet ids": "train txt",
        },
        "octree-nn/octformer",
        "c2975ab5739bff50d8fe5cfdc2e3f802482e3c89",
    ),
    Program(
        "Pointcept",
        prepare_pointcept,
        {
            "points": "coord",
            "normals": "normal",
            "colors": "color",
            "labels of 20 classes": "segment20",
            "labels of 200 classes": "segment200",
            "instances": "instance",
        },
        "Pointcept/Pointcept",
        "d74c646db6abec569d0f23e0c34e7ddfce142789",
    ),
    Program(
        "Mask3D",
        prepare_mask3d,
        {
            "points": "matrix 0, matrix 1, matrix 2",
            "normals": "matrix 6, matrix 7, matrix 8",
            "colors": "matrix 3, matrix 4, matrix 5",
            "ScanNet ids": "matrix 10",
            "instances": "matrix 11",
            "segments": "matrix 9",
            "instance ground truth": "train txt",
        },
        "JonasSchult/Mask3D",
        "11bd5ff94477ff7194e9a7c52e9fae54d73ac3b5",
    ),
    Program(
        "mmdetection3d",
        prepare_mmdetection3d,
        {
            "points": "vert 0, vert 1, vert 2",
            "colors": "vert 3, vert 4, vert 5",
            "nyu40 ids": "sem_label",
            "instances": "ins_label",
            "boxes": "aligned_bbox",
            "axis alignment": "axis_align_matrix",
        },
        "open-mmlab/mmdetection3d",
        "fe25f7a51d36e3702f961e198894580d83c4387b",
    ),
    Program(
        "ScanNet",
        prepare_scannet,
        {
            "points": "x, y, z",
            "colors": "red, green, blue",
            "ScanNet ids": "label",
            "instances": "instance_id",
            "faces": "faces",
        },
        "ScanNet/ScanNet",
        "3830fce7f8b2e48ef047ef7fd76ea5f62903f51c",
    ),
)


def run_program(program: Program, job: Job) -> Usage:
    """Run a program in a new working folder, with nothing made yet."""
    shutil.rmtree(job.folder, ignore_errors=True)
    job.work_dir.mkdir(parents=True)
    return run(*program.prepare(job), cwd=job.work_dir)


def find_files(out_dir: Path, scene_id: str) -> list[Path]:
    """Find the files of a scene: their paths contain its id, or its id without `scene`."""
    number = scene_id.removeprefix("scene")
    paths = sorted(path for path in out_dir.rglob("*") if path.is_file())
    return [path for path in paths if number in str(path.relative_to(out_dir))]


def read_arrays(out_dir: Path, scene_id: str) -> Arrays:
    """Read all arrays of a scene.

    The name of an array is that of the member of an `.npz`, of the property of a `.ply`, or of the
    file without the scene. A text file has the name of its folder before that: `train txt`. A
    matrix of float32 that has more than three columns is split: `matrix 0`.
    """
    arrays: Arrays = {}
    for path in find_files(out_dir, scene_id):
        for name, array in _read_file(path, scene_id):
            if array.ndim == 2 and array.shape[1] > 3 and array.dtype == np.float32:
                arrays |= {f"{name} {index}": column for index, column in enumerate(array.T)}
            else:
                arrays[name] = array
    return arrays


def _read_file(path: Path, scene_id: str) -> Iterator[tuple[str, NDArray[Any]]]:
    if path.suffix == ".npz":
        with np.load(path) as content:
            for name in content.files:
                yield name, content[name]
    elif path.suffix == ".npy":
        name = path.stem.replace(scene_id, "").replace(scene_id.removeprefix("scene"), "")
        yield name.strip("_") or "matrix", np.load(path)
    elif path.suffix == ".txt":
        yield f"{path.parent.name} txt", np.loadtxt(path, dtype=np.int64, ndmin=1)
    elif path.suffix == ".ply":
        mesh = plyfile.PlyData.read(path)
        for name in mesh["vertex"].data.dtype.names:
            yield name, np.asarray(mesh["vertex"][name])
        yield "faces", np.vstack(mesh["face"]["vertex_indices"])


def find_contents(program: Program, arrays: Arrays) -> dict[str, list[NDArray[Any]]]:
    """Find the arrays of each content that is there."""
    found = {}
    for content, names in program.contents.items():
        columns = [arrays[name] for name in names.split(", ") if name in arrays]
        if columns:
            found[content] = columns
    return found


def describe_difference(program: Program, arrays: Arrays, expected: Arrays) -> str:
    """Describe which contents differ from the expected ones; empty if none does."""
    found = find_contents(program, arrays)
    differences = []
    for content, columns in find_contents(program, expected).items():
        if content not in found:
            differences.append(f"{content}: missing")
            continue
        counts = [
            _count_differences(array, column, is_instance="instance" in content)
            for array, column in zip(found[content], columns, strict=True)
        ]
        if any(counts):
            differences.append(f"{content}: {max(counts):,} of {len(columns[0]):,} differ")
    return "; ".join(differences)


def _count_differences(array: NDArray[Any], expected: NDArray[Any], *, is_instance: bool) -> int:
    """Count the rows that differ; all, if their number does."""
    if array.shape != expected.shape:
        return len(expected)
    if is_instance:
        # The same instances may have other ids.
        array = _number_by_appearance(array)
        expected = _number_by_appearance(expected)
    if expected.dtype.kind == "f":
        is_different = ~np.isclose(array, expected, rtol=0, atol=_TOLERANCE, equal_nan=True)
    else:
        is_different = array != expected
    return int(is_different.reshape(len(expected), -1).any(axis=1).sum())


def _number_by_appearance(ids: NDArray[Any]) -> NDArray[Any]:
    """Number ids in the order in which they appear."""
    _, first_indices, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_indices))[inverse.reshape(-1)]


def _edit(scene_dir: Path, suffix: str, change: Callable[[bytes], bytes]) -> None:
    """Change the content of a file of a scene."""
    path = scene_dir / f"{scene_dir.name}{suffix}"
    path.write_bytes(change(path.read_bytes()))


def _edit_json(scene_dir: Path, suffix: str, key: str, change: Callable[[Any], object]) -> None:
    """Change a list in a JSON file of a scene."""
    path = scene_dir / f"{scene_dir.name}{suffix}"
    content = json.loads(path.read_bytes())
    change(content[key])
    path.write_text(json.dumps(content))


def _edit_groups(scene_dir: Path, change: Callable[[Any], object]) -> None:
    _edit_json(scene_dir, ".aggregation.json", "segGroups", change)


def _write_nan(scene_dir: Path) -> None:
    path = scene_dir / f"{scene_dir.name}_vh_clean_2.ply"
    mesh = plyfile.PlyData.read(path, mmap=False)
    mesh["vertex"]["x"][0] = np.nan
    mesh.write(path)


def _shorten_labels_mesh(scene_dir: Path) -> None:
    path = scene_dir / f"{scene_dir.name}_vh_clean_2.labels.ply"
    mesh = plyfile.PlyData.read(path, mmap=False)
    vertices = mesh["vertex"].data[:-10]
    faces = mesh["face"].data
    is_kept = np.vstack(faces["vertex_indices"]).max(axis=1) < len(vertices)
    mesh["vertex"].data = vertices
    mesh["face"].data = faces[is_kept]
    mesh.write(path)


def _repeat_groups(groups: list[dict[str, Any]]) -> None:
    count = len(groups)
    for number in range(count):
        groups.append(groups[number] | {"id": 1000 + number, "objectId": count + number})


def _add_test_scene(scene_dir: Path) -> None:
    write_release(scene_dir.parent.parent, [TEST_SCENE], vertices=VERTEX_COUNT)


_SEGMENTS = "_vh_clean_2.0.010000.segs.json"
# What makes an input irregular, given the folder of `SCENE`.
IRREGULARITIES: dict[str, Callable[[Path], object]] = {
    "a raw category that is not in the label map": lambda scene: _edit_groups(
        scene, lambda groups: groups[0].update(label="no such category")
    ),
    "a mesh that is truncated": lambda scene: _edit(
        scene, "_vh_clean_2.ply", lambda data: data[: len(data) * 9 // 10]
    ),
    "a mesh with a coordinate that is not a number": _write_nan,
    "every group twice, with new ids, as in scene0217_00": lambda scene: _edit_groups(
        scene, _repeat_groups
    ),
    "a test scene, which has no annotation": _add_test_scene,
    "a missing `.segs.json`": lambda scene: (scene / f"{SCENE}{_SEGMENTS}").unlink(),
    "a `.segs.json` with 100 vertices fewer than the mesh": lambda scene: _edit_json(
        scene, _SEGMENTS, "segIndices", lambda segments: segments.__delitem__(slice(-100, None))
    ),
    "a `labels.ply` with 10 vertices fewer than the mesh": _shorten_labels_mesh,
    "a group with a segment that no vertex has": lambda scene: _edit_groups(
        scene, lambda groups: groups[0]["segments"].append(10 * VERTEX_COUNT)
    ),
    "an aggregation without groups": lambda scene: _edit_groups(scene, list.clear),
    "a `.txt` without `axisAlignment`": lambda scene: _edit(
        scene, ".txt", lambda data: re.sub(rb"axisAlignment.*\n", b"", data)
    ),
    "a `.txt` that begins with a byte order mark": lambda scene: _edit(
        scene, ".txt", lambda data: b"\xef\xbb\xbf" + data
    ),
}


def try_inputs(program: Program, job: Job) -> dict[str, str]:
    """Run a program on each irregular input, and compare its output with that of regular scenes.

    Returns:
        By the title of the input, one of these:

        - right: the output of every scene is as for regular scenes, or, for a test scene, complete;
        - reported: the irregular scene differs or is missing, a message says so, and all other
          scenes are right;
        - stopped: other scenes are missing, too;
        - silent: the irregular scene differs or is missing, and no message says so.
    """
    usage = _run_small(program, job, lambda _: None)
    expected = {scene_id: read_arrays(job.out_dir, scene_id) for scene_id in TRAIN_SCENES}
    if not all(expected.values()):
        raise SystemExit(f"{program.name} makes nothing of regular scenes:\n{usage.output}")
    # A line that regular scenes cause, too, apart from its numbers, does not count as a message.
    usual_lines = {_NUMBERS.sub("", line) for line in usage.output.splitlines()}
    verdicts = {}
    for title, change in IRREGULARITIES.items():
        irregular_id = TEST_SCENE if "test scene" in title else SCENE
        usage = _run_small(program, job, change)
        lines = [line for line in usage.output.splitlines() if _MESSAGE.search(line)]
        messages = [line for line in lines if _NUMBERS.sub("", line) not in usual_lines]
        differences = {}
        for scene_id in {*TRAIN_SCENES, irregular_id}:
            try:
                arrays = read_arrays(job.out_dir, scene_id)
                difference = describe_difference(program, arrays, expected.get(scene_id, {}))
            except _DAMAGE as error:
                arrays = {}
                difference = f"{type(error).__name__}: {error}"
            if difference or not arrays:
                differences[scene_id] = difference or "not made"
        if differences.keys() - {irregular_id}:
            verdicts[title] = "stopped"
        elif not differences:
            verdicts[title] = "right"
        else:
            verdicts[title] = "reported" if messages else "silent"
        facts = [*differences.values(), f"status {usage.status}", *messages[-1:]]
        print(f"{program.name}, {title}: {verdicts[title]}: {'; '.join(facts)}", file=sys.stderr)
    return verdicts


def _run_small(program: Program, job: Job, change: Callable[[Path], object]) -> Usage:
    """Run a program on a few small scenes, one of them changed."""
    shutil.rmtree(job.raw_dir, ignore_errors=True)
    write_release(job.raw_dir, TRAIN_SCENES, vertices=VERTEX_COUNT)
    change(job.raw_dir / "scans" / SCENE)
    return run_program(program, job)


def measure(program: Program, job: Job, scene_count: int, vertex_count: int) -> dict[str, str]:
    """Run a program on one scene and on several; the difference excludes its start.

    Returns:
        The CPU time per scene, the largest resident set of one of its processes, the size of the
        files of a scene, and what they contain.
    """
    runs = []
    for count in (1, scene_count):
        part = replace(job, raw_dir=job.raw_dir / f"{count}", folder=job.folder / f"{count}")
        scene_ids = make_scenes(part.raw_dir, count, vertex_count)
        attempts = [run_program(program, part) for _ in range(_REPEATS)]
        runs.append(min(attempts, key=lambda usage: usage.cpu_s))
    start, whole = runs
    seconds = (whole.cpu_s - start.cpu_s) / (scene_count - 1)
    paths = [path for scene_id in scene_ids for path in find_files(part.out_dir, scene_id)]
    size_bytes = sum(path.stat().st_size for path in paths)
    contents = find_contents(program, read_arrays(part.out_dir, scene_ids[0]))
    return {
        "CPU time per scene": f"{seconds * 1e3:,.0f} ms",
        "memory": f"{whole.peak_mb:.0f} MB",
        "bytes per vertex": f"{size_bytes / (scene_count * vertex_count):.1f}",
        "fields": ", ".join(contents),
    }


def count_verdicts(verdicts: Mapping[str, str]) -> dict[str, str]:
    """Count the verdicts on irregular inputs."""
    found = list(verdicts.values())
    return {
        "irregular inputs: right or reported": str(found.count("right") + found.count("reported")),
        "the run stopped": str(found.count("stopped")),
        "silently wrong": str(found.count("silent")),
    }


def format_table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Format a table of Markdown from texts by program and row."""
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    first = next(iter(columns.values()), {})
    rows += [[title, *(column[title] for column in columns.values())] for title in first]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Run all programs that are there, and print the tables."""
    parser = argparse.ArgumentParser(prog="tools/compare", description=__doc__)
    parser.add_argument(
        "--repositories",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of your clones: octformer, Pointcept, Mask3D, mmdetection3d, ScanNet",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="interpreter of a Python 3.10 with the packages in tools/comparison.txt",
    )
    arguments = parser.parse_args()
    figures = {}
    verdicts = {}
    with tempfile.TemporaryDirectory(prefix="scannet-prep-compare-") as name:
        for program in PROGRAMS:
            obstacle = find_obstacle(program, arguments.repositories)
            if obstacle:
                print(f"{program.name} is left out: {obstacle}", file=sys.stderr)
                continue
            folder = Path(name, program.name)
            clones_dir = arguments.repositories.absolute()
            job = Job(folder / "raw", folder / "made", clones_dir, arguments.python)
            verdicts[program.name] = try_inputs(program, job)
            # All programs read the same scenes.
            job = replace(job, raw_dir=Path(name, "raw"))
            measured = measure(program, job, scene_count=6, vertex_count=124_000)
            figures[program.name] = measured | count_verdicts(verdicts[program.name])
    print(format_table(figures), format_table(verdicts), sep="\n\n")


if __name__ == "__main__":
    main()
