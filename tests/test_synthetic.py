"""Synthetic scenes have the format of the release to the byte, and its kinds of content."""

import zipfile

import numpy as np
import pytest
import tiny
from commands import TEST, TRAIN, VAL, run_main

from scannet_prep.base.images import decode_gray
from scannet_prep.errors import UsageError
from scannet_prep.frames import SensorStream
from scannet_prep.raw.files import Group
from scannet_prep.release.label_map import builtin_label_map, read_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.synthetic import (
    SyntheticScene,
    make_scene,
    write_label_map,
    write_release,
    write_scene,
)

# As many vertices as an average scene of the release has.
USUAL_VERTICES = 124_000


@pytest.mark.parametrize(("vertices", "seed"), [(500, 0), (777, 1), (4000, 3)])
def test_scene_of_any_size_is_intact_and_has_all_kinds_of_groups(vertices, seed, tmp_path):
    scene = make_scene(VAL, vertices=vertices, seed=seed)
    write_scene(scene, tmp_path)

    assert run_main("verify", tmp_path, "--json").json["findings"] == []
    assert scene.positions.shape == (vertices, 3)
    segments = [segment for group in scene.groups for segment in group.segment_ids]
    assert len(segments) == len(set(segments))
    # The object ids have no gap, the group ids have one.
    numbers = [*range(len(scene.groups))]
    group_ids = [group.id for group in scene.groups]
    assert [group.object_id for group in scene.groups] == numbers
    assert group_ids == sorted(set(group_ids)) != numbers
    categories = [group.raw_category for group in scene.groups]
    assert categories.count("wall") == 4
    assert categories.count("floor") == 1
    rows = [builtin_label_map().rows[category] for category in categories]
    # Of both label sets, of either, and of none.
    memberships = {
        (row.nyu40_id in SCANNET20.ids, row.scannet_id in SCANNET200.ids) for row in rows
    }
    assert len(memberships) == 4


def test_scene_of_usual_size_is_like_one_of_the_release():
    scene = make_scene(TRAIN, vertices=USUAL_VERTICES)

    assert 1.8 < len(scene.faces) / USUAL_VERTICES < 1.95
    segment_ids, counts = np.unique(scene.segment_ids, return_counts=True)
    assert 90 < USUAL_VERTICES / len(counts) < 150
    assert counts.max() > 1000
    members = [scene.positions[scene.segment_ids == number] for number in segment_ids[::20]]
    assert np.median([np.ptp(positions, axis=0).max() for positions in members]) < 1
    assert set(segment_ids.tolist()) > {i for group in scene.groups for i in group.segment_ids}
    rotation = scene.axis_alignment[:3, :3]
    assert abs(rotation[0, 1]) > 0.1
    assert np.array_equal(scene.axis_alignment, scene.axis_alignment.round(6))
    # The room is on the floor and along the axes: two by three cells of 2.5 m, 2.6 m high.
    aligned = scene.positions @ rotation.T + scene.axis_alignment[:3, 3]
    assert aligned.min(axis=0) == pytest.approx(0, abs=0.05)
    assert aligned.max(axis=0) == pytest.approx([5, 7.5, 2.6], abs=0.05)


def test_scene_depends_on_its_id_and_seed_alone():
    variants = ((TRAIN, 0), (TRAIN, 0), (TRAIN, 1), ("scene0000_01", 0), ("scene0001_00", 0))
    scenes = [make_scene(scene_id, seed=seed).positions.tobytes() for scene_id, seed in variants]

    assert scenes[0] == scenes[1]
    assert len(set(scenes)) == 4


def test_invalid_arguments_are_refused_before_anything_is_written(tmp_path):
    for scene_id, vertices, seed in ((TRAIN, 499, 0), (TRAIN, 500, -1), ("room", 500, 0)):
        with pytest.raises(UsageError, match=f"'{scene_id}' of {vertices} .* from seed {seed}"):
            write_release(tmp_path / "raw", [scene_id], vertices=vertices, seed=seed)
    assert not (tmp_path / "raw").exists()


