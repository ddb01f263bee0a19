"""Tests of `verify`: damage of every kind, the official lists, and two copies compared."""

import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from archives import flip
from commands import (
    TEST,
    TRAIN,
    VAL,
    VERTEX_BYTES,
    edit_json,
    header_size,
    patch,
    raw_file,
    relative,
    run_main,
)
from large_files import DEPTH, make_stream, make_zip

from scannet_prep import official_scenes
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.json import to_plain
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import encode_processed, read_processed
from scannet_prep.raw.lock import digest_file, encode_lock
from scannet_prep.release.files import (
    AGGREGATION,
    FRAMES,
    INFO,
    LABELS_MESH,
    MESH,
    SEGMENTATION_KINDS,
    SEGMENTS,
)
from scannet_prep.synthetic import make_scene, write_release, write_scene

WEB_PAGE = "<html><body>404</body></html>"
STREAM = make_stream()
LABELS = make_zip()
DAMAGED_STREAM = STREAM.replace(DEPTH, DEPTH[:-1] + b"?", 1)
DAMAGED_LABELS = make_zip(0).replace(b"second", b"secund")
OTHER = str(official_scenes("train")[-1])


def verify(path, *words):
    """Run `verify --json`; return the status, and (severity, scene, file, message) of findings."""
    outcome = run_main("verify", path, "--json", *words)
    assert len(outcome.stdout.splitlines()) == 1
    assert outcome.json["exit_status"] == outcome.status
    findings = outcome.json.get("findings", [])
    keys = ("severity", "scene_id", "path", "message")
    rows = [[finding[key] for key in keys] for finding in findings]
    return outcome, [(row[0], row[1], os.path.relpath(row[2], path), row[3]) for row in rows]


# Damage to one scene of a raw tree: the kind of file (None: the folder of the scene), what damages
# it, and what the message of the only finding matches.


def edit(change):
    return lambda path: edit_json(path, change)


def edit_first_group(change):
    return edit(lambda value: change(value["segGroups"][0]))


def write(content):
    return lambda path: path.write_text(content)


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def set_ply_label(label, *vertices):
    def apply(path):
        for vertex in vertices:
            patch(path, header_size(path) + vertex * VERTEX_BYTES + 16, bytes([label, 0]))

    return apply


def remove_first_group(path):
    """Remove the group of the floor, whose vertices labels.ply still labels."""
    edit_json(path, lambda value: value["segGroups"].pop(0))


def replace_by_link(path):
    shutil.rmtree(path)
    path.symlink_to("nowhere")


def replace_by_pipe(path):
    shutil.rmtree(path)
    os.mkfifo(path)


def link_to_labels_mesh(path):
    path.unlink()
    path.symlink_to(f"{path.name[:12]}{LABELS_MESH.suffix}")


def copy_to_scans_test(path):
    shutil.copytree(path, path.parents[1] / "scans_test" / path.name)


STRETCHED = "axisAlignment = 2 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1\n"
NEW_GROUP = {"id": 99, "label": "dishrack", "segments": []}
OF_OTHER_SCENE = edit(lambda value: value.update(sceneId="scannet.scene0707_00"))
WITHOUT_GROUPS = edit(lambda value: value["segGroups"].clear())
ONE_SEGMENT_LESS = edit(lambda value: value["segIndices"].pop())
UNKNOWN_SEGMENTS = edit_first_group(lambda group: group["segments"].extend([700, 701]))
NULL_SEGMENT = edit_first_group(lambda group: group["segments"].append(None))
UNKNOWN_CATEGORY = edit(lambda value: value["segGroups"].append(NEW_GROUP))
RAW_DAMAGES = [
    *((kind, halve, "truncated|JSON") for kind in (MESH, LABELS_MESH, SEGMENTS, AGGREGATION)),
    *((kind, write(""), "empty") for kind in SEGMENTATION_KINDS),
    *((kind, write(WEB_PAGE), "page") for kind in SEGMENTATION_KINDS),
    *((kind, os.unlink, "no such file") for kind in (MESH, SEGMENTS)),
    (AGGREGATION, os.unlink, "no aggregation on disk"),
    (INFO, os.unlink, r"no \.txt on disk"),
    (MESH, link_to_labels_mesh, r"labels\.ply under the name of the mesh"),
    (None, replace_by_link, "link that leads nowhere"),
    (None, replace_by_pipe, "is not a folder"),
    (None, copy_to_scans_test, "has the same scene as.*scans_test"),
    (INFO, write(STRETCHED), "not a rotation"),
    (INFO, write("sceneType = Office\n"), "no axisAlignment"),
    (AGGREGATION, WITHOUT_GROUPS, "segGroups is empty"),
    (SEGMENTS, ONE_SEGMENT_LESS, "is for 599 vertices.* has 600"),
    (AGGREGATION, UNKNOWN_SEGMENTS, "segment ids of groups that no vertex has.* 2"),
    (AGGREGATION, remove_first_group, r"labels [\d,]+ vertices that belong to no group"),
    (LABELS_MESH, lambda path: patch(path, header_size(path), b"\x01"), "vertices lie elsewhere"),
    # A person, which no synthetic scene has.
    (LABELS_MESH, set_ply_label(31, 7, 11), "label.*contradicts the groups: 2"),
    (LABELS_MESH, set_ply_label(31, *range(40)), r"contradict \d+ of 600 labels.*vertex \d+: 31"),
    (SEGMENTS, OF_OTHER_SCENE, "'scene0707_00'"),
    (AGGREGATION, OF_OTHER_SCENE, "'scene0707_00'"),
    (LABELS_MESH, set_ply_label(50, 7), r"outside nyu40.*\(50\)"),
    (AGGREGATION, NULL_SEGMENT, "null"),
    (AGGREGATION, UNKNOWN_CATEGORY, "'dishrack'"),
]
# Oddities that are no damage.
NOTES = (r"outside nyu40.*\(50\)", "null", "'dishrack'")


