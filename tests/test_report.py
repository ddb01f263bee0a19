"""Reports: figures against those counted by hand, the page, and what two places have in common."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Outcome, edit_json, patch, raw_file, run_main
from tiny import SCENE_ID, write_tiny

from scannet_prep import SCANNET20, read_processed, tables
from scannet_prep.processed.scene import encode_processed
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, encode_lock
from scannet_prep.release.label_map import LABEL_MAP_NAME
from scannet_prep.stages.report.figures import MEASURES
from scannet_prep.stages.report.measures import SceneMeasures, measure_scene
from scannet_prep.synthetic import write_release
from scannet_prep.view.charts import AxisScale, draw_histogram

TRAIN, VAL, TEST = "scene0000_00", "scene0011_00", "scene0707_00"


def report(*words: str | Path) -> Outcome:
    return run_main("report", *words)


def make_plane(
    tilt_deg: float, turn_deg: float, height_m: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, normals and nyu40 ids of a floor of 4 x 4 m and a wall, turned about z after the floor was tilted."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.linspace(-2, 2, 30), np.linspace(-2, 2, 30)))
    floor = np.stack([x, y, np.tan(np.radians(tilt_deg)) * x + height_m], axis=1)
    wall = np.stack([x, np.full_like(x, 2), y + 2], axis=1)
    angle = np.radians(turn_deg)
    turn = np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )
    normals = np.repeat([[0, 0, 1], [0, -1, 0]], 900, axis=0)
    points = np.concatenate([floor, wall]) @ turn.T
    return (
        points.astype(np.float32),
        (normals @ turn.T).astype(np.float16),
        np.repeat([2, 1], 900).astype(np.uint8),
    )


@pytest.mark.parametrize(
    ("tilt", "turn", "height"), [(0, 0, 0), (4, 0, 0.3), (1.5, 7, -1), (30, -20, 0)]
)
def test_tilt_of_floor_and_turn_of_walls_are_those_that_the_room_was_made_with(
    tilt: float, turn: float, height: float
) -> None:
    found = measure_scene(*make_plane(tilt, turn, height), np.eye(4))
    assert found.floor_tilt_deg == pytest.approx(tilt, abs=0.01)
    assert found.wall_turn_deg == pytest.approx(turn, abs=0.02)
    assert found.floor_height_m == pytest.approx(height, abs=0.001)


def test_floor_is_measured_in_the_aligned_frame_and_without_what_lies_off_it() -> None:
    points, normals, ids = make_plane(0, 0, 0)
    points[:60, 2] += np.linspace(
        0.3, 1.5, 60, dtype=np.float32
    )  # labeled as floor, on one side of the room
    assert measure_scene(points, normals, ids, np.eye(4)).floor_tilt_deg == pytest.approx(
        0, abs=0.05
    )
    tilted = np.array([[0.8, 0, -0.6, 0], [0, 1, 0, 0], [0.6, 0, 0.8, 2], [0, 0, 0, 1]])
    scan = (np.c_[points, np.ones(len(points))] @ np.linalg.inv(tilted).T)[:, :3].astype(np.float32)
    found = measure_scene(scan, normals @ tilted[:3, :3], ids, tilted)
    assert found.floor_tilt_deg == pytest.approx(0, abs=0.05)
    assert found.floor_height_m == pytest.approx(0, abs=0.02)


def test_sizes_are_counted_by_hand_and_too_few_vertices_tell_nothing_of_the_floor() -> None:
    points = np.array([[0, 0, 0], [0.05, 0.05, 3], [0.25, 0, 1], [1.01, 2.01, -1]], np.float32)
    ids = np.full(4, 2, np.uint8)
    assert measure_scene(points, np.zeros((4, 3)), ids, np.eye(4)) == SceneMeasures(
        1.01, 2.01, 4.0, 0.03
    )
    line = np.zeros((500, 3), np.float32)
    line[:, 0] = np.linspace(0, 5, 500)
    assert (
        measure_scene(line, np.zeros((500, 3)), np.full(500, 2, np.uint8), np.eye(4)).floor_tilt_deg
        is None
    )


def test_figures_of_a_tiny_scene_are_those_counted_by_hand(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    found = report(tmp_path, "--json").json["report"]
    row = found["splits"]["train"]
    assert (row["scenes"], row["vertices"], row["annotated"], row["labeled"]) == (1, 6, 6, 5)
    classes = {item["name"]: item for item in found["label_sets"]["ScanNet20"]}
    columns = ("train_id", "raw_id", "train", "val", "scenes", "share")
    assert [classes["wall"][key] for key in columns] == [0, 1, 3, 0, 1, 0.5]
    assert [classes["floor"][key] for key in columns[2:5]] == [2, 0, 1]
    assert sum(item["train"] + item["val"] for item in found["label_sets"]["ScanNet200"]) == 5
    (scene,) = found["table"]
    assert [scene[key] for key in ("scene", "vertices", "x_m", "y_m", "z_m", "area_m2")] == [
        SCENE_ID,
        6,
        1,
        1,
        1,
        0.04,
    ]
    assert scene["floor_tilt_deg"] is None
    assert found["measures"]["labeled"] == {"min": 0.8333, "median": 0.8333, "max": 0.8333}


def test_distribution_counts_vertices_by_split_and_leaves_test_out(whole_dir: Path) -> None:
    found = tables.distribution(whole_dir / "processed", SCANNET20)
    scenes = {
        split: read_processed(next((whole_dir / "processed" / split).glob("*.npz")))
        for split in ("train", "val")
    }
    for split, scene in scenes.items():
        assert found[split].tolist() == [
            np.count_nonzero(scene.labels == train_id) for train_id in range(20)
        ]
    assert found.share.sum() == pytest.approx(
        sum(np.count_nonzero(it.labels >= 0) for it in scenes.values()) / 1200
    )


def test_folder_archive_and_raw_tree_of_the_same_scenes_have_the_same_figures(
    whole_dir: Path, packed_dir: Path
) -> None:
    folder, raw = (
        report(whole_dir / name, "--json").json["report"] for name in ("processed", "raw")
    )
    assert folder["label_sets"] == raw["label_sets"]
    columns = [key for key in folder["table"][0] if key != "size_bytes"]
    rows = [[[row[key] for key in columns] for row in found["table"]] for found in (folder, raw)]
    assert rows[0] == rows[1]
    assert [row["scene"] for row in folder["table"]] == [TRAIN, VAL, TEST]
    archive = report(packed_dir / "processed.tar.zst", "--json").json["report"]
    assert {key: archive[key] for key in ("label_sets", "splits", "table")} == {
        key: folder[key] for key in ("label_sets", "splits", "table")
    }


def test_scenes_that_stand_out_are_named_with_the_reason(out_dir: Path, tmp_path: Path) -> None:
    write_release(tmp_path / "raw", [TRAIN], vertices=2000)
    info = raw_file(tmp_path / "raw", ".txt")
    angle = np.radians(8)
    tilted = [
        1,
        0,
        0,
        0,
        0,
        np.cos(angle),
        -np.sin(angle),
        0,
        0,
        np.sin(angle),
        np.cos(angle),
        0,
        0,
        0,
        0,
        1,
    ]
    text = " ".join(f"{number:.6f}" for number in tilted)
    info.write_text(re.sub("axisAlignment = .*", f"axisAlignment = {text}", info.read_text()))
    found = report(tmp_path / "raw", "--json").json["report"]
    assert list(found["odd"]) == [TRAIN]
    assert re.search(r"floor tilt, degrees: (8|7\.9)", found["odd"][TRAIN])
    assert "limit: 3" in found["odd"][TRAIN]
    assert found["gallery"][TRAIN].startswith("odd: ")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a raw tree whose annotator wrote markup, and of which one scene is damaged."""
    root = tmp_path_factory.mktemp("page")
    write_release(root / "<raw>", [TRAIN, VAL, TEST], vertices=600)
    edit_json(raw_file(root / "<raw>", ".aggregation.json"), _write_markup)
    patch(raw_file(root / "<raw>", "_vh_clean_2.ply", VAL), -40, b"")
    data = raw_file(root / "<raw>", "_vh_clean_2.ply", VAL).read_bytes()
    raw_file(root / "<raw>", "_vh_clean_2.ply", VAL).write_bytes(data[:-100])
    (root / "<raw>" / LABEL_MAP_NAME).unlink()
    outcome = report(root / "<raw>", "-o", root / "report.html")
    assert (outcome.status, VAL in outcome.stdout) == (3, True)
    assert "the built-in label map is used" in outcome.stdout
    return (root / "report.html").read_text(encoding="utf-8")


