"""Every kind of damage gives exactly its finding; what is whole gives none."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannet_prep.cli.main import main
from scannet_prep.files import Fingerprint
from scannet_prep.labels import LABEL_MAP_NAME
from scannet_prep.processed.manifest import Manifest, SceneEntry, SceneFailure, read_manifest, write_manifest
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import encode_processed, read_processed
from scannet_prep.raw.layout import (
    AGGREGATION_SUFFIX,
    HIGH_RESOLUTION_AGGREGATION_SUFFIX,
    INFO_SUFFIX,
    LABELS_MESH_SUFFIX,
    MESH_SUFFIX,
    SEGMENTS_SUFFIX,
)
from scannet_prep.synthetic import make_scene, write_release, write_scene

TRAIN, VAL, TEST = "scene0000_00", "scene0011_00", "scene0707_00"
SCENES = (TRAIN, VAL, TEST)
VERTEX_BYTES = 18  # of labels.ply: x y z, red green blue alpha, label

Row = tuple[str, str, str, str]


@pytest.fixture(scope="session")
def whole_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    write_release(directory / "raw", SCENES, vertices=600)
    assert main(["process", str(directory / "raw"), "-o", str(directory / "processed"), "-q", "--jobs", "1"]) == 0
    return directory


@pytest.fixture
def raw_dir(whole_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_dir / "raw", tmp_path / "raw"))


@pytest.fixture
def out_dir(whole_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_dir / "processed", tmp_path / "processed"))


class Verify:
    """Runs the command and gives exit status and findings: severity, scene, file, message."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.value: dict[str, Any] = {}

    def __call__(self, path: Path, *arguments: str) -> tuple[int, list[Row]]:
        self._capsys.readouterr()
        # A limit tells the command that a part is wanted, so that it says nothing of the official lists.
        words = arguments or ("--limit", "1000")
        status = main(["verify", str(path), "--json", "--jobs", "1", *words])
        lines = self._capsys.readouterr().out.splitlines()
        assert len(lines) == 1
        self.value = json.loads(lines[0])
        assert self.value["exit_status"] == status
        findings = self.value.get("findings", [])
        return status, [
            (item["severity"], item["scene_id"], os.path.relpath(item["path"], path), item["message"])
            for item in findings
        ]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    return Verify(capsys)


def raw_file(raw_dir: Path, suffix: str, scene_id: str = TRAIN) -> Path:
    folder = "scans_test" if scene_id == TEST else "scans"
    return raw_dir / folder / scene_id / f"{scene_id}{suffix}"


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        file.write(data)


def header_size(path: Path) -> int:
    data = path.read_bytes()
    return data.index(b"end_header\n") + len(b"end_header\n")


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def check_one(result: tuple[int, list[Row]], severity: str, scene_id: str, file: str, *words: str) -> None:
    """The result is one finding of that kind, whose message has the words, and the exit status that goes with it."""
    status, findings = result
    assert len(findings) == 1, findings
    assert findings[0][:3] == (severity, scene_id, file)
    for word in words:
        assert word in findings[0][3]
    assert status == (3 if severity == "error" else 0)


def relative(scene_id: str, suffix: str) -> str:
    return str(raw_file(Path(), suffix, scene_id))


# Good trees


def test_a_whole_raw_tree_has_no_findings(raw_dir: Path, verify: Verify) -> None:
    assert verify(raw_dir) == (0, [])
    assert verify.value["kind"] == "raw"
    assert (verify.value["scenes"], verify.value["vertices"]) == (3, 1800)


def test_the_folder_of_the_scenes_can_be_given_too(raw_dir: Path, verify: Verify) -> None:
    assert verify(raw_dir / "scans") == (0, [])
    assert verify.value["scenes"] == 2


def test_a_whole_processed_tree_has_no_findings(out_dir: Path, verify: Verify) -> None:
    assert verify(out_dir) == (0, [])
    assert verify.value["kind"] == "processed"
    assert (verify.value["scenes"], verify.value["vertices"]) == (3, 1800)
    assert verify.value["size_bytes"] == sum(path.stat().st_size for path in out_dir.glob("*/*.npz"))