def test_each_damage_to_a_raw_scene_is_one_finding_about_it(tmp_path):
    names = [str(name) for name in official_scenes("train")[: len(RAW_DAMAGES)]]
    write_release(tmp_path, [*names, TEST, VAL], vertices=600)
    for name, (kind, apply, _) in zip(names, RAW_DAMAGES, strict=True):
        folder = tmp_path / "scans" / name
        apply(folder if kind is None else folder / f"{name}{kind.suffix}")
    raw_file(tmp_path, INFO.suffix, TEST).unlink()

    outcome, findings = verify(tmp_path, "--limit", "1000")

    assert outcome.status == 3
    assert outcome.json["scenes"] == len(names) + 2
    rows = {scene_id: [] for scene_id in [*names, TEST, VAL]}
    for severity, scene_id, file, message in findings:
        rows[scene_id].append((severity, file, message))
    for name, (kind, _, pattern) in zip(names, RAW_DAMAGES, strict=True):
        assert len(rows[name]) == 1, (pattern, rows[name])
        severity, file, message = rows[name][0]
        assert severity == ("note" if pattern in NOTES else "error")
        assert re.search(pattern, message), (pattern, message)
        expected_files = {name, f"{name}{(kind or MESH).suffix}"}
        assert file.rpartition("/")[2] in expected_files | {f"{name}{LABELS_MESH.suffix}"}
    assert rows[TEST] == [("error", f"scans_test/{TEST}", "no .txt on disk")]
    assert rows[VAL] == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        # Copies with these errors are in use.
        ("\tcrate\t", "\tcreate\t", "1 raw categories: crate"),
        ("3\tfloor\t2", "3\tfloor\t0", "nyu40 id 0, expected ScanNet id 3, nyu40 id 2"),
        ("nyu40id", "nyu40", "nyu40id"),
    ],
)
def test_damage_to_the_label_map_is_one_error(raw_dir, old, new, words):
    path = raw_dir / "scannetv2-labels.combined.tsv"
    path.write_text(path.read_text().replace(old, new))

    outcome, [(severity, scene_id, file, message)] = verify(raw_dir)

    assert outcome.status == 3
    assert (severity, scene_id, file) == ("error", "", path.name)
    assert words in message


