"""The scripts in tools/: for command lines of ScanNet and OctFormer, benchmark, environment."""

import importlib.util
import io
import json
import os
import re
import runpy
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from commands import PYTHON, SCENES, digests, fail, run_main, run_words, succeed
from release_server import ROOT, fetched

from scannet_prep.processed.scene import read_processed
from scannet_prep.release.label_sets import SCANNET20, SCANNET200

TOOLS_DIR = Path(__file__).resolve().parent.parent / "tools"
TRAIN, VAL, TEST = SCENES
TOOL_PATH = os.environ | {"PYTHONPATH": f"{TOOLS_DIR}{os.pathsep}{TOOLS_DIR.parent}"}


def run_tool(name, *words, cwd, base_url=""):
    """Run a script in this process."""

    def run(argv):
        patch.setattr(sys, "argv", [name, *argv])
        runpy.run_path(str(TOOLS_DIR / name), run_name="__main__")
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scannet_prep.__main__._SIGNALS", ())
        patch.setenv("SCANNET_PREP_BASE_URL", base_url)
        return run_main(*words, cwd=cwd, main=run)


# test_coming_from.py compares each option with those of `download`.
def test_official_command_lines_fetch_the_same_files(server, tmp_path):
    task = "tasks/scannet_frames_25k.zip"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("scenes.txt", "scene0191_00\n")
    server.files[f"{ROOT}v2/{task}"] = buffer.getvalue()
    lines = {
        f"--type _vh_clean_2.ply --id {VAL}": [f"scans/{VAL}/{VAL}_vh_clean_2.ply"],
        f"--type .txt --id {TEST} --skip_existing": [f"scans_test/{TEST}/{TEST}.txt"],
        f"--type .txt --test_scans --scenes {TEST}": [f"scans_test/{TEST}/{TEST}.txt"],
        "--label_map": ["scannetv2-labels.combined.tsv"],
        "--preprocessed_frames": [task],
    }
    served = digests(server.root)
    for number, (line, paths) in enumerate(lines.items()):
        words = ("download-scannet.py", "-o", f"./{number}", "--accept-terms", *line.split())
        outcome = succeed(*words, run=run_tool, cwd=tmp_path, base_url=server.base_url)

        assert outcome.stderr.startswith(f"this is: scannet-prep download -o ./{number} --")
        files = fetched(tmp_path / str(number))
        assert [*files] == paths
        if task not in paths:  # it is served from memory
            assert files.items() <= served.items()


@pytest.mark.parametrize(
    ("name", "words", "problem"),
    [
        ("download-scannet.py", "-o raw --type .stl", "invalid choice: '.stl'"),
        ("download-scannet.py", "-o raw --types .txt", "here it is --type"),
        ("seg_scannet.py", "--run generate_output_seg", "needs --filelist"),
        ("seg_scannet.py", "--run generate_output_seg --jobs 2", "does not know ['--jobs', '2']"),
    ],
)
def test_options_that_would_be_misread_are_refused(tmp_path, name, words, problem):
    fail(2, problem, name, *words.split(), cwd=tmp_path, run=run_tool)
    assert not list(tmp_path.iterdir())


PROCESS = ("--run", "process_scannet", "--path_in", "data/ScanNet", "--path_out")


def test_octformers_command_lines_process_20_classes(release_dir, tmp_path):
    shutil.copytree(release_dir, tmp_path / "data/ScanNet")
    # OctFormer does not need these files for its 20 classes.
    for path in (tmp_path / "data/ScanNet").rglob("*"):
        if path.name.endswith((".segs.json", ".aggregation.json", ".txt")) and TRAIN in path.name:
            path.unlink()
    root = tmp_path / "data/scannet.npz"

    def run(path, *words):
        return run_tool("seg_scannet.py", *PROCESS, path, *words, cwd=tmp_path)

    dry = run("data/dry.npz", "--dry-run")
    first = run("data/scannet.npz")
    before = digests(root)
    again = run("data/scannet.npz")
    other = run("data/scannet.npz", "--align_axis")

    assert (dry.status, first.status, again.status, other.status) == (0, 0, 0, 2), first.stderr
    assert not (tmp_path / "data/dry.npz").exists()
    assert "this is: scannet-prep process data/ScanNet" in first.stderr
    export = "this is: scannet-prep export data/scannet.processed --format octformer"
    assert export in first.stderr
    scene = read_processed(tmp_path / f"data/scannet.processed/train/{TRAIN}.npz")
    with np.load(root / f"train/{TRAIN}.npz") as content:
        assert np.array_equal(content["labels"], SCANNET20.labels_from_raw_ids(scene.nyu40_ids))
    assert not scene.meta.options.align_axis
    assert again.stdout.count("0 made, 3 kept") == 2
    assert "was made with" in other.stderr
    assert digests(root) == before


