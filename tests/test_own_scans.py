"""Scenes that are not from the release: processed, read, packed, verified and sampled."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
from commands import COMMAND, PYTHON, find_blocks, run_main, run_words, succeed, write_tree
from tiny import Ply

from scannet_prep import ScanNet, read_processed, sample_from_mesh
from scannet_prep.errors import FileError, UnknownSceneError, UsageError
from scannet_prep.raw.files import read_raw_file
from scannet_prep.release import files as release
from scannet_prep.release.scenes import SCENE_ID, SceneId

LONGEST_NAME = "a" * 96
MESH = "_vh_clean_2.ply"
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
AGGREGATION = ".aggregation.json"


def write_own(raw_dir, place, files):
    """Write the files of a scene: suffixes and contents."""
    name = Path(place).name
    write_tree(raw_dir / place, {f"{name}{suffix}": files[suffix] for suffix in files})


def name_colors(data, names):
    """Give red, green and blue of a mesh other names."""
    for old, new in zip(("red", "green", "blue"), names.split(), strict=True):
        data = data.replace(f"uchar {old}\n".encode(), f"uchar {new}\n".encode())
    return data


@pytest.fixture
def raw_dir(tmp_path):
    """Two scenes of the release, an annotated own scene, and own meshes without anything else."""
    raw_dir = tmp_path / "raw"
    tiny.write_tiny(raw_dir)
    tiny.write_tiny(raw_dir, {SEGMENTS: None, AGGREGATION: None}, tiny.TEST_SCENE_ID)
    annotated = {
        MESH: Ply().encode(),
        SEGMENTS: tiny.segments_file(scene_id="plot_01"),
        AGGREGATION: tiny.aggregation_file(scene_id="plot_01"),
    }
    write_own(raw_dir, "val/plot_01", annotated)
    double = Ply(position_type="double").encode()
    write_own(raw_dir, f"scans_test/{LONGEST_NAME}", {MESH: double})
    mesh = name_colors(Ply(format="ascii").encode(), "r g b")
    write_own(raw_dir, "test/room", {MESH: mesh, ".txt": tiny.info_file()})
    return raw_dir


def test_own_scenes_are_processed_packed_and_read_like_those_of_the_release(raw_dir, tmp_path):
    out_dir = tmp_path / "out"
    words = ("process", raw_dir, "-o", out_dir, "--align-axis", "--faces", "--compute-segments")
    succeed(*words)

    names = [ScanNet(out_dir, split=split).scene_ids for split in ("train", "val", "test")]
    test_names = [LONGEST_NAME, "room", tiny.TEST_SCENE_ID]
    assert names == [[tiny.SCENE_ID], ["plot_01"], test_names]

    # The annotated scene has the arrays of the same scene of the release, but for the alignment.
    plot = read_processed(out_dir / "val/plot_01.npz")
    assert plot.points.tolist() == [list(position) for position in tiny.POSITIONS]
    assert plot.labels.tolist() == [label - 1 for label in tiny.LABELS20]
    assert plot.instances.tolist() == list(tiny.INSTANCES)
    assert plot.segments.tolist() == [0, 0, 1, 1, 2, 3]
    assert plot.axis_alignment.tolist() == np.eye(4).tolist()
    assert [warning.kind for warning in plot.meta.warnings] == ["no_info"]

    # The mesh alone has no annotation; segments are computed, points are aligned by the .txt.
    room = read_processed(out_dir / "test/room.npz")
    of_release = read_processed(out_dir / "train/scene0000_00.npz")
    assert (room.labels == -1).all()
    assert (room.instances == -1).all()
    assert room.meta.segments_source == "computed"
    for name in ("points", "normals", "colors", "faces", "axis_alignment"):
        np.testing.assert_array_equal(getattr(room, name), getattr(of_release, name))

    for place in (out_dir, raw_dir):
        succeed("verify", place)
    succeed("info", raw_dir)
    assert run_main(*words, "--json").json["made"] == []

    archive = tmp_path / "own.tar.zst"
    succeed("pack", out_dir, "-o", archive)
    dataset = ScanNet(archive, split="test")
    assert dataset.scene_ids == test_names
    np.testing.assert_array_equal(dataset[1]["points"], room.points)

    # A sample of the mesh is that of the dataset.
    alignment = np.reshape(tiny.ALIGNMENT, (4, 4))
    for place, matrix in ((f"scans_test/{LONGEST_NAME}", None), ("test/room", alignment)):
        name = Path(place).name
        file = shutil.copy(raw_dir / place / f"{name}{MESH}", tmp_path / f"{name}.ply")
        sample = sample_from_mesh(file, axis_alignment=matrix, compute_segments=True)
        expected = dataset[name]
        assert sample.is_aligned == (matrix is not None)
        assert list(sample) == list(expected)
        for key in sample:
            np.testing.assert_array_equal(sample[key], expected[key])
            assert getattr(sample[key], "dtype", None) == getattr(expected[key], "dtype", None)
    assert sample_from_mesh(file, labels="ScanNet200")["label_set"] == "ScanNet200"
    for matrix in (np.eye(3), alignment * np.nan):
        with pytest.raises(UsageError, match="expected 4 rows of 4 finite numbers"):
            sample_from_mesh(file, axis_alignment=matrix)

    # Groups are not taken silently in place of labels.ply.
    (raw_dir / "val/plot_01").rename(f"{raw_dir}/test/plot_01")
    words = ("process", raw_dir, "-o", tmp_path, "--labels-from=ply", "--scenes=plot_01")
    assert run_main(*words).status == 3


MESH_ALONE = {MESH: Ply().encode()}
# Scenes by their place, with their files, and a part of the message and of the hint.
UNUSABLE = {
    "scans/unannotated": (MESH_ALONE, "no such file", "move the folder to scans_test/"),
    "scans_test/broken": ({MESH: b"ply\n"}, "end_header", "need PLY files"),
    "mine/hall": (MESH_ALONE, "nor in a folder of its split", ""),
    "scans_test/scene0708_00": (MESH_ALONE | {AGGREGATION: b"{}"}, "no such file", "need PLY"),
    # All meshes of the release have faces and colours.
    "scans_test/scene0709_00": ({MESH: Ply(faces=None).encode()}, "has no faces", "again"),
    "scans_test/scene0710_00": (
        {MESH: name_colors(MESH_ALONE[MESH], "a b c")},
        "known as colours",
        "download its files again",
    ),
}
NO_SCENES = ("scans/Scene0000_00", "scans/notes")


def test_what_cannot_be_used_fails_by_name_with_a_fitting_hint_without_stopping_the_others(
    raw_dir, tmp_path
):
    for place, (files, _, _) in UNUSABLE.items():
        write_own(raw_dir, place, files)
    for place in NO_SCENES:
        write_own(raw_dir, place, {} if place == "scans/notes" else MESH_ALONE)
    words = ("process", raw_dir, "-o", tmp_path / "out", "--json")

    outcome = run_main(*words)
    named = run_main(*words, "--scenes", "hall", "--splits", "test")

    assert outcome.status == 3
    for place in NO_SCENES:
        assert place in outcome.stdout
    failures = {one["scene_id"]: one for one in outcome.json["failures"]}
    for place, (_, message, hint) in UNUSABLE.items():
        failure = failures[Path(place).name]
        assert message in failure["message"]
        assert hint in failure["hint"]
        # What is own cannot be downloaded.
        assert ("download" in failure["hint"]) is ("again" in hint)
    made = ["plot_01", "room", tiny.SCENE_ID, tiny.TEST_SCENE_ID, LONGEST_NAME]
    assert sorted(outcome.json["made"]) == sorted(made)
    assert named.json["made"] == ["hall"]


BIG = np.array(tiny.POSITIONS) * (180, 1, 1)
RGB = "red green blue"
UNUSED = "unused_properties: the mesh has "
# A mesh, the names of its colours, and the notes.
OWN_MESHES = [
    (Ply(), "diffuse_red diffuse_green diffuse_blue", []),
    (Ply(), "color_R_8 color_G_8 color_B_8", []),
    (Ply(format="ascii", tail=b" \n"), "Red Green Blue", []),
    (Ply(color_type="float", colors=(np.array(tiny.COLORS) - 0.4) / 255), RGB, []),
    (Ply(color_type="ushort", colors=257 * np.array(tiny.COLORS)), RGB, []),
    (
        Ply(
            extra_before=[("uchar", name) for name in ("b_red", "b_green", "b_blue")],
            last_element="camera",
        ),
        "a_red a_green a_blue",
        ["no_colors", f"{UNUSED}b_red, b_green, b_blue, a_red, a_green, a_blue, element camera"],
    ),
    (
        Ply(
            extra_before=[("float", name) for name in ("nx", "ny", "nz", "r", "g", "b")],
            face_extra=[("uchar", "label")],
            comments=["comment TextureFile room.png"],
        ),
        RGB,
        [f"{UNUSED}TextureFile room.png, nx, ny, nz, r, g, b, label"],
    ),
    (Ply(positions=BIG), RGB, ["large_mesh: the mesh is 180 m long"]),
]


@pytest.mark.parametrize(("ply", "names", "expected"), OWN_MESHES)
def test_meshes_of_other_programs_are_read_with_notes_of_what_is_missing_or_unused(
    tmp_path, ply, names, expected
):
    file = tmp_path / "room.ply"
    file.write_bytes(name_colors(ply.encode(), names))

    mesh = read_raw_file(release.MESH, file)

    notes = [f"{note.kind.value}: {note.fault}" for note in mesh.notes]
    for note, start in zip(notes, expected, strict=True):
        assert note.startswith(start)
    colors = [(128, 128, 128)] * 6 if "no_colors" in expected else tiny.COLORS
    assert mesh.colors.tolist() == [list(color) for color in colors]


@pytest.mark.parametrize("place", ["scans", "scans_test"])
def test_own_scenes_alone_need_no_categories_of_the_release_and_no_download(tmp_path, place):
    groups = [tiny.group(0, [0, 2], "trunk"), tiny.group(1, [4], "chair")]
    annotated = {
        MESH: Ply().encode(),
        ".txt": tiny.info_file(alignment=None),
        SEGMENTS: b"\xef\xbb\xbf" + tiny.segments_file(scene_id="/mesh"),
        AGGREGATION: b"\xef\xbb\xbf" + tiny.aggregation_file(groups, scene_id="plot_01"),
    }
    write_own(tmp_path, f"{place}/plot_01", annotated)
    label_map = tmp_path / "tasks/scannetv2-labels.combined.tsv"
    label_map.parent.mkdir()
    label_map.write_text("id\traw_category\tnyu40id\n7\ttrunk\t3\n")

    outcome = succeed("process", tmp_path, "-o", tmp_path / "out")
    findings = run_main("verify", tmp_path, "--json").json["findings"]

    assert "raw category 'chair' is not in the label map" in outcome.stderr
    assert "the .txt has no axisAlignment" in outcome.stderr
    assert not (tmp_path / "out/TERMS.txt").exists(), "it derives from nothing of ScanNet"
    plot = read_processed(*(tmp_path / "out").glob("*/plot_01.npz"))
    assert plot.nyu40_ids.tolist() == [3, 3, 3, 3, 0, 0]
    assert plot.scannet_ids.tolist() == [7, 7, 7, 7, 0, 0]
    assert plot.meta.segments_source == "beside the mesh"
    (error,) = [finding for finding in findings if finding["severity"] == "error"]
    assert error["message"].endswith("says that it belongs to 'mesh'")
    assert not any("download" in finding["hint"] for finding in findings)


def test_names_of_own_scenes_are_unlike_those_of_the_release():
    for name in ("room", "a", "B-2_c", "plot_01", "scene-kitchen", "7", LONGEST_NAME):
        assert SceneId(name).space is None
    taken = "scene0000_0 scene00_00 Scene0000_00 011_0 scene-0011_00 0011_00 scene0000_00_vh_clean"
    digits = "scene\u0660\u0660\u0660\u0660_\u0660\u0660"
    others = ["", "a.b", "_a", "a/b", "..", "٣", f"{LONGEST_NAME}a", "scene0000_00\n", digits]
    for name in (*taken.split(), *others):
        assert not SCENE_ID.fullmatch(name)
        with pytest.raises(UnknownSceneError, match="is not a scene id"):
            SceneId(name)


def test_page_leads_from_a_mesh_to_a_picture_of_the_predictions(tmp_path):
    page = "docs/own-scans.md"
    program = find_blocks(page, "python")[-1]
    commands = find_blocks(page, "sh")[-1].replace("scannet-prep", " ".join(COMMAND))

    for words in ((PYTHON, "-W", "error", "-c", program), ("sh", "-ec", commands)):
        succeed(*words, cwd=tmp_path, run=run_words)

    assert (tmp_path / "room.png").read_bytes().startswith(b"\x89PNG")


CLOUD = """ply
format ascii 1.0
element vertex 6
property float x
property float y
property float z
property float nx
property float ny
property float nz
end_header
0 0 0 0 0 3e5
1 0 0 0 0 3
1 1 0 3 4 0
0 1 0 0 0 0
0 1 1 nan inf 0
1 1 1 0 -1 0
"""


def test_points_without_faces_have_the_normals_of_their_file(tmp_path):
    file = tmp_path / "cloud.ply"
    file.write_text(CLOUD)
    normals = np.array([(0, 0, 1), (0, 0, 1), (0.6, 0.8, 0), (0, 0, 0), (0, 0, 0), (0, -1, 0)])
    turn = np.array([[1, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0.5], [0, 0, 0, 1]])

    for matrix in (np.eye(4), turn):
        with pytest.warns(UserWarning, match="cloud") as caught:
            sample = sample_from_mesh(file, axis_alignment=matrix)
        np.testing.assert_allclose(sample["normals"], normals @ matrix[:3, :3].T, atol=1e-3)
    assert str(caught[0].message).endswith("has no faces: normals taken from the file")
    problem = r"cloud\.ply: its 0 faces join few of its 6 vertices.*\nhint: compute no segments"
    with pytest.warns(UserWarning, match="cloud"), pytest.raises(FileError, match=problem):
        sample_from_mesh(file, compute_segments=True)


def test_copies_of_scenes_and_test_scenes_in_scans_are_one_note_each(whole_dir, tmp_path):
    raw = tmp_path / "raw"
    for folder in (whole_dir / "raw").glob("scans*/*"):
        for target in (raw / "scans" / folder.name, raw / "copies"):
            shutil.copytree(folder, target, dirs_exist_ok=True)

    outcome = succeed("process", raw, "-o", tmp_path / "out", "--json")
    notes = {note["path"]: note["message"] for note in outcome.json["notes"]}
    assert "and 9 more" in notes[str(raw / "copies")]
    assert "lies in scans/, but is a test scene" in " ".join(notes.values())
