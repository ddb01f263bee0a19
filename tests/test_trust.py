"""Damaged data fail one scene: they never give a wrong result, hang, or end the run."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
from commands import digests, edit_json, run_main
from tiny import Ply, aggregation_file, info_file, process_tiny, write_tiny

from scannet_prep import ScanNet
from scannet_prep.base.run_lock import RUN_LOCK_NAME, run_lock
from scannet_prep.errors import FileError, LockedError
from scannet_prep.processed.manifest import Manifest, read_manifest
from scannet_prep.processed.scene import ProcessOptions, encode_processed
from scannet_prep.stages.process import ProcessReport, plan, run

TRAIN = tiny.SCENE_ID
OTHER = "scene0001_00"
MESH = "_vh_clean_2.ply"
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
AGGREGATION = ".aggregation.json"
INFO = ".txt"


def process(folder: Path, **options: Any) -> ProcessReport:
    """Process `folder/raw` into `folder/out`, aligned."""
    process_plan = plan(folder / "raw", folder / "out", ProcessOptions(align_axis=True), **options)
    with ThreadPoolExecutor(1) as executor:
        return run(process_plan, executor=executor)


def link_to_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture
def two_dir(tmp_path: Path) -> Path:
    """A folder with a raw tree of two scenes, `raw`, and a processed folder, `out`."""
    write_tiny(tmp_path / "raw")
    write_tiny(tmp_path / "raw", {AGGREGATION: aggregation_file(scene_id=OTHER)}, OTHER)
    assert process(tmp_path).made == (TRAIN, OTHER)
    return tmp_path


damaged_scenes = pytest.mark.parametrize(
    ("suffix", "data", "problem"),
    [
        (INFO, info_file().replace(b"axisAlignment", b"axisAlignmenu"), "has no axisAlignment"),
        (AGGREGATION, aggregation_file([]), "segGroups is empty"),
        (MESH, Ply().encode().replace(b"element face", b"element fade"), "the mesh has no faces"),
    ],
    ids=["no alignment", "no groups", "no faces"],
)


@damaged_scenes
def test_scene_without_data_that_all_have_fails(
    tmp_path: Path, suffix: str, data: bytes, problem: str
) -> None:
    write_tiny(tmp_path / "raw", {suffix: data})

    report = process(tmp_path)

    assert report.made == ()
    (failure,) = report.failures
    assert f"{TRAIN}{suffix}: " in failure.message
    assert problem in failure.message


@damaged_scenes
def test_lenient_run_processes_scene_without_data_that_all_have(
    tmp_path: Path, suffix: str, data: bytes, problem: str
) -> None:
    write_tiny(tmp_path / "raw", {suffix: data})

    report = process(tmp_path, is_lenient=True)

    assert report.made == (TRAIN,)
    assert report.failures == ()
    assert any(problem in warning.text for warning in report.warnings)


@damaged_scenes
def test_run_after_lenient_one_fails_scene_that_is_up_to_date(
    tmp_path: Path, suffix: str, data: bytes, problem: str
) -> None:
    write_tiny(tmp_path / "raw", {suffix: data})
    process(tmp_path, is_lenient=True)

    report = process(tmp_path)

    assert report.made == ()
    (failure,) = report.failures
    assert problem in failure.message


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (link_to_nowhere, "is a link that leads nowhere"),
        (link_to_itself, "cannot be accessed: Too many levels of symbolic links"),
        (os.mkfifo, "is a named pipe"),
        (Path.touch, "is a file"),
    ],
    ids=["dangling link", "circular link", "pipe", "file"],
)
def test_scene_that_is_not_a_folder_fails_alone(
    two_dir: Path, make: Callable[[Path], None], problem: str, is_forced: bool
) -> None:
    make(two_dir / "raw/scans/scene0002_00")

    report = process(two_dir, is_forced=is_forced)

    assert report.made == ((TRAIN, OTHER) if is_forced else ())
    assert report.kept == (() if is_forced else (TRAIN, OTHER))
    (failure,) = report.failures
    assert f"scene0002_00: {problem}" in str(failure)


@pytest.mark.parametrize("is_forced", [False, True])
def test_folder_in_the_place_of_a_processed_scene_fails_alone(
    two_dir: Path, is_forced: bool
) -> None:
    path = two_dir / f"out/train/{OTHER}.npz"
    path.unlink()
    path.mkdir()
    # The manifest is damaged too, and is made again from the files.
    (two_dir / "out/manifest.json").write_text("{}")

    report = process(two_dir, is_forced=is_forced)

    assert report.made == ((TRAIN,) if is_forced else ())
    assert report.kept == (() if is_forced else (TRAIN,))
    (failure,) = report.failures
    assert failure.scene_id == OTHER
    assert "is not a regular file, so no file can be written there" in failure.message


@pytest.mark.parametrize("command", ["process", "verify", "info"])
@pytest.mark.parametrize(
    ("name", "make", "problem"),
    [
        ("scans", link_to_nowhere, "is a link that leads nowhere"),
        ("scans_test", os.mkfifo, "is a named pipe"),
    ],
)
def test_unreadable_folder_of_scenes_is_an_error(
    tmp_path: Path, command: str, name: str, make: Callable[[Path], None], problem: str
) -> None:
    other_name = "scans_test" if name == "scans" else "scans"
    write_tiny(tmp_path / "raw")
    (tmp_path / "raw/scans").rename(tmp_path / "raw" / other_name)
    make(tmp_path / "raw" / name)
    options = ["-o", tmp_path / "out"] if command == "process" else []

    outcome = run_main(command, tmp_path / "raw", *options)

    assert outcome.status == 1
    assert f"raw/{name}: {problem}, expected a folder" in outcome.stderr


@pytest.mark.parametrize(
    ("mode", "command"),
    [
        (0o000, "verify"),
        (0o000, "info"),
        (0o000, "process"),
        (0o100, "verify"),
        (0o100, "info"),
        (0o400, "verify"),
        (0o400, "info"),
        (0o400, "process"),
    ],
)
def test_scene_folder_without_permission_fails_one_scene(
    two_dir: Path, mode: int, command: str
) -> None:
    folder = two_dir / "raw/scans" / OTHER
    folder.chmod(mode)
    if os.access(folder, os.R_OK | os.X_OK):
        pytest.skip("this user may read everything")
    options = ["--align-axis", "-o", two_dir / "out"] if command == "process" else []

    outcome = run_main(command, two_dir / "raw", *options, "--json")

    assert outcome.status == 3
    assert OTHER in outcome.stdout
    assert "Permission denied" in outcome.stdout


@pytest.mark.parametrize(
    ("problem", "make"),
    [
        ("is a named pipe, expected a file", os.mkfifo),
        ("is a device, expected a file", link_to_device),
        ("cannot be read: Is a directory", Path.mkdir),
    ],
)
@pytest.mark.parametrize("suffix", [MESH, SEGMENTS, AGGREGATION, INFO])
def test_raw_file_that_is_not_regular_is_refused(
    tmp_path: Path, suffix: str, problem: str, make: Callable[[Path], None]
) -> None:
    scene = write_tiny(tmp_path, {suffix: None})
    make(scene.directory / f"{TRAIN}{suffix}")

    with pytest.raises(FileError, match=f"{suffix}: {problem}"):
        tiny.process_written(scene)


@pytest.mark.parametrize(
    ("suffix", "max_bytes"),
    [
        (MESH, "1,073,741,824"),
        (SEGMENTS, "67,108,864"),
        (AGGREGATION, "16,777,216"),
        (INFO, "1,048,576"),
    ],
)
def test_raw_file_that_is_too_large_is_refused(tmp_path: Path, suffix: str, max_bytes: str) -> None:
    scene = write_tiny(tmp_path)
    os.truncate(scene.directory / f"{TRAIN}{suffix}", 1 << 40)

    with pytest.raises(FileError, match=f"bytes, expected at most {max_bytes}"):
        tiny.process_written(scene)


def test_folder_without_manifest_refuses_scene_of_other_options(two_dir: Path) -> None:
    scene = process_tiny(two_dir / "other options", scene_id=OTHER)
    (two_dir / f"out/train/{OTHER}.npz").write_bytes(b"".join(encode_processed(scene)))
    (two_dir / "out/manifest.json").unlink()

    with pytest.raises(FileError, match="was made with --no-scannet200"):
        ScanNet(two_dir / "out", split="train")


def test_folder_without_manifest_refuses_scene_under_another_name(two_dir: Path) -> None:
    folder = two_dir / "out/train"
    (folder / f"{TRAIN}.npz").rename(folder / f"{OTHER}.npz")
    (two_dir / "out/manifest.json").unlink()

    with pytest.raises(FileError, match="holds 'scene0000_00' of train, expected scene0001_00"):
        ScanNet(two_dir / "out", split="train")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"vertices": 600', '"vertices": 0'),
        ('"vertices": 600', f'"vertices": {10**30}'),
        ('"vertices": 600', '"vertices": Infinity'),
        ('"split": "train"', '"split": ["train"]'),
        ('"options": {', '"options": [], "more": {'),
        ('"faces": false', '"faces": "no"'),
        ('"nyu40_counts": {"', '"nyu40_counts": {"x'),
        ('"crc32": "', '"crc32": "-'),
        ('"scene0000_00": ', '"../scene0000_00": '),
        ('"failures": {}', '"failures": {"scene0001_00": {"error": []}}'),
    ],
)
def test_manifest_with_value_of_wrong_type_is_damaged(
    whole_dir: Path, tmp_path: Path, old: str, new: str
) -> None:
    text = (whole_dir / "processed/manifest.json").read_text()
    assert old in text
    (tmp_path / "manifest.json").write_text(text.replace(old, new, 1))

    with pytest.raises(FileError, match="is damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("key", ["nyu40_counts", "scannet_counts"])
def test_manifest_with_wrong_sum_of_counts_is_damaged(
    key: str, whole_dir: Path, tmp_path: Path
) -> None:
    def add_one(manifest: dict[str, Any]) -> None:
        counts = manifest["scenes"]["scene0011_00"][key]
        counts[min(counts)] += 1

    shutil.copy(whole_dir / "processed/manifest.json", tmp_path)
    edit_json(tmp_path / "manifest.json", add_one)

    problem = f"scene0011_00: {key} add up to 601, expected 600 vertices"
    with pytest.raises(FileError, match=problem):
        read_manifest(tmp_path)


def test_second_run_in_the_same_folder_names_the_first(tmp_path: Path) -> None:
    write_tiny(tmp_path / "raw")
    (tmp_path / "out").mkdir()

    with (
        run_lock(tmp_path / "out"),
        pytest.raises(LockedError, match=rf"process {os.getpid()} on .*, started 20"),
    ):
        process(tmp_path)


def test_run_leaves_no_lock(tmp_path: Path) -> None:
    write_tiny(tmp_path / "raw")

    process(tmp_path)

    assert RUN_LOCK_NAME not in digests(tmp_path / "out")


def test_failure_with_undecodable_path_is_recorded_in_manifest(tmp_path: Path) -> None:
    raw_dir = tmp_path / os.fsdecode(b"raw\xe9")
    write_tiny(raw_dir, {MESH: b"ply\n"})

    run(plan(raw_dir, tmp_path / "out", ProcessOptions()), executor=ThreadPoolExecutor(1))

    manifest = read_manifest(tmp_path / "out")
    assert isinstance(manifest, Manifest)
    assert "udce9" in str(manifest.failures[TRAIN])
