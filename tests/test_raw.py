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
from scannet_prep.raw.tree import list_raw
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
    ({"positions": ((-1e4, 0, 0), *tiny.POSITIONS[1:])}, "has coordinates from -10,000 to 1, "),
    ({"color_type": "ushort"}, "have type uint16 and values from 10 to 255, expected uchar"),
    ({"color_type": "ushort", "colors": ((0, 1, 1),) * 6}, "type uint16 and values from 0 to 1"),
    ({"color_type": "float"}, r"have type float32 and values from 10\.0 to 255\.0"),
    ({"color_type": "float", "colors": ((0, 0, float("nan")),) * 6}, "values from nan to nan"),
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


# The files of scenes, with the scene, and the split that it belongs to.
PLACES = {
    "scans/scene0000_00/scene0000_00_vh_clean_2.ply": ("scene0000_00", "train"),
    "scene0011_00/scene0011_00.txt": ("scene0011_00", "val"),
    "scans_test/scene0707_00/": ("scene0707_00", "test"),
    "scans/plot_01/plot_01.aggregation.json": ("plot_01", "train"),
    "scans_test/room/room_vh_clean_2.ply": ("room", "test"),
    # In the layout of PointGroup, and in folders of people.
    f"train/scene0191_00{SEGMENTS.suffix}": ("scene0191_00", "train"),
    "val/scene0568_00_vh_clean_2.ply": ("scene0568_00", "val"),
    "val/hall-2_vh_clean_2.ply": ("hall-2", "val"),
    "v2/scans/scene0002_00/scene0002_00.sens": ("scene0002_00", "train"),
    "dataset/scannetv2/test/scene0708_00_vh_clean_2.ply": ("scene0708_00", "test"),
    "scene0015_00_vh_clean.aggregation.json": ("scene0015_00", "val"),
    "mine/attic/attic_vh_clean_2.ply": ("attic", None),
}
IGNORED = [
    "scene0000_00/",
    "scans/._scene0001_00/scene0001_00_vh_clean_2.ply",
    "scans/scene0000_00/color/scene0001_00_vh_clean_2.ply",
    "tasks/scannet_frames_25k.zip",
    "processed/train/scene0001_00.npz",
    "lists/scannetv2_train.txt",
    "other/scene0003_00/coord.npy",
]
# Files that are not used, with the severity of the finding about their folder.
UNUSED = {
    "scans/scene00_00/scene00_00_vh_clean_2.ply": "error",
    "scans/Scene0000_00/Scene0000_00_vh_clean_2.ply": "error",
    "scans/scene0000_00_copy/scene0000_00_copy_vh_clean_2.ply": "error",
    "scans/my room/my room_vh_clean_2.ply": "error",
    "scans_test/office/mesh.ply": "error",
    "scans_test/loose.ply": "error",
    "scans/old/readme.md": "note",
    "scans/scene0000_00/scene0000_00_vh_clean_2.0.020000.segs.json": "note",
    "train/scene0191_00 (1).ply": "note",
    "txt/scene0191_00.txt": "note",
    "scannetv2-labels.tsv": "note",
}


def test_scenes_are_found_in_any_place_and_files_that_are_not_used_are_named(tmp_path):
    make_tree(tmp_path, *PLACES, *IGNORED, *UNUSED)
    (tmp_path / "scans_test/gone").symlink_to("nowhere")
    (tmp_path / "scans/scene0000_00/round").symlink_to(tmp_path)
    (tmp_path / "scans/plot_01/round").symlink_to(tmp_path)

    listing = list_raw(tmp_path)

    found = {}
    for scene_id, scene in listing.scenes.items():
        for path in [*map(scene.path, scene.files)] or [scene.directory / "x"]:
            name = str(path.relative_to(tmp_path)).removesuffix("x")
            found[name] = (scene_id, scene.split)
        assert scene.problem == ""
        assert scene.is_own is not scene_id.startswith("scene")
    assert found == PLACES
    assert list(listing.scenes) == sorted(listing.scenes)

    expected = {}
    for name, severity in UNUSED.items():
        folder = str((tmp_path / name).parent)
        expected[folder] = severity
        (finding,) = (one for one in listing.findings if one.subject == folder)
        assert name.split("/")[-1] in finding.message or severity == "note"
        assert finding.hint or severity == "note"
    assert {finding.subject: finding.severity for finding in listing.findings} == expected
    assert any("gone" in finding.message for finding in listing.findings)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("scans/scene0000_00/", "scans"),
        ("scans/scene0000_00/scene0000_00_vh_clean_2.ply", "scans/scene0000_00"),
        ("scans/room/room_vh_clean_2.ply", "scans"),
        ("scans/room/room_vh_clean_2.ply", "scans/room"),
        ("train/scene0000_00.aggregation.json", "train"),
    ],
)
def test_scene_is_found_with_the_label_map_if_a_part_of_the_tree_is_given(
    tmp_path, monkeypatch, name, part
):
    make_tree(tmp_path, name, "tasks/scannetv2-labels.combined.tsv")
    monkeypatch.chdir(tmp_path / part)

    for raw_dir in (tmp_path / part, Path()):
        listing = list_raw(raw_dir)
        (scene,) = listing.scenes.values()
        assert scene.split == "train"
        assert listing.label_map == tmp_path / "tasks/scannetv2-labels.combined.tsv"


