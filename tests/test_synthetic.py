import json
from dataclasses import replace

import numpy as np
import pytest
from plyfile import PlyData

from scannet_prep.errors import UnknownSceneError, UsageError
from scannet_prep.labels import SCANNET20, SCANNET200, builtin_label_map, read_label_map
from scannet_prep.scene import SceneId
from scannet_prep.synthetic import (
    SyntheticGroup,
    SyntheticScene,
    make_scene,
    with_known_irregularity,
    write_label_map,
    write_release,
    write_scene,
)

TRAIN_ID, VAL_ID, TEST_ID, UNLISTED_ID = "scene0000_00", "scene0011_00", "scene0707_00", "scene9999_00"
MESH_HEADER = (
    "ply\nformat binary_little_endian 1.0\ncomment VCGLIB generated\nelement vertex {vertices}\n"
    "property float x\nproperty float y\nproperty float z\n"
    "property uchar red\nproperty uchar green\nproperty uchar blue\nproperty uchar alpha\n{label}"
    "element face {faces}\nproperty list uchar int vertex_indices\nend_header\n"
)


@pytest.fixture(scope="module")
def scene():
    return make_scene(TRAIN_ID)


@pytest.fixture(scope="module")
def scene_dir(scene, tmp_path_factory):
    return write_scene(scene, tmp_path_factory.mktemp("raw"))


def tiny_scene(scene_id, groups=(), **changes):
    """Two segments of three vertices, two triangles; small enough to write its files down."""
    tiny = SyntheticScene(
        scene_id=SceneId(scene_id),
        positions=np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 2], [1, 0, 2], [0, 1, 2]], np.float32),
        colors=np.arange(18, dtype=np.uint8).reshape(6, 3),
        faces=np.array([[0, 1, 2], [3, 4, 5]], np.int32),
        segment_ids=np.array([2, 2, 2, 3, 3, 3], np.int32),
        groups=groups,
        axis_alignment=np.array([[0.6, 0.8, 0, -0.0], [-0.8, 0.6, 0, 1.25], [0, 0, 1, -0.05], [0, 0, 0, 1]]),
        scene_type="Bedroom / Hotel",
    )
    return replace(tiny, **changes)


def labels_by_rule(scene):
    """Nyu40 ids by steps 5 of the specification, one vertex and one group at a time."""
    rows = builtin_label_map().rows
    labels = []
    for segment in scene.segment_ids.tolist():
        label, seen = 0, []
        for group in scene.groups:
            key = (group.raw_category, set(group.segments))
            if key in seen:
                continue
            seen.append(key)
            if segment in group.segments:
                label = rows[group.raw_category].nyu40_id if group.raw_category in rows else 0
        labels.append(label)
    return labels


def assert_equal_scenes(one, other):
    for name in ("positions", "colors", "faces", "segment_ids", "axis_alignment"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.scene_id, one.groups, one.scene_type) == (other.scene_id, other.groups, other.scene_type)


@pytest.mark.parametrize("vertices", [500, 501, 777, 1299, 1300, 4000, 30_011])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_scene_has_exactly_the_vertices_asked_for_and_is_consistent(vertices, seed):
    scene = make_scene(VAL_ID, vertices=vertices, seed=seed)

    assert scene.positions.shape == scene.colors.shape == (vertices, 3)
    assert scene.segment_ids.shape == (vertices,)
    assert (scene.positions.dtype, scene.colors.dtype) == (np.float32, np.uint8)
    assert (scene.faces.dtype, scene.segment_ids.dtype) == (np.int32, np.int32)
    assert np.isfinite(scene.positions).all()
    assert scene.faces.min() >= 0
    assert scene.faces.max() < vertices
    assert all(len(set(face)) == 3 for face in scene.faces.tolist())
    used = set(scene.segment_ids.tolist())
    assert all(scene.segment_ids[segment] == segment for segment in used)
    assert all(group.segments and used.issuperset(group.segments) for group in scene.groups)
    assert all(len(group.segments) == len(set(group.segments)) for group in scene.groups)
    assert [group.id for group in scene.groups] == list(range(len(scene.groups)))