def test_files_have_the_layout_of_the_release(tmp_path):
    # A chair, and a category that is not one of the 20 classes.
    scene = SyntheticScene(
        scene_id=TRAIN,
        positions=np.array(tiny.POSITIONS, np.float32),
        colors=np.array(tiny.COLORS, np.uint8),
        faces=np.array(tiny.FACES, np.int32),
        segment_ids=np.array(tiny.SEGMENT_IDS, np.int32),
        groups=(Group("chair", (2, 0), 0, 0), Group("rug", (2,), 4, 1)),
        axis_alignment=np.array([[0.6, 0.8, 0, -0.0], [-0.8, 0.6, 0, 1.25], [0] * 4, [0] * 4]),
    )

    folder = write_scene(scene, tmp_path)

    files = {path.name.removeprefix(TRAIN): path.read_bytes() for path in folder.iterdir()}
    assert files["_vh_clean_2.ply"] == tiny.Ply().encode()
    # The colour of a chair, whose nyu40 id is 5, grey for other ids, and black for none.
    palette = [SCANNET20.colors[4]] * 2 + [(128,) * 3] * 2 + [(0,) * 3] * 2
    labels_ply = tiny.Ply(colors=palette, labels=(5, 5, 40, 40, 0, 0))
    assert files["_vh_clean_2.labels.ply"] == labels_ply.encode()
    assert files[".aggregation.json"] == (
        b'{\r\n"sceneId": "scannet.scene0000_00",\r\n"appId": "Aggregator.v2",\r\n'
        b'"segGroups": [\r\n'
        b'\t{\r\n\t"id": 0,\r\n\t"objectId": 0,\r\n\t"segments": [2,0],\r\n'
        b'\t"label": "chair"\r\n\t},\r\n'
        b'\t{\r\n\t"id": 4,\r\n\t"objectId": 1,\r\n\t"segments": [2],\r\n'
        b'\t"label": "rug"\r\n\t}\r\n'
        b'],\r\n"segmentsFile": "scannet.scene0000_00_vh_clean_2.0.010000.segs.json"}\r\n'
    )
    assert files["_vh_clean_2.0.010000.segs.json"] == (
        b'{\r\n"params": {\r\n\t"kThresh": "0.0001",\r\n\t"segMinVerts": "20"\r\n}\r\n,\r\n'
        b'"sceneId": "scene0000_00",\r\n"segIndices": [0,0,2,2,4,5]\r\n}\r\n'
    )
    assert files[".txt"].startswith(
        b"axisAlignment = 0.600000 0.800000 0.000000 0.000000 -0.800000 0.600000 0.000000 1.250000 "
    )
    assert files[".txt"].endswith(b"\r\nsceneType = Bedroom / Hotel\r\n")
    path = write_label_map(tmp_path / "new" / "folder")
    assert read_label_map(path).rows == builtin_label_map().rows


def test_scene_gets_the_files_of_its_split(tmp_path):
    frames = ["_2d-instance-filt.zip", "_2d-label-filt.zip"]
    labels = ["_vh_clean_2.0.010000.segs.json", "_vh_clean_2.labels.ply", "_vh_clean_2.ply"]
    train_files = [".aggregation.json", ".sens", ".txt", *frames, *labels]
    for path, suffixes, alignments in (
        (f"scans_test/{TEST}", [".sens", ".txt", "_vh_clean_2.ply"], 0),
        ("scans/scene9999_00", train_files, 1),
    ):
        folder = write_scene(make_scene(path[-12:], vertices=500), tmp_path, frames=1)

        assert folder == tmp_path / path
        assert sorted(file.name[12:] for file in folder.iterdir()) == suffixes
        info = (folder / f"{folder.name}.txt").read_text()
        assert info.count("axisAlignment") == info.count("sceneType") == alignments


def test_frames_show_the_room_and_its_labels(tmp_path):
    folder = write_scene(make_scene(TRAIN, vertices=2000), tmp_path, frames=4)

    assert run_main("verify", tmp_path, "--json").json["findings"] == []
    with SensorStream(folder / f"{TRAIN}.sens") as stream:
        assert stream.is_tracked.tolist() == [True, False, True, True]
        assert stream.color_camera.size != stream.depth_camera.size
        depth = stream[0].depth()
    assert (depth > 0).mean() > 0.9
    assert 500 < np.median(depth) < 6000
    images = []
    for name in ("label", "instance"):
        with zipfile.ZipFile(folder / f"{TRAIN}_2d-{name}-filt.zip") as archive:
            assert archive.namelist() == [f"{name}-filt/{number}.png" for number in range(4)]
            images.append(decode_gray(archive.read(f"{name}-filt/0.png"), (324, 242)))
    labels, instances = images
    assert labels.dtype == np.uint16
    assert instances.dtype == np.uint8
    assert np.array_equal(labels > 0, instances > 0)
