"""What `verify` and `info` make of sensor streams, zip files, and the files in `tasks/`."""

import shutil
from pathlib import Path

import pytest
from commands import TEST, TRAIN, Verify, check_one, raw_file, relative, run_main
from large_files import DEPTH, make_stream, make_zip

from scannet_prep.raw.lock import digest_file, encode_lock
from scannet_prep.release.files import FRAMES, MESH
from scannet_prep.synthetic import write_release

STREAM, LABELS = make_stream(), make_zip()
DAMAGED_STREAM = STREAM.replace(DEPTH, DEPTH[:-1] + b"?", 1)
DAMAGED_LABELS = make_zip(0).replace(b"second", b"secund")
FRAMES_NAME = f"tasks/{FRAMES.suffix}"


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def sens_dir(tmp_path: Path) -> Path:
    """A tree that holds only sensor streams."""
    for scene_id in (TRAIN, TEST):
        write(raw_file(tmp_path, ".sens", scene_id), STREAM)
    return tmp_path


@pytest.fixture
def tasks_dir(tmp_path: Path) -> Path:
    """A tree that holds only a file of no scene."""
    write(tmp_path / FRAMES_NAME, LABELS)
    return tmp_path


@pytest.mark.parametrize(
    ("suffix", "whole", "damaged", "problem"),
    [
        (".sens", STREAM, DAMAGED_STREAM, "frame 0 of 3 is damaged: depth does not decompress"),
        ("_2d-label-filt.zip", LABELS, DAMAGED_LABELS, "'label-filt/1.png' in it is damaged"),
    ],
)
def test_damaged_large_file_of_a_scene_is_one_error(
    tmp_path: Path, verify: Verify, suffix: str, whole: bytes, damaged: bytes, problem: str
) -> None:
    write_release(tmp_path, [TRAIN], vertices=600)
    path = raw_file(tmp_path, suffix)
    path.write_bytes(whole)
    assert verify(tmp_path) == (0, [])
    path.write_bytes(damaged)
    (tmp_path / "scannet.lock").write_bytes(
        encode_lock({relative(TRAIN, suffix): digest_file(path)})
    )
    check_one(verify(tmp_path), "error", TRAIN, relative(TRAIN, suffix), problem)
    told = run_main("verify", tmp_path).stdout
    assert f"--types {suffix} --verify -o {tmp_path} --scenes {TRAIN}\n" in told


def test_truncated_high_resolution_mesh_is_one_error(tmp_path: Path, verify: Verify) -> None:
    write_release(tmp_path, [TRAIN], vertices=600)
    path = raw_file(tmp_path, "_vh_clean.ply")
    path.write_bytes(raw_file(tmp_path, MESH.suffix).read_bytes())
    assert verify(tmp_path) == (0, [])
    path.write_bytes(path.read_bytes()[:-1])
    check_one(verify(tmp_path), "error", TRAIN, relative(TRAIN, "_vh_clean.ply"), "bytes")


def test_verify_of_a_tree_with_only_sensor_streams_finds_no_error(
    sens_dir: Path, verify: Verify
) -> None:
    status, findings = verify(sens_dir)
    assert (status, {finding[0] for finding in findings}) == (0, {"note"})
    assert "no scene has a mesh or an annotation" in findings[0][3]
    assert (verify.value["scenes"], verify.value["size_bytes"]) == (2, 2 * len(STREAM))


def test_damaged_stream_in_a_tree_with_only_streams_is_an_error(
    sens_dir: Path, verify: Verify
) -> None:
    raw_file(sens_dir, ".sens").write_bytes(DAMAGED_STREAM)
    status, findings = verify(sens_dir)
    errors = [finding for finding in findings if finding[0] == "error"]
    assert (status, [error[1] for error in errors]) == (3, [TRAIN])


def test_scene_folder_without_files_is_an_error_in_a_tree_of_streams(
    sens_dir: Path, verify: Verify
) -> None:
    raw_file(sens_dir, ".sens").unlink()
    status, findings = verify(sens_dir)
    assert (status, findings[0][:2]) == (3, ("error", TRAIN))
    assert findings[0][3] == "holds no file of the release"