def test_intact_tree_has_no_findings_whatever_lies_beside_its_files(raw_dir):
    for name in (f"._{TRAIN}.txt", ".DS_Store", f"{TRAIN}_notes.txt"):
        (raw_dir / f"scans/{TRAIN}/{name}").touch()
    raw_file(raw_dir, ".sens").write_bytes(STREAM)
    raw_file(raw_dir, "_2d-label-filt.zip").write_bytes(LABELS)
    shutil.copy(raw_file(raw_dir, MESH.suffix), raw_file(raw_dir, "_vh_clean.ply"))
    groups = raw_file(raw_dir, "_vh_clean.aggregation.json")
    shutil.copy(raw_file(raw_dir, AGGREGATION.suffix), groups)
    edit_json(groups, lambda value: value["segGroups"][0]["segments"].append(1_000_000))

    outcome, findings = verify(raw_dir)

    assert (outcome.status, findings) == (0, [])
    assert outcome.json["scenes"] == 3
    # The folder of the scenes may be named, too.
    assert verify(raw_dir / "scans")[0].json["scenes"] == 2
    # Without the right groups, those of another mesh are of no use.
    raw_file(raw_dir, AGGREGATION.suffix).unlink()
    outcome, [(_, _, file, message)] = verify(raw_dir)
    assert (outcome.status, file) == (3, relative(TRAIN, "_vh_clean.aggregation.json"))
    assert "is for the high-resolution mesh" in message


def test_files_are_compared_with_scannet_lock_and_large_ones_are_read(tmp_path):
    write_release(tmp_path, [TRAIN, TEST], vertices=600)
    frames_name = f"tasks/{FRAMES.suffix}"
    (tmp_path / "tasks").mkdir()
    files = {
        relative(TRAIN, ".sens"): (DAMAGED_STREAM, "frame 0 of 3 is damaged: depth"),
        relative(TEST, "_2d-label-filt.zip"): (DAMAGED_LABELS, "'label-filt/1.png' in it"),
        relative(TEST, "_vh_clean.ply"): (b"ply", ""),
        frames_name: (DAMAGED_LABELS, "'label-filt/1.png' in it is damaged"),
        relative(TRAIN, MESH.suffix): (None, "is not the file that was recorded"),
        relative(TRAIN, SEGMENTS.suffix): (None, "no such file"),
    }
    records = {}
    for name, (data, _) in files.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        # The record is that of the damaged file: its digest does not reveal the damage.
        records[name] = digest_file(tmp_path / name)
    (tmp_path / "scannet.lock").write_bytes(encode_lock(records))
    # A colour that no other file contradicts; and a file that is gone.
    mesh_path = tmp_path / relative(TRAIN, MESH.suffix)
    patch(mesh_path, header_size(mesh_path) + 12, b"\x07")
    (tmp_path / relative(TRAIN, SEGMENTS.suffix)).unlink()

    outcome, findings = verify(tmp_path)

    assert outcome.status == 3
    assert {file for _, _, file, _ in findings} == set(files)
    for _, _, file, message in findings:
        assert files[file][1] in message
    # Files of no scene are left out if scenes are selected.
    assert {row[1] for row in verify(tmp_path, "--splits", "train")[1]} == {TRAIN}
    (tmp_path / "scannet.lock").write_text("x")
    assert "scannet.lock" in {file for _, _, file, _ in verify(tmp_path)[1]}


def test_tree_with_only_streams_or_tasks_needs_no_mesh(tmp_path):
    for scene_id in (TRAIN, TEST):
        raw_file(tmp_path, ".sens", scene_id).parent.mkdir(parents=True)
        raw_file(tmp_path, ".sens", scene_id).write_bytes(STREAM)

    outcome, findings = verify(tmp_path)

    assert outcome.status == 0
    assert outcome.json["size_bytes"] == 2 * len(STREAM)
    assert {severity for severity, *_ in findings} == {"note"}
    assert any("no scene has a mesh" in message for *_, message in findings)
    raw_file(tmp_path, ".sens").write_bytes(DAMAGED_STREAM)
    raw_file(tmp_path, ".sens", TEST).unlink()
    errors = [row[1] for row in verify(tmp_path)[1] if row[0] == "error"]
    assert errors == [TRAIN, TEST]
    # Only files of no scene.
    shutil.rmtree(tmp_path / "scans")
    shutil.rmtree(tmp_path / "scans_test")
    (tmp_path / "tasks").mkdir()
    (tmp_path / f"tasks/{FRAMES.suffix}").write_bytes(LABELS)
    assert verify(tmp_path)[0].status == 0
    (tmp_path / f"tasks/{FRAMES.suffix}").write_bytes(DAMAGED_LABELS)
    assert verify(tmp_path)[0].status == 3


# Damage to one scene of a processed folder: what damages it, given the folder and the scene, and
# what the message of the only finding matches.


def scene_file(folder, scene_id, split="train"):
    return folder / split / f"{scene_id}.npz"


