"""Label sets, the label map and the official lists, against the files of the benchmark."""

from __future__ import annotations

import hashlib
import pickle
from importlib import resources
from pathlib import Path

import numpy as np
import oracles
import pytest
from archives import write_tree

from scannet_prep.base.findings import Findings
from scannet_prep.errors import MissingFileError, RawFileError, UnknownSceneError, UsageError
from scannet_prep.release.label_map import (
    LabelMap,
    RawIds,
    builtin_label_map,
    check_label_map,
    describe_differences,
    find_label_map,
    read_label_map,
)
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split, official_scenes

# Digests of the official tables: the label map and the lists of splits as served by ScanNet's
# server, the classes and colours as in its repository.
DIGESTS = {
    "label_map.tsv": "0b2a59503e7b58c7",
    "scannet20.csv": "83f983c5b54f19ef",
    "scannet200.csv": "72ef3706b3ea9ecb",
    "scannetv2_train.txt": "96acca299b7855f0",
    "scannetv2_val.txt": "d75d4971c3fa7128",
    "scannetv2_test.txt": "0214c6a3b1ee516a",
}

HEADER = "id\traw_category\tcategory\tcount\tnyu40id\teigen13id"
ROWS = (
    "1\twall\twall\t8277\t1\t12",
    "2\tchair\tchair\t4646\t5\t4",
    "1163\tobject\tobject\t1313\t40\t7",
)
WHOLE_MAP = "".join(f"{line}\r\n" for line in (HEADER, *ROWS, "5\tshelf\tshelf\t1\t39\t6")).encode()

LINE_ENDS = pytest.mark.parametrize("newline", ["\n", "\r\n", "\r\r\n", "\r"], ids=repr)
BOTH_SETS = pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=lambda one: one.name)


def write_map(folder: Path, *rows: str, header: str = HEADER, newline: str = "\r\n") -> Path:
    path = folder / "scannetv2-labels.combined.tsv"
    path.write_bytes("".join(line + newline for line in (header, *rows)).encode())
    return path


# Assets.


