"""Readers of raw files: good, unusual and damaged input; and the scenes of a raw tree."""

import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny
from commands import limited_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Ply

from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.processed.make_scene import compact_indices
from scannet_prep.raw.tree import list_raw
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS

FORMATS = ["binary_little_endian", "binary_big_endian", "ascii"]


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
    assert segmentation.raw_ids.tolist() == raw_ids.tolist()
    assert segmentation.indices.tolist() == indices.tolist()


@pytest.mark.parametrize(("count", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_compact_indices_have_the_smallest_type_that_holds_them(count, dtype):
    compact = compact_indices(np.arange(count), count)

    assert compact.dtype == dtype
    assert compact[-1] == count - 1


def test_files_may_lack_ids_of_groups_and_metadata_and_name_their_scene_in_any_form():
    data = tiny.aggregation_file([{"segments": [], "label": ""}])
    (group,) = tiny.read_raw(AGGREGATION, data).groups
    assert group.id is None
    assert group.object_id is None
    assert group.raw_category == ""

    info = tiny.read_raw(INFO, b"colorHeight = 968\n  \nequation = a = b")
    assert info.axis_alignment is None
    assert info.scene_type is None

    for name, scene_id in (("null", ""), (r'"a\\b_vh_clean_2"', "b"), ('"scannet.plot"', "plot")):
        data = f'{{"segIndices": [0], "segGroups": [], "sceneId": {name}}}'.encode()
        for kind in (SEGMENTS, AGGREGATION):
            assert tiny.read_raw(kind, data).scene_id == scene_id


# Properties and elements that a mesh may have; see `tiny.Ply`.
KNOBS = [
    {},
    {"newline": "\r\n"},
    {"newline": "\r"},
    {"faces": ()},
    {"faces": None},
    {"comments": ("comment", "obj_info a b", "comment C:/Büro", "comment was format ascii 1.0")},
    {"extra_before": (("double", "quality"), ("uchar", "flags"))},
    {"face_list": "vertex_index"},
    {"count_type": "int", "index_type": "uint"},
    {"index_type": "uchar"},
    {"face_extra": (("uchar", "flags"), ("float", "area"))},
    {"vertex_list": "neighbours"},
    {"last_element": "camera"},
    {"position_type": "double"},
    *({"color_type": kind} for kind in ("ushort", "int", "float", "double")),
    {"color_type": "ushort", "colors": ((0, 0, 0),) * 6},
    *(
        {"labels": (0, 1, 40, 50, 100, 39), "label_type": label_type}
        for label_type in ("ushort", "uchar", "int", "short")
    ),
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_mesh_of_any_form_is_read_by_property_names(name, knobs):
    ply = Ply(format=name, **knobs)

    mesh = tiny.read_raw(LABELS_MESH if ply.labels else MESH, ply.encode())

    np.testing.assert_array_equal(mesh.positions, ply.positions)
    np.testing.assert_array_equal(mesh.colors, ply.colors)
    np.testing.assert_array_equal(mesh.faces, np.reshape(ply.faces or (), (-1, 3)))
    assert mesh.labels.tolist() == [*(ply.labels or ())]
    arrays = (mesh.positions, mesh.colors, mesh.faces, mesh.labels)
    position_type = np.float64 if ply.position_type == "double" else np.float32
    assert [array.dtype for array in arrays] == [position_type, np.uint8, np.int32, np.uint16]
    for array in arrays:
        assert array.flags.forc
        assert array.flags.writeable


def test_threads_that_read_meshes_leave_the_filters_of_warnings_as_they_are():
    # Text takes so long that the threads take turns. Words in the header may be apart.
    ply = Ply(1_000 * tiny.POSITIONS, 1_000 * tiny.COLORS, format="ascii")
    data = ply.encode().replace(b"format ascii", b" format \t ascii")
    filters = [*warnings.filters]

    with ThreadPoolExecutor() as threads:
        *_, mesh = threads.map(partial(tiny.read_raw, MESH), [data] * 4)

    np.testing.assert_array_equal(mesh.positions, ply.positions)
    assert warnings.filters == filters


def test_memory_that_runs_out_while_a_mesh_is_read_is_not_taken_for_damage():
    properties = tuple(("double", f"p{number}") for number in range(2_000))
    # 640 MB, which plyfile reserves before it reads.
    ply = Ply(format="ascii", extra_before=properties, counts={"vertex": 40_000})

    with limited_memory(2**24), pytest.raises(MemoryError):
        tiny.read_raw(MESH, ply.encode())


NO_SEGMENT_IDS = [
    # Not a list.
    "[]", "null", '"0,1"',
    # Elements that are not ids.
    "[null]", "[-1]", "[0, 1.5]", "[true]", '["1_0"]', '["-1"]', "[NaN]",
    "[9223372036854775808]", "[" + "9" * 5000 + "]",
    # Not JSON.
    "[0,,1]", "[0,1,]", "[,0]", "[0 1]", "[0,01]",
    # Two lists.
    '[1,2], "segIndices": []', '[], "params": {"segIndices": [1,2]}'
]  # fmt: skip
NO_GROUPS = [
    ([tiny.group(1, [0, 1.5], "chair")], r"got `float` - at `\$\.segGroups\[0\]\.segments\[1\]`"),
    ([tiny.group(True, [0], "chair")], r"got `bool` - at `\$\.segGroups\[0\]\.id`"),
    ([tiny.group(1, [0], "chair", "one")], r"at `\$\.segGroups\[0\]\.objectId`"),
    ([tiny.group(1, [0], 5)], r"got `int` - at `\$\.segGroups\[0\]\.label`"),
]
NO_JSON_OBJECTS = [
    (b"", "is empty"),
    (b"  <!DOCTYPE html>", "is a web page, expected JSON"),
    (b"\x00" * 64, "is nothing but zeros"),
    (b'{"a": "\xff"}', "is damaged, expected JSON"),
    (b"[1, 2]", "Expected `object`, got `array`"),
    (b'{"params": {"segIndices": [1], "segGroups": []}}', "missing required field"),
]
NO_METADATA = [
    (b"\xef\xbb\xbf", "is empty"),
    (b"a = \0", "line 1 reads"),
    (b"a = 1\r\r\nb = 2\r\r\nnonsense\r\r\n", "line 3 reads 'nonsense'"),
    (b"axisAlignment = 1 0\naxisAlignment = 2 0\n", "has two different values for axisAlignment"),
    (b"axisAlignment = " + b"1 " * 15, "axisAlignment has 15 values"),
    (b"axisAlignment = " + b"1 " * 16, "expected .* a matrix with an inverse"),
    (b"axisAlignment = 1e7" + 3 * b" 0 0 0 0 1", "axisAlignment has 16 values, '1e7 0"),
]
SIZE = len(Ply().encode())
WRONG_MESHES = [
    (
        {"faces": ((0, 1, 2, 3), (3, 2, 5))},
        "face.: row 0: .*unexpected list length|has faces that are not triangles",
    ),
    ({"faces": ((0, 1, 6),)}, "refer to vertices from 0 to 6, but there are 6 vertices"),
    ({"faces": ((0, 1, -1),)}, "refer to vertices from -1 to 1"),
    ({"face_list": "corners"}, "faces have 0 lists vertex_indices or vertex_index"),
    ({"index_type": "float"}, "vertex_indices as float32, expected whole numbers"),
    ({"positions": ((float("nan"), 0, 0),) * 6}, "has coordinates from nan to nan"),
    ({"positions": ((-1e4, 0, 0),) * 6}, "has coordinates from -10,000 to 0, "),
    (
        {"positions": ((1e39, 0, 0),) * 6, "position_type": "double"},
        r"has coordinates from 0 to 1e\+39, .* up to 1,000",
    ),
    ({"position_type": "int"}, "x, y, z have type .*expected float"),
    (
        {"color_type": "ushort", "colors": ((0, 1, 1),) * 6},
        "red, green, blue have type uint16 and values from 0 to 1, expected whole numbers 0..255",
    ),
    ({"color_type": "int", "colors": ((0, 0, -1),) * 6}, "values from -1 to 0"),
    ({"color_type": "float", "colors": ((0, 1, 1.001),) * 6}, r"from 0\.0 to 1.*expected whole"),
    ({"color_type": "float", "colors": ((0, 0, float("nan")),) * 6}, "values from nan to nan"),
    ({"positions": (), "colors": (), "faces": ()}, "has no vertices"),
    ({"tail": b"12 13\n"}, "bytes after its end"),
    ({"labels": (0,) * 6}, r"is a labels\.ply under the name of the mesh"),
]
WRONG_LABELS = [
    ({}, "has no labels"),
    ({"labels": (0, 0, -1, 0, 0, 0), "label_type": "short"}, "has labels from -1 to 0"),
    ({"labels": (0, 0, 70_000, 0, 0, 0), "label_type": "int"}, "has labels from 0 to 70000"),
    ({"labels": (0,) * 6, "label_type": "float"}, "label have type float32"),
]
DAMAGED_MESHES = [
    (b"<html><body>Not found</body></html>", "is a web page, expected a PLY file"),
    (b"solid cube", "is a file of another kind, expected .*; it begins with b'solid cu'"),
    (Ply().encode()[:40], "header that is truncated or too long, expected a line end_h"),
    (Ply().encode()[:-1], f"truncated, .*{SIZE - 1} bytes.: element 'face': row 3: early end"),
    (Ply(tail=b"\n").encode(), f"has 1 of {SIZE + 1} bytes after its end"),
    (Ply(counts={"vertex": 10**15}).encode(), "truncated: .* bytes for more rows"),
    (
        Ply().encode().replace(b"float z", b"float w"),
        "vertices have the properties x, y, w, .*, expected x, y, z",
    ),
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
            (kind, Ply(format=name, **knobs).encode(), problem)
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


MESH_IN_SCANS = "scans/scene0000_00/scene0000_00_vh_clean_2.ply"


@pytest.mark.parametrize("kind", [MESH, SEGMENTS, AGGREGATION, INFO])
def test_file_that_is_too_large_or_not_regular_is_refused(tmp_path, kind):
    scene = tiny.write_tiny(tmp_path)
    path = scene.path(kind)
    os.truncate(path, 1 << 40)
    with pytest.raises(FileError, match=f"bytes, expected at most {kind.max_bytes:,}"):
        tiny.process_written(scene)

    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        path.unlink()
        make(path)
        (scene,) = list_raw(tmp_path).scenes.values()
        with pytest.raises(FileError, match=f"{kind.suffix}: is a named pipe or a device"):
            tiny.process_written(scene)


def make_tree(root, *names):
    """Make empty files, and folders where a name ends with a slash."""
    for name in names:
        folder, _, file = name.rpartition("/")
        (root / folder).mkdir(parents=True, exist_ok=True)
        if file:
            (root / name).touch()


# The files of scenes, with the scene, and the split that it belongs to.
PLACES = {
    "scans/scene0000_00/scene0000_00_vh_clean_2.ply": ("scene0000_00", "train"),
    "scene0011_00/scene0011_00.txt": ("scene0011_00", "val"),
    "scans_test/scene0707_00/": ("scene0707_00", "test"),
    "scans/plot_01/plot_01.aggregation.json": ("plot_01", "train"),
    "scans_test/room/room_vh_clean_2.ply": ("room", "test"),
    # A scene may be named like a place.
    "val/test/test_vh_clean_2.ply": ("test", "val"),
    # In the layout of PointGroup, and in folders that people make.
    f"train/scene0191_00{SEGMENTS.suffix}": ("scene0191_00", "train"),
    "val/scene0568_00_vh_clean_2.ply": ("scene0568_00", "val"),
    "v2/scans/val/hall-2_vh_clean_2.ply": ("hall-2", "val"),
    "scans/v2/train/scene0002_00/scene0002_00.sens": ("scene0002_00", "train"),
    "dataset/scannetv2/test/scene0708_00_vh_clean_2.ply": ("scene0708_00", "test"),
    "scene0015_00_vh_clean.aggregation.json": ("scene0015_00", "val"),
    "scans/scene0004_00/scene0004_00/scene0004_00.sens": ("scene0004_00", "train"),
    "mine/attic/attic_vh_clean_2.ply": ("attic", None),
}
IGNORED = [
    "scene0000_00/",
    "scene0707_00/",
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
    "scans_test/office/mesh.PLY": "error",
    "scans_test/loose.ply": "error",
    "scans/old/scene0001_00.sens.md": "note",
    "scans/scene0000_00/scene0000_00_vh_clean_2.0.020000.segs.json": "note",
    "train/scene0191_00_vh_clean_2.PLY": "note",
    "txt/scene0191_00.txt": "note",
    "scannetv2-labels.tsv": "note",
}


def test_scenes_are_found_in_any_place_and_files_that_are_not_used_are_named(tmp_path):
    (tmp_path / ".mine").mkdir()
    (tmp_path / "mine").symlink_to(".mine")
    make_tree(tmp_path, *PLACES, *IGNORED, *UNUSED)
    (tmp_path / "scans_test/gone").symlink_to("nowhere")
    for link in ("scans/plot_01/round", "scans/up"):
        (tmp_path / link).symlink_to(tmp_path)
    # Scenes are not looked for this deep.
    (tmp_path / "before").mkdir()
    (tmp_path / "before/deep").symlink_to(tmp_path / "scans")

    listing = list_raw(tmp_path)

    for name, (scene_id, split) in PLACES.items():
        scene = listing.scenes[scene_id]
        paths = [scene.path(kind) for kind in scene.files] or [scene.directory]
        assert paths == [tmp_path / name]
        assert scene.split == split
        assert scene.problem == ""
    assert [*listing.scenes] == sorted(scene_id for scene_id, _ in PLACES.values())

    findings = {finding.subject: finding for finding in listing.findings}
    assert "gone" in findings[str(tmp_path / "scans_test")].message
    for name, severity in UNUSED.items():
        path = tmp_path / name
        finding = findings.pop(str(path.parent))
        assert finding.severity == severity
        assert path.name in finding.message or severity == "note"
        assert bool(finding.hint) is (severity == "error")
    assert not findings


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("scans/scene0000_00/scene0000_00_vh_clean_2.ply", "scans/scene0000_00"),
        ("scans/room/room_vh_clean_2.ply", "scans/room"),
        ("train/scene0000_00.aggregation.json", "train"),
    ],
)
def test_scene_is_found_with_the_label_map_if_a_part_of_the_tree_is_given(
    tmp_path, monkeypatch, name, part
):
    label_map = "tasks/scannetv2-labels.combined.tsv"
    make_tree(tmp_path, name, label_map)
    monkeypatch.chdir(tmp_path / part)

    for raw_dir in (tmp_path / part, Path()):
        listing = list_raw(raw_dir)
        assert [scene.split for scene in listing.scenes.values()] == ["train"]
        assert listing.label_map == tmp_path / label_map

    make_tree(tmp_path, Path(label_map).name)
    listing = list_raw(tmp_path / part)
    assert listing.label_map == tmp_path / Path(label_map).name
    assert "tasks: not used" in str(listing.findings[-1])


@pytest.mark.parametrize("place", ["", "tasks/", "train/", "v2/", "v2/scans/"])
def test_label_map_that_lies_with_the_scenes_is_found_and_others_are_named(tmp_path, place):
    name = "scannetv2-labels.combined.tsv"
    make_tree(tmp_path, "train/scene0000_00_vh_clean_2.ply", "v2/scans/", "tasks/")
    assert list_raw(tmp_path).label_map is None
    (tmp_path / place / name).symlink_to("nowhere")
    make_tree(tmp_path, f"data/scans/scene0000_01/{name}")

    listing = list_raw(tmp_path)

    assert listing.label_map == tmp_path / place / name
    (finding,) = listing.findings
    assert finding.subject.endswith("scene0000_01")
    assert finding.message.endswith(f": {name}")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["data/"], "holds no scene folders"),
        (["scans/scene00_00/scene00_00_vh_clean_2.ply"], "scans/scene00_00: not used"),
        (
            [MESH_IN_SCANS, "scans_test"],
            "scans_test: is not a folder, or a link that leads nowhere",
        ),
    ],
)
def test_tree_without_scenes_is_an_error_that_says_what_is_expected(tmp_path, names, problem):
    make_tree(tmp_path / "raw", *names)

    with pytest.raises(FileError, match=problem):
        list_raw(tmp_path / "raw")
    (tmp_path / "a.ply").touch()
    for other, wrong in (("absent", "no such folder"), ("a.ply", "is a file, expected a folder")):
        with pytest.raises(MissingFileError, match=wrong) as caught:
            list_raw(tmp_path / other)
        assert "scans/scene0000_00/; a mesh of your own is scans_test/" in caught.value.hint


@pytest.mark.parametrize(
    ("names", "problem", "notes"),
    [
        (
            ["scene0000_00/scene0000_00_vh_clean_2.ply", MESH_IN_SCANS],
            "has the same scene as .*, and each has a mesh; move one away",
            [],
        ),
        # A folder of the scene comes before a flat copy.
        ([MESH_IN_SCANS, "train/scene0000_00_vh_clean_2.ply"], "^$", ["train"]),
        (["scene0000_00/", "train/scene0000_00_vh_clean_2.ply"], "^$", []),
        (["val/scene0000_00_vh_clean_2.ply"], "is a train scene, but lies among val scenes", []),
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
    found = [(finding.subject, finding.severity) for finding in listing.findings]
    assert found == [(str(tmp_path / note), "note") for note in notes]


def test_mesh_that_is_a_link_to_nothing_gives_way_to_a_mesh_in_another_folder(tmp_path):
    make_tree(tmp_path, "train/scene0000_00_vh_clean_2.ply", "scene0000_00/")
    (tmp_path / "scene0000_00/scene0000_00_vh_clean_2.ply").symlink_to("nowhere")

    (scene,) = list_raw(tmp_path).scenes.values()
    assert scene.directory.name == "train"
