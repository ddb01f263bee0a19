"""Synthetic scenes have the format of the release to the byte, and its kinds of content."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Verify
from tiny import Ply

from scannet_prep.base.images import decode_gray
from scannet_prep.errors import UsageError
from scannet_prep.frames import SensorStream
from scannet_prep.raw.segments import Group
from scannet_prep.release.label_map import builtin_label_map, read_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.release.scene import SceneId
from scannet_prep.synthetic import (
    SyntheticScene,
    make_scene,
    write_label_map,
    write_release,
    write_scene,
)

TRAIN_ID = "scene0000_00"
VAL_ID = "scene0011_00"
TEST_ID = "scene0707_00"
UNLISTED_ID = "scene9999_00"

# As many vertices as an average scene of the release has.
USUAL_VERTICES = 124_000


@pytest.fixture(scope="module")
def usual_scene() -> SyntheticScene:
    return make_scene(TRAIN_ID, vertices=USUAL_VERTICES)


@pytest.fixture(params=[(500, 0), (777, 1), (4000, 3)], ids=str)
def scene(request: pytest.FixtureRequest) -> SyntheticScene:
    vertices, seed = request.param
    scene = make_scene(VAL_ID, vertices=vertices, seed=seed)
    assert scene.positions.shape == scene.colors.shape == (vertices, 3)
    return scene


def test_verify_finds_nothing_wrong_with_a_scene(
    scene: SyntheticScene, tmp_path: Path, verify: Verify
) -> None:
    write_scene(scene, tmp_path)

    assert verify(tmp_path) == (0, [])


def test_no_segment_is_in_two_groups(scene: SyntheticScene) -> None:
    segments = [segment for group in scene.groups for segment in group.segment_ids]
    assert len(segments) == len(set(segments))


def test_no_group_is_empty(scene: SyntheticScene) -> None:
    assert all(group.segment_ids for group in scene.groups)


def test_some_segments_are_in_no_group(usual_scene: SyntheticScene) -> None:
    grouped = {segment for group in usual_scene.groups for segment in group.segment_ids}
    assert set(usual_scene.segment_ids.tolist()) > grouped


def test_object_ids_count_from_0_and_group_ids_have_a_gap(scene: SyntheticScene) -> None:
    object_ids = [group.object_id for group in scene.groups]
    group_ids = [group.id for group in scene.groups]

    assert object_ids == list(range(len(scene.groups)))
    assert group_ids == sorted(set(group_ids))
    assert group_ids != object_ids


def test_raw_categories_are_of_both_label_sets_of_either_and_of_none(scene: SyntheticScene) -> None:
    rows = builtin_label_map().rows
    memberships = set()
    for group in scene.groups:
        ids = rows[group.raw_category]
        memberships.add((ids.nyu40_id in SCANNET20.ids, ids.scannet_id in SCANNET200.ids))

    assert memberships == {(True, True), (True, False), (False, True), (False, False)}


def test_every_scene_has_four_walls_and_a_floor(scene: SyntheticScene) -> None:
    categories = [group.raw_category for group in scene.groups]

    assert categories.count("wall") == 4
    assert categories.count("floor") == 1


def test_axis_alignment_puts_the_room_on_the_floor_along_the_axes(
    usual_scene: SyntheticScene,
) -> None:
    assert usual_scene.axis_alignment is not None
    rotation = usual_scene.axis_alignment[:3, :3]
    aligned = usual_scene.positions @ rotation.T + usual_scene.axis_alignment[:3, 3]

    assert aligned.min(axis=0) == pytest.approx(0, abs=0.05)
    # Two by three cells of 2.5 m, 2.6 m high.
    assert aligned.max(axis=0) == pytest.approx([5, 7.5, 2.6], abs=0.05)


def test_axis_alignment_is_a_rotation_with_six_decimals(usual_scene: SyntheticScene) -> None:
    assert usual_scene.axis_alignment is not None
    rotation = usual_scene.axis_alignment[:3, :3]

    assert rotation @ rotation.T == pytest.approx(np.eye(3), abs=3e-6)
    assert abs(rotation[0, 1]) > 0.1
    assert np.array_equal(usual_scene.axis_alignment, usual_scene.axis_alignment.round(6))


def test_number_of_faces_is_like_that_of_the_release(usual_scene: SyntheticScene) -> None:
    assert 1.8 < len(usual_scene.faces) / USUAL_VERTICES < 1.95


def test_sizes_of_segments_are_like_those_of_the_release(usual_scene: SyntheticScene) -> None:
    _, counts = np.unique(usual_scene.segment_ids, return_counts=True)

    assert 90 < USUAL_VERTICES / len(counts) < 150
    assert counts.max() > 1000


def test_most_segments_are_smaller_than_a_metre(usual_scene: SyntheticScene) -> None:
    extents = []
    for segment_id in np.unique(usual_scene.segment_ids)[::20]:
        positions = usual_scene.positions[usual_scene.segment_ids == segment_id]
        extents.append(np.ptp(positions, axis=0).max())

    assert np.median(extents) < 1.0


@pytest.mark.parametrize(
    ("scene_id", "seed", "is_same"),
    [
        (TRAIN_ID, 0, True),
        (TRAIN_ID, 1, False),
        ("scene0000_01", 0, False),
        ("scene0001_00", 0, False),
    ],
)
def test_scene_depends_on_its_id_and_seed_alone(scene_id: str, seed: int, is_same: bool) -> None:
    positions = make_scene(TRAIN_ID).positions
    assert np.array_equal(make_scene(scene_id, seed=seed).positions, positions) == is_same


@pytest.mark.parametrize(
    ("scene_id", "vertices", "seed", "problem"),
    [
        (TRAIN_ID, 499, 0, "cannot make a scene of 499 vertices"),
        (TRAIN_ID, 500, -1, "from seed -1"),
        ("scene1", 500, 0, "is not a scene id"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, scene_id: str, vertices: int, seed: int, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        write_release(tmp_path / "raw", [scene_id], vertices=vertices, seed=seed)
    assert not (tmp_path / "raw").exists()


@pytest.fixture
def small_scene() -> SyntheticScene:
    """Two triangles, each a segment; a chair of both, and a category that no label map has."""
    return SyntheticScene(
        scene_id=SceneId(TRAIN_ID),
        positions=np.array(
            [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 2], [1, 0, 2], [0, 1, 2]], np.float32
        ),
        colors=np.arange(18, dtype=np.uint8).reshape(6, 3),
        faces=np.array([[0, 1, 2], [3, 4, 5]], np.int32),
        segment_ids=np.array([2, 2, 2, 3, 3, 3], np.int32),
        groups=(Group("chair", (3, 2), 0, 0), Group('a "b"', (2,), 4, 1)),
        axis_alignment=np.array(
            [[0.6, 0.8, 0, -0.0], [-0.8, 0.6, 0, 1.25], [0, 0, 1, -0.05], [0, 0, 0, 1]]
        ),
    )


def test_meshes_have_the_layout_of_the_release(small_scene: SyntheticScene, tmp_path: Path) -> None:
    start = str(write_scene(small_scene, tmp_path) / TRAIN_ID)

    ply = Ply(
        small_scene.positions.tolist(), small_scene.colors.tolist(), small_scene.faces.tolist()
    )
    assert Path(f"{start}_vh_clean_2.ply").read_bytes() == ply.encode()
    # Black for what is in no label map, and the colour of a chair, whose nyu40 id is 5.
    palette = [(0, 0, 0)] * 3 + [SCANNET20.colors[4]] * 3
    labels_ply = replace(ply, colors=palette, labels=(0, 0, 0, 5, 5, 5))
    assert Path(f"{start}_vh_clean_2.labels.ply").read_bytes() == labels_ply.encode()


def test_aggregation_has_the_layout_of_the_release(
    small_scene: SyntheticScene, tmp_path: Path
) -> None:
    path = write_scene(small_scene, tmp_path) / f"{TRAIN_ID}.aggregation.json"
    assert path.read_bytes() == (
        b'{\r\n"sceneId": "scannet.scene0000_00",\r\n"appId": "Aggregator.v2",\r\n'
        b'"segGroups": [\r\n'
        b'\t{\r\n\t"id": 0,\r\n\t"objectId": 0,\r\n\t"segments": [3,2],\r\n'
        b'\t"label": "chair"\r\n\t},\r\n'
        b'\t{\r\n\t"id": 4,\r\n\t"objectId": 1,\r\n\t"segments": [2],\r\n'
        b'\t"label": "a \\"b\\""\r\n\t}\r\n'
        b'],\r\n"segmentsFile": "scannet.scene0000_00_vh_clean_2.0.010000.segs.json"}\r\n'
    )


def test_segments_have_the_layout_of_the_release(
    small_scene: SyntheticScene, tmp_path: Path
) -> None:
    path = write_scene(small_scene, tmp_path) / f"{TRAIN_ID}_vh_clean_2.0.010000.segs.json"
    assert path.read_bytes() == (
        b'{\r\n"params": {\r\n\t"kThresh": "0.0001",\r\n\t"segMinVerts": "20"\r\n}\r\n,\r\n'
        b'"sceneId": "scene0000_00",\r\n"segIndices": [2,2,2,3,3,3]\r\n}\r\n'
    )


def test_info_begins_with_the_axis_alignment_and_ends_with_the_scene_type(
    small_scene: SyntheticScene, tmp_path: Path
) -> None:
    content = (write_scene(small_scene, tmp_path) / f"{TRAIN_ID}.txt").read_bytes()

    assert content.startswith(
        b"axisAlignment = 0.600000 0.800000 0.000000 0.000000 -0.800000 0.600000 0.000000 1.250000 "
    )
    assert content.endswith(b"\r\nsceneType = Bedroom / Hotel\r\n")


def test_test_scene_has_neither_annotation_nor_alignment() -> None:
    scene = make_scene(TEST_ID, vertices=500)

    assert scene.groups == ()
    assert scene.axis_alignment is None


def test_test_scene_gets_a_mesh_and_metadata_only(tmp_path: Path) -> None:
    folder = write_scene(make_scene(TEST_ID, vertices=500), tmp_path)

    assert folder == tmp_path / "scans_test" / TEST_ID
    names = sorted(path.name.removeprefix(TEST_ID) for path in folder.iterdir())
    assert names == [".txt", "_vh_clean_2.ply"]


def test_metadata_of_a_test_scene_begins_without_an_alignment(tmp_path: Path) -> None:
    folder = write_scene(make_scene(TEST_ID, vertices=500), tmp_path)

    assert (folder / f"{TEST_ID}.txt").read_bytes().startswith(b"colorHeight")


def test_scene_in_no_official_list_gets_all_files(tmp_path: Path) -> None:
    folder = write_scene(make_scene(UNLISTED_ID, vertices=500), tmp_path)

    assert folder == tmp_path / "scans" / UNLISTED_ID
    names = sorted(path.name.removeprefix(UNLISTED_ID) for path in folder.iterdir())
    assert names == [
        ".aggregation.json",
        ".txt",
        "_vh_clean_2.0.010000.segs.json",
        "_vh_clean_2.labels.ply",
        "_vh_clean_2.ply",
    ]


def test_written_label_map_reads_back_as_the_built_in_one(tmp_path: Path) -> None:
    path = write_label_map(tmp_path / "new" / "folder")

    assert path.name == "scannetv2-labels.combined.tsv"
    assert read_label_map(path).rows == builtin_label_map().rows


@pytest.fixture(scope="module")
def frames_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a scene with four frames."""
    scene = make_scene(TRAIN_ID, vertices=2000)
    return write_scene(scene, tmp_path_factory.mktemp("frames"), frames=4)