def edit_array(key, change):
    """Change one array of a scene, with the record that belongs to the changed file."""

    def apply(folder, scene_id):
        (path,) = folder.glob(f"*/{scene_id}.npz")
        scene = read_processed(path)
        array = getattr(scene, key).copy()
        change(array)
        scene = replace(scene, **{key: array})
        data = b"".join(map(bytes, encode_processed(scene)))
        path.write_bytes(data)
        entry = to_plain(SceneEntry.from_scene(scene, Fingerprint.from_bytes(data)))
        edit_entry(**entry)(folder, scene_id)

    return apply


def edit_entry(**changes):
    def apply(folder, scene_id):
        path = folder / "manifest.json"
        edit_json(path, lambda value: value["scenes"][scene_id].update(changes))

    return apply


def write_foreign_file(folder, scene_id):
    np.savez(scene_file(folder, scene_id), points=np.zeros((3, 3)))


def copy_other_scene(folder, scene_id):
    shutil.copy(scene_file(folder, OTHER), scene_file(folder, scene_id))


def copy_to_val(folder, scene_id):
    shutil.copy(scene_file(folder, scene_id), scene_file(folder, scene_id, "val"))


def remove_entry(folder, scene_id):
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop(scene_id))


WRONG_COUNT = edit_entry(vertices=601, nyu40_counts={"0": 601}, scannet_counts={"0": 601})
PROCESSED_DAMAGES = [
    (edit_array("points", lambda a: a.__setitem__(5, np.nan)), "points are not all finite"),
    (edit_array("normals", lambda a: a.__setitem__(5, 0.5)), "normals of 1 vertices"),
    (edit_array("stored_labels", lambda a: a.__setitem__(5, a[5] ^ 1)), "labels disagree .* 1 ver"),
    (edit_array("nyu40_ids", lambda a: a.__setitem__(5, 41)), "nyu40_ids hold 41"),
    (edit_array("instances", lambda a: a.__setitem__(a.argmax(), 32_000)), "instances hold 32000"),
    (lambda folder, name: flip(scene_file(folder, name), 3000), "'points' is damaged"),
    (lambda folder, name: os.truncate(scene_file(folder, name), 5000), "is truncated"),
    (lambda folder, name: scene_file(folder, name).unlink(), "no such file, though the manifest"),
    (write_foreign_file, "another program|has no array"),
    (copy_other_scene, f"holds '{OTHER}'"),
    (copy_to_val, "is not in the manifest"),
    (remove_entry, "is not in the manifest"),
    (WRONG_COUNT, "600.*601"),
    (edit_entry(nyu40_counts={"0": 600}), "nyu40 counts"),
    (edit_entry(size_bytes=1), "size bytes"),
]


def test_each_damage_to_a_processed_scene_is_one_error_about_it(tmp_path):
    folder = tmp_path / "out"
    names = [str(name) for name in official_scenes("train")[: len(PROCESSED_DAMAGES)]]
    write_release(tmp_path / "raw", [*names, OTHER, VAL], vertices=600)
    assert run_main("process", tmp_path / "raw", "-o", folder).status == 0
    for name, (apply, _) in zip(names, PROCESSED_DAMAGES, strict=True):
        apply(folder, name)

    outcome, findings = verify(folder)

    assert outcome.status == 3
    assert {severity for severity, *_ in findings} == {"error"}
    assert outcome.json["damaged_scenes"] == sorted(names)
    for name, (_, pattern) in zip(names, PROCESSED_DAMAGES, strict=True):
        rows = [row for row in findings if row[1] == name]
        assert len(rows) == 1, rows
        assert rows[0][2] in {f"train/{name}.npz", f"val/{name}.npz"}
        assert re.search(pattern, rows[0][3]), (pattern, rows)


@pytest.mark.parametrize("options", ["--labels-from ply", "--scannet200 --align-axis --faces"])
def test_output_of_process_has_no_findings(whole_dir, tmp_path, options):
    folder = tmp_path / "out"
    assert run_main("process", whole_dir / "raw", "-o", folder, *options.split()).status == 0

    outcome, findings = verify(folder)

    assert (outcome.status, findings) == (0, [])
    assert outcome.json["scenes"] == 3
    assert outcome.json["size_bytes"] == sum(p.stat().st_size for p in folder.glob("*/*.npz"))


