"""Tables: against the scenes themselves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import run_main

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed, tables
from scannet_prep.base.errors import ArchiveError, ProcessedFileError, UsageError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.scene import Split
from scannet_prep.stages import pack, process
from scannet_prep.synthetic.release import write_release

pd = pytest.importorskip("pandas")

IDS = ("scene0191_00", "scene0568_00", "scene0707_00")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw tree, a processed folder and its archive; one scene lists every group twice."""
    root = tmp_path_factory.mktemp("tables")
    write_release(root / "raw", IDS, vertices=600, repeats_groups=IDS[:1])
    process.run(process.plan(root / "raw", root / "processed", ProcessOptions(align_axis=True)))
    pack.run(root / "processed", root / "all.tar.zst")
    return root


def test_every_row_of_a_table_is_what_the_scene_says(root: Path) -> None:
    out_dir = root / "processed"
    found = {path.stem: read_processed(path) for path in out_dir.glob("*/*.npz")}
    scenes, instances = tables.scenes(out_dir), tables.instances(out_dir)
    counts = tables.class_counts(out_dir, SCANNET20)
    assert list(scenes.index) == list(counts.index) == sorted(found)
    for name, scene in found.items():
        row = scenes.loc[name]
        assert (row.split, row.space, row.vertices, row.aligned) == (
            scene.meta.split, int(name[5:9]), len(scene.points), True,
        )  # fmt: skip
        assert row.labeled == pytest.approx(np.count_nonzero(scene.nyu40_ids) / len(scene.points))
        labels = [int(np.count_nonzero(scene.labels == train_id)) for train_id in range(20)]
        assert counts.loc[name].tolist() == labels
        groups = instances[instances.scene == name]
        assert groups.group.tolist() == [group.id for group in scene.meta.groups]
        for _, group in groups.iterrows():
            mask = scene.instances == group.group
            assert group.vertices == np.count_nonzero(mask)
            assert group.segments == len(np.unique(scene.segments[mask]))  # type: ignore[index]
            corners = np.concatenate(
                [scene.points[mask].min(axis=0), scene.points[mask].max(axis=0)]
            )
            box = [group.x_min, group.y_min, group.z_min, group.x_max, group.y_max, group.z_max]
            np.testing.assert_allclose(box, corners, rtol=0, atol=0.5001e-4)
    assert "repeat an earlier group" in scenes.loc[IDS[0]].warnings
    aliases = instances[instances.scene == IDS[0]].aliases
    assert all(len(item) == 1 for item in aliases)
    assert sorted(number for item in aliases for number in item) == list(
        range(len(aliases), 2 * len(aliases))
    )


def test_classes_of_train_weigh_as_the_dataset_says(root: Path) -> None:
    dataset = ScanNet(root / "processed", split="train", labels=SCANNET200)
    found = tables.classes(root / "processed", SCANNET200, split=Split.TRAIN)
    assert found.vertices.tolist() == dataset.class_counts().tolist()
    assert np.array_equal(found.weight.to_numpy(np.float32), dataset.class_weights("inverse_sqrt"))
    assert (found.name.tolist(), found.raw_id.tolist()) == (
        list(SCANNET200.names),
        list(SCANNET200.ids),
    )
    walls = read_processed(root / f"processed/train/{IDS[0]}.npz").meta.groups
    assert found.instances[0] == sum(group.scannet_id == SCANNET200.ids[0] for group in walls)
    assert tables.label_map().loc["wall"].tolist() == [1, 1]


def test_folder_archive_and_dataset_give_the_same_tables(root: Path) -> None:
    archive = root / "all.tar.zst"
    for make in (tables.scenes, tables.instances, lambda place: tables.classes(place, SCANNET20)):
        pd.testing.assert_frame_equal(make(root / "processed"), make(archive))
    val = ScanNet(archive, split="val")
    assert (
        list(tables.scenes(val).index) == [IDS[1]] == tables.instances(val).scene.unique().tolist()
    )


