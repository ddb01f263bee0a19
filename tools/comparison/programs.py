"""The programs: their commits, how they are called, and the names of their arrays.

Each is called as its own README shows, with one worker process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TypeAlias

from scannet_prep.release.label_map import LABEL_MAP_NAME

Command: TypeAlias = list[str]


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


@dataclass(frozen=True, slots=True)
class Program:
    """A preprocessing program.

    Attributes:
        name: Its name.
        prepare: Makes the files that it needs besides the release, and returns the command.
        contents: What its arrays contain, by name; see `outputs.read_arrays`.
        repository: Owner and name of the repository; empty for this package.
        commit: The commit that is compared.
        scripts: Folders in the repository that must be as in the commit.
        remark: How it is run, for the page.
    """

    name: str
    prepare: Callable[[Job], Command]
    contents: Mapping[str, str]
    remark: str
    repository: str = ""
    commit: str = ""
    scripts: tuple[str, ...] = ()


def find_obstacle(program: Program, clones_dir: Path) -> str:
    """Find out why the clone of a program cannot be used, and the commands that make it usable.

    Returns:
        The reason and the commands; empty if the clone can be used.
    """
    if not program.repository:
        return ""
    clone_dir = clones_dir / program.repository.rpartition("/")[2]
    git = ["git", "-C", str(clone_dir)]
    checkout = f"git -C {quote(str(clone_dir))} checkout {program.commit}"
    if not (clone_dir / ".git").exists():
        clone = f"git clone https://github.com/{program.repository} {quote(str(clone_dir))}"
        return f"{clone_dir} is not a clone; type: {clone} && {checkout}"

    done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    commit = done.stdout.strip()
    if commit != program.commit:
        return f"{clone_dir} is at {commit[:12]}, expected {program.commit[:12]}; type: {checkout}"

    changes = [*git, "diff", "--quiet", "HEAD", "--", *program.scripts]
    if subprocess.run(changes, capture_output=True, check=False).returncode:
        return f"{clone_dir} has changed scripts; type: {checkout} -- {' '.join(program.scripts)}"
    return ""


def _prepare_ours(job: Job) -> Command:
    command = [sys.executable, "-m", "scannet_prep", "process", str(job.raw_dir)]
    options = ["--scannet200", "--align-axis", "--jobs", "1", "--no-progress"]
    return [*command, "-o", str(job.out_dir), *options]


def _prepare_octformer(job: Job) -> Command:
    # The script downloads this file, unless it exists.
    job.out_dir.mkdir(exist_ok=True)
    with zipfile.ZipFile(job.out_dir / "filelist.zip", "w") as archive:
        archive.write(job.raw_dir / LABEL_MAP_NAME, LABEL_MAP_NAME)

    # The script needs both folders. It reads the annotation of the full-resolution mesh, which
    # synthetic scenes do not have.
    raw_dir = job.work_dir / "raw"
    shutil.copytree(job.raw_dir, raw_dir, copy_function=os.link)
    (raw_dir / "scans_test").mkdir(exist_ok=True)
    for scene_dir in raw_dir.glob("scans/*"):
        path = scene_dir / f"{scene_dir.name}.aggregation.json"
        path.rename(scene_dir / f"{scene_dir.name}_vh_clean.aggregation.json")

    script = job.clones_dir / "octformer/tools/seg_scannet.py"
    options = ["--run", "process_scannet", "--align_axis", "--scannet200"]
    folders = ["--path_in", str(raw_dir), "--path_out", str(job.out_dir)]
    return [job.python, str(script), *options, *folders]


def _prepare_pointcept(job: Job) -> Command:
    scripts_dir = job.clones_dir / "Pointcept/pointcept/datasets/preprocessing/scannet"
    script = scripts_dir / "preprocess_scannet.py"
    folders = ["--dataset_root", str(job.raw_dir), "--output_root", str(job.out_dir)]
    return [job.python, str(script), *folders, "--num_workers", "1"]


def _prepare_mask3d(job: Job) -> Command:
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


def _prepare_mmdetection3d(job: Job) -> Command:
    options = ["--label_map_file", str(job.raw_dir / LABEL_MAP_NAME)]
    for split, scans_name in (("train", "scans"), ("test", "scans_test")):
        list_path = job.work_dir / f"{split}.txt"
        list_path.write_text(job.list_scenes(scans_name))
        options += [f"--{split}_scan_names_file", str(list_path)]
        options += [f"--{split}_scannet_dir", str(job.raw_dir / scans_name)]
    script = job.clones_dir / "mmdetection3d/data/scannet/batch_load_scannet_data.py"
    return [job.python, str(script), *options, "--output_folder", str(job.out_dir)]


def _prepare_scannet(job: Job) -> Command:
    # The script makes the folders of train and val only.
    (job.out_dir / "test").mkdir(parents=True, exist_ok=True)
    clone_dir = job.clones_dir / "ScanNet"
    script = clone_dir / "BenchmarkScripts/ScanNet200/preprocess_scannet200.py"
    # The script finds the scenes of a pattern, so that one run makes train and test scenes.
    folders = ["--dataset_root", str(job.raw_dir / "scans*"), "--output_root", str(job.out_dir)]
    options = ["--label_map_file", str(job.raw_dir / LABEL_MAP_NAME), "--num_workers", "1"]
    lists = ["--train_val_splits_path", str(clone_dir / "Tasks/Benchmark")]
    return [job.python, str(script), *folders, *options, *lists]


PROGRAMS = (
    Program(
        name="scannet_prep",
        prepare=_prepare_ours,
        contents={
            "points": "points",
            "normals": "normals",
            "colors": "colors",
            "labels": "labels of 200 classes",
            "nyu40_ids": "nyu40 ids",
            "scannet_ids": "ScanNet ids",
            "instances": "instances",
            "segments": "segments",
            "axis_alignment": "axis alignment",
        },
        remark="`scannet-prep process --scannet200 --align-axis`",
    ),
    Program(
        name="OctFormer",
        prepare=_prepare_octformer,
        contents={
            "points": "points",
            "normals": "normals",
            "colors": "colors",
            "labels": "labels of 200 classes",
            "train txt": "ScanNet ids",
        },
        repository="octree-nn/octformer",
        commit="c2975ab5739bff50d8fe5cfdc2e3f802482e3c89",
        scripts=("tools",),
        remark="`seg_scannet.py --align_axis --scannet200`. The file that it downloads is there, "
        "with our label map. The annotation has the name of that of the full-resolution mesh, "
        "which the script reads",
    ),
    Program(
        name="Pointcept",
        prepare=_prepare_pointcept,
        contents={
            "coord": "points",
            "normal": "normals",
            "color": "colors",
            "segment20": "labels of 20 classes",
            "segment200": "labels of 200 classes",
            "instance": "instances",
        },
        repository="Pointcept/Pointcept",
        commit="d74c646db6abec569d0f23e0c34e7ddfce142789",
        scripts=("pointcept/datasets/preprocessing/scannet",),
        remark="`preprocess_scannet.py`, with its own label map",
    ),
    Program(
        name="Mask3D",
        prepare=_prepare_mask3d,
        contents={
            **dict.fromkeys(("matrix 0", "matrix 1", "matrix 2"), "points"),
            **dict.fromkeys(("matrix 6", "matrix 7", "matrix 8"), "normals"),
            **dict.fromkeys(("matrix 3", "matrix 4", "matrix 5"), "colors"),
            "matrix 10": "ScanNet ids",
            "matrix 11": "instances",
            "matrix 9": "segments",
            "train txt": "instance ground truth",
        },
        repository="JonasSchult/Mask3D",
        commit="11bd5ff94477ff7194e9a7c52e9fae54d73ac3b5",
        scripts=("datasets", "utils"),
        remark="`scannet_preprocessing preprocess --scannet200=True`, with lists of the scenes "
        "that there are. For test scenes, it needs segments from another program",
    ),
    Program(
        name="mmdetection3d",
        prepare=_prepare_mmdetection3d,
        contents={
            **dict.fromkeys(("vert 0", "vert 1", "vert 2"), "points"),
            **dict.fromkeys(("vert 3", "vert 4", "vert 5"), "colors"),
            "sem_label": "nyu40 ids",
            "ins_label": "instances",
            "aligned_bbox": "boxes",
            "axis_align_matrix": "axis alignment",
        },
        repository="open-mmlab/mmdetection3d",
        commit="fe25f7a51d36e3702f961e198894580d83c4387b",
        scripts=("data/scannet",),
        remark="`batch_load_scannet_data.py`. The second step, `create_data.py`, is not run: it "
        "imports mmcv and mmdet, which need a build for the installed PyTorch",
    ),
    Program(
        name="ScanNet",
        prepare=_prepare_scannet,
        contents={
            **dict.fromkeys(("x", "y", "z"), "points"),
            **dict.fromkeys(("red", "green", "blue"), "colors"),
            "label": "ScanNet ids",
            "instance_id": "instances",
            "faces": "faces",
        },
        repository="ScanNet/ScanNet",
        commit="3830fce7f8b2e48ef047ef7fd76ea5f62903f51c",
        scripts=("BenchmarkScripts", "Tasks"),
        remark="the official `preprocess_scannet200.py`. Vertices without a group get instance 0, "
        "which is also the id of the first group",
    ),
)