@pytest.mark.parametrize("options", [["--labels-from", "ply"], ["--scannet200", "--align-axis", "--faces"]])
def test_what_process_writes_has_no_findings_whatever_the_options(
    raw_dir: Path, tmp_path: Path, verify: Verify, options: list[str]
) -> None:
    assert main(["process", str(raw_dir), "-o", str(tmp_path / "other"), "-q", "--jobs", "1", *options]) == 0
    assert verify(tmp_path / "other") == (0, [])


# Raw files, each by itself


@pytest.mark.parametrize(
    ("suffix", "words"),
    [
        (MESH_SUFFIX, "is truncated"),
        (LABELS_MESH_SUFFIX, "is truncated"),
        (SEGMENTS_SUFFIX, "is no JSON"),
        (AGGREGATION_SUFFIX, "is no JSON"),
    ],
)
def test_a_truncated_file_is_an_error(raw_dir: Path, verify: Verify, suffix: str, words: str) -> None:
    path = raw_file(raw_dir, suffix)
    os.truncate(path, path.stat().st_size // 2)
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, suffix), words)


@pytest.mark.parametrize("suffix", [MESH_SUFFIX, LABELS_MESH_SUFFIX, SEGMENTS_SUFFIX, AGGREGATION_SUFFIX, INFO_SUFFIX])
@pytest.mark.parametrize(
    ("content", "words"), [(b"", "is empty"), (b"<html><body>404</body></html>", "is an HTML page")]
)
def test_an_empty_file_and_a_web_page_are_errors(
    raw_dir: Path, verify: Verify, suffix: str, content: bytes, words: str
) -> None:
    raw_file(raw_dir, suffix).write_bytes(content)
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, suffix), words)


def test_a_damaged_axis_alignment_is_an_error(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, INFO_SUFFIX)
    path.write_text(path.read_text().replace("axisAlignment = ", "axisAlignment = x"))
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, INFO_SUFFIX), "16 finite numbers")


def test_an_axis_alignment_that_is_no_rotation_is_an_error(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, INFO_SUFFIX)
    path.write_text("axisAlignment = 2 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1\n")
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, INFO_SUFFIX), "not a rotation")


def test_no_axis_alignment_is_a_note(raw_dir: Path, verify: Verify) -> None:
    raw_file(raw_dir, INFO_SUFFIX).write_text("sceneType = Office\n")
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, INFO_SUFFIX), "no axisAlignment")


def test_a_mesh_that_cannot_be_read_hides_no_other_damage(raw_dir: Path, verify: Verify) -> None:
    for suffix in (MESH_SUFFIX, LABELS_MESH_SUFFIX, SEGMENTS_SUFFIX, AGGREGATION_SUFFIX, INFO_SUFFIX):
        raw_file(raw_dir, suffix).write_bytes(b"")
    status, findings = verify(raw_dir)
    assert status == 3
    assert [(item[0], item[1], item[3]) for item in findings] == [("error", TRAIN, "is empty")] * 5


# Raw files against each other


def test_segments_of_another_mesh_are_an_error(raw_dir: Path, verify: Verify) -> None:
    edit_json(raw_file(raw_dir, SEGMENTS_SUFFIX), lambda value: value["segIndices"].pop())
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, SEGMENTS_SUFFIX), "is for 599 vertices", "has 600")


def test_segment_ids_that_no_vertex_has_are_an_error(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, AGGREGATION_SUFFIX)
    edit_json(path, lambda value: value["segGroups"][0]["segments"].extend([700, 701]))
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, AGGREGATION_SUFFIX), "2 segment ids", "example 700")


def test_a_labelled_mesh_with_other_coordinates_is_an_error(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, LABELS_MESH_SUFFIX)
    patch(path, header_size(path) + 7 * VERTEX_BYTES, b"\x01")
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, LABELS_MESH_SUFFIX), "vertices lie elsewhere")


def test_a_labelled_mesh_without_labels_is_an_error(raw_dir: Path, verify: Verify) -> None:
    shutil.copy(raw_file(raw_dir, MESH_SUFFIX), raw_file(raw_dir, LABELS_MESH_SUFFIX))
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, LABELS_MESH_SUFFIX), "no property label")


