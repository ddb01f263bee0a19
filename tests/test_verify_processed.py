"""Every kind of damage to a processed folder gives exactly its finding; and the command as such."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from verifying import TEST, TRAIN, VAL, Verify, check_one, look_or_die, patch, raw_file, relative

from scannet_prep.cli.main import main
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint
from scannet_prep.processed.folder import write_lists
from scannet_prep.processed.manifest import Manifest, SceneEntry, read_manifest, write_manifest
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import ProcessedScene, encode_processed, read_processed
from scannet_prep.release import INFO, MESH, SEGMENTS
from scannet_prep.scene import SceneId
from scannet_prep.stages.finding import CheckTask, look_at_scenes
from scannet_prep.synthetic import make_scene, write_scene

FILE = f"train/{TRAIN}.npz"


def npz(out_dir: Path, scene_id: str = TRAIN, split: str = "train") -> Path:
    return out_dir / split / f"{scene_id}.npz"


def process(raw_dir: Path, out_dir: Path, *options: str) -> int:
    return main(["process", str(raw_dir), "-o", str(out_dir), "-q", "--jobs", "1", *options])


def manifest_of(out_dir: Path) -> Manifest:
    manifest = read_manifest(out_dir)
    assert manifest is not None
    return manifest


def forget_scene(out_dir: Path, **changes: Any) -> None:
    """Take the train scene out of manifest and list."""
    manifest = manifest_of(out_dir)
    scenes = {name: entry for name, entry in manifest.scenes.items() if name != TRAIN}
    write_manifest(out_dir, structs.replace(manifest, scenes=scenes, **changes))
    (out_dir / "scannetv2_train_npz.txt").write_text("")


def edit_entry(out_dir: Path, **changes: Any) -> None:
    manifest = manifest_of(out_dir)
    entry = structs.replace(manifest.scenes[TRAIN], **changes)
    write_manifest(out_dir, structs.replace(manifest, scenes={**manifest.scenes, TRAIN: entry}))


def rewrite(out_dir: Path, change: Callable[[ProcessedScene], dict[str, Any]]) -> None:
    """Write the train scene with other content, and record it as if nothing had happened."""
    scene = read_processed(npz(out_dir))
    scene = replace(scene, **change(scene))
    data = b"".join(map(bytes, encode_processed(scene)))
    npz(out_dir).write_bytes(data)
    manifest = manifest_of(out_dir)
    entry = SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))
    write_manifest(out_dir, structs.replace(manifest, scenes={**manifest.scenes, TRAIN: entry}))


def changed(array: np.ndarray, where: Any, value: object) -> np.ndarray:
    copy = array.copy()
    copy[where] = value
    return copy


def in_group(scene: ProcessedScene) -> int:
    return int(np.flatnonzero(scene.instances >= 0)[0])


WRONG_VALUES: dict[str, tuple[Callable[[ProcessedScene], dict[str, Any]], str]] = {
    "NaN among the points": (
        lambda scene: {"points": changed(scene.points, (5, 1), np.nan)},
        "points are not all finite",
    ),
    "normal that is too short": (
        lambda scene: {"normals": changed(scene.normals, 5, scene.normals[5] * np.float16(0.9))},
        "normals of 1 vertices",
    ),
    "label of another class": (
        lambda scene: {"labels": changed(scene.labels, 5, scene.labels[5] ^ 1)},
        "labels disagree with the raw ids at 1 vertices",
    ),
    "ScanNet id that is not the group's": (
        lambda scene: {"scannet_ids": changed(scene.scannet_ids, in_group(scene), 9999)},
        "scannet_ids of 1 vertices are not those of their groups",
    ),
    "instance without a group": (
        lambda scene: {"instances": changed(scene.instances, in_group(scene), 32_000)},
        "instances hold 32000, which is no",
    ),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_value_that_no_scene_has_is_an_error(out_dir: Path, verify: Verify, name: str) -> None:
    change, words = WRONG_VALUES[name]
    rewrite(out_dir, change)
    check_one(verify(out_dir), "error", TRAIN, FILE, words)


def test_nyu40_id_above_40_is_an_error(raw_dir: Path, tmp_path: Path, verify: Verify) -> None:
    out_dir = tmp_path / "by_ply"
    assert process(raw_dir, out_dir, "--labels-from", "ply") == 0
    rewrite(out_dir, lambda scene: {"nyu40_ids": changed(scene.nyu40_ids, np.flatnonzero(scene.labels == 0)[0], 50)})
    check_one(verify(out_dir), "error", TRAIN, FILE, "nyu40_ids hold 50")


def truncate_scene(out_dir: Path) -> None:
    os.truncate(npz(out_dir), 5000)


def put_other_scene(out_dir: Path) -> None:
    write_scene(make_scene("scene0001_00", vertices=600), out_dir.parent / "more")
    assert process(out_dir.parent / "more", out_dir.parent / "out") == 0
    shutil.copy(npz(out_dir.parent / "out", "scene0001_00"), npz(out_dir))


def leave_older_file(out_dir: Path) -> None:
    forget_scene(out_dir, failures={TRAIN: SceneFailure(TRAIN, "MeshError", "is empty")})
    write_lists(out_dir, manifest_of(out_dir))


def set_unfinished(out_dir: Path) -> None:
    write_manifest(out_dir, structs.replace(manifest_of(out_dir), is_complete=False))


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str, str, tuple[str, ...]]] = {
    "flipped bit in an array": (
        lambda out_dir: patch(npz(out_dir), 3000, bytes([npz(out_dir).read_bytes()[3000] ^ 1])), "error", TRAIN, FILE,
        ("'points' is damaged", "CRC-32"),
    ),
    "truncated scene": (truncate_scene, "error", TRAIN, FILE, ("is truncated",)),
    "scene of another program": (
        lambda out_dir: np.savez(npz(out_dir), points=np.zeros((3, 3))), "error", TRAIN, FILE, ("another program",),
    ),
    "file of another scene": (put_other_scene, "error", TRAIN, FILE, ("holds scene0001_00",)),
    "scene in the folder of another split": (
        lambda out_dir: npz(out_dir).rename(npz(out_dir, split="val")), "error", TRAIN, f"val/{TRAIN}.npz",
        ("is not in the manifest, which has it in train",),
    ),
    "scene in two splits": (
        lambda out_dir: shutil.copy(npz(out_dir), npz(out_dir, split="val")), "error", TRAIN, f"val/{TRAIN}.npz",
        ("is not in the manifest, which has it in train",),
    ),
    "damaged manifest": (
        lambda out_dir: (out_dir / "manifest.json").write_text("{}"), "error", "", "manifest.json", ("is damaged",),
    ),
    "no manifest": (
        lambda out_dir: (out_dir / "manifest.json").unlink(), "error", "", "manifest.json", ("no such file",),
    ),
    "mark of a run that has not ended": (
        lambda out_dir: (out_dir / "unfinished.txt").touch(), "error", "", "unfinished.txt", ("has not finished",),
    ),
    "manifest of a run that has not ended": (set_unfinished, "error", "", "manifest.json", ("has not finished",)),
    "scene that is gone": (
        lambda out_dir: npz(out_dir).unlink(), "error", TRAIN, FILE, ("no such file, though the manifest names it",),
    ),
    "scene that the manifest does not name": (forget_scene, "error", TRAIN, FILE, ("is not in the manifest",)),
    "record of another vertex count": (
        lambda out_dir: edit_entry(out_dir, vertex_count=601), "error", TRAIN, FILE, ("600", "601"),
    ),
    "record of other nyu40 ids": (
        lambda out_dir: edit_entry(out_dir, nyu40_counts={0: 600}), "error", TRAIN, FILE, ("nyu40 counts",),
    ),
    "record of other ScanNet ids": (
        lambda out_dir: edit_entry(out_dir, scannet_counts={0: 600}), "error", TRAIN, FILE, ("scannet counts",),
    ),
    "record of other options": (
        lambda out_dir: edit_entry(out_dir, options=ProcessOptions(faces=True)), "error", TRAIN, FILE, ("options",),
    ),
    "record of another file": (
        lambda out_dir: edit_entry(out_dir, size_bytes=1), "error", TRAIN, FILE, ("size bytes",),
    ),
    "temporary file": (
        lambda out_dir: (out_dir / "train" / f".{TRAIN}.npz.abc-1.def.tmp").touch(), "note", "", "train",
        ("1 temporary files", ".npz.abc-1.def.tmp"),
    ),
    "strange file": (
        lambda out_dir: (out_dir / "train" / "mine.npz").touch(), "note", "", "train", ("1 entries", "mine.npz"),
    ),
    "empty list of OctFormer's": (
        lambda out_dir: (out_dir / "scannetv2_test.txt").write_text(""), "error", "", "scannetv2_test.txt",
        ("disagrees with the manifest: 0 lines, expected 1",),
    ),
    "no list of OctFormer's": (
        lambda out_dir: (out_dir / "scannetv2_train_npz.txt").unlink(), "error", "", "scannetv2_train_npz.txt",
        ("no such file",),
    ),
    "list of failures that did not happen": (
        lambda out_dir: (out_dir / "failed.txt").write_text(f"{TRAIN}\n"), "error", "", "failed.txt",
        ("1 lines, expected 0",),
    ),
    "no notice of the terms": (
        lambda out_dir: (out_dir / "TERMS.txt").unlink(), "note", "", "TERMS.txt", ("terms of use",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_a_processed_folder_is_one_finding(out_dir: Path, verify: Verify, name: str) -> None:
    damage, severity, scene_id, place, words = DAMAGES[name]
    damage(out_dir)
    check_one(verify(out_dir), severity, scene_id, place, *words)


@pytest.mark.parametrize("options", [["--labels-from", "ply"], ["--scannet200", "--align-axis", "--faces"]])
def test_what_process_writes_has_no_findings_whatever_the_options(
    raw_dir: Path, tmp_path: Path, verify: Verify, options: list[str]
) -> None:
    assert process(raw_dir, tmp_path / "other", *options) == 0
    assert verify(tmp_path / "other") == (0, [])
    assert verify.value["kind"] == "processed"
    assert (verify.value["scenes"], verify.value["vertices"]) == (3, 1800)
    assert verify.value["size_bytes"] == sum(path.stat().st_size for path in (tmp_path / "other").glob("*/*.npz"))


def test_scenes_made_with_different_options_are_an_error(out_dir: Path, raw_dir: Path, verify: Verify) -> None:
    assert process(raw_dir, out_dir, "--align-axis", "--scenes", VAL) == 0
    check_one(verify(out_dir), "error", "", "manifest.json", "different options", "align_axis=True")


def test_scene_that_failed_is_an_error_with_its_reason(raw_dir: Path, tmp_path: Path, verify: Verify) -> None:
    raw_file(raw_dir, MESH.suffix).write_bytes(b"")
    assert process(raw_dir, tmp_path / "out") == 3
    check_one(verify(tmp_path / "out"), "error", TRAIN, "manifest.json", "this scene failed", "empty")


def test_older_file_of_a_scene_that_failed_is_a_note(out_dir: Path, verify: Verify) -> None:
    leave_older_file(out_dir)
    status, findings = verify(out_dir)
    assert status == 3
    assert [item[:3] for item in findings] == [("error", TRAIN, "manifest.json"), ("note", TRAIN, FILE)]


def test_missing_scene_is_told_once_even_if_all_have_to_be_there(out_dir: Path, verify: Verify) -> None:
    npz(out_dir, VAL, "val").unlink()
    status, findings = verify(out_dir, "--complete", "--splits", "val")
    assert (status, len(findings), len({item[1] for item in findings})) == (3, 312, 312)


# The command


def test_people_get_findings_hints_and_what_to_type(raw_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = raw_file(raw_dir, INFO.suffix, TEST)
    path.unlink()
    capsys.readouterr()
    assert main(["verify", str(raw_dir), "--jobs", "1"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"error: {relative(TEST, INFO.suffix)}: no such file"
    assert "hint: download it: every test scene has one" in lines
    assert any(f"scannet-prep download --types seg --verify -o {raw_dir}" in line for line in lines)
    assert "train 1 of 1,201, val 1 of 312, test 1 of 100" in lines[-2]
    assert lines[-1] == "1 error, 3 notes"
    assert main(["verify", str(raw_dir), "-q", "--jobs", "1"]) == 3
    output = capsys.readouterr()
    assert (output.out, output.err.splitlines()[0]) == ("", f"error: {path}: no such file")


def test_worker_that_is_killed_is_a_finding_of_its_scene(tmp_path: Path) -> None:
    tasks = [CheckTask(SceneId(name), tmp_path / name) for name in (TRAIN, VAL, TEST)]
    results, findings = look_at_scenes(look_or_die, tasks, VAL, title="look", jobs=2)
    assert results == {SceneId(name): name for name in (TRAIN, TEST)}
    assert [(item.scene_id, item.place) for item in findings] == [(VAL, str(tmp_path / VAL))]
    assert "killed its worker" in findings[0].message


def test_number_of_workers_changes_nothing_in_the_report(raw_dir: Path, out_dir: Path) -> None:
    raw_file(raw_dir, MESH.suffix).write_bytes(b"")
    raw_file(raw_dir, SEGMENTS.suffix, VAL).unlink()
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
