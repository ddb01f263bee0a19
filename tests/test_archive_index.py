"""The index of an archive: what contradicts itself is refused, whatever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archives import pack_tree, write_tree
from hypothesis import assume, given
from hypothesis import strategies as st

from scannet_prep.archive.index import Index, encode_group, encode_index, parse_index
from scannet_prep.archive.tar import encode_header, header_bytes

FILES = {
    "manifest.txt": b"m" * 700,
    "train/scene0000_00.npz": b"a" * 1_000,
    "train/scene0000_00_notes.txt": b"b" * 600,
    "train/scene0000_00_z.txt": b"",
    "val/scene0011_00.npz": b"c" * 10,
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    root = tmp_path_factory.mktemp("index")
    return pack_tree(write_tree(root / "tree", FILES), root / "a.tar.zst").index


def encode(index: Index) -> Any:
    data = encode_index(index.head, encode_group(index.files), [*map(encode_group, index.scenes)], index.failures)
    assert parse_index(data) == index
    return json.loads(data)


def test_an_index_is_read_as_it_was_written(index: Index) -> None:
    encode(index)
    assert [[member.name for member in group.members] for group in index.groups] == [
        [".scannet-prep/format.json", "manifest.txt"],
        ["train/scene0000_00.npz", "train/scene0000_00_notes.txt", "train/scene0000_00_z.txt"],
        ["val/scene0011_00.npz"],
    ]


def set_value(*path: Any) -> Callable[[Any], None]:
    """Put the last of the arguments where the others lead."""

    def change(value: Any) -> None:
        for key in path[:-2]:
            value = value[key]
        value[path[-2]] = path[-1]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_value("scenes", 0, "members", 1, 1, 600), "members of scene0000_00 overlap"),
        (set_value("scenes", 0, "members", 1, 2, 1_600), "members of scene0000_00 overlap"),
        (set_value("scenes", 0, "members", 2, 1, 1 << 40), "members of scene0000_00 overlap, or exceed"),
        (set_value("scenes", 1, "members", 0, 2, 600), "members of scene0011_00 overlap, or exceed"),
        (set_value("files", "members", 1, 2, 1 << 62), "members of no scene overlap, or exceed"),
        (set_value("scenes", 0, "members", 1, 1, True), "no number"),
        (set_value("scenes", 0, "members", 1, 1, 1.0), "no number"),
        (set_value("scenes", 0, "members", 1, 1, "1"), "no number"),
        (set_value("scenes", 0, "members", 1, 1, -1), "negative"),
        (set_value("scenes", 0, "members", 1, 1, 1 << 70), "index is damaged"),
        (set_value("scenes", 0, "members", 1, 0, 5), "has no name"),
        (set_value("scenes", 0, "members", 1, ["x", 1, 2]), "is no member"),
        (set_value("scenes", 0, "members", 1, "abcd"), "is no member"),
        (set_value("scenes", 0, "members", 5), "'members' is not of type list"),
        (set_value("scenes", 0, "frames", [1]), "no first frame"),
        (set_value("scenes", 0, "frames", [1, 2]), "do not follow each other"),
        (set_value("scenes", 0, "frames", [1, "1"]), "no number"),
        (set_value("scenes", 1, "offset", 3), "do not follow each other"),
        (set_value("files", "offset", 3), "do not follow each other"),
        (set_value("scenes", 0, "stored", (1 << 63) - 1), "do not follow each other"),
        (set_value("scenes", 0, "size", -5), "negative"),
        (set_value("scenes", 0, "size", None), "'size' is not of type int"),
        (set_value("scenes", 0, "sha256", 7), "'sha256' is not of type str"),
        (set_value("scenes", 0, "id", "scene"), "no scene id"),
        (set_value("scenes", 0, "id", "scene0011_00"), "not sorted"),
        (set_value("files", "id", "scene0000_00"), "no scene id"),
        (set_value("scenes", 0, []), "index is damaged"),
        (set_value("scenes", 7), "index is damaged"),
        (set_value("failures", []), "index is damaged"),
        (set_value("version", 2), "update scannet-prep"),
        (set_value("format", "tar"), "the format is 'tar'"),
    ],
)
def test_what_contradicts_itself_is_refused(index: Index, change: Callable[[Any], None], message: str) -> None:
    value = encode(index)
    change(value)
    with pytest.raises(ValueError, match=message):
        parse_index(json.dumps(value).encode())


def test_archives_may_be_empty(tmp_path: Path) -> None:
    empty = pack_tree(write_tree(tmp_path / "tree", {"notes.txt": b""}), tmp_path / "a.tar.zst").index
    assert empty.scenes == ()
    encode(empty)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=3), items, max_size=2),
    max_leaves=4,
)


@given(
    st.integers(90, 110).flatmap(lambda size: st.text("aä\u4e2d/", min_size=size, max_size=size)) | st.text(max_size=9),
    st.integers(0, 99) | st.integers(8**11 - 3, 8**11 + 3),
)
def test_the_size_of_a_header_is_known_without_encoding_it(name: str, size_bytes: int) -> None:
    assume("\0" not in name and name.isprintable() and name)
    assert header_bytes(name, size_bytes) == len(encode_header(name, size_bytes))


@given(st.data())
def test_whatever_stands_in_the_place_of_a_value_is_an_error_of_ours(index: Index, data: st.DataObject) -> None:
    value = encode(index)
    place = value
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    try:
        parse_index(json.dumps(value).encode())
    except ValueError as error:
        assert str(error)  # noqa: PT017 - the new value may be as good as the old one