def test_scene_with_only_a_stream_lacks_its_mesh_beside_scenes_with_meshes(
    tmp_path: Path, verify: Verify
) -> None:
    write_release(tmp_path, [TRAIN, TEST], vertices=600)
    raw_file(tmp_path, MESH.suffix, TEST).unlink()
    write(raw_file(tmp_path, ".sens", TEST), STREAM)
    check_one(verify(tmp_path), "error", TEST, relative(TEST, MESH.suffix), "no such file")


def test_info_of_a_tree_with_only_sensor_streams_counts_its_scenes(sens_dir: Path) -> None:
    outcome = run_main("info", sens_dir, "--json")
    assert (outcome.status, outcome.json["scene_ids"]) == (0, [TRAIN, TEST])
    assert outcome.json["splits"]["all"] == {
        "scenes": 2,
        "vertices": 0,
        "size_bytes": 2 * len(STREAM),
    }


def test_verify_of_a_tree_with_only_tasks_checks_them(tasks_dir: Path) -> None:
    outcome = run_main("verify", tasks_dir)
    assert outcome.status == 0
    assert "files in tasks/: 1, " in outcome.stdout


def test_process_of_a_tree_with_only_tasks_finds_no_scenes(tasks_dir: Path, tmp_path: Path) -> None:
    outcome = run_main("process", tasks_dir, "-o", tmp_path / "out")
    assert (outcome.status, "holds no scene folders" in outcome.stderr) == (1, True)


def test_info_of_a_tree_with_only_tasks_lists_them(tasks_dir: Path) -> None:
    outcome = run_main("info", tasks_dir)
    assert outcome.status == 0
    assert f"files of no scene: 1\n  {FRAMES.suffix}: {len(LABELS)} B" in outcome.stdout


def test_damaged_zip_file_in_tasks_is_an_error_although_its_digest_is_recorded(
    tasks_dir: Path,
) -> None:
    path = write(tasks_dir / FRAMES_NAME, DAMAGED_LABELS)
    (tasks_dir / "scannet.lock").write_bytes(encode_lock({FRAMES_NAME: digest_file(path)}))
    outcome = run_main("verify", tasks_dir)
    assert outcome.status == 3
    assert f"error: {FRAMES_NAME}: 'label-filt/1.png' in it is damaged" in outcome.stdout
    assert f"--types {FRAMES.suffix} --verify -o {tasks_dir}\n" in outcome.stdout


def test_file_in_tasks_that_differs_from_its_record_is_an_error(
    tasks_dir: Path, verify: Verify
) -> None:
    (tasks_dir / "scannet.lock").write_bytes(
        encode_lock({FRAMES_NAME: digest_file(tasks_dir / FRAMES_NAME)})
    )
    (tasks_dir / FRAMES_NAME).write_bytes(make_zip(0))
    status, findings = verify(tasks_dir, "--splits", "train", "val", "test")
    assert status == 2  # a choice of scenes leaves nothing to check
    status, findings = verify(tasks_dir, "--jobs", "1")
    assert (status, findings[0][2]) == (3, FRAMES_NAME)
    assert "is not the file that scannet.lock records" in findings[0][3]


def test_recorded_file_in_tasks_that_is_gone_is_an_error(tasks_dir: Path, verify: Verify) -> None:
    (tasks_dir / "scannet.lock").write_bytes(
        encode_lock({FRAMES_NAME: digest_file(tasks_dir / FRAMES_NAME)})
    )
    (tasks_dir / FRAMES_NAME).unlink()
    status, findings = verify(tasks_dir, "--jobs", "1")
    assert (status, findings[0][2]) == (3, FRAMES_NAME)
    assert "no such file, though scannet.lock records it" in findings[0][3]


def test_recorded_scenes_without_a_folder_are_a_note(tmp_path: Path, verify: Verify) -> None:
    write_release(tmp_path, [TRAIN, TEST], vertices=600)
    path = raw_file(tmp_path, MESH.suffix, TEST)
    (tmp_path / "scannet.lock").write_bytes(
        encode_lock({relative(TEST, MESH.suffix): digest_file(path)})
    )
    shutil.rmtree(path.parent)
    status, findings = verify(tmp_path, "--jobs", "1")
    notes = {finding[3] for finding in findings if finding[2] == "scannet.lock"}
    assert status == 0
    assert notes == {f"records files of scenes that have no folder here: {TEST}"}
