"""Tables of processed scenes, compared with the scenes themselves."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run_main

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed, tables
from scannet_prep.errors import ArchiveError, ProcessedFileError, UsageError
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.release.scene import Split
from scannet_prep.stages import pack, process
from scannet_prep.synthetic.release import write_release

IDS = ("scene0191_00", "scene0568_00", "scene0707_00")


TABLE_FUNCTIONS = {
    "scenes": tables.scenes,
    "instances": tables.instances,
    "classes": lambda place: tables.classes(place, SCANNET20),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a raw tree, a processed folder and its archive; one scene lists every group twice."""
    root = tmp_path_factory.mktemp("tables")
    write_release(root / "raw", IDS, vertices=600, repeats_groups=IDS[:1])
    process.run(process.plan(root / "raw", root / "processed", ProcessOptions(align_axis=True)))
    pack.run(root / "processed", root / "all.tar.zst")
    return root


@pytest.fixture(scope="module")
def scenes(root: Path) -> dict[str, ProcessedScene]:
    return {path.stem: read_processed(path) for path in (root / "processed").glob("*/*.npz")}


def test_scenes_has_the_facts_of_each_scene(root: Path, scenes: dict[str, ProcessedScene]) -> None:
    table = tables.scenes(root / "processed")

    assert list(table.index) == sorted(scenes)
    for scene_id, scene in scenes.items():
        row = table.loc[scene_id]
        assert row.split == scene.meta.split
        assert row.space == int(scene_id[5:9])
        assert row.vertices == len(scene.points)
        assert row.aligned
        labeled_count = np.count_nonzero(scene.nyu40_ids)
        assert row.labeled == pytest.approx(labeled_count / len(scene.points))


def test_scenes_has_the_warnings_about_repeated_groups(root: Path) -> None:
    table = tables.scenes(root / "processed")

    assert "repeat an earlier group" in table.loc[IDS[0]].warnings


def test_class_counts_has_the_vertices_of_each_class(
    root: Path, scenes: dict[str, ProcessedScene]
) -> None:
    table = tables.class_counts(root / "processed", SCANNET20)

    assert list(table.index) == sorted(scenes)
    for scene_id, scene in scenes.items():
        counts = [np.count_nonzero(scene.labels == train_id) for train_id in range(20)]
        assert table.loc[scene_id].tolist() == counts


def test_instances_has_the_facts_of_each_group(
    root: Path, scenes: dict[str, ProcessedScene]
) -> None:
    table = tables.instances(root / "processed")

    for scene_id, scene in scenes.items():
        groups = table[table.scene == scene_id]
        assert groups.group.tolist() == [group.id for group in scene.meta.groups]
        for _, group in groups.iterrows():
            is_inside = scene.instances == group.group
            assert group.vertices == np.count_nonzero(is_inside)
            assert scene.segments is not None
            assert group.segments == len(np.unique(scene.segments[is_inside]))
            box = [group.x_min, group.y_min, group.z_min, group.x_max, group.y_max, group.z_max]
            points = scene.points[is_inside]
            corners = np.concatenate([points.min(axis=0), points.max(axis=0)])
            np.testing.assert_allclose(box, corners, rtol=0, atol=0.5001e-4)


def test_instances_has_the_repeated_object_ids_as_aliases(root: Path) -> None:
    table = tables.instances(root / "processed")

    aliases = table[table.scene == IDS[0]].aliases.tolist()
    count = len(aliases)
    assert sorted(aliases) == [(number,) for number in range(count, 2 * count)]


@pytest.fixture(scope="module")
def train_classes(root: Path) -> pd.DataFrame:
    return tables.classes(root / "processed", SCANNET200, split=Split.TRAIN)


def test_classes_has_the_counts_and_weights_of_the_dataset(
    root: Path, train_classes: pd.DataFrame
) -> None:
    dataset = ScanNet(root / "processed", split="train", labels=SCANNET200)

    assert train_classes.vertices.tolist() == dataset.class_counts().tolist()
    weights = train_classes.weight.to_numpy(np.float32)
    assert np.array_equal(weights, dataset.class_weights("inverse_sqrt"))


def test_classes_has_the_names_and_raw_ids_of_the_label_set(train_classes: pd.DataFrame) -> None:
    assert train_classes.name.tolist() == list(SCANNET200.names)
    assert train_classes.raw_id.tolist() == list(SCANNET200.ids)


def test_classes_has_the_number_of_groups(
    scenes: dict[str, ProcessedScene], train_classes: pd.DataFrame
) -> None:
    raw_ids = [group.scannet_id for group in scenes[IDS[0]].meta.groups]

    assert train_classes.instances[0] == raw_ids.count(SCANNET200.ids[0])


def test_label_map_has_both_ids_of_a_category() -> None:
    row = tables.label_map().loc["wall"]

    assert row.scannet_id == 1
    assert row.nyu40_id == 1


@pytest.mark.parametrize("name", TABLE_FUNCTIONS)
def test_folder_and_archive_give_the_same_table(root: Path, name: str) -> None:
    make_table = TABLE_FUNCTIONS[name]

    of_folder = make_table(root / "processed")
    of_archive = make_table(root / "all.tar.zst")

    pd.testing.assert_frame_equal(of_folder, of_archive)


