"""Label sets against the facts of the benchmarks, every copy of the label map that circulates, the official lists."""

import hashlib
import pickle
from importlib import resources
from pathlib import Path

import numpy as np
import oracles
import pytest
from archives import write_tree

from scannet_prep.base.errors import MissingFileError, RawFileError, UnknownSceneError, UsageError
from scannet_prep.release.label_map import (
    LabelMap,
    RawIds,
    builtin_label_map,
    describe_differences,
    find_label_map,
    read_label_map,
)
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split, official_scenes

HEADER = "id\traw_category\tcategory\tcount\tnyu40id\teigen13id"
ROWS = (
    "1\twall\twall\t8277\t1\t12",
    "2\tchair\tchair\t4646\t5\t4",
    "1163\tobject\tobject\t1313\t40\t7",
)


def write_map(folder: Path, *rows: str, header: str = HEADER, newline: str = "\r\n") -> Path:
    path = folder / "scannetv2-labels.combined.tsv"
    path.write_bytes("".join(line + newline for line in (header, *rows)).encode())
    return path


# Compared with what ScanNet's server hands out and its repository has (label map, lists of splits, classes, colours).
DIGESTS = {
    "label_map.tsv": "0b2a59503e7b58c7",
    "scannet20.csv": "83f983c5b54f19ef",
    "scannet200.csv": "72ef3706b3ea9ecb",
    "scannetv2_train.txt": "96acca299b7855f0",
    "scannetv2_val.txt": "d75d4971c3fa7128",
    "scannetv2_test.txt": "0214c6a3b1ee516a",
}


def test_no_row_of_the_official_tables_has_changed() -> None:
    folder = resources.files("scannet_prep") / "assets"
    found = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()[:16] for name in DIGESTS
    }
    assert found == DIGESTS


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_classes_are_those_of_the_tables_by_raw_id_and_every_raw_id_maps_as_the_loops_say(
    label_set: LabelSet,
) -> None:
    rows = oracles.read_asset(f"{label_set.name.lower()}.csv", ",")
    for item, row in zip(label_set.classes, rows, strict=True):
        assert [*map(str, (item.train_id, item.raw_id, item.name, *item.color))] == [*row.values()][
            :6
        ]
        assert (item.frequency, item.in_val) == (row.get("frequency"), row.get("in_val") != "0")
    parts = (label_set.head, label_set.common, label_set.tail)
    assert tuple(map(len, parts)) == ((0, 0, 0) if label_set is SCANNET20 else (66, 68, 66))
    assert all(label_set.classes[number].frequency == "tail" for number in label_set.tail)
    assert (
        pickle.loads(pickle.dumps(label_set)).ids == label_set.ids == tuple(sorted(label_set.ids))
    )
    assert [label_set.name_of(train_id) for train_id in (0, -1)] == ["wall", "unlabeled"]
    assert label_set.colorize(np.array([[3, -1], [19, 255]])).tolist() == [
        [[*label_set.colors[3]], [0, 0, 0]],
        [[*label_set.colors[19]], [0, 0, 0]],
    ]
    raw_ids = np.arange(2000, dtype=np.uint16)
    expected = (oracles.labels20 if label_set is SCANNET20 else oracles.labels200)(raw_ids.tolist())
    assert label_set.labels_from_raw_ids(raw_ids).tolist() == expected
    assert label_set.labels_from_raw_ids(np.array([65_535], np.uint16)).tolist() == [0]
    train_ids = label_set.train_ids_from_raw_ids(raw_ids, -100)
    assert train_ids.tolist() == [label - 1 if label else -100 for label in expected]
    assert train_ids.dtype == np.int64


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_label_set_is_iterated_and_indexed_by_train_id_and_by_name(label_set: LabelSet) -> None:
    assert [*label_set] == [*label_set.classes]
    assert [label_set[train_id] for train_id in range(label_set.num_classes)] == [*label_set]
    assert [label_set[name] for name in label_set.names] == [*label_set]
    assert label_set[np.int64(3)].train_id == 3
    assert label_set.num_classes == len(label_set) == len(label_set.names)


def test_label_set_contains_names_train_ids_and_classes() -> None:
    assert all(key in SCANNET20 for key in ("wall", 0, 19, SCANNET20[5]))
    assert not any(key in SCANNET20 for key in ("walls", -1, 20, SCANNET200[5], None))


@pytest.mark.parametrize("train_id", [20, 40, 255, -2])
def test_name_of_an_id_outside_the_set_is_an_error_that_names_train_id_plus_one(
    train_id: int,
) -> None:
    with pytest.raises(
        UsageError, match=rf"{train_id} is not a train id of ScanNet20, expected 0 to 19"
    ) as caught:
        SCANNET20.name_of(train_id)
    assert "train id + 1" in caught.value.hint


@pytest.mark.parametrize("key", [-1, 20, "walls"])
def test_label_set_refuses_an_index_that_is_not_a_class(key: int | str) -> None:
    with pytest.raises(UsageError, match="ScanNet20"):
        SCANNET20[key]


def test_the_built_in_label_map_has_the_rows_of_the_release() -> None:
    rows = builtin_label_map().rows
    assert {name: tuple(ids) for name, ids in rows.items()} == oracles.label_map_rows()
    assert (len(rows), rows["wardrobe cabinet"], rows["stick"]) == (607, (1177, 39), (1163, 40))
    assert SCANNET200.names[SCANNET200.ids.index(1163)] == "object"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r\r\n", "\r"])
