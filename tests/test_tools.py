"""The scripts in tools/: ScanNet's script, OctFormer's tool, the benchmark, and the environment of the others."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import runpy
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from commands import PYTHON, Outcome, digests, run_main, run_words
from downloads import SCENES, fetched
from release_server import ROOT, ReleaseServer

from scannet_prep.processed.scene import read_processed
from scannet_prep.release.label_sets import SCANNET20, SCANNET200

TOOLS_DIR = Path(__file__).resolve().parent.parent / "tools"
TRAIN, VAL, TEST = SCENES
# Smaller figures for each part of the benchmark, by the names of its constants.
PARTS: dict[str, dict[str, int]] = {
    "process": {"_LARGEST_VERTEX_COUNT": 1_000},
    "export": {},
    "download": {"_SMALL_SCENE_COUNT": 2, "_REJECTED_SCENE_COUNT": 1},
    "pack": {"_TOTAL_BYTES": 200_000, "_READS": 2, "_REPEAT": 1},
    "loader": {"_EPOCHS": 1, "_MANY_SCENES": 100},
}
RUN_PART = """
import importlib, json, pathlib, sys
from benchmark.settings import Settings
part = importlib.import_module(f"benchmark.{sys.argv[1]}")
for name, value in json.loads(sys.argv[2]).items():
    assert hasattr(part, name), name
    setattr(part, name, value)