def test_labels_that_differ_from_the_groups_are_counted(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, LABELS_MESH_SUFFIX)
    for vertex in (7, 11):
        # 30 is a whiteboard, which the scene has not.
        patch(path, header_size(path) + vertex * VERTEX_BYTES + 16, b"\x1e\x00")
    result = verify(raw_dir)
    check_one(
        result, "error", TRAIN, relative(TRAIN, LABELS_MESH_SUFFIX), "at 2 of 600 vertices", "vertex 7: nyu40 id 30"
    )


def test_labels_outside_nyu40_are_a_note(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, LABELS_MESH_SUFFIX)
    patch(path, header_size(path) + 7 * VERTEX_BYTES + 16, b"\x32\x00")
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, LABELS_MESH_SUFFIX), "outside nyu40", "(50)")


def test_labels_outside_nyu40_hide_no_other_difference(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, LABELS_MESH_SUFFIX)
    patch(path, header_size(path) + 7 * VERTEX_BYTES + 16, b"\x32\x00")
    patch(path, header_size(path) + 11 * VERTEX_BYTES + 16, b"\x1e\x00")
    status, findings = verify(raw_dir)
    assert status == 3
    assert [item[0] for item in findings] == ["error", "note"]
    assert "at 1 of 600 vertices, for example vertex 11" in findings[0][3]


@pytest.mark.parametrize("suffix", [SEGMENTS_SUFFIX, AGGREGATION_SUFFIX])
def test_a_file_that_names_another_scene_is_a_note(raw_dir: Path, verify: Verify, suffix: str) -> None:
    edit_json(raw_file(raw_dir, suffix), lambda value: value.update(sceneId="scannet.scene0001_00"))
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, suffix), "belongs to 'scene0001_00'")


def test_groups_for_other_segments_are_a_note(raw_dir: Path, verify: Verify) -> None:
    edit_json(raw_file(raw_dir, AGGREGATION_SUFFIX), lambda value: value.update(segmentsFile="scannet.other.segs.json"))
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, AGGREGATION_SUFFIX), "'other.segs.json'")


def test_segments_that_are_not_named_after_their_vertices_are_a_note(raw_dir: Path, verify: Verify) -> None:
    def rename(value: Any) -> None:
        old = value["segIndices"][0]
        value["segIndices"] = [100_000 if number == old else number for number in value["segIndices"]]
        for group in groups["segGroups"]:
            group["segments"] = [100_000 if number == old else number for number in group["segments"]]

    groups = json.loads(raw_file(raw_dir, AGGREGATION_SUFFIX).read_text())
    edit_json(raw_file(raw_dir, SEGMENTS_SUFFIX), rename)
    raw_file(raw_dir, AGGREGATION_SUFFIX).write_text(json.dumps(groups))
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, SEGMENTS_SUFFIX), "1 of", "for example 100000")


def test_groups_that_are_listed_twice_are_a_note(raw_dir: Path, verify: Verify) -> None:
    edit_json(raw_file(raw_dir, AGGREGATION_SUFFIX), lambda value: value["segGroups"].append(value["segGroups"][-1]))
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, AGGREGATION_SUFFIX), "repeat an earlier group")


def test_null_segment_ids_are_a_note(raw_dir: Path, verify: Verify) -> None:
    edit_json(raw_file(raw_dir, AGGREGATION_SUFFIX), lambda value: value["segGroups"][0]["segments"].append(None))
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, AGGREGATION_SUFFIX), "null")


def test_an_unknown_raw_category_is_a_note(raw_dir: Path, verify: Verify) -> None:
    group = {"id": 999, "objectId": 999, "segments": [], "label": "dishrack"}
    edit_json(raw_file(raw_dir, AGGREGATION_SUFFIX), lambda value: value["segGroups"].append(group))
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, AGGREGATION_SUFFIX), "'dishrack'")


# The high-resolution groups


def test_groups_of_the_high_resolution_mesh_are_checked_by_themselves_only(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, HIGH_RESOLUTION_AGGREGATION_SUFFIX)
    shutil.copy(raw_file(raw_dir, AGGREGATION_SUFFIX), path)
    edit_json(path, lambda value: value["segGroups"][0]["segments"].append(1_000_000))
    assert verify(raw_dir) == (0, [])
    path.write_text("{}")
    expected = relative(TRAIN, HIGH_RESOLUTION_AGGREGATION_SUFFIX)
    check_one(verify(raw_dir), "error", TRAIN, expected, "segGroups is None")


