"""The scripts in tools/: for command lines of ScanNet and OctFormer, benchmark, environment."""

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
from dataclasses import dataclass
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
# Constants of each part of the benchmark, with small values.
PARTS: dict[str, dict[str, int]] = {
    "process": {"_LARGEST_VERTEX_COUNT": 1_000},
    "export": {},
    "download": {"_SMALL_SCENE_COUNT": 2, "_REJECTED_SCENE_COUNT": 1},
    "pack": {"_TOTAL_BYTES": 200_000, "_READS": 2, "_REPEAT": 1},
    "loader": {"_EPOCHS": 1, "_MANY_SCENES": 100},
    "superpoints": {"_LARGEST_VERTEX_COUNT": 1_000},
    "frames": {"_FRAME_COUNT": 4, "_DIFFERENT_FRAMES": 1},
    "page": {},
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
    """Run a script in this process, with the terms accepted."""

    def run(argv: list[str]) -> int:
        patch.setattr(sys, "argv", [name, *argv])
        runpy.run_path(str(TOOLS_DIR / name), run_name="__main__")
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scannet_prep.__main__._SIGNALS", ())
        patch.setenv("SCANNET_PREP_ACCEPT_TERMS", "1")
        patch.setenv("SCANNET_PREP_BASE_URL", base_url)
        return run_main(*words, cwd=cwd, main=run)


TASK_NAMES = [
    "limited-annotation-points.zip",
    "limited-bboxes.zip",
    "limited-reconstruction-scenes.zip",
]


def add_task_files(server: ReleaseServer) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("scenes.txt", "scene0191_00\n")
    for name in TASK_NAMES:
        server.files[f"{ROOT}v2/tasks/{name}"] = buffer.getvalue()


@pytest.mark.parametrize(
    ("words", "paths"),
    [
        (f"--type _vh_clean_2.ply --id {VAL}", [f"scans/{VAL}/{VAL}_vh_clean_2.ply"]),
        (f"--type .txt --id {TEST} --skip_existing", [f"scans_test/{TEST}/{TEST}.txt"]),
        (f"--type .txt --test_scans --scenes {TEST}", [f"scans_test/{TEST}/{TEST}.txt"]),
        ("--label_map", ["scannetv2-labels.combined.tsv"]),
        ("--data_efficient", [f"tasks/{name}" for name in TASK_NAMES]),
    ],
)
def test_official_command_line_fetches_same_files(
    server: ReleaseServer, tmp_path: Path, words: str, paths: list[str]
) -> None:
    add_task_files(server)
    served = digests(server.root)
    line = ("-o", "./raw", *words.split())

    outcome = run_tool("download-scannet.py", *line, cwd=tmp_path, base_url=server.base_url)

    assert outcome.status == 0, outcome.stderr
    assert outcome.stderr.startswith("this is: scannet-prep download -o ./raw --")
    files = fetched(tmp_path / "raw")
    assert [*files] == paths
    for path, digest in files.items():
        if path in served:  # task files are served from memory
            assert digest == served[path]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--v1", "--v1: the labels of version 1"),
        ("--type .stl", "invalid choice: '.stl'"),
        ("--types .txt", "--type"),
    ],
)
def test_official_command_line_for_other_files_is_refused(
    tmp_path: Path, words: str, problem: str
) -> None:
    outcome = run_tool("download-scannet.py", "-o", "raw", *words.split(), cwd=tmp_path)

    assert outcome.status == 2
    assert problem in outcome.stderr
    assert list(tmp_path.iterdir()) == []


PROCESS = ("--run", "process_scannet", "--path_in", "data/ScanNet", "--path_out")