@pytest.mark.parametrize("place", ["", "tasks/", "train/", "v2/", "v2/scans/"])
def test_label_map_that_lies_with_the_scenes_is_found_and_others_are_named(tmp_path, place):
    label_map = tmp_path / place / "scannetv2-labels.combined.tsv"
    make_tree(tmp_path, "train/scene0000_00_vh_clean_2.ply")
    assert list_raw(tmp_path).label_map is None
    label_map.parent.mkdir(parents=True, exist_ok=True)
    label_map.symlink_to("nowhere")
    make_tree(tmp_path, "v2/scans/scene0000_01/scannetv2-labels.combined.tsv")

    listing = list_raw(tmp_path)

    assert listing.label_map == label_map
    (finding,) = listing.findings
    assert finding.subject.endswith("scene0000_01")
    assert finding.message.endswith(": scannetv2-labels.combined.tsv")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["data/"], "holds no scene folders"),
        (["scans/scene00_00/scene00_00_vh_clean_2.ply"], "scans/scene00_00: not used"),
        (["scans_test/room.ply"], r"scans_test: not used, .*: room\.ply"),
        (["scans"], "scans: is not a folder, or a link that leads nowhere"),
    ],
)
def test_tree_without_scenes_is_an_error_that_says_what_is_expected(tmp_path, names, problem):
    make_tree(tmp_path / "raw", *names)

    with pytest.raises(FileError, match=problem):
        list_raw(tmp_path / "raw")
    with pytest.raises(MissingFileError, match="no such folder") as caught:
        list_raw(tmp_path / "absent")
    assert "scans/scene0000_00" in caught.value.hint


@pytest.mark.parametrize(
    ("names", "problem", "notes"),
    [
        (
            [
                "scene0000_00/scene0000_00_vh_clean_2.ply",
                "scans/scene0000_00/scene0000_00_vh_clean_2.ply",
            ],
            "has the same scene as .*, and both have a mesh; remove one",
            [],
        ),
        # A folder of the scene comes before a flat copy.
        (
            [
                "scans/scene0000_00/scene0000_00_vh_clean_2.ply",
                "train/scene0000_00_vh_clean_2.ply",
            ],
            "",
            ["train"],
        ),
        (
            ["json/scene0000_00.aggregation.json", "ply/scene0000_00_vh_clean_2.ply"],
            "",
            ["json"],
        ),
        (["val/scene0000_00_vh_clean_2.ply"], "is a train scene, but lies among val scenes", []),
        (["scans_test/scene0000_00/"], "is a train scene, but lies among test scenes", []),
        (["test/x/scene0000_00.sens"], "is a train scene, but lies among test scenes", []),
    ],
)
def test_scene_in_two_folders_or_a_wrong_one_has_a_problem_or_a_note(
    tmp_path, names, problem, notes
):
    make_tree(tmp_path, *names)

    listing = list_raw(tmp_path)

    (scene,) = listing.scenes.values()
    assert re.search(problem, scene.problem)
    assert bool(problem) is bool(scene.problem)
    assert [finding.subject for finding in listing.findings] == [
        str(tmp_path / note) for note in notes
    ]
    assert {finding.severity for finding in listing.findings} <= {"note"}
