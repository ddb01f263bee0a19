"""Windows reads processed scenes; commands that write suggest WSL. `windows.py` simulates it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commands import PYTHON, Outcome, run_words

TESTS_DIR = Path(__file__).parent
PROGRAM = """
import pickle
from scannet_prep import ScanNet
dataset = ScanNet({path!r}, split="train", cache={cache})
first = dataset[0]["points"]
again = dataset[0]["points"]
copied = pickle.loads(pickle.dumps(dataset))[0]["points"]
print(first.shape, (first == again).all(), (first == copied).all())
"""


def run_on_windows(*words: str | Path) -> Outcome:
    environment = os.environ | {"PYTHONPATH": str(TESTS_DIR.parent), "COLUMNS": "80"}
    outcome = run_words(PYTHON, TESTS_DIR / "windows.py", *words, env=environment)
    assert "Traceback" not in outcome.stderr, outcome.stderr
    return outcome


@pytest.mark.parametrize("cache", [False, True])
def test_windows_reads_dataset(whole_dir: Path, cache: bool) -> None:
    program = PROGRAM.format(path=str(whole_dir / "processed"), cache=cache)

    outcome = run_on_windows("-c", program)

    assert outcome.stdout == "(600, 3) True True\n"


def test_windows_cache_keeps_files_of_scenes(whole_dir: Path) -> None:
    program = """
from scannet_prep.training.scene_cache import make_cache
cache = make_cache([], None)
print(cache.read("scene0000_00", lambda: b"1"), cache.read("scene0000_00", lambda: b"2"))
"""

    assert run_on_windows("-c", program).stdout == "b'1' b'1'\n"


@pytest.mark.parametrize("words", [["info"], ["verify", "--limit", "1", "--jobs", "1"]])
def test_windows_runs_command_on_processed_folder(whole_dir: Path, words: list[str]) -> None:
    outcome = run_on_windows(words[0], whole_dir / "processed", *words[1:])

    assert outcome.status == 0, outcome.stderr


@pytest.mark.parametrize("name", ["scene.html", "scene.png", "scene.ply"])
def test_windows_writes_view(whole_dir: Path, tmp_path: Path, name: str) -> None:
    scene_id = next((whole_dir / "processed/train").glob("*.npz")).stem
    words = ["--source", whole_dir / "processed", "-o", tmp_path / name]

    outcome = run_on_windows("view", scene_id, *words)

    assert outcome.status == 0, outcome.stderr
    assert (tmp_path / name).stat().st_size > 0


def test_windows_doctor_reports_instead_of_failing(whole_dir: Path) -> None:
    outcome = run_on_windows("doctor", whole_dir / "processed")

    assert "on Windows, scenes can be read but not made" in outcome.stdout


@pytest.mark.parametrize(
    "line",
    [
        "process {raw} -o {out} --jobs 1",
        "pack {processed} -o {out}/scannet.tar.zst --jobs 1",
        "export {processed} --format ply -o {out} --jobs 1",
        "demo {out}/demo --jobs 1",
    ],
)
def test_windows_refuses_command_that_writes_with_hint(
    whole_dir: Path, tmp_path: Path, line: str
) -> None:
    folders = {"raw": whole_dir / "raw", "processed": whole_dir / "processed", "out": tmp_path}

    outcome = run_on_windows(*line.format(**folders).split())

    assert outcome.status == 1
    assert "can be written to on Linux and macOS only" in outcome.stderr
    assert "hint: run this in WSL" in outcome.stderr