def test_scene_that_failed_in_processing_is_an_error(raw_dir, out_dir):
    raw_file(raw_dir, MESH.suffix).write_bytes(b"")
    assert run_main("process", raw_dir, "-o", out_dir).status == 3

    outcome, [(severity, scene_id, _, message)] = verify(out_dir)

    assert (outcome.status, severity, scene_id) == (3, "error", TRAIN)
    assert "this scene failed" in message
    assert "empty" in message


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_no_flipped_byte_of_an_archive_goes_unnoticed(packed_dir, tmp_path, kind):
    whole = packed_dir / f"{kind}.tar.zst"
    assert verify(whole)[0].status == 0
    path = tmp_path / "flipped.tar.zst"
    rng = np.random.default_rng(0)
    for offset in rng.integers(whole.stat().st_size, size=25):
        shutil.copy(whole, path)
        flip(path, int(offset))
        assert verify(path)[0].status in {1, 3}, offset
    os.truncate(path, path.stat().st_size // 2)
    assert verify(path)[0].status == 1


# The selection, and the official lists.


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_only_selected_scenes_are_checked(kind, raw_dir, out_dir):
    path = raw_dir if kind == "raw" else out_dir
    raw_file(raw_dir, MESH.suffix, VAL).unlink()
    scene_file(out_dir, VAL, "val").unlink()

    outcome, findings = verify(path, "--scenes", TRAIN, TEST)
    assert (outcome.status, findings, outcome.json["scenes"]) == (0, [], 2)
    outcome, findings = verify(path, "--splits", "test", "--limit", "5")
    assert (outcome.status, findings, outcome.json["scenes"]) == (0, [], 1)
    for words in (["--scenes", TRAIN, "scene0002_00"], ["--scenes", TRAIN, "--splits", "test"]):
        outcome, [(severity, scene_id, _, message)] = verify(path, *words)
        assert (outcome.status, severity) == (3, "error")
        assert scene_id == words[2] if len(words) == 3 else TRAIN
        assert "no such scene" in message


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_complete_makes_every_missing_scene_an_error(kind, whole_dir):
    outcome, findings = verify(whole_dir / kind, "--splits", "val", "--complete")

    assert outcome.status == 3
    assert len({scene_id for _, scene_id, _, _ in findings}) == 311
    assert outcome.json["splits"] == {"val": {"present": 1, "official": 312}}


def test_scene_of_no_official_list_is_an_error(raw_dir):
    write_scene(make_scene("scene0900_00", vertices=600), raw_dir)

    outcome, [(_, scene_id, _, message)] = verify(raw_dir)

    assert (outcome.status, scene_id) == (3, "scene0900_00")
    assert "none of the official split lists" in message


REFUSALS = [
    (["raw", "--complete", "--limit", "3"], 2, "a selection of single scenes cannot be complete"),
    (["raw", "--complete", "--against", "raw"], 2, "--complete is for checks"),
    (["raw", "--against", "processed"], 2, "cannot be compared"),
    (["processed", "--against", "processed", "--scenes", "scene0002_00"], 2, "in common"),
    (["nowhere"], 1, "nowhere: no such file or folder"),
    (["raw/scannetv2-labels.combined.tsv"], 1, "expected a .tar.zst archive"),
    (["processed/train"], 1, "holds neither raw nor processed scenes"),
]


@pytest.mark.parametrize(("words", "status", "message"), REFUSALS)
def test_what_cannot_be_checked_is_refused(whole_dir, words, status, message):
    outcome = run_main("verify", *words, cwd=whole_dir)

    assert outcome.status == status
    assert message in outcome.stderr


def test_split_without_scenes_is_refused(raw_dir):
    shutil.rmtree(raw_dir / "scans_test")
    outcome, _ = verify(raw_dir, "--splits", "test")
    assert outcome.status == 2


# The output.


def test_errors_go_to_standard_error_with_what_to_do(raw_dir):
    path = raw_file(raw_dir, MESH.suffix, TEST)
    path.unlink()

    outcome = run_main("verify", raw_dir)
    quiet = run_main("verify", raw_dir, "-q")

    assert (outcome.status, quiet.status) == (3, 3)
    *_, summary, counts = outcome.stdout.splitlines()
    assert "1 of 1,201 train, 1 of 312 val, 1 of 100 test" in summary
    assert counts.endswith("1 error, 0 notes")
    assert f"error: {path}: no such file\nhint: " in outcome.stderr
    assert (quiet.stdout, quiet.stderr) == ("", outcome.stderr)


def test_findings_are_the_same_for_any_number_of_workers(raw_dir):
    raw_file(raw_dir, MESH.suffix).write_bytes(b"")
    raw_file(raw_dir, SEGMENTS.suffix, VAL).unlink()

    one, two = (run_main("verify", raw_dir, "--json", "--jobs", jobs) for jobs in ("1", "2"))

    assert one.status == 3
    assert one.json | {"seconds": 0} == two.json | {"seconds": 0}


# Two copies.


def compare(path, other_path, *words):
    return run_main("verify", path, "--against", other_path, "--json", *words)


def test_copies_with_the_same_scenes_are_the_same(whole_dir, packed_dir, raw_dir):
    processed = whole_dir / "processed"
    for path, other in (
        (processed, packed_dir / "processed.tar.zst"),
        (whole_dir / "raw", raw_dir),
    ):
        outcome = compare(path, other)
        assert outcome.status == 0
        assert (outcome.json["same"], outcome.json["findings"]) == (3, [])


def test_comparison_names_scenes_arrays_rows_and_classes_that_differ(whole_dir, out_dir):
    # In the copy: a scene is missing, 45 vertices have another class, and a point has moved.
    scene_file(out_dir, TEST, "test").unlink()
    remove_entry(out_dir, TEST)
    scene = read_processed(scene_file(out_dir, TRAIN))
    walls = np.flatnonzero(scene.stored_labels == 1)[:45]
    edit_array("stored_labels", lambda labels: labels.__setitem__(walls, 2))(out_dir, TRAIN)
    edit_array("points", lambda points: points.__setitem__((3, 2), 7))(out_dir, VAL)

    outcome = compare(whole_dir / "processed", out_dir)
    text = run_main("verify", whole_dir / "processed", "--against", out_dir)

    result = outcome.json
    assert (outcome.status, text.status) == (3, 3)
    assert (result["same"], result["different"]) == (0, [TRAIN, VAL])
    assert (result["only_here"], result["only_there"]) == ([TEST], [])
    reverse = compare(out_dir, whole_dir / "processed").json
    assert (reverse["only_here"], reverse["only_there"]) == ([], [TEST])
    assert result["classes"] == [{"here": "wall", "there": "floor", "vertices": 45}]
    messages = {finding["scene_id"]: finding["message"] for finding in result["findings"]}
    assert f"labels: 45 of 600 rows differ, first row {walls[0]}: 1, there 2" in messages[TRAIN]
    assert "points: 1 of 600 rows differ, first row 3" in messages[VAL]
    assert "in this copy only" in messages[TEST]
    assert "scenes: 0 the same, 2 different, 1 only here, 0 only there" in text.stdout
    assert "wall" in text.stdout


def test_comparison_of_raw_trees_shows_what_a_changed_file_changes(whole_dir, raw_dir):
    edit_json(
        raw_file(raw_dir, AGGREGATION.suffix),
        lambda value: value["segGroups"][0].update(label="table"),
    )
    raw_file(raw_dir, MESH.suffix, VAL).write_bytes(b"")

    outcome = compare(whole_dir / "raw", raw_dir)

    assert outcome.status == 3
    assert outcome.json["different"] == [TRAIN, VAL]
    messages = "\n".join(finding["message"] for finding in outcome.json["findings"])
    assert "groups: " in messages
    assert "labels: " in messages
    assert "is empty" in messages
    assert {row["there"] for row in outcome.json["classes"]} == {"table"}


def test_comparison_with_a_damaged_label_map_is_an_error_for_each_scene(whole_dir, raw_dir):
    (raw_dir / "scannetv2-labels.combined.tsv").write_text("<html>")

    outcome = compare(whole_dir / "raw", raw_dir)

    assert (outcome.status, outcome.json["same"]) == (3, 0)
    assert {finding["scene_id"] for finding in outcome.json["findings"]} == {TRAIN, VAL, TEST}


def test_comparison_shows_other_options(whole_dir, tmp_path):
    folder = tmp_path / "out"
    run_main("process", whole_dir / "raw", "-o", folder, "--align-axis", "--faces", "--scannet200")

    outcome = compare(whole_dir / "processed", folder, "--scenes", TRAIN, VAL)

    first, *messages = [finding["message"] for finding in outcome.json["findings"]]
    assert first.startswith("was made with --no-scannet200 --no-align-axis --no-faces ")
    assert f"{folder} with --scannet200 --align-axis --faces " in first
    assert {"points", "normals", "faces"} <= {message.partition(":")[0] for message in messages}
    assert not [message for message in messages if "scannet200" in message]
    assert outcome.json["different"] == [TRAIN, VAL]
    assert outcome.json["classes"] == []