def test_the_same_arguments_give_the_same_scene(scene):
    assert_equal_scenes(make_scene(TRAIN_ID), scene)


@pytest.mark.parametrize(("scene_id", "seed"), [(TRAIN_ID, 1), ("scene0000_01", 0), ("scene0001_00", 0)])
def test_another_id_or_seed_gives_another_scene(scene, scene_id, seed):
    other = make_scene(scene_id, seed=seed)

    assert not np.array_equal(other.positions, scene.positions)
    assert not np.array_equal(other.axis_alignment, scene.axis_alignment)


def test_aligned_rooms_stand_on_the_floor_with_walls_along_the_axes():
    scene = make_scene(TRAIN_ID, vertices=20_000)
    aligned = scene.positions @ scene.axis_alignment[:3, :3].T + scene.axis_alignment[:3, 3]

    np.testing.assert_allclose(aligned.min(0), 0, atol=0.05)
    np.testing.assert_allclose(aligned.max(0), [5.0, 5.0, 2.6], atol=0.05)
    rotation = scene.axis_alignment[:3, :3]
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=3e-6)
    assert abs(rotation[0, 1]) > 0.1
    np.testing.assert_array_equal(scene.axis_alignment, scene.axis_alignment.round(6))


def test_walls_floor_and_ceiling_face_into_the_room():
    scene = make_scene(TRAIN_ID, vertices=20_000)
    aligned = scene.positions @ scene.axis_alignment[:3, :3].T + scene.axis_alignment[:3, 3]
    corners = aligned[scene.faces]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    middle = aligned.mean(0)
    shell = {name for group in scene.groups if group.raw_category in {"floor", "ceiling"} for name in group.segments}

    on_shell = np.isin(scene.segment_ids[scene.faces], list(shell)).all(1)
    inwards = ((middle - corners.mean(1)) * normals)[:, 2]

    assert on_shell.sum() > 1000
    assert (inwards[on_shell] > 0).mean() > 0.99


def test_segments_are_patches_of_one_place():
    scene = make_scene(TRAIN_ID, vertices=124_000)
    ids, counts = np.unique(scene.segment_ids, return_counts=True)
    extents = [np.ptp(scene.positions[scene.segment_ids == name], axis=0).max() for name in ids[::10]]

    assert 90 < 124_000 / len(ids) < 150
    assert 50 < np.median(counts) < 110
    assert np.median(extents) < 1.0


def test_statistics_are_like_those_of_the_release():
    scene = make_scene(TRAIN_ID, vertices=124_000)

    assert 1.8 < len(scene.faces) / 124_000 < 1.95
    changes = scene.segment_ids[1:] != scene.segment_ids[:-1]
    assert 0.3 < changes.mean() < 0.5
    assert (scene.positions.min(0) > -0.1).all()


def test_every_scene_has_categories_of_all_kinds_shared_segments_and_unannotated_vertices():
    rows = builtin_label_map().rows
    for seed in range(5):
        scene = make_scene(TRAIN_ID, seed=seed)
        categories = [group.raw_category for group in scene.groups]
        kinds = {(rows[name].nyu40_id in SCANNET20.ids, rows[name].scannet_id in SCANNET200.ids) for name in categories}
        floor = next(set(group.segments) for group in scene.groups if group.raw_category == "floor")
        walls = [set(group.segments) for group in scene.groups if group.raw_category == "wall"]
        grouped = {segment for group in scene.groups for segment in group.segments}

        assert kinds == {(True, True), (True, False), (False, True), (False, False)}
        assert "wardrobe cabinet" in categories
        assert len(walls) == 4
        assert all(floor & wall for wall in walls)
        assert grouped < set(scene.segment_ids.tolist())
        assert any(group.id != group.object_id for group in scene.groups)