def _write_markup(value: Any) -> None:
    value["segGroups"][0]["label"] = "<script>alert('&quot;')</script>"


def test_page_loads_nothing_and_escapes_what_annotators_and_folders_are_called(page: str) -> None:
    assert not set(re.findall(r"<([a-z]+)", page)) & {"script", "iframe", "object", "a"}
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in page
    sources = re.findall(r' src="([^"]*)"', page)
    assert len(sources) == 2
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)
    tags = " ".join(re.findall(r"<[a-z][^>]*>", page))
    assert not re.search(r" (on[a-z]+|style)=", tags)
    assert re.findall(r" href=\"([^\"]*)\"", tags) == ["data:,"]
    assert "url(" not in page
    assert "&lt;script&gt;alert('&amp;quot;')" in page
    assert "<raw>" not in page
    assert "&lt;raw&gt;" in page


def test_page_names_the_damaged_scene_with_advice_and_shows_the_others(page: str) -> None:
    advice = (f"{VAL}_vh_clean_2.ply", "download it again", "errors: 1;")
    for words in (*advice, TRAIN, TEST, "ScanNet200", "vertices", "degrees"):
        assert words in page, words


def test_scales_begin_and_end_at_round_numbers_around_all_values() -> None:
    assert AxisScale.over([3, 97], 100).ticks == [0, 20, 40, 60, 80, 100]
    assert AxisScale.over([20, 3000], 300, is_log=True).ticks == [10, 100, 1000, 10000]
    assert AxisScale.over([20, 3000], 300, is_log=True)(100) == 100
    assert AxisScale.over([5, 5], 100).ticks[0] <= 5 < AxisScale.over([5, 5], 100).ticks[-1]
    bars = draw_histogram([1, 2, 3, 10, 100], "things", is_log=True).iter("rect")
    assert (
        sum(int((bar[0].text or "").rpartition(" ")[2]) for bar in bars if bar.get("height") != "0")
        == 5
    )