def test_groups_of_the_high_resolution_mesh_count_where_there_are_no_others(raw_dir: Path, verify: Verify) -> None:
    path = raw_file(raw_dir, HIGH_RESOLUTION_AGGREGATION_SUFFIX)
    raw_file(raw_dir, AGGREGATION_SUFFIX).rename(path)
    check_one(verify(raw_dir), "error", TRAIN, relative(TRAIN, AGGREGATION_SUFFIX), "no such file")
    edit_json(path, lambda value: value["segGroups"][0]["segments"].append(1_000_000))
    status, findings = verify(raw_dir)
    assert status == 3
    assert [item[2] for item in findings] == [
        relative(TRAIN, AGGREGATION_SUFFIX),
        relative(TRAIN, HIGH_RESOLUTION_AGGREGATION_SUFFIX),
    ]
    assert "occur at no vertex" in findings[1][3]


# What is there and what is not


@pytest.mark.parametrize(
    ("scene_id", "suffix"),
    [
        *((VAL, suffix) for suffix in (MESH_SUFFIX, SEGMENTS_SUFFIX, AGGREGATION_SUFFIX)),
        *((scene_id, INFO_SUFFIX) for scene_id in (VAL, TEST)),
        (TEST, MESH_SUFFIX),
    ],
)
def test_each_missing_file_is_an_error(raw_dir: Path, verify: Verify, scene_id: str, suffix: str) -> None:
    raw_file(raw_dir, suffix, scene_id).unlink()
    check_one(verify(raw_dir), "error", scene_id, relative(scene_id, suffix), "no such file")


def test_a_missing_labelled_mesh_is_a_note_because_labels_come_from_the_groups(raw_dir: Path, verify: Verify) -> None:
    raw_file(raw_dir, LABELS_MESH_SUFFIX).unlink()
    words = "process needs it only for --labels-from ply"
    check_one(verify(raw_dir), "note", TRAIN, relative(TRAIN, LABELS_MESH_SUFFIX), words)


def test_an_empty_scene_folder_is_one_error(raw_dir: Path, verify: Verify) -> None:
    shutil.rmtree(raw_dir / "scans" / TRAIN)
    (raw_dir / "scans" / TRAIN).mkdir()
    check_one(verify(raw_dir), "error", TRAIN, f"scans/{TRAIN}", "none of the scene's files")


def test_a_scene_that_is_there_twice_is_an_error(raw_dir: Path, verify: Verify) -> None:
    shutil.copytree(raw_dir / "scans" / TRAIN, raw_dir / "scans_test" / TRAIN)
    check_one(verify(raw_dir), "error", TRAIN, f"scans/{TRAIN}", "has the same scene as", "scans_test")


def test_a_scene_of_no_official_split_is_an_error_until_a_split_is_given(raw_dir: Path, verify: Verify) -> None:
    write_scene(make_scene("scene0900_00", vertices=600), raw_dir)
    check_one(verify(raw_dir), "error", "scene0900_00", "scans/scene0900_00", "none of the official split lists")
    assert verify(raw_dir, "--scenes", "scene0900_00", "--splits", "val") == (0, [])


def test_what_interrupted_downloads_left_is_a_note(raw_dir: Path, verify: Verify) -> None:
    (raw_dir / "scans" / TRAIN / "tmpabc").touch()
    check_one(verify(raw_dir), "note", TRAIN, f"scans/{TRAIN}", "1 temporary files", "tmpabc")


def test_entries_that_are_not_of_the_release_are_a_note(raw_dir: Path, verify: Verify) -> None:
    for name in (f"._{TRAIN}.txt", ".DS_Store", f"{TRAIN}.sens", f"{TRAIN}_2d-label.zip", f"{TRAIN}_vh_clean.ply"):
        (raw_dir / "scans" / TRAIN / name).touch()
    assert verify(raw_dir) == (0, [])
    (raw_dir / "scans" / TRAIN / "mine.pth").touch()
    check_one(verify(raw_dir), "note", TRAIN, f"scans/{TRAIN}", "1 entries", "mine.pth")
    (raw_dir / "scans" / TRAIN / "mine.pth").rename(raw_dir / "scans" / "scene12")
    check_one(verify(raw_dir), "note", "", "scans", "1 entries", "scene12")