def test_test_scenes_have_no_annotation():
    scene = make_scene(TEST_ID)

    assert (scene.groups, scene.axis_alignment, scene.scene_type) == ((), None, None)
    assert len(scene.segment_ids) == len(scene.positions)


@pytest.mark.parametrize("arguments", [{"vertices": 499}, {"seed": -1}])
def test_too_small_arguments_are_refused(arguments):
    with pytest.raises(UsageError, match="cannot make a scene"):
        make_scene(TRAIN_ID, **arguments)


def test_a_malformed_scene_id_is_refused():
    with pytest.raises(UnknownSceneError):
        make_scene("scene1")


def test_the_known_irregularity_lists_every_group_again_with_new_ids(scene):
    count = len(scene.groups)
    irregular = with_known_irregularity(scene)

    assert irregular.groups[:count] == scene.groups
    assert [(group.raw_category, group.segments) for group in irregular.groups[count:]] == [
        (group.raw_category, group.segments) for group in scene.groups
    ]
    assert [group.id for group in irregular.groups] == list(range(2 * count))
    assert len({group.object_id for group in irregular.groups}) == 2 * count
    assert irregular.positions is scene.positions


def test_meshes_read_back_with_plyfile(scene, scene_dir):
    mesh = PlyData.read(scene_dir / f"{TRAIN_ID}_vh_clean_2.ply")
    labeled = PlyData.read(scene_dir / f"{TRAIN_ID}_vh_clean_2.labels.ply")

    for content in (mesh, labeled):
        vertex = content["vertex"]
        np.testing.assert_array_equal(np.stack([vertex["x"], vertex["y"], vertex["z"]], axis=1), scene.positions)
        assert (vertex["alpha"] == 255).all()
        assert [list(face) for face in content["face"]["vertex_indices"]] == scene.faces.tolist()
    colors = np.stack([mesh["vertex"][name] for name in ("red", "green", "blue")], axis=1)
    np.testing.assert_array_equal(colors, scene.colors)
    assert labeled["vertex"]["label"].tolist() == labels_by_rule(scene)


def test_label_colors_are_one_to_one_with_labels(scene_dir):
    vertex = PlyData.read(scene_dir / f"{TRAIN_ID}_vh_clean_2.labels.ply")["vertex"]
    pairs = set(zip(*(vertex[name].tolist() for name in ("label", "red", "green", "blue")), strict=True))

    assert len(pairs) == len({label for label, *_ in pairs}) == len({tuple(color) for _, *color in pairs})
    assert (0, 0, 0, 0) in pairs
    assert (1, 174, 199, 232) in pairs


def test_json_files_read_back(scene, scene_dir):
    segments = json.loads((scene_dir / f"{TRAIN_ID}_vh_clean_2.0.010000.segs.json").read_bytes())
    aggregation = json.loads((scene_dir / f"{TRAIN_ID}.aggregation.json").read_bytes())

    assert segments["sceneId"] == TRAIN_ID
    assert segments["segIndices"] == scene.segment_ids.tolist()
    assert all(isinstance(value, str) for value in segments["params"].values())
    assert aggregation["sceneId"] == f"scannet.{TRAIN_ID}"
    assert aggregation["segmentsFile"] == f"scannet.{TRAIN_ID}_vh_clean_2.0.010000.segs.json"
    assert aggregation["segGroups"] == [
        {"id": group.id, "objectId": group.object_id, "segments": list(group.segments), "label": group.raw_category}
        for group in scene.groups
    ]


def test_metadata_reads_back(scene, scene_dir):
    text = (scene_dir / f"{TRAIN_ID}.txt").read_bytes().decode()
    pairs = dict(line.split(" = ") for line in text.removesuffix("\r\n").split("\r\n"))

    assert [float(word) for word in pairs["axisAlignment"].split()] == scene.axis_alignment.ravel().tolist()
    assert pairs["sceneType"] == scene.scene_type
    assert pairs["numColorFrames"] == "1000"