@pytest.fixture(scope="module")
def workspace(release_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the release, whose train scene has no files but meshes and labels.

    OctFormer does not need the others for its 20 classes.
    """
    folder = tmp_path_factory.mktemp("octformer")
    shutil.copytree(release_dir, folder / "data/ScanNet")
    for path in (folder / "data/ScanNet").rglob("*"):
        if path.name.endswith((".segs.json", ".aggregation.json", ".txt")) and TRAIN in path.name:
            path.unlink()
    return folder


@pytest.fixture(scope="module")
def octformer(workspace: Path) -> tuple[Path, Outcome]:
    """The folder that `process_scannet` made for 20 classes, and its outcome."""
    outcome = run_tool("seg_scannet.py", *PROCESS, "data/scannet.npz", cwd=workspace)
    return workspace / "data/scannet.npz", outcome


def test_process_scannet_prints_its_commands(octformer: tuple[Path, Outcome]) -> None:
    _, outcome = octformer

    assert outcome.status == 0, outcome.stderr
    assert "this is: scannet-prep process data/ScanNet" in outcome.stderr
    export = "this is: scannet-prep export data/scannet.npz/processed --format octformer"
    assert export in outcome.stderr


@pytest.mark.parametrize(("split", "scene_id"), [("train", TRAIN), ("val", VAL)])
def test_process_scannet_writes_file_lists(
    octformer: tuple[Path, Outcome], split: str, scene_id: str
) -> None:
    root, _ = octformer

    assert (root / f"scannetv2_{split}_npz.txt").read_text() == f"{scene_id}.npz\n"


def test_process_scannet_writes_20_classes_in_scan_frame(octformer: tuple[Path, Outcome]) -> None:
    root, _ = octformer
    scene = read_processed(root / f"processed/train/{TRAIN}.npz")

    with np.load(root / f"train/{TRAIN}.npz") as content:
        labels = content["labels"]

    assert np.array_equal(labels, SCANNET20.labels_from_raw_ids(scene.nyu40_ids))
    assert not scene.meta.options.align_axis


def test_process_scannet_exports_the_processed_scenes(octformer: tuple[Path, Outcome]) -> None:
    root, _ = octformer
    path = root / f"processed/train/{TRAIN}.npz"

    assert (root / f"train/{TRAIN}.npz").read_bytes() == path.read_bytes()


def test_process_scannet_that_runs_again_makes_nothing(
    octformer: tuple[Path, Outcome], workspace: Path
) -> None:
    outcome = run_tool("seg_scannet.py", *PROCESS, "data/scannet.npz", cwd=workspace)

    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.count("0 made, 3 kept") == 2


def test_process_scannet_refuses_other_options_for_the_same_folder(
    octformer: tuple[Path, Outcome], workspace: Path
) -> None:
    root, _ = octformer
    before = digests(root)

    words = (*PROCESS, "data/scannet.npz", "--align_axis")
    outcome = run_tool("seg_scannet.py", *words, cwd=workspace)

    assert outcome.status == 2
    assert "was made with" in outcome.stderr
    assert digests(root) == before


def test_process_scannet_writes_nothing_in_dry_run(workspace: Path) -> None:
    words = (*PROCESS, "data/dry.npz", "--dry-run")
    outcome = run_tool("seg_scannet.py", *words, cwd=workspace)

    assert outcome.status == 0, outcome.stderr
    assert "error" not in outcome.stderr
    assert not (workspace / "data/dry.npz").exists()


@pytest.mark.parametrize("words", [("-o", "other"), ("-oother",), ("--output=other",)])
def test_process_scannet_refuses_output_option_of_scannet_prep(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    outcome = run_tool("seg_scannet.py", "--run", "process_scannet", *words, cwd=tmp_path)

    assert outcome.status == 2
    assert f"{words[0]}: the folder for the output is --path_out here" in outcome.stderr
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Predicted:
    """Predictions of OctFormer for one scene of 200 classes, all of them right.

    Attributes:
        workspace: Folder in which the commands ran.
        truth_dir: Folder of the true raw ids.
        truth: The true raw ids (V,).
        outcome: Outcome of `generate_output_seg`.
    """

    workspace: Path
    truth_dir: Path
    truth: np.ndarray
    outcome: Outcome


@pytest.fixture(scope="module")
def predicted(workspace: Path) -> Predicted:
    words = (*PROCESS, "data/scannet200.npz", "--align_axis", "--scannet200", "--scenes", VAL)
    assert run_tool("seg_scannet.py", *words, cwd=workspace).status == 0
    truth_dir = workspace / "data/scannet200.npz/train"
    truth = np.loadtxt(truth_dir / f"{VAL}.txt", dtype=int)
    # Scores (V, 201): 1 for the true class, whose column is its train id + 1.
    scores = np.zeros((len(truth), 201), np.float32)
    columns = SCANNET200.train_ids_from_raw_ids(truth, -1) + 1
    scores[np.arange(len(truth)), columns] = 1
    # The scene in two parts, numbered with one digit and with two.
    (workspace / "eval").mkdir()
    names = [f"{VAL}.chunk_9", f"{VAL}.chunk_10"]
    for index, name in enumerate(names):
        mask = np.arange(len(truth)) % 2 == index
        np.save(workspace / f"{name}.mask.npy", mask)
        np.savez(workspace / f"eval/{name}.eval.npz", prob=scores[mask])
    (workspace / "list.txt").write_text("".join(f"{name}.npz\n" for name in names))

    outcome = run_tool(
        "seg_scannet.py",
        *("--run", "generate_output_seg", "--path_pred", "eval", "--path_in", "."),
        *("--path_out", "seg", "--filelist", "list.txt", "--scannet200"),
        cwd=workspace,
    )
    return Predicted(workspace, truth_dir, truth, outcome)


def test_generate_output_seg_joins_parts_and_writes_raw_ids(predicted: Predicted) -> None:
    assert predicted.outcome.status == 0, predicted.outcome.stderr
    raw_ids = np.loadtxt(predicted.workspace / f"seg/{VAL}.txt", dtype=int)
    assert np.array_equal(raw_ids, predicted.truth)


def test_generate_output_seg_prints_similar_command(predicted: Predicted) -> None:
    command = "submit -o submission.zip eval --gt processed --label-set scannet200"

    assert f"like: scannet-prep {command}\n" in predicted.outcome.stderr


@pytest.fixture
def iou_outcome(predicted: Predicted) -> Outcome:
    words = ("--run", "calc_iou", "--path_in", predicted.truth_dir, "--path_pred", "seg")
    return run_tool("seg_scannet.py", *words, "--scannet200", cwd=predicted.workspace)


def test_calc_iou_prints_mean_iou_and_accuracy(predicted: Predicted, iou_outcome: Outcome) -> None:
    class_count = len(set(predicted.truth.tolist()) - {0})

    assert iou_outcome.status == 0, iou_outcome.stderr
    assert f"{'mean IoU':<24}{class_count / 200:8.4f}" in iou_outcome.stdout
    assert f"{'accuracy':<24}{1:8.4f}" in iou_outcome.stdout


def test_calc_iou_warns_of_scenes_without_a_prediction(iou_outcome: Outcome) -> None:
    assert "311 of the scenes of val have no prediction" in iou_outcome.stderr


def test_calc_iou_prints_similar_command_with_same_result(
    predicted: Predicted, iou_outcome: Outcome
) -> None:
    class_count = len(set(predicted.truth.tolist()) - {0})
    first_line = iou_outcome.stderr.splitlines()[0]
    words = shlex.split(first_line.removeprefix("much like: scannet-prep "))
    # Its folders are relative to the workspace.
    words[1] = str(predicted.workspace / words[1])
    gt_index = words.index("--gt") + 1
    words[gt_index] = str(predicted.workspace / words[gt_index])

    scores = run_main(*words, "--json").json["scores"]

    assert words[0] == "evaluate"
    assert f"{scores['means']['all']['over_all']:.4f}" == f"{class_count / 200:.4f}"


@pytest.fixture
def damaged_dir(tmp_path: Path) -> Path:
    """A folder with damaged predictions, and lists that name them."""
    chunk = f"{VAL}.chunk_0"
    (tmp_path / "list.txt").write_text(f"{chunk}.npz\n")
    np.savez(tmp_path / f"{chunk}.eval.npz", prob=np.zeros((10, 21)))
    np.save(tmp_path / f"{chunk}.mask.npy", np.ones(50, bool))
    np.savez(tmp_path / "cut.eval.npz", prob=np.zeros((10, 21)))
    os.truncate(tmp_path / "cut.eval.npz", 500)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "absent.txt").write_text("absent.npz\n")
    (tmp_path / "cut.txt").write_text("cut.npz\n")
    (tmp_path / "scene0011_00.txt").write_text("1\n2\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--run process_scannet --suffix_out .ply", "scannet-prep export --format ply"),
        ("--run calc_iou", "needs --path_pred"),
    ],
)
def test_wrong_options_of_octformers_tool_exit_with_2(
    tmp_path: Path, words: str, problem: str
) -> None:
    outcome = run_tool("seg_scannet.py", *words.split(), cwd=tmp_path)

    assert outcome.status == 2
    assert problem in outcome.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--run process_scannet --path_in nowhere", "nowhere"),
        ("--run calc_iou --path_pred .", "scene0011_00"),
    ],
)
def test_damaged_input_of_octformers_tool_is_named(
    damaged_dir: Path, words: str, problem: str
) -> None:
    outcome = run_tool("seg_scannet.py", *words.split(), cwd=damaged_dir)

    assert outcome.status == 1
    assert problem in outcome.stderr


@pytest.mark.parametrize(
    ("list_name", "problem"),
    [
        ("empty.txt", "empty.txt: names no scene"),
        ("absent.txt", "absent.eval.npz: no such file"),
        ("cut.txt", "cut.eval.npz: cannot be read as .npz"),
        ("list.txt", f"{VAL}.chunk_0.mask.npy: has 50 of 50 vertices, expected 10 of 50"),
    ],
)
def test_damaged_prediction_of_octformer_is_named(
    damaged_dir: Path, list_name: str, problem: str
) -> None:
    words = ("--run", "generate_output_seg", "--path_pred", ".", "--path_in", ".")
    options = ("--path_out", "seg", "--filelist", list_name)

    outcome = run_tool("seg_scannet.py", *words, *options, cwd=damaged_dir)

    assert outcome.status == 1
    assert problem in outcome.stderr


def test_page_cites_every_part_of_the_benchmark() -> None:
    page = (TOOLS_DIR.parent / "docs/performance.md").read_text()

    assert set(re.findall(r"`tools/bench (\w+)", page)) == set(PARTS)


def test_help_of_benchmark_lists_its_parts() -> None:
    outcome = run_words(PYTHON, "-m", "benchmark", "--help", cwd=TOOLS_DIR)

    assert f"PART {', '.join(PARTS)}; all by default" in " ".join(outcome.stdout.split())


@pytest.mark.parametrize(
    "name",
    [
        *sorted(PARTS.keys() - {"loader", "pack", "page"}),
        pytest.param("loader", marks=pytest.mark.extra("torch")),
        pytest.param("pack", marks=pytest.mark.extra("zstd")),
        pytest.param("page", marks=pytest.mark.extra("chromium", "playwright")),
    ],
)
def test_part_of_benchmark_prints_a_table(tmp_path: Path, name: str) -> None:
    environment = os.environ | {"PYTHONPATH": f"{TOOLS_DIR}{os.pathsep}{TOOLS_DIR.parent}"}
    constants = json.dumps(PARTS[name])

    outcome = run_words(PYTHON, "-c", RUN_PART, name, constants, cwd=tmp_path, env=environment)

    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.startswith(f"{name}: ")


def run_bash(script: str, **environment: str | Path) -> Outcome:
    """Run a script that has loaded environment.sh, with these variables added to ours."""
    variables = dict(os.environ)
    variables.pop("PYTHON", None)
    variables.pop("SCANNET_PREP_VENV", None)
    variables |= {key: str(value) for key, value in environment.items()}
    script = f'source "{TOOLS_DIR}/environment.sh"; {script}'
    return run_words("bash", "-euc", script, env=variables)


def write_fake_python(path: Path, version: str) -> None:
    """Write a program that passes for a Python of this version with pip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n[ $1 = -m ] || echo {version}\n")
    path.chmod(0o755)


def test_environment_of_another_python_version_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python3.13"
    folder = tmp_path / "a b"
    write_fake_python(python, "3.13")
    write_fake_python(folder / "bin/python", "3.12")

    outcome = run_bash("prepare_environment run", SCANNET_PREP_VENV=folder, PYTHON=python)

    assert outcome.status == 1
    problem = f"error: PYTHON={python} is Python 3.13, but {folder} was made with Python 3.12"
    assert problem in outcome.stderr
    assert "hint: use another folder: SCANNET_PREP_VENV=.venv-3.13" in outcome.stderr
    assert f"rm -r {tmp_path}/a\\ b\n" in outcome.stderr


@pytest.mark.parametrize("python", ["/bin/false", "no-such-python"])
def test_unusable_python_is_refused_and_makes_no_environment(tmp_path: Path, python: str) -> None:
    folder = tmp_path / "venv"

    outcome = run_bash("prepare_environment run", SCANNET_PREP_VENV=folder, PYTHON=python)

    assert outcome.status == 1
    assert f"error: PYTHON={python} is not Python 3." in outcome.stderr
    assert not folder.exists()


def test_active_environment_is_not_used(tmp_path: Path) -> None:
    outcome = run_bash("echo $python", VIRTUAL_ENV=tmp_path)

    assert outcome.stdout == f"{TOOLS_DIR.parent}/.venv/bin/python\n"


def test_folder_that_is_not_an_environment_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")

    outcome = run_bash("prepare_environment run", SCANNET_PREP_VENV=tmp_path)

    assert outcome.status == 1
    assert f"error: {tmp_path} is not a virtual environment" in outcome.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["test", "demo"])
