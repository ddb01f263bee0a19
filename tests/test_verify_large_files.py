"""Tests of `verify` and `info` on sensor streams, zip files, and the files in `tasks/`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import TEST, TRAIN, Verify, check_one, raw_file, relative, run_main
from large_files import DEPTH, make_stream, make_zip

from scannet_prep.raw.lock import digest_file, encode_lock
from scannet_prep.release.files import FRAMES, MESH
from scannet_prep.synthetic import write_release

STREAM = make_stream()
LABELS = make_zip()
DAMAGED_STREAM = STREAM.replace(DEPTH, DEPTH[:-1] + b"?", 1)
DAMAGED_LABELS = make_zip(0).replace(b"second", b"secund")
FRAMES_NAME = f"tasks/{FRAMES.suffix}"


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_lock(raw_dir: Path, *names: str) -> None:
    """Record files of a raw tree as they are now."""
    records = {name: digest_file(raw_dir / name) for name in names}
    (raw_dir / "scannet.lock").write_bytes(encode_lock(records))


# Large files beside those that segmentation needs.


@pytest.fixture
def scene_dir(tmp_path: Path) -> Path:
    """A raw tree of one scene."""
    write_release(tmp_path, [TRAIN], vertices=600)
    return tmp_path


@pytest.mark.parametrize(
    ("suffix", "data"), [(".sens", STREAM), ("_2d-label-filt.zip", LABELS)], ids=["stream", "zip"]
)
def test_intact_large_file_has_no_findings(
    scene_dir: Path, verify: Verify, suffix: str, data: bytes
) -> None:
    raw_file(scene_dir, suffix).write_bytes(data)
    assert verify(scene_dir) == (0, [])


# The damaged files are recorded: their digests do not reveal the damage.
_DAMAGED_FILES = pytest.mark.parametrize(
    ("suffix", "data", "problem"),
    [
        (".sens", DAMAGED_STREAM, "frame 0 of 3 is damaged: depth does not decompress"),
        ("_2d-label-filt.zip", DAMAGED_LABELS, "'label-filt/1.png' in it is damaged"),
    ],
    ids=["stream", "zip"],
)


@_DAMAGED_FILES
def test_damaged_large_file_is_one_error_although_its_digest_is_recorded(
    scene_dir: Path, verify: Verify, suffix: str, data: bytes, problem: str
) -> None:
    raw_file(scene_dir, suffix).write_bytes(data)
    write_lock(scene_dir, relative(TRAIN, suffix))

    check_one(verify(scene_dir), "error", TRAIN, relative(TRAIN, suffix), problem)


@_DAMAGED_FILES
def test_damaged_large_file_comes_with_the_command_to_download_it(
    scene_dir: Path,
    suffix: str,
    data: bytes,
    problem: str,
) -> None:
    raw_file(scene_dir, suffix).write_bytes(data)
    outcome = run_main("verify", scene_dir)

    assert problem in outcome.stdout
    assert f"--types {suffix} -o {scene_dir} --scenes {TRAIN}\n" in outcome.stdout


def test_intact_high_resolution_mesh_has_no_findings(scene_dir: Path, verify: Verify) -> None:
    shutil.copy(raw_file(scene_dir, MESH.suffix), raw_file(scene_dir, "_vh_clean.ply"))
    assert verify(scene_dir) == (0, [])


def test_truncated_high_resolution_mesh_is_one_error(scene_dir: Path, verify: Verify) -> None:
    data = raw_file(scene_dir, MESH.suffix).read_bytes()
    raw_file(scene_dir, "_vh_clean.ply").write_bytes(data[:-1])

    check_one(verify(scene_dir), "error", TRAIN, relative(TRAIN, "_vh_clean.ply"), "bytes")


# Trees of sensor streams.


@pytest.fixture
def sens_dir(tmp_path: Path) -> Path:
    """A tree that holds only sensor streams."""
    for scene_id in (TRAIN, TEST):
        write(raw_file(tmp_path, ".sens", scene_id), STREAM)
    return tmp_path


def test_tree_with_only_streams_has_notes_and_no_errors(sens_dir: Path, verify: Verify) -> None:
    status, findings = verify(sens_dir)

    assert status == 0
    assert {severity for severity, _, _, _ in findings} == {"note"}


def test_tree_with_only_streams_is_noted_to_have_no_mesh(sens_dir: Path, verify: Verify) -> None:
    _, findings = verify(sens_dir)

    assert "no scene has a mesh or an annotation" in findings[0][3]


def test_verify_counts_scenes_and_bytes_of_a_tree_with_only_streams(
    sens_dir: Path, verify: Verify
) -> None:
    verify(sens_dir)

    assert verify.value["scenes"] == 2
    assert verify.value["size_bytes"] == 2 * len(STREAM)


def test_damaged_stream_in_a_tree_of_streams_is_an_error(sens_dir: Path, verify: Verify) -> None:
    raw_file(sens_dir, ".sens").write_bytes(DAMAGED_STREAM)

    status, findings = verify(sens_dir)

    assert status == 3
    assert [scene_id for severity, scene_id, _, _ in findings if severity == "error"] == [TRAIN]


def test_empty_scene_folder_in_a_tree_of_streams_is_an_error(
    sens_dir: Path, verify: Verify
) -> None:
    raw_file(sens_dir, ".sens").unlink()

    status, findings = verify(sens_dir)

    severity, scene_id, _, message = findings[0]
    assert status == 3
    assert severity == "error"
    assert scene_id == TRAIN
    assert message == "holds no file of the release"


def test_scene_with_only_a_stream_lacks_its_mesh_beside_other_meshes(
    tmp_path: Path, verify: Verify
) -> None:
    write_release(tmp_path, [TRAIN, TEST], vertices=600)
    raw_file(tmp_path, MESH.suffix, TEST).unlink()
    write(raw_file(tmp_path, ".sens", TEST), STREAM)

    check_one(verify(tmp_path), "error", TEST, relative(TEST, MESH.suffix), "no such file")


def test_info_counts_the_scenes_of_a_tree_with_only_streams(sens_dir: Path) -> None:
    outcome = run_main("info", sens_dir, "--json")

    assert outcome.status == 0
    assert outcome.json["scene_ids"] == [TRAIN, TEST]
    assert outcome.json["splits"]["all"] == {
        "scenes": 2,
        "vertices": 0,
        "size_bytes": 2 * len(STREAM),
    }


# The files in tasks/.


@pytest.fixture
def tasks_dir(tmp_path: Path) -> Path:
    """A tree that holds only a file that belongs to no scene."""
    write(tmp_path / FRAMES_NAME, LABELS)
    return tmp_path


def test_verify_checks_a_tree_with_only_tasks(tasks_dir: Path) -> None:
    outcome = run_main("verify", tasks_dir)

    assert outcome.status == 0
    assert "files in tasks/: 1, " in outcome.stdout


def test_process_refuses_a_tree_with_only_tasks(tasks_dir: Path, tmp_path: Path) -> None:
    outcome = run_main("process", tasks_dir, "-o", tmp_path / "out")

    assert outcome.status == 1
    assert "holds no scene folders" in outcome.stderr


def test_info_lists_the_files_in_tasks(tasks_dir: Path) -> None:
    outcome = run_main("info", tasks_dir)

    assert outcome.status == 0
    assert f"files of no scene: 1\n  {FRAMES.suffix}: {len(LABELS)} B" in outcome.stdout


def test_damaged_file_in_tasks_is_an_error_although_its_digest_is_recorded(
    tasks_dir: Path,
) -> None:
    write(tasks_dir / FRAMES_NAME, DAMAGED_LABELS)
    write_lock(tasks_dir, FRAMES_NAME)

    outcome = run_main("verify", tasks_dir)

    assert outcome.status == 3
    assert f"error: {FRAMES_NAME}: 'label-filt/1.png' in it is damaged" in outcome.stdout
    assert f"--types {FRAMES.suffix} -o {tasks_dir}\n" in outcome.stdout


@pytest.fixture
def changed_tasks_dir(tasks_dir: Path) -> Path:
    """A tree with only a file in `tasks/` that differs from its record."""
    write_lock(tasks_dir, FRAMES_NAME)
    write(tasks_dir / FRAMES_NAME, make_zip(0))
    return tasks_dir


def test_selection_of_scenes_leaves_nothing_to_check_in_tasks(
    changed_tasks_dir: Path, verify: Verify
) -> None:
    status, _ = verify(changed_tasks_dir, "--splits", "train", "val", "test")
    assert status == 2


def test_file_in_tasks_that_differs_from_its_record_is_an_error(
    changed_tasks_dir: Path, verify: Verify
) -> None:
    # Any option keeps `verify` from adding a limit, which is a selection of scenes.
    status, findings = verify(changed_tasks_dir, "--jobs", "1")

    _, _, file, message = findings[0]
    assert status == 3
    assert file == FRAMES_NAME
    assert "is not the file that scannet.lock records" in message


def test_missing_recorded_file_in_tasks_is_an_error(tasks_dir: Path, verify: Verify) -> None:
    write_lock(tasks_dir, FRAMES_NAME)
    (tasks_dir / FRAMES_NAME).unlink()

    status, findings = verify(tasks_dir, "--jobs", "1")

    _, _, file, message = findings[0]
    assert status == 3
    assert file == FRAMES_NAME
    assert "no such file, though scannet.lock records it" in message


# Recorded scenes.


def test_recorded_scenes_without_a_folder_are_a_note(tmp_path: Path, verify: Verify) -> None:
    write_release(tmp_path, [TRAIN, TEST], vertices=600)
    write_lock(tmp_path, relative(TEST, MESH.suffix))
    shutil.rmtree(raw_file(tmp_path, MESH.suffix, TEST).parent)

    status, findings = verify(tmp_path, "--jobs", "1")

    messages = {message for _, _, file, message in findings if file == "scannet.lock"}
    assert status == 0
    assert messages == {f"records files of scenes that have no folder here: {TEST}"}