def test_mesh_bytes_are_those_of_the_release(tmp_path):
    groups = (SyntheticGroup(0, 0, "chair", (3,)),)
    directory = write_scene(tiny_scene(TRAIN_ID, groups), tmp_path)
    mesh = (directory / f"{TRAIN_ID}_vh_clean_2.ply").read_bytes()
    labeled = (directory / f"{TRAIN_ID}_vh_clean_2.labels.ply").read_bytes()
    header = MESH_HEADER.format(vertices=6, faces=2, label="").encode()
    labeled_header = MESH_HEADER.format(vertices=6, faces=2, label="property ushort label\n").encode()

    assert mesh.startswith(header)
    assert len(mesh) == len(header) + 16 * 6 + 13 * 2
    assert mesh[len(header) + 16 :][:16] == b"\0\0\x80\x3f" + bytes(8) + b"\x03\x04\x05\xff"
    assert mesh[-13:] == b"\x03\x03\0\0\0\x04\0\0\0\x05\0\0\0"
    assert labeled.startswith(labeled_header)
    assert len(labeled) == len(labeled_header) + 18 * 6 + 13 * 2
    assert labeled[len(labeled_header) + 18 * 5 :][16:18] == b"\x05\0"
    assert labeled[-26:] == mesh[-26:]


def test_text_files_have_the_layout_of_the_release(tmp_path):
    groups = (SyntheticGroup(0, 1, "chair", (3, 2)), SyntheticGroup(1, 4, 'a "b"', (2,)))
    directory = write_scene(tiny_scene(TRAIN_ID, groups), tmp_path)
    aggregation = (directory / f"{TRAIN_ID}.aggregation.json").read_bytes()
    segments = (directory / f"{TRAIN_ID}_vh_clean_2.0.010000.segs.json").read_bytes()
    info = (directory / f"{TRAIN_ID}.txt").read_bytes()

    assert aggregation.split(b"\r\n") == [
        b"{",
        b'"sceneId": "scannet.scene0000_00",',
        b'"appId": "Aggregator.v2",',
        b'"segGroups": [',
        b"\t{",
        b'\t"id": 0,',
        b'\t"objectId": 1,',
        b'\t"segments": [3,2],',
        b'\t"label": "chair"',
        b"\t},",
        b"\t{",
        b'\t"id": 1,',
        b'\t"objectId": 4,',
        b'\t"segments": [2],',
        b'\t"label": "a \\"b\\""',
        b"\t}",
        b"],",
        b'"segmentsFile": "scannet.scene0000_00_vh_clean_2.0.010000.segs.json"}',
        b"",
    ]
    assert segments.startswith(b'{\r\n"params": {\r\n\t"kThresh": "0.0001",\r\n')
    assert segments.endswith(
        b'\t"maxLength": "1"\r\n}\r\n,\r\n"sceneId": "scene0000_00",\r\n"segIndices": [2,2,2,3,3,3]\r\n}\r\n'
    )
    assert info.startswith(
        b"axisAlignment = 0.600000 0.800000 0.000000 0.000000 -0.800000 0.600000 0.000000 1.250000 "
        b"0.000000 0.000000 1.000000 -0.050000 0.000000 0.000000 0.000000 1.000000 \r\ncolorHeight = 968\r\n"
    )
    assert info.endswith(b"\r\nsceneType = Bedroom / Hotel\r\n")
    assert info.count(b"\n") == info.count(b"\r\n")


def test_the_last_group_wins_and_repeats_count_once(tmp_path):
    groups = (
        SyntheticGroup(0, 0, "chair", (2, 3)),
        SyntheticGroup(1, 1, "floor", (2,)),
        SyntheticGroup(2, 2, "chair", (3, 2)),
        SyntheticGroup(3, 3, "no such category", (3, 77)),
    )
    directory = write_scene(tiny_scene(TRAIN_ID, groups), tmp_path)
    labels = PlyData.read(directory / f"{TRAIN_ID}_vh_clean_2.labels.ply")["vertex"]["label"]

    assert labels.tolist() == [2, 2, 2, 0, 0, 0]