def test_copies_with_any_line_ends_say_the_same(tmp_path: Path, newline: str) -> None:
    path = write_map(tmp_path, *ROWS, newline=newline)
    found = read_label_map(path)
    assert found.rows == {"wall": (1, 1), "chair": (2, 5), "object": (1163, 40)}
    assert found.source == str(path)
    assert found.digest == read_label_map(write_map(tmp_path, *reversed(ROWS), newline="\n")).digest
    assert read_label_map(write_map(tmp_path, *ROWS, ROWS[0], newline=newline)) == found, (
        "the same once more"
    )
    # Columns are found by name, and a byte order mark does no harm.
    path = write_map(
        tmp_path, "5\twall\t1", header="\ufeffnyu40id\traw_category\tid", newline=newline
    )
    assert read_label_map(path).rows == {"wall": RawIds(1, 5)}


def test_a_label_map_that_is_damaged_or_cut_is_refused_with_the_number_of_the_row(
    tmp_path: Path,
) -> None:
    whole = write_map(tmp_path, *ROWS, "5\tshelf\tshelf\t1\t39\t6").read_bytes()
    for data, problem in (
        (b"", "has no column raw_category or id or nyu40id"),
        (whole.splitlines(keepends=True)[0], "has a header and 0 rows, expected about 607"),
        (b"id\xff\n", "is not UTF-8 text: byte 2"),
        (whole[:-4], "row 5"),
        (whole[:-6], "row 5"),
        (whole + b"3\tfloor", "row 6 has 2 columns, expected 6"),
        (
            whole + b"2\tchair\tchair\t1\t7\t1\n",
            "row 6: 'chair' has .* nyu40 id 7, but an earlier row has .* id 5",
        ),
        (whole + b"x\tfloor\tfloor\t1\t2\t11", "row 6, column id: found 'x'"),
        (whole + b"65536\tfloor\tfloor\t1\t2\t11", "expected a whole number from 0 to 65535"),
        (
            whole + b"3\tfloor\tfloor\t1\t41\t11",
            "column nyu40id: found '41', expected a whole number from 0 to 40",
        ),
        (whole + "3\tfloor\tfloor\t1\t٢\t11".encode(), "column nyu40id"),
        (whole + b"3\tfloor\tfloor\t1\t" + b"9" * 5000 + b"\t11", "column nyu40id"),
    ):
        (tmp_path / "map.tsv").write_bytes(data)
        with pytest.raises(RawFileError, match=problem) as caught:
            read_label_map(tmp_path / "map.tsv")
        assert "built-in" in caught.value.hint
    (tmp_path / "map.tsv").write_bytes(whole[:-3])  # the last column may be empty
    assert read_label_map(tmp_path / "map.tsv").rows["shelf"] == RawIds(5, 39)


@pytest.mark.parametrize("name", ["scannet200", "ScanNet200", "SCANNET200", SCANNET200])
def test_label_set_is_parsed_from_itself_or_its_name_in_any_case(name: LabelSet | str) -> None:
    assert parse_label_set(name) is SCANNET200


@pytest.mark.parametrize("value", ["scannet", "200", "", 200, None, ["scannet20"]])
def test_other_values_than_names_of_label_sets_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match="is not a label set, expected ScanNet20 or ScanNet200"):
        parse_label_set(value)  # type: ignore[arg-type]


def test_label_map_of_the_release_with_more_rows_has_no_differences() -> None:
    rows = {**builtin_label_map().rows, "fish tank": RawIds(9000, 40)}
    assert describe_differences(LabelMap("map.tsv", rows)) == ""


def test_changed_and_missing_rows_of_a_label_map_are_differences() -> None:
    rows = {**builtin_label_map().rows, "floor": RawIds(3, 4)}
    del rows["stick"]
    assert describe_differences(LabelMap("map.tsv", rows)) == (
        "differs from the label map of the release in 2 raw categories: floor, stick "
        "(for example, 'floor' is ScanNet id 3, nyu40 id 4, expected ScanNet id 3, nyu40 id 2)"
    )


def test_the_map_beside_the_scenes_is_found_also_from_the_folder_of_scenes(tmp_path: Path) -> None:
    path = write_map(write_tree(tmp_path / "tasks", {}), *ROWS)  # as in OctFormer's layout
    assert {find_label_map(tmp_path / name) for name in (".", "scans", "scans_test")} == {path}
    assert find_label_map(tmp_path / "elsewhere") is None
    path.unlink()
    path.symlink_to("nowhere")  # is not passed over
    with pytest.raises(MissingFileError, match="is a link that leads nowhere"):
        read_label_map(find_label_map(tmp_path))


def test_the_official_lists_have_1201_312_and_100_scenes_each_in_one_split() -> None:
    lists = [official_scenes(split) for split in Split]
    assert [len(scenes) for scenes in lists] == [1201, 312, 100]
    assert {
        find_official_split(name) for name in ("scene0807_00", "scene9999_99", "", "scene0000_00 ")
    } == {None}
    for split, scenes in zip(Split, lists, strict=True):
        assert {find_official_split(scene) for scene in scenes} == {split}
    assert [scenes[0] for scenes in lists] == ["scene0191_00", "scene0568_00", "scene0707_00"], (
        "they are not sorted"
    )
    assert official_scenes("val") == official_scenes(Split.VAL)
    with pytest.raises(UsageError, match="'training' is not a split"):
        official_scenes("training")


def test_other_texts_are_no_scene_ids() -> None:
    arabic = "scene\u0660\u0660\u0660\u0660_\u0660\u0660"
    words = ["scene0000", "scene000_00", "scene0000_000", "Scene0000_00", "../scene0000_00"]
    for text in ("", "scene0000_00\n", arabic, *words):
        assert not SceneId.is_valid(text)
        with pytest.raises(UnknownSceneError, match="is not a scene id"):
            SceneId(text)