def test_octformers_command_lines_score_its_predictions(release_dir, tmp_path):
    shutil.copytree(release_dir, tmp_path / "data/ScanNet")
    words = (*PROCESS, "data/scannet200.npz", "--align_axis", "--scannet200", "--scenes", VAL)
    succeed("seg_scannet.py", *words, run=run_tool, cwd=tmp_path)
    truth_dir = tmp_path / "data/scannet200.npz/train"
    truth = np.loadtxt(truth_dir / f"{VAL}.txt", dtype=int)
    # Scores (V, 201): 1 for the true class, whose column is its train id + 1.
    scores = np.zeros((len(truth), 201), np.float32)
    columns = SCANNET200.train_ids_from_raw_ids(truth, -1) + 1
    scores[np.arange(len(truth)), columns] = 1
    path = tmp_path / f"eval/{VAL}.eval.npz"
    path.parent.mkdir()
    np.savez(path, prob=scores)
    (tmp_path / "list.txt").write_text(f"{VAL}.npz\n")
    generate = "--run generate_output_seg --path_pred eval --path_in . --path_out seg"
    generate += " --filelist list.txt --scannet200"
    score = "--run calc_iou --path_in data/scannet200.npz/train --path_pred seg --scannet200"

    succeed("seg_scannet.py", *generate.split(), run=run_tool, cwd=tmp_path)
    raw_ids = np.loadtxt(tmp_path / f"seg/{VAL}.txt", dtype=int)
    perfect = succeed("seg_scannet.py", *score.split(), run=run_tool, cwd=tmp_path)
    np.savez(path, prob=scores[:, :21])
    narrow = run_tool("seg_scannet.py", *generate.split(), cwd=tmp_path)
    (tmp_path / "list.txt").write_text(f"{VAL}.chunk_0.npz\n")
    part = run_tool("seg_scannet.py", *generate.split(), cwd=tmp_path)
    (tmp_path / "list.txt").write_bytes(b"\xff")
    damaged = run_tool("seg_scannet.py", *generate.split(), cwd=tmp_path)

    assert np.array_equal(raw_ids, truth)
    command = "evaluate seg --gt data/scannet200.processed --label-set scannet200"
    assert f"this is: scannet-prep {command}\n" in perfect.stderr
    assert "accuracy 1.0000" in perfect.stdout
    assert (narrow.status, damaged.status) == (1, 1)
    assert f"{VAL}.chunk_0 is not a scene; parts are not joined" in part.stderr
    assert "list.txt: is not UTF-8 text" in damaged.stderr
    assert f"{VAL}.eval.npz: prob is ({len(truth)}, 21), expected (V, 201)" in narrow.stderr


# Constants of each part of the benchmark, with small values.
PARTS = {
    "process": {"_LARGEST_VERTEX_COUNT": 1_000, "_SPLITS": ("test",)},
    "export": {"_COMMANDS": ("octformer",)},
    "download": {"_DELAYS_S": (0.0,), "_REJECTIONS": ((0.3, "503"), (0.3, "429:1"))},
    "pack": {"_READS": 2},
    "loader": {"_EPOCHS": 1, "_SCENES": 100},
    "superpoints": {"_LARGEST_VERTEX_COUNT": 1_000},
    "frames": {"_FRAME_COUNT": 4, "_VERTEX_COUNT": 1_000},
    "page": {},
}
RUN_PARTS = """
import importlib, json, pathlib, sys
for name, constants in json.loads(sys.argv[1]).items():
    part = importlib.import_module(f"benchmark.{name}")
    for constant, value in constants.items():
        assert hasattr(part, constant), constant
        setattr(part, constant, value)
    folder = pathlib.Path.cwd() / name
    folder.mkdir()
    for title, figure in part.measure(folder, 2, 1000, 1):
        print(name, title, figure, sep=": ")
"""


@pytest.mark.parametrize(
    "names",
    [
        [*sorted(PARTS.keys() - {"loader", "page"})],
        pytest.param(["loader"], marks=pytest.mark.extra("torch")),
        pytest.param(["page"], marks=pytest.mark.extra("chromium", "playwright")),
    ],
    ids=" ".join,
)
def test_each_part_of_the_benchmark_prints_figures(tmp_path, names):
    parts = json.dumps({name: PARTS[name] for name in names})

    outcome = succeed(PYTHON, "-c", RUN_PARTS, parts, cwd=tmp_path, env=TOOL_PATH, run=run_words)
    lines = outcome.stdout.splitlines()
    assert {line.partition(": ")[0] for line in lines} == {*names}
    assert all(re.search(r": .*: .*\d", line) for line in lines), lines


