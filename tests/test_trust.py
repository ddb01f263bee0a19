"""Nothing on disk is believed: damage is an error of its scene, never a wrong result, a hang or the end of a run."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
from commands import digests, edit_json, run_main
from tiny import Ply, aggregation_file, info_file, process_tiny, write_tiny

from scannet_prep import ScanNet
from scannet_prep.base.errors import FileError, LockedError
from scannet_prep.base.run_lock import run_lock
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.processed.scene import ProcessOptions, encode_processed
from scannet_prep.stages.process import ProcessReport, plan, run

TRAIN, OTHER = tiny.SCENE_ID, "scene0001_00"
MESH, AGGREGATION, INFO = "_vh_clean_2.ply", ".aggregation.json", ".txt"
SEGMENTS = "_vh_clean_2.0.010000.segs.json"


def process(folder: Path, **options: Any) -> ProcessReport:
    """Process `folder/raw` into `folder/out`, aligned."""
    with ThreadPoolExecutor(1) as executor:
        return run(
            plan(folder / "raw", folder / "out", ProcessOptions(align_axis=True), **options),
            executor=executor,
        )


@pytest.fixture
def two_dir(tmp_path: Path) -> Path:
    """Raw and processed folder of two scenes."""
    write_tiny(tmp_path / "raw")
    write_tiny(tmp_path / "raw", {AGGREGATION: aggregation_file(scene_id=OTHER)}, OTHER)
    assert process(tmp_path).made == (TRAIN, OTHER)
    return tmp_path


def test_what_every_annotated_scene_has_may_be_missing_only_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    cases = [
        (INFO, info_file().replace(b"axisAlignment", b"axisAlignmenu"), "has no axisAlignment"),
        (AGGREGATION, aggregation_file([]), "segGroups is empty"),
        (MESH, Ply().encode().replace(b"element face", b"element fade"), "the mesh has no faces"),
    ]
    scenes = tuple(f"scene000{number}_00" for number in range(3))
    for scene_id, (suffix, data, _) in zip(scenes, cases, strict=True):
        groups = aggregation_file(scene_id=scene_id)
        write_tiny(tmp_path / "raw", {AGGREGATION: groups, suffix: data}, scene_id)
    for is_lenient in (False, True, False):  # an up-to-date file does not excuse it
        report = process(tmp_path, is_lenient=is_lenient)
        assert report.made == (scenes if is_lenient else ())
        texts = (
            [item.text for item in report.warnings]
            if is_lenient
            else [item.message for item in report.failures]
        )
        assert len(report.failures) == (0 if is_lenient else 3)
        for scene_id, (suffix, _, problem) in zip(scenes, cases, strict=True):
            assert any(
                problem in text and (is_lenient or f"{scene_id}{suffix}: " in text)
                for text in texts
            )


def test_scenes_that_are_not_folders_and_folders_in_the_way_are_failures_with_their_names(
    two_dir: Path,
) -> None:
    for number, (make, _) in enumerate(cases := [
        (lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
        (lambda path: path.symlink_to(path.name), "cannot be looked at: Too many levels of symbolic links"),
        (os.mkfifo, "is a named pipe"),
        (Path.touch, "is a file"),
    ], 2):  # fmt: skip
        make(two_dir / f"raw/scans/scene000{number}_00")
    path = two_dir / f"out/train/{OTHER}.npz"
    path.unlink()
    path.mkdir()
    (two_dir / "out/manifest.json").write_text("{}")  # is made again from the files
    for is_forced in (False, True):
        report = process(two_dir, is_forced=is_forced)
        assert (report.made, report.kept) == (((TRAIN,), ()) if is_forced else ((), (TRAIN,)))
        found = {item.scene_id: item.message for item in report.failures}
        assert "is a folder, so no file can be written there" in found.pop(OTHER)
        for (_, problem), text in zip(cases, found.values(), strict=True):
            assert f"_00: {problem}" in text


@pytest.mark.parametrize(
    ("name", "make", "problem"),
    [
        ("scans", lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
        ("scans_test", os.mkfifo, "is a named pipe"),
    ],
)
def test_a_folder_of_scenes_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, make: Any, problem: str
) -> None:
    write_tiny(tmp_path / "raw")
    (tmp_path / "raw/scans").rename(
        tmp_path / "raw" / ("scans_test" if name == "scans" else "scans")
    )
    make(tmp_path / "raw" / name)
    for command in ("process", "verify", "info"):
        outcome = run_main(
            command, tmp_path / "raw", *(["-o", tmp_path / "out"] if command == "process" else [])
        )
        assert (outcome.status, f"raw/{name}: {problem}, expected a folder" in outcome.stderr) == (
            1,
            True,
        )


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400])
def test_a_scene_folder_without_permission_is_one_failed_scene(two_dir: Path, mode: int) -> None:
    folder = two_dir / "raw/scans" / OTHER
    folder.chmod(mode)
    if os.access(folder, os.R_OK | os.X_OK):
        pytest.skip("this user may read everything")
    commands = [["verify"], ["info"]]
    commands += [] if mode == 0o100 else [["process", "--align-axis", "-o", two_dir / "out"]]
    for command in commands:
        outcome = run_main(command[0], two_dir / "raw", *command[1:], "--json")
        assert (outcome.status, OTHER in outcome.stdout, "Permission denied" in outcome.stdout) == (
            3,
            True,
            True,
        )


@pytest.mark.parametrize(
    ("suffix", "largest"),
    [
        (MESH, "1,073,741,824"),
        (SEGMENTS, "67,108,864"),
        (AGGREGATION, "16,777,216"),
        (INFO, "1,048,576"),
    ],
)
def test_what_is_no_regular_file_or_too_large_is_refused(
    tmp_path: Path, suffix: str, largest: str
) -> None:
    makers = {
        "named pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": Path.mkdir,
    }
    for kind, make in makers.items():
        scene = write_tiny(tmp_path / kind, {suffix: None})
        make(scene.directory / f"{TRAIN}{suffix}")
        with pytest.raises(FileError, match=f"{suffix}: is a {kind}, expected a file"):
            tiny.process_written(scene)
    scene = write_tiny(tmp_path)
    os.truncate(scene.directory / f"{TRAIN}{suffix}", 1 << 40)
    with pytest.raises(FileError, match=f"bytes, expected at most {largest}"):
        tiny.process_written(scene)


def test_folder_without_manifest_refuses_a_scene_of_other_options(two_dir: Path) -> None:
    path = two_dir / f"out/train/{OTHER}.npz"
    path.write_bytes(
        b"".join(encode_processed(process_tiny(two_dir / "other options", scene_id=OTHER)))
    )
    (two_dir / "out/manifest.json").unlink()

    with pytest.raises(FileError, match="was made with --no-scannet200"):
        ScanNet(two_dir / "out", split="train")


def test_folder_without_manifest_refuses_a_scene_under_another_name(two_dir: Path) -> None:
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
def test_a_manifest_with_values_of_other_kinds_is_damaged(
    whole_dir: Path, tmp_path: Path, old: str, new: str
) -> None:
    text = (whole_dir / "processed/manifest.json").read_text()
    assert old in text
    (tmp_path / "manifest.json").write_text(text.replace(old, new, 1))
    with pytest.raises(FileError, match="is damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("key", ["nyu40_counts", "scannet_counts"])
def test_manifest_whose_counts_do_not_add_up_to_the_vertices_is_damaged(
    key: str, whole_dir: Path, tmp_path: Path
) -> None:
    def add_one(manifest: dict[str, Any]) -> None:
        counts = manifest["scenes"]["scene0011_00"][key]
        counts[min(counts)] += 1

    shutil.copy(whole_dir / "processed/manifest.json", tmp_path)
    edit_json(tmp_path / "manifest.json", add_one)
    with pytest.raises(
        FileError, match=rf"scene0011_00: {key} add up to 601, expected 600 vertices"
    ):
        read_manifest(tmp_path)


def test_a_second_run_in_the_same_folder_says_who_is_at_work(tmp_path: Path) -> None:
    write_tiny(tmp_path / "raw")
    (tmp_path / "out").mkdir()
    with (
        run_lock(tmp_path / "out"),
        pytest.raises(LockedError, match=rf"process {os.getpid()} on .*, started 20"),
    ):
        process(tmp_path)
    process(tmp_path)
    assert ".scannet-prep.lock" not in digests(tmp_path / "out")


def test_a_failure_whose_path_is_not_text_leaves_a_manifest_that_can_be_read(
    tmp_path: Path,
) -> None:
    raw_dir = tmp_path / os.fsdecode(b"raw\xe9")
    write_tiny(raw_dir, {MESH: b"ply\n"})
    assert run(
        plan(raw_dir, tmp_path / "out", ProcessOptions()), executor=ThreadPoolExecutor(1)
    ).failures
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert "udce9" in manifest.failures[TRAIN].message