def test_help_comes_before_any_set_up(tmp_path, name):
    outcome = run_words(
        TOOLS_DIR / name,
        "--help",
        env={"PATH": "/usr/bin:/bin", "SCANNET_PREP_VENV": tmp_path / "venv"},
    )

    assert outcome.status == 0
    assert f"    tools/{name} " in outcome.stdout
    assert outcome.stderr == ""
    assert not (tmp_path / "venv").exists()


def test_python_without_venv_is_refused_in_two_lines_that_name_the_package(tmp_path):
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase $2 in *ensurepip*) exit 1;; esac\nexec {PYTHON} "$@"\n')
    python.chmod(0o755)
    for program in ("bash", "cat", "dirname", "ls", "mktemp", "rm", "grep"):
        (tmp_path / program).symlink_to(shutil.which(program))

    for _ in range(2):
        outcome = run_bash(
            "prepare_environment run", PATH=tmp_path, SCANNET_PREP_VENV=tmp_path / "v"
        )

        assert outcome.status == 1
        error, hint = outcome.stderr.splitlines()
        assert (
            error == "error: python3 cannot make a virtual environment: it has no module ensurepip"
        )
        assert hint.startswith("hint: Debian, Ubuntu: sudo apt install python3-venv; ")
        assert not (tmp_path / "v").exists()


def test_environment_without_pip_is_completed(tmp_path):
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("this Python has no ensurepip")
    folder = tmp_path / "venv"
    run_words(PYTHON, "-m", "venv", "--without-pip", folder)

    outcome = run_bash(
        'log_path=$(mktemp); make_environment; "$python" -m pip --version',
        SCANNET_PREP_VENV=folder,
        PYTHON=PYTHON,
    )

    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.startswith("pip ")