@pytest.fixture
def other(whole_dir: Path, tmp_path: Path) -> Path:
    """A copy of the processed folder."""
    return Path(shutil.copytree(whole_dir / "processed", tmp_path / "other"))


def compare(here: Path, there: Path) -> tuple[int, Any]:
    outcome = report(here, "--against", there, "--json")
    return outcome.status, outcome.json.get("comparison", outcome.json)


def test_copies_archives_and_their_manifests_hold_the_same_data(
    whole_dir: Path, packed_dir: Path, other: Path
) -> None:
    here, archive = whole_dir / "processed", packed_dir / "processed.tar.zst"
    manifest = other / "manifest.json"
    for mine, theirs in (
        (here, archive),
        (here, manifest),
        (here, other),
        (manifest, archive),
        (manifest, manifest),
    ):
        status, found = compare(mine, theirs)
        assert (status, found["same"], found["differences"]) == (0, 3, {}), (mine, theirs)


def test_arrays_options_and_inputs_that_differ_are_told_scene_by_scene(
    whole_dir: Path, raw_dir: Path, tmp_path: Path
) -> None:
    info = raw_file(raw_dir, ".txt")
    info.write_text(info.read_text() + "note = 1\n")
    assert run_main("process", raw_dir, "-o", tmp_path / "a", "--align-axis", "--faces").status == 0
    status, found = compare(whole_dir / "processed", tmp_path / "a")
    differences = found["differences"]
    assert (status, found["same"], list(differences)) == (3, 0, [TRAIN, VAL, TEST])
    assert differences[VAL]["options align_axis"] == ["False", "True"]
    assert {"array points", "array normals", "array faces"} <= set(differences[VAL])
    assert not {"array labels", "array colors"} & set(differences[VAL])
    inputs = {f"inputs {info.name} size_bytes", f"inputs {info.name} crc32"}
    assert set(differences[TRAIN]) - set(differences[VAL]) == inputs
    on_record = compare(whole_dir / "processed", tmp_path / "a/manifest.json")[1]["differences"][
        VAL
    ]
    assert {"crc32", "options align_axis", "options faces"} <= set(on_record)


