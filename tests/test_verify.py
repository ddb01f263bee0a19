"""Tests of `verify`: damage of every kind, the official lists, and two copies compared."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import (
    SCENES,
    TEST,
    TRAIN,
    VAL,
    copy_scene,
    edit_json,
    fail,
    flip,
    patch,
    raw_file,
    run_main,
    write_processed,
)
from tiny import DEPTH, make_stream, make_zip

from scannet_prep import official_scenes, read_processed
from scannet_prep.raw.lock import digest_file, encode_lock
from scannet_prep.release.files import AGGREGATION, FRAMES, INFO, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.synthetic import write_release

# Size of a vertex in labels.ply: x y z, red green blue alpha, label.
VERTEX_BYTES = 18


def header_size(path):
    """Size of the header of a mesh, in bytes."""
    data = path.read_bytes()
    return data.index(b"end_header\n") + len(b"end_header\n")


def relative(scene_id, suffix):
    """Path of a file of a scene, relative to the raw tree."""
    return str(raw_file(Path(), suffix, scene_id))


STREAM = make_stream()
LABELS = make_zip()
DAMAGED_STREAM = STREAM.replace(DEPTH, DEPTH[:-1] + b"?", 1)
DAMAGED_LABELS = make_zip(0).replace(b"second", b"secund")
OTHER = str(official_scenes("train")[-1])
UNLISTED = "scene0900_00"


def verify(path, *words):
    """Run `verify --json`; return the outcome, and (severity, scene, file, message) of findings."""
    outcome = run_main("verify", path, "--json", *words)
    assert outcome.json["exit_status"] == outcome.status
    rows = []
    for finding in outcome.json.get("findings", []):
        file = os.path.relpath(finding["path"], path)
        rows.append((finding["severity"], finding["scene_id"], file, finding["message"]))
    return outcome, rows


# Damage to one scene of a raw tree: the kind of file (None: the folder of the scene), what damages
# it, and what the message of the only finding matches.


def edit(change):
    return lambda path: edit_json(path, change)


def set_ply_label(path, label, *vertices):
    for vertex in vertices:
        patch(path, header_size(path) + vertex * VERTEX_BYTES + 16, bytes([label, 0]))


def replace_by_link(path):
    shutil.rmtree(path)
    path.symlink_to("nowhere")


def copy_to_scans_test(path):
    shutil.copytree(path, path.parents[1] / "scans_test" / path.name)


WITHOUT_GROUPS = edit(lambda value: value["segGroups"].clear())
# labels.ply still labels its vertices.
WITHOUT_FLOOR = edit(lambda value: value["segGroups"].pop(0))
UNKNOWN_SEGMENTS = edit(lambda value: value["segGroups"][0]["segments"].extend([700, 701]))
RAW_DAMAGES = [
    *(
        (kind, lambda path: os.truncate(path, 500), "truncated|JSON")
        for kind in (MESH, LABELS_MESH, SEGMENTS, AGGREGATION)
    ),
    (SEGMENTS, os.unlink, "no such file"),
    (AGGREGATION, os.unlink, "no aggregation on disk"),
    (INFO, os.unlink, r"no \.txt on disk"),
    (None, replace_by_link, "link that leads nowhere"),
    (None, copy_to_scans_test, "has the same scene as.*scans_test"),
    (INFO, lambda path: path.write_text("sceneType = Office\n"), "no axisAlignment"),
    (AGGREGATION, WITHOUT_GROUPS, "segGroups is empty"),
    (AGGREGATION, UNKNOWN_SEGMENTS, "segment ids of groups that no vertex has.* 2"),
    (AGGREGATION, WITHOUT_FLOOR, r"labels [\d,]+ vertices that belong to no group"),
    # A person, which no synthetic scene has.
    (LABELS_MESH, lambda path: set_ply_label(path, 31, 7, 11), "label.*contradicts the groups: 2"),
    (LABELS_MESH, lambda path: set_ply_label(path, 50, 7), r"outside nyu40.*\(50\)"),
]


def test_each_damage_to_a_raw_scene_is_one_finding_about_it(tmp_path):
    names = [str(name) for name in official_scenes("train")[: len(RAW_DAMAGES)]]
    write_release(tmp_path, [*names, TEST, VAL, UNLISTED], vertices=600)
    for name, (kind, apply, _) in zip(names, RAW_DAMAGES, strict=True):
        folder = tmp_path / "scans" / name
        apply(folder if kind is None else folder / f"{name}{kind.suffix}")
    raw_file(tmp_path, INFO.suffix, TEST).unlink()

    outcome, findings = verify(tmp_path, "--limit", "1000")

    assert outcome.status == 3
    assert outcome.json["scenes"] == len(names) + 3
    assert names[-1] not in outcome.json["damaged_scenes"]  # which has a note
    rows = {row[1]: row for row in findings}
    assert len(findings) == len(rows) == len(names) + 2
    assert "no .txt on disk" in rows[TEST][3]
    assert "none of the official split lists" in rows[UNLISTED][3]
    for name, (kind, _, pattern) in zip(names, RAW_DAMAGES, strict=True):
        severity, _, file, message = rows[name]
        # An id that nyu40 does not have is an oddity.
        assert severity == ("note" if "nyu40." in pattern else "error")
        assert re.search(pattern, message), (pattern, message)
        suffixes = ("", (kind or MESH).suffix, LABELS_MESH.suffix)
        assert file.rpartition("/")[2] in [f"{name}{suffix}" for suffix in suffixes]


def test_intact_tree_has_no_findings_whatever_lies_beside_its_files(raw_dir):
    (raw_dir / f"scans/{TRAIN}/._{TRAIN}.txt").touch()
    shutil.copy(raw_file(raw_dir, MESH.suffix), raw_file(raw_dir, "_vh_clean.ply"))
    groups = raw_file(raw_dir, "_vh_clean.aggregation.json")
    shutil.copy(raw_file(raw_dir, AGGREGATION.suffix), groups)
    UNKNOWN_SEGMENTS(groups)

    outcome, findings = verify(raw_dir)

    assert outcome.status == 0
    assert findings == []
    assert outcome.json["scenes"] == 3
    # A copy with this error is in use.
    path = raw_dir / "scannetv2-labels.combined.tsv"
    path.write_text(path.read_text().replace("3\tfloor\t2", "3\tfloor\t0"))
    outcome, [finding] = verify(raw_dir)
    assert outcome.status == 3
    assert finding[:3] == ("error", "", path.name)
    assert "differs from the label map of the release: floor" in finding[3]
    path.write_text("<html>")
    [finding] = verify(raw_dir)[1]
    assert finding[2] == path.name
    path.unlink()
    # Without the right groups, those of another mesh are of no use.
    raw_file(raw_dir, AGGREGATION.suffix).unlink()
    outcome, [(_, _, file, message)] = verify(raw_dir)
    assert outcome.status == 3
    assert file == relative(TRAIN, "_vh_clean.aggregation.json")
    assert "is for the high-resolution mesh" in message


def test_files_are_compared_with_scannet_lock_and_large_ones_are_read(tmp_path):
    write_release(tmp_path, [TRAIN, TEST], vertices=600)
    frames_name = f"tasks/{FRAMES.suffix}"
    (tmp_path / "tasks").mkdir()
    files = {
        relative(TRAIN, ".sens"): (DAMAGED_STREAM, "frame 0 of 3 is damaged: depth"),
        frames_name: (DAMAGED_LABELS, "'label-filt/1.png' in it is damaged"),
        relative(TRAIN, MESH.suffix): (None, "is not the file that was recorded"),
        relative(TRAIN, LABELS_MESH.suffix): (None, "no such file"),
    }
    records = {}
    for name, (data, _) in files.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        # The record is that of the damaged file: its digest does not reveal the damage.
        records[name] = digest_file(tmp_path / name)
    gone = "tasks/gone.zip"
    records[relative(VAL, INFO.suffix)] = records[gone] = digest_file(tmp_path / frames_name)
    (tmp_path / "scannet.lock").write_bytes(encode_lock(records))
    # A colour that no other file contradicts; and a file that is gone.
    mesh_path = tmp_path / relative(TRAIN, MESH.suffix)
    patch(mesh_path, header_size(mesh_path) + 12, b"\x07")
    (tmp_path / relative(TRAIN, LABELS_MESH.suffix)).unlink()

    outcome, findings = verify(tmp_path)

    assert outcome.status == 3
    messages = {file: message for _, _, file, message in findings}
    assert VAL in messages.pop(".")
    assert "no such file" in messages.pop(gone)
    assert messages.keys() == files.keys()
    assert all(files[file][1] in message for file, message in messages.items())
    # Files of no scene are left out if scenes are selected.
    assert {row[1] for row in verify(tmp_path, "--splits", "train")[1]} == {TRAIN}
    (tmp_path / "scannet.lock").write_text("x")
    fail(1, "scannet.lock: line 1 reads 'x'", "verify", tmp_path)


def test_tree_with_only_streams_and_tasks_needs_no_mesh(tmp_path):
    for scene_id in (TRAIN, TEST):
        raw_file(tmp_path, ".sens", scene_id).parent.mkdir(parents=True)
        raw_file(tmp_path, ".sens", scene_id).write_bytes(STREAM)
    (tmp_path / "tasks").mkdir()
    (tmp_path / f"tasks/{FRAMES.suffix}").write_bytes(LABELS)

    outcome, [(severity, _, _, message)] = verify(tmp_path)

    assert outcome.status == 0
    assert severity == "note"
    assert "no scene has a mesh" in message
    raw_file(tmp_path, ".sens").write_bytes(DAMAGED_STREAM)
    raw_file(tmp_path, ".sens", TEST).unlink()
    errors = [row[1] for row in verify(tmp_path)[1] if row[0] == "error"]
    assert errors == [TRAIN, TEST]


# Damage to one scene of a processed folder: what the message of the only finding matches, after a
# function has changed the folder.


def scene_file(folder, scene_id, split="train"):
    return folder / split / f"{scene_id}.npz"


def edit_entry(**changes):
    def apply(folder, scene_id):
        path = folder / "manifest.json"
        edit_json(path, lambda value: value["scenes"][scene_id].update(changes))

    return apply


def copy(folder, scene_id, name, split="train"):
    shutil.copy(scene_file(folder, scene_id), scene_file(folder, name, split))


def remove_entry(folder, scene_id):
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop(scene_id))


WRONG_COUNT = edit_entry(vertices=601, nyu40_counts={"0": 601}, scannet_counts={"0": 601})
PROCESSED_DAMAGES = [
    (lambda folder, name: flip(scene_file(folder, name), 3000), "'points' is damaged"),
    (lambda folder, name: os.truncate(scene_file(folder, name), 5000), "is truncated"),
    (lambda folder, name: scene_file(folder, name).unlink(), "no such file"),
    (lambda folder, name: copy(folder, OTHER, name), f"holds '{OTHER}'"),
    (lambda folder, name: copy(folder, name, name, "val"), "is not in the manifest"),
    (remove_entry, "is not in the manifest"),
    (WRONG_COUNT, "600.*601"),
    (edit_entry(nyu40_counts={"0": 600}), "nyu40 counts"),
    (edit_entry(crc32="00000000"), "crc32"),
]


def test_each_damage_to_a_processed_scene_is_one_error_about_it(whole_dir, tmp_path):
    scene = read_processed(scene_file(whole_dir / "processed", TRAIN))
    names = [str(name) for name in sorted(official_scenes("train"))[: len(PROCESSED_DAMAGES)]]
    write_processed(tmp_path, copy_scene(scene, [*names, OTHER]))
    for split in ("val", "predicted"):
        (tmp_path / split).mkdir()
    # Neither predictions nor a hidden file of macOS are scenes.
    copy(tmp_path, OTHER, OTHER, "predicted")
    copy(tmp_path, OTHER, f"._{OTHER}")
    for name, (apply, _) in zip(names, PROCESSED_DAMAGES, strict=True):
        apply(tmp_path, name)

    outcome, findings = verify(tmp_path)

    assert outcome.status == 3
    assert outcome.json["damaged_scenes"] == names
    assert verify(tmp_path, "--jobs", "2")[1] == findings
    for row, name, (_, pattern) in zip(findings, names, PROCESSED_DAMAGES, strict=True):
        assert row[:2] == ("error", name)
        assert row[2] in {f"train/{name}.npz", f"val/{name}.npz"}
        assert re.search(pattern, row[3]), (pattern, row)


# The selection, and the official lists.


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_only_selected_scenes_are_checked(kind, raw_dir, out_dir):
    path = raw_dir if kind == "raw" else out_dir
    raw_file(raw_dir, MESH.suffix, VAL).unlink()
    scene_file(out_dir, VAL, "val").unlink()

    for words, count in ((["--scenes", TRAIN, TEST], 2), (["--limit", "1"], 1)):
        outcome, findings = verify(path, *words)
        assert outcome.status == 0
        assert findings == []
        assert outcome.json["scenes"] == count
    for words in ([], ["--against", path]):
        outcome, [finding] = verify(path, "--scenes", TRAIN, "scene0002_00", *words)
        assert outcome.status == 3
        assert finding[:2] == ("error", "scene0002_00")
        assert "no such scene" in finding[3]
    assert outcome.json["splits"]["test"] == {"present": 1, "official": 100}
    fail(2, "has none of the selected scenes", "verify", raw_dir / "scans", "--splits", "test")


# Two copies.


def compare(path, other_path, *words):
    """Compare; return the status, the report, and the messages by scene."""
    outcome, findings = verify(path, "--against", other_path, *words)
    messages = {}
    for _, scene_id, _, message in findings:
        messages.setdefault(scene_id, []).append(message)
    return outcome.status, outcome.json, messages


def test_copies_with_the_same_scenes_are_the_same(whole_dir, packed_dir, raw_dir):
    archive = packed_dir / "processed.tar.zst"
    for name, other in (("processed", archive), ("raw", raw_dir), ("raw", archive)):
        status, report, messages = compare(whole_dir / name, other)
        assert status == 0
        assert report["scenes"] == 3
        assert messages == {}


def test_comparison_names_scenes_arrays_rows_and_classes_that_differ(whole_dir, out_dir):
    # In the copy: a scene is missing, 45 vertices have another class, and a point has moved.
    train = read_processed(scene_file(out_dir, TRAIN))
    val = read_processed(scene_file(out_dir, VAL, "val"))
    walls = np.flatnonzero(train.stored_labels == 1)[:45]
    labels = train.stored_labels.copy()
    labels[walls] = 2
    points = val.points + 0
    points[0] = 7
    meta = replace(val.meta, segments_source="computed", program_version="0")
    changed = replace(val, points=points, meta=meta)
    write_processed(out_dir, [replace(train, stored_labels=labels), changed])

    status, report, messages = compare(whole_dir / "processed", out_dir)
    text = run_main("verify", out_dir, "--against", whole_dir / "processed").stdout

    assert status == 3
    assert report["scenes"] == 2
    assert report["damaged_scenes"] == [*SCENES]
    assert report["classes"] == {"wall -> floor": 45}
    assert messages[TRAIN] == [f"labels: 45 of 600 rows differ, first row {walls[0]}: 1, there 2"]
    assert "points: 1 of 600 rows differ, first row 0" in messages[VAL][0]
    assert messages[VAL][1] == "meta: other segments_source"
    assert messages[TEST] == [f"this scene is in {whole_dir / 'processed'} only"]
    assert "45 vertices: floor -> wall\n" in text
    assert compare(whole_dir / "processed", out_dir, "--scenes", TEST)[0] == 3
    assert "3 scenes with errors, 4 errors, 0 notes" in text


def test_comparison_of_raw_trees_shows_what_a_changed_file_changes(whole_dir, raw_dir):
    to_table = edit(lambda value: value["segGroups"][0].update(label="table"))
    to_table(raw_file(raw_dir, AGGREGATION.suffix))
    raw_file(raw_dir, MESH.suffix, VAL).write_bytes(b"")

    status, report, messages = compare(whole_dir / "raw", raw_dir)

    assert status == 3
    assert messages.keys() == {TRAIN, VAL}
    names = [message.partition(":")[0] for message in messages[TRAIN]]
    assert names == ["labels", "nyu40_ids", "scannet_ids", "meta"]
    assert messages[TRAIN][-1] == "meta: other groups"
    assert "is empty" in messages[VAL][0]
    assert {change.partition(" -> ")[2] for change in report["classes"]} == {"table"}
    (raw_dir / "scannetv2-labels.combined.tsv").write_text("<html>")
    status, report, messages = compare(whole_dir / "raw", raw_dir)
    assert status == 3
    assert report["damaged_scenes"] == [*SCENES]


def test_comparison_shows_other_options_and_what_cannot_be_compared(
    whole_dir, packed_dir, tmp_path
):
    folder = tmp_path / "out"
    options = ("--align-axis", "--faces", "--scannet200", "--labels-from", "ply")
    run_main("process", whole_dir / "raw", "-o", folder, *options)
    assert verify(folder)[1] == []

    _, report, messages = compare(whole_dir / "processed", folder, "--scenes", TRAIN)

    names = {message.partition(":")[0] for message in messages[TRAIN]}
    assert names >= {"points", "normals", "meta"}
    assert "faces: only there" in messages[TRAIN]
    assert "options" in messages[TRAIN][-1]
    assert report["classes"] == {}
    write_release(tmp_path / "raw", [TRAIN], vertices=700)
    _, _, messages = compare(whole_dir / "raw", tmp_path / "raw", "--scenes", TRAIN)
    assert messages[TRAIN][0] == "points: float32 (600, 3), there float32 (700, 3)"
    outcome, _ = verify(whole_dir / "raw", "--against", packed_dir / "raw.tar.zst")
    assert outcome.status == 2
    assert "cannot be compared" in outcome.stderr