@pytest.mark.parametrize("name", DIGESTS)
def test_official_table_is_unchanged(name: str) -> None:
    data = (resources.files("scannet_prep") / "assets" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest()[:16] == DIGESTS[name]


# Label sets.


@BOTH_SETS
def test_classes_are_the_rows_of_the_table(label_set: LabelSet) -> None:
    rows = oracles.read_asset(f"{label_set.name.lower()}.csv", ",")
    for label_class, row in zip(label_set.classes, rows, strict=True):
        numbers_and_name = (
            label_class.train_id,
            label_class.raw_id,
            label_class.name,
            *label_class.color,
        )
        assert [str(value) for value in numbers_and_name] == list(row.values())[:6]
        assert label_class.frequency == row.get("frequency")
        assert label_class.in_val == (row.get("in_val") != "0")


@BOTH_SETS
def test_classes_are_ordered_by_raw_id(label_set: LabelSet) -> None:
    assert label_set.ids == tuple(sorted(label_set.ids))


@pytest.mark.parametrize(
    ("label_set", "counts"), [(SCANNET20, [0, 0, 0]), (SCANNET200, [66, 68, 66])]
)
def test_head_common_and_tail_divide_scannet200_only(
    label_set: LabelSet, counts: list[int]
) -> None:
    parts = [label_set.head, label_set.common, label_set.tail]
    assert [len(part) for part in parts] == counts


def test_tail_holds_the_classes_of_frequency_tail() -> None:
    assert {SCANNET200.classes[train_id].frequency for train_id in SCANNET200.tail} == {"tail"}


@BOTH_SETS
def test_pickled_label_set_has_the_same_ids(label_set: LabelSet) -> None:
    assert pickle.loads(pickle.dumps(label_set)).ids == label_set.ids


@BOTH_SETS
def test_name_of_minus_one_is_unlabeled(label_set: LabelSet) -> None:
    assert label_set.name_of(0) == "wall"
    assert label_set.name_of(-1) == "unlabeled"


@BOTH_SETS
def test_colorize_gives_official_colors_and_black_for_unlabeled(label_set: LabelSet) -> None:
    colors = label_set.colorize(np.array([[3, -1], [19, 255]]))
    assert colors.tolist() == [
        [[*label_set.colors[3]], [0, 0, 0]],
        [[*label_set.colors[19]], [0, 0, 0]],
    ]


RAW_IDS = np.arange(2000, dtype=np.uint16)


def expected_labels(label_set: LabelSet) -> list[int]:
    """Labels of the raw ids above, computed in a loop."""
    label = oracles.labels20 if label_set is SCANNET20 else oracles.labels200
    return label(RAW_IDS.tolist())


@BOTH_SETS
def test_labels_from_raw_ids_equal_a_loop(label_set: LabelSet) -> None:
    assert label_set.labels_from_raw_ids(RAW_IDS).tolist() == expected_labels(label_set)


@BOTH_SETS
def test_largest_raw_id_has_label_zero(label_set: LabelSet) -> None:
    assert label_set.labels_from_raw_ids(np.array([65_535], np.uint16)).tolist() == [0]


@BOTH_SETS
def test_train_ids_from_raw_ids_equal_a_loop(label_set: LabelSet) -> None:
    train_ids = label_set.train_ids_from_raw_ids(RAW_IDS, -100)

    assert train_ids.dtype == np.int64
    labels = expected_labels(label_set)
    assert train_ids.tolist() == [label - 1 if label else -100 for label in labels]


@BOTH_SETS
def test_iterating_a_label_set_gives_its_classes(label_set: LabelSet) -> None:
    assert list(label_set) == list(label_set.classes)


@BOTH_SETS
def test_label_set_is_indexed_by_train_id(label_set: LabelSet) -> None:
    classes = [label_set[train_id] for train_id in range(label_set.num_classes)]

    assert classes == list(label_set)
    assert label_set[np.int64(3)].train_id == 3


@BOTH_SETS
def test_label_set_is_indexed_by_name(label_set: LabelSet) -> None:
    assert [label_set[name] for name in label_set.names] == list(label_set)


@BOTH_SETS
def test_num_classes_is_the_number_of_names(label_set: LabelSet) -> None:
    assert label_set.num_classes == len(label_set) == len(label_set.names)


@pytest.mark.parametrize("key", ["wall", 0, 19, SCANNET20[5]], ids=str)
def test_label_set_contains_names_train_ids_and_classes(key: object) -> None:
    assert key in SCANNET20


@pytest.mark.parametrize("key", ["walls", -1, 20, SCANNET200[5], None], ids=str)
def test_label_set_does_not_contain_other_keys(key: object) -> None:
    assert key not in SCANNET20


@pytest.mark.parametrize("train_id", [20, 40, 255, -2])
def test_name_of_an_id_outside_the_set_mentions_train_id_plus_one(train_id: int) -> None:
    message = f"{train_id} is not a train id of ScanNet20, expected 0 to 19"

    with pytest.raises(UsageError, match=message) as caught:
        SCANNET20.name_of(train_id)

    assert "train id + 1" in caught.value.hint


@pytest.mark.parametrize("key", [-1, 20, "walls"])
def test_indexing_a_label_set_by_another_key_is_an_error(key: int | str) -> None:
    with pytest.raises(UsageError, match="ScanNet20"):
        SCANNET20[key]


@pytest.mark.parametrize("name", ["scannet200", "ScanNet200", "SCANNET200", SCANNET200], ids=str)
def test_label_set_is_parsed_from_itself_or_its_name(name: LabelSet | str) -> None:
    assert parse_label_set(name) is SCANNET200


@pytest.mark.parametrize("value", ["scannet", "200", "", 200, None, ["scannet20"]], ids=repr)
def test_other_value_is_not_parsed_as_a_label_set(value: object) -> None:
    with pytest.raises(UsageError, match="is not a label set, expected ScanNet20 or ScanNet200"):
        parse_label_set(value)  # type: ignore[arg-type]


# The label map.


def test_builtin_label_map_equals_the_table() -> None:
    rows = {name: tuple(ids) for name, ids in builtin_label_map().rows.items()}
    assert rows == oracles.label_map_rows()


def test_builtin_label_map_has_as_many_rows_as_that_of_the_release() -> None:
    assert len(builtin_label_map().rows) == 607


@pytest.mark.parametrize(
    ("raw_category", "expected"), [("wardrobe cabinet", (1177, 39)), ("stick", (1163, 40))]
)
def test_builtin_label_map_has_the_ids_of_the_release(
    raw_category: str, expected: tuple[int, int]
) -> None:
    assert builtin_label_map().rows[raw_category] == expected


def test_class_of_raw_id_1163_is_object() -> None:
    assert SCANNET200.names[SCANNET200.ids.index(1163)] == "object"


@LINE_ENDS
def test_label_map_is_read_with_any_line_ends(tmp_path: Path, newline: str) -> None:
    path = write_map(tmp_path, *ROWS, newline=newline)

    label_map = read_label_map(path)

    assert label_map.rows == {"wall": (1, 1), "chair": (2, 5), "object": (1163, 40)}
    assert label_map.source == str(path)


@LINE_ENDS
def test_digest_does_not_depend_on_line_ends_and_order(tmp_path: Path, newline: str) -> None:
    digest = read_label_map(write_map(tmp_path, *ROWS, newline=newline)).digest
    reordered = write_map(tmp_path, *reversed(ROWS), newline="\n")

    assert read_label_map(reordered).digest == digest


@LINE_ENDS
def test_repeated_row_does_not_change_the_label_map(tmp_path: Path, newline: str) -> None:
    label_map = read_label_map(write_map(tmp_path, *ROWS, newline=newline))
    repeated = write_map(tmp_path, *ROWS, ROWS[0], newline=newline)

    assert read_label_map(repeated) == label_map


@LINE_ENDS
def test_columns_are_found_by_name_after_a_byte_order_mark(tmp_path: Path, newline: str) -> None:
    header = "\ufeffnyu40id\traw_category\tid"
    path = write_map(tmp_path, "5\twall\t1", header=header, newline=newline)

    assert read_label_map(path).rows == {"wall": RawIds(1, 5)}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"", "has no column raw_category or id or nyu40id", id="empty"),
        pytest.param(
            WHOLE_MAP.splitlines(keepends=True)[0],
            "has a header and 0 rows, expected about 607",
            id="header only",
        ),
        pytest.param(b"id\xff\n", "is not UTF-8 text: byte 2", id="not text"),
        pytest.param(WHOLE_MAP[:-4], "row 5", id="cut in the last column"),
        pytest.param(WHOLE_MAP[:-6], "row 5", id="cut before the last column"),
        pytest.param(
            WHOLE_MAP + b"3\tfloor", "row 6 has 2 columns, expected 6", id="cut after the name"
        ),
        pytest.param(
            WHOLE_MAP + b"2\tchair\tchair\t1\t7\t1\n",
            "row 6: 'chair' has .* nyu40 id 7, but an earlier row has .* id 5",
            id="contradiction",
        ),
        pytest.param(
            WHOLE_MAP + b"x\tfloor\tfloor\t1\t2\t11", "row 6, column id: found 'x'", id="no number"
        ),
        pytest.param(
            WHOLE_MAP + b"65536\tfloor\tfloor\t1\t2\t11",
            "expected a whole number from 0 to 65535",
            id="large ScanNet id",
        ),
        pytest.param(
            WHOLE_MAP + b"3\tfloor\tfloor\t1\t41\t11",
            "column nyu40id: found '41', expected a whole number from 0 to 40",
            id="large nyu40 id",
        ),
        pytest.param(
            WHOLE_MAP + "3\tfloor\tfloor\t1\t٢\t11".encode(), "column nyu40id", id="Arabic digit"
        ),
        pytest.param(
            WHOLE_MAP + b"3\tfloor\tfloor\t1\t" + b"9" * 5000 + b"\t11",
            "column nyu40id",
            id="5000 digits",
        ),
    ],
)
def test_damaged_label_map_is_refused_with_the_row(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    (tmp_path / "map.tsv").write_bytes(data)

    with pytest.raises(RawFileError, match=problem) as caught:
        read_label_map(tmp_path / "map.tsv")

    assert "built-in" in caught.value.hint


def test_last_column_of_a_label_map_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "map.tsv").write_bytes(WHOLE_MAP[:-3])
    assert read_label_map(tmp_path / "map.tsv").rows["shelf"] == RawIds(5, 39)


