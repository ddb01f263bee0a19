"""Readers of raw files: good, unusual and damaged input; and the scenes of a raw tree."""

import re
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Ply

from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.raw.segments import compact_unsigned
from scannet_prep.raw.tree import find_raw_scenes, find_strangers
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS

TEXT = "ascii"
FORMATS = ["binary_little_endian", "binary_big_endian", TEXT]


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(0, 2**63 - 1)), min_size=1, max_size=40),
    st.sampled_from(["", " "]),
    st.sampled_from(["\n", "\r\n", "\r\r\n"]),
    st.booleans(),
)
@settings(max_examples=40)
def test_segments_agree_with_np_unique_for_any_ids(ids, space, newline, are_strings):
    listed = [str(number) for number in ids] if are_strings and max(ids) < 10**18 else ids
    segmentation = tiny.read_raw(SEGMENTS, tiny.segments_file(listed, space=space, newline=newline))

    raw_ids, indices = np.unique(np.array(ids, np.int64), return_inverse=True)
    assert segmentation.scene_id == "scene0000_00"
    assert segmentation.raw_ids.tolist() == raw_ids.tolist()
    assert segmentation.indices.tolist() == indices.tolist()


@pytest.mark.parametrize(("count", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_compact_indices_have_the_smallest_type_that_holds_them(count, dtype):
    compact = compact_unsigned(np.arange(count), count)

    assert compact.dtype == dtype
    assert compact[-1] == count - 1


def test_groups_are_read_with_ids_that_are_numbers_strings_or_null():
    groups = [
        *tiny.GROUPS,
        tiny.group("7", ["4", None, 5], "door", "9"),
        {"segments": [], "label": ""},
    ]

    aggregation = tiny.read_raw(AGGREGATION, tiny.aggregation_file(groups))

    assert aggregation.scene_id == "scene0000_00"
    values = [(group.id, group.object_id, group.raw_category) for group in aggregation.groups]
    assert values == [(0, 0, "floor"), (1, 2, "wall"), (7, 9, "door"), (None, None, "")]
    assert aggregation.groups[2].segment_ids == (4, None, 5)


@pytest.mark.parametrize(
    ("name", "scene_id"),
    [
        ("null", ""),
        ('"scene0001_00"', "scene0001_00"),
        ('"scannet.scene0001_00"', "scene0001_00"),
    ],
)
def test_scene_that_a_json_file_names_is_read_in_any_form(name, scene_id):
    data = f'{{"segIndices": [0], "segGroups": [], "sceneId": {name}}}'.encode()

    assert tiny.read_raw(SEGMENTS, data).scene_id == scene_id
    assert tiny.read_raw(AGGREGATION, data).scene_id == scene_id


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r\r\n", "\r"])
def test_metadata_is_read_with_any_line_ends_and_blanks(newline):
    lines = ("", "  ", "sceneType = Bedroom / Hotel", "equation = a = b", "")
    info = tiny.read_raw(INFO, tiny.info_file(*lines, newline=newline))

    assert info.axis_alignment.tolist() == np.reshape(tiny.ALIGNMENT, (4, 4)).tolist()
    assert info.axis_alignment.dtype == np.float64
    assert info.scene_type == "Bedroom / Hotel"

    of_test_scene = tiny.read_raw(INFO, b"colorHeight = 968" + newline.encode())
    assert of_test_scene.axis_alignment is None
    assert of_test_scene.scene_type is None


# Properties and elements that a mesh may have; see `tiny.Ply`.
KNOBS = [
    {},
    {"newline": "\r\n"},
    {"newline": "\r"},
    {"faces": ()},
    {"faces": None, "positions": tiny.POSITIONS[:1], "colors": tiny.COLORS[:1]},
    {"comments": ("comment", "obj_info a b", "comment C:/Büro", "comment twice")},
    {"extra_before": (("double", "quality"), ("uchar", "flags"))},
    {"face_list": "vertex_index"},
    {"count_type": "int", "index_type": "uint"},
    {"index_type": "uchar"},
    {"face_extra": (("uchar", "flags"), ("float", "area"))},
    {"vertex_list": "neighbours"},
    {"last_element": "camera"},
    {"position_type": "double"},
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_mesh_of_any_form_is_read_by_property_names(name, knobs):
    ply = Ply(format=name, **knobs)

    mesh = tiny.read_raw(MESH, ply.encode())

    assert mesh.positions.dtype == (np.float64 if ply.position_type == "double" else np.float32)
    assert mesh.positions.tolist() == [list(position) for position in ply.positions]
    assert mesh.colors.dtype == np.uint8
    assert mesh.colors.tolist() == [list(color) for color in ply.colors]
    assert mesh.faces.dtype == np.int32
    assert mesh.faces.shape[1] == 3
    assert mesh.faces.tolist() == [list(face) for face in ply.faces or ()]
    unused = (ply.extra_before, ply.face_extra, ply.vertex_list, ply.last_element)
    notes = {"no_faces": not ply.faces, "unused_properties": any(unused)}
    assert [note.kind for note in mesh.notes] == [kind for kind, given in notes.items() if given]
    for array in (mesh.positions, mesh.colors, mesh.faces):
        assert array.flags.forc
        assert array.flags.writeable


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("label_type", ["ushort", "uchar", "int", "short"])
def test_labels_mesh_is_read_with_labels_of_any_integer_type(name, label_type):
    ply = Ply(format=name, labels=(0, 1, 40, 50, 100, 39), label_type=label_type)

    mesh = tiny.read_raw(LABELS_MESH, ply.encode())

    assert mesh.positions.tolist() == [list(position) for position in ply.positions]
    assert mesh.labels.dtype == np.uint16
    assert mesh.labels.tolist() == [0, 1, 40, 50, 100, 39]


NO_SEGMENT_IDS = [
    # Not a list.
    "[]", "null", "{}", "7", '"0,1"',
    # Elements that are not ids.
    "[null]", "[-1]", "[0, 1.5]", "[true]", '["1_0"]', '["-1"]', "[[0]]", "[NaN]",
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
    ([tiny.group(1, [0], "x" * 1_001)], r"length <= 1000 - at `\$\.segGroups\[0\]\.label`"),
]
NO_JSON_OBJECTS = [
    (b"", "is empty"),
    (b"  <!DOCTYPE html>", "is a web page, expected JSON"),
    (b"\x00" * 64, "is nothing but zeros"),
    (b"[" * 100_000, "is damaged"),
    (b'{"a":' * 100_000, "is damaged, expected JSON"),
    (b'{"a": "\xff"}', "is damaged, expected JSON"),
    (b"[1, 2]", "Expected `object`, got `array`"),
    (b'{"params": {"segIndices": [1], "segGroups": []}}', "missing required field"),
]
NO_METADATA = [
    (b"", "is empty"),
    (b"\xef\xbb\xbf", "is empty"),
    (b"a = \xff", "is not UTF-8 text: byte 4 is 0xff"),
    (b"a = \0", "line 1 reads"),
    (b"a = 1\r\r\nb = 2\r\r\nnonsense\r\r\n", "line 3 reads 'nonsense'"),
    (tiny.info_file().decode().encode("utf-16"), "is not UTF-8 text: byte 0 is 0xff"),
    (b"axisAlignment = 1 0\naxisAlignment = 2 0\n", "has two different values for axisAlignment"),
    (b"axisAlignment = " + b"1 " * 15, "axisAlignment has 15 values"),
    (b"axisAlignment = " + b"1 " * 15 + b"x", "axisAlignment has 16 values, .*1 x'"),
    (b"axisAlignment = " + b"1 " * 15 + b"1e999", "axisAlignment has 16 values, .*1e999'"),
]
SIZE = len(Ply().encode())
WRONG_MESHES = [
    (
        {"faces": ((0, 1, 2, 3), (3, 2, 5))},
        "face.: row 0: .*unexpected list length|has faces that are not triangles",
    ),
    ({"faces": ((0, 1, 2), (3, 2))}, "truncated|has faces that are not triangles"),
    ({"faces": ((0, 1, 6),)}, "refer to vertices from 0 to 6, but there are 6 vertices"),
    ({"faces": ((0, 1, -1),)}, "refer to vertices from -1 to 1"),
    ({"face_list": "corners"}, "faces have 0 lists vertex_indices or vertex_index"),
    ({"index_type": "float"}, "vertex_indices as float32, expected whole numbers"),
    ({"positions": ((float("nan"), 0, 0), *tiny.POSITIONS[1:])}, "has coordinates from nan to nan"),
    (
        {"positions": ((1e39, 0, 0), *tiny.POSITIONS[1:]), "position_type": "double"},
        r"has coordinates from 0 to 1e\+39, .* up to 1,000",
    ),
    ({"position_type": "int"}, "x, y, z have type .*expected float"),
    ({"color_type": "ushort"}, "red, green, blue have type .*expected uchar"),
    ({"color_type": "float"}, "red, green, blue have type .*expected uchar"),
    ({"extra_before": (("float", "x"),)}, "two properties with same name"),
    ({"positions": (), "colors": (), "faces": ()}, "has no vertices"),
    ({"tail": b"12 13\n"}, "bytes after its end"),
    ({"counts": {"face": 3}}, "bytes after its end"),
    ({"labels": (0,) * 6}, r"is a labels\.ply under the name of the mesh"),
]
WRONG_LABELS = [
    ({}, "has no labels"),
    ({"labels": (0, 0, -1, 0, 0, 0), "label_type": "short"}, "has labels from -1 to 0"),
    ({"labels": (0, 0, 70_000, 0, 0, 0), "label_type": "int"}, "has labels from 0 to 70000"),
    ({"labels": (0,) * 6, "label_type": "float"}, "label have type float32"),
]
DAMAGED_MESHES = [
    (b"", "is empty"),
    (b"<html><body>Not found</body></html>", "is a web page, expected a PLY file"),
    (b"solid cube", "is not a PLY file, expected .*; it begins with b'solid cu'"),
    (Ply().encode()[:60], "expected a PLY file with a line end_header"),
    (Ply().encode()[:-1], f"truncated, .*{SIZE - 1} bytes.: element 'face': row 3: early end"),
    (Ply().encode()[:300], "truncated, .*300 bytes.: element 'vertex'"),
    (Ply(tail=b"\n").encode(), f"has 1 of {SIZE + 1} bytes after its end"),
    (Ply(counts={"vertex": 10**15}).encode(), "is damaged or truncated"),
    (Ply(format=TEXT, counts={"vertex": 10**15}).encode(), "is damaged"),
    (Ply(counts={"vertex": -3}).encode(), "is damaged"),
    (Ply().encode().replace(b"vertex ", b"vertex " + b"0" * 5000, 1), "is damaged"),
    (Ply(comments=("element vertex 2",)).encode(), "two elements with same name"),
    (
        Ply().encode().replace(b"float z", b"float w"),
        "vertices have the properties x, y, w, .*, expected x, y, z",
    ),
    (Ply(format=TEXT).encode().replace(b"130", b"13O"), "is damaged"),
    (Ply(format=TEXT).encode()[:-3], "is damaged"),
    (Ply().encode().replace(b"end_header\n", b"end_headerX\n"), "is damaged"),
    (Ply(format=TEXT).encode().replace(b"\n3 0 1 2", b"\n-3 0 1 2"), "is damaged|not triangles"),
    (Ply().encode().replace(b"element face", b"element f\xe1ce"), "is damaged, .*: 'ascii' codec"),
    (Ply(comments=("comment " + "x" * 70_000,)).encode(), "line end_header in its first 65,536"),
    (
        b"ply\nformat binary_little_endian 1.0\nelement vertex 5\nend_header\n",
        "without any property",
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
def test_damaged_or_foreign_file_is_refused_with_its_problem(kind, data, problem):
    with pytest.raises(FileError, match=problem):
        tiny.read_raw(kind, data)


def make_tree(root, *names):
    """Make empty files, and folders where a name ends with a slash."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")


def test_scenes_are_found_in_each_place_and_everything_else_is_named(tmp_path):
    make_tree(
        tmp_path,
        "scans/scene0000_00/scene0000_00_vh_clean_2.ply",
        "scene0000_00/",
        "scene0011_00/scene0011_00.txt",
        "scans_test/scene0707_00/",
        "scans/plot_01/plot_01.aggregation.json",
        "scans_test/room/room_vh_clean_2.ply",
        "scans/._scene0000_02/",
        "tasks/scannet_frames_25k.zip",
        "processed/train/scene0000_00.npz",
        # Not used: errors.
        "scans/scene00_00/scene00_00_vh_clean_2.ply",
        "scans/Scene0000_00/Scene0000_00_vh_clean_2.ply",
        "scans/scene0000_00_copy/scene0000_00_copy_vh_clean_2.ply",
        "scans/my room/my room_vh_clean_2.ply",
        "scans_test/office/mesh.ply",
        "scans_test/loose.ply",
        # Not used: notes.
        "scans/old/readme.md",
        "hall/hall_vh_clean_2.ply",
    )
    (tmp_path / "scans/gone").symlink_to("nowhere")

    scenes = find_raw_scenes(tmp_path)

    places = {name: scene.directory for name, scene in scenes.items()}
    assert places == {
        "plot_01": tmp_path / "scans/plot_01",
        "room": tmp_path / "scans_test/room",
        "scene0000_00": tmp_path / "scans/scene0000_00",
        "scene0011_00": tmp_path / "scene0011_00",
        "scene0707_00": tmp_path / "scans_test/scene0707_00",
    }
    assert [scene.split for scene in scenes.values()] == ["train", "test", "train", "val", "test"]
    assert [scene.is_own for scene in scenes.values()] == [True, True, False, False, False]
    assert not any(scene.problem for scene in scenes.values())
    assert scenes["room"].path(MESH) == tmp_path / "scans_test/room/room_vh_clean_2.ply"

    strangers = find_strangers(tmp_path)
    names = {"error": set(), "note": set()}
    for stranger in strangers:
        names[stranger.severity].add(stranger.subject.removeprefix(f"{tmp_path}/"))
        assert stranger.hint or stranger.severity == "note"
    assert names == {
        "error": {
            "scans/scene00_00",
            "scans/Scene0000_00",
            "scans/scene0000_00_copy",
            "scans/my room",
            "scans_test/office",
            "scans_test/loose.ply",
        },
        "note": {"scans/old", "scans/gone", "hall"},
    }


@pytest.mark.parametrize("names", [["scene0000_00/"], ["room/room_vh_clean_2.ply"]])
def test_scenes_are_found_if_the_folder_of_the_scenes_is_given(tmp_path, monkeypatch, names):
    make_tree(tmp_path / "scans", *names)
    monkeypatch.chdir(tmp_path / "scans")

    for raw_dir in (tmp_path / "scans", Path()):
        (scene,) = find_raw_scenes(raw_dir).values()
        assert scene.split == "train"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["data/"], "holds no scene folders"),
        (["scans/scene00_00/scene00_00_vh_clean_2.ply"], "scans/scene00_00: is not used"),
        (["scans_test/room.ply"], r"scans_test/room\.ply: is not used"),
        (["scans"], "scans: cannot be listed: Not a directory"),
    ],
)
def test_tree_without_scenes_is_an_error_that_says_what_is_expected(tmp_path, names, problem):
    make_tree(tmp_path / "raw", *names)

    with pytest.raises(FileError, match=problem):
        find_raw_scenes(tmp_path / "raw")
    with pytest.raises(MissingFileError, match="no such folder") as caught:
        find_raw_scenes(tmp_path / "absent")
    assert "scans/scene0000_00" in caught.value.hint


@pytest.mark.parametrize(
    ("names", "scene_id", "problem"),
    [
        (
            [
                "scene0000_00/scene0000_00_vh_clean_2.ply",
                "scans/scene0000_00/scene0000_00_vh_clean_2.ply",
            ],
            "scene0000_00",
            "both have a mesh; remove one of the two",
        ),
        (["scans/scene0000_00"], "scene0000_00", "is not a folder, or a link that leads nowhere"),
    ],
)
def test_scene_that_cannot_be_used_is_found_with_its_problem(tmp_path, names, scene_id, problem):
    make_tree(tmp_path, *names)

    scene = find_raw_scenes(tmp_path)[scene_id]

    assert re.search(problem, scene.problem)
