"""Every kind of damage to raw files gives exactly its finding; what is whole gives none."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from verifying import (
    TEST,
    TRAIN,
    VAL,
    VERTEX_BYTES,
    Verify,
    check_one,
    edit_json,
    header_size,
    patch,
    raw_file,
    relative,
)

from scannet_prep.cli.main import main
from scannet_prep.labels import LABEL_MAP_NAME
from scannet_prep.raw.layout import (
    AGGREGATION_SUFFIX,
    HIGH_RESOLUTION_AGGREGATION_SUFFIX,
    INFO_SUFFIX,
    LABELS_MESH_SUFFIX,
    MESH_SUFFIX,
    SEGMENTS_SUFFIX,
)
from scannet_prep.synthetic import make_scene, write_scene

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