def test_raw_archive_and_folder_without_scenes_are_refused(root: Path) -> None:
    pack.run(root / "raw", root / "raw.tar.zst")
    with pytest.raises(ArchiveError, match="holds raw scenes, not processed ones"):
        tables.scenes(root / "raw.tar.zst")
    with pytest.raises(UsageError, match="'scannet' is not a label set"):
        tables.class_counts(root / "processed", "scannet")
    with pytest.raises(UsageError, match="'walls' is not a table"):
        tables.write_table("walls", root / "processed", None)


def test_info_prints_tables_and_writes_them(root: Path) -> None:
    words, path = ("info", root / "processed", "--table"), root / "instances.json"
    lines = run_main(*words, "scenes").stdout.splitlines()
    assert (lines[0][:28], len(lines)) == ("scene,split,space,vertices,l", 1 + len(IDS))
    outcome = run_main(*words, "instances", "-o", path, "--json")
    assert (
        outcome.json["rows"]
        == len(json.loads(path.read_text()))
        == len(tables.instances(root / "processed"))
    )
    assert len(run_main(*words, "classes").stdout.splitlines()) == 1 + 20 + 200
    assert run_main("info", root / "processed", "-o", path).status == 2


def test_tables_refuse_the_file_of_another_scene_several_folders_and_a_part_of_the_shards(
    root: Path, tmp_path: Path
) -> None:
    out_dir = Path(shutil.copytree(root / "processed", tmp_path / "processed"))
    shutil.copy(out_dir / f"val/{IDS[1]}.npz", out_dir / f"train/{IDS[0]}.npz")
    with pytest.raises(
        ProcessedFileError, match=f"holds '{IDS[1]}' of val, expected {IDS[0]} of train"
    ):
        tables.instances(out_dir)
    assert run_main("info", root / "processed", out_dir, "--table", "scenes").status == 2
    shard = Path(shutil.copy(root / "all.tar.zst", tmp_path / "all-00000-of-00002.tar.zst"))
    with pytest.raises(ArchiveError, match="belongs to a set of shards"):
        tables.scenes(shard)


def test_cross_counts_the_nyu40_ids_of_each_class_of_scannet200(root: Path) -> None:
    expected: dict[tuple[int, str], int] = {}
    names = dict(zip(SCANNET200.ids, SCANNET200.names, strict=True))
    for path in (root / f"processed/train/{IDS[0]}.npz", root / f"processed/val/{IDS[1]}.npz"):
        scene = read_processed(path)
        for nyu40_id, scannet_id in zip(
            scene.nyu40_ids.tolist(), scene.scannet_ids.tolist(), strict=True
        ):
            pair = nyu40_id, names.get(scannet_id, "unlabeled")
            expected[pair] = expected.get(pair, 0) + 1
    counts = tables.cross(root / "processed")
    assert (counts.shape, counts.index.name, counts.columns.name) == (
        (41, 201),
        "nyu40",
        "ScanNet200",
    )
    rows, columns = np.nonzero(counts.to_numpy())
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    assert {
        (row, counts.columns[column]): counts.iat[row, column] for row, column in pairs
    } == expected
    assert len(expected) > 10


def test_cross_of_a_split_an_archive_and_a_dataset_count_the_same_vertices(root: Path) -> None:
    counts = tables.cross(root / "processed", split="val")
    assert counts.to_numpy().sum() == 600
    pd.testing.assert_frame_equal(counts, tables.cross(root / "all.tar.zst", split="val"))
    pd.testing.assert_frame_equal(counts, tables.cross(ScanNet(root / "processed", split="val")))


def test_rows_of_cross_are_named_as_scannet20_names_its_classes(root: Path) -> None:
    names = tables.cross(root / "processed", split="test").index
    for nyu40_id, name in zip(SCANNET20.ids, SCANNET20.names, strict=True):
        assert names[nyu40_id] == name


def test_label_set_of_a_table_is_that_of_the_folder_or_of_the_dataset_by_default(
    root: Path,
) -> None:
    scannet20 = tables.class_counts(root / "processed", "ScanNet20")
    pd.testing.assert_frame_equal(tables.class_counts(root / "processed"), scannet20)
    dataset = ScanNet(root / "processed", split="val", labels=SCANNET200)
    assert list(tables.class_counts(dataset).columns) == list(SCANNET200.names)
    assert len(tables.classes(dataset)) == len(tables.distribution(dataset)) == 200
