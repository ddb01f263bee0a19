"""Label sets, the label map and the official lists, against the files of the benchmark."""

import hashlib
import pickle
from importlib import resources

import numpy as np
import oracles
import pytest

from scannet_prep.errors import FileError, UsageError
from scannet_prep.release.label_map import (
    LabelMap,
    RawIds,
    builtin_label_map,
    describe_differences,
    read_label_map,
)
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, parse_label_set

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
NAME = "scannetv2-labels.combined.tsv"
HEADER = "id\traw_category\tcategory\tcount\tnyu40id\teigen13id"
ROWS = (
    "1\twall\twall\t8277\t1\t12",
    "2\tchair\tchair\t4646\t5\t4",
    "1163\tobject\tobject\t1313\t40\t7",
)
WHOLE_MAP = "".join(f"{line}\r\n" for line in (HEADER, *ROWS, "5\tshelf\tshelf\t1\t39\t6")).encode()
BOTH_SETS = pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=lambda one: one.name)


def write_map(folder, *rows, header=HEADER):
    path = folder / NAME
    path.write_text("\n".join([header, *rows, ""]))
    return path


@BOTH_SETS
def test_label_set_is_the_table_of_the_benchmark_and_maps_raw_ids_as_a_loop_does(label_set):
    rows = oracles.read_asset(f"{label_set.name.lower()}.csv", ",")
    for one, row in zip(label_set.classes, rows, strict=True):
        values = (one.train_id, one.raw_id, one.name, *one.color)
        assert [str(value) for value in values] == list(row.values())[:6]
        assert one.frequency == row.get("frequency")
        assert one.in_val == (row.get("in_val") != "0")
    assert label_set.ids == tuple(sorted(label_set.ids))
    assert pickle.loads(pickle.dumps(label_set)).ids == label_set.ids

    raw_ids = np.append(np.arange(2000), 65_535).astype(np.uint16)
    label = oracles.labels20 if label_set is SCANNET20 else oracles.labels200
    labels = label(raw_ids.tolist())
    train_ids = label_set.train_ids_from_raw_ids(raw_ids, -100)
    assert label_set.labels_from_raw_ids(raw_ids).tolist() == labels
    assert train_ids.dtype == np.int64
    assert train_ids.tolist() == [label - 1 if label else -100 for label in labels]


@BOTH_SETS
def test_label_set_is_a_sequence_and_a_mapping_of_its_classes(label_set):
    classes = list(label_set)
    assert label_set.num_classes == len(label_set) == len(classes)
    assert [label_set[train_id] for train_id in np.arange(len(label_set))] == classes
    assert [label_set[name] for name in label_set.names] == classes
    assert label_set.name_of(0) == "wall"
    assert label_set.name_of(-1) == "unlabeled"

    other = SCANNET200 if label_set is SCANNET20 else SCANNET20
    assert all(key in label_set for key in ("wall", 0, 19, classes[5]))
    assert not any(key in label_set for key in ("walls", -1, len(classes), other[5], None))
    for key in (-1, len(classes), "walls"):
        with pytest.raises(UsageError, match=label_set.name):
            label_set[key]
    for train_id in (len(classes), 255, -2):
        with pytest.raises(UsageError, match=f"{train_id} is not a train id of") as caught:
            label_set.name_of(train_id)
        assert "train id + 1" in caught.value.hint


def test_head_common_and_tail_divide_scannet200_only():
    for label_set, counts in ((SCANNET20, [0, 0, 0]), (SCANNET200, [66, 68, 66])):
        assert [len(part) for part in [label_set.head, label_set.common, label_set.tail]] == counts
    assert {SCANNET200.classes[train_id].frequency for train_id in SCANNET200.tail} == {"tail"}


def test_label_set_is_parsed_from_itself_or_its_name():
    for name in ("scannet200", "ScanNet200", "SCANNET200", SCANNET200):
        assert parse_label_set(name) is SCANNET200
    for value in ("scannet", "200", "", 200, None, ["scannet20"]):
        with pytest.raises(UsageError, match="is not a label set, expected ScanNet20 or ScanNet2"):
            parse_label_set(value)


