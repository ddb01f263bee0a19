"""Every kind of damage to a processed folder gives exactly its finding; and the command as such."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verifying import (
    TEST,
    TRAIN,
    VAL,
    Verify,
    check_one,
    patch,
    raw_file,
    relative,
)

from scannet_prep.cli.main import main
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint
from scannet_prep.processed.manifest import Manifest, SceneEntry, read_manifest, write_manifest
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import encode_processed, read_processed
from scannet_prep.raw.layout import (
    INFO_SUFFIX,
    MESH_SUFFIX,
    SEGMENTS_SUFFIX,
)
from scannet_prep.synthetic import make_scene, write_scene

# Processed files


def npz(out_dir: Path, scene_id: str = TRAIN, split: str = "train") -> Path:
    return out_dir / split / f"{scene_id}.npz"


def rewrite(out_dir: Path, **changes: Any) -> None:
    """Write the train scene with other content, and record it as if nothing had happened."""
    scene = replace(read_processed(npz(out_dir)), **changes)
    data = b"".join(map(bytes, encode_processed(scene)))
    npz(out_dir).write_bytes(data)
    edit_manifest(out_dir, {TRAIN: SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))})


def edit_manifest(out_dir: Path, scenes: dict[str, SceneEntry], **changes: Any) -> None:
    manifest = read_manifest(out_dir)
    assert manifest is not None
    write_manifest(out_dir, replace(manifest, scenes={**manifest.scenes, **scenes}, **changes))


def test_a_flipped_byte_is_an_error(out_dir: Path, verify: Verify) -> None:
    patch(npz(out_dir), 3000, bytes([npz(out_dir).read_bytes()[3000] ^ 1]))
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", "'points' is damaged", "CRC-32")


def test_a_flipped_byte_outside_the_arrays_is_an_error_too(out_dir: Path, verify: Verify) -> None:
    patch(npz(out_dir), 10, b"\x01")  # the time of the first member, which nobody reads
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", "is not the file that the manifest records")


def test_a_truncated_or_foreign_file_is_an_error(out_dir: Path, verify: Verify) -> None:
    os.truncate(npz(out_dir), 5000)
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", "is truncated")
    np.savez(npz(out_dir), points=np.zeros((3, 3)))
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", "has no array 'meta'")


def test_a_file_under_the_name_of_another_scene_is_an_error(out_dir: Path, verify: Verify) -> None:
    other = make_scene("scene0001_00", vertices=600)
    write_scene(other, out_dir.parent / "more")
    argv = ["process", str(out_dir.parent / "more"), "-o", str(out_dir.parent / "out"), "-q", "--jobs", "1"]
    assert main(argv) == 0
    shutil.copy(npz(out_dir.parent / "out", "scene0001_00"), npz(out_dir))
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", "holds scene0001_00")


def test_a_file_in_the_folder_of_another_split_is_an_error(out_dir: Path, verify: Verify) -> None:
    npz(out_dir).rename(npz(out_dir, split="val"))
    check_one(verify(out_dir), "error", TRAIN, f"val/{TRAIN}.npz", "was made as a train scene, but lies in val")


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_scene_in_two_splits_is_an_error(out_dir: Path, verify: Verify, split: str) -> None:
    shutil.copy(npz(out_dir), npz(out_dir, split=split))
    check_one(verify(out_dir), "error", TRAIN, f"{split}/{TRAIN}.npz", f"a second time, as train/{TRAIN}.npz")


def test_values_that_no_scene_has_are_errors(out_dir: Path, verify: Verify) -> None:
    scene = read_processed(npz(out_dir))
    file = f"train/{TRAIN}.npz"
    points, normals, labels = scene.points.copy(), scene.normals.copy(), scene.labels.copy()
    points[5, 1] = np.nan
    normals[5] *= np.float16(0.9)
    labels[5] ^= 1
    rewrite(out_dir, points=points)
    check_one(verify(out_dir), "error", TRAIN, file, "points are not all finite")
    rewrite(out_dir, points=scene.points, normals=normals)
    check_one(verify(out_dir), "error", TRAIN, file, "normals of 1 vertices")
    rewrite(out_dir, normals=scene.normals, labels=labels)
    check_one(verify(out_dir), "error", TRAIN, file, "labels disagree with the raw ids at 1 vertices")


def test_ids_that_are_not_those_of_the_group_are_errors(out_dir: Path, verify: Verify) -> None:
    scene = read_processed(npz(out_dir))
    file = f"train/{TRAIN}.npz"
    vertex = int(np.flatnonzero(scene.instances >= 0)[0])
    scannet_ids, instances = scene.scannet_ids.copy(), scene.instances.copy()
    scannet_ids[vertex] = 9999
    instances[vertex] = 32_000
    rewrite(out_dir, scannet_ids=scannet_ids)
    check_one(verify(out_dir), "error", TRAIN, file, "scannet_ids of 1 vertices are not those of their groups")
    rewrite(out_dir, scannet_ids=scene.scannet_ids, instances=instances)
    check_one(verify(out_dir), "error", TRAIN, file, "instances hold 32000, which is no group")


def test_nyu40_ids_beyond_40_are_an_error(raw_dir: Path, tmp_path: Path, verify: Verify) -> None:
    out_dir = tmp_path / "by_ply"
    argv = ["process", str(raw_dir), "-o", str(out_dir), "--labels-from", "ply", "-q", "--jobs", "1"]
    assert main(argv) == 0
    scene = read_processed(npz(out_dir))
    vertex = int(np.flatnonzero(scene.labels == 0)[0])
    nyu40_ids = scene.nyu40_ids.copy()
    nyu40_ids[vertex] = 50
    rewrite(out_dir, nyu40_ids=nyu40_ids)
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", "nyu40_ids hold 50")


def test_scenes_made_with_different_options_are_an_error(out_dir: Path, raw_dir: Path, verify: Verify) -> None:
    argv = ["process", str(raw_dir), "-o", str(out_dir), "--align-axis", "--scenes", VAL, "-q", "--jobs", "1"]
    assert main(argv) == 0
    check_one(verify(out_dir), "error", "", ".", "1 scenes with align_axis: False -> True")


# The manifest and the lists


def test_a_missing_or_damaged_manifest_is_an_error(out_dir: Path, verify: Verify) -> None:
    (out_dir / "manifest.json").write_text("{}")
    check_one(verify(out_dir), "error", "", "manifest.json", "is damaged")
    (out_dir / "manifest.json").unlink()
    check_one(verify(out_dir), "error", "", "manifest.json", "no such file")
    assert verify.value["scenes"] == 3


def test_an_unfinished_run_is_an_error(out_dir: Path, verify: Verify) -> None:
    edit_manifest(out_dir, {}, is_complete=False)
    check_one(verify(out_dir), "error", "", "manifest.json", "has not finished")


def test_a_scene_that_is_gone_is_an_error(out_dir: Path, verify: Verify) -> None:
    npz(out_dir).unlink()
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", "no such file, though the manifest names it")


def test_a_scene_that_the_manifest_does_not_name_is_an_error(out_dir: Path, verify: Verify) -> None:
    manifest = read_manifest(out_dir)
    assert manifest is not None
    scenes = {name: entry for name, entry in manifest.scenes.items() if name != TRAIN}
    write_manifest(out_dir, replace(manifest, scenes=scenes))
    (out_dir / "scannetv2_train_npz.txt").write_text("")
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", "is not in the manifest")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vertex_count": 601}, "has 600 vertices, but the manifest says 601"),
        ({"nyu40_counts": {0: 600}}, "nyu40 counts"),
        ({"scannet_counts": {0: 600}}, "scannet counts"),
        ({"options": ProcessOptions(faces=True)}, "options"),
        ({"fingerprint": Fingerprint(1, 2)}, "CRC-32"),
    ],
)
def test_a_record_that_does_not_fit_is_an_error(
    out_dir: Path, verify: Verify, changes: dict[str, Any], words: str
) -> None:
    manifest = read_manifest(out_dir)
    assert manifest is not None
    edit_manifest(out_dir, {TRAIN: replace(manifest.scenes[TRAIN], **changes)})
    check_one(verify(out_dir), "error", TRAIN, f"train/{TRAIN}.npz", words)


def test_scenes_that_failed_are_errors_with_the_reason(raw_dir: Path, tmp_path: Path, verify: Verify) -> None:
    raw_file(raw_dir, MESH_SUFFIX).write_bytes(b"")
    assert main(["process", str(raw_dir), "-o", str(tmp_path / "out"), "-q", "--jobs", "1"]) == 3
    check_one(verify(tmp_path / "out"), "error", TRAIN, "manifest.json", "this scene failed", "is empty")


def test_an_older_file_of_a_scene_that_failed_is_a_note(out_dir: Path, verify: Verify) -> None:
    manifest = read_manifest(out_dir)
    assert manifest is not None
    scenes = {name: entry for name, entry in manifest.scenes.items() if name != TRAIN}
    write_manifest(out_dir, Manifest(scenes, {TRAIN: SceneFailure(TRAIN, "MeshError", "is empty")}))
    (out_dir / "scannetv2_train_npz.txt").write_text("")
    (out_dir / "failed.txt").write_text(f"{TRAIN}\n")
    status, findings = verify(out_dir)
    assert status == 3
    assert [(item[0], item[1], item[2]) for item in findings] == [
        ("error", TRAIN, "manifest.json"),
        ("note", TRAIN, f"train/{TRAIN}.npz"),
    ]


def test_temporary_files_and_strange_entries_are_notes(out_dir: Path, verify: Verify) -> None:
    temporary = out_dir / "train" / f".{TRAIN}.npz.abc-1.def.tmp"
    temporary.touch()
    check_one(verify(out_dir), "note", "", "train", "1 temporary files", temporary.name)
    temporary.rename(out_dir / "train" / "mine.npz")
    check_one(verify(out_dir), "note", "", "train", "1 entries", "mine.npz")


@pytest.mark.parametrize("name", ["scannetv2_train_npz.txt", "scannetv2_test_npz.txt", "scannetv2_test.txt"])
def test_a_missing_or_wrong_list_is_an_error(out_dir: Path, verify: Verify, name: str) -> None:
    (out_dir / name).write_text("")
    check_one(verify(out_dir), "error", "", name, "disagrees with the manifest on 1 scenes, for example lacks")
    (out_dir / name).unlink()
    check_one(verify(out_dir), "error", "", name, "no such file")


def test_a_missing_notice_of_the_terms_is_a_note(out_dir: Path, verify: Verify) -> None:
    (out_dir / "TERMS.txt").unlink()
    check_one(verify(out_dir), "note", "", "TERMS.txt", "terms of use")


def test_a_scene_that_failed_is_told_once_even_if_all_have_to_be_there(out_dir: Path, verify: Verify) -> None:
    npz(out_dir, VAL, "val").unlink()
    status, findings = verify(out_dir, "--complete", "--splits", "val")
    assert status == 3
    assert len(findings) == 312
    assert len({item[1] for item in findings}) == 312


# The command


def test_a_path_that_is_no_tree_stops_the_command_with_a_hint(tmp_path: Path, whole_dir: Path, verify: Verify) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "nowhere": "no such folder",
        tmp_path / "file": "is a file",
        tmp_path / "empty": "holds neither",
        whole_dir / "raw" / "scans" / TRAIN: "holds neither",
        whole_dir / "processed" / "train": "holds neither",
    }
    for path, words in cases.items():
        assert verify(path)[0] == 1
        assert verify.value["error"] == "MissingFileError"
        assert words in verify.value["message"]
        assert verify.value["hint"]


def test_people_get_a_table_with_hints(raw_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw_file(raw_dir, INFO_SUFFIX, TEST).unlink()
    capsys.readouterr()
    assert main(["verify", str(raw_dir), "--jobs", "1"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["scene", "file", "what"]
    assert lines[2].split() == ["error", TEST, relative(TEST, INFO_SUFFIX), "no", "such", "file"]
    assert "hint: download it: every test scene has one" in lines
    assert "train 1 of 1,201, val 1 of 312, test 1 of 100" in lines[-2]
    assert lines[-1] == "1 error, 3 notes"


def test_quiet_says_only_what_is_wrong(raw_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = raw_file(raw_dir, INFO_SUFFIX, TEST)
    path.unlink()
    capsys.readouterr()
    assert main(["verify", str(raw_dir), "-q", "--jobs", "1"]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[0] == f"error: {path}: no such file"


def test_the_number_of_workers_changes_nothing(raw_dir: Path, out_dir: Path) -> None:
    raw_file(raw_dir, MESH_SUFFIX).write_bytes(b"")
    raw_file(raw_dir, SEGMENTS_SUFFIX, VAL).unlink()
    npz(out_dir).write_bytes(b"")
    for path in (raw_dir, out_dir):
        outputs = []
        for jobs in ("1", "3"):
            argv = [sys.executable, "-m", "scannet_prep", "verify", str(path), "--json", "--jobs", jobs]
            result = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert result.returncode == 3, result.stderr
            assert "Traceback" not in result.stderr
            outputs.append({key: value for key, value in json.loads(result.stdout).items() if key != "seconds"})
        assert outputs[0] == outputs[1]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds the worker through /proc")
def test_a_worker_that_is_killed_is_a_finding(raw_dir: Path) -> None:
    path = raw_file(raw_dir, MESH_SUFFIX)
    path.unlink()
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)  # so that the worker's own open succeeds, and its read waits
    argv = [sys.executable, "-m", "scannet_prep", "verify", str(raw_dir), "--json", "--jobs", "2", "--limit", "9"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            killed: set[int] = set()
            deadline_s = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline_s:
                for pid in readers_of(path) - killed - {os.getpid()}:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                time.sleep(0.05)
            output, errors = process.communicate(timeout=10)
        finally:
            process.kill()
            os.close(descriptor)
    value = json.loads(output)
    assert process.returncode == 3
    assert len(killed) == 2
    assert value["scenes"] == 3
    assert [(item["scene_id"], item["path"]) for item in value["findings"]] == [(TRAIN, str(path.parent))]
    assert "killed its worker" in value["findings"][0]["message"]
    assert "Traceback" not in errors


def readers_of(path: Path) -> set[int]:
    """Processes of ours that hold a file open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink() == path:
                found.add(int(link.parts[2]))
    return found
