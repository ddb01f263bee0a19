"""Damaged data fail one scene: they never give a wrong result, hang, or end the run."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny
from commands import run_main
from tiny import aggregation_file, write_tiny

from scannet_prep.errors import FileError
from scannet_prep.processed.manifest import Manifest, read_manifest
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.tree import list_raw
from scannet_prep.stages.process import plan, run

TRAIN = tiny.SCENE_ID
OTHER = "scene0001_00"
MESH = "_vh_clean_2.ply"
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
AGGREGATION = ".aggregation.json"
INFO = ".txt"


def process(folder, **options):
    """Process `folder/raw` into `folder/out`, aligned."""
    process_plan = plan(folder / "raw", folder / "out", ProcessOptions(align_axis=True), **options)
    with ThreadPoolExecutor(1) as executor:
        return run(process_plan, executor=executor)


def link_to_nowhere(path):
    path.symlink_to("nowhere")


def link_to_itself(path):
    path.symlink_to(path.name)


def link_to_device(path):
    path.symlink_to("/dev/zero")


@pytest.fixture
def two_dir(tmp_path):
    """A folder with a raw tree of two scenes, `raw`, and a processed folder, `out`."""
    write_tiny(tmp_path / "raw")
    write_tiny(tmp_path / "raw", {AGGREGATION: aggregation_file(scene_id=OTHER)}, OTHER)
    assert process(tmp_path).made == (TRAIN, OTHER)
    return tmp_path


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize(
    "make",
    [link_to_nowhere, link_to_itself, os.mkfifo, Path.touch],
    ids=["dangling link", "circular link", "pipe", "file"],
)
def test_scene_that_is_not_a_folder_fails_alone(two_dir, make, is_forced):
    make(two_dir / "raw/scans/scene0002_00")

    report = process(two_dir, is_forced=is_forced)

    assert report.made == ((TRAIN, OTHER) if is_forced else ())
    assert report.kept == (() if is_forced else (TRAIN, OTHER))
    (failure,) = report.failures
    assert "scene0002_00: is not a folder, or a link that leads nowhere" in str(failure)


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
def test_scene_folder_without_permission_fails_one_scene(two_dir, mode, command):
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
    ("suffix", "max_bytes"),
    [
        (MESH, "1,073,741,824"),
        (SEGMENTS, "67,108,864"),
        (AGGREGATION, "16,777,216"),
        (INFO, "1,048,576"),
    ],
)
def test_raw_file_that_is_too_large_or_not_regular_is_refused(tmp_path, suffix, max_bytes):
    scene = write_tiny(tmp_path)
    path = scene.directory / f"{TRAIN}{suffix}"
    os.truncate(path, 1 << 40)
    with pytest.raises(FileError, match=f"bytes, expected at most {max_bytes}"):
        tiny.process_written(scene)

    for make in (os.mkfifo, link_to_device):
        path.unlink()
        make(path)
        (scene,) = list_raw(tmp_path).scenes.values()
        with pytest.raises(FileError, match=f"{suffix}: is a named pipe or a device"):
            tiny.process_written(scene)


def test_failure_with_undecodable_path_is_recorded_in_manifest(tmp_path):
    raw_dir = tmp_path / os.fsdecode(b"raw\xe9")
    write_tiny(raw_dir, {MESH: b"ply\n"})

    run(plan(raw_dir, tmp_path / "out", ProcessOptions()), executor=ThreadPoolExecutor(1))

    manifest = read_manifest(tmp_path / "out")
    assert isinstance(manifest, Manifest)
    assert "udce9" in str(manifest.failures[TRAIN])