def test_a_scene_that_was_asked_for_and_is_not_there_is_an_error(raw_dir: Path, out_dir: Path, verify: Verify) -> None:
    check_one(verify(raw_dir, "--scenes", TRAIN, "scene0002_00"), "error", "scene0002_00", ".", "has no folder")
    check_one(verify(out_dir, "--scenes", TRAIN, "scene0002_00"), "error", "scene0002_00", ".", "does not hold")


def test_only_what_was_asked_for_is_checked(raw_dir: Path, out_dir: Path, verify: Verify) -> None:
    raw_file(raw_dir, MESH_SUFFIX, VAL).unlink()
    (out_dir / "val" / f"{VAL}.npz").unlink()
    for path in (raw_dir, out_dir):
        assert verify(path)[0] == 3
        assert verify(path, "--scenes", TRAIN, TEST) == (0, [])
        assert verify.value["scenes"] == 2
        assert verify(path, "--splits", "test", "--limit", "5") == (0, [])
        assert verify.value["scenes"] == 1


# The label map


def test_a_missing_label_map_is_a_note(raw_dir: Path, verify: Verify) -> None:
    (raw_dir / LABEL_MAP_NAME).unlink()
    check_one(verify(raw_dir), "note", "", LABEL_MAP_NAME, "built-in")


def test_a_damaged_label_map_is_an_error(raw_dir: Path, verify: Verify) -> None:
    (raw_dir / LABEL_MAP_NAME).write_text("id\tcategory\n")
    check_one(verify(raw_dir), "error", "", LABEL_MAP_NAME, "has no column raw_category", "v1")


def test_known_corruptions_of_the_label_map_are_errors(raw_dir: Path, verify: Verify) -> None:
    path = raw_dir / LABEL_MAP_NAME
    text = path.read_text()
    assert text.count("\tcrate\tcrate\t") == 1
    path.write_text(text.replace("\tcrate\tcrate\t", "\tcreate\tcreate\t"))
    check_one(verify(raw_dir), "error", "", LABEL_MAP_NAME, "1 raw categories", "'crate' is missing")


def test_a_raw_category_with_two_meanings_is_an_error(raw_dir: Path, verify: Verify) -> None:
    with (raw_dir / LABEL_MAP_NAME).open("a") as file:
        file.write("5\twall\twall\t0\t7" + 12 * "\t" + "\r\n")
    check_one(verify(raw_dir), "error", "", LABEL_MAP_NAME, "'wall' is both")


# The official splits


def test_a_subset_is_a_note_unless_it_has_to_be_complete(raw_dir: Path, out_dir: Path, verify: Verify) -> None:
    for path in (raw_dir, out_dir):
        status, findings = verify(path, "--splits", "train", "val")
        assert status == 0
        assert [item[:3] for item in findings] == [("note", "", ".")] * 2
        assert [item[3] for item in findings] == ["holds 1 of the 1,201 train scenes", "holds 1 of the 312 val scenes"]
        assert verify.value["splits"]["train"] == {"present": 1, "official": 1201}
        status, findings = verify(path, "--splits", "val", "--complete")
        assert status == 3
        assert len(findings) == 311
        assert {(item[0], item[3]) for item in findings} == {("error", "no such scene")}


def test_a_split_without_scenes_is_no_success(raw_dir: Path, out_dir: Path, verify: Verify) -> None:
    shutil.rmtree(raw_dir / "scans_test")
    shutil.rmtree(out_dir)
    assert main(["process", str(raw_dir), "-o", str(out_dir), "-q", "--jobs", "1"]) == 0
    for path in (raw_dir, out_dir):
        assert verify(path, "--splits", "test")[0] == 2
        assert "holds no scenes of the splits test" in verify.value["message"]


def test_complete_contradicts_a_choice_of_scenes(raw_dir: Path, verify: Verify) -> None:
    assert verify(raw_dir, "--complete", "--limit", "3")[0] == 2


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