def test_page_and_help_name_every_part_of_the_benchmark():
    page = (TOOLS_DIR.parent / "docs/performance.md").read_text()

    outcome = run_words(PYTHON, "-m", "benchmark", "--help", env=TOOL_PATH)

    assert set(re.findall(r"`tools/bench (\w+)", page)) == set(PARTS)
    assert ", ".join(PARTS) in " ".join(outcome.stdout.split())


def test_parts_of_the_benchmark_that_lack_a_package_are_left_out(tmp_path):
    (tmp_path / "torch.py").write_text("import no_torch")
    path = f"{tmp_path}{os.pathsep}{TOOL_PATH['PYTHONPATH']}"
    words = "-m benchmark loader pack --scenes 2 --vertices 1000 --repeat 1"

    outcome = run_words(PYTHON, *words.split(), env=TOOL_PATH | {"PYTHONPATH": path})

    assert (outcome.status, outcome.stderr) == (1, "left out: loader, which needs no_torch\n")
    assert "a random scene: archive" in outcome.stdout


def run_bash(script, **environment):
    """Run a script that has loaded environment.sh, with these variables added to ours."""
    unset = {"PYTHON": "", "SCANNET_PREP_VENV": ""}
    variables = os.environ | unset | {key: str(value) for key, value in environment.items()}
    script = f'source "{TOOLS_DIR}/environment.sh"; {script}'
    return run_words("bash", "-euc", script, env=variables)


def write_fake_python(path, version):
    """Write a program that passes for a Python of this version with pip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n[ $1 = -m ] || echo {version}\n")
    path.chmod(0o755)


def test_folders_and_pythons_that_cannot_be_used_are_refused_and_unchanged(tmp_path):
    python = tmp_path / "python3.13"
    folder = tmp_path / "a b"
    write_fake_python(python, "3.13")
    write_fake_python(folder / "bin/python", "3.12")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("mine")
    before = digests(tmp_path)
    other = f"PYTHON={python} is Python 3.13, but {folder} was made with Python 3.12"
    for name, value, problem in (
        ("a b", python, f"{other}\nhint: use another folder: SCANNET_PREP_VENV=.venv-3.13 "),
        ("a b", python, f"rm -r {tmp_path}/a\\ b\n"),
        ("new", "/bin/false", "PYTHON=/bin/false is not Python 3."),
        ("mine", PYTHON, "mine is not a virtual environment"),
    ):
        words = {"SCANNET_PREP_VENV": tmp_path / name, "PYTHON": value}
        fail(1, problem, "prepare_environment run", **words, run=run_bash)
    assert digests(tmp_path) == before


def test_help_comes_before_any_set_up(tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "SCANNET_PREP_VENV": tmp_path / "venv"}
    for name in ("test", "demo"):
        outcome = succeed(TOOLS_DIR / name, "--help", env=environment, run=run_words)
        assert f"    tools/{name} " in outcome.stdout
        assert outcome.stderr == ""
    assert not (tmp_path / "venv").exists()


def test_python_without_venv_is_refused_in_two_lines_that_name_the_package(tmp_path):
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase $2 in *ensurepip*) exit 1;; esac\nexec "{PYTHON}" "$@"\n')
    python.chmod(0o755)
    for program in ("bash", "cat", "dirname", "ls", "mktemp", "rm", "grep"):
        (tmp_path / program).symlink_to(shutil.which(program))

    folder = tmp_path / "v"
    outcome = run_bash("prepare_environment run", PATH=tmp_path, SCANNET_PREP_VENV=folder)

    assert outcome.status == 1
    error, hint = outcome.stderr.splitlines()
    assert error == "error: python3 cannot make a virtual environment: it has no module ensurepip"
    assert hint.startswith("hint: Debian, Ubuntu: sudo apt install python3-venv; ")
    assert not folder.exists()


def test_environment_without_pip_is_completed(tmp_path):
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("this Python has no ensurepip")
    folder = tmp_path / "venv"
    run_words(PYTHON, "-m", "venv", "--without-pip", folder)

    script = 'log_path=$(mktemp); make_environment; "$python" -m pip --version'
    outcome = succeed(script, SCANNET_PREP_VENV=folder, PYTHON=PYTHON, run=run_bash)
    assert outcome.stdout.startswith("pip ")
