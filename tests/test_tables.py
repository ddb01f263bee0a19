"""Tables of processed scenes, compared with the scenes themselves."""

import json
import math

import numpy as np
import pytest
from commands import edit_json, raw_file, repeat_groups, run_main, succeed, write_processed

from scannet_prep import SCANNET20, SCANNET200, read_processed, tables
from scannet_prep.errors import UsageError
from scannet_prep.synthetic.release import write_release

IDS = ("scene0191_00", "scene0568_00", "scene0707_00")


def take_vertices(content):
    """Add a later group with all segments of the first two."""
    first, second = content["segGroups"][:2]
    both = first["segments"] + second["segments"]
    content["segGroups"].append(first | {"id": 900, "objectId": 900, "segments": both})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A raw tree, a processed folder and its archive.

    One scene lists every group twice; in another one, two groups lose all vertices.
    """
    root = tmp_path_factory.mktemp("tables")
    write_release(root / "raw", IDS, vertices=600)
    for scene_id, change in zip(IDS, (repeat_groups, take_vertices), strict=False):
        edit_json(raw_file(root / "raw", ".aggregation.json", scene_id), change)
    succeed("process", root / "raw", "-o", root / "processed", "--align-axis")
    succeed("pack", root / "processed", "-o", root / "all.tar.zst")
    return root


@pytest.fixture(scope="module")
def scenes(root):
    return {path.stem: read_processed(path) for path in (root / "processed").glob("*/*.npz")}


def test_scenes_has_the_facts_of_each_scene(root, scenes):
    table = tables.scenes(root / "processed")

    assert list(table.index) == sorted(scenes)
    for scene_id, scene in scenes.items():
        row = table.loc[scene_id]
        assert (row.split, row.space) == (scene.meta.split, int(scene_id[5:9]))
        assert row.vertices == 600
        assert row.aligned
        assert row.labeled == pytest.approx(np.count_nonzero(scene.nyu40_ids) / 600)
        extents = np.ptp(scene.points, axis=0)
        assert [row.x_m, row.y_m, row.z_m] == pytest.approx(extents, abs=1e-4)
        squares = {(math.floor(x / 0.1), math.floor(y / 0.1)) for x, y, _ in scene.points.tolist()}
        assert row.area_m2 == pytest.approx(len(squares) / 100, rel=0.02)
        assert ("repeat an earlier group" in row.warnings) == (scene_id == IDS[0])


def test_instances_has_the_facts_of_each_group(root, scenes):
    table = tables.instances(root / "all.tar.zst")

    for scene_id, scene in scenes.items():
        groups = table[table.scene == scene_id]
        assert groups.group.tolist() == [group.id for group in scene.meta.groups]
        for _, group in groups.iterrows():
            is_inside = scene.instances == group.group
            assert group.vertices == np.count_nonzero(is_inside)
            assert group.segments == len(np.unique(scene.segments[is_inside]))
            box = group[["x_min", "y_min", "z_min", "x_max", "y_max", "z_max"]].tolist()
            if group.vertices == 0:
                assert np.isnan(box).all()
                continue
            points = scene.points[is_inside]
            corners = np.concatenate([points.min(axis=0), points.max(axis=0)])
            np.testing.assert_allclose(box, corners, rtol=0, atol=0.5001e-4)
    assert np.count_nonzero(table.vertices == 0) == 2
    aliases = table[table.scene == IDS[0]].aliases.tolist()
    assert sorted(aliases) == [(number,) for number in range(len(aliases), 2 * len(aliases))]


def test_classes_counts_vertices_scenes_and_instances(root, scenes, tmp_path):
    for label_set in (SCANNET20, SCANNET200):
        for split, ids in ((None, IDS[:2]), ("train", IDS[:1]), ("test", IDS[2:])):
            table = tables.classes(root / "processed", label_set, split=split)

            assert table.name.tolist() == list(label_set.names)
            assert table.raw_id.tolist() == list(label_set.ids)
            for train_id, row in table.iterrows():
                by_scene = []
                instances = 0
                for scene in (scenes[scene_id] for scene_id in ids):
                    raw_ids = getattr(scene, label_set.raw_ids_key)
                    by_scene.append(np.count_nonzero(raw_ids == row.raw_id))
                    instances += len(set(scene.instances[raw_ids == row.raw_id].tolist()) - {-1})
                assert row.vertices == sum(by_scene), train_id
                assert row.scenes == np.count_nonzero(by_scene)
                assert row.instances == instances
    assert len(tables.classes(root / "processed")) == 20
    # Only a test scene.
    write_processed(tmp_path, [scenes[IDS[2]]])
    assert tables.classes(tmp_path).vertices.dtype == int


def test_info_prints_and_writes_tables(root, tmp_path):
    place = root / "processed"
    path = tmp_path / "instances.json"

    lines = run_main("info", place, "--table", "scenes").stdout.splitlines()
    classes = run_main("info", place, "--table", "classes").stdout.splitlines()
    outcome = run_main("info", place, "--table", "instances", "-o", path, "--json")

    assert lines[0].startswith("scene,split,space,vertices,labeled,x_m,y_m,z_m,area_m2,")
    assert len(lines) == 1 + len(IDS)
    assert len(classes) == 1 + 20 + 200
    assert classes[1].startswith("ScanNet20,0,1,wall,")
    assert outcome.json["rows"] == len(json.loads(path.read_text())) > 0
    with pytest.raises(UsageError, match=r"x\.txt: expected a name that ends in one of \.csv"):
        tables.write_table("scenes", place, tmp_path / "x.txt")
    assert run_main("info", place, "-o", path).status == 2