def test_dataset_gives_a_table_of_its_scenes_only(root: Path) -> None:
    dataset = ScanNet(root / "all.tar.zst", split="val")

    assert list(tables.scenes(dataset).index) == [IDS[1]]
    assert tables.instances(dataset).scene.unique().tolist() == [IDS[1]]


def test_table_of_a_raw_archive_is_refused(root: Path) -> None:
    pack.run(root / "raw", root / "raw.tar.zst")

    with pytest.raises(ArchiveError, match="holds raw scenes, not processed ones"):
        tables.scenes(root / "raw.tar.zst")


def test_table_for_an_unknown_label_set_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="'scannet' is not a label set"):
        tables.class_counts(root / "processed", "scannet")


def test_table_of_an_unknown_name_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="'walls' is not a table"):
        tables.write_table("walls", root / "processed", None)


def test_table_with_the_file_of_another_scene_is_refused(root: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(root / "processed", tmp_path / "processed"))
    shutil.copy(place / f"val/{IDS[1]}.npz", place / f"train/{IDS[0]}.npz")

    problem = f"holds '{IDS[1]}' of val, expected {IDS[0]} of train"
    with pytest.raises(ProcessedFileError, match=problem):
        tables.instances(place)


def test_table_of_an_incomplete_set_of_shards_is_refused(root: Path, tmp_path: Path) -> None:
    shard = Path(shutil.copy(root / "all.tar.zst", tmp_path / "all-00000-of-00002.tar.zst"))

    with pytest.raises(ArchiveError, match="belongs to a set of shards"):
        tables.scenes(shard)


def test_info_prints_a_table_as_csv(root: Path) -> None:
    outcome = run_main("info", root / "processed", "--table", "scenes")

    lines = outcome.stdout.splitlines()
    assert lines[0].startswith("scene,split,space,vertices,l")
    assert len(lines) == 1 + len(IDS)


def test_info_prints_the_classes_of_both_label_sets(root: Path) -> None:
    outcome = run_main("info", root / "processed", "--table", "classes")

    assert len(outcome.stdout.splitlines()) == 1 + 20 + 200


def test_info_writes_a_table_to_a_json_file(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "instances.json"
    words = ("info", root / "processed", "--table", "instances", "-o", path, "--json")

    outcome = run_main(*words)

    row_count = len(tables.instances(root / "processed"))
    assert outcome.json["rows"] == row_count
    assert len(json.loads(path.read_text())) == row_count


def test_info_with_output_but_without_table_is_wrong_usage(root: Path, tmp_path: Path) -> None:
    assert run_main("info", root / "processed", "-o", tmp_path / "instances.json").status == 2


def test_info_with_a_table_of_several_folders_is_wrong_usage(root: Path, tmp_path: Path) -> None:
    other = shutil.copytree(root / "processed", tmp_path / "processed")

    outcome = run_main("info", root / "processed", other, "--table", "scenes")

    assert outcome.status == 2


def test_cross_counts_the_nyu40_ids_of_each_scannet200_class(
    root: Path, scenes: dict[str, ProcessedScene]
) -> None:
    names = dict(zip(SCANNET200.ids, SCANNET200.names, strict=True))
    expected: Counter[tuple[int, str]] = Counter()
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


def test_cross_has_named_axes_with_all_ids_and_classes(root: Path) -> None:
    table = tables.cross(root / "processed")

    assert table.shape == (41, 201)
    assert table.index.name == "nyu40"
    assert table.columns.name == "ScanNet200"


def test_cross_counts_the_vertices_of_a_split(root: Path) -> None:
    assert tables.cross(root / "processed", split="val").to_numpy().sum() == 600


def test_cross_of_an_archive_and_a_dataset_equals_that_of_the_folder(root: Path) -> None:
    of_folder = tables.cross(root / "processed", split="val")
    of_archive = tables.cross(root / "all.tar.zst", split="val")
    of_dataset = tables.cross(ScanNet(root / "processed", split="val"))

    pd.testing.assert_frame_equal(of_folder, of_archive)
    pd.testing.assert_frame_equal(of_folder, of_dataset)


def test_rows_of_cross_have_the_class_names_of_scannet20(root: Path) -> None:
    names = tables.cross(root / "processed", split="test").index

    assert [names[nyu40_id] for nyu40_id in SCANNET20.ids] == list(SCANNET20.names)


def test_default_label_set_of_a_table_is_that_of_the_folder(root: Path) -> None:
    expected = tables.class_counts(root / "processed", "ScanNet20")

    pd.testing.assert_frame_equal(tables.class_counts(root / "processed"), expected)


def test_default_label_set_of_a_table_of_a_dataset_is_that_of_the_dataset(root: Path) -> None:
    dataset = ScanNet(root / "processed", split="val", labels=SCANNET200)

    assert list(tables.class_counts(dataset).columns) == list(SCANNET200.names)
    assert len(tables.classes(dataset)) == 200
    assert len(tables.distribution(dataset)) == 200