def test_verify_finds_nothing_wrong_with_frames(frames_dir: Path, verify: Verify) -> None:
    assert verify(frames_dir.parents[1]) == (0, [])


def test_scene_with_frames_has_a_stream_and_2d_labels(frames_dir: Path) -> None:
    names = {path.name.removeprefix(TRAIN_ID) for path in frames_dir.iterdir()}

    assert names > {".sens", "_2d-label-filt.zip", "_2d-instance-filt.zip"}


def test_test_scene_with_frames_has_no_2d_labels(tmp_path: Path) -> None:
    folder = write_scene(make_scene(TEST_ID, vertices=500), tmp_path, frames=1)

    names = sorted(path.name.removeprefix(TEST_ID) for path in folder.iterdir())
    assert names == [".sens", ".txt", "_vh_clean_2.ply"]


def test_synthetic_stream_has_one_frame_without_tracking(frames_dir: Path) -> None:
    with SensorStream(frames_dir / f"{TRAIN_ID}.sens") as stream:
        assert stream.is_tracked.tolist() == [True, False, True, True]


def test_color_and_depth_of_synthetic_frames_differ_in_size(frames_dir: Path) -> None:
    with SensorStream(frames_dir / f"{TRAIN_ID}.sens") as stream:
        assert stream.color_camera.size != stream.depth_camera.size


def test_synthetic_depth_images_show_surfaces_within_the_room(frames_dir: Path) -> None:
    with SensorStream(frames_dir / f"{TRAIN_ID}.sens") as stream:
        depth = stream[0].depth()

    assert (depth > 0).mean() > 0.9
    assert 500 < np.median(depth) < 6000


def test_2d_labels_and_objects_cover_the_same_pixels(frames_dir: Path) -> None:
    images = {}
    for name in ("label", "instance"):
        with zipfile.ZipFile(frames_dir / f"{TRAIN_ID}_2d-{name}-filt.zip") as archive:
            assert archive.namelist() == [f"{name}-filt/{number}.png" for number in range(4)]
            images[name] = decode_gray(archive.read(f"{name}-filt/0.png"), (324, 242))

    assert images["label"].dtype == np.uint16
    assert images["instance"].dtype == np.uint8
    assert np.array_equal(images["label"] > 0, images["instance"] > 0)