folder = pathlib.Path("scenes").absolute()
settings = Settings(folder, scene_count=2, vertex_count=1000, repeat=1, reference_count=1, seed=0)
print(part.describe(part.measure(settings)))
"""


def run_tool(name: str, *words: str | Path, cwd: Path, base_url: str = "") -> Outcome:
    def run(argv: list[str]) -> int:
        patch.setattr(sys, "argv", [name, *argv])
        runpy.run_path(str(TOOLS_DIR / name), run_name="__main__")
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scannet_prep.__main__._SIGNALS", ())
        patch.setenv("SCANNET_PREP_ACCEPT_TERMS", "1")
        patch.setenv("SCANNET_PREP_BASE_URL", base_url)
        return run_main(*words, cwd=cwd, main=run)


def test_command_lines_of_the_official_script_bring_the_same_files_into_the_same_places(
    server: ReleaseServer, tmp_path: Path
) -> None:
    names = [
        "limited-reconstruction-scenes.zip",
        "limited-annotation-points.zip",
        "limited-bboxes.zip",
    ]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("scenes.txt", "scene0191_00\n")
    server.files.update({f"{ROOT}v2/tasks/{name}": buffer.getvalue() for name in names})
    served = digests(server.root)
    for number, (words, files) in enumerate(
        (
            (f"--type _vh_clean_2.ply --id {VAL}", [f"scans/{VAL}/{VAL}_vh_clean_2.ply"]),
            (f"--type .txt --id {TEST} --skip_existing", [f"scans_test/{TEST}/{TEST}.txt"]),
            (f"--type .txt --test_scans --scenes {TEST}", [f"scans_test/{TEST}/{TEST}.txt"]),
            ("--label_map", ["scannetv2-labels.combined.tsv"]),
            ("--data_efficient", sorted(f"tasks/{name}" for name in names)),
        )
    ):
        line = ("-o", f"./raw{number}", *words.split())
        done = run_tool("download-scannet.py", *line, cwd=tmp_path, base_url=server.base_url)
        assert done.status == 0, done.stderr
        assert done.stderr.startswith(f"this is: scannet-prep download -o ./raw{number} --")
        found = fetched(tmp_path / f"raw{number}")
        assert [*found] == files
        assert all(found[name] == served.get(name, found[name]) for name in found)


def test_files_of_version_1_and_unknown_kinds_are_refused_by_name(tmp_path: Path) -> None:
    for words, found in (
        (["--v1"], "--v1: the labels of version 1"),
        (["--type", ".stl"], "invalid choice: '.stl'"),
        (["--types", ".txt"], "--type"),
    ):
        done = run_tool("download-scannet.py", "-o", "raw", *words, cwd=tmp_path)
        assert (done.status, found in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def workspace(release_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("octformer")
    shutil.copytree(release_dir, folder / "data/ScanNet")
    for path in (folder / "data/ScanNet").rglob("*"):
        if path.name.endswith((".segs.json", ".aggregation.json", ".txt")) and TRAIN in path.name:
            path.unlink()  # which the 20 classes of OctFormer do not need
    return folder


def test_octformers_own_command_makes_the_20_classes_of_meshes_and_labels_alone_and_a_dry_run_ends_before(
    workspace: Path,
) -> None:
    words = (
        "--run",
        "process_scannet",
        "--path_in",
        "data/ScanNet",
        "--path_out",
        "data/scannet.npz",
    )
    done = run_tool("seg_scannet.py", *words, cwd=workspace)
    assert done.status == 0, done.stderr
    assert "this is: scannet-prep process data/ScanNet" in done.stderr
    assert (
        "this is: scannet-prep export data/scannet.npz/processed --format octformer" in done.stderr
    )
    root = workspace / "data/scannet.npz"
    dry = run_tool(
        "seg_scannet.py", *words[:4], "--path_out", "data/dry.npz", "--dry-run", cwd=workspace
    )
    assert (dry.status, "error" in dry.stderr, (workspace / "data/dry.npz").exists()) == (
        0,
        False,
        False,
    ), dry.stderr
    assert (root / "scannetv2_train_npz.txt").read_text() == f"{TRAIN}.npz\n"
    assert (root / "scannetv2_val_npz.txt").read_text() == f"{VAL}.npz\n"
    with np.load(root / f"train/{TRAIN}.npz") as content:
        scene = read_processed(root / f"processed/train/{TRAIN}.npz")
        assert np.array_equal(content["labels"], SCANNET20.labels_from_raw_ids(scene.nyu40_ids))
        assert not scene.meta.options.align_axis
    assert (root / f"train/{TRAIN}.npz").samefile(root / f"processed/train/{TRAIN}.npz")
    again = run_tool("seg_scannet.py", *words, cwd=workspace)
    assert (again.status, again.stdout.count("0 made, 3 already there")) == (0, 2), again.stderr
    before = digests(root)
    other = run_tool("seg_scannet.py", *words, "--align_axis", cwd=workspace)
    assert (other.status, "other options (aligned: False -> True)" in other.stderr) == (2, True)
    assert digests(root) == before


def test_target_that_is_not_an_export_is_refused_before_scenes_are_processed(
    workspace: Path, tmp_path: Path
) -> None:
    target = tmp_path / "scannet.npz"
    (target / "train").mkdir(parents=True)
    words = ("--run", "process_scannet", "--path_in", "data/ScanNet", "--path_out", target)
    done = run_tool("seg_scannet.py", *words, cwd=workspace)
    assert done.status == 2
    assert f"error: {target}: holds train, and was not made by scannet-prep export" in done.stderr
    assert "hint: choose a new folder with --path_out" in done.stderr
    assert [path.name for path in target.iterdir()] == ["train"]


@pytest.mark.parametrize("words", [("-o", "other"), ("-oother",), ("--output=other",)])
def test_output_option_of_scannet_prep_is_refused_by_octformers_tool(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run_tool("seg_scannet.py", "--run", "process_scannet", *words, cwd=tmp_path)
    assert done.status == 2
    assert f"{words[0]}: the folder for the output is --path_out here" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_octformers_other_commands_turn_scores_into_raw_ids_and_tell_their_iou(
    workspace: Path,
) -> None:
    words = (
        "--path_in",
        "data/ScanNet",
        "--path_out",
        "data/scannet200.npz",
        "--align_axis",
        "--scannet200",
    )
    done = run_tool(
        "seg_scannet.py", "--run", "process_scannet", *words, "--scenes", VAL, cwd=workspace
    )
    assert done.status == 0, done.stderr
    root, pred_dir = workspace / "data/scannet200.npz", workspace / "eval"
    truth = np.loadtxt(root / f"train/{VAL}.txt", dtype=int)
    scores = np.zeros((len(truth), 201), np.float32)
    scores[np.arange(len(truth)), SCANNET200.train_ids_from_raw_ids(truth, -1) + 1] = 1
    # The scene in two parts, whose scores are added up.
    pred_dir.mkdir()
    names = [f"{VAL}.chunk_{number}" for number in (9, 10)]
    for number, name in enumerate(names):  # a number of two digits, too
        mask = np.arange(len(truth)) % 2 == number
        np.save(workspace / f"{name}.mask.npy", mask)
        np.savez(pred_dir / f"{name}.eval.npz", prob=scores[mask])
    (workspace / "list.txt").write_text("".join(f"{name}.npz\n" for name in names))
    words = (
        "--path_pred",
        "eval",
        "--path_in",
        ".",
        "--path_out",
        "seg",
        "--filelist",
        "list.txt",
        "--scannet200",
    )
    done = run_tool("seg_scannet.py", "--run", "generate_output_seg", *words, cwd=workspace)
    assert done.status == 0, done.stderr
    assert np.array_equal(np.loadtxt(workspace / f"seg/{VAL}.txt", dtype=int), truth)
    assert (
        "like: scannet-prep submit -o submission.zip eval --gt processed --labels scannet200\n"
        in done.stderr
    )
    words = ("--path_in", root / "train", "--path_pred", "seg", "--scannet200")
    done = run_tool("seg_scannet.py", "--run", "calc_iou", *words, cwd=workspace)
    assert done.status == 0, done.stderr
    classes = len(set(truth.tolist()) - {0})
    assert f"{'mean IoU':<24}{classes / 200:8.4f}" in done.stdout
    assert f"{'accuracy':<24}{1:8.4f}" in done.stdout
    assert "311 of the scenes of val have no prediction" in done.stderr
    like = shlex.split(done.stderr.splitlines()[0].removeprefix("much like: scannet-prep "))
    gt = workspace / like[like.index("--gt") + 1]
    table = run_main("evaluate", workspace / like[1], *like[4:], "--gt", gt, "--json").json[
        "scores"
    ]
    assert (like[0], f"{table['means']['all']['over_all']:.4f}") == (
        "evaluate",
        f"{classes / 200:.4f}",
    )


def test_wrong_use_and_damaged_input_of_octformers_tool_are_told_by_name(tmp_path: Path) -> None:
    chunk, list_path = f"{VAL}.chunk_0", tmp_path / "list.txt"
    list_path.write_text(f"{chunk}.npz\n")
    np.savez(tmp_path / f"{chunk}.eval.npz", prob=np.zeros((10, 21)))
    np.save(tmp_path / f"{chunk}.mask.npy", np.ones(50, bool))
    np.savez(tmp_path / "cut.eval.npz", prob=np.zeros((10, 21)))
    os.truncate(tmp_path / "cut.eval.npz", 500)
    for name in ("empty", "absent", "cut"):
        (tmp_path / f"{name}.txt").write_text("" if name == "empty" else f"{name}.npz\n")
    (tmp_path / "scene0011_00.txt").write_text("1\n2\n")
    outputs = [
        "--run",
        "generate_output_seg",
        "--path_pred",
        ".",
        "--path_in",
        ".",
        "--path_out",
        "seg",
        "--filelist",
    ]
    for words, status, found in (
        (
            ["--run", "process_scannet", "--suffix_out", ".ply"],
            2,
            "scannet-prep export --format ply",
        ),
        (["--run", "process_scannet", "--path_in", "nowhere"], 1, "nowhere"),
        (["--run", "calc_iou"], 2, "needs --path_pred"),
        (["--run", "calc_iou", "--path_pred", "."], 1, "scene0011_00"),
        ([*outputs, "empty.txt"], 1, "empty.txt: names no scene"),
        ([*outputs, "absent.txt"], 1, "absent.eval.npz: no such file"),
        ([*outputs, "cut.txt"], 1, "cut.eval.npz: cannot be read as .npz"),
        ([*outputs, "list.txt"], 1, f"{chunk}.mask.npy: has 50 of 50 vertices, expected 10 of 50"),
    ):
        done = run_tool("seg_scannet.py", *words, cwd=tmp_path)
        assert (done.status, found in done.stderr) == (status, True), done.stderr


def test_page_cites_every_part_of_the_benchmark() -> None:
    page = (TOOLS_DIR.parent / "docs/performance.md").read_text()
    cited = set(re.findall(r"`tools/bench (\w+)", page))
    done = run_words(PYTHON, "-m", "benchmark", "--help", cwd=TOOLS_DIR)

    assert cited == set(PARTS)
    assert f"PART {', '.join(PARTS)}; all by default" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", PARTS)
def test_part_of_the_benchmark_measures_and_prints_a_table(tmp_path: Path, name: str) -> None:
    if name == "loader" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    if name == "pack" and shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")

    environment = os.environ | {"PYTHONPATH": str(TOOLS_DIR)}
    outcome = run_words(
        PYTHON, "-c", RUN_PART, name, json.dumps(PARTS[name]), cwd=tmp_path, env=environment
    )

    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.startswith(f"{name}: ")


def run_bash(script: str, **environment: str | Path) -> Outcome:
    variables = {
        key: value
        for key, value in os.environ.items()
        if key not in {"PYTHON", "SCANNET_PREP_VENV"}
    }
    variables |= {key: str(value) for key, value in environment.items()}
    return run_words(
        "bash", "-euc", f'source "{TOOLS_DIR}/environment.sh"; {script}', env=variables
    )


def test_python_of_another_version_than_the_environment_is_told_with_both_versions(
    tmp_path: Path,
) -> None:
    python, folder = tmp_path / "python3.13", tmp_path / "a b"
    (folder / "bin").mkdir(parents=True)
    for path, version in (
        (folder / "bin/python", "3.12"),
        (python, "3.13"),
    ):  # they pass for Pythons with pip
        path.write_text(f"#!/bin/sh\n[ $1 = -m ] || echo {version}\n")
        path.chmod(0o755)
    done = run_bash("prepare_environment run", SCANNET_PREP_VENV=folder, PYTHON=python)
    assert done.status == 1
    assert (
        f"error: PYTHON={python} is Python 3.13, but {folder} was made with Python 3.12"
        in done.stderr
    )
    assert "hint: use another folder: SCANNET_PREP_VENV=.venv-3.13" in done.stderr
    assert f"rm -r {tmp_path}/a\\ b\n" in done.stderr


def test_unusable_python_and_folders_that_are_not_environments_are_told_and_left_alone(
    tmp_path: Path,
) -> None:
    for python in ("/bin/false", "no-such-python"):
        done = run_bash(
            "prepare_environment run", SCANNET_PREP_VENV=tmp_path / "venv", PYTHON=python
        )
        assert (done.status, f"error: PYTHON={python} is not Python 3." in done.stderr) == (1, True)
        assert not (tmp_path / "venv").exists()
    # Nor is an environment used that is active.
    assert (
        run_bash("echo $python", VIRTUAL_ENV=tmp_path).stdout
        == f"{TOOLS_DIR.parent}/.venv/bin/python\n"
    )
    (tmp_path / "thesis.tex").write_text("mine")
    done = run_bash("prepare_environment run", SCANNET_PREP_VENV=tmp_path)
    assert (done.status, f"error: {tmp_path} is not a virtual environment" in done.stderr) == (
        1,
        True,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
