"""Synthetic scenes have the format of the release to the byte, and what segmentation meets in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Verify
from tiny import Ply

from scannet_prep.errors import UsageError
from scannet_prep.labels import LABEL_MAP_NAME, SCANNET20, SCANNET200, builtin_label_map, read_label_map
from scannet_prep.raw.segments import Group
from scannet_prep.scene import SceneId
from scannet_prep.synthetic import SyntheticScene, make_scene, write_label_map, write_release, write_scene

TRAIN_ID, VAL_ID, TEST_ID, UNLISTED_ID = "scene0000_00", "scene0011_00", "scene0707_00", "scene9999_00"


@pytest.mark.parametrize(("vertices", "seed"), [(500, 0), (777, 1), (4000, 3)])
def test_a_scene_has_exactly_the_vertices_asked_for_and_has_no_findings(
    tmp_path: Path, verify: Verify, vertices: int, seed: int
) -> None:
    rows = builtin_label_map().rows
    scene = make_scene(VAL_ID, vertices=vertices, seed=seed)
    assert scene.positions.shape == scene.colors.shape == (vertices, 3)
    write_scene(scene, tmp_path)
    assert {item[2] for item in verify(tmp_path)[1]} == {LABEL_MAP_NAME}, "which is not there"
    used = set(scene.segment_ids.tolist())
    segments = [segment for group in scene.groups for segment in group.segment_ids]
    assert len(segments) == len(set(segments))
    assert vertices < 1300 or len(used) > len(segments), "some segments are in no group"
    assert all(group.segment_ids for group in scene.groups)
    assert [group.object_id for group in scene.groups] == list(range(len(scene.groups)))
    ids = [group.id for group in scene.groups]
    assert ids == sorted(set(ids)) != list(range(len(ids)))
    categories = [group.raw_category for group in scene.groups]
    kinds = {(rows[name].nyu40_id in SCANNET20.ids, rows[name].scannet_id in SCANNET200.ids) for name in categories}
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}
    assert {"floor", "wardrobe cabinet"} <= set(categories)
    assert categories.count("wall") == 4


def test_the_room_stands_on_the_floor_along_the_axes_with_statistics_like_those_of_the_release() -> None:
    scene = make_scene(TRAIN_ID, vertices=124_000)
    assert scene.axis_alignment is not None
    rotation = scene.axis_alignment[:3, :3]
    aligned = scene.positions @ rotation.T + scene.axis_alignment[:3, 3]
    assert aligned.min(0) == pytest.approx(0, abs=0.05)
    assert (aligned.max(0) / 2.5).round() == pytest.approx([2, 3, 1])  # of cells, and of the height
    assert rotation @ rotation.T == pytest.approx(np.eye(3), abs=3e-6)
    assert abs(rotation[0, 1]) > 0.1
    assert np.array_equal(scene.axis_alignment, scene.axis_alignment.round(6))
    ids, counts = np.unique(scene.segment_ids, return_counts=True)
    extents = [np.ptp(scene.positions[scene.segment_ids == name], axis=0).max() for name in ids[::20]]
    assert 90 < 124_000 / len(ids) < 150
    assert counts.max() > 1000
    assert np.median(extents) < 1.0
    assert 1.8 < len(scene.faces) / 124_000 < 1.95
    assert 0.3 < (scene.segment_ids[1:] != scene.segment_ids[:-1]).mean() < 0.5


def test_the_same_arguments_give_the_same_scene_and_wrong_ones_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    positions = make_scene(TRAIN_ID).positions
    for scene_id, seed in ((TRAIN_ID, 0), (TRAIN_ID, 1), ("scene0000_01", 0), ("scene0001_00", 0)):
        is_same = np.array_equal(make_scene(scene_id, seed=seed).positions, positions)
        assert is_same == ((scene_id, seed) == (TRAIN_ID, 0))
    for scene_id, vertices, seed, problem in (
        (TRAIN_ID, 499, 0, "cannot make a scene of 499 vertices"),
        (TRAIN_ID, 500, -1, "from seed -1"),
        ("scene1", 500, 0, "is not a scene id"),
    ):
        with pytest.raises(UsageError, match=problem):
            write_release(tmp_path / "raw", [scene_id], vertices=vertices, seed=seed)
    assert not (tmp_path / "raw").exists()


def test_files_have_the_layout_of_the_release(tmp_path: Path) -> None:
    scene = SyntheticScene(
        scene_id=SceneId(TRAIN_ID),
        positions=np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 2], [1, 0, 2], [0, 1, 2]], np.float32),
        colors=np.arange(18, dtype=np.uint8).reshape(6, 3),
        faces=np.array([[0, 1, 2], [3, 4, 5]], np.int32),
        segment_ids=np.array([2, 2, 2, 3, 3, 3], np.int32),
        groups=(Group("chair", (3, 2), 0, 0), Group('a "b"', (2,), 4, 1)),
        axis_alignment=np.array([[0.6, 0.8, 0, -0.0], [-0.8, 0.6, 0, 1.25], [0, 0, 1, -0.05], [0, 0, 0, 1]]),
    )
    start = str(write_scene(scene, tmp_path) / TRAIN_ID)
    ply = Ply(scene.positions.tolist(), scene.colors.tolist(), scene.faces.tolist())
    assert Path(f"{start}_vh_clean_2.ply").read_bytes() == ply.encode()
    colors = [(0, 0, 0)] * 3 + [SCANNET20.colors[4]] * 3  # of what is in no label map, and of a chair
    labels = replace(ply, colors=colors, labels=(0, 0, 0, 5, 5, 5))
    assert Path(f"{start}_vh_clean_2.labels.ply").read_bytes() == labels.encode()
    assert Path(f"{start}.aggregation.json").read_bytes() == (
        b'{\r\n"sceneId": "scannet.scene0000_00",\r\n"appId": "Aggregator.v2",\r\n"segGroups": [\r\n'
        b'\t{\r\n\t"id": 0,\r\n\t"objectId": 0,\r\n\t"segments": [3,2],\r\n\t"label": "chair"\r\n\t},\r\n'
        b'\t{\r\n\t"id": 4,\r\n\t"objectId": 1,\r\n\t"segments": [2],\r\n\t"label": "a \\"b\\""\r\n\t}\r\n'
        b'],\r\n"segmentsFile": "scannet.scene0000_00_vh_clean_2.0.010000.segs.json"}\r\n'
    )
    segments, info = (Path(start + name).read_bytes() for name in ("_vh_clean_2.0.010000.segs.json", ".txt"))
    assert segments.startswith(b'{\r\n"params": {\r\n\t"kThresh": "0.0001",\r\n')
    assert segments.endswith(b'}\r\n,\r\n"sceneId": "scene0000_00",\r\n"segIndices": [2,2,2,3,3,3]\r\n}\r\n')
    assert info.startswith(b"axisAlignment = 0.600000 0.800000 0.000000 0.000000 -0.800000 0.600000 0.000000 1.250000 ")
    assert info.endswith(b"\r\nsceneType = Bedroom / Hotel\r\n")


def test_files_of_a_scene_are_those_of_its_split_and_the_label_map_is_the_built_in_one(tmp_path: Path) -> None:
    scene = make_scene(TEST_ID, vertices=500)
    assert (scene.groups, scene.axis_alignment) == ((), None)
    assert write_scene(scene, tmp_path) == tmp_path / "scans_test" / TEST_ID
    assert (tmp_path / f"scans_test/{TEST_ID}/{TEST_ID}.txt").read_bytes().startswith(b"colorHeight")
    # A scene in no official list gets all files.
    assert write_scene(make_scene(UNLISTED_ID, vertices=500), tmp_path) == tmp_path / "scans" / UNLISTED_ID
    labels = [".aggregation.json", ".txt", "_vh_clean_2.0.010000.segs.json", "_vh_clean_2.labels.ply"]
    for scene_id, names in ((TEST_ID, [".txt"]), (UNLISTED_ID, labels)):
        found = sorted(path.name for path in tmp_path.glob(f"*/{scene_id}/*"))
        assert found == [scene_id + name for name in (*names, "_vh_clean_2.ply")]
    path = write_label_map(tmp_path / "new" / "folder")
    assert path.name == "scannetv2-labels.combined.tsv"
    assert read_label_map(path).rows == builtin_label_map().rows
