"""Faults that were found once: each came with the input that shows it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import COMMAND, digests, run_command, start_command

from scannet_prep import ScanNet
from scannet_prep.errors import ManifestError
from scannet_prep.synthetic import write_label_map, write_release

TRAIN = [f"scene000{number}_00" for number in range(6)]


@pytest.fixture
def raw_dir(tmp_path: Path) -> Path:
    raw_dir = tmp_path / "ScanNet"
    write_release(raw_dir, TRAIN, vertices=600)
    write_label_map(raw_dir)
    return raw_dir


@pytest.fixture
def out_dir(raw_dir: Path, tmp_path: Path) -> Path:
    assert run_command("process", raw_dir, "-o", tmp_path / "out", "--align-axis").status == 0
    return tmp_path / "out"


@pytest.mark.parametrize("change", ["label map", "raw files", "force"])
def test_a_folder_that_is_being_remade_is_no_dataset(raw_dir: Path, out_dir: Path, change: str) -> None:
    if change == "label map":
        path = raw_dir / "scannetv2-labels.combined.tsv"
        path.write_bytes(path.read_bytes().replace(b"\twall\t", b"\tvall\t"))
    elif change == "raw files":
        write_release(raw_dir, TRAIN, vertices=700)
    before = digests(out_dir)
    words = ["--force"] if change == "force" else []
    process = start_command("process", raw_dir, "-o", out_dir, "--align-axis", "--jobs", "1", *words)
    while not (out_dir / "unfinished.txt").exists():
        assert process.poll() is None, "the run ended without a mark"
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with pytest.raises(ManifestError, match="has not finished"):
        ScanNet(out_dir, split="train")
    assert run_command("process", raw_dir, "-o", out_dir, "--align-axis").status == 0
    assert len(ScanNet(out_dir, split="train")) == len(TRAIN)
    assert (digests(out_dir) == before) == (change == "force")


def test_a_mixture_of_options_is_announced_and_refused(raw_dir: Path, out_dir: Path) -> None:
    outcome = run_command("process", raw_dir, "-o", out_dir, "--scenes", TRAIN[0])
    assert "made with other options, and not asked for now: 5 scenes (align_axis: True -> False)" in outcome.stderr
    with pytest.raises(ManifestError, match="different options") as caught:
        ScanNet(out_dir, split="train")
    assert "same options" in caught.value.hint
    assert run_command("process", raw_dir, "-o", out_dir).status == 0
    assert len(ScanNet(out_dir, split="train")) == len(TRAIN)


@pytest.mark.parametrize("guard", ["", "if __name__ == '__main__':\n    "])
@pytest.mark.parametrize("way", ["file", "standard input", "-c"])
def test_the_library_runs_from_any_script(raw_dir: Path, tmp_path: Path, guard: str, way: str) -> None:
    script = (
        "from pathlib import Path\n"
        "from scannet_prep.processed.options import ProcessOptions\n"
        "from scannet_prep.stages import process\n"
        f"{guard}report = process.run(process.plan(Path({str(raw_dir)!r}), Path('o'), ProcessOptions()), jobs=2); "
        "print(len(report.made))\n"
    )
    (tmp_path / "script.py").write_text(script)
    words = {"file": ["script.py"], "standard input": ["-"], "-c": ["-c", script]}[way]
    done = subprocess.run(
        [sys.executable, *words], input=script, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{len(TRAIN)}\n", "")


def test_without_a_place_for_machine_code_everything_works(raw_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    (tmp_path / "file").write_text("no folder")
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "file/x"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "file")}
    outcome = run_command("process", raw_dir, "-o", tmp_path / "a", environment=environment)
    assert outcome.status == 0, outcome.stderr
    assert run_command("process", raw_dir, "-o", tmp_path / "b").status == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.mark.parametrize("redirection", ["2>&-", ">&-", ">/dev/full", "<&-"])
def test_closed_and_failing_streams_cost_no_result(raw_dir: Path, tmp_path: Path, redirection: str) -> None:
    words = " ".join(f"'{word}'" for word in [*COMMAND, "process", str(raw_dir), "-o", str(tmp_path / "out"), "--json"])
    done = subprocess.run(f"{words} {redirection}", shell=True, capture_output=True, text=True, check=False)
    assert len(list((tmp_path / "out").rglob("scene*.npz"))) == len(TRAIN)
    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if "full" in redirection else 0)


def test_letters_that_a_terminal_cannot_show_are_no_error(raw_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Räume 教室"
    shutil.move(raw_dir, folder)
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
    outcome = run_command("process", folder, "-o", tmp_path / "aus", environment=environment)
    assert outcome.status == 0, outcome.stderr
    assert "R\\xe4ume" in outcome.stderr


def test_the_label_map_is_found_from_within_and_through_links(raw_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(raw_dir / "scans")
    for cwd, raw in ((raw_dir / "scans", "."), (tmp_path, "link"), (tmp_path, "ScanNet/scans")):
        outcome = run_command("process", raw, "-o", tmp_path / "out", "--dry-run", cwd=cwd)
        assert "label map: the built-in" not in outcome.stdout
