"""Tables of processed scenes, compared with the scenes themselves."""

import json
import math
import shutil
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from commands import run_main

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed, tables
from scannet_prep.errors import FileError, UsageError
from scannet_prep.synthetic.release import write_release

IDS = ("scene0191_00", "scene0568_00", "scene0707_00")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A raw tree, a processed folder and its archive; one scene lists every group twice."""
    root = tmp_path_factory.mktemp("tables")
    write_release(root / "raw", IDS, vertices=600, repeats_groups=IDS[:1])
    for words in (
        ["process", root / "raw", "-o", root / "processed", "--align-axis"],
        ["pack", root / "processed", "-o", root / "all.tar.zst"],
    ):
        assert run_main(*words).status == 0
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
        assert (row.vertices, row.aligned) == (600, True)
        assert row.labeled == pytest.approx(np.count_nonzero(scene.nyu40_ids) / 600)
        extents = scene.points.max(axis=0) - scene.points.min(axis=0)
        assert [row.x_m, row.y_m, row.z_m] == pytest.approx(extents, abs=1e-4)
        squares = {(math.floor(x / 0.1), math.floor(y / 0.1)) for x, y, _ in scene.points.tolist()}
        assert row.area_m2 == pytest.approx(len(squares) / 100, rel=0.02)
        assert ("repeat an earlier group" in row.warnings) == (scene_id == IDS[0])


def test_instances_has_the_facts_of_each_group(root, scenes):
    table = tables.instances(root / "processed")

    for scene_id, scene in scenes.items():
        groups = table[table.scene == scene_id]
        assert groups.group.tolist() == [group.id for group in scene.meta.groups]
        for _, group in groups.iterrows():
            is_inside = scene.instances == group.group
            assert group.vertices == np.count_nonzero(is_inside)
            assert group.segments == len(np.unique(scene.segments[is_inside]))
            box = group[["x_min", "y_min", "z_min", "x_max", "y_max", "z_max"]].tolist()
            points = scene.points[is_inside]
            corners = np.concatenate([points.min(axis=0), points.max(axis=0)])
            np.testing.assert_allclose(box, corners, rtol=0, atol=0.5001e-4)
    aliases = table[table.scene == IDS[0]].aliases.tolist()
    assert sorted(aliases) == [(number,) for number in range(len(aliases), 2 * len(aliases))]


def test_classes_and_counts_are_those_of_the_dataset(root, scenes):
    counts = tables.class_counts(root / "processed", SCANNET20)
    table = tables.classes(root / "processed", SCANNET200, split="train")

    assert list(counts.index) == sorted(scenes)
    for scene_id, scene in scenes.items():
        expected = [np.count_nonzero(scene.labels == train_id) for train_id in range(20)]
        assert counts.loc[scene_id].tolist() == expected
    dataset = ScanNet(root / "processed", split="train", labels=SCANNET200)
    assert table.vertices.tolist() == dataset.class_counts().tolist()
    weights = table.weight.to_numpy(np.float32)
    assert np.array_equal(weights, dataset.class_weights("inverse_sqrt"))
    assert table.name.tolist() == list(SCANNET200.names)
    assert table.raw_id.tolist() == list(SCANNET200.ids)
    raw_ids = [group.scannet_id for group in scenes[IDS[0]].meta.groups]
    assert table.instances[0] == raw_ids.count(SCANNET200.ids[0])


def test_cross_counts_the_nyu40_ids_of_each_scannet200_class(root, scenes):
    names = dict(zip(SCANNET200.ids, SCANNET200.names, strict=True))
    expected = Counter()
    for scene_id in IDS[:2]:
        scene = scenes[scene_id]
        class_names = [names.get(raw_id, "unlabeled") for raw_id in scene.scannet_ids.tolist()]
        expected.update(zip(scene.nyu40_ids.tolist(), class_names, strict=True))

    table = tables.cross(root / "processed")

    counts = {}
    for row, column in np.argwhere(table.to_numpy()).tolist():
        counts[row, table.columns[column]] = table.iat[row, column]
    assert counts == expected
    assert len(expected) > 10
    assert (table.shape, table.index.name, table.columns.name) == ((41, 201), "nyu40", "ScanNet200")
    assert [table.index[nyu40_id] for nyu40_id in SCANNET20.ids] == list(SCANNET20.names)
    assert tables.cross(root / "processed", split="val").to_numpy().sum() == 600


@pytest.mark.parametrize("name", ["scenes", "instances", "classes", "class_counts", "cross"])
def test_folder_archive_and_dataset_give_the_same_table(root, name):
    make_table = getattr(tables, name)

    of_folder = make_table(root / "processed")

    pd.testing.assert_frame_equal(of_folder, make_table(root / "all.tar.zst"))
    dataset = ScanNet(root / "all.tar.zst", split="val", labels=SCANNET200)
    of_dataset = make_table(dataset)
    if name in {"scenes", "class_counts"}:
        assert list(of_dataset.index) == [IDS[1]]
    if name == "classes":
        assert (len(of_folder), len(of_dataset)) == (20, 200)
    if name == "cross":
        pd.testing.assert_frame_equal(of_dataset, make_table(root / "processed", split="val"))


def test_label_map_has_both_ids_of_a_category():
    row = tables.label_map().loc["wall"]
    assert (row.scannet_id, row.nyu40_id) == (1, 1)


def test_what_cannot_be_a_table_is_refused(root, tmp_path):
    with pytest.raises(FileError, match="holds raw scenes, expected processed scenes"):
        tables.scenes(root / "raw")
    with pytest.raises(UsageError, match="'scannet' is not a label set"):
        tables.class_counts(root / "processed", "scannet")
    with pytest.raises(UsageError, match="'walls' is not a table"):
        tables.write_table("walls", root / "processed", None)
    place = shutil.copytree(root / "processed", tmp_path / "processed")
    shutil.copy(place / f"val/{IDS[1]}.npz", place / f"train/{IDS[0]}.npz")
    with pytest.raises(FileError, match=f"'{IDS[1]}'.*expected {IDS[0]}"):
        tables.instances(place)
    assert run_main("info", place, "-o", tmp_path / "instances.json").status == 2


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
