"""Tests of the readers of raw files: good, unusual and damaged input."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Ply

from scannet_prep.errors import MissingFileError, RawFileError
from scannet_prep.raw.contents import read_raw_file
from scannet_prep.raw.layout import find_raw_scenes
from scannet_prep.raw.mesh import Mesh, count_elements
from scannet_prep.raw.ply import MAX_UNMAPPED_BYTES
from scannet_prep.release.files import (
    AGGREGATION,
    INFO,
    LABELS_MESH,
    MESH,
    SEGMENTS,
    FileKind,
)

TEXT = "ascii"
FORMATS = ["binary_little_endian", "binary_big_endian", TEXT]
NEWLINES = (b"\n", b"\r\n", b"\r\r\n")


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(0, 2**63 - 1)), min_size=1, max_size=40),
    st.sampled_from(["", " "]),
    st.sampled_from(["\n", "\r\n", "\r\r\n"]),
)
@settings(max_examples=40)
def test_segments_agree_with_np_unique_for_any_ids(
    ids: list[int], space: str, newline: str
) -> None:
    data = tiny.segments_file(tuple(ids), space=space, newline=newline)
    segmentation = tiny.read_raw(SEGMENTS, data)

    raw_ids, indices = np.unique(np.array(ids, np.int64), return_inverse=True)
    assert segmentation.raw_ids.tolist() == raw_ids.tolist()
    assert segmentation.indices.tolist() == indices.tolist()
    assert segmentation.raw_ids[segmentation.indices].tolist() == ids


def test_segments_have_the_scene_id_of_their_file() -> None:
    segmentation = tiny.read_raw(SEGMENTS, tiny.segments_file((0, 0, 2)))

    assert segmentation.scene_id == "scene0000_00"


@pytest.mark.parametrize(("count", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_compact_indices_have_the_smallest_type_that_holds_them(
    count: int, dtype: type[np.integer]
) -> None:
    data = tiny.segments_file(tuple(range(count)))

    compact = tiny.read_raw(SEGMENTS, data).compact_indices()

    assert compact.dtype == dtype
    assert compact[-1] == count - 1


def test_groups_are_read_with_ids_categories_and_segments() -> None:
    groups = [*tiny.GROUPS, tiny.group("7", ["4", None, 5], "door", "9")]

    aggregation = tiny.read_raw(AGGREGATION, tiny.aggregation_file(groups))

    assert aggregation.scene_id == "scene0000_00"
    values = [(group.id, group.object_id, group.raw_category) for group in aggregation.groups]
    assert values == [(0, 0, "floor"), (1, 2, "wall"), (7, 9, "door")]
    assert aggregation.groups[2].segment_ids == (4, None, 5)


@pytest.mark.parametrize(
    "data",
    [b'{"segGroups": []}', b'{"segGroups": [], "sceneId": null, "segmentsFile": null}'],
)
def test_missing_or_null_scene_name_of_groups_is_empty(data: bytes) -> None:
    aggregation = tiny.read_raw(AGGREGATION, data)

    assert aggregation.scene_id == ""
    assert aggregation.groups == ()


def test_null_scene_name_of_segments_is_empty() -> None:
    segmentation = tiny.read_raw(SEGMENTS, b'{"segIndices": [0], "sceneId": null}')

    assert segmentation.scene_id == ""


def test_segment_ids_may_be_strings_and_the_scene_name_prefixed() -> None:
    data = b'{"sceneId": "scannet.scene0001_00", "segIndices": ["4", 4, 0]}'

    segmentation = tiny.read_raw(SEGMENTS, data)

    assert segmentation.scene_id == "scene0001_00"
    assert segmentation.indices.tolist() == [1, 1, 0]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r\r\n", "\r"])
def test_metadata_is_read_with_any_line_ends_and_blanks(newline: str) -> None:
    lines = ("", "  ", "sceneType = Bedroom / Hotel", "equation = a = b", "")
    data = tiny.info_file(*lines, newline=newline)

    info = tiny.read_raw(INFO, data)

    assert info.axis_alignment.tolist() == np.reshape(tiny.ALIGNMENT, (4, 4)).tolist()
    assert info.axis_alignment.dtype == np.float64
    assert info.scene_type == "Bedroom / Hotel"


def test_metadata_of_a_test_scene_has_neither_alignment_nor_type() -> None:
    info = tiny.read_raw(INFO, b"colorHeight = 968\r\n")

    assert info.axis_alignment is None
    assert info.scene_type is None


@pytest.mark.parametrize("parent", ["", "scans", "scans_test"])
def test_scenes_are_found_in_each_layout_without_other_folders(tmp_path: Path, parent: str) -> None:
    other_names = ("._scene0000_02", "tmp_scene", "scene12_00", "notes")
    for name in ("scene0000_01", "scene0000_00", *other_names):
        (tmp_path / parent / name).mkdir(parents=True)

    scenes = find_raw_scenes(tmp_path)

    assert list(scenes) == ["scene0000_00", "scene0000_01"]
    expected = tmp_path / parent / "scene0000_00/scene0000_00_vh_clean_2.ply"
    assert scenes["scene0000_00"].path(MESH) == expected


@pytest.mark.parametrize("name", ["absent", "."])
def test_folder_without_scenes_is_an_error_that_shows_the_layout(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingFileError) as caught:
        find_raw_scenes(tmp_path / name)

    assert "scans/scene0000_00" in caught.value.hint


def test_folder_with_a_mesh_is_used_if_a_scene_has_two(tmp_path: Path) -> None:
    (tmp_path / "scene0000_00").mkdir()
    scene = tiny.write_tiny(tmp_path)

    assert find_raw_scenes(tmp_path)["scene0000_00"] == scene


def test_scene_with_two_meshes_is_found_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "scene0000_00").mkdir()
    tiny.write_tiny(tmp_path)
    (tmp_path / "scene0000_00/scene0000_00_vh_clean_2.ply").write_bytes(b"x")

    scene = find_raw_scenes(tmp_path)["scene0000_00"]

    assert scene.problem.endswith("remove one of the two")


# Properties and elements that a mesh may have; see `tiny.Ply`.
KNOBS: list[dict[str, Any]] = [
    {},
    {"newline": "\r\n"},
    {"faces": ()},
    {"faces": None, "positions": tiny.POSITIONS[:1], "colors": tiny.COLORS[:1]},
    {"comments": ("comment", "obj_info a b", "comment twice")},
    {"extra_before": (("double", "quality"), ("uchar", "flags"))},
    {"face_list": "vertex_index"},
    {"count_type": "int", "index_type": "uint"},
    {"index_type": "uchar"},
    {"face_extra": (("uchar", "flags"), ("float", "area"))},
    {"vertex_list": "neighbours"},
    {"last_element": "camera"},
    {"position_type": "double"},
]


@pytest.fixture(scope="module", params=FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=KNOBS, ids=str)
def ply_and_mesh(request: pytest.FixtureRequest, format_name: str) -> tuple[Ply, Mesh]:
    """A mesh of unusual form, and what is read from its file."""
    ply = Ply(format=format_name, **request.param)
    return ply, tiny.read_raw(MESH, ply.encode())


def test_positions_are_read_by_property_names(ply_and_mesh: tuple[Ply, Mesh]) -> None:
    ply, mesh = ply_and_mesh

    assert mesh.positions.dtype == (np.float64 if ply.position_type == "double" else np.float32)
    assert mesh.positions.tolist() == [list(position) for position in ply.positions]


def test_colors_are_read_by_property_names(ply_and_mesh: tuple[Ply, Mesh]) -> None:
    ply, mesh = ply_and_mesh

    assert mesh.colors.dtype == np.uint8
    assert mesh.colors.tolist() == [list(color) for color in ply.colors]


def test_faces_are_read_by_property_names(ply_and_mesh: tuple[Ply, Mesh]) -> None:
    ply, mesh = ply_and_mesh

    assert mesh.faces.dtype == np.int32
    assert mesh.faces.shape[1] == 3
    assert mesh.faces.tolist() == [list(face) for face in ply.faces or ()]


@pytest.mark.parametrize("name", ["positions", "colors", "faces"])
def test_arrays_of_a_mesh_are_contiguous(ply_and_mesh: tuple[Ply, Mesh], name: str) -> None:
    _, mesh = ply_and_mesh

    assert getattr(mesh, name).flags.c_contiguous


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("label_type", ["ushort", "uchar", "int", "short"])
def test_labels_mesh_is_read_with_labels_of_any_integer_type(
    format_name: str, label_type: str
) -> None:
    ply = Ply(format=format_name, labels=(0, 1, 40, 50, 100, 39), label_type=label_type)

    mesh = tiny.read_raw(LABELS_MESH, ply.encode())

    assert mesh.positions.tolist() == [list(position) for position in ply.positions]
    assert mesh.labels.dtype == np.uint16
    assert mesh.labels.tolist() == [0, 1, 40, 50, 100, 39]


@pytest.mark.parametrize("read", [partial(read_raw_file, MESH), count_elements])
def test_labels_mesh_under_the_name_of_the_mesh_is_refused(
    read: Callable[[Path], object],
) -> None:
    problem = r"is a labels\.ply under the name of the mesh"
    with pytest.raises(RawFileError, match=problem) as caught:
        tiny.read_bytes(read, Ply(labels=(0,) * 6).encode())

    assert "scannet-prep download" in caught.value.hint


def test_mesh_without_labels_is_refused_as_a_labels_mesh() -> None:
    with pytest.raises(RawFileError, match="have no property label; they have x, y, z"):
        tiny.read_raw(LABELS_MESH, Ply().encode())


NO_SEGMENT_IDS = [
    # Not a list.
    "[]", "null", "{}", "7", '"0,1"',
    # Elements that are not ids.
    "[null]", "[-1]", "[0, 1.5]", "[true]", '["1_0"]', '["-1"]', "[[0]]", "[NaN]", "[1e3]",
    "[9223372036854775808]", "[" + "9" * 5000 + "]",
    # Not JSON.
    "[0,,1]", "[0,1,]", "[,0]", "[0 1]", "[00,1]", "[0,01]", "[1,007]", "[0,1,00]",
    # Two lists.
    '[1,2], "segIndices": []', '[], "params": {"segIndices": [1,2]}',
]  # fmt: skip
NO_GROUPS = [
    (None, r"got `null` - at `\$\.segGroups`"),
    ({}, r"got `object` - at `\$\.segGroups`"),
    ([3], r"at `\$\.segGroups\[0\]`"),
    ([tiny.GROUPS[0], tiny.group(1, None, "chair")], r"at `\$\.segGroups\[1\]\.segments`"),
    ([tiny.group(1, [0, 1.5], "chair")], r"got `float` - at `\$\.segGroups\[0\]\.segments\[1\]`"),
    ([tiny.group(True, [0], "chair")], r"got `bool` - at `\$\.segGroups\[0\]\.id`"),
    ([tiny.group(1, [0], "chair", "one")], r"at `\$\.segGroups\[0\]\.objectId`"),
    ([tiny.group(1, [0], 5)], r"got `int` - at `\$\.segGroups\[0\]\.label`"),
    (
        [tiny.group(1, [0], "x" * 1_001)],
        r"`str` of length <= 1000 - at `\$\.segGroups\[0\]\.label`",
    ),
]
NO_JSON_OBJECTS = [
    (b"", "is empty"),
    (b"  <!DOCTYPE html>", "is a web page, expected JSON"),
    (b"\x00" * 64, "is nothing but zeros"),
    (b"[" * 100_000, "is damaged"),
    (b'{"a":' * 100_000, "is not JSON"),
    (b'{"a": "\xff"}', "is not JSON"),
    (b"[1, 2]", "Expected `object`, got `array`"),
    (
        b'{"note": "segIndices", "params": {"segIndices": [1], "segGroups": []}}',
        "missing required field",
    ),
]
NO_METADATA = [
    (b"", "is empty"),
    (b"a = \xff", "is not text: byte 4 is 0xff"),
    *(
        (newline.join([b"a = 1", b"b = 2", b"nonsense", b""]), "line 3 reads 'nonsense'")
        for newline in NEWLINES
    ),
    (tiny.info_file().decode().encode("utf-16-le"), "is not text"),
    (b"axisAlignment = 1 0\naxisAlignment = 2 0\n", "has two different values for axisAlignment"),
    (b"axisAlignment = " + b"1 " * 15, "axisAlignment has 15 values"),
    (b"axisAlignment = " + b"1 " * 15 + b"x", "axisAlignment has 'x' among them"),
    (b"axisAlignment = " + b"1 " * 15 + b"1e999", "axisAlignment has '1e999' among them"),
    (b"axisAlignment = " + "\u0661 ".encode() * 16, "axisAlignment has"),
]
SIZE = len(Ply().encode())
WRONG_MESHES = [
    ({"faces": ((0, 1, 2, 3), (3, 2, 5))}, "face 0 is not a triangle|is damaged"),
    ({"faces": ((0, 1, 6),)}, "refers to vertex 6, but there are 6 vertices"),
    ({"face_list": "corners"}, "no list vertex_indices or vertex_index"),
    ({"index_type": "float"}, "expected a list of whole numbers"),
    ({"positions": ((float("nan"), 0, 0), *tiny.POSITIONS[1:])}, "vertex 0 has the coordinates"),
    (
        {"positions": ((1e39, 0, 0), *tiny.POSITIONS[1:]), "position_type": "double"},
        "vertex 0 has the coordinates .* up to 1,000,000",
    ),
    ({"position_type": "int"}, "x, y, z have type .*expected float"),
    ({"color_type": "ushort"}, "red, green, blue have type .*expected uchar"),
    ({"extra_before": (("float", "x"),)}, "two properties with same name"),
    ({"positions": (), "colors": (), "faces": ()}, "has no vertices"),
]
WRONG_LABELS = [
    ({"labels": (0, 0, -1, 0, 0, 0), "label_type": "short"}, "label has type .* from -1 to 0"),
    ({"labels": (0,) * 6, "label_type": "float"}, "label has type"),
]
DAMAGED_MESHES = [
    (b"", "is empty"),
    (b"<html><body>Not found</body></html>", "is a web page, expected a PLY file"),
    (b"plane", "is not a PLY file: it begins with b'plane'"),
    (Ply().encode()[:60], "has no line end_header in its first 60 bytes"),
    (Ply().encode()[:-1], f"truncated .{SIZE - 1} bytes.: element 'face'"),
    (Ply().encode()[:300], "truncated .300 bytes.: element 'vertex'"),
    (Ply(tail=b"\n").encode(), f"has {SIZE + 1} bytes, but its header accounts for {SIZE}"),
    (
        Ply(counts={"vertex": 10**15}).encode(),
        "its header counts 1000000000000000 x vertex, but it has ",
    ),
    (
        Ply().encode().replace(b"element vertex ", b"element vertex " + b"0" * 5000),
        "its header counts 0000000000.* x vertex, but it has ",
    ),
    (Ply(comments=("element vertex 2",)).encode(), "two elements with same name"),
    (Ply().encode().replace(b"float z", b"float w"), "no property z; they have x, y, w"),
    (Ply(format=TEXT).encode().replace(b"130", b"13O"), "is damaged"),
    (Ply(format=TEXT).encode()[:-3], "is damaged"),
    (Ply().encode().replace(b"end_header\n", b"end_headerX\n"), "has no line end_header in"),
    (
        Ply(format=TEXT).encode().replace(b"\n3 0 1 2", b"\n-3 0 1 2"),
        "is damaged|is not a triangle",
    ),
    (
        Ply(count_type="char").encode().replace(b"\x03\0\0\0\0\1", b"\xfd\0\0\0\0\1"),
        "face 0 is not a triangle",
    ),
    (
        Ply(comments=("comment " + "x" * 70_000,)).encode(),
        "has no line end_header in its first 65,536 bytes",
    ),
    (
        b"ply\nformat binary_little_endian 1.0\nelement vertex 5\nend_header\n",
        "without any property",
    ),
    (
        Ply().encode().replace(b"end_", b"property list uchar int vertex_index\nend_"),
        "has two lists of faces",
    ),
    (
        Ply(format=TEXT, tail=b" " * MAX_UNMAPPED_BYTES).encode(),
        "PLY file of text .* at most 10,000,000",
    ),
    (
        Ply(vertex_list="near", tail=b" " * MAX_UNMAPPED_BYTES).encode(),
        r"lists other than those of its faces \(near\) .* at most 10,000,000",
    ),
    (
        Ply(format=TEXT, counts={"vertex": 500_000}, tail=b"1\n" * 500_000).encode(),
        "and 500,004 rows, expected at most 10,000,000 and 500,000",
    ),
]


@pytest.mark.parametrize(
    ("kind", "data", "problem"),
    [
        *(
            (SEGMENTS, f'{{"segIndices": {ids}}}'.encode(), "scene0000_00")
            for ids in NO_SEGMENT_IDS
        ),
        *((AGGREGATION, tiny.aggregation_file(groups), problem) for groups, problem in NO_GROUPS),
        *((kind, *case) for kind in (SEGMENTS, AGGREGATION) for case in NO_JSON_OBJECTS),
        *((INFO, *case) for case in NO_METADATA),
        *((MESH, *case) for case in DAMAGED_MESHES),
        *(
            (kind, Ply(format=name, **knobs).encode(), f"scene0000_00.*: .*({problem})")
            for name in FORMATS
            for kind, cases in ((MESH, WRONG_MESHES), (LABELS_MESH, WRONG_LABELS))
            for knobs, problem in cases
        ),
    ],
    ids=lambda value: getattr(value, "content", str(value)[:30]),
)
def test_damaged_or_foreign_file_is_refused_with_its_problem(
    kind: FileKind, data: bytes, problem: str
) -> None:
    with pytest.raises(RawFileError, match=problem):
        tiny.read_raw(kind, data)