def test_rows_beyond_those_of_the_release_are_not_differences() -> None:
    rows = {**builtin_label_map().rows, "fish tank": RawIds(9000, 40)}
    assert describe_differences(LabelMap("map.tsv", rows)) == ""


def test_changed_and_missing_rows_of_a_label_map_are_differences() -> None:
    rows = {**builtin_label_map().rows, "floor": RawIds(3, 4)}
    del rows["stick"]

    assert describe_differences(LabelMap("map.tsv", rows)) == (
        "differs from the label map of the release in 2 raw categories: floor, stick "
        "(for example, 'floor' is ScanNet id 3, nyu40 id 4, expected ScanNet id 3, nyu40 id 2)"
    )


@pytest.mark.parametrize(("must_match", "severity"), [(True, "error"), (False, "note")])
def test_difference_of_a_label_map_is_an_error_if_it_must_match(
    tmp_path: Path, must_match: bool, severity: str
) -> None:
    path = write_map(tmp_path, *ROWS)
    findings = Findings()

    check_label_map(tmp_path, findings, must_match=must_match)

    (finding,) = findings.found
    assert finding.severity == severity
    assert finding.subject == str(path)


@pytest.mark.parametrize("name", [".", "scans", "scans_test"])
def test_label_map_is_found_from_the_root_and_from_scans(tmp_path: Path, name: str) -> None:
    # In OctFormer's layout.
    path = write_map(write_tree(tmp_path / "tasks", {}), *ROWS)
    assert find_label_map(tmp_path / name) == path