def test_scenes_that_only_one_place_has_are_named(whole_dir: Path, other: Path) -> None:
    edit_json(other / "manifest.json", lambda value: value["scenes"].pop(TEST))
    status, found = compare(whole_dir / "processed", other)
    assert (status, found["only_here"], found["only_there"], found["same"]) == (3, [TEST], [], 2)
    assert compare(other / "manifest.json", whole_dir / "processed")[1]["only_there"] == [TEST]


def test_another_version_of_the_program_does_not_count(whole_dir: Path, other: Path) -> None:
    path = other / f"train/{TRAIN}.npz"
    scene = read_processed(path)
    path.write_bytes(
        b"".join(encode_processed(replace(scene, meta=replace(scene.meta, program_version="9.9"))))
    )
    outcome = report(whole_dir / "processed", "--against", other)
    assert (outcome.status, "the same data; same: 3" in outcome.stdout) == (0, True)


def test_files_count_and_not_what_their_manifest_records(whole_dir: Path, other: Path) -> None:
    path = other / f"val/{VAL}.npz"
    patch(path, path.stat().st_size // 2, b"\xff\x00\xff")
    edit_json(
        other / "manifest.json", lambda value: value["scenes"][TRAIN].update(crc32="00000000")
    )
    status, found = compare(whole_dir / "processed", other)
    assert (status, [item["scene_id"] for item in found["findings"]]) == (3, [VAL])
    assert (found["same"], found["differences"]) == (2, {})
    told = report(whole_dir / "processed", "--against", other).stdout
    assert f"  {VAL}: error; {path}: " in told  # of which of the two places
    assert told.endswith("same: 2, different: 0, only here: 0, only there: 0, errors: 1\n")
    found = compare(whole_dir / "processed", other / "manifest.json")[1]["differences"]
    assert {name: list(facts) for name, facts in found.items()} == {TRAIN: ["crc32"]}
    outcome = report(other)
    assert (outcome.status, outcome.stdout.count("error: ")) == (3, 2), outcome.stdout


def test_raw_trees_are_compared_file_by_file_also_with_a_lock_alone(
    whole_dir: Path, raw_dir: Path, tmp_path: Path
) -> None:
    lock = tmp_path / LOCK_NAME
    files = [path for path in raw_dir.rglob("*") if path.is_file()]
    lock.write_bytes(
        encode_lock({path.relative_to(raw_dir).as_posix(): digest_file(path) for path in files})
    )
    assert compare(whole_dir / "raw", lock)[0] == 0
    mesh = raw_file(raw_dir, "_vh_clean_2.ply", TEST)
    patch(mesh, -1, b"\x07")
    (raw_dir / "scannetv2-labels.combined.tsv").unlink()
    raw_file(raw_dir, "_vh_clean_2.labels.ply").unlink()
    status, found = compare(raw_dir, lock)
    assert (status, found["same"], list(found["differences"])) == (3, 1, [TRAIN, TEST, "label map"])
    assert list(found["differences"][TEST]) == [f"{mesh.name} sha256"]
    assert found["differences"][TRAIN][f"{TRAIN}_vh_clean_2.labels.ply sha256"][0] == "-"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# nothing\n", "names no scene: there is nothing to compare"),
        (
            '{"format": "scannet_prep processed folder", "format_version": 2, "options": {}}',
            "names no scene",
        ),
        (
            '{"format": "scannet_prep processed folder", "format_version": 1}',
            "has format 1, expected 2",
        ),
        (
            '{"format": "other", "format_version": 1}',
            "not the manifest of a processed folder: Invalid enum value 'other'",
        ),
        ("hello", "line 1 reads 'hello', expected digest, size and path"),
    ],
)
def test_nothing_is_not_compared_with_nothing(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "record"
    path.write_text(content)
    outcome = report(path, "--against", path)
    assert (outcome.status, words in outcome.stderr) == (1, True), outcome.stderr


def write_lock(path: Path, files: dict[str, bytes], raw_dir: Path) -> Path:
    """Write a record of a raw tree, with other content for some of its files."""
    entries = {}
    for file in raw_dir.rglob("*"):
        if file.is_file():
            entries[file.relative_to(raw_dir).as_posix()] = digest_file(file)
    for name, content in files.items():
        entries[name] = LockEntry(hashlib.sha256(content).hexdigest(), len(content))
    path.write_bytes(encode_lock(entries))
    return path


def test_stream_that_differs_from_the_record_is_named(raw_dir: Path, tmp_path: Path) -> None:
    stream = raw_file(raw_dir, ".sens")
    stream.write_bytes(b"here")
    name = stream.relative_to(raw_dir).as_posix()
    lock = write_lock(tmp_path / "their.lock", {name: b"there"}, raw_dir)

    status, found = compare(raw_dir, lock)

    assert status == 3
    assert list(found["differences"]) == [TRAIN]
    assert set(found["differences"][TRAIN]) == {
        f"{stream.name} sha256",
        f"{stream.name} size_bytes",
    }


def test_stream_that_only_one_place_has_is_no_difference(raw_dir: Path, tmp_path: Path) -> None:
    name = raw_file(raw_dir, ".sens").relative_to(raw_dir).as_posix()
    lock = write_lock(tmp_path / "their.lock", {name: b"there"}, raw_dir)
    assert compare(raw_dir, lock)[0] == 0


def test_file_in_tasks_that_differs_from_the_record_is_named(raw_dir: Path, tmp_path: Path) -> None:
    name = "tasks/limited-bboxes.zip"
    (raw_dir / "tasks").mkdir()
    (raw_dir / name).write_bytes(b"here")
    lock = write_lock(tmp_path / "their.lock", {name: b"there"}, raw_dir)

    status, found = compare(raw_dir, lock)

    assert status == 3
    assert list(found["differences"]["tasks"]) == [name]


def test_raw_and_processed_scenes_cannot_be_compared(whole_dir: Path) -> None:
    outcome = report(whole_dir / "raw", "--against", whole_dir / "processed")
    assert (outcome.status, "they cannot be compared" in outcome.stderr) == (2, True)


def test_places_that_are_none_are_refused_before_anything_is_written(
    whole_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    export = tmp_path / "export"
    assert (
        run_main("export", whole_dir / "processed", "--format", "octformer", "-o", export).status
        == 0
    )
    page = tmp_path / "page/report.html"
    for place, words in (
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "empty", "holds neither raw nor processed scenes"),
        (export, "is an export, expected raw or processed scenes"),
    ):
        for more in ((), ("--against", whole_dir / "processed")):
            outcome = report(place, "-o", page, *more)
            assert (outcome.status, words in outcome.stderr) == (1, True), outcome.stderr
            assert "hint: " in outcome.stderr
    assert report(whole_dir / "processed", "-o", tmp_path / "page.pdf").status == 2
    assert not page.parent.exists()


def test_folder_that_is_not_finished_is_shown_with_the_error(other: Path) -> None:
    (other / "unfinished.txt").write_text("")
    (other / f"train/{TRAIN}.npz").unlink()
    found = report(other, "--json")
    assert (found.status, len(found.json["report"]["table"])) == (3, 3)
    messages = [item["message"] for item in found.json["report"]["findings"]]
    assert any("processing has not finished" in message for message in messages)
    assert any("no such file" in message for message in messages)
    assert all(item["hint"] for item in found.json["report"]["findings"])


def test_report_of_an_older_folder_names_no_label_set_that_it_does_not_know(other: Path) -> None:
    edit_json(other / "manifest.json", lambda value: value.update(format_version=1))
    outcome = report(other)
    assert outcome.status == 3
    assert outcome.stdout.startswith(f"{other}: processed scenes\n")
    assert "it has format 1, expected 2" in outcome.stdout


def test_summary_and_json_are_plain_text_on_standard_output(whole_dir: Path) -> None:
    outcome = run_main("report", whole_dir / "processed", "--no-progress")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith(
        f"{whole_dir / 'processed'}: processed scenes, ScanNet20, frame of the scan\n"
    )
    assert "train       1     1,201" in outcome.stdout
    (line,) = report(whole_dir / "processed", "--json").stdout.splitlines()
    assert set(json.loads(line)) == {"exit_status", "command", "report", "comparison", "output"}
    assert set(MEASURES) <= set(json.loads(line)["report"]["table"][0])