def test_builtin_tables_are_those_of_the_release():
    for name, digest in DIGESTS.items():
        data = (resources.files("scannet_prep") / "assets" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest()[:16] == digest, name
    rows = builtin_label_map().rows
    assert {name: tuple(ids) for name, ids in rows.items()} == oracles.label_map_rows()


def test_label_map_is_read_in_any_form_and_has_the_same_digest(tmp_path):
    path = write_map(tmp_path, *ROWS)
    label_map = read_label_map(path)

    assert label_map.rows == {"wall": (1, 1), "chair": (2, 5), "object": (1163, 40)}
    assert label_map.source == str(path)
    # Repeated rows, another order, a row that ends early.
    short = "1163\tobject\tobject\t1313\t40"
    for rows in ((*ROWS, ROWS[0]), ROWS[::-1], (*ROWS[:2], short)):
        other = read_label_map(write_map(tmp_path, *rows))
        assert other.rows == label_map.rows
        assert other.digest == label_map.digest

    # Columns are found by name. An own map may give 0, which is unannotated.
    path = write_map(tmp_path, '0\t"wall"\t1', header="nyu40id\traw_category\tid")
    assert read_label_map(path).rows == {'"wall"': RawIds(1, 0)}
    path.write_bytes(WHOLE_MAP[:-3])  # the last column of the last row is empty
    assert read_label_map(path).rows["shelf"] == RawIds(5, 39)


ROW = "3\tfloor\tfloor\t1\t2\t11"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "its columns are '', expected one column raw_category and one id and one nyu40id"),
        (b"<html>\n", "its columns are '<html>'"),
        (b"x" + b" " * 1_000_000 + b"x", "its columns are 'x "),
        (WHOLE_MAP.replace(b"raw_category", b"category"), "expected one column raw_category\n"),
        (WHOLE_MAP.replace(b"count", b"id"), "id, nyu40id, eigen13id', expected one column id\n"),
        (WHOLE_MAP.splitlines(keepends=True)[0], "has a header and 0 rows, expected about 607"),
        (WHOLE_MAP[:-4], "row 5"),
        (WHOLE_MAP + b"3\tfloor", "row 6 has 'floor'"),
        (b"id\tnyu40id\traw_category\n5\t1\n", "row 2 has None"),
        (WHOLE_MAP + b"2\tchair\tchair\t1\t7\t1\n", "row 6 has 'chair', id '2', nyu40id '7'"),
        (WHOLE_MAP + ROW.replace("3", "x").encode(), "row 6 has 'floor', id 'x'"),
        (WHOLE_MAP + ROW.replace("3", "65536").encode(), "whole numbers up to 65535 and 40"),
        (WHOLE_MAP + ROW.replace("\t2", "\t41").encode(), "nyu40id '41'"),
        (WHOLE_MAP + ROW.replace("\t2", "\t٢").encode(), "row 6"),
        (WHOLE_MAP + ROW.replace("\t2", "\t" + "9" * 5000).encode(), "row 6"),
        (WHOLE_MAP + b"x" * 200_000, "row 6 has None, id 'xxx"),
    ],
)
def test_damaged_label_map_is_refused_with_the_row(tmp_path, data, problem):
    (tmp_path / "map.tsv").write_bytes(data)

    with pytest.raises(FileError, match=problem) as caught:
        read_label_map(tmp_path / "map.tsv")

    assert "built-in" in caught.value.hint


def test_only_changed_and_missing_rows_of_the_release_are_differences():
    rows = {**builtin_label_map().rows, "fish tank": RawIds(9000, 40)}
    assert describe_differences(LabelMap("map.tsv", rows)) == ""

    rows["floor"] = RawIds(3, 4)
    del rows["stick"]
    assert describe_differences(LabelMap("map.tsv", rows)) == (
        "differs from the label map of the release: floor, stick"
    )
