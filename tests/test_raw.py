"""Readers of the release's files, and where they lie: what they make of good, odd and wrong input."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Ply

from scannet_prep.base.errors import MissingFileError, RawFileError
from scannet_prep.raw.info import read_scan_info
from scannet_prep.raw.layout import find_raw_scenes
from scannet_prep.raw.mesh import MAX_UNMAPPED_BYTES, count_elements, read_labels_mesh, read_mesh
from scannet_prep.raw.segments import read_aggregation, read_segments
from scannet_prep.release.files import MESH

TEXT = "ascii"
FORMATS = ["binary_little_endian", "binary_big_endian", TEXT]
NEWLINES = (b"\n", b"\r\n", b"\r\r\n")


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(0, 2**63 - 1)), min_size=1, max_size=40),
    st.sampled_from(["", " "]),
    st.sampled_from(["\n", "\r\n", "\r\r\n"]),
)
@settings(max_examples=40)
def test_segments_agree_with_np_unique_on_both_ways_to_read_them(ids, space, newline) -> None:
    found = tiny.read_bytes(
        read_segments, tiny.segments_file(tuple(ids), space=space, newline=newline)
    )
    raw_ids, indices = np.unique(np.array(ids, np.int64), return_inverse=True)
    assert found.raw_ids.tolist() == raw_ids.tolist()
    assert found.indices.tolist() == indices.tolist()
    assert found.raw_ids[found.indices].tolist() == ids
    assert found.scene_id == "scene0000_00"


def test_segment_indices_are_stored_in_the_smallest_type_that_holds_them() -> None:
    for count, dtype in ((65_536, np.uint16), (65_537, np.uint32)):
        compact = tiny.read_bytes(
            read_segments, tiny.segments_file(tuple(range(count)))
        ).compact_indices()
        assert (compact.dtype, compact[-1]) == (dtype, count - 1)


def test_groups_are_read_with_all_that_the_file_says() -> None:
    found = tiny.read_bytes(
        read_aggregation,
        tiny.aggregation_file([*tiny.GROUPS, tiny.group("7", ["4", None, 5], "door", "9")]),
    )
    assert found.scene_id == "scene0000_00"
    found_groups = [(item.id, item.object_id, item.raw_category) for item in found.groups]
    assert found_groups == [(0, 0, "floor"), (1, 2, "wall"), (7, 9, "door")]
    assert found.groups[2].segment_ids == (4, None, 5)
    # Names that are null or missing are empty.
    for text in ('{"segGroups": []}', '{"segGroups": [], "sceneId": null, "segmentsFile": null}'):
        found = tiny.read_bytes(read_aggregation, text.encode())
        assert (found.scene_id, found.groups) == ("", ())
    assert tiny.read_bytes(read_segments, b'{"segIndices": [0], "sceneId": null}').scene_id == ""
    # Ids may be strings of digits, and the scene may be prefixed.
    segments = tiny.read_bytes(
        read_segments, b'{"sceneId": "scannet.scene0001_00", "segIndices": ["4", 4, 0]}'
    )
    assert (segments.scene_id, segments.indices.tolist()) == ("scene0001_00", [1, 1, 0])


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r\r\n", "\r"])
def test_metadata_is_read_whatever_its_line_ends_and_blanks(newline: str) -> None:
    data = tiny.info_file(
        "", "  ", "sceneType = Bedroom / Hotel", "equation = a = b", "", newline=newline
    )
    found = tiny.read_bytes(read_scan_info, data)
    assert found.axis_alignment.tolist() == np.reshape(tiny.ALIGNMENT, (4, 4)).tolist()
    assert found.axis_alignment.dtype == np.float64
    assert found.scene_type == "Bedroom / Hotel"
    # A test scene has neither.
    found = tiny.read_bytes(read_scan_info, b"colorHeight = 968\r\n")
    assert (found.axis_alignment, found.scene_type) == (None, None)


@pytest.mark.parametrize("parent", ["", "scans", "scans_test"])
def test_scenes_are_found_in_each_layout_and_what_is_no_scene_is_passed_over(
    tmp_path: Path, parent: str
) -> None:
    for name in (
        "scene0000_01",
        "scene0000_00",
        "._scene0000_02",
        "tmp_scene",
        "scene12_00",
        "notes",
    ):
        (tmp_path / parent / name).mkdir(parents=True)
    found = find_raw_scenes(tmp_path)
    assert list(found) == ["scene0000_00", "scene0000_01"]
    assert (
        found["scene0000_00"].path(MESH)
        == tmp_path / parent / "scene0000_00/scene0000_00_vh_clean_2.ply"
    )


def test_of_two_folders_of_a_scene_the_one_with_a_mesh_counts_and_none_at_all_is_an_error(
    tmp_path: Path,
) -> None:
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(MissingFileError) as caught:
            find_raw_scenes(folder)
        assert "scans/scene0000_00" in caught.value.hint
    (tmp_path / "scene0000_00").mkdir()
    scene = tiny.write_tiny(tmp_path)
    assert find_raw_scenes(tmp_path)["scene0000_00"] == scene
    (tmp_path / "scene0000_00/scene0000_00_vh_clean_2.ply").write_bytes(b"x")
    assert find_raw_scenes(tmp_path)["scene0000_00"].problem.endswith("remove one of the two")


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    "knobs",
    [
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
    ],
    ids=str,
)
def test_a_mesh_is_read_by_name_whatever_else_the_file_holds(format_name: str, knobs: dict) -> None:
    mesh = tiny.read_bytes(read_mesh, Ply(format=format_name, **knobs).encode())
    ply = Ply(**knobs)
    assert mesh.positions.tolist() == [list(position) for position in ply.positions]
    assert mesh.colors.tolist() == [list(color) for color in ply.colors]
    assert mesh.faces.tolist() == [list(face) for face in ply.faces or ()]
    assert (mesh.colors.dtype, mesh.faces.dtype, mesh.faces.shape[1]) == (np.uint8, np.int32, 3)
    assert all(array.flags.c_contiguous for array in (mesh.positions, mesh.colors, mesh.faces))
    assert mesh.positions.dtype == (np.float64 if "position_type" in knobs else np.float32)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("label_type", ["ushort", "uchar", "int", "short"])
def test_labels_mesh_is_read_with_labels_of_any_integer_type(
    format_name: str, label_type: str
) -> None:
    ply = Ply(format=format_name, labels=(0, 1, 40, 50, 100, 39), label_type=label_type)
    mesh = tiny.read_bytes(read_labels_mesh, ply.encode())
    assert mesh.positions.tolist() == [list(position) for position in ply.positions]
    assert (mesh.labels.dtype, mesh.labels.tolist()) == (np.uint16, [0, 1, 40, 50, 100, 39])


@pytest.mark.parametrize("read", [read_mesh, count_elements])
def test_labels_mesh_under_the_name_of_the_mesh_is_refused(read) -> None:
    with pytest.raises(
        RawFileError, match=r"is a labels\.ply under the name of the mesh"
    ) as caught:
        tiny.read_bytes(read, Ply(labels=(0,) * 6).encode())
    assert "scannet-prep download" in caught.value.hint


def test_mesh_without_labels_is_refused_as_a_labels_mesh() -> None:
    with pytest.raises(RawFileError, match="have no property label; they have x, y, z"):
        tiny.read_bytes(read_labels_mesh, Ply().encode())


NO_SEGMENT_IDS = [
    "[]", "null", "{}", "7", '"0,1"', "[null]", "[-1]", "[0, 1.5]", "[true]", "[0,,1]", "[0,1,]", "[,0]", "[0 1]",
    '["1_0"]', '["-1"]', "[[0]]", "[9223372036854775808]", "[" + "9" * 5000 + "]", "[NaN]", "[1e3]",
    "[00,1]", "[0,01]", "[1,007]", "[0,1,00]", '[1,2], "segIndices": []', '[], "params": {"segIndices": [1,2]}',
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
        "lists other than .* at most 10,000,000",
    ),
    (
        Ply(format=TEXT, counts={"vertex": 500_000}, tail=b"1\n" * 500_000).encode(),
        "and 500,004 rows, expected at most 10,000,000 and 500,000",
    ),
]
ERRORS = {
    read_segments: RawFileError,
    read_aggregation: RawFileError,
    read_scan_info: RawFileError,
    read_mesh: RawFileError,
    read_labels_mesh: RawFileError,
}


@pytest.mark.parametrize(
    ("read", "data", "problem"),
    [
        *(
            (read_segments, f'{{"segIndices": {ids}}}'.encode(), "scene0000_00")
            for ids in NO_SEGMENT_IDS
        ),
        *((read_aggregation, tiny.aggregation_file(groups), place) for groups, place in NO_GROUPS),
        *((read, *case) for read in (read_segments, read_aggregation) for case in NO_JSON_OBJECTS),
        *((read_scan_info, *case) for case in NO_METADATA),
        *((read_mesh, *case) for case in DAMAGED_MESHES),
        *(
            (read, Ply(format=name, **knobs).encode(), f"scene0000_00.*: .*({problem})")
            for name in FORMATS
            for read, cases in ((read_mesh, WRONG_MESHES), (read_labels_mesh, WRONG_LABELS))
            for knobs, problem in cases
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:30]),
)
def test_files_that_are_damaged_or_of_another_kind_are_refused_with_place_and_numbers(
    read, data: bytes, problem
) -> None:
    with pytest.raises(ERRORS[read], match=problem):
        tiny.read_bytes(read, data)