def test_labels_do_not_change_with_the_known_irregularity(scene, scene_dir, tmp_path):
    irregular_dir = write_scene(with_known_irregularity(scene), tmp_path)
    name = f"{TRAIN_ID}_vh_clean_2.labels.ply"

    assert (irregular_dir / name).read_bytes() == (scene_dir / name).read_bytes()


def test_test_scenes_get_a_mesh_and_metadata_only(tmp_path):
    directory = write_scene(make_scene(TEST_ID), tmp_path)
    info = (directory / f"{TEST_ID}.txt").read_bytes()

    assert directory == tmp_path / "scans_test" / TEST_ID
    assert sorted(path.name for path in directory.iterdir()) == [f"{TEST_ID}.txt", f"{TEST_ID}_vh_clean_2.ply"]
    assert info.startswith(b"colorHeight")
    assert b"axisAlignment" not in info
    assert b"sceneType" not in info


@pytest.mark.parametrize("scene_id", [TRAIN_ID, VAL_ID, UNLISTED_ID])
def test_other_scenes_get_all_files_below_scans(tmp_path, scene_id):
    directory = write_scene(make_scene(scene_id, vertices=500), tmp_path)

    assert directory == tmp_path / "scans" / scene_id
    assert sorted(path.name for path in directory.iterdir()) == [
        f"{scene_id}.aggregation.json",
        f"{scene_id}.txt",
        f"{scene_id}_vh_clean_2.0.010000.segs.json",
        f"{scene_id}_vh_clean_2.labels.ply",
        f"{scene_id}_vh_clean_2.ply",
    ]


def test_the_label_map_has_the_layout_of_the_release_and_says_the_same_as_the_built_in_one(tmp_path):
    path = write_label_map(tmp_path / "new" / "folder")
    lines = path.read_bytes().split(b"\r\n")

    assert path.name == "scannetv2-labels.combined.tsv"
    assert lines[0] == (
        b"id\traw_category\tcategory\tcount\tnyu40id\teigen13id\tnyuClass\tnyu40class\teigen13class\tModelNet40\t"
        b"ModelNet10\tShapeNetCore55\tsynsetoffset\twnsynsetid\twnsynsetkey\tmpcat40\tmpcat40index"
    )
    assert len(lines) == 1 + 607 + 1
    assert lines[-1] == b""
    assert all(line.count(b"\t") == 16 for line in lines[:-1])
    assert read_label_map(path).rows == builtin_label_map().rows


def test_a_release_has_the_label_map_and_all_scenes_and_repeats_groups_where_asked(tmp_path):
    scenes = write_release(tmp_path, [VAL_ID, TEST_ID, TRAIN_ID], vertices=600, seed=3, irregular=[TRAIN_ID])

    assert [scene.scene_id for scene in scenes] == [VAL_ID, TEST_ID, TRAIN_ID]
    assert_equal_scenes(scenes[0], make_scene(VAL_ID, vertices=600, seed=3))
    assert_equal_scenes(scenes[2], with_known_irregularity(make_scene(TRAIN_ID, vertices=600, seed=3)))
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(files) == 1 + 5 + 2 + 5
    assert "scannetv2-labels.combined.tsv" in files
    aggregation = json.loads((tmp_path / "scans" / TRAIN_ID / f"{TRAIN_ID}.aggregation.json").read_bytes())
    assert len(aggregation["segGroups"]) == len(scenes[2].groups)


@pytest.mark.parametrize("arguments", [{"irregular": [VAL_ID]}, {"vertices": 10}])
def test_a_release_that_cannot_be_made_is_refused_before_anything_is_written(tmp_path, arguments):
    with pytest.raises(UsageError):
        write_release(tmp_path / "raw", [TRAIN_ID], **arguments)

    assert not (tmp_path / "raw").exists()