def test_label_map_is_not_found_from_another_folder(tmp_path: Path) -> None:
    write_map(write_tree(tmp_path / "tasks", {}), *ROWS)
    assert find_label_map(tmp_path / "elsewhere") is None


def test_broken_link_to_a_label_map_is_found_and_an_error(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "tasks", {})
    (folder / "scannetv2-labels.combined.tsv").symlink_to("nowhere")

    path = find_label_map(tmp_path)

    assert path is not None
    with pytest.raises(MissingFileError, match="is a link that leads nowhere"):
        read_label_map(path)


# Splits and scene ids.


@pytest.mark.parametrize(
    ("split", "count"), [(Split.TRAIN, 1201), (Split.VAL, 312), (Split.TEST, 100)]
)
def test_official_list_has_the_number_of_scenes_of_its_split(split: Split, count: int) -> None:
    assert len(official_scenes(split)) == count


@pytest.mark.parametrize("split", Split)
def test_scenes_of_an_official_list_are_of_its_split_only(split: Split) -> None:
    assert {find_official_split(scene) for scene in official_scenes(split)} == {split}


@pytest.mark.parametrize("name", ["scene0807_00", "scene9999_99", "", "scene0000_00 "])
def test_other_name_is_of_no_official_split(name: str) -> None:
    assert find_official_split(name) is None


@pytest.mark.parametrize(
    ("split", "first"),
    [("train", "scene0191_00"), ("val", "scene0568_00"), ("test", "scene0707_00")],
)
def test_official_list_keeps_its_own_order(split: str, first: str) -> None:
    assert official_scenes(split)[0] == first


def test_official_list_is_found_by_the_name_of_its_split() -> None:
    assert official_scenes("val") == official_scenes(Split.VAL)


def test_official_list_of_an_unknown_split_is_an_error() -> None:
    with pytest.raises(UsageError, match="'training' is not a split"):
        official_scenes("training")


NOT_SCENE_IDS = pytest.mark.parametrize(
    "text",
    [
        "",
        "scene0000_00\n",
        "scene\u0660\u0660\u0660\u0660_\u0660\u0660",
        "scene0000",
        "scene000_00",
        "scene0000_000",
        "Scene0000_00",
        "../scene0000_00",
    ],
    ids=ascii,
)


@NOT_SCENE_IDS
def test_other_text_is_not_a_valid_scene_id(text: str) -> None:
    assert not SceneId.is_valid(text)


@NOT_SCENE_IDS
def test_scene_id_of_another_text_is_an_error(text: str) -> None:
    with pytest.raises(UnknownSceneError, match="is not a scene id"):
        SceneId(text)
